/* SPDX-License-Identifier: Apache-2.0 */
#include "store/parser_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/fault.h"

#define MAX_REPORT (32u << 20)

static __attribute__((noreturn)) void child_main(
    int (*work)(void *context, json_t **ret_report, struct rollbox_error *error), void *context,
    int report_fd, int go_fd) {
    struct rollbox_error error = { 0 };
    json_t *report = NULL;
    char byte;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    fault_in_worker();
    if (work(context, &report, &error) < 0)
        report = json_pack("{s:{s:i, s:i, s:s, s:s}}", "error", "code", (int)error.code, "errno",
            error.error_number, "stage", error.stage, "message", error.message);
    char *text = report ? json_dumps(report, JSON_COMPACT) : NULL;
    if (!text || fd_write_all(report_fd, text, strlen(text)) < 0)
        _exit(1);
    close(report_fd);
    (void)!read(go_fd, &byte, 1);
    _exit(0);
}

static int report_error(const json_t *problem, struct rollbox_error *error) {
    json_int_t code = json_integer_value(json_object_get(problem, "code")),
               number = json_integer_value(json_object_get(problem, "errno"));
    const char *stage = json_string_value(json_object_get(problem, "stage")),
               *message = json_string_value(json_object_get(problem, "message"));

    if (code < 1 || code > ROLLBOX_ERR_DAMAGED || number < 0 || number > 4095) {
        code = ROLLBOX_ERR_INTERNAL;
        number = EBADMSG;
    }
    return error_set(error, (enum rollbox_error_code)code, (int)number, stage ? stage : "import",
        "%s", message ? message : "the archive could not be read");
}

int parser_process_start(
    int (*work)(void *context, json_t **ret_report, struct rollbox_error *error), void *context,
    struct parser_process *ret_worker, json_t **ret_report, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    int report[2], go[2];

    if (pipe2(report, O_CLOEXEC) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "import",
            "cannot make a pipe: %s", strerror(errno));
    auto_close int report_in = report[0];
    auto_close int report_out = report[1];
    if (pipe2(go, O_CLOEXEC) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "import",
            "cannot make a pipe: %s", strerror(errno));
    auto_close int go_in = go[0];
    auto_close int go_out = go[1];
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "import",
            "cannot start a process: %s", strerror(errno));
    if (pid == 0) {
        close_fd(&report_in);
        close_fd(&go_out);
        child_main(work, context, report_out, go_in);
    }
    close_fd(&report_out);
    *ret_worker = (struct parser_process){ pid, TAKE_FD(go_out) };
    int r = fd_read_all(report_in, MAX_REPORT, &text);
    json_t *found = r == 0 && text.length ? json_loadb(text.data, text.length, 0, NULL) : NULL;
    if (!json_is_object(found)) {
        json_decref(found);
        kill(pid, SIGKILL);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EPIPE, "import",
            "the process that reads the archive ran out of memory, or was killed");
    }
    const json_t *problem = json_object_get(found, "error");
    if (problem) {
        r = report_error(problem, error);
        json_decref(found);
        return r;
    }
    *ret_report = found;
    return 0;
}

void parser_process_end(struct parser_process *worker) {
    int status = 0;

    close_fd(&worker->go);
    if (worker->pid < 0)
        return;
    while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
        ;
    worker->pid = -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == FAULT_EXIT)
        kill(getpid(), SIGKILL);
}
