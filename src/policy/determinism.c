/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What random_seed and time_start add to a plan: a second, small seccomp program whose verdict is "ask init", and the contents of files that stand in for the kernel's chance.
 *
 * The program is installed below the plan's own filter by each command, just before it executes. Of two filters the stricter verdict holds, so this one can take nothing back that the other refuses. It allows
 * whatever it does not name, a foreign architecture included: that is the other's to kill.
 */
#include "policy/determinism.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/chacha.h"
#include "policy/plan.h"

/* What the bytes are for. Below 16 are those of guest/determinism.c. */

#if defined(__x86_64__)

#define ARGUMENT(i) ((uint32_t)offsetof(struct seccomp_data, args) + 8u * (i))      /* its low half */
#define ARCH_SET_FS_CODE 0x1002u
#define CLOCKS_OFF_REAL 3       /* how many of clocks[] */
#define CLONE_THREAD_FLAG 0x00010000u
#define FUTEX_WAITV_NUMBER 449          /* newer than the headers */
#define FUTEX_WAIT_NUMBER 455
#define PIDFD_GETFD_NUMBER 438
#define FORGED (SECCOMP_RET_ERRNO | 0)          /* returns 0 and does nothing */

static const uint32_t clocks[CLOCKS_OFF_REAL] = { CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI };

struct program {
    struct sock_filter *instructions;
    size_t n, capacity;
};

static void emit(struct program *p, unsigned code, unsigned jt, unsigned jf, uint32_t k) {
    if (p->n < p->capacity)
        p->instructions[p->n] = (struct sock_filter){ (uint16_t)code, (uint8_t)jt, (uint8_t)jf, k };
    p->n++;
}

static void verdict(struct program *p, uint32_t action) {
    emit(p, BPF_RET | BPF_K, 0, 0, action);
}

static void load(struct program *p, uint32_t offset) {
    emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

/* The next `length` instructions are for this call alone; they must end in a verdict. A holds the call's number before and, for others, after. */
static void call(struct program *p, unsigned number, unsigned length) {
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, length, number);
}

/* Asks if A is the number. */
static void ask(struct program *p, unsigned number) {
    call(p, number, 1);
    verdict(p, SECCOMP_RET_USER_NOTIF);
}

/* Does `action` on the call if an argument is `value`. */
static void if_equal(struct program *p, unsigned number, unsigned argument, uint32_t value, uint32_t action) {
    call(p, number, 4);
    load(p, ARGUMENT(argument));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
    verdict(p, action);
    verdict(p, SECCOMP_RET_ALLOW);
}

/* The state of a process' stream is in two limits that the kernel does not use: what sets them does nothing. */
static void guard_limit(struct program *p, unsigned number, unsigned resource_argument, bool may_only_read) {
    call(p, number, may_only_read ? 9 : 5);
    load(p, ARGUMENT(resource_argument));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, RLIMIT_RSS);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, may_only_read ? 5 : 1, RLIMIT_LOCKS);
    if (may_only_read) {                /* where there is no new value, it is a question */
        load(p, ARGUMENT(2));
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0);
        load(p, ARGUMENT(2) + 4);
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0);
    }
    verdict(p, FORGED);
    verdict(p, SECCOMP_RET_ALLOW);
}

static void guard_limits(struct program *p) {
    guard_limit(p, __NR_setrlimit, 0, false);
    guard_limit(p, __NR_prlimit64, 1, true);
}

static void filter_seed(struct program *p) {
    ask(p, __NR_getrandom);
    ask(p, __NR_fork);
    ask(p, __NR_vfork);
    call(p, __NR_clone, 4);
    load(p, ARGUMENT(0));
    emit(p, BPF_JMP | BPF_JSET | BPF_K, 1, 0, CLONE_THREAD_FLAG);
    verdict(p, SECCOMP_RET_USER_NOTIF);
    verdict(p, SECCOMP_RET_ALLOW);
    guard_limits(p);
}

static void filter_clock(struct program *p) {
    ask(p, __NR_gettimeofday);
    ask(p, __NR_time);
    call(p, __NR_clock_gettime, 3 + CLOCKS_OFF_REAL);
    load(p, ARGUMENT(0));
    for (unsigned i = 0; i < CLOCKS_OFF_REAL; i++)
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, CLOCKS_OFF_REAL - i, 0, clocks[i]);
    verdict(p, SECCOMP_RET_ALLOW);
    verdict(p, SECCOMP_RET_USER_NOTIF);
    /* What waits until a time of day. */
    call(p, __NR_clock_nanosleep, 7);
    load(p, ARGUMENT(1));
    emit(p, BPF_JMP | BPF_JSET | BPF_K, 0, 3, TIMER_ABSTIME);
    load(p, ARGUMENT(0));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 2, 0, CLOCK_REALTIME);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, CLOCK_TAI);
    verdict(p, SECCOMP_RET_ALLOW);
    verdict(p, SECCOMP_RET_USER_NOTIF);
    call(p, __NR_futex, 10);
    load(p, ARGUMENT(1));
    emit(p, BPF_JMP | BPF_JSET | BPF_K, 0, 6, FUTEX_CLOCK_REALTIME);
    emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x7f);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, FUTEX_WAIT_BITSET);
    load(p, ARGUMENT(3));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
    load(p, ARGUMENT(3) + 4);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    verdict(p, SECCOMP_RET_ALLOW);
    verdict(p, SECCOMP_RET_USER_NOTIF);
}

/* Asks if the low half of an argument, taken as an int, is above zero. */
static void ask_if_positive(struct program *p, unsigned number, unsigned argument) {
    call(p, number, 5);
    load(p, ARGUMENT(argument));
    emit(p, BPF_JMP | BPF_JSET | BPF_K, 2, 0, 0x80000000u);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0);
    verdict(p, SECCOMP_RET_USER_NOTIF);
    verdict(p, SECCOMP_RET_ALLOW);
}

/* Asks if an argument is not NULL; the verdict on a call, in six instructions. */
static void if_pointer(struct program *p, unsigned argument) {
    load(p, ARGUMENT(argument));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0);
    load(p, ARGUMENT(argument) + 4);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0);
    verdict(p, SECCOMP_RET_USER_NOTIF);
    verdict(p, SECCOMP_RET_ALLOW);
}

static void ask_if_pointer(struct program *p, unsigned number, unsigned argument) {
    call(p, number, 6);
    if_pointer(p, argument);
}

/* Whatever tells the time, and whatever waits with a time-out: what has none is no matter of the clock's. */
static void filter_virtual(struct program *p) {
    static const unsigned asked[] = {
        __NR_clock_gettime, __NR_gettimeofday, __NR_time, __NR_times, __NR_getrusage, __NR_sysinfo, __NR_nanosleep, __NR_clock_nanosleep, __NR_alarm,
        __NR_timer_create, __NR_timer_settime, __NR_timer_gettime, __NR_timer_getoverrun, __NR_timer_delete, __NR_timerfd_create, __NR_timerfd_settime, __NR_timerfd_gettime,
    };

    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        ask(p, asked[i]);
    if_equal(p, __NR_setitimer, 0, 0 /* ITIMER_REAL */, SECCOMP_RET_USER_NOTIF);
    if_equal(p, __NR_getitimer, 0, 0, SECCOMP_RET_USER_NOTIF);
    ask_if_positive(p, __NR_poll, 2);
    ask_if_positive(p, __NR_epoll_wait, 3);
    ask_if_positive(p, __NR_epoll_pwait, 3);
    ask_if_pointer(p, __NR_epoll_pwait2, 3);
    ask_if_pointer(p, __NR_ppoll, 2);
    ask_if_pointer(p, __NR_select, 4);
    ask_if_pointer(p, __NR_pselect6, 4);
    ask_if_pointer(p, __NR_rt_sigtimedwait, 2);
    ask_if_pointer(p, __NR_semtimedop, 3);
    ask_if_pointer(p, FUTEX_WAITV_NUMBER, 3);
    ask_if_pointer(p, FUTEX_WAIT_NUMBER, 4);
    call(p, __NR_futex, 11);
    load(p, ARGUMENT(1));
    emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x7f);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 2, 0, FUTEX_WAIT);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, FUTEX_WAIT_BITSET);
    verdict(p, SECCOMP_RET_ALLOW);
    if_pointer(p, 3);
}

/* Whatever another thread could tell, or be told by, or go on for: that is, all but a few. A thread that is new asks before it does anything of its own (set_robust_list, rt_sigprocmask), so these are not among the few. */
static void filter_serial(struct program *p) {
    static const unsigned alone[] = {
        __NR_rt_sigreturn, __NR_restart_syscall, __NR_getpid, __NR_gettid, __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid, __NR_getresuid, __NR_getresgid, __NR_getgroups, __NR_getpgrp,
        __NR_rt_sigaction, __NR_sigaltstack, __NR_uname, __NR_mprotect, __NR_madvise, __NR_getrlimit, __NR_sched_getparam, __NR_sched_getscheduler, __NR_membarrier,
    };

    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) {
        call(p, alone[i], 1);
        verdict(p, SECCOMP_RET_ALLOW);
    }
    /* One CPU is what there is. */
    call(p, __NR_sched_setaffinity, 1);
    verdict(p, FORGED);
    verdict(p, SECCOMP_RET_USER_NOTIF);
}

/* Not what init's own code calls, before a command's execve; but from there, too, not what the policy's filter leaves to init itself. */
static void skip_init(struct program *p) {
    load(p, offsetof(struct seccomp_data, nr));
    call(p, PIDFD_GETFD_NUMBER, 1);
    verdict(p, SECCOMP_RET_ERRNO | EPERM);
    load(p, offsetof(struct seccomp_data, instruction_pointer) + 4);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
    load(p, offsetof(struct seccomp_data, instruction_pointer));
    emit(p, BPF_JMP | BPF_JGE | BPF_K, 1, 0, PLAN_PROGRAMS_FROM);
    verdict(p, SECCOMP_RET_ALLOW);
}

int determinism_filter(bool seed, enum determinism_clock clock, struct sock_filter *program, size_t capacity) {
    struct program p = { program, 0, capacity };

    load(&p, offsetof(struct seccomp_data, arch));
    emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
    verdict(&p, SECCOMP_RET_ALLOW);
    if (clock == DETERMINISM_CLOCK_SERIAL)
        skip_init(&p);
    load(&p, offsetof(struct seccomp_data, nr));
    /* The first that a C library does in a new image: init puts its clocks and its chance in order. */
    if_equal(&p, __NR_brk, 0, 0, SECCOMP_RET_USER_NOTIF);
    if_equal(&p, __NR_arch_prctl, 0, ARCH_SET_FS_CODE, SECCOMP_RET_USER_NOTIF);
    /* A process that is not dumpable is one that init could not put right. */
    if_equal(&p, __NR_prctl, 0, 4 /* PR_SET_DUMPABLE */, FORGED);
    if (seed && clock != DETERMINISM_CLOCK_SERIAL)
        filter_seed(&p);
    else if (seed)
        guard_limits(&p);
    if (clock == DETERMINISM_CLOCK_OFFSET)
        filter_clock(&p);
    else if (clock == DETERMINISM_CLOCK_VIRTUAL)
        filter_virtual(&p);
    else if (clock == DETERMINISM_CLOCK_SERIAL)
        filter_serial(&p);
    verdict(&p, SECCOMP_RET_ALLOW);
    return p.n <= capacity ? (int)p.n : -ENOBUFS;
}

#else

int determinism_filter(bool seed, enum determinism_clock clock, struct sock_filter *program, size_t capacity) {
    (void)seed, (void)clock, (void)program, (void)capacity;
    return -ENOTSUP;
}

#endif

static int64_t number(const char **at, unsigned digits) {
    int64_t value = 0;

    for (; digits-- && **at >= '0' && **at <= '9'; (*at)++)
        value = 10 * value + (**at - '0');
    return value;
}

/* Days since 1970 of a date of the calendar, years counted from March, so that the odd day is a year's last. */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719468;
}

void determinism_time(const char *text, int64_t *ret_seconds, uint32_t *ret_nanoseconds) {
    const char *at = text;
    int64_t year = number(&at, 4), month, day, seconds;
    uint32_t fraction = 0;

    at += *at != '\0';
    month = number(&at, 2);
    at += *at != '\0';
    day = number(&at, 2);
    seconds = days_of(year, month, day) * 86400;
    if (*at) {
        at++;
        seconds += number(&at, 2) * 3600;
        at += *at != '\0';
        seconds += number(&at, 2) * 60;
        if (*at == ':') {
            at++;
            seconds += number(&at, 2);
        }
        if (*at == '.' || *at == ',') {
            at++;
            for (uint32_t unit = 100000000; *at >= '0' && *at <= '9'; at++, unit /= 10)
                fraction += (uint32_t)(*at - '0') * unit;
        }
        if (*at == '+' || *at == '-') {
            int64_t sign = *at++ == '+' ? 1 : -1, zone = number(&at, 2) * 3600;

            at += *at == ':';
            seconds -= sign * (zone + number(&at, 2) * 60);
        }
    }
    *ret_seconds = seconds;
    *ret_nanoseconds = fraction;
}

void determinism_uuid(uint64_t seed, char *ret_text) {
    uint8_t b[CHACHA_BLOCK];

    chacha_block(seed, 0, CHANCE_UUID, 0, b);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    snprintf(ret_text, CHANCE_UUID_BYTES, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
