/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits with a time-out, under a virtual clock. There are two ways to wait.
 *
 * A wait for the time alone (a sleep, a poll of nothing) is *held*: its question is answered when its time has come. Signals do not reach who waits like that, so init looks for them.
 *
 * A wait for something else as well is the *kernel's*: init notes it and lets the call pass, so descriptors, wakers and signals end it as they always do. When its time has come first, init cuts it short: it stops the thread (ptrace), makes the result
 * of its interrupted call that of a time-out, and lets go of it. CLOCK_MONOTONIC being far ahead of the kernel's (PLAN_VIRTUAL_UPTIME_S), absolute times are never reached there. The exception is futexes until a time of day, which may be long past for the
 * kernel: they are held, in slices, at the end of which the one who waits looks for itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/bounded.h"
#include "guest/command.h"
#include "guest/determinism.h"
#include "guest/virtual.h"
#include "sys/syscalls.h"

#define MAX_WAITS 4096
#define MAX_THREADS (1u << 22)          /* ids, by the kernel */
#define FUTEX_SLICE_NS 2000000
#define SIGNAL_TICK_NS 5000000          /* doubled each time, */
#define LAST_SIGNAL_TICK_NS 80000000
#define LOOKS_A_TICK 64
#define LOOKS_AT_REST 128
#define CUT_LIMIT_NS 100000000ll
#define SEIZE_LIMIT_US 10000
#define PURGE_TICK_NS 100000000ll
#define SHORT_NS 20000000ll             /* what waits less than this and sees no rest in that time is a hint to a scheduler: the clock does not move for it */
#define MAX_SET 8192                    /* bytes of a set of select's */
#define EVENT_STOP 128
#define FUTEX_WAITV_CALL 449
#define FUTEX_WAIT_CALL 455
#define RESTART_CALL 219

enum state { HELD, KERNEL, CUTTING };
enum form { MILLISECONDS, TIMESPEC, TIMEVAL };

struct wait {
    struct virtual_event event;
    uint64_t id;                /* held: the question */
    uint64_t arguments[6];
    int64_t due_ns;             /* by the real clock; INT64_MAX: the kernel knows */
    int64_t look_ns;            /* held: for signals, or the end of the slice */
    int64_t tick_ns;            /* from one such look to the next */
    int64_t length_ns;
    int listener;
    int result;                 /* of a time-out */
    uint16_t number;
    uint8_t state;              /* enum state */
    bool time_of_day;           /* the kernel's clock is another */
    bool absolute;
};

static const struct call {
    uint16_t number;
    uint8_t time;               /* which argument */
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
static uint64_t held[MAX_THREADS / 64];         /* whose calls are held, a bit for each: touched as it is needed */
static uint64_t alone[MAX_THREADS / 64];        /* and which of these have no other thread beside them */
static int64_t cut_until_ns, purged_ns;

static void mark(const struct wait *wait, bool is_held) {
    uint64_t thread = (uint64_t)wait->event.thread, bit = 1ull << thread % 64;

    if (wait->state != HELD || thread >= MAX_THREADS)
        return;
    held[thread / 64] = (held[thread / 64] & ~bit) | (is_held ? bit : 0);
    alone[thread / 64] &= ~bit;
}

static void drop(size_t i) {
    mark(&waits[i], false);
    waits[i] = waits[--n_waits];
}

static bool has_mark(const uint64_t *marks, pid_t thread) {
    return (uint64_t)thread < MAX_THREADS && marks[thread / 64] >> thread % 64 & 1;
}

bool wait_is_held(pid_t thread) {
    return has_mark(held, thread);
}

bool wait_is_held_alone(pid_t process) {
    return has_mark(alone, process);
}

void wait_set_alone(pid_t process) {
    alone[process / 64] |= 1ull << process % 64;
}

size_t wait_count(void) {
    return n_waits;
}

int virtual_parse_call(const char *text, uint64_t *ret_arguments) {
    char *at;

    if (*text < '0' || *text > '9')
        return -EAGAIN;
    int number = (int)strtoul(text, &at, 10);
    for (int i = 0; i < 6; i++)
        ret_arguments[i] = strtoul(at, &at, 16);
    return number;
}

static int call_of(pid_t thread, uint64_t *ret_arguments) {
    char text[256];
    int fd = determinism_open(thread, "/syscall", O_RDONLY);

    if (fd < 0)
        return fd;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return virtual_parse_call(text, ret_arguments);
}

/* ---- the beginning -------------------------------------------------------------------------------------------------- */

/* Whether a call waits for the time alone. */
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
        return !a[5] || (determinism_read((pid_t)question->pid, a[5], &mask, sizeof mask) == (long)sizeof mask && !mask);
    default:
        return false;
    }
}

/* The clock that an absolute time is by. False: it is relative. */
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

/* Whether the word of a futex is still what the caller takes it for: 0 or what the call is to return. */
static int check_word(pid_t pid, const uint64_t *a) {
    uint32_t word;
    long r = determinism_read(pid, a[0], &word, sizeof word);

    return r < 0 ? (int)r : r != (long)sizeof word ? -EFAULT : word == (uint32_t)a[2] ? 0 : -EAGAIN;
}

/* Fills in what a wait is. False: it is none of ours. */
static bool describe(const struct seccomp_notif *question, const struct call *call, struct wait *ret_wait) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t pid = (pid_t)question->pid;
    int64_t now = virtual_now(), base = 0, time;
    clockid_t clock;

    *ret_wait = (struct wait){ .event = virtual_event(pid, VIRTUAL_NEVER), .id = question->id, .arguments = { a[0], a[1], a[2], a[3], a[4], a[5] }, .result = call->result, .number = call->number };
    if (call->form == MILLISECONDS)
        time = (int64_t)(int)a[call->time] * 1000000;
    else if (!virtual_read_time(pid, a[call->time], call->form == TIMEVAL, &time))
        return false;
    ret_wait->absolute = clock_of(question, &clock);
    if (!virtual_base(clock, &base))
        return false;
    if (ret_wait->absolute) {
        int64_t monotonic;

        (void)virtual_base(CLOCK_MONOTONIC, &monotonic);
        ret_wait->time_of_day = base != monotonic;
        ret_wait->event.deadline = time - base < VIRTUAL_NEVER ? time - base : VIRTUAL_NEVER;
        ret_wait->length_ns = ret_wait->event.deadline > now ? ret_wait->event.deadline - now : 0;
    } else {
        ret_wait->length_ns = time < VIRTUAL_NEVER ? time : VIRTUAL_NEVER;
        ret_wait->event.deadline = virtual_after(ret_wait->length_ns);
    }
    ret_wait->state = is_sleep(question) || (call->number == __NR_futex && ret_wait->time_of_day) ? HELD : KERNEL;
    return ret_wait->length_ns || ret_wait->absolute;
}

/* Of threads whose waits have ended without a question since. */
static void purge(int64_t now) {
    uint64_t arguments[6];

    if (now < purged_ns)
        return;
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == KERNEL) {
            int number = call_of(waits[i].event.thread, arguments);
            if (number != waits[i].number && number != RESTART_CALL)
                drop(i);
        }
    purged_ns = init_now_ns() + PURGE_TICK_NS;
}

static void begin(int listener, const struct seccomp_notif *question, struct wait *wait) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    bool futex = wait->number == __NR_futex;
    int64_t now = init_now_ns(), length = wait->length_ns;

    for (size_t i = n_waits; i-- > 0;)          /* what it waited for before is over */
        if (waits[i].event.thread == wait->event.thread && waits[i].state != CUTTING)
            drop(i);
    if (futex && (wait->state == HELD || !length)) {
        int r = check_word(wait->event.thread, a);
        if (r < 0) {
            determinism_answer(listener, question->id, 0, r);
            return;
        }
    }
    if (wait->absolute && !length) {
        determinism_answer(listener, question->id, 0, wait->result);
        return;
    }
    /* By a clock that is not the virtual one it would end at once, or not at all; or it never ends by any. */
    if ((wait->time_of_day && wait->state == KERNEL) || wait->event.deadline == VIRTUAL_NEVER) {
        determinism_let_pass(listener, question->id);
        return;
    }
    if (n_waits == MAX_WAITS)
        purge(now);
    if (n_waits == MAX_WAITS) {
        /* Woken for nothing it asks again; what is relative the kernel can do. */
        if (wait->absolute)
            determinism_answer(listener, question->id, 0, futex ? -EAGAIN : -EINTR);
        else
            determinism_let_pass(listener, question->id);
        return;
    }
    wait->listener = listener;
    wait->tick_ns = futex ? FUTEX_SLICE_NS : SIGNAL_TICK_NS;
    wait->look_ns = now + wait->tick_ns;
    wait->due_ns = wait->state == KERNEL && !wait->absolute ? INT64_MAX : now + length + (length < SHORT_NS && futex ? 0 : VIRTUAL_GRACE_NS);
    waits[n_waits++] = *wait;
    mark(wait, true);
    if (wait->state == KERNEL)
        determinism_let_pass(listener, question->id);
}

bool wait_answer(int listener, const struct seccomp_notif *question) {
    struct wait wait;

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (calls[i].number != question->data.nr)
            continue;
        if (describe(question, &calls[i], &wait))
            begin(listener, question, &wait);
        else
            determinism_let_pass(listener, question->id);       /* the kernel says what is wrong with it */
        return true;
    }
    return false;
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

/* Still in that call: one with another time-out, or none, is another. */
static bool is_there(const struct wait *wait) {
    uint64_t arguments[6];
    int number = call_of(wait->event.thread, arguments);
    bool same = number == wait->number || number == RESTART_CALL;

    for (int i = 0; same && i < 6; i++)
        same = arguments[i] == wait->arguments[i];
    return same;
}

static void answer(size_t i, int result) {
    determinism_answer(waits[i].listener, waits[i].id, 0, result);
    drop(i);
}

/* To the kernel, as if we had not held it. */
static void hand_over(size_t i) {
    struct wait *w = &waits[i];

    if (w->time_of_day) {
        answer(i, w->number == __NR_futex ? -EAGAIN : -EINTR);
        return;
    }
    mark(w, false);
    w->state = KERNEL;
    if (!w->absolute)
        w->due_ns = INT64_MAX;
    determinism_let_pass(w->listener, w->id);
}

/* The thread is stopped; the rest is done when that is told (virtual_stopped). One that has a tracer of its own, or whose process is in an execve, waits in real time; of what the kernel would never end we try that again. */
static bool cut(size_t i) {
    pid_t thread = waits[i].event.thread;

    if (bounded_call(__NR_ptrace, PTRACE_SEIZE, (uint64_t)thread, 0, 0, SEIZE_LIMIT_US) < 0 || sys_call4(__NR_ptrace, PTRACE_INTERRUPT, thread, NULL, NULL) < 0) {
        waits[i].event.deadline = VIRTUAL_NEVER;
        waits[i].due_ns = waits[i].absolute ? init_now_ns() + VIRTUAL_GRACE_NS : INT64_MAX;
        return false;
    }
    waits[i].state = CUTTING;
    cut_until_ns = init_now_ns() + CUT_LIMIT_NS;
    return true;
}

/* False: it was over already, or cannot be ended. */
static bool end(size_t i, bool moves_clock) {
    struct wait *w = &waits[i];
    int64_t deadline = w->event.deadline;
    bool ended;

    if (w->state == HELD ? ioctl(w->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &w->id) < 0 : !is_there(w)) {
        drop(i);
        return false;
    }
    ended = w->state == HELD || cut(i);
    if (ended && moves_clock)
        virtual_reach(deadline);
    if (ended && w->state == HELD)
        answer(i, w->result);
    return ended;
}

/* A call of select's that times out leaves nothing in its sets and in its time. */
static void clear_sets(pid_t pid, const struct user_regs_struct *registers) {
    static const char nothing[MAX_SET];
    unsigned long long sets[] = { registers->rsi, registers->rdx, registers->r10 };
    size_t length = ((registers->rdi & 0x7fffffff) + 63) / 64 * 8;

    for (size_t i = 0; i < 3; i++)
        if (sets[i])
            (void)determinism_write(pid, sets[i], nothing, length < MAX_SET ? length : MAX_SET);
    if (registers->r8)
        (void)determinism_write(pid, registers->r8, nothing, 16);
}

/* Interrupted: the kernel would do the call again, or say so. */
static bool is_interrupted(long long result) {
    return result == -EINTR || (result <= -512 && result >= -516);
}

static void finish_cut(const struct wait *wait) {
    struct user_regs_struct registers;
    pid_t thread = wait->event.thread;

    if (sys_call4(__NR_ptrace, PTRACE_GETREGS, thread, NULL, &registers) < 0 || !is_interrupted((long long)registers.rax))
        return;
    if ((long long)registers.orig_rax != wait->number && registers.orig_rax != RESTART_CALL)
        return;
    if (wait->number == __NR_select || wait->number == __NR_pselect6)
        clear_sets(thread, &registers);
    registers.rax = (unsigned long long)wait->result;
    registers.orig_rax = (unsigned long long)-1;        /* so that it is not done again */
    (void)sys_call4(__NR_ptrace, PTRACE_SETREGS, thread, NULL, &registers);
}

bool virtual_stopped(pid_t thread, int status) {
    for (size_t i = 0; i < n_waits; i++) {
        if (waits[i].event.thread != thread || waits[i].state != CUTTING)
            continue;
        cut_until_ns = 0;
        virtual_disturb();
        if (status >> 16 != EVENT_STOP) {               /* a signal came first: it gets that */
            drop(i);
            return false;
        }
        finish_cut(&waits[i]);
        drop(i);
        (void)sys_call4(__NR_ptrace, PTRACE_DETACH, thread, NULL, NULL);
        return true;
    }
    return false;
}

int64_t wait_cutting_until(void) {
    return cut_until_ns;
}

static void give_up_cutting(void) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == CUTTING)
            drop(i);
    cut_until_ns = 0;
}

/* ---- whose turn it is ----------------------------------------------------------------------------------------------- */

int64_t wait_earliest(void) {
    int64_t earliest = VIRTUAL_NEVER;

    for (size_t i = 0; i < n_waits; i++)
        if (waits[i].state != CUTTING && waits[i].event.deadline < earliest)
            earliest = waits[i].event.deadline;
    return earliest;
}

bool wait_first(int64_t until, struct virtual_event *ret_event) {
    bool found = false;

    for (size_t i = 0; i < n_waits; i++)
        if (waits[i].state != CUTTING && waits[i].event.deadline <= until && (!found || virtual_is_before(&waits[i].event, &waits[first].event))) {
            first = i;
            found = true;
        }
    if (found)
        *ret_event = waits[first].event;
    return found;
}

bool wait_end_first(void) {
    return end(first, true);
}

/* Signals that its thread would be interrupted by: an end of a sleep; what only stops it is the kernel's to do. True if it is held no more. */
static bool end_for_signal(size_t i) {
    struct wait *w = &waits[i];
    struct determinism_signals signals;

    if (ioctl(w->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &w->id) < 0) {
        drop(i);
        return true;
    }
    if (w->number == __NR_futex) {
        int r = check_word(w->event.thread, w->arguments);
        if (r < 0)
            answer(i, r);
        return r < 0;
    }
    if (!determinism_signals_of(w->event.thread, &signals) || !(signals.pending & ~signals.blocked))
        return false;
    if (!(signals.pending & ~signals.blocked & signals.caught)) {
        hand_over(i);
        return true;
    }
    int64_t left = w->event.deadline - virtual_now();
    uint64_t rest = w->number == __NR_nanosleep ? w->arguments[1] : w->number == __NR_clock_nanosleep && !w->absolute ? w->arguments[3] : 0;
    if (rest)
        (void)virtual_write_time(w->event.thread, rest, false, left > 0 ? left : 0);
    answer(i, -EINTR);
    return true;
}

/* With a great many of them the rest has its turn next time. */
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

int64_t wait_look(int64_t now_ns) {
    int64_t next = INT64_MAX, crowd = 1 + (int64_t)n_waits / LOOKS_A_TICK;
    unsigned looks = 0;

    if (cut_until_ns && now_ns >= cut_until_ns)
        give_up_cutting();
    for (size_t i = n_waits; i-- > 0;) {
        struct wait *w = &waits[i];

        if (now_ns >= w->due_ns && (w->state == HELD || (w->state == KERNEL && !cut_until_ns))) {
            (void)end(i, w->length_ns >= SHORT_NS);
            continue;
        }
        if (w->state == HELD && now_ns >= w->look_ns && looks < LOOKS_A_TICK) {
            looks++;
            if (end_for_signal(i))
                continue;
            if (w->number == __NR_futex) {      /* a waker need not have changed the word */
                answer(i, -EAGAIN);
                continue;
            }
            w->look_ns = now_ns + w->tick_ns * crowd;
            w->tick_ns = w->tick_ns < LAST_SIGNAL_TICK_NS ? w->tick_ns * 2 : w->tick_ns;
        }
        if (w->state != CUTTING && w->due_ns < next)
            next = w->due_ns;
        if (w->state == HELD && w->look_ns < next)
            next = w->look_ns;
    }
    return next;
}

void virtual_forget(int listener) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == HELD && waits[i].listener == listener)
            drop(i);
}

/* What is being cut has no other end but its stop, which is a matter of microseconds. */
static void await_cut(void) {
    struct timespec tick;

    for (int ticks = 0; cut_until_ns && ticks < 100; ticks++) {
        for (size_t i = 0; i < n_waits; i++) {
            pid_t thread = waits[i].event.thread;
            siginfo_t stopped = { 0 };

            if (waits[i].state != CUTTING || sys_call5(__NR_waitid, P_PID, thread, &stopped, WSTOPPED | WNOHANG | __WALL, NULL) < 0 || !stopped.si_pid)
                continue;
            if (!virtual_stopped(thread, stopped.si_status << 8))
                (void)sys_call4(__NR_ptrace, PTRACE_DETACH, thread, NULL, stopped.si_status >> 8 ? 0 : stopped.si_status);
            return;
        }
        tick = (struct timespec){ .tv_nsec = 100000 };
        (void)sys_call5(__NR_ppoll, NULL, 0, &tick, NULL, 0);
    }
}

void virtual_release(void) {
    for (size_t i = n_waits; i-- > 0;)
        if (waits[i].state == HELD)
            hand_over(i);
    await_cut();
}
