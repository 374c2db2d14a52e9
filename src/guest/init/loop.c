/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main loop of a sandbox's init: it reaps processes and executes the engine's requests.
 *
 * There is one thread, which waits for a request on the socket or for SIGCHLD. When the socket is
 * closed, init exits, and the kernel kills all processes in its pid namespace. Only the engine has
 * the other end, so this also happens if the engine dies or its client disconnects.
 *
 * The commands of a session run side by side and may signal and trace each other, because they
 * share init's Landlock domain. Two things protect init from them. The kernel gives pid 1 no
 * signals from its own namespace that it has not asked for, and init is not dumpable. The seccomp
 * filter refuses calls that name pid 1.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/files.h"
#include "guest/init/command.h"
#include "guest/init/init.h"
#include "guest/restore/restore.h"
#include "guest/state.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define PENDING 64

/* Isolation `process` does not need this: init is outside of the commands' domain, there is no
 * /proc to find their processes in, and init must receive all orphans. */
static int begin_session(struct box *box, struct guest_fault *fault) {
    if (box->plan->flags & PLAN_PROCESS)
        return guest_fault(fault, GUEST_STAGE_REQUEST, 0, -EOPNOTSUPP);
    if (command_in_session || command_count())
        return guest_fault(fault, GUEST_STAGE_REQUEST, 0, -EBUSY);
    int r = box_enter_domain(box);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    command_in_session = true;
    return 0;
}

/* The commands that a RESTORE message names run from now on. */
static int adopt_pipes(const struct wire_message *message) {
    struct wire_field field;
    uint64_t serial = 0, pid;
    size_t position = 0;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        if (field.tag == GUEST_TARGET && wire_u64(&field, &serial) == 0)
            continue;
        if (field.tag != GUEST_PROCESS || !serial || wire_u64(&field, &pid) < 0 || pid < 2 ||
            pid > INT32_MAX)
            return -EBADMSG;
        /* Without its process, the end of the command would never be reported. */
        r = restore_has_command((uint32_t)pid) ? command_adopt(serial, (pid_t)pid) : -EBADMSG;
        if (r < 0)
            return r;
        serial = 0;
    }
    return r;
}

static void restore_processes(const struct box *box, const struct wire_message *message) {
    bool is_dry_run = message->header.flags & GUEST_RESTORE_TRIAL;
    struct restore_failure failure = { 0 };
    int masters[IMAGE_MAX_TERMINALS], trackers[IMAGE_MAX_NOTED];
    size_t n_masters = 0, n_trackers = 0;
    const bool applies_incremental = message->header.flags & GUEST_RESTORE_INCREMENTAL;
    const size_t n_externals = message->n_fds - (applies_incremental && message->n_fds);
    int r = restore_is_tree() && message->n_fds >= applies_incremental ? adopt_pipes(message)
                                                                       : -EBADMSG;

    if (r == 0 && applies_incremental)
        r = restore_incremental(box, message->fds[n_externals], &failure);
    if (r == 0)
        r = restore_finish(
            box, message->fds, n_externals, is_dry_run, masters, &n_masters, &failure);
    struct guest_record record = { .kind = GUEST_RESTORED,
        .serial = message->header.serial,
        .error = r < 0 ? -r : 0,
        .stage = failure.step,
        .operation = failure.pid };
    if (r == 0 && (n_trackers = restore_take_trackers(trackers)))
        record.value = GUEST_CREATE_NOTES;
    if (!n_trackers || record_send(box->socket, &record, trackers, n_trackers) < 0) {
        record.value = 0; /* it is optional */
        (void)record_send(box->socket, &record, masters, n_masters);
    }
    while (n_masters)
        close(masters[--n_masters]);
    while (n_trackers)
        close(trackers[--n_trackers]);
    if (r < 0 || is_dry_run)
        init_leave(box, r < 0);
    restore_forget();
}

static int send_signal(const struct wire_message *message, uint64_t *ret_n) {
    uint64_t target = 0, number = 0, scope = 0;
    struct wire_field field;
    size_t position = 0;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        uint64_t *to = field.tag == GUEST_TARGET   ? &target
                       : field.tag == GUEST_NUMBER ? &number
                       : field.tag == GUEST_SCOPE  ? &scope
                                                   : NULL;

        if (!to || wire_u64(&field, to) < 0)
            return -EBADMSG;
    }
    if (r < 0)
        return r;
    if (number > 64)
        return -EINVAL;
    if (!target && number == SIGKILL && command_in_session) {
        if (scope == GUEST_SCOPE_CHILDREN)
            return tree_kill_guests();
        return kill(-1, SIGKILL) < 0 && errno != ESRCH ? -errno : 0; /* every process except init */
    }
    pid_t top = command_main(target);
    r = top ? tree_signal(top, (int)number, scope) : -ESRCH;
    if (r < 0)
        return r;
    *ret_n = (uint64_t)r;
    return 0;
}

static int serve_files(const struct box *box, struct wire_message *message) {
    bool alone = false;

    if (!command_in_session || message->n_fds != 1)
        return -EBADMSG;
    restore_forget_rest(); /* an agent is to have none of it */
    int r = state_is_held ? -EBUSY : 0;
    if (r == 0 && message->header.flags & GUEST_FILES_ALONE) {
        dispatch_stand(box->plan);
        alone = tree_freeze() >= 0; /* if some cannot be stopped, it may be killed again */
        command_agents_resume();
    }
    if (r == 0)
        r = command_serve_files(box, message->fds[0], alone);
    if (r < 0) {
        if (alone && !state_n_alone)
            tree_thaw();
        files_refuse(message->fds[0]);
    }
    return r;
}

static void send_reply(const struct box *box, const struct wire_message *message, uint32_t kind,
    int r, uint64_t value) {
    struct guest_record record = { .kind = kind,
        .stage = r < 0 ? GUEST_STAGE_REQUEST : 0,
        .error = r < 0 ? -r : 0,
        .serial = message->header.serial,
        .value = value };

    record_send(box->socket, &record, NULL, 0);
}

static void handle_request(struct box *box, struct wire_message *message) {
    struct guest_fault fault = { 0 };
    uint64_t value = 0;
    int r;

    switch (message->header.type) {
    case GUEST_EXEC:
        command_start(box, message);
        break;
    case GUEST_SESSION:
        r = begin_session(box, &fault);
        if (r < 0) {
            record_fault(box->socket, GUEST_FAILED, message->header.serial, &fault, r);
            init_leave(box, 1);
        }
        break;
    case GUEST_RESTORE:
        restore_processes(box, message);
        break;
    case GUEST_SIGNAL:
        if (message->length &&
            !tree_is_frozen()) /* A stop signal that is no mere test for existence; a paused process
                                  takes the signal when it continues */
            dispatch_release(box->plan);
        r = send_signal(message, &value);
        send_reply(box, message, GUEST_SIGNALLED, r, value);
        break;
    case GUEST_FREEZE:
        dispatch_stand(box->plan);
        r = box->plan->flags & PLAN_PROCESS ? -EBADMSG : tree_freeze();
        state_is_held = r >= 0;
        send_reply(box, message, GUEST_FROZEN, r, r > 0 ? (uint64_t)r : 0);
        break;
    case GUEST_QUIESCE:
        if (message->n_fds)
            (void)quiesce_begin(box->plan, wire_take_fd(message, 0));
        break;
    case GUEST_THAW:
        state_is_held = false;
        tree_thaw();
        break;
    case GUEST_FILES:
        send_reply(box, message, GUEST_FILES_SERVED, serve_files(box, message), 0);
        break;
    case GUEST_CONNECT:
        connect_serve(message);
        break;
    default:
        break;
    }
    wire_message_done(message);
}

_Noreturn void init_run(struct box *box, struct wire_message *message) {
    static struct pollfd all_events[3 + DETERMINISM_MAX_LISTENERS];
    struct pollfd few_events[3 + 1],
        *events = determinism_wanted(box->plan) ? all_events
                                                : few_events; /* saves a page in most sandboxes */
    struct rlimit limit;
    sigset_t all, ended;

    command_in_session = restore_is_tree();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    /* All other signals from guests stay pending and wake nobody. The receiver's limit, not the
     * sender's, bounds how many the kernel keeps; commands raise it to theirs. */
    if (sys_call4(__NR_prlimit64, 0, RLIMIT_SIGPENDING, NULL, &limit) == 0 &&
        limit.rlim_cur > PENDING) {
        limit.rlim_cur = PENDING;
        (void)sys_call4(__NR_prlimit64, 0, RLIMIT_SIGPENDING, &limit, NULL);
    }
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    int signals = signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        init_leave(box, 1);
    for (bool more = false;;) {
        struct signalfd_siginfo info;
        int64_t until_ns;
        size_t n_listeners = dispatch_poll(events + 3, &until_ns);
        const int64_t rests_until_ns = restore_rests_until_ns();
        ssize_t n;

        if (rests_until_ns < until_ns)
            until_ns = rests_until_ns;
        int64_t left_ns = more || until_ns == INT64_MAX ? 0 : until_ns - clock_now_ns();
        struct timespec left = { 0 };

        events[0] = (struct pollfd){ box->socket, POLLIN, 0 };
        events[1] = (struct pollfd){ signals, POLLIN, 0 };
        events[2] = (struct pollfd){ quiesce_socket(), POLLIN, 0 };
        if (left_ns > 0)
            left = (struct timespec){ left_ns / 1000000000, left_ns % 1000000000 };
        int ready = (int)sys_call5(__NR_ppoll, events, 3 + n_listeners,
            !more && until_ns == INT64_MAX ? NULL : &left, NULL, 0);
        if (ready < 0) {
            if (ready != -EINTR)
                init_leave(box, 1);
            continue;
        }
        if (!ready && !more)
            restore_forget_rest();
        if (events[2].revents) {
            quiesce_serve(box->plan);
            continue; /* answer their system calls meanwhile */
        }
        dispatch_serve(box->plan, events + 3, n_listeners, !ready && !more);
        if (events[1].revents && (n = read(signals, &info, sizeof info)) > 0)
            command_has_read((uint64_t)n);
        if (events[1].revents || more)
            more = command_reap(box);
        if (events[0].revents) {
            command_has_read_more();
            int r = wire_receive(box->socket, message);
            if (r == 1)
                handle_request(box, message);
            else if (r != -EAGAIN && r != -EINTR)
                init_leave(box, 0);
        }
    }
}
