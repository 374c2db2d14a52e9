/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing the processes of a session.
 *
 * ptrace blocks, and what it looks at is hostile; so a child of the engine does it (src/snapshot), the capturer. It stops every process, looks at it, tells how that went, and holds them until it is told that they go on:
 * meanwhile the files are copied (state.c), and both are of one moment. The image may take it longer, where twins have the memory; it tells when that is written. Should it be killed, or we, the kernel lets all of them go on.
 *
 * Commands and pipes are noted before, for the image has them by what we call them; which of the commands were still there when everything stood, the image tells.
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
#include "engine/capturer.h"
#include "engine/session.h"
#include "sys/cgroup.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define CAPTURE_SECONDS 20      /* they stand still meanwhile */
#define MAX_PIPES (FD_MESSAGE_MAX_FDS - 1)      /* one message brings them all */
#define HINT "; processes=\"drop\" (--drop-processes) takes the files alone"

struct capturing {
    struct engine *engine;
    struct work *work;          /* NULL: it is over, and they are being let go: */
    struct session *session;
    struct live *live;
    int socket, pidfd;
    struct loop_source source;
    struct loop_timer deadline;
    struct numbers numbers;     /* of the files that are open */
    struct noting noting;       /* what the session had of it, until the processes are captured */
    bool is_noted;              /* and whether it is to have any after */
    bool captured, complete;    /* they stand, or stood; and the image is written */
    bool went_on;               /* they did that by themselves */
    bool has_spoken;            /* what it has to say first */
    bool goes_on;               /* they do not stand any more, and it is not */
    unsigned n_out_of_memory;   /* of the session, when this began */
    volatile uint32_t *in_calls;        /* shared with it: how many threads do not go on as they were if it is killed now */
    int masters[CAPTURER_MAX_TERMINALS];   /* borrowed, until the capturer has them; parallel to live->terminals */
};

/* ---- what is noted ------------------------------------------------------------------------------------------------------ */

static void add_pipe(struct live *live, uint64_t inode, int command, unsigned slot, bool is_written) {
    live->pipes[live->n_pipes++] = (struct live_pipe){ .inode = inode, .command = command, .slot = slot, .is_written = is_written };
}

static int add_terminal(struct capturing *capturing, int master, int command) {
    struct live *live = capturing->live;

    if (live->n_terminals == ARRAY_SIZE(capturing->masters))
        return -E2BIG;          /* no devpts has as many */
    capturing->masters[live->n_terminals] = master;
    live->terminals[live->n_terminals++] = command;
    return 0;
}

static int note_command(struct capturing *capturing, struct run *run) {
    struct live *live = capturing->live;
    struct live_command *command = &live->commands[live->n_commands];
    size_t prefix = sizeof run->session->number;
    int index = (int)live->n_commands;
    struct stat st;

    command->description = exec_describe(run);
    if (!command->description)
        return -ENOMEM;
    live->n_commands++;
    if (run->operation_length > prefix) {
        command->operation_length = run->operation_length - prefix;
        memcpy(command->operation, run->operation + prefix, command->operation_length);
    }
    command->pid = run->main_pid;
    command->output_limit = run->output_limit;
    command->has_terminal = run->has_terminal;
    if (run->timeout_ms > 0)
        command->timeout_ms = MAX(run->timeout_ms - (clock_now_ns() - run->started_ns) / 1000000, (int64_t)1);
    if (run->has_terminal)
        return run->outputs[0].fd < 0 ? 0 : add_terminal(capturing, run->outputs[0].fd, index);
    for (unsigned i = 0; i < ARRAY_SIZE(run->outputs); i++)
        if (run->outputs[i].fd >= 0 && fstat(run->outputs[i].fd, &st) == 0)
            add_pipe(live, st.st_ino, index, i + 1, true);
    for (unsigned i = 0; i < ARRAY_SIZE(run->pipes); i++)
        if (run->pipes[i].inode)
            add_pipe(live, run->pipes[i].inode, index, i, run->pipes[i].is_written);
    return 0;
}

static int note(struct session *session, struct capturing *capturing) {
    struct live *live = capturing->live;
    uint64_t sinks[MAX_PIPES];
    int masters[CAPTURER_MAX_TERMINALS], r = 0;
    size_t n_sinks = sink_inodes(session->engine, session->number, sinks, ARRAY_SIZE(sinks)), n_runs = 0;

    list_for_each(node, &session->runs)
        n_runs++;
    live->commands = calloc(n_runs + 1, sizeof *live->commands);
    live->pipes = calloc(n_runs * (ARRAY_SIZE(((struct run *)0)->pipes) + 2) + n_sinks + session->n_strays + 1, sizeof *live->pipes);
    live->terminals = calloc(CAPTURER_MAX_TERMINALS, sizeof *live->terminals);
    if (!live->commands || !live->pipes || !live->terminals)
        return -ENOMEM;
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && run->exec && (r = note_command(capturing, run)) < 0)
            return r;
    }
    size_t n_masters = sink_terminals(session->engine, session->number, masters, ARRAY_SIZE(masters));
    for (size_t i = 0; i < n_masters && r == 0; i++)
        r = add_terminal(capturing, masters[i], -1);
    for (size_t i = 0; i < n_sinks; i++)
        add_pipe(live, sinks[i], -1, 1, true);
    for (size_t i = 0; i < session->n_strays; i++)
        add_pipe(live, session->strays[i].inode, -1, session->strays[i].is_written, session->strays[i].is_written);
    return r;
}

/* Those that ended before everything stood are none of the image's; what they left has their pipes. */
static void keep_mains(struct live *live, const struct verdict *verdict) {
    size_t n = 0;

    for (size_t i = 0; i < live->n_commands; i++) {
        bool is_there = false;

        for (size_t k = 0; k < verdict->n_mains && k < ARRAY_SIZE(verdict->mains); k++)
            is_there |= (pid_t)verdict->mains[k] == live->commands[i].pid;
        for (size_t k = 0; k < live->n_pipes; k++)
            if (live->pipes[k].command == (int)i)
                live->pipes[k].command = is_there ? (int)n : -1;
        for (size_t k = 0; k < live->n_terminals; k++)
            if (live->terminals[k] == (int)i)
                live->terminals[k] = is_there ? (int)n : -1;
        if (is_there)
            live->commands[n++] = live->commands[i];
        else
            free(live->commands[i].description);
    }
    live->n_commands = n;
}

/* ---- the engine's side -------------------------------------------------------------------------------------------------- */

/* It is reaped as all children are (serve.c). */
static void dismiss(struct capturing *capturing) {
    loop_remove(capturing->engine->loop, &capturing->source);
    loop_timer_clear(capturing->engine->loop, &capturing->deadline);
    close_fd(&capturing->socket);
    /* One that is not done yet would find that out late; but of twins, it alone can make an end, also where its word found no room. */
    if (!capturing->has_spoken && capturing->pidfd >= 0)
        sys_pidfd_send_signal(capturing->pidfd, SIGKILL, NULL, 0);
    capturing->live = live_put(capturing->live);
    noting_end(&capturing->noting);
}

struct capturing *capturing_free(struct capturing *capturing) {
    if (!capturing)
        return NULL;
    dismiss(capturing);
    close_fd(&capturing->pidfd);
    if (capturing->in_calls)
        munmap((void *)(uintptr_t)capturing->in_calls, sizeof *capturing->in_calls);
    free(capturing);
    return NULL;
}

/* What it makes calls in has the registers of a call then, and a step to make that it did not ask for. */
static bool has_broken(const struct capturing *capturing) {
    struct pollfd dead = { .fd = capturing ? capturing->pidfd : -EBADF, .events = POLLIN };

    return capturing && *capturing->in_calls && poll(&dead, 1, 0) > 0;
}

bool capturing_has_broken(struct session *session) {
    const struct work *work = session_first_work(session);

    return has_broken(session->releasing) || (work && has_broken(work->capturing));
}

static void on_gone(struct loop_source *source, uint32_t events) {
    struct capturing *capturing = container_of(source, struct capturing, source);
    struct session *session = capturing->session;

    (void)events;
    bool broken = has_broken(capturing);
    session->releasing = capturing_free(capturing);
    if (broken)
        session_broken(session);
    state_released(session);
}

void capturing_release(struct capturing *take_capturing) {
    struct session *session = take_capturing->work->session;

    dismiss(take_capturing);
    take_capturing->work = NULL;
    take_capturing->session = session;
    if (loop_add(session->engine->loop, &take_capturing->source, take_capturing->pidfd, EPOLLIN, on_gone) < 0)
        capturing_free(take_capturing);
    else
        session->releasing = take_capturing;
}

void capturing_kill(struct capturing *capturing) {
    loop_remove(capturing->engine->loop, &capturing->source);
    loop_timer_clear(capturing->engine->loop, &capturing->deadline);
    (void)send(capturing->socket, &(const char){ CAPTURER_END }, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void start_clock(struct capturing *capturing) {
    (void)loop_timer_set(capturing->engine->loop, &capturing->deadline, clock_now_ns() + CAPTURE_SECONDS * 1000000000ll, capturing->deadline.callback);
}

const struct numbers *capturing_numbers(const struct capturing *capturing) {
    return capturing ? &capturing->numbers : NULL;
}

bool capturing_is_complete(const struct capturing *capturing) {
    return capturing->complete;
}

bool capturing_went_on(const struct capturing *capturing) {
    return capturing && capturing->went_on;
}

bool capturing_go_on(struct capturing *capturing) {
    if (capturing->complete)
        return false;
    capturing->goes_on = true;
    start_clock(capturing);
    (void)send(capturing->socket, &(const char){ CAPTURER_GO_ON }, 1, MSG_NOSIGNAL | MSG_DONTWAIT);     /* if it is gone, we are told */
    return true;
}

static void fail(struct capturing *capturing, const struct rollbox_error *error) {
    struct rollbox_error hinted = *error;
    size_t length = strnlen(hinted.message, sizeof hinted.message - 1);

    if (length + sizeof HINT <= sizeof hinted.message)
        memcpy(hinted.message + length, HINT, sizeof HINT);
    if (capturing->goes_on)
        state_imaged(capturing->work, &hinted);
    else
        state_captured(capturing->work, NULL, &hinted);
}

/* They were ended for want of memory meanwhile, and what is looked at is not there any more: it is a snapshot of what is left. */
static bool ran_out(struct capturing *capturing) {
    struct session *session = capturing->work->session;
    enum oom_cause cause = session_oom_cause(session);  /* of which we may not have heard yet */

    if (cause != OOM_NONE)
        session_out_of_memory(session, cause);
    return session->n_out_of_memory != capturing->n_out_of_memory;
}

static void on_verdict(struct loop_source *source, uint32_t events) {
    struct capturing *capturing = container_of(source, struct capturing, source);
    static struct verdict verdict;
    struct rollbox_error error;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(capturing->socket, &verdict, sizeof verdict, fds, &n_fds);

    (void)events;
    if (n == -EAGAIN || n == -EINTR)
        return;
    capturing->has_spoken |= n == -EMFILE || n == sizeof verdict;
    if (n == -EMFILE) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "snapshot", "the engine has no descriptors left for what is noted of the sandbox' processes (RLIMIT_NOFILE)");
        fail(capturing, &error);
        return;
    }
    bool are_trackers = n == sizeof verdict && !verdict.error.code && n_fds == verdict.n_trackers && n_fds <= ARRAY_SIZE(verdict.trackers) && !capturing->captured;
    while (!are_trackers && n_fds)
        close(fds[--n_fds]);
    if (n != sizeof verdict || capturing->complete || (capturing->captured && !verdict.is_complete)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot", "the process that captured the sandbox was killed from outside; %s", *capturing->in_calls ? "what ran in the sandbox is ended, as one of its processes would not have gone on as it was" : "nothing was changed");
        fail(capturing, &error);
        return;
    }
    verdict.error.message[sizeof verdict.error.message - 1] = verdict.error.stage[sizeof verdict.error.stage - 1] = '\0';
    if (verdict.error.code) {
        const bool may_pass = (verdict.may_pass && !capturing->captured) || ran_out(capturing);

        if (!may_pass || !state_capture_again(capturing->work))
            fail(capturing, &verdict.error);
        return;
    }
    struct live *live = capturing->live;
    int r = verdict.is_complete && !verdict.is_addition ? live_seal_image(&live->image) : 0;    /* an addition is nobody's before they go on (state.c) */
    if (r < 0) {
        while (n_fds)
            close(fds[--n_fds]);
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot", "the image cannot be sealed: %s", strerror(-r));
        fail(capturing, &error);
        return;
    }
    capturing->complete = live->is_complete = verdict.is_complete;
    if (!capturing->captured && capturing->is_noted)
        tracking_give_back(capturing->work->session, &capturing->noting, live, verdict.is_addition, verdict.trackers, fds, n_fds);
    memcpy(live->clocks, verdict.clocks, sizeof live->clocks);
    live->bytes = verdict.bytes;
    if (live->is_complete && live->wants_holder)
        tracking_hold(live, capturing->work->session->program);
    if (capturing->captured) {
        state_imaged(capturing->work, NULL);
        return;
    }
    live->processes = verdict.processes;
    keep_mains(live, &verdict);
    verdict.numbers.n = MIN(verdict.numbers.n, (uint32_t)NUMBERS_MAX);
    capturing->numbers = verdict.numbers;
    capturing->went_on = verdict.goes_on;
    capturing->captured = true;
    state_captured(capturing->work, live_get(live), NULL);
}

static void on_deadline(struct loop_timer *timer) {
    struct capturing *capturing = container_of(timer, struct capturing, deadline);
    struct rollbox_error error;

    if (capturing->complete || (capturing->captured && !capturing->goes_on))
        return;                 /* copies have a time of their own */
    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ETIMEDOUT, "snapshot", "the processes of the sandbox were not captured within %d seconds", CAPTURE_SECONDS);
    fail(capturing, &error);
}

/* Of what the sandbox may have, what the host has room for: the image, and the copy of it that sandboxes are made of. */
static uint64_t most_bytes(const struct session *session) {
    uint64_t limit = session->program->policy->max_memory_bytes, available;

    if (!limit)
        limit = UINT64_MAX;
    return proc_memory_available(&available, NULL) == 0 ? MIN(limit, available / 2) : limit;
}

/* What more of the sandbox' memory twins may take, where there is plenty of memory and processes: what they take is not to be missed by others, who may take as much meanwhile; over the limit, all would go. Whoever is to stand still afterwards has none: there would be a moment in which they do not. */
static uint64_t twin_bytes(const struct work *work) {
    const struct session *session = work->session;
    const struct policy *policy = session->program->policy;
    uint64_t limit = policy->max_memory_bytes, used, cpu;
    uint32_t processes;

    if (work->verb == VERB_HIBERNATE || session->was_thawed || session->program->plan->flags & (PLAN_SEED | PLAN_CLOCK) || box_usage(session->box, &used, &cpu, &processes) < 0)
        return 0;
    if (session->box->slot)
        (void)cgroup_slot_memory_now(session->box->slot->cgroup, &used);
    if (policy->max_processes && processes > policy->max_processes / 2)
        return 0;
    return !limit ? UINT64_MAX : limit > used ? (limit - used) / 2 : 0;
}

/* A fork's holder loads the image while it is written, where it takes that long: the end of a socket for who writes, the other is the state's. 0: not so, or -errno. */
static int make_progress(const struct work *work, struct live *live, bool may_have_twins) {
    int pair[2];

    if (work->verb != VERB_FORK || !may_have_twins)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    live->progress = pair[0];
    return pair[1];
}

int capturing_tell_init(const struct box *box) {
    auto_buf struct buf message = BUF_INIT;
    auto_close int theirs = -EBADF;
    int pair[2];

    if (!(box->program->plan->flags & (PLAN_SEED | PLAN_CLOCK)))
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    theirs = pair[1];
    wire_begin(&message, GUEST_STILL, 0);
    int r = wire_send_patiently(box->socket, &message, &theirs, 1);
    if (r < 0)
        close(pair[0]);
    return r < 0 ? r : pair[0];
}

/* Asked of the capturer, while everything stands: where there are no files to be copied at the same moment nobody needs to be waited for. */
static bool are_files_as_made(void *box) {
    return state_files_are_as_made(box);
}

int capturing_start(struct work *work, struct rollbox_error *error) {
    struct session *session = work->session;
    struct engine *engine = session->engine;
    struct capturing *capturing = calloc(1, sizeof *capturing);
    auto_free uint64_t *externals = NULL;
    int pair[2] = { -EBADF, -EBADF }, still = 0, progress = 0, r = !capturing ? -ENOMEM : session->box->pid > 0 ? 0 : -EAGAIN;

    if (capturing)
        *capturing = (struct capturing){ .engine = engine, .work = work, .socket = -EBADF, .pidfd = -EBADF, .live = tracking_next(work), .n_out_of_memory = session->n_out_of_memory };
    struct live *live = capturing ? capturing->live : NULL;
    void *shared = r == 0 ? mmap(NULL, sizeof *capturing->in_calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (shared != MAP_FAILED)
        capturing->in_calls = shared;
    else if (r == 0)
        r = -errno;
    if (r == 0)
        r = live ? note(session, capturing) : -ENOMEM;
    if (r == 0 && live->n_pipes > MAX_PIPES) {
        capturing_free(capturing);
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot", "the sandbox' commands have more than %d pipes in all" HINT, MAX_PIPES);
    }
    if (r == 0 && !(externals = calloc(live->n_pipes + 1, sizeof *externals)))
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < live->n_pipes; i++)
        externals[i] = live->pipes[i].inode;
    struct capture_options options = { 0 };
    if (r == 0) {
        tracking_begin(work, live);
        capturing->is_noted = tracking_take(work, &capturing->noting, &options);
    }
    if (r == 0)
        r = MIN(live->image = options.base > 0 ? live_new_small_image() : live_new_image(session->program), 0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0)
        r = MIN(still = capturing_tell_init(session->box), 0);
    const uint64_t twins = r == 0 && options.base <= 0 ? twin_bytes(work) : 0;
    if (r == 0)
        r = MIN(progress = make_progress(work, live, twins || options.base > 0), 0);
    if (r == 0) {
        const struct policy *policy = session->program->policy;
        const bool may_go_on = (work->verb == VERB_SNAPSHOT || work->verb == VERB_FORK) && !session->was_thawed && !still && session->box->disk >= 0;
        options = (struct capture_options){ .init = session->box->pid, .externals = externals, .n_externals = live->n_pipes, .masters = capturing->masters, .n_masters = live->n_terminals, .most_bytes = most_bytes(session), .twin_bytes = twins, .still = still, .progress = progress, .in_calls = capturing->in_calls, .base = options.base, .tracks = options.tracks, .trackers = options.trackers, .n_trackers = options.n_trackers, .memory_limit = policy->max_memory_bytes, .most_processes = policy->max_processes };
        int fds[6 + CAPTURER_MAX_TERMINALS + CAPTURE_MAX_TRACKERS] = { live->image, pair[1] };
        size_t n_fds = 2;

        if (options.base > 0)
            fds[n_fds++] = options.base;
        for (size_t i = 0; i < options.n_trackers; i++)
            fds[n_fds++] = options.trackers[i].fd;

        if (still)
            fds[n_fds++] = still;
        if (progress)
            fds[n_fds++] = progress;
        if (may_go_on)
            fds[n_fds++] = session->box->disk;
        memcpy(fds + n_fds, capturing->masters, live->n_terminals * sizeof *fds);
        capturing->socket = pair[0];
        capture_prepare();
        r = spawn_fork("rollbox-capture", fds, n_fds + live->n_terminals);
        if (r == 0)
            capturer_run(&options, may_go_on ? are_files_as_made : NULL, session->box, live->image, pair[1]);
        if (r > 0 && work->verb == VERB_FORK)
            tracking_begin_box(&capturing->noting, session, live);
    }
    close_fd(&pair[1]);
    if (still > 0)
        close(still);
    if (progress > 0)
        close(progress);
    if (r > 0)
        r = capturing->pidfd = sys_pidfd_open(r, 0);
    if (r >= 0)
        r = loop_add(engine->loop, &capturing->source, capturing->socket, EPOLLIN, on_verdict);
    if (r == 0)
        r = loop_timer_set(engine->loop, &capturing->deadline, clock_now_ns() + CAPTURE_SECONDS * 1000000000ll, on_deadline);
    if (r < 0) {
        capturing_free(capturing);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot", "the processes of the sandbox cannot be captured: %s" HINT, strerror(-r));
    }
    work->capturing = capturing;
    return 0;
}
