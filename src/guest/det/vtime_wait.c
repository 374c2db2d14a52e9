/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits with a time-out, under a virtual clock. There are two kinds.
 *
 * A wait for time alone (a sleep, a poll of nothing) is *held*: init answers the call when its time
 * has come. Signals do not reach a thread in a held call, so init looks for them.
 *
 * A wait for something else as well is the *kernel's*: init records it and lets the call pass, so
 * descriptors, wakers and signals end it as usual. If its time comes first, init cuts it short: it
 * stops the thread (ptrace), changes the result of the interrupted call to a time-out, and resumes
 * the thread. Absolute times never come in the kernel, because the sandbox's CLOCK_MONOTONIC is far
 * ahead of the kernel's (PLAN_VIRTUAL_UPTIME_S). The exception is a futex wait until a time of day,
 * which may be long past for the kernel: it is held, in slices, after each of which the thread
 * checks its futex itself.
 *
 * The descriptors and the output of these calls are in vtime_wait_files.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"
#include "guest/det/vtime_wait.h"
#include "guest/state.h"
#include "guest/timed_syscall.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define MAX_WAITS 4096
#define FUTEX_SLICE_NS 2000000
#define SIGNAL_TICK_NS 5000000 /* doubled each time, */
#define LAST_SIGNAL_TICK_NS 80000000
#define POLL_TICK_NS 1000000000ll
#define LOOKS_A_TICK 64
#define LOOKS_AT_REST 128
#define CUT_LIMIT_NS 100000000ll
#define PURGE_TICK_NS 100000000ll
#define FIRST_ASIDE_NS                                                                             \
    50000 /* until the next look at a thread that was found running: doubled each time */
/* A shorter wait without a rest in that time is a hint to the scheduler: the clock does not move
 * for it. */
#define SHORT_NS 20000000ll
#define SAME_NS 1000000ll /* deadlines this close together are simultaneous */
#define MS_NS 1000000ll
#define RESTART_CALL 219

enum form { MILLISECONDS, TIMESPEC, TIMEVAL };

static const struct call {
    uint16_t number;
    uint8_t time; /* index of the argument */
    uint8_t form;
    int result;
} calls[] = {
    { __NR_nanosleep, 0, TIMESPEC, 0 },
    { __NR_clock_nanosleep, 2, TIMESPEC, 0 },
    { __NR_poll, 2, MILLISECONDS, 0 },
    { __NR_ppoll, 2, TIMESPEC, 0 },
    { __NR_select, 4, TIMEVAL, 0 },
    { __NR_pselect6, 4, TIMESPEC, 0 },
    { __NR_epoll_wait, 3, MILLISECONDS, 0 },
    { __NR_epoll_pwait, 3, MILLISECONDS, 0 },
    { __NR_epoll_pwait2, 3, TIMESPEC, 0 },
    { __NR_futex, 3, TIMESPEC, -ETIMEDOUT },
    { FUTEX_WAITV_CALL, 3, TIMESPEC, -ETIMEDOUT },
    { FUTEX_WAIT_CALL, 4, TIMESPEC, -ETIMEDOUT },
    { __NR_rt_sigtimedwait, 2, TIMESPEC, -EAGAIN },
    { __NR_semtimedop, 3, TIMESPEC, -EAGAIN },
};

static struct wait waits[MAX_WAITS];
static size_t n_waits, first;
static int64_t cut_until_ns, purged_ns;
/*
 * Calls that threads make again when they resume, with their old deadlines. If a signal comes
 * first, the thread may make the same call with the same arguments as a new wait. Calls that init
 * held are returned so that the kernel makes restart_syscall of them, which never follows a handled
 * signal. Calls that the kernel restarts itself, and calls of restored processes, cannot be
 * distinguished this way; and a handler with SA_RESTART that runs before init has received a call
 * does not end it. So threads that begin a wait again resume first, and others, which could signal
 * them, only after they have made their call (wait_count_left).
 */
static struct again {
    struct image_wait wait;
    bool restarts; /* by restart_syscall */
} again[IMAGE_MAX_WAITS];
static uint32_t n_again;

static void mark_wait(const struct wait *wait, bool is_held) {
    if (wait->state == HELD)
        wait_mark(wait->event.thread, is_held);
}

static void drop_wait(size_t i) {
    mark_wait(&waits[i], false);
    waits[i] = waits[--n_waits];
}

bool wait_is_asking(pid_t thread) {
    for (size_t i = (uint64_t)thread < WAIT_MAX_THREADS && !wait_is_held(thread) ? n_waits : 0;
         i < n_waits; i++)
        if (waits[i].state == HELD && waits[i].event.thread == thread)
            return ioctl(waits[i].listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &waits[i].id) == 0;
    return false;
}

size_t wait_count(void) {
    return n_waits;
}

static int call_of(pid_t thread, uint64_t *ret_arguments) {
    char text[256];
    int fd = process_open(thread, "/syscall", O_RDONLY);

    if (fd < 0)
        return fd;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return vtime_parse_call(text, ret_arguments);
}

enum sight { GONE, UNSEEN, THERE };

/*
 * Whether a thread is still in a wait that is the kernel's. A call with another time-out, or none,
 * is another one.
 *
 * The kernel tells the call of a thread only while the thread is off its CPU. A thread that runs
 * may have come back from its wait, but it may also be on its way there: init has just let its call
 * pass, or something has interrupted the wait and the kernel begins it again without a question. A
 * thread that a tracer has stopped shows the call that the tracer makes in it. Such a wait has to
 * be kept: nobody but init ends one that is absolute.
 */
static enum sight sight_of(const struct wait *wait) {
    uint64_t arguments[6];
    pid_t thread = wait->event.thread;
    int number = call_of(thread, arguments);

    if ((number == wait->number || number == RESTART_CALL) &&
        memcmp(arguments, wait->arguments, sizeof arguments) == 0)
        return THERE;
    if (number == -ENOENT || number == -ESRCH || idle_has_ended(thread))
        return GONE;
    return number < 0 || !idle_is_on_its_way(thread) ? UNSEEN : GONE;
}

/* The wait cannot end until its thread has been looked at again. */
static void set_aside(struct wait *wait) {
    wait->is_aside = true;
    wait->look_ns = clock_now_ns() + wait->tick_ns;
    wait->tick_ns = wait->tick_ns < LAST_SIGNAL_TICK_NS ? wait->tick_ns * 2 : wait->tick_ns;
}

/* ---- the beginning ---- */

/* Does a call wait for time alone? */
static bool is_sleep(const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    uint64_t mask;

    switch (question->data.nr) {
    case __NR_nanosleep:
    case __NR_clock_nanosleep:
        return true;
    case __NR_poll:
        return !a[1];
    case __NR_ppoll:
        return !a[1] && !a[3];
    case __NR_select:
        return !(int)a[0] || !(a[1] | a[2] | a[3]);
    case __NR_pselect6:
        if ((int)a[0] && (a[1] | a[2] | a[3]))
            return false;
        return !a[5] || (process_read_memory((pid_t)question->pid, a[5], &mask, sizeof mask) ==
                                (long)sizeof mask &&
                            !mask);
    default:
        return false;
    }
}

/* The clock of an absolute time. False: the time is relative. */
static bool clock_of(const struct seccomp_notif *question, clockid_t *ret_clock) {
    const uint64_t *a = (const uint64_t *)question->data.args;

    *ret_clock = CLOCK_MONOTONIC;
    switch (question->data.nr) {
    case __NR_clock_nanosleep:
        *ret_clock = (clockid_t)(int)a[0];
        return a[1] & TIMER_ABSTIME;
    case __NR_futex:
        if (a[1] & FUTEX_CLOCK_REALTIME)
            *ret_clock = CLOCK_REALTIME;
        return (a[1] & 0x7f) == FUTEX_WAIT_BITSET;
    case FUTEX_WAITV_CALL:
        *ret_clock = (clockid_t)(int)a[4];
        return true;
    case FUTEX_WAIT_CALL:
        *ret_clock = (clockid_t)(int)a[5];
        return true;
    default:
        return false;
    }
}

/* Has the futex's word still the expected value? 0, or the result of the call. */
static int check_word(pid_t pid, const uint64_t *a) {
    uint32_t word;
    long r = process_read_memory(pid, a[0], &word, sizeof word);

    if (r < 0)
        return (int)r;
    if (r != (long)sizeof word)
        return -EFAULT;
    return word == (uint32_t)a[2] ? 0 : -EAGAIN;
}

/* Of a kind that init can handle, and valid for the kernel. */
static bool is_futex_wait(const uint64_t *a) {
    return !(a[0] % sizeof(uint32_t)) &&
           ((a[1] & 0x7f) == FUTEX_WAIT || ((a[1] & 0x7f) == FUTEX_WAIT_BITSET && (uint32_t)a[5]));
}

/* serial: calls without a time-out that wait, in processes with several threads: a thread that the
 * kernel wakes would run beside its waker, with the same memory. */
static bool is_plain_wait(const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;

    switch (question->data.nr) {
    case __NR_recvfrom:
        return !(a[3] & MSG_DONTWAIT);
    case __NR_recvmsg:
        return !(a[2] & MSG_DONTWAIT);
    case __NR_read:
    case __NR_readv:
    case __NR_accept:
    case __NR_accept4:
        return true;
    case __NR_wait4:
        return (int)a[0] > 0 && !(int)a[2];
    default:
        return false;
    }
}

/* serial: init ends waits that other threads can end, at their turn. Waits for the outside are the
 * kernel's. */
static void hold_in_turn(struct wait *wait) {
    struct pollfd polled[WAIT_MAX_POLLED];
    bool futex = wait->number == __NR_futex;

    if (!futex && ((wait->state == HELD && wait->event.deadline != VIRTUAL_NEVER) ||
                      wait_descriptors(wait, polled) < 0 ||
                      idle_is_outside(wait->event.thread, wait->number, wait->arguments)))
        return;
    wait->state = HELD;
    wait->polls = !futex;
    wait->shared = futex && !(wait->arguments[1] & FUTEX_PRIVATE_FLAG);
    wait->process = process_of_thread(wait->event.thread);
}

/* The deadline of a wait that the present call begins again, and whether restart_syscall does
 * it. */
static int64_t begun_deadline = VIRTUAL_NEVER;
static bool begun_by_restart;

static void forget_again(uint32_t i) {
    again[i] = again[--n_again];
}

void wait_asked(struct seccomp_notif *question) {
    const bool restarts = question->data.nr == RESTART_CALL;

    begun_deadline = VIRTUAL_NEVER;
    begun_by_restart = false;
    if (question->data.nr == __NR_arch_prctl) /* of a restored process, on its way there */
        return;
    for (uint32_t i = n_again; i-- > 0;) {
        const struct again one = again[i];

        if (one.wait.thread != question->pid)
            continue;
        forget_again(i);
        if (one.restarts != restarts ||
            (!restarts && one.wait.number != (uint32_t)question->data.nr) ||
            memcmp(one.wait.arguments, question->data.args, sizeof one.wait.arguments) != 0)
            continue;
        begun_deadline = one.wait.deadline;
        begun_by_restart = restarts;
        question->data.nr = (int)one.wait.number;
    }
}

/* Fills in the description of a wait. False: left to the kernel. */
static bool describe_wait(
    const struct seccomp_notif *question, const struct call *call, struct wait *ret_wait) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t pid = (pid_t)question->pid;
    int64_t base = 0, time = 0;
    clockid_t clock;

    *ret_wait = (struct wait){ .event = vtime_event(pid, VIRTUAL_NEVER),
        .id = question->id,
        .arguments = { a[0], a[1], a[2], a[3], a[4], a[5] },
        .result = call->result,
        .number = call->number };
    if (serial_is_on() && call->number == __NR_futex && !is_futex_wait(a))
        return false;
    if (serial_is_on() && (call->form == MILLISECONDS ? (int)a[call->time] < 0 : !a[call->time])) {
        hold_in_turn(ret_wait); /* without a time-out */
        return ret_wait->process;
    }
    if (call->form == MILLISECONDS)
        time = (int64_t)(int)a[call->time] * 1000000;
    else if (!begun_by_restart &&
             !vtime_read_time(pid, a[call->time], call->form == TIMEVAL, &time))
        return false;
    ret_wait->absolute = clock_of(question, &clock);
    if (!vtime_base(clock, &base))
        return false;
    if (ret_wait->absolute) {
        int64_t monotonic;

        (void)vtime_base(CLOCK_MONOTONIC, &monotonic);
        ret_wait->time_of_day = base != monotonic;
        ret_wait->event.deadline = time - base < VIRTUAL_NEVER ? time - base : VIRTUAL_NEVER;
        ret_wait->length_ns = vtime_left(ret_wait->event.deadline);
    } else {
        ret_wait->length_ns = time < VIRTUAL_NEVER ? time : VIRTUAL_NEVER;
        ret_wait->event.deadline = vtime_after(ret_wait->length_ns);
        if (begun_deadline != VIRTUAL_NEVER) {
            const int64_t left = vtime_left(begun_deadline);

            ret_wait->event.deadline = begun_deadline;
            ret_wait->length_ns = left ? left : 1;
            ret_wait->is_restarted = begun_by_restart;
        }
    }
    ret_wait->state = begun_by_restart || is_sleep(question) ||
                              (call->number == __NR_futex && ret_wait->time_of_day)
                          ? HELD
                          : KERNEL;
    if (serial_is_on())
        hold_in_turn(ret_wait);
    return ret_wait->length_ns || ret_wait->absolute;
}

/* Removes waits whose threads have continued without a further call. */
static void purge_waits(int64_t now) {
    if (now < purged_ns)
        return;
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == KERNEL && sight_of(&waits[i]) == GONE)
            drop_wait(i);
    purged_ns = clock_now_ns() + PURGE_TICK_NS;
}

/* An event loop may wait until its own clock's time, end by the real clock while a thread waits for
 * the outside, find that the time has not come, and wait again. It would do so for ever, because
 * nothing else moves the clock. Returns when the new wait ends, or INT64_MAX. */
static int64_t due_again(const struct wait *before, const struct wait *wait, int64_t now) {
    bool same = before->state == KERNEL && wait->state == KERNEL && !before->absolute &&
                !wait->absolute && before->number == wait->number &&
                wait->event.deadline <= before->event.deadline + SAME_NS;

    if (!same || now < before->over_ns || !command_count() ||
        !(vtime_awaits_outside() ||
            idle_is_outside(wait->event.thread, wait->number, wait->arguments)))
        return INT64_MAX;
    return before->due_ns != INT64_MAX ? before->due_ns : before->over_ns + vtime_grace_ns();
}

static void begin_wait(int listener, const struct seccomp_notif *question, struct wait *wait) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    bool futex = wait->number == __NR_futex;
    int64_t now = clock_now_ns(), length = wait->length_ns, due = INT64_MAX;

    for (size_t i = n_waits; i-- > 0;) /* its earlier wait is over */
        if (waits[i].event.thread == wait->event.thread && waits[i].state != CUTTING) {
            due = due_again(&waits[i], wait, now);
            drop_wait(i);
        }
    if (futex && (wait->state == HELD || !length)) {
        int r = check_word(wait->event.thread, a);
        if (r < 0) {
            answer_call(listener, question->id, 0, r);
            return;
        }
    }
    if (wait->absolute && !length) {
        answer_call(listener, question->id, 0, wait->result);
        return;
    }
    /* By a clock that is not virtual, it would end at once, or never; or it has no end by any
     * clock. */
    int ready = (wait->time_of_day && wait->state == KERNEL) ||
                        (wait->event.deadline == VIRTUAL_NEVER && !wait->process)
                    ? -ENOTSUP
                : wait->polls ? wait_poll(wait)
                              : 0;
    if (ready > 0)
        answer_call(listener, question->id, ready, 0);
    else if (ready < 0)
        answer_let_pass(listener, question->id);
    if (ready)
        return;
    if (n_waits == MAX_WAITS)
        purge_waits(now);
    if (n_waits == MAX_WAITS) {
        /* After a spurious wake-up it makes the call again. The kernel can do a relative one. */
        if (wait->absolute || wait->is_restarted || (wait->process && futex))
            answer_call(listener, question->id, 0, futex ? -EAGAIN : -EINTR);
        else
            answer_let_pass(listener, question->id);
        return;
    }
    wait->listener = listener;
    wait->tick_ns = wait->state == KERNEL ? FIRST_ASIDE_NS
                    : wait->polls         ? POLL_TICK_NS
                    : serial_is_on()      ? SERIAL_PATIENCE_NS
                    : futex               ? FUTEX_SLICE_NS
                                          : SIGNAL_TICK_NS;
    wait->look_ns = now + wait->tick_ns;
    wait->over_ns = now + length;
    wait->lost_ms = (uint32_t)(idle_lost_ns() / MS_NS);
    wait->due_ns =
        (wait->state == KERNEL && !wait->absolute) || wait->event.deadline == VIRTUAL_NEVER
            ? due
            : now + length + (length < SHORT_NS && futex && !serial_is_on() ? 0 : vtime_grace_ns());
    waits[n_waits++] = *wait;
    mark_wait(wait, true);
    if (wait->state == KERNEL)
        answer_let_pass(listener, question->id);
}

static bool answer_plain_wait(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t thread = (pid_t)question->pid;
    struct wait wait = { .event = vtime_event(thread, VIRTUAL_NEVER),
        .id = question->id,
        .arguments = { a[0], a[1], a[2], a[3], a[4], a[5] },
        .number = (uint16_t)question->data.nr,
        .state = HELD,
        .polls = true };

    if (!is_plain_wait(question) || !serial_has_threads(thread))
        return false;
    wait.process = process_of_thread(thread);
    if (wait.number != __NR_wait4 &&
        (idle_is_outside(thread, wait.number, wait.arguments) || !wait_is_blocking(&wait)))
        return false;
    begin_wait(listener, question, &wait);
    return true;
}

bool wait_answer(int listener, const struct seccomp_notif *question) {
    struct wait wait;

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (calls[i].number != question->data.nr)
            continue;
        if (describe_wait(question, &calls[i], &wait))
            begin_wait(listener, question, &wait);
        else
            answer_let_pass(listener, question->id); /* the kernel reports the error */
        return true;
    }
    return serial_is_on() && answer_plain_wait(listener, question);
}

/* ---- the end ---- */

static void reply_to_wait(size_t i, int result) {
    answer_call(waits[i].listener, waits[i].id, 0, result);
    drop_wait(i);
}

static struct image_wait saved_wait(const struct wait *w) {
    struct image_wait to = {
        .thread = (uint32_t)w->event.thread, .number = w->number, .deadline = w->event.deadline
    };

    memcpy(to.arguments, w->arguments, sizeof to.arguments);
    return to;
}

/* False: no room. */
static bool add_again(const struct wait *w, bool restarts) {
    if (n_again == IMAGE_MAX_WAITS)
        return false;
    again[n_again++] = (struct again){ saved_wait(w), restarts };
    return true;
}

/* Ends a held poll that is over. */
static bool end_if_ready(size_t i) {
    const struct wait *w = &waits[i];
    int result = w->polls ? wait_poll(w) : 0;

    if (!result)
        return false;
    serial_ask_end(w->listener, w->id, w->event.thread, result > 0 ? result : 0, result < 0);
    drop_wait(i);
    return true;
}

/* Interrupts the call as a signal would, so that it begins again unless one is handled first. */
static void break_off(size_t i) {
    const struct wait *w = &waits[i];

    if (w->absolute) {
        reply_to_wait(i, DETERMINISM_BROKEN_OFF);
        return;
    }
    wait_write_left(w); /* like the kernel, before it is known whether the call is restarted */
    reply_to_wait(i, add_again(w, true) ? DETERMINISM_RESTARTED : -EINTR);
}

/* Passes the wait to the kernel, as if it had never been held. */
static void hand_over(size_t i) {
    struct wait *w = &waits[i];

    if (w->is_restarted) {
        break_off(i);
        return;
    }
    if (w->time_of_day || (w->process && w->number == __NR_futex)) {
        reply_to_wait(i, w->number == __NR_futex ? -EAGAIN : -EINTR);
        return;
    }
    mark_wait(w, false);
    w->polls = false;
    w->state = KERNEL;
    w->tick_ns = FIRST_ASIDE_NS;
    if (!w->absolute)
        w->due_ns = INT64_MAX;
    answer_let_pass(w->listener, w->id);
}

/* Stops the thread; vtime_stopped() does the rest. A thread with another tracer, or whose
 * process is in an execve, waits in real time; if the kernel would never end the wait, this is
 * tried again. */
static bool cut_wait(size_t i) {
    pid_t thread = waits[i].event.thread;

    if (waits[i].is_stopping) {
        set_aside(&waits[i]);
        return false;
    }
    if (!timed_syscall_stop(thread)) {
        waits[i].event.deadline = VIRTUAL_NEVER;
        waits[i].due_ns = waits[i].absolute ? clock_now_ns() + vtime_grace_ns() : INT64_MAX;
        return false;
    }
    waits[i].state = CUTTING;
    cut_until_ns = clock_now_ns() + CUT_LIMIT_NS;
    return true;
}

/* False: it was over already, cannot be ended, or is set aside. */
static bool end_wait(size_t i, bool moves_clock) {
    struct wait *w = &waits[i];
    int64_t deadline = w->event.deadline;
    enum sight sight;
    bool ended;

    if (w->state == HELD)
        sight = ioctl(w->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &w->id) < 0 ? GONE : THERE;
    else
        sight = sight_of(w);
    if (sight == GONE)
        drop_wait(i);
    else if (sight == UNSEEN)
        set_aside(w);
    if (sight != THERE)
        return false;
    if (w->state == KERNEL) {
        w->is_aside = false;
        w->tick_ns = FIRST_ASIDE_NS;
    }
    if (end_if_ready(i))
        return true;
    ended = w->state == HELD || cut_wait(i);
    if (ended && moves_clock)
        vtime_reach(deadline);
    if (ended && w->polls)
        wait_clear_polled(w);
    if (ended && w->state == HELD) {
        wait_write_rest(w, 0);
        reply_to_wait(i, w->result);
    }
    return ended;
}

/* An interrupted call: the kernel would restart it, or return EINTR. */
static bool is_interrupted(long long result) {
    return result == -EINTR || (result <= -512 && result >= -516);
}

/*
 * False: not now. The thread may have been woken. It may also be about to make its call again,
 * because the kernel has prepared the restart and found another signal, or this stop, on the way
 * out.
 */
static bool finish_cut(const struct wait *wait) {
    struct user_regs_struct registers;
    pid_t thread = wait->event.thread;

    if (sys_call4(__NR_ptrace, PTRACE_GETREGS, thread, NULL, &registers) < 0 ||
        !is_interrupted((long long)registers.rax))
        return false;
    /* A dump has stored a number in the upper half (dump/syscall_restart.c). */
    if ((long long)registers.orig_rax != wait->number &&
        (uint32_t)registers.orig_rax != RESTART_CALL)
        return false;
    const uint64_t arguments[6] = { registers.rdi, registers.rsi, registers.rdx, registers.r10,
        registers.r8, registers.r9 };
    if (memcmp(arguments, wait->arguments, sizeof arguments) != 0)
        return false; /* it was woken, and is in its next call already */
    if (wait_is_select(wait))
        wait_clear_sets(thread, arguments);
    wait_write_rest(wait, 0);
    registers.rax = (unsigned long long)wait->result;
    registers.orig_rax = (unsigned long long)-1; /* so that it is not restarted */
    return sys_call4(__NR_ptrace, PTRACE_SETREGS, thread, NULL, &registers) >= 0;
}

/* The wait was not cut, and as far as init knows is not over. */
static void keep_uncut(size_t i, bool is_stopping) {
    waits[i].state = KERNEL;
    waits[i].is_stopping = is_stopping;
    set_aside(&waits[i]);
}

bool vtime_stopped(pid_t thread, int status) {
    for (size_t i = 0; i < n_waits; i++) {
        if (waits[i].event.thread != thread || (waits[i].state != CUTTING && !waits[i].is_stopping))
            continue;
        if (waits[i].state == CUTTING)
            cut_until_ns = 0;
        vtime_disturb();
        if (status >> 16 != BOUNDED_STOP_EVENT) {
            /* A signal came first. The thread receives it, and continues its wait if no handler
             * runs. */
            keep_uncut(i, false);
            return false;
        }
        if (finish_cut(&waits[i]))
            drop_wait(i);
        else
            keep_uncut(i, false);
        (void)sys_call4(__NR_ptrace, PTRACE_DETACH, thread, NULL, NULL);
        return true;
    }
    return false;
}

int64_t wait_cutting_until(void) {
    return cut_until_ns;
}

/* Gives up waiting for the stop, so that others get their turn. The stop still comes, when the
 * thread gets a CPU or its control group is thawed. */
static void give_up_cutting(void) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == CUTTING)
            keep_uncut(i, true);
    cut_until_ns = 0;
}

/* ---- whose turn it is ---- */

static bool has_turn(const struct wait *w) {
    return w->state != CUTTING && !w->is_aside;
}

void wait_take_back(void) {
    for (size_t i = 0; i < n_waits; i++)
        waits[i].is_aside = false;
}

int64_t wait_earliest(void) {
    int64_t earliest = VIRTUAL_NEVER;

    for (size_t i = 0; i < n_waits; i++)
        if (has_turn(&waits[i]) && waits[i].event.deadline < earliest)
            earliest = waits[i].event.deadline;
    return earliest;
}

bool wait_first(int64_t until, struct virtual_event *ret_event) {
    bool found = false;

    for (size_t i = 0; i < n_waits; i++)
        if (has_turn(&waits[i]) && waits[i].event.deadline <= until &&
            (!found || vtime_is_before(&waits[i].event, &waits[first].event))) {
            first = i;
            found = true;
        }
    if (found)
        *ret_event = waits[first].event;
    return found;
}

bool wait_end_first(void) {
    pid_t thread = waits[first].event.thread;
    bool is_held = waits[first].state == HELD, ended = end_wait(first, true);

    if (ended && is_held)
        serial_turn_of(thread);
    return ended;
}

/* Checks for signals that would interrupt the thread: they end a sleep; signals that only stop are
 * left to the kernel. True if the call is no longer held. */
static bool end_for_signal(size_t i) {
    struct wait *w = &waits[i];
    struct determinism_signals signals;

    if (ioctl(w->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &w->id) < 0) {
        drop_wait(i);
        return true;
    }
    if (w->number == __NR_futex) {
        int r = check_word(w->event.thread, w->arguments);
        if (r == 0 && w->process && process_signals_of(w->event.thread, &signals) &&
            signals.pending & ~signals.blocked)
            r = -EAGAIN; /* it receives its signal on the way, and the call is made again */
        if (r < 0)
            reply_to_wait(i, r);
        return r < 0;
    }
    if (!process_signals_of(w->event.thread, &signals) || !(signals.pending & ~signals.blocked))
        return false;
    if (!(signals.pending & ~signals.blocked & signals.caught) ||
        (w->polls && !wait_returns_rest(w))) {
        hand_over(i); /* the result is unknown */
        return true;
    }
    wait_write_left(w);
    reply_to_wait(i, -EINTR);
    return true;
}

/* If there are very many, the rest is checked next time. */
size_t wait_end_changed(void) {
    static size_t from;
    size_t n = 0;

    for (size_t looks = 0, left = n_waits; left && looks < LOOKS_AT_REST; left--) {
        from = from < n_waits ? from : 0;
        if (!n_waits)
            break;
        if (waits[from].state != HELD) {
            from++;
            continue;
        }
        looks++;
        if (end_for_signal(from))
            n++;
        else
            from++;
    }
    return n;
}

static bool is_woken(const struct wait *w, pid_t waker, uint64_t address, bool shared) {
    return w->state == HELD && w->number == __NR_futex && w->process && w->shared == shared &&
           (!address || w->arguments[0] == address) &&
           (shared || process_has_thread(w->process, waker));
}

/* In the order of their arrival. */
static size_t wake_waiters(pid_t waker, uint64_t address, bool shared, uint32_t most) {
    size_t n = 0;

    for (; n < most; n++) {
        size_t oldest = n_waits;

        for (size_t i = 0; i < n_waits; i++)
            if (is_woken(&waits[i], waker, address, shared) &&
                (oldest == n_waits || waits[i].event.sequence < waits[oldest].event.sequence))
                oldest = i;
        if (oldest == n_waits)
            break;
        serial_ask_end(
            waits[oldest].listener, waits[oldest].id, waits[oldest].event.thread, 0, false);
        drop_wait(oldest);
    }
    return n;
}

/* Shared memory may have any address in another process: if no thread waits at that address, all
 * possible waiters are woken. */
size_t wait_wake(pid_t waker, uint64_t address, bool shared, uint32_t most) {
    size_t n = wake_waiters(waker, address, shared, most);

    return n || !shared || !most ? n : wake_waiters(waker, 0, true, UINT32_MAX);
}

void wait_pass_ready(void) {
    for (size_t i = n_waits; i-- > 0;)
        (void)end_if_ready(i);
}

/* Does init end it by the real clock? Else the kernel does. */
static bool is_ours_to_end(const struct wait *w) {
    return w->state == HELD || w->absolute;
}

/* A wait without grace, or one that the kernel ends, is not delayed. */
static bool put_off(struct wait *w, int64_t now_ns) {
    int64_t later =
        w->due_ns > w->over_ns && is_ours_to_end(w)
            ? vtime_put_off(now_ns, w->over_ns, w->length_ns, w->event.deadline, w->lost_ms * MS_NS)
            : 0;

    w->due_ns = later ? later : w->due_ns;
    return later;
}

int64_t wait_look(int64_t now_ns) {
    bool stands = vtime_stands();
    int64_t next = INT64_MAX, crowd = 1 + (int64_t)n_waits / LOOKS_A_TICK;
    unsigned looks = 0;

    if (cut_until_ns && now_ns >= cut_until_ns)
        give_up_cutting();
    for (size_t i = n_waits; i-- > 0;) {
        struct wait *w = &waits[i];
        bool may_end = !stands || !is_ours_to_end(w);

        if (may_end && w->is_aside && now_ns >= w->look_ns) {
            w->is_aside = false;
            vtime_disturb();
        }
        if (may_end && now_ns >= w->due_ns && !w->is_aside &&
            (w->state == HELD || (w->state == KERNEL && !cut_until_ns)) && !put_off(w, now_ns)) {
            (void)end_wait(i, w->length_ns >= SHORT_NS || (w->state == KERNEL && !w->absolute) ||
                                  vtime_awaits_outside());
            continue;
        }
        if (w->state == HELD && now_ns >= w->look_ns && looks < LOOKS_A_TICK) {
            looks++;
            if (end_if_ready(i)) /* by a cause that is not visible here */
                continue;
            if (end_for_signal(i))
                continue;
            if (w->number == __NR_futex &&
                !w->process) { /* a waker need not have changed the word */
                reply_to_wait(i, -EAGAIN);
                continue;
            }
            w->look_ns = now_ns + w->tick_ns * crowd;
            w->tick_ns = w->tick_ns < LAST_SIGNAL_TICK_NS ? w->tick_ns * 2 : w->tick_ns;
        }
    }
    for (size_t i = 0; i < n_waits; i++) {
        const struct wait *w = &waits[i];
        bool may_end = !stands || !is_ours_to_end(w);

        if (may_end && has_turn(w) && w->due_ns < next)
            next = w->due_ns;
        if ((w->state == HELD || (may_end && w->is_aside)) && w->look_ns < next)
            next = w->look_ns;
    }
    return next;
}

void wait_stood(int64_t now_ns, int64_t max_ns) {
    for (size_t i = 0; i < n_waits; i++) {
        struct wait *w = &waits[i];
        int64_t later = now_ns + vtime_left(w->event.deadline) - w->over_ns;

        if (w->due_ns == INT64_MAX || w->event.deadline == VIRTUAL_NEVER || !is_ours_to_end(w))
            continue;
        if (later < max_ns)
            w->lost_ms = (uint32_t)(idle_lost_ns() / MS_NS);
        else
            later = max_ns;
        w->over_ns += later;
        w->due_ns += later;
    }
}

/* By the real clock; for waits that the kernel ends, only those that were begun again
 * (due_again). */
static int64_t over_of(const struct wait *w) {
    return w->due_ns == INT64_MAX || w->state == CUTTING ? INT64_MAX
           : w->state == KERNEL && !w->absolute          ? w->due_ns - vtime_grace_ns()
                                                         : w->over_ns;
}

int64_t wait_end_over(int64_t now_ns) {
    int64_t next = INT64_MAX;

    for (size_t i = n_waits; i-- > 0;) {
        int64_t over = over_of(&waits[i]);

        if (now_ns >= over && (waits[i].state == HELD || !cut_until_ns))
            (void)end_wait(i, true);
        else if (over < next)
            next = over;
    }
    return next;
}

void wait_forget(int listener) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == HELD && waits[i].listener == listener)
            drop_wait(i);
}

/* A wait that is being cut ends only by its stop, within microseconds. */
static void await_cut(void) {
    for (int ticks = 0; cut_until_ns && ticks < 100; ticks++) {
        for (size_t i = 0; i < n_waits; i++)
            if (waits[i].state == CUTTING &&
                timed_syscall_has_stopped(waits[i].event.thread, vtime_stopped) > 0)
                return;
        timed_syscall_pause();
    }
}

void vtime_release(void) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == HELD)
            hand_over(i);
    await_cut();
}

/* ---- snapshots of running processes (quiesce.c) ---- */

void wait_give_back(pid_t thread) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].event.thread == thread && waits[i].state == HELD)
            break_off(i);
}

void wait_forget_again(pid_t thread) {
    for (uint32_t i = n_again; i-- > 0;)
        if (again[i].wait.thread == (uint32_t)thread)
            forget_again(i);
}

uint32_t wait_count_again(void) {
    return n_again;
}

/* Without threads that are stopped or gone. */
uint32_t wait_count_left(void) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_again; i++)
        n += idle_is_on_its_way((pid_t)again[i].wait.thread);
    return n;
}

/* After an interruption these calls are restarted in full even here. Others continue the remaining
 * time, of which init is not notified. */
static bool is_done_again(const struct wait *w) {
    return wait_returns_rest(w);
}

uint32_t wait_tell(struct image_wait *to, uint32_t *ret_again) {
    uint32_t n = 0, n_given_back = *ret_again = n_again;

    for (; n < n_given_back; n++)
        to[n] = again[n].wait;
    for (size_t i = n_waits; i-- > 0;) {
        if (waits[i].state != KERNEL || waits[i].absolute || n == IMAGE_MAX_WAITS ||
            idle_is_on_its_way(waits[i].event.thread))
            continue;
        to[n++] = saved_wait(&waits[i]);
        if (is_done_again(&waits[i])) {
            (void)add_again(&waits[i], false);
            drop_wait(i);
        }
    }
    return n;
}

void wait_resume(const struct image_wait *from, uint32_t n) {
    for (n_again = 0; n_again < n; n_again++)
        again[n_again] = (struct again){ .wait = from[n_again] };
}

void vtime_settle(void) {
    await_cut();
}
