/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process of a job is waited for by its pidfd. Its standard streams are memory files, so it is
 * never blocked by the engine, and the answer is read at its end.
 */
#include "engine/store_job/store_job.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/many_ids.h"
#include "engine/core/spawn.h"
#include "store/store.h"
#include "sys/syscalls.h"

#define MAX_ANSWER (512u << 20)

struct store_job {
    struct engine *engine;
    struct loop_source source;
    pid_t pid;
    int pidfd, output, errors;
    bool finishes_alone, was_abandoned;
    const struct store_job_user *user;
    void *data;
};

/* ---- its end ---- */

static void release_job(struct store_job *job) {
    loop_remove(job->engine->loop, &job->source);
    close_fd(&job->pidfd);
    close_fd(&job->output);
    close_fd(&job->errors);
    if (job->user)
        job->user->release(job->data);
    free(job);
}

struct store_job *store_job_free(struct store_job *job) {
    if (!job)
        return NULL;
    if (job->finishes_alone) {
        job->was_abandoned = true; /* on_end frees it */
        return NULL;
    }
    sys_pidfd_send_signal(job->pidfd, SIGKILL, NULL, 0);
    release_job(job);
    return NULL;
}

void store_job_cancel(struct store_job *take_job) {
    take_job->was_abandoned = true;
    sys_pidfd_send_signal(take_job->pidfd, SIGKILL, NULL, 0);
}

static enum rollbox_error_code code_of(const char *name) {
    for (int code = 1; code < 64 && name; code++)
        if (!strcmp(rollbox_error_name((enum rollbox_error_code)code), name))
            return (enum rollbox_error_code)code;
    return ROLLBOX_ERR_INTERNAL;
}

/* The last line on its standard error is the error as JSON. */
static void read_error(int errors, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    json_t *root = NULL;

    if (fd_read_again(errors, MAX_ANSWER, &text) == 0 && text.length) {
        const char *line = text.data, *end = text.data + text.length;

        while (end > line && end[-1] == '\n')
            end--;
        const char *last = memrchr(line, '\n', (size_t)(end - line));
        last = last ? last + 1 : line;
        root = json_loadb(last, (size_t)(end - last), 0, NULL);
    }
    const json_t *object = json_object_get(root, "error");
    const char *message = json_string_value(json_object_get(object, "message")),
               *stage = json_string_value(json_object_get(object, "stage"));
    error_set(error,
        message ? code_of(json_string_value(json_object_get(object, "code")))
                : ROLLBOX_ERR_SETUP_FAILED,
        0, stage ? stage : "run", "%s",
        message ? message : "rollbox-store was killed, or has failed without a word");
    json_decref(root);
}

/* A child that was reaped elsewhere (engine.c) has succeeded if there is an answer. */
static bool has_succeeded(const struct store_job *job) {
    auto_buf struct buf answer = BUF_INIT;
    siginfo_t info = { 0 };

    if (waitid(P_PIDFD, (id_t)job->pidfd, &info, WEXITED | WNOHANG) == 0)
        return info.si_code == CLD_EXITED && info.si_status == 0;
    return errno == ECHILD && fd_read_again(job->output, MAX_ANSWER, &answer) == 0 && answer.length;
}

static void on_end(struct loop_source *source, uint32_t events) {
    struct store_job *job = container_of(source, struct store_job, source);
    struct buf answer = BUF_INIT;
    struct rollbox_error error;

    (void)events;
    bool ok = has_succeeded(job);
    loop_remove(job->engine->loop, &job->source);
    close_fd(&job->pidfd);
    int r = ok ? fd_read_again(job->output, MAX_ANSWER, &answer) : 0;
    if (!ok)
        read_error(job->errors, &error);
    else if (r < 0)
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run",
            "the answer of rollbox-store cannot be read: %s", strerror(-r));
    job->user->done(job->data, &answer, ok && r == 0 ? NULL : &error, job->was_abandoned);
    release_job(job);
}

/* ---- its start ---- */

static int memory_file(void) {
    int fd = memfd_create("rollbox-answer", MFD_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

/* Moves all descriptors out of the way of the numbers that they get. `fds` begins with the standard
 * streams, which stay open; the others are taken. */
static int move_up(int *fds, size_t n_fds) {
    int r = 0;

    for (size_t i = 0; i < n_fds; i++) {
        int high = fcntl(fds[i], F_DUPFD_CLOEXEC, (int)n_fds);

        if (high < 0 && r == 0)
            r = errno == EINVAL ? -EMFILE : -errno; /* the numbers wanted are above the limit */
        if (i >= STORE_JOB_FIRST_FD)
            close_fd(&fds[i]);
        fds[i] = high;
    }
    return r;
}

static int spawn_store(
    struct store_job *job, const struct store_job_request *request, int input, int r) {
    struct engine *engine = job->engine;
    const size_t n_fds = STORE_JOB_FIRST_FD + request->n_fds + request->has_many_users;
    char *argv[ARRAY_SIZE(request->words) + 3] = { (char *)"rollbox-store" }, number[16];
    size_t n_words = 1;
    auto_free int *fds = calloc(n_fds, sizeof *fds);

    for (size_t i = 0; i < ARRAY_SIZE(request->words) && request->words[i]; i++)
        argv[n_words++] = (char *)request->words[i];
    if (request->has_many_users) {
        snprintf(number, sizeof number, "%zu", n_fds - 1);
        argv[n_words++] = (char *)"--user-namespace";
        argv[n_words++] = number;
    }
    if (!fds) {
        for (size_t i = 0; i < request->n_fds; i++)
            close_fd(&request->take_fds[i]);
        return -ENOMEM;
    }
    memcpy(fds, (const int[STORE_JOB_FIRST_FD]){ input, job->output, job->errors },
        STORE_JOB_FIRST_FD * sizeof *fds);
    for (size_t i = 0; i < request->n_fds; i++)
        fds[STORE_JOB_FIRST_FD + i] = TAKE_FD(request->take_fds[i]);
    if (request->has_many_users)
        fds[n_fds - 1] = fcntl(many_ids_namespace(engine), F_DUPFD_CLOEXEC, STORE_JOB_FIRST_FD);
    int moved = move_up(fds, n_fds);
    r = r < 0 ? r : moved;
    r = r < 0 ? r : spawn_clean(engine->programs.store, argv, fds, (int)n_fds, &job->pid);
    for (size_t i = 0; i < n_fds; i++)
        close_fd(&fds[i]);
    if (r >= 0 && (job->pidfd = sys_pidfd_open(job->pid, 0)) < 0)
        r = job->pidfd;
    return r < 0 ? r : loop_add(engine->loop, &job->source, job->pidfd, EPOLLIN, on_end);
}

int store_job_check_program(const struct engine *engine, struct rollbox_error *error) {
    return engine->programs.store ? 0
                                  : error_set(error, ROLLBOX_ERR_ENGINE_START, ENOENT, "run",
                                        "rollbox-store cannot be found beside the engine; is the "
                                        "installation complete?");
}

int store_job_start(struct engine *engine, const struct store_job_request *request,
    struct store_job **ret_job, struct rollbox_error *error) {
    struct store_job *job = calloc(1, sizeof *job);
    char *text = request->job ? json_dumps(request->job, JSON_COMPACT) : NULL;
    auto_close int input = text ? fd_memory_file("rollbox-job", text, strlen(text)) : -ENOMEM;

    free(text);
    if (!job) {
        for (size_t i = 0; i < request->n_fds; i++)
            close_fd(&request->take_fds[i]);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    }
    *job = (struct store_job){ .engine = engine,
        .pidfd = -EBADF,
        .output = memory_file(),
        .errors = memory_file(),
        .finishes_alone = request->finishes_alone };
    int r = MIN(-request->error_number, MIN(MIN(job->output, job->errors), MIN(input, 0)));
    r = spawn_store(job, request, input, r);
    if (r < 0) {
        if (job->pidfd >= 0)
            sys_pidfd_send_signal(job->pidfd, SIGKILL, NULL, 0);
        release_job(job);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_START), -r, "run",
            "%s cannot be started: %s", engine->programs.store, strerror(-r));
    }
    job->user = request->user;
    job->data = request->data;
    *ret_job = job;
    return 0;
}

int store_job_run(const struct engine *engine, char *const *argv, struct rollbox_error *error) {
    auto_close int errors = memory_file();
    int fds[] = { engine->null_fd, engine->null_fd, errors }, status = 0;
    pid_t pid;
    int r = store_job_check_program(engine, error);

    if (r < 0)
        return r;
    r = errors < 0 ? errors : spawn_clean(engine->programs.store, argv, fds, ARRAY_SIZE(fds), &pid);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_START), -r, "run",
            "%s cannot be started: %s", engine->programs.store, strerror(-r));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status == 0)
        return 0;
    read_error(errors, error);
    return -EIO;
}

/* ---- jobs that nobody waits for ---- */

int store_job_open_store(const struct engine *engine, int *ret_store, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int r = store_job_check_program(engine, error);

    if (r == 0)
        r = store_default_path(&path, error);
    return r < 0 ? r : store_open(path, ret_store, error);
}

static pid_t start_alone(const struct engine *engine, char *const *argv) {
    int fds[STORE_JOB_FIRST_FD] = { engine->null_fd, engine->null_fd, engine->null_fd };
    pid_t pid;
    int r = engine->programs.store
                ? spawn_clean(engine->programs.store, argv, fds, ARRAY_SIZE(fds), &pid)
                : -ENOENT;

    return r < 0 ? r : pid;
}

void store_job_forget(const struct engine *engine) {
    auto_free char *store = NULL;

    if (store_default_path(&store, NULL) < 0)
        return;
    char *argv[] = { (char *)"rollbox-store", (char *)"forget", (char *)"--json", (char *)"--store",
        store, NULL };
    (void)start_alone(engine, argv);
}

/* The next commit there removes the rest. */
pid_t store_job_sweep(const struct engine *engine, const char *path) {
    char *argv[] = { (char *)"rollbox-store", (char *)"sweep", (char *)path, NULL };

    return start_alone(engine, argv);
}

int store_job_add_channel(int *ret_channel, int *fds, size_t *n_fds) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    *ret_channel = pair[0];
    fds[(*n_fds)++] = pair[1];
    return 0;
}
