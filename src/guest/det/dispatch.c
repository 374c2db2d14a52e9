/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_seed and time_start: init answers system calls in place of the kernel.
 *
 * Just before it executes, each command installs a small seccomp program (policy/determinism.c)
 * that passes some system calls to a listener (seccomp user notification). Init holds the listener,
 * and receives the calls of that command's whole process tree and of no other. When a new program
 * makes the first call of its C library, init patches the process: the 16 bytes of AT_RANDOM, the
 * source of stack canaries, and the clocks of its vDSO (det/vdso_patch.c). After that init receives
 * only getrandom, forks, and raw calls that read a clock.
 *
 * Randomness: each process has a random stream of its own, whose state is one number. Each draw and
 * each fork replaces the state by another that follows from it. The state is kept in two resource
 * limits of the process that the kernel does not use: RSS has the state, and LOCKS has the pid that
 * it belongs to, so that a forked child is recognised. The kernel copies limits at a fork and keeps
 * them at execve, atomically. So streams follow the tree of forks and do not depend on scheduling.
 * Init stores nothing per process, and a guest that changes its own limits affects only its own
 * stream (the program refuses even that).
 *
 * Everything that is read from a guest is untrusted, and affects only that guest's random numbers
 * and clocks. Each call is answered in bounded time. Init writes only to memory that the guest may
 * write itself, or to a vDSO that is unmodified. A process is identified by the thread that waits
 * for the answer. A process that has made itself unreadable to init gets the kernel's own answers.
 */
#include "guest/det/det.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/code_write.h"
#include "guest/det/abs_timers.h"
#include "guest/det/file_times.h"
#include "guest/det/serial.h"
#include "guest/det/stream.h"
#include "guest/det/sysinfo.h"
#include "guest/det/sysv_ipc_times.h"
#include "guest/det/vtime.h"
#include "guest/state.h"
#include "guest/timed_syscall.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define USER_HZ 100 /* ticks per second, as programs see them */
#define CLOSE_RANGE_UNSHARE_FLAG 2u
#define CLONE_THREAD_FLAG 0x00010000
/* Limit in bytes of one answer: getrandom may return less than requested. */
#define MAX_DRAW 262144
#define MAX_HELD 256
#define FUTEX_SLICE_NS 2000000
#define SLEEP_TICK_NS 5000000
#define AGAIN_TICK_NS 1000000
#define AGAIN_NS 100000000ll

/* A call that is answered later: a wait until a time of day. */
struct held {
    uint64_t id;
    int64_t until_ns;   /* by the clock of clock_now_ns */
    int64_t next_ns;    /* time of the next check */
    int64_t signals_ns; /* and of the next check for signals, which takes longer */
    int listener;
    pid_t pid;
    bool futex;
    uint32_t expected; /* futex: the value of its word until it is woken */
    uint64_t word;
};

static struct held held[MAX_HELD];
static size_t n_held;
static uint64_t n_commands_begun;
static int64_t offset_ns; /* time of day minus the kernel's */

/* ---- new images ---- */

static void put_in_order(const struct plan *plan, const struct seccomp_notif *question) {
    pid_t pid = (pid_t)question->pid;
    uint64_t vdso, random;

    if (!process_read_auxv(pid, &vdso, &random) || !vdso_is_fresh(pid, vdso))
        return;
    if (plan->flags & PLAN_VIRTUAL) {
        vtime_executed(pid);
        file_times_settle();
    }
    uint64_t stat_after = file_times_executed(pid,
        question->data.nr == __NR_brk && !serial_is_on() ? question->data.instruction_pointer : 0);
    if (vdso_patch(pid, vdso, 0, stat_after) == 0 && plan->flags & PLAN_SEED)
        (void)stream_draw(plan->seed, pid, random, 16);
}

/* The seccomp program with an address in place of PLAN_LOADER_UNKNOWN; none: the plan's own is
 * used. */
/* The high half of addresses of the loader; no program without this knowledge uses it. */
#define LOADER_HIGH 0x7fff
static struct sock_filter learned[PLAN_MAX_QUESTIONS];
static bool has_learned;

/* Glibc's loader calls brk at its start, and later arch_prctl from this address. A program that was
 * patched at its brk needs no second handling there. The address is constant, because addresses are
 * not random and all programs have the same loader. */
static void learn_vdso(const struct plan *plan, uint64_t address) {
    const struct sock_filter *program = plan_items(plan, notify, struct sock_filter);

    /* With serial nothing is learned, because the program has no room for it. */
    if (has_learned || plan->flags & PLAN_SERIAL || plan->notify.n > PLAN_MAX_QUESTIONS ||
        address >> 32 != LOADER_HIGH)
        return;
    memcpy(learned, program, plan->notify.n * sizeof *program);
    for (uint32_t i = 0; i < plan->notify.n; i++)
        if (learned[i].code == (BPF_JMP | BPF_JEQ | BPF_K) && learned[i].k == PLAN_LOADER_UNKNOWN) {
            learned[i].k = (uint32_t)address;
            has_learned = true;
        }
}

/* ---- answers ---- */

/* All uptimes are one clock. CLOCK_MONOTONIC_RAW of a time namespace differs from it by as much as
 * the kernel's two clocks have drifted apart since boot. */
static int64_t read_uptime(void) {
    return clock_now_ns() + determinism_uptime_ahead_ns;
}

static int64_t now_of(clockid_t clock) {
    return clock == CLOCK_MONOTONIC_RAW ? read_uptime() : clock_ns(clock) + offset_ns;
}

static void answer_clock(int listener, const struct seccomp_notif *question) {
    clockid_t clock = question->data.nr == __NR_clock_gettime
                          ? (clockid_t)(int)question->data.args[0]
                          : CLOCK_REALTIME;
    uint64_t vdso;

    /* A call from the vDSO, if that cannot compute the time itself, passes: the patched code adds
     * the offset. So does a clock of alarms on a machine without one. */
    if ((process_vdso_of((pid_t)question->pid, &vdso) &&
            vdso_contains(vdso, question->data.instruction_pointer)) ||
        (clock == CLOCK_REALTIME_ALARM && sys_call2(__NR_clock_getres, clock, NULL) < 0))
        answer_let_pass(listener, question->id);
    else
        answer_time(listener, question, now_of(clock));
}

/* The kernel's result counts from the machine's boot. The CPU times of the process are the
 * kernel's. */
static void answer_times(int listener, const struct seccomp_notif *question) {
    uint64_t fields[DETERMINISM_STAT_FIELDS], to = question->data.args[0];
    pid_t pid = (pid_t)question->pid;

    if (!process_read_stat(pid, fields)) {
        answer_let_pass(listener, question->id);
        return;
    }
    long r =
        to ? process_write_memory(pid, to, fields + DETERMINISM_STAT_TIMES, sizeof(struct tms)) : 0;
    answer_written(listener, question->id, r, (long)(read_uptime() / (NS / USER_HZ)));
}

static void answer_random(
    const struct plan *plan, int listener, const struct seccomp_notif *question) {
    uint64_t length = question->data.args[1];
    uint32_t flags = (uint32_t)question->data.args[2];

    if (flags & ~7u || (flags & 6) == 6 || !length) { /* the kernel reports the error */
        answer_let_pass(listener, question->id);
        return;
    }
    long r = stream_draw(plan->seed, (pid_t)question->pid, question->data.args[0],
        length < MAX_DRAW ? (size_t)length : MAX_DRAW);
    answer_written(listener, question->id, r, r);
}

/* ---- waits until a time of day ---- */

/* A futex wait may return without a cause (futex(2)), which is no error: the caller checks its word
 * and waits again. */
static int broken_off(bool futex) {
    return futex ? 0 : -EINTR;
}

static void hold_question(int listener, const struct seccomp_notif *question) {
    bool futex = question->data.nr == __NR_futex;
    clockid_t clock = futex ? CLOCK_REALTIME : (clockid_t)(int)question->data.args[0];
    uint32_t expected = (uint32_t)question->data.args[2];
    int64_t time[2];
    long r = process_read_memory(
        (pid_t)question->pid, question->data.args[futex ? 3 : 2], time, sizeof time);

    if (r != (long)sizeof time || time[0] < 0 || time[1] < 0 || time[1] >= NS) {
        answer_let_pass(listener, question->id); /* the kernel reports the error */
        return;
    }
    int64_t left = time[0] > INT64_MAX / NS - 1 ? INT64_MAX / 2
                                                : time[0] * NS + time[1] - now_of(clock),
            now = clock_now_ns();
    if (futex) {
        uint32_t word;

        r = process_read_memory((pid_t)question->pid, question->data.args[0], &word, sizeof word);
        if (r != (long)sizeof word || word != expected) {
            answer_call(listener, question->id, 0, r < 0 ? (int)r : -EAGAIN);
            return;
        }
    }
    if (left <= 0 || n_held == MAX_HELD) {
        answer_call(listener, question->id, 0,
            left > 0 ? broken_off(futex)
            : futex  ? -ETIMEDOUT
                     : 0);
        return;
    }
    held[n_held++] = (struct held){ .id = question->id,
        .listener = listener,
        .pid = (pid_t)question->pid,
        .futex = futex,
        .expected = expected,
        .word = question->data.args[0],
        .until_ns = now > INT64_MAX - left ? INT64_MAX : now + left,
        .next_ns = now + (futex ? FUTEX_SLICE_NS : SLEEP_TICK_NS),
        .signals_ns = now + SLEEP_TICK_NS };
}

static bool has_signal(pid_t pid) {
    struct determinism_signals signals;

    return process_signals_of(pid, &signals) && signals.pending & ~signals.blocked;
}

/* Has the word changed? A process that wakes a futex changes its word first, because a thread that
 * is about to wait would miss the wake otherwise. */
static bool is_woken(const struct held *h) {
    uint32_t word;

    return process_read_memory(h->pid, h->word, &word, sizeof word) != (long)sizeof word ||
           word != h->expected;
}

/* A held wait is divided into slices. Wakers and signals do not reach a thread whose call is held,
 * so init looks for them. */
static bool is_over(struct held *h, int64_t now) {
    if (now >= h->until_ns) {
        answer_call(h->listener, h->id, 0, h->futex ? -ETIMEDOUT : 0);
        return true;
    }
    if (now < h->next_ns)
        return false;
    if (h->futex && is_woken(h)) {
        answer_call(h->listener, h->id, 0, 0);
        return true;
    }
    if (now >= h->signals_ns) {
        if (has_signal(h->pid)) {
            answer_call(h->listener, h->id, 0, -EINTR);
            return true;
        }
        h->signals_ns = now + SLEEP_TICK_NS;
    }
    h->next_ns = h->futex ? now + FUTEX_SLICE_NS : h->signals_ns;
    return ioctl(h->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &h->id) < 0;
}

void dispatch_release(const struct plan *plan) {
    serial_release(plan);
    vtime_release();
    abs_timers_settle();
    for (; n_held; n_held--)
        answer_call(
            held[n_held - 1].listener, held[n_held - 1].id, 0, broken_off(held[n_held - 1].futex));
}

void dispatch_give_back(pid_t thread) {
    wait_give_back(thread);
    for (size_t i = n_held; i-- > 0;)
        if (held[i].pid == thread) {
            answer_call(held[i].listener, held[i].id, 0, DETERMINISM_BROKEN_OFF);
            held[i] = held[--n_held];
        }
}

static void look_at_held(void) {
    int64_t now = n_held ? clock_now_ns() : 0;

    for (size_t i = n_held; i-- > 0;)
        if (is_over(&held[i], now))
            held[i] = held[--n_held];
}

void dispatch_stand(const struct plan *plan) {
    if (!(plan->flags & PLAN_VIRTUAL)) {
        dispatch_release(plan);
        return;
    }
    vtime_stand();
    vtime_settle();
}

bool dispatch_holds_surely(pid_t thread) {
    return wait_is_asking(thread) || serial_is_asking(thread);
}

/* ---- the loop ---- */

void dispatch_serve_question(
    const struct plan *plan, int listener, const struct seccomp_notif *question) {
    bool seeded = plan->flags & PLAN_SEED;

    if (plan->flags & PLAN_VIRTUAL && vtime_answer(listener, question))
        return;
    switch (question->data.nr) {
    case __NR_getrandom:
        if (seeded) {
            answer_random(plan, listener, question);
            return;
        }
        break;
    case __NR_clock_gettime:
    case __NR_gettimeofday:
    case __NR_time:
        answer_clock(listener, question);
        return;
    case __NR_times:
        answer_times(listener, question);
        return;
    case __NR_sysinfo:
        sysinfo_answer(listener, question);
        return;
    case __NR_clock_nanosleep:
    case __NR_futex:
        hold_question(listener, question);
        return;
    case __NR_timerfd_settime:
    case __NR_timer_settime:
        if (abs_timers_answer(listener, question, offset_ns))
            return;
        break;
    case __NR_fork:
    case __NR_vfork:
    case __NR_clone:
        if (seeded &&
            !(question->data.nr == __NR_clone && question->data.args[0] & CLONE_THREAD_FLAG))
            stream_advance(plan->seed, (pid_t)question->pid);
        if (question->data.nr == __NR_clone && question->data.args[0] == FORK_GLIBC_FLAGS)
            (void)fork_route((pid_t)question->pid, question->data.instruction_pointer);
        break;
    case __NR_brk:
        put_in_order(plan, question);
        break;
    case __NR_arch_prctl: /* with glibc's loader after brk, with other start-up code before it */
        if (vdso_is_known((pid_t)question->pid))
            learn_vdso(plan, question->data.instruction_pointer);
        else
            put_in_order(plan, question);
        break;
    default:
        if (file_times_answer(plan, listener, question) ||
            sysv_ipc_answer(plan, listener, question, offset_ns))
            return;
        break;
    }
    answer_let_pass(listener, question->id);
}

static void answer_one(const struct plan *plan, int listener) {
    struct seccomp_notif question = { 0 };

    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) < 0)
        return;
    /* The thread may have been killed, and its id may belong to another. */
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &question.id) < 0)
        return;
    if (plan->flags & PLAN_SERIAL)
        serial_ask(listener, &question);
    else
        dispatch_serve_question(plan, listener, &question);
}

size_t dispatch_poll(struct pollfd *events, int64_t *ret_until_ns) {
    int64_t serial = serial_next_ns();

    *ret_until_ns = vtime_next_ns();
    if (serial < *ret_until_ns)
        *ret_until_ns = serial;
    (void)listeners_fill(events);
    for (size_t i = 0; i < n_held; i++) {
        int64_t at = held[i].next_ns < held[i].until_ns ? held[i].next_ns : held[i].until_ns;

        if (at < *ret_until_ns)
            *ret_until_ns = at;
    }
    return listeners_n_fds;
}

static void forget_process(size_t i) {
    for (size_t j = n_held; j-- > 0;)
        if (held[j].listener == listeners_fds[i])
            held[j] = held[--n_held];
    vtime_forget(listeners_fds[i]);
    serial_forget(listeners_fds[i]);
    close(listeners_fds[i]);
    listeners_fds[i] = listeners_fds[--listeners_n_fds];
}

static void answer_all(const struct plan *plan, const struct pollfd *events, size_t n) {
    for (size_t i = n; i-- > 0;) {
        if (events[i].revents & POLLIN)
            answer_one(plan, listeners_fds[i]);
        else if (events[i].revents)
            forget_process(i); /* no process is left that could make calls */
    }
}

void dispatch_serve(const struct plan *plan, const struct pollfd *events, size_t n, bool quiet) {
    look_at_held();
    answer_all(plan, events, n);
    if (plan->flags & PLAN_SERIAL)
        serial_step(plan);
    if (plan->flags & PLAN_VIRTUAL && !quiesce_is())
        vtime_step(quiet);
}

void dispatch_await_waits(const struct plan *plan) {
    static struct pollfd events[DETERMINISM_MAX_LISTENERS];
    const struct timespec tick = { .tv_nsec = AGAIN_TICK_NS };
    const int64_t until_ns = clock_now_ns() + AGAIN_NS;

    while (wait_count_left() && clock_now_ns() < until_ns) {
        size_t n = listeners_fill(events);

        if (sys_call5(__NR_ppoll, events, n, &tick, NULL, 0) > 0)
            answer_all(plan, events, n);
    }
}

/* ---- commands ---- */

void dispatch_prepare(const struct plan *plan) {
    if (determinism_wanted(plan))
        (void)code_write_probe(-1); /* a failure here is repeated, and reported, in each sandbox */
    if (plan->flags & PLAN_CLOCK)
        file_times_find_out(plan);
}

uint64_t dispatch_last_stream(void) {
    return n_commands_begun - 1;
}

/* Starts the clocks, once. `before_ns`: the lead of the time of day where the restored processes
 * come from. */
static int begin_determinism(const struct plan *plan, int64_t ahead_ns, int64_t before_ns) {
    static bool is_begun;
    int r = 0;

    if (is_begun)
        return 0;
    if (plan->flags & PLAN_CLOCK && !(plan->flags & PLAN_VIRTUAL)) {
        offset_ns = ahead_ns;
        r = timed_syscall_begin();
    }
    if (plan->flags & PLAN_VIRTUAL)
        vtime_begin(plan);
    if (plan->flags & PLAN_SERIAL)
        serial_begin(dispatch_serve_question);
    if (r == 0 && plan->flags & PLAN_CLOCK)
        r = file_times_begin(plan, offset_ns, before_ns);
    if (r == 0)
        r = vdso_prepare(plan, offset_ns, file_times_bounds());
    is_begun = r == 0;
    return r;
}

/* Called for the first command. */
static int begin_now(const struct plan *plan) {
    /* Uses the coarse clock, which is behind by up to a tick, so that no clock shows a time before
     * the start. */
    int64_t ahead = plan->clock_seconds * NS + plan->clock_nanoseconds -
                    (now_of(CLOCK_REALTIME_COARSE) - offset_ns);

    return begin_determinism(plan, ahead, ahead);
}

int dispatch_begin(const struct plan *plan, struct determinism_start *start) {
    start->listener = -1;
    if (listeners_n_fds == DETERMINISM_MAX_LISTENERS)
        return -EAGAIN;
    int r = begin_now(plan);
    if (r < 0)
        return r;
    start->stream = stream_derive(plan->seed, n_commands_begun++, PURPOSE_COMMAND);
    start->listener = (int)sys_call3(__NR_fcntl, determinism_proc, F_DUPFD_CLOEXEC, 0);
    return start->listener < 0 ? start->listener : (int)sys_call1(__NR_close, start->listener);
}

int dispatch_enter(const struct plan *plan, const struct determinism_start *start) {
    const struct sock_filter *filter =
        has_learned ? learned : plan_items(plan, notify, struct sock_filter);
    struct stream stream = { .state = start->stream };
    int r = 0;

    r = (int)sys_call1(__NR_personality, DETERMINISM_NO_RANDOM_ADDRESSES);
    if (r >= 0 && plan->flags & PLAN_SEED)
        r = stream_store(0, &stream);
    if (r < 0)
        return r;
    int listener = listeners_enter_asked(filter, plan->notify.n);
    if (listener != start->listener)
        return listener < 0 ? listener : -EBADFD;
    return sys_close_range(~0u, ~0u, CLOSE_RANGE_UNSHARE_FLAG);
}

void dispatch_end(const struct determinism_start *start, const int *streams) {
    if (start->listener < 0)
        return;
    if (!streams) {
        close(start->listener); /* if it exists: the child may have been killed at any point */
        return;
    }
    (void)listeners_adopt(start->listener);
    vtime_started(start->listener, streams);
}

/* ---- snapshots of running processes (quiesce.c) ---- */

void dispatch_tell(const struct plan *plan, struct image_determinism *to) {
    to->flags = plan->flags & PLAN_VIRTUAL ? IMAGE_VIRTUAL : 0;
    to->n_commands = n_commands_begun;
    to->ahead_ns = offset_ns;
}

int dispatch_resume(
    const struct plan *plan, const struct image_determinism *from, int64_t ahead_ns) {
    n_commands_begun = from->n_commands;
    return begin_determinism(
        plan, clock_now_ns() + ahead_ns - now_of(CLOCK_REALTIME), from->ahead_ns);
}

int dispatch_begin_command(const struct plan *plan, const struct image_determinism *from) {
    int r = begin_now(plan);

    if (r < 0)
        return r;
    n_commands_begun = from->n_commands;
    if (plan->flags & PLAN_VIRTUAL)
        vtime_resume(from);
    return 0;
}

void dispatch_undo_command(const struct plan *plan) {
    n_commands_begun = 0;
    if (plan->flags & PLAN_VIRTUAL)
        vtime_resume(&(struct image_determinism){ 0 });
}
