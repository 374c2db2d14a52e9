/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/dump_worker.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/core/log.h"
#include "image/process_image.h"

_Static_assert(DUMP_WORKER_MAX_MAINS >= IMAGE_MAX_PROCESSES,
    "a verdict has room for every process of an image");
_Static_assert(DUMP_WORKER_MAX_TERMINALS == IMAGE_MAX_TERMINALS, "commands have no more than that");

/* They die where they stand, without another instruction: with init, but for who traces them to see
 * to. */
_Noreturn static void end_all(pid_t init) {
    (void)kill(init, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
    _exit(0);
}

static bool send_report(
    int socket, const struct dump_report *report, const struct dirty_tracker *trackers, size_t n) {
    int fds[MAX_DIRTY_TRACKERS];

    for (size_t i = 0; i < n; i++)
        fds[i] = trackers[i].fd;
    return fd_send(socket, report, sizeof *report, fds, n) == 0;
}

/* The command received; 0: no more will come. */
static char receive_command(int socket) {
    char order = 0;

    while (recv(socket, &order, 1, 0) < 0 && errno == EINTR)
        ;
    return order;
}

_Noreturn void dump_worker_run(const struct dump_options *options, bool (*may_resume)(void *data),
    void *data, int image, int socket) {
    static struct dump_report report;
    const struct dirty_tracker *trackers = NULL;
    struct dump *dump = NULL;
    int r = dump_begin(options, image, &dump, &report.error);

    report.result = r;
    if (r == 0) {
        struct dump_summary summary = dump_summary(dump);

        report.is_complete = dump_is_complete(dump);
        report.processes = summary.processes;
        report.bytes = summary.bytes;
        report.numbers = *dump_numbers(dump);
        report.is_incremental = dump_is_incremental(dump);
        report.n_trackers = (uint32_t)dump_trackers(dump, &trackers);
        for (size_t i = 0; i < report.n_trackers; i++)
            report.trackers[i] = (struct dirty_tracker){ trackers[i].pid, -1 };
        dump_clocks(dump, report.clocks);
        report.n_mains = (uint32_t)dump_mains(dump, report.mains, ARRAY_SIZE(report.mains));
    }
    report.resumes = r == 0 && may_resume && may_resume(data);
    if (report.resumes)
        dump_release(dump);
    if (r < 0 || report.is_complete)
        close(image); /* it is for others to read now, and for nobody to write to */
    bool is_told = send_report(socket, &report, trackers, report.n_trackers) && r == 0;
    char order = 0;
    if (is_told)
        order = report.resumes ? DUMP_COMMAND_RESUME : receive_command(socket);
    if (order == DUMP_COMMAND_END)
        end_all(options->init);
    if (order == DUMP_COMMAND_RESUME && !report.is_complete) {
        r = dump_resume(dump, &report.error);
        close(image);
        report.is_complete = true;
        report.bytes = dump_summary(dump).bytes;
        send_report(socket, &report, NULL, 0);
    }
    dump_end(dump);
    _exit(r < 0);
}
