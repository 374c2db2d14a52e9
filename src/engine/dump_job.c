/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing the processes of a session.
 *
 * ptrace blocks, and what it looks at is hostile; so a child of the engine does it (src/dump), the
 * capturer. It stops every process, looks at it, tells how that went, and holds them until it is
 * told that they go on: meanwhile the files are copied (take_snapshot.c), and both are of one
 * moment. The image may take it longer, where twins have the memory; it tells when that is written.
 * Should it be killed, or we, the kernel lets all of them go on.
 *
 * Commands and pipes are noted before, for the image has them by what we call them; which of the
 * commands were still there when everything stood, the image tells.
 */
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
#include "engine/dump_worker.h"
#include "engine/op.h"
#include "sys/cgroup.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define DUMP_SECONDS 20                    /* they stand still meanwhile */
#define MAX_PIPES (FD_MESSAGE_MAX_FDS - 1) /* one message brings them all */
#define HINT "; processes=\"drop\" (--drop-processes) takes the files alone"

struct dump_job {
    struct engine *engine;
    struct op *op; /* NULL: it is over, and they are being let go: */
    struct session *session;
    struct checkpoint *checkpoint;
    int socket, pidfd;
    struct loop_source source;
    struct loop_timer deadline;
    struct inode_numbers numbers; /* of the files that are open */
    struct dirty_tracking
        dirty_tracking;          /* what the session had of it, until the processes are captured */
    bool is_noted;               /* and whether it is to have any after */
    bool dumped, complete;       /* they stand, or stood; and the image is written */
    bool resumed;                /* they did that by themselves */
    bool has_spoken;             /* what it has to say first */
    bool resumes;                /* they do not stand any more, and it is not */
    unsigned n_out_of_memory;    /* of the session, when this began */
    volatile uint32_t *in_calls; /* shared with it: how many threads do not go on as they were if it
                                    is killed now */
    int masters[DUMP_WORKER_MAX_TERMINALS]; /* borrowed, until the capturer has them; parallel to
                                               live->terminals */
};

/* ---- what is noted ---- */

static void add_pipe(
    struct checkpoint *checkpoint, uint64_t inode, int command, unsigned slot, bool is_written) {
    checkpoint->pipes[checkpoint->n_pipes++] = (struct checkpoint_pipe){
        .inode = inode, .command = command, .slot = slot, .is_written = is_written
    };
}

static int add_terminal(struct dump_job *dump_job, int master, int command) {
    struct checkpoint *checkpoint = dump_job->checkpoint;

    if (checkpoint->n_terminals == ARRAY_SIZE(dump_job->masters))
        return -E2BIG; /* no devpts has as many */
    dump_job->masters[checkpoint->n_terminals] = master;
    checkpoint->terminals[checkpoint->n_terminals++] = command;
    return 0;
}

static int note_command(struct dump_job *dump_job, struct run *run) {
    struct checkpoint *checkpoint = dump_job->checkpoint;
    struct checkpoint_command *command = &checkpoint->commands[checkpoint->n_commands];
    size_t prefix = sizeof run->session->number;
    int index = (int)checkpoint->n_commands;
    struct stat st;

    command->description = exec_describe(run);
    if (!command->description)
        return -ENOMEM;
    checkpoint->n_commands++;
    if (run->operation_length > prefix) {
        command->operation_length = run->operation_length - prefix;
        memcpy(command->operation, run->operation + prefix, command->operation_length);
    }
    command->pid = run->main_pid;
    command->output_limit = run->output_limit;
    command->has_terminal = run->has_terminal;
    if (run->timeout_ms > 0)
        command->timeout_ms =
            MAX(run->timeout_ms - (clock_now_ns() - run->started_ns) / 1000000, (int64_t)1);
    if (run->has_terminal)
        return run->outputs[0].fd < 0 ? 0 : add_terminal(dump_job, run->outputs[0].fd, index);
    for (unsigned i = 0; i < ARRAY_SIZE(run->outputs); i++)
        if (run->outputs[i].fd >= 0 && fstat(run->outputs[i].fd, &st) == 0)
            add_pipe(checkpoint, st.st_ino, index, i + 1, true);
    for (unsigned i = 0; i < ARRAY_SIZE(run->pipes); i++)
        if (run->pipes[i].inode)
            add_pipe(checkpoint, run->pipes[i].inode, index, i, run->pipes[i].is_written);
    return 0;
}

static int record_mains(struct session *session, struct dump_job *dump_job) {
    struct checkpoint *checkpoint = dump_job->checkpoint;
    uint64_t drains[MAX_PIPES];
    int masters[DUMP_WORKER_MAX_TERMINALS], r = 0;
    size_t n_drains = drain_inodes(session->engine, session->number, drains, ARRAY_SIZE(drains)),
           n_runs = 0;

    list_for_each(node, &session->runs)
        n_runs++;
    checkpoint->commands = calloc(n_runs + 1, sizeof *checkpoint->commands);
    checkpoint->pipes = calloc(n_runs * (ARRAY_SIZE(((struct run *)0)->pipes) + 2) + n_drains +
                                   session->n_orphan_pipes + 1,
        sizeof *checkpoint->pipes);
    checkpoint->terminals = calloc(DUMP_WORKER_MAX_TERMINALS, sizeof *checkpoint->terminals);
    if (!checkpoint->commands || !checkpoint->pipes || !checkpoint->terminals)
        return -ENOMEM;
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && run->exec && (r = note_command(dump_job, run)) < 0)
            return r;
    }
    size_t n_masters =
        drain_terminals(session->engine, session->number, masters, ARRAY_SIZE(masters));
    for (size_t i = 0; i < n_masters && r == 0; i++)
        r = add_terminal(dump_job, masters[i], -1);
    for (size_t i = 0; i < n_drains; i++)
        add_pipe(checkpoint, drains[i], -1, 1, true);
    for (size_t i = 0; i < session->n_orphan_pipes; i++)
        add_pipe(checkpoint, session->orphan_pipes[i].inode, -1,
            session->orphan_pipes[i].is_written, session->orphan_pipes[i].is_written);
    return r;
}

/* Those that ended before everything stood are none of the image's; what they left has their pipes.
 */
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
    /* One that is not done yet would find that out late; but of twins, it alone can make an end,
     * also where its word found no room. */
    if (!dump_job->has_spoken && dump_job->pidfd >= 0)
        sys_pidfd_send_signal(dump_job->pidfd, SIGKILL, NULL, 0);
    dump_job->checkpoint = checkpoint_put(dump_job->checkpoint);
    dirty_tracking_end(&dump_job->dirty_tracking);
}

struct dump_job *dump_job_free(struct dump_job *dump_job) {
    if (!dump_job)
        return NULL;
    dismiss_dump_job(dump_job);
    close_fd(&dump_job->pidfd);
    if (dump_job->in_calls)
        munmap((void *)(uintptr_t)dump_job->in_calls, sizeof *dump_job->in_calls);
    free(dump_job);
    return NULL;
}

/* What it makes calls in has the registers of a call then, and a step to make that it did not ask
 * for. */
static bool has_broken(const struct dump_job *dump_job) {
    struct pollfd dead = { .fd = dump_job ? dump_job->pidfd : -EBADF, .events = POLLIN };

    return dump_job && *dump_job->in_calls && poll(&dead, 1, 0) > 0;
}

bool dump_job_has_broken(struct session *session) {
    const struct op *op = session_first_op(session);

    return has_broken(session->releasing) || (op && has_broken(op->take.dump_job));
}

static void on_gone(struct loop_source *source, uint32_t events) {
    struct dump_job *dump_job = container_of(source, struct dump_job, source);
    struct session *session = dump_job->session;

    (void)events;
    bool broken = has_broken(dump_job);
    session->releasing = dump_job_free(dump_job);
    if (broken)
        session_broken(session);
    op_dump_released(session);
}

void dump_job_release(struct dump_job *take_dump_job) {
    struct session *session = take_dump_job->op->session;

    dismiss_dump_job(take_dump_job);
    take_dump_job->op = NULL;
    take_dump_job->session = session;
    if (loop_add(session->engine->loop, &take_dump_job->source, take_dump_job->pidfd, EPOLLIN,
            on_gone) < 0)
        dump_job_free(take_dump_job);
    else
        session->releasing = take_dump_job;
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
    return dump_job->complete;
}

bool dump_job_resumed(const struct dump_job *dump_job) {
    return dump_job && dump_job->resumed;
}

bool dump_job_resume(struct dump_job *dump_job) {
    if (dump_job->complete)
        return false;
    dump_job->resumes = true;
    start_clock(dump_job);
    (void)send(dump_job->socket, &(const char){ DUMP_COMMAND_RESUME }, 1,
        MSG_NOSIGNAL | MSG_DONTWAIT); /* if it is gone, we are told */
    return true;
}

static void fail_dump_job(struct dump_job *dump_job, const struct rollbox_error *error) {
    struct rollbox_error hinted = *error;
    size_t length = strnlen(hinted.message, sizeof hinted.message - 1);

    if (length + sizeof HINT <= sizeof hinted.message)
        memcpy(hinted.message + length, HINT, sizeof HINT);
    (void)op_event(dump_job->op, OP_EVENT_DUMP_FAILED, &(struct op_message){ .error = &hinted });
}

/* They were ended for want of memory meanwhile, and what is looked at is not there any more: it is
 * a snapshot of what is left. */
static bool ran_out(struct dump_job *dump_job) {
    struct session *session = dump_job->op->session;
    enum oom_cause cause = session_oom_cause(session); /* of which we may not have heard yet */

    if (cause != OOM_NONE)
        session_out_of_memory(session, cause);
    return session->n_out_of_memory != dump_job->n_out_of_memory;
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
    dump_job->has_spoken |= n == -EMFILE || n == sizeof report;
    if (n == -EMFILE) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "snapshot",
            "the engine has no descriptors left for what is noted of the sandbox' processes "
            "(RLIMIT_NOFILE)");
        fail_dump_job(dump_job, &error);
        return;
    }
    bool are_trackers = n == sizeof report && !report.error.code && n_fds == report.n_trackers &&
                        n_fds <= ARRAY_SIZE(report.trackers) && !dump_job->dumped;
    while (!are_trackers && n_fds)
        close(fds[--n_fds]);
    if (n != sizeof report || dump_job->complete || (dump_job->dumped && !report.is_complete)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot",
            "the process that captured the sandbox was killed from outside; %s",
            *dump_job->in_calls ? "what ran in the sandbox is ended, as one of its processes would "
                                  "not have gone on as it was"
                                : "nothing was changed");
        fail_dump_job(dump_job, &error);
        return;
    }
    report.error.message[sizeof report.error.message - 1] =
        report.error.stage[sizeof report.error.stage - 1] = '\0';
    if (report.error.code) {
        const bool may_pass = (report.may_pass && !dump_job->dumped) || ran_out(dump_job);

        if (may_pass && dump_job->op->take.n_dumps < TAKE_SNAPSHOT_MAX_DUMPS)
            (void)op_event(dump_job->op, OP_EVENT_DUMP_AGAIN, NULL);
        else
            fail_dump_job(dump_job, &report.error);
        return;
    }
    struct checkpoint *checkpoint = dump_job->checkpoint;
    int r = report.is_complete && !report.is_incremental
                ? checkpoint_seal_image(&checkpoint->image)
                : 0; /* an addition is nobody's before they go on (take_snapshot.c) */
    if (r < 0) {
        while (n_fds)
            close(fds[--n_fds]);
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot",
            "the image cannot be sealed: %s", strerror(-r));
        fail_dump_job(dump_job, &error);
        return;
    }
    dump_job->complete = checkpoint->is_complete = report.is_complete;
    if (!dump_job->dumped && dump_job->is_noted)
        dirty_tracking_give_back(dump_job->op->session, &dump_job->dirty_tracking, checkpoint,
            report.is_incremental, report.trackers, fds, n_fds);
    memcpy(checkpoint->clocks, report.clocks, sizeof checkpoint->clocks);
    checkpoint->bytes = report.bytes;
    if (checkpoint->is_complete && checkpoint->wants_zygote)
        dirty_tracking_start_zygote(checkpoint, dump_job->op->session->profile);
    if (dump_job->dumped) {
        (void)op_event(dump_job->op, OP_EVENT_IMAGE_WRITTEN, NULL);
        return;
    }
    checkpoint->processes = report.processes;
    keep_mains(checkpoint, &report);
    report.numbers.n = MIN(report.numbers.n, (uint32_t)NUMBERS_MAX);
    dump_job->numbers = report.numbers;
    dump_job->resumed = report.resumes;
    dump_job->dumped = true;
    (void)op_event(dump_job->op, OP_EVENT_DUMPED,
        &(struct op_message){ .take_checkpoint = checkpoint_get(checkpoint) });
}

static void on_deadline(struct loop_timer *timer) {
    struct dump_job *dump_job = container_of(timer, struct dump_job, deadline);
    struct rollbox_error error;

    if (dump_job->complete || (dump_job->dumped && !dump_job->resumes))
        return; /* copies have a time of their own */
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ETIMEDOUT, "snapshot",
        "the processes of the sandbox were not captured within %d seconds", DUMP_SECONDS);
    fail_dump_job(dump_job, &error);
}

/* Of what the sandbox may have, what the host has room for: the image, and the copy of it that
 * sandboxes are made of. */
static uint64_t max_bytes(const struct session *session) {
    uint64_t limit = session->profile->policy->max_memory_bytes, available;

    if (!limit)
        limit = UINT64_MAX;
    return proc_memory_available(&available, NULL) == 0 ? MIN(limit, available / 2) : limit;
}

/* What more of the sandbox's memory twins may take, where there is plenty of memory and processes:
 * what they take is not to be missed by others, who may take as much meanwhile; over the limit, all
 * would go. Whoever is to stand still afterwards has none: there would be a moment in which they do
 * not. */
static uint64_t cow_fork_bytes(const struct op *op) {
    const struct session *session = op->session;
    const struct policy *policy = session->profile->policy;
    uint64_t limit = policy->max_memory_bytes, used, cpu;
    uint32_t processes;

    if (op->verb == VERB_HIBERNATE || session->was_thawed ||
        session->profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) ||
        box_usage(session->box, &used, &cpu, &processes) < 0)
        return 0;
    if (session->box->slot)
        (void)cgroup_slot_memory_now(session->box->slot->cgroup, &used);
    if (policy->max_processes && processes > policy->max_processes / 2)
        return 0;
    return !limit ? UINT64_MAX : limit > used ? (limit - used) / 2 : 0;
}

/* A fork's holder loads the image while it is written, where it takes that long: the end of a
 * socket for who writes, the other is the state's. 0: not so, or -errno. */
static int make_progress(const struct op *op, struct checkpoint *checkpoint, bool may_have_twins) {
    int pair[2];

    if (op->verb != VERB_FORK || !may_have_twins)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    checkpoint->progress = pair[0];
    return pair[1];
}

int dump_job_notify_init(const struct box *box) {
    auto_buf struct buf message = BUF_INIT;
    auto_close int theirs = -EBADF;
    int pair[2];

    if (!(box->profile->plan->flags & (PLAN_SEED | PLAN_CLOCK)))
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    theirs = pair[1];
    wire_begin(&message, GUEST_QUIESCE, 0);
    int r = wire_send_patiently(box->socket, &message, &theirs, 1);
    if (r < 0)
        close(pair[0]);
    return r < 0 ? r : pair[0];
}

/* Asked of the capturer, while everything stands: where there are no files to be copied at the same
 * moment nobody needs to be waited for. */
static bool are_files_as_made(void *box) {
    return op_files_are_pristine(box);
}

int dump_job_start(struct op *op, struct rollbox_error *error) {
    struct session *session = op->session;
    struct engine *engine = session->engine;
    struct dump_job *dump_job = calloc(1, sizeof *dump_job);
    auto_free uint64_t *externals = NULL;
    int pair[2] = { -EBADF, -EBADF }, still = 0, progress = 0,
        r = !dump_job               ? -ENOMEM
            : session->box->pid > 0 ? 0
                                    : -EAGAIN;

    if (dump_job)
        *dump_job = (struct dump_job){ .engine = engine,
            .op = op,
            .socket = -EBADF,
            .pidfd = -EBADF,
            .checkpoint = dirty_tracking_next(op),
            .n_out_of_memory = session->n_out_of_memory };
    struct checkpoint *checkpoint = dump_job ? dump_job->checkpoint : NULL;
    void *shared = r == 0 ? mmap(NULL, sizeof *dump_job->in_calls, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)
                          : MAP_FAILED;
    if (shared != MAP_FAILED)
        dump_job->in_calls = shared;
    else if (r == 0)
        r = -errno;
    if (r == 0)
        r = checkpoint ? record_mains(session, dump_job) : -ENOMEM;
    if (r == 0 && checkpoint->n_pipes > MAX_PIPES) {
        dump_job_free(dump_job);
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot",
            "the sandbox' commands have more than %d pipes in all" HINT, MAX_PIPES);
    }
    if (r == 0 && !(externals = calloc(checkpoint->n_pipes + 1, sizeof *externals)))
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < checkpoint->n_pipes; i++)
        externals[i] = checkpoint->pipes[i].inode;
    struct dump_options options = { 0 };
    if (r == 0) {
        dirty_tracking_begin(op, checkpoint);
        dump_job->is_noted = dirty_tracking_take(op, &dump_job->dirty_tracking, &options);
    }
    if (r == 0)
        r = MIN(checkpoint->image = options.base > 0 ? checkpoint_new_small_image()
                                                     : checkpoint_new_image(session->profile),
            0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0)
        r = MIN(still = dump_job_notify_init(session->box), 0);
    const uint64_t twins = r == 0 && options.base <= 0 ? cow_fork_bytes(op) : 0;
    if (r == 0)
        r = MIN(progress = make_progress(op, checkpoint, twins || options.base > 0), 0);
    if (r == 0) {
        const struct policy *policy = session->profile->policy;
        const bool may_resume = (op->class->flags & OP_RESUMES_EARLY) && !session->was_thawed &&
                                !still && session->box->disk >= 0;
        options = (struct dump_options){ .init = session->box->pid,
            .externals = externals,
            .n_externals = checkpoint->n_pipes,
            .masters = dump_job->masters,
            .n_masters = checkpoint->n_terminals,
            .max_bytes = max_bytes(session),
            .cow_fork_bytes = twins,
            .still = still,
            .progress = progress,
            .in_calls = dump_job->in_calls,
            .base = options.base,
            .tracks = options.tracks,
            .trackers = options.trackers,
            .n_trackers = options.n_trackers,
            .memory_limit = policy->max_memory_bytes,
            .max_processes = policy->max_processes };
        int fds[6 + DUMP_WORKER_MAX_TERMINALS + MAX_DIRTY_TRACKERS] = { checkpoint->image,
            pair[1] };
        size_t n_fds = 2;

        if (options.base > 0)
            fds[n_fds++] = options.base;
        for (size_t i = 0; i < options.n_trackers; i++)
            fds[n_fds++] = options.trackers[i].fd;

        if (still)
            fds[n_fds++] = still;
        if (progress)
            fds[n_fds++] = progress;
        if (may_resume)
            fds[n_fds++] = session->box->disk;
        memcpy(fds + n_fds, dump_job->masters, checkpoint->n_terminals * sizeof *fds);
        dump_job->socket = pair[0];
        dump_prepare();
        r = spawn_fork("rollbox-capture", fds, n_fds + checkpoint->n_terminals);
        if (r == 0)
            dump_worker_run(&options, may_resume ? are_files_as_made : NULL, session->box,
                checkpoint->image, pair[1]);
        if (r > 0 && op->verb == VERB_FORK)
            dirty_tracking_begin_box(&dump_job->dirty_tracking, session, checkpoint);
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
    op->take.dump_job = dump_job;
    op_wait(op, OP_WAIT_DUMP);
    return 0;
}
