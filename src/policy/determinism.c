/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts that random_seed and time_start add to a plan: a second, small seccomp program whose
 * verdict is "ask init", and the contents of files that replace the kernel's sources of randomness.
 *
 * Each command installs the program below the plan's own filter, just before it executes. The
 * stricter verdict of two filters applies, so this program cannot permit a call that the other
 * refuses. It allows everything that it does not name, foreign architectures included: the other
 * filter kills those.
 */
#include "policy/determinism.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/futex.h>
#include <linux/msg.h>
#include <linux/seccomp.h>
#include <linux/sem.h>
#include <linux/shm.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/chacha.h"
#include "policy/plan.h"

/* The purposes of derived bytes. Those below 16 are in guest/det/dispatch.c. */

#if defined(__x86_64__)

#    define ARGUMENT(i)                                                                            \
        ((uint32_t)offsetof(struct seccomp_data, args) + 8u * (i)) /* its low half */
#    define ARCH_SET_FS_CODE 0x1002u
#    define CLONE_THREAD_FLAG 0x00010000u
#    define FUTEX_WAITV_NUMBER 449 /* newer than the headers */
#    define FUTEX_WAIT_NUMBER 455
#    define PIDFD_GETFD_NUMBER 438

/* Clocks at the real rate: those of the time of day, and one with a time of its own. */
static const uint32_t clocks[] = { CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI,
    CLOCK_REALTIME_ALARM, CLOCK_MONOTONIC_RAW };

#    define MAX_CALLS 96
#    define MAX_OF_CALLS 256 /* instructions */
#    define MAX_JUMPS 256    /* to verdicts */
#    define MAX_LEAF 3
#    define N_NUMBERS 463 /* of system calls, that the kernel tries */

/* Where a branch goes: on to the next instruction, over so many, or to a verdict. These are at the
 * program's end, once each: it is compiled for each command, and that takes the longer the more
 * there is of it. */
enum {
    NEXT,
    FIRST_VERDICT = 0x80,
    ALLOW = FIRST_VERDICT,
    ASK,
    FORGED,
    NO_RIGHT,
    NO_ENTRY,
    OTHERWISE,
    N_VERDICTS = OTHERWISE - FIRST_VERDICT
};

static const uint32_t verdicts[N_VERDICTS] = {
    [ALLOW - FIRST_VERDICT] = SECCOMP_RET_ALLOW,
    [ASK - FIRST_VERDICT] = SECCOMP_RET_USER_NOTIF,
    [FORGED - FIRST_VERDICT] = SECCOMP_RET_ERRNO | 0, /* returns 0 and does nothing */
    [NO_RIGHT - FIRST_VERDICT] = SECCOMP_RET_ERRNO | EPERM,
    [NO_ENTRY - FIRST_VERDICT] = SECCOMP_RET_ERRNO | ENOENT,
};

struct program {
    struct sock_filter *instructions;
    size_t n, capacity;
    struct jump {
        size_t from;
        bool if_true;
        unsigned verdict;
    } jumps[MAX_JUMPS];
    size_t n_jumps;
};

/* The actions for calls: their instructions, and the calls of each. Without instructions the action
 * is a verdict. */
struct calls {
    struct sock_filter instructions[MAX_OF_CALLS];
    size_t n_instructions;
    struct call {
        unsigned first, last, verdict;
        size_t at, length, from;
    } calls[MAX_CALLS]; /* by their numbers; `from`: where the tree has the jump to their
                           instructions */
    size_t n;
    unsigned otherwise; /* the verdict for calls that are not named: ALLOW or ASK */
};

static void emit_instruction(
    struct calls *c, unsigned code, unsigned if_true, unsigned if_false, uint32_t k) {
    if (c->n_instructions < MAX_OF_CALLS)
        c->instructions[c->n_instructions] = (struct sock_filter){ (uint16_t)code,
            (uint8_t)(if_true == OTHERWISE ? c->otherwise : if_true),
            (uint8_t)(if_false == OTHERWISE ? c->otherwise : if_false), k };
    c->n_instructions++;
}

static void load_field(struct calls *c, uint32_t offset) {
    emit_instruction(c, BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void add_call(struct calls *c, const struct call *call) {
    size_t i = c->n;

    if (c->n == MAX_CALLS) {
        c->n_instructions = MAX_OF_CALLS; /* there is no room */
        return;
    }
    for (; i > 0 && c->calls[i - 1].first > call->first; i--)
        c->calls[i] = c->calls[i - 1];
    c->calls[i] = *call;
    c->n++;
}

/* The next `length` instructions are for this call alone; they must end with a verdict in either
 * case. A holds the call's number before. */
static void emit_call(struct calls *c, unsigned number, unsigned length) {
    add_call(c, &(struct call){
                    .first = number, .last = number, .at = c->n_instructions, .length = length });
}

static void add_always(struct calls *c, unsigned number, unsigned verdict) {
    add_call(c, &(struct call){ .first = number, .last = number, .verdict = verdict });
}

static void add_notify(struct calls *c, unsigned number) {
    add_always(c, number, ASK);
}

/* The verdict on the call if an argument is `value`. */
static void if_equal(
    struct calls *c, unsigned number, unsigned argument, uint32_t value, unsigned verdict) {
    emit_call(c, number, 2);
    load_field(c, ARGUMENT(argument));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, verdict, ALLOW, value);
}

/* Returns the verdict if an argument is one of the values, else the verdict for calls that are not
 * named; in n + 1 instructions. */
static void if_any(
    struct calls *c, unsigned argument, const uint32_t *values, size_t n, unsigned verdict) {
    load_field(c, ARGUMENT(argument));
    for (size_t i = 0; i < n; i++)
        emit_instruction(
            c, BPF_JMP | BPF_JEQ | BPF_K, verdict, i + 1 < n ? NEXT : OTHERWISE, values[i]);
}

static void ask_if_any(
    struct calls *c, unsigned number, unsigned argument, const uint32_t *values, size_t n) {
    emit_call(c, number, (unsigned)n + 1);
    if_any(c, argument, values, n, ASK);
}

/* One verdict if an argument, 64 bits wide, is `value`, another if not; in four instructions. */
static void compare_argument(
    struct calls *c, unsigned argument, uint64_t value, unsigned if_equal, unsigned if_not) {
    load_field(c, ARGUMENT(argument));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, NEXT, if_not, (uint32_t)value);
    load_field(c, ARGUMENT(argument) + 4);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, if_equal, if_not, (uint32_t)(value >> 32));
}

/* The state of a process's random stream is stored in two resource limits that the kernel does not
 * use. So setting them has no effect. */
static void guard_limits(struct calls *c) {
    emit_call(c, __NR_setrlimit, 3);
    load_field(c, ARGUMENT(0));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, FORGED, NEXT, RLIMIT_RSS);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, FORGED, ALLOW, RLIMIT_LOCKS);
    emit_call(c, __NR_prlimit64, 7);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, 1, NEXT, RLIMIT_RSS);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, NEXT, ALLOW, RLIMIT_LOCKS);
    compare_argument(c, 2, 0, ALLOW, FORGED); /* without a new value, the call only reads */
}

/* The thread pointer is set once in an image. If the loader has asked for the break before, init
 * knows the image already. (With serial, each call is a turn.) */
static void ask_arch_prctl(struct calls *c, enum determinism_clock clock) {
    bool is_asked_before = clock == DETERMINISM_CLOCK_OFFSET || clock == DETERMINISM_CLOCK_VIRTUAL;

    emit_call(c, __NR_arch_prctl, is_asked_before ? 4 : 2);
    if (is_asked_before) {
        load_field(c, offsetof(struct seccomp_data, instruction_pointer));
        emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, ALLOW, NEXT, PLAN_LOADER_UNKNOWN);
    }
    load_field(c, ARGUMENT(0));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, ASK, ALLOW, ARCH_SET_FS_CODE);
}

static void filter_seed(struct calls *c) {
    add_notify(c, __NR_getrandom);
    add_notify(c, __NR_fork);
    add_notify(c, __NR_vfork);
    emit_call(c, __NR_clone, 2);
    load_field(c, ARGUMENT(0));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, ALLOW, ASK, CLONE_THREAD_FLAG);
    guard_limits(c);
}

/* Asks if an argument has any of these bits. */
static void ask_if_set(struct calls *c, unsigned number, unsigned argument, uint32_t bits) {
    emit_call(c, number, 2);
    load_field(c, ARGUMENT(argument));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, ASK, ALLOW, bits);
}

/* Asks, except for calls of the patched vDSO, which are marked by a sixth argument. */
static void ask_newfstatat(struct calls *c) {
    emit_call(c, __NR_newfstatat, 4);
    compare_argument(c, 5, PLAN_STAT_UNASKED, ALLOW, ASK);
}

/* Asks for timers with an absolute time of day (timer_settime). */
static void ask_timer(struct calls *c) {
    emit_call(c, __NR_timer_settime, 6);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, NEXT, ALLOW, TIMER_ABSTIME);
    compare_argument(c, 5, PLAN_SETTIME_UNASKED, ALLOW, ASK);
}

static void filter_clock(struct calls *c) {
    add_notify(c, __NR_gettimeofday);
    add_notify(c, __NR_time);
    add_notify(c, __NR_times);
    ask_if_any(c, __NR_clock_gettime, 0, clocks, sizeof clocks / sizeof clocks[0]);
    /* Waits until a time of day. */
    emit_call(c, __NR_clock_nanosleep, 5);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, NEXT, ALLOW, TIMER_ABSTIME);
    load_field(c, ARGUMENT(0));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, ASK, NEXT, CLOCK_REALTIME);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, ASK, ALLOW, CLOCK_TAI);
    ask_if_set(c, __NR_timerfd_settime, 1, TIMER_ABSTIME);
    ask_timer(c);
    /* Init's, for that; the policy's filter leaves it to it. */
    add_always(c, PIDFD_GETFD_NUMBER, NO_RIGHT);
    emit_call(c, __NR_futex, 8);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, NEXT, ALLOW, FUTEX_CLOCK_REALTIME);
    emit_instruction(c, BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x7f);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, NEXT, ALLOW, FUTEX_WAIT_BITSET);
    compare_argument(c, 3, 0, ALLOW, ASK);
}

/* Asks if the low half of an argument, taken as an int, is above zero. */
static void ask_if_positive(struct calls *c, unsigned number, unsigned argument) {
    emit_call(c, number, 3);
    load_field(c, ARGUMENT(argument));
    emit_instruction(c, BPF_JMP | BPF_JSET | BPF_K, ALLOW, NEXT, 0x80000000u);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, ALLOW, ASK, 0);
}

/* Asks if an argument is not NULL. */
static void ask_if_pointer(struct calls *c, unsigned number, unsigned argument) {
    emit_call(c, number, 4);
    compare_argument(c, argument, 0, ALLOW, ASK);
}

/* Calls that read time stamps of files, or set them to a given time. */
static void filter_stamps(struct calls *c) {
    static const unsigned asked[] = { __NR_stat, __NR_fstat, __NR_lstat, __NR_statx };

    ask_newfstatat(c);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        add_notify(c, asked[i]);
    ask_if_pointer(c, __NR_utimensat, 2);
    ask_if_pointer(c, __NR_utimes, 1);
    ask_if_pointer(c, __NR_utime, 1);
    ask_if_pointer(c, __NR_futimesat, 2);
}

/* Calls that change files: new stamps must be seen before the clock advances. */
static void filter_changes(struct calls *c) {
    static const unsigned asked[] = {
        __NR_stat,
        __NR_fstat,
        __NR_lstat,
        __NR_statx,
        __NR_utimensat,
        __NR_utimes,
        __NR_utime,
        __NR_futimesat,
        __NR_creat,
        __NR_openat2,
        __NR_truncate,
        __NR_mkdir,
        __NR_mkdirat,
        __NR_mknod,
        __NR_mknodat,
        __NR_unlink,
        __NR_unlinkat,
        __NR_rmdir,
        __NR_symlink,
        __NR_symlinkat,
        __NR_link,
        __NR_linkat,
        __NR_rename,
        __NR_renameat,
        __NR_renameat2,
    };

    ask_newfstatat(c);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        add_notify(c, asked[i]);
    ask_if_set(c, __NR_openat, 2, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
    ask_if_set(c, __NR_open, 1, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
}

/* Calls that return the time, and calls that wait with a time-out. Waits without a time-out do not
 * depend on the clock. */
static void filter_virtual(struct calls *c) {
    static const unsigned asked[] = {
        __NR_clock_gettime, __NR_gettimeofday, __NR_time, __NR_times, __NR_getrusage, __NR_sysinfo,
        __NR_nanosleep, __NR_clock_nanosleep, __NR_alarm, __NR_timer_create, __NR_timer_settime,
        __NR_timer_gettime, __NR_timer_getoverrun, __NR_timer_delete, __NR_timerfd_create,
        __NR_timerfd_settime, __NR_timerfd_gettime,
        __NR_restart_syscall, /* of a call that was held */
    };

    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        add_notify(c, asked[i]);
    /* For init, which inspects terminals; the policy's filter permits it only to init. */
    add_always(c, PIDFD_GETFD_NUMBER, NO_RIGHT);
    /* Programs see the alarm clocks whether the machine has them or not. */
    ask_if_any(c, __NR_clock_getres, 0,
        (const uint32_t[]){ CLOCK_REALTIME_ALARM, CLOCK_BOOTTIME_ALARM }, 2);
    if_equal(c, __NR_setitimer, 0, 0 /* ITIMER_REAL */, ASK);
    if_equal(c, __NR_getitimer, 0, 0, ASK);
    ask_if_positive(c, __NR_poll, 2);
    ask_if_positive(c, __NR_epoll_wait, 3);
    ask_if_positive(c, __NR_epoll_pwait, 3);
    ask_if_pointer(c, __NR_epoll_pwait2, 3);
    ask_if_pointer(c, __NR_ppoll, 2);
    ask_if_pointer(c, __NR_select, 4);
    ask_if_pointer(c, __NR_pselect6, 4);
    ask_if_pointer(c, __NR_rt_sigtimedwait, 2);
    ask_if_pointer(c, __NR_semtimedop, 3);
    ask_if_pointer(c, FUTEX_WAITV_NUMBER, 3);
    ask_if_pointer(c, FUTEX_WAIT_NUMBER, 4);
    emit_call(c, __NR_futex, 8);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x7f);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, 1, NEXT, FUTEX_WAIT);
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, NEXT, ALLOW, FUTEX_WAIT_BITSET);
    compare_argument(c, 3, 0, ALLOW, ASK);
}

/* Calls that read the times of System V objects. */
static void filter_ipc(struct calls *c) {
    ask_if_any(c, __NR_shmctl, 1, (const uint32_t[]){ IPC_STAT, SHM_STAT, SHM_STAT_ANY }, 3);
    ask_if_any(c, __NR_msgctl, 1, (const uint32_t[]){ IPC_STAT, MSG_STAT, MSG_STAT_ANY }, 3);
    ask_if_any(c, __NR_semctl, 2, (const uint32_t[]){ IPC_STAT, SEM_STAT, SEM_STAT_ANY }, 3);
}

/* The time of arrival of a packet is the kernel's time. So packets get no time stamp: requests for
 * stamps have no effect. */
static void filter_packets(struct calls *c) {
    static const uint32_t options[] = { SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SO_TIMESTAMPING_OLD,
        SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW };
    static const uint32_t requests[] = { SIOCGSTAMP_OLD, SIOCGSTAMPNS_OLD, (uint32_t)SIOCGSTAMP_NEW,
        (uint32_t)SIOCGSTAMPNS_NEW };
    const unsigned n_options = sizeof options / sizeof options[0],
                   n_requests = sizeof requests / sizeof requests[0];

    emit_call(c, __NR_setsockopt, n_options + 3);
    load_field(c, ARGUMENT(1));
    emit_instruction(c, BPF_JMP | BPF_JEQ | BPF_K, NEXT, OTHERWISE, SOL_SOCKET);
    if_any(c, 2, options, n_options, FORGED);
    emit_call(c, __NR_ioctl, n_requests + 1);
    if_any(c, 1, requests, n_requests, NO_ENTRY);
}

/* All calls that can affect another thread or be affected by one: all but a few. A new thread asks
 * before it does anything of its own (set_robust_list, rt_sigprocmask), so these calls are not
 * excepted. */
static void filter_serial(struct calls *c) {
    static const unsigned alone[] = {
        __NR_rt_sigreturn,
        __NR_restart_syscall,
        __NR_getpid,
        __NR_gettid,
        __NR_getuid,
        __NR_geteuid,
        __NR_getgid,
        __NR_getegid,
        __NR_getresuid,
        __NR_getresgid,
        __NR_getgroups,
        __NR_getpgrp,
        __NR_rt_sigaction,
        __NR_sigaltstack,
        __NR_uname,
        __NR_mprotect,
        __NR_madvise,
        __NR_getrlimit,
        __NR_sched_getparam,
        __NR_sched_getscheduler,
        __NR_membarrier,
    };

    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        add_always(c, alone[i], ALLOW);
    /* The sandbox sees one CPU. */
    add_always(c, __NR_sched_setaffinity, FORGED);
}

static void put_instruction(
    struct program *p, unsigned code, unsigned jt, unsigned jf, uint32_t k) {
    if (p->n < p->capacity)
        p->instructions[p->n] = (struct sock_filter){ (uint16_t)code, (uint8_t)jt, (uint8_t)jf, k };
    p->n++;
}

/* A branch of the next instruction. */
static void jump_to(struct program *p, bool if_true, unsigned verdict) {
    if (p->n_jumps == MAX_JUMPS)
        p->n += p->capacity; /* there is no room */
    else
        p->jumps[p->n_jumps++] = (struct jump){ p->n, if_true, verdict };
}

/* Jumps are as long as a program is that has room: at most 256. */
static void jump_here(struct program *p, size_t from, bool if_true) {
    if (p->n - from - 1 > UINT8_MAX)
        p->n += p->capacity;
    else if (from < p->capacity && if_true)
        p->instructions[from].jt = (uint8_t)(p->n - from - 1);
    else if (from < p->capacity)
        p->instructions[from].jf = (uint8_t)(p->n - from - 1);
}

/* Excludes calls of init's own code before a command's execve. After the execve, calls that the
 * policy's filter leaves to init are excluded too. */
static void skip_init(struct program *p) {
    put_instruction(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    jump_to(p, true, NO_RIGHT);
    put_instruction(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, PIDFD_GETFD_NUMBER);
    put_instruction(
        p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, instruction_pointer) + 4);
    put_instruction(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0);
    put_instruction(
        p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, instruction_pointer));
    jump_to(p, false, ALLOW);
    put_instruction(p, BPF_JMP | BPF_JGE | BPF_K, 0, 0, PLAN_PROGRAMS_FROM);
}

static bool are_alike(const struct calls *c, const struct call *a, const struct call *b) {
    return a->length == b->length && a->verdict == b->verdict &&
           !memcmp(c->instructions + a->at, c->instructions + b->at,
               a->length * sizeof c->instructions[0]);
}

/* Merges neighbouring calls that have the same verdict for all arguments. */
static void merge_calls(struct calls *c) {
    size_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (n && c->calls[n - 1].last + 1 == c->calls[i].first && !c->calls[i].length &&
            are_alike(c, &c->calls[n - 1], &c->calls[i]))
            c->calls[n - 1].last = c->calls[i].last;
        else
            c->calls[n++] = c->calls[i];
    }
    c->n = n;
}

/* A tree over the call's number, which is in A: of calls[low..high), for numbers from `first` up to
 * `end`. The kernel runs it for each number when it is installed, so that each half has half of
 * these; and again at each call that is not always allowed. */
static void search_calls(
    struct program *p, struct calls *c, size_t low, size_t high, unsigned first, unsigned end) {
    if (high - low > MAX_LEAF) {
        size_t middle = low + 1, from = p->n;

        while (middle + 1 < high && c->calls[middle].first - first < end - c->calls[middle].first)
            middle++;
        unsigned cut = c->calls[middle].first;
        put_instruction(p, BPF_JMP | BPF_JGE | BPF_K, 0, 0, cut);
        search_calls(p, c, low, middle, first, cut);
        jump_here(p, from, true);
        search_calls(p, c, middle, high, cut, end);
        return;
    }
    for (struct call *call = c->calls + low; call < c->calls + high; call++) {
        bool is_last = call + 1 == c->calls + high, is_range = call->last != call->first;

        if (is_range && is_last)
            jump_to(p, true, c->otherwise);
        if (is_range)
            put_instruction(p, BPF_JMP | BPF_JGE | BPF_K, !is_last, 0, call->last + 1);
        call->from = p->n;
        if (!call->length)
            jump_to(p, true, call->verdict);
        if (is_last)
            jump_to(p, false, c->otherwise);
        put_instruction(p, BPF_JMP | (is_range ? BPF_JGE : BPF_JEQ) | BPF_K, 0, 0, call->first);
    }
}

/* The actions follow, once for all calls with the same action. */
static void put_calls(struct program *p, const struct calls *c) {
    for (size_t i = 0; i < c->n; i++) {
        const struct call *call = &c->calls[i];
        bool is_done = !call->length;

        for (size_t j = 0; j < i && !is_done; j++)
            is_done = are_alike(c, call, &c->calls[j]);
        if (is_done)
            continue;
        for (size_t j = i; j < c->n; j++)
            if (are_alike(c, call, &c->calls[j]))
                jump_here(p, c->calls[j].from, true);
        for (const struct sock_filter *one = c->instructions + call->at;
             one < c->instructions + call->at + call->length; one++) {
            if (one->jt >= FIRST_VERDICT)
                jump_to(p, true, one->jt);
            if (one->jf >= FIRST_VERDICT)
                jump_to(p, false, one->jf);
            put_instruction(p, one->code, one->jt, one->jf, one->k);
        }
    }
}

static void put_verdicts(struct program *p) {
    for (unsigned verdict = FIRST_VERDICT; verdict < FIRST_VERDICT + N_VERDICTS; verdict++) {
        bool is_used = false;

        for (size_t i = 0; i < p->n_jumps; i++)
            if (p->jumps[i].verdict == verdict) {
                jump_here(p, p->jumps[i].from, p->jumps[i].if_true);
                is_used = true;
            }
        if (is_used)
            put_instruction(p, BPF_RET | BPF_K, 0, 0, verdicts[verdict - FIRST_VERDICT]);
    }
    p->n_jumps = 0;
}

int determinism_filter(bool seed, enum determinism_clock clock, bool many_users,
    struct sock_filter *program, size_t capacity) {
    struct calls calls = { .otherwise = clock == DETERMINISM_CLOCK_SERIAL ? ASK : ALLOW },
                 *c = &calls;
    struct program p = { .instructions = program, .capacity = capacity };

    /* The first call of a C library in a new image: init sets up the clocks and the random stream.
     * glibc's loader asks for the break before it looks for clocks; the random stream is needed
     * after arch_prctl. */
    if (clock != DETERMINISM_CLOCK_REAL)
        if_equal(c, __NR_brk, 0, 0, ASK);
    ask_arch_prctl(c, clock);
    if (clock == DETERMINISM_CLOCK_REAL || clock == DETERMINISM_CLOCK_OFFSET)
        add_notify(c, __NR_sysinfo);
    /* Init cannot set up a process that is not dumpable. With many users it can, and the flag
     * protects users from each other. */
    if (!many_users)
        if_equal(c, __NR_prctl, 0, 4 /* PR_SET_DUMPABLE */, FORGED);
    if (seed && clock != DETERMINISM_CLOCK_SERIAL)
        filter_seed(c);
    else if (seed)
        guard_limits(c);
    if (clock == DETERMINISM_CLOCK_OFFSET) {
        filter_clock(c);
        filter_stamps(c);
    } else if (clock == DETERMINISM_CLOCK_VIRTUAL) {
        filter_virtual(c);
        filter_changes(c);
    } else if (clock == DETERMINISM_CLOCK_SERIAL)
        filter_serial(c);
    if (clock == DETERMINISM_CLOCK_OFFSET || clock == DETERMINISM_CLOCK_VIRTUAL)
        filter_ipc(c);
    if (clock != DETERMINISM_CLOCK_REAL)
        filter_packets(c);
    if (c->n_instructions >= MAX_OF_CALLS)
        return -ENOBUFS;
    merge_calls(c);
    put_instruction(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
    jump_to(&p, false, ALLOW);
    put_instruction(&p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, AUDIT_ARCH_X86_64);
    if (clock == DETERMINISM_CLOCK_SERIAL)
        skip_init(&p);
    put_instruction(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    search_calls(&p, c, 0, calls.n, 0, N_NUMBERS);
    put_verdicts(&p);
    put_calls(&p, c);
    put_verdicts(&p);
    return p.n <= capacity ? (int)p.n : -ENOBUFS;
}

#else

int determinism_filter(bool seed, enum determinism_clock clock, bool many_users,
    struct sock_filter *program, size_t capacity) {
    (void)seed, (void)clock, (void)many_users, (void)program, (void)capacity;
    return -ENOTSUP;
}

#endif

static int64_t parse_digits(const char **at, unsigned digits) {
    int64_t value = 0;

    for (; digits-- && **at >= '0' && **at <= '9'; (*at)++)
        value = 10 * value + (**at - '0');
    return value;
}

/* Days since 1970 of a date of the calendar, years counted from March, so that the odd day is a
 * year's last. */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719468;
}

void determinism_time(const char *text, int64_t *ret_seconds, uint32_t *ret_nanoseconds) {
    const char *at = text;
    int64_t year = parse_digits(&at, 4), month, day, seconds;
    uint32_t fraction = 0;

    at += *at != '\0';
    month = parse_digits(&at, 2);
    at += *at != '\0';
    day = parse_digits(&at, 2);
    seconds = days_of(year, month, day) * 86400;
    if (*at) {
        at++;
        seconds += parse_digits(&at, 2) * 3600;
        at += *at != '\0';
        seconds += parse_digits(&at, 2) * 60;
        if (*at == ':') {
            at++;
            seconds += parse_digits(&at, 2);
        }
        if (*at == '.' || *at == ',') {
            at++;
            for (uint32_t unit = 100000000; *at >= '0' && *at <= '9'; at++, unit /= 10)
                fraction += (uint32_t)(*at - '0') * unit;
        }
        if (*at == '+' || *at == '-') {
            int64_t sign = *at++ == '+' ? 1 : -1, zone = parse_digits(&at, 2) * 3600;

            at += *at == ':';
            seconds -= sign * (zone + parse_digits(&at, 2) * 60);
        }
    }
    *ret_seconds = seconds;
    *ret_nanoseconds = fraction;
}

void determinism_uuid(uint64_t seed, char *ret_text) {
    uint8_t b[CHACHA_BLOCK];

    chacha_block(seed, 0, SEEDED_RANDOM_UUID, 0, b);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    snprintf(ret_text, SEEDED_RANDOM_UUID_BYTES,
        "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", b[0], b[1], b[2],
        b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
