/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of a dump (dump_job.h).
 *
 * ptrace blocks, and what it reads is hostile, so the dump worker does it (src/dump). While it
 * holds the processes, the files are copied (take_snapshot.c), and both are of one moment. If the
 * worker or the engine is killed, the kernel lets all processes continue.
 *
 * Commands and pipes are noted before the dump, because the image refers to them by number. The
 * worker reports which of the commands still existed when all processes were paused.
 */
#include "engine/checkpoint/dump_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/checkpoint/dump_worker.h"
#include "engine/box/quiesce.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "engine/files/box_files.h"
#include "engine/store_job/backing.h"
#include "sys/cgroup.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define DUMP_SECONDS 20 /* the processes are paused meanwhile */
#define HINT "; processes=\"drop\" (--drop-processes) takes the files alone"

/* In the order of a dump. */
enum dump_state {
    DUMP_BEGUN,
    DUMP_REPORTED, /* the processes were paused, and may be still; the image is not written */
    DUMP_RESUMED,  /* the same, after dump_job_resume */
    DUMP_COMPLETE, /* the image is written */
};

struct dump_job {
    struct dump_request request; /* data: NULL once it was released */
    struct engine *engine;
    enum dump_state state;
    struct checkpoint *checkpoint;
    int socket, pidfd;
    struct loop_source source;
    struct loop_timer deadline;
    struct inode_numbers numbers;         /* of the files that are open */
    struct dirty_tracking dirty_tracking; /* the session's, until the processes are dumped */
    bool is_tracked;                      /* the session is to have one afterwards */
    bool was_resumed;                     /* by the worker, before its report */
    bool has_reported;                    /* the worker, at least once */
    volatile uint32_t *in_calls; /* shared with the worker: how many threads do not continue as they
                                    were if it is killed now */
    int masters[DUMP_WORKER_MAX_TERMINALS]; /* borrowed, until the worker has them; parallel to
                                               checkpoint->terminals */
};

/* Removes commands whose main process ended before all processes were stopped: the image does not
 * contain that process. Their pipes stay with the processes that they left. */
static void keep_mains(struct checkpoint *checkpoint, const struct dump_report *report) {
    size_t n = 0;

    for (size_t i = 0; i < checkpoint->n_commands; i++) {
        bool is_there = false;

        for (size_t k = 0; k < report->n_mains && k < ARRAY_SIZE(report->mains); k++)
            is_there |= (pid_t)report->mains[k] == checkpoint->commands[i].pid;
        for (size_t k = 0; k < checkpoint->n_pipes; k++)
            if (checkpoint->pipes[k].command == (int)i)
                checkpoint->pipes[k].command = is_there ? (int)n : -1;
        for (size_t k = 0; k < checkpoint->n_terminals; k++)
            if (checkpoint->terminals[k] == (int)i)
                checkpoint->terminals[k] = is_there ? (int)n : -1;
        if (is_there)
            checkpoint->commands[n++] = checkpoint->commands[i];
        else
            free(checkpoint->commands[i].description);
    }
    checkpoint->n_commands = n;
}

/* ---- the engine's side ---- */

/* It is reaped as all children are (engine.c). */
static void dismiss_dump_job(struct dump_job *dump_job) {
    loop_remove(dump_job->engine->loop, &dump_job->source);
    loop_timer_clear(dump_job->engine->loop, &dump_job->deadline);
    close_fd(&dump_job->socket);
    /* A worker that is not done yet would notice that late. But only the worker can end
     * copy-on-write forks, also if its message found no room. */
    if (!dump_job->has_reported && dump_job->pidfd >= 0)
        sys_pidfd_send_signal(dump_job->pidfd, SIGKILL, NULL, 0);
    dump_job->checkpoint = checkpoint_put(dump_job->checkpoint);
    dirty_tracking_end(&dump_job->dirty_tracking);
}

struct dump_job *dump_job_free(struct dump_job *dump_job) {
    if (!dump_job)
        return NULL;
    if (dump_job->request.of->dumping == dump_job)
        dump_job->request.of->dumping = NULL;
    dismiss_dump_job(dump_job);
    close_fd(&dump_job->pidfd);
    if (dump_job->in_calls)
        munmap((void *)(uintptr_t)dump_job->in_calls, sizeof *dump_job->in_calls);
    free(dump_job);
    return NULL;
}

/* A worker that dies during calls in the dumped threads leaves them broken: they have the registers
 * of an injected call and would continue with it. */
static bool has_broken(const struct dump_job *dump_job) {
    struct pollfd dead = { .fd = dump_job ? dump_job->pidfd : -EBADF, .events = POLLIN };

    return dump_job && *dump_job->in_calls && poll(&dead, 1, 0) > 0;
}

bool dump_job_has_broken(const struct session_checkpoint *of) {
    return has_broken(of->releasing) || has_broken(of->dumping);
}

static void on_gone(struct loop_source *source, uint32_t events) {
    struct dump_job *dump_job = container_of(source, struct dump_job, source);
    const struct dump_request request = dump_job->request;

    (void)events;
    bool broken = has_broken(dump_job);
    request.of->releasing = dump_job_free(dump_job);
    request.user->released(request.owner, broken);
}

void dump_job_release(struct dump_job *take_job) {
    struct session_checkpoint *of = take_job->request.of;

    dismiss_dump_job(take_job);
    take_job->request.data = NULL;
    of->dumping = NULL;
    if (loop_add(take_job->engine->loop, &take_job->source, take_job->pidfd, EPOLLIN, on_gone) <
        0) {
        dump_job_free(take_job);
        return;
    }
    of->releasing = take_job;
}

void dump_job_kill(struct dump_job *dump_job) {
    loop_remove(dump_job->engine->loop, &dump_job->source);
    loop_timer_clear(dump_job->engine->loop, &dump_job->deadline);
    (void)send(dump_job->socket, &(const char){ DUMP_COMMAND_END }, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void start_clock(struct dump_job *dump_job) {
    (void)loop_timer_set(dump_job->engine->loop, &dump_job->deadline,
        clock_now_ns() + DUMP_SECONDS * 1000000000ll, dump_job->deadline.callback);
}

const struct inode_numbers *dump_job_numbers(const struct dump_job *dump_job) {
    return dump_job ? &dump_job->numbers : NULL;
}

bool dump_job_is_complete(const struct dump_job *dump_job) {
    return dump_job->state == DUMP_COMPLETE;
}

bool dump_job_resumed(const struct dump_job *dump_job) {
    return dump_job && dump_job->was_resumed;
}

bool dump_job_resume(struct dump_job *dump_job) {
    if (dump_job->state == DUMP_COMPLETE)
        return false;
    dump_job->state = DUMP_RESUMED;
    start_clock(dump_job);
    (void)send(dump_job->socket, &(const char){ DUMP_COMMAND_RESUME }, 1,
        MSG_NOSIGNAL | MSG_DONTWAIT); /* if it is gone, its pidfd says so */
    return true;
}

static void fail_dump_job(
    struct dump_job *dump_job, const struct rollbox_error *error, enum dump_failure failure) {
    struct rollbox_error hinted = *error;
    size_t length = strnlen(hinted.message, sizeof hinted.message - 1);

    if (length + sizeof HINT <= sizeof hinted.message)
        memcpy(hinted.message + length, HINT, sizeof HINT);
    dump_job->request.user->failed(dump_job->request.data, &hinted, failure);
}

static void on_report(struct loop_source *source, uint32_t events) {
    struct dump_job *dump_job = container_of(source, struct dump_job, source);
    static struct dump_report report;
    struct rollbox_error error;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(dump_job->socket, &report, sizeof report, fds, &n_fds);

    (void)events;
    if (n == -EAGAIN || n == -EINTR)
        return;
    dump_job->has_reported |= n == -EMFILE || n == sizeof report;
    if (n == -EMFILE) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "snapshot",
            "the engine has no descriptors left for dirty tracking of the sandbox's processes "
            "(RLIMIT_NOFILE)");
        fail_dump_job(dump_job, &error, DUMP_FAILED);
        return;
    }
    const bool is_first = dump_job->state == DUMP_BEGUN;
    bool are_trackers = n == sizeof report && !report.error.code && n_fds == report.n_trackers &&
                        n_fds <= ARRAY_SIZE(report.trackers) && is_first;
    while (!are_trackers && n_fds)
        close(fds[--n_fds]);
    if (n != sizeof report || dump_job->state == DUMP_COMPLETE ||
        (!is_first && !report.is_complete)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot",
            "the process that captured the sandbox was killed from outside; %s",
            *dump_job->in_calls ? "what ran in the sandbox is ended, as one of its processes would "
                                  "not have gone on as it was"
                                : "nothing was changed");
        fail_dump_job(dump_job, &error, DUMP_FAILED);
        return;
    }
    report.error.message[sizeof report.error.message - 1] =
        report.error.stage[sizeof report.error.stage - 1] = '\0';
    if (report.error.code) {
        fail_dump_job(dump_job, &report.error,
            report.result == -EAGAIN && is_first ? DUMP_MAY_PASS : DUMP_REFUSED);
        return;
    }
    struct checkpoint *checkpoint = dump_job->checkpoint;
    int r = report.is_complete && !report.is_incremental
                ? checkpoint_seal_image(&checkpoint->image)
                : 0; /* an increment belongs to nobody before they resume (take_snapshot.c) */
    if (r < 0) {
        while (n_fds)
            close(fds[--n_fds]);
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot",
            "the image cannot be sealed: %s", strerror(-r));
        fail_dump_job(dump_job, &error, DUMP_FAILED);
        return;
    }
    checkpoint->is_complete = report.is_complete;
    dump_job->state = report.is_complete ? DUMP_COMPLETE : DUMP_REPORTED;
    if (is_first && dump_job->is_tracked)
        dirty_tracking_give_back(&dump_job->request, &dump_job->dirty_tracking, checkpoint,
            report.is_incremental, report.trackers, fds, n_fds);
    memcpy(checkpoint->clocks, report.clocks, sizeof checkpoint->clocks);
    checkpoint->bytes = report.bytes;
    if (checkpoint->is_complete && checkpoint->tracking.wants_zygote)
        dirty_tracking_start_zygote(checkpoint, dump_job->request.of->profile);
    if (!is_first) {
        dump_job->request.user->image_written(dump_job->request.data);
        return;
    }
    checkpoint->processes = report.processes;
    keep_mains(checkpoint, &report);
    report.numbers.n = MIN(report.numbers.n, (uint32_t)NUMBERS_MAX);
    dump_job->numbers = report.numbers;
    dump_job->was_resumed = report.resumes;
    dump_job->request.user->dumped(dump_job->request.data, checkpoint_get(checkpoint));
}

static void on_deadline(struct loop_timer *timer) {
    struct dump_job *dump_job = container_of(timer, struct dump_job, deadline);
    struct rollbox_error error;

    if (dump_job->state == DUMP_COMPLETE || dump_job->state == DUMP_REPORTED)
        return; /* copies have a time of their own */
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ETIMEDOUT, "snapshot",
        "the processes of the sandbox were not captured within %d seconds", DUMP_SECONDS);
    fail_dump_job(dump_job, &error, DUMP_FAILED);
}

/* The most memory that may be dumped. The host needs room for the image, and for the copy of it
 * from which sandboxes are restored. */
static uint64_t max_bytes(const struct profile *profile) {
    uint64_t limit = profile->policy->max_memory_bytes, available;

    if (!limit)
        limit = UINT64_MAX;
    return proc_memory_available(&available, NULL) == 0 ? MIN(limit, available / 2) : limit;
}

/* How much memory copy-on-write forks may add to the sandbox, if memory and processes are plenty:
 * other processes may need as much meanwhile, and over the limit all would be killed. A dump after
 * which the processes stay paused has none: they would run for a moment. */
static uint64_t cow_fork_bytes(const struct dump_request *request) {
    const struct profile *profile = request->of->profile;
    const struct policy *policy = profile->policy;
    struct box *box = request->box;
    uint64_t limit = policy->max_memory_bytes, used, cpu;
    uint32_t processes;

    if (request->stays_paused || request->of->was_thawed ||
        profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) ||
        box_usage(box, &used, &cpu, &processes) < 0)
        return 0;
    if (box->slot)
        (void)cgroup_slot_memory_now(box->slot->cgroup, &used);
    if (policy->max_processes && processes > policy->max_processes / 2)
        return 0;
    if (!limit)
        return UINT64_MAX;
    return limit > used ? (limit - used) / 2 : 0;
}

/* A fork's zygote loads the image while it is written, if writing takes long: one end of a socket
 * for the writer, the other for the checkpoint. 0: not so, or -errno. */
static int make_progress(
    const struct dump_request *request, struct checkpoint *checkpoint, bool may_have_twins) {
    int pair[2];

    if (!request->n_forks || !may_have_twins)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    checkpoint->progress = pair[0];
    return pair[1];
}

/* The dump worker asks this while all processes are paused: if no files have to be copied at the
 * same moment, it need not wait. */
static bool are_files_as_made(void *box) {
    return op_files_are_pristine(box);
}

int dump_job_start(
    const struct dump_request *request, struct dump_job **ret_job, struct rollbox_error *error) {
    struct profile *profile = request->of->profile;

    struct engine *engine = profile->engine;
    struct box *box = request->box;
    struct dump_job *dump_job = calloc(1, sizeof *dump_job);
    auto_free uint64_t *externals = NULL;
    int pair[2] = { -EBADF, -EBADF }, still = 0, progress = 0,
        r = !dump_job      ? -ENOMEM
            : box->pid > 0 ? 0
                           : -EAGAIN;

    if (dump_job)
        *dump_job = (struct dump_job){ .request = *request,
            .engine = engine,
            .socket = -EBADF,
            .pidfd = -EBADF,
            .checkpoint = checkpoint_new(engine) };
    struct checkpoint *checkpoint = dump_job ? dump_job->checkpoint : NULL;
    void *shared = r == 0 ? mmap(NULL, sizeof *dump_job->in_calls, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)
                          : MAP_FAILED;
    if (shared != MAP_FAILED)
        dump_job->in_calls = shared;
    else if (r == 0)
        r = -errno;
    if (r == 0)
        r = checkpoint ? request->user->note_commands(request->data, checkpoint, dump_job->masters)
                       : -ENOMEM;
    if (r == 0 && checkpoint->n_pipes > DUMP_JOB_MAX_PIPES) {
        dump_job_free(dump_job);
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot",
            "the sandbox's commands have more than %d pipes in all" HINT, DUMP_JOB_MAX_PIPES);
    }
    if (r == 0 && !(externals = calloc(checkpoint->n_pipes + 1, sizeof *externals)))
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < checkpoint->n_pipes; i++)
        externals[i] = checkpoint->pipes[i].inode;
    struct dump_options options = { 0 };
    if (r == 0) {
        dirty_tracking_begin(request, checkpoint);
        dump_job->is_tracked = dirty_tracking_take(request, &dump_job->dirty_tracking, &options);
    }
    if (r == 0)
        r = MIN(checkpoint->image =
                    options.base > 0 ? checkpoint_new_small_image() : checkpoint_new_image(profile),
            0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0)
        r = MIN(still = quiesce_begin(box), 0);
    const uint64_t fork_bytes = r == 0 && options.base <= 0 ? cow_fork_bytes(request) : 0;
    if (r == 0)
        r = MIN(progress = make_progress(request, checkpoint, fork_bytes || options.base > 0), 0);
    if (r == 0) {
        const struct policy *policy = profile->policy;
        const bool may_resume =
            request->resumes_early && !request->of->was_thawed && !still && box->disk >= 0;
        options = (struct dump_options){ .init = box->pid,
            .externals = externals,
            .n_externals = checkpoint->n_pipes,
            .masters = dump_job->masters,
            .n_masters = checkpoint->n_terminals,
            .max_bytes = max_bytes(profile),
            .cow_fork_bytes = fork_bytes,
            .still = still,
            .progress = progress,
            .in_calls = dump_job->in_calls,
            .many_users = profile->plan->flags & PLAN_MANY_USERS,
            .user_namespace =
                (profile->plan->flags & (PLAN_MANY_USERS | PLAN_AS_ROOT)) == PLAN_MANY_USERS
                    ? profile->user_namespace.fd
                    : 0,
            .base = options.base,
            .tracks = options.tracks,
            .trackers = options.trackers,
            .n_trackers = options.n_trackers,
            .memory_limit = policy->max_memory_bytes,
            .max_processes = policy->max_processes };
        int fds[7 + DUMP_WORKER_MAX_TERMINALS + MAX_DIRTY_TRACKERS] = { checkpoint->image,
            pair[1] };
        size_t n_fds = 2;

        if (options.base > 0)
            fds[n_fds++] = options.base;
        for (size_t i = 0; i < options.n_trackers; i++)
            fds[n_fds++] = options.trackers[i].fd;

        if (options.user_namespace)
            fds[n_fds++] = options.user_namespace;
        if (still)
            fds[n_fds++] = still;
        if (progress)
            fds[n_fds++] = progress;
        if (may_resume)
            fds[n_fds++] = box->disk;
        memcpy(fds + n_fds, dump_job->masters, checkpoint->n_terminals * sizeof *fds);
        dump_job->socket = pair[0];
        dump_prepare();
        r = spawn_fork("rollbox-capture", fds, n_fds + checkpoint->n_terminals);
        if (r == 0)
            dump_worker_run(
                &options, may_resume ? are_files_as_made : NULL, box, checkpoint->image, pair[1]);
        if (r > 0 && request->n_forks)
            dirty_tracking_begin_box(&dump_job->dirty_tracking, box, request->base, checkpoint);
    }
    close_fd(&pair[1]);
    if (still > 0)
        close(still);
    if (progress > 0)
        close(progress);
    if (r > 0)
        r = dump_job->pidfd = sys_pidfd_open(r, 0);
    if (r >= 0)
        r = loop_add(engine->loop, &dump_job->source, dump_job->socket, EPOLLIN, on_report);
    if (r == 0)
        r = loop_timer_set(engine->loop, &dump_job->deadline,
            clock_now_ns() + DUMP_SECONDS * 1000000000ll, on_deadline);
    if (r < 0) {
        dump_job_free(dump_job);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot",
            "the processes of the sandbox cannot be captured: %s" HINT, strerror(-r));
    }
    request->of->dumping = *ret_job = dump_job;
    return 0;
}

/* ---- what a session has of dumps and checkpoints ---- */

struct session_checkpoint *session_checkpoint_new(struct profile *profile) {
    struct session_checkpoint *of = calloc(1, sizeof *of);

    if (of) {
        of->profile = profile;
        dirty_tracking_add(of);
    }
    return of;
}

struct session_checkpoint *session_checkpoint_free(struct session_checkpoint *of) {
    if (!of)
        return NULL;
    dump_job_free(of->releasing);
    dirty_tracking_forget(&of->tracking);
    dirty_tracking_remove(of);
    checkpoint_put(of->pending_restore);
    backing_ref_put(&of->backing_ref);
    free(of);
    return NULL;
}
