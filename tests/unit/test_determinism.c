/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy/determinism.c: what commands ask init about, times, and the bytes that a seed becomes;
 * base/chacha.h against the standard. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/chacha.h"
#include "base/cleanup.h"
#include "policy/determinism.h"
#include "policy/plan.h"
#include "test.h"

static struct sock_filter program[PLAN_MAX_QUESTIONS];

static void build(bool seed, enum determinism_clock clock) {
    ASSERT_GT(determinism_filter(seed, clock, false, program, PLAN_MAX_QUESTIONS), 0);
}

/* What the kernel would do, for the instructions that the program is made of. */
static uint32_t verdict_of(const struct seccomp_data *data) {
    uint32_t a = 0;

    for (const struct sock_filter *i = program;; i++) {
        ASSERT_TRUE(i < program + PLAN_MAX_QUESTIONS);
        switch (i->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            memcpy(&a, (const char *)data + i->k, sizeof a);
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= i->k;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            i += a == i->k ? i->jt : i->jf;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            i += a >= i->k ? i->jt : i->jf;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            i += a & i->k ? i->jt : i->jf;
            break;
        case BPF_RET | BPF_K:
            return i->k;
        default:
            FAIL("code %x", i->code);
        }
    }
}

#define VERDICT(number, ...)                                                                       \
    verdict_of(&(struct seccomp_data){                                                             \
        .nr = (number), .arch = AUDIT_ARCH_X86_64, .args = { __VA_ARGS__ } })
#define ASK SECCOMP_RET_USER_NOTIF
#define ALLOW SECCOMP_RET_ALLOW
#define NOTHING SECCOMP_RET_ERRNO

TEST(another_architecture_is_the_other_filters) {
    build(true, DETERMINISM_CLOCK_VIRTUAL);
    ASSERT_EQ(
        verdict_of(&(struct seccomp_data){ .nr = __NR_getrandom, .arch = AUDIT_ARCH_I386 }), ALLOW);
}

TEST(first_calls_of_an_image_are_asked_about) {
    for (unsigned i = 1; i < 4; i++) {
        build(i & 1, i & 2 ? DETERMINISM_CLOCK_OFFSET : DETERMINISM_CLOCK_REAL);
        ASSERT_EQ(VERDICT(__NR_brk, 0), i & 2 ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_brk, 4096), ALLOW);
        ASSERT_EQ(VERDICT(__NR_arch_prctl, 0x1002), ASK);
        ASSERT_EQ(VERDICT(__NR_arch_prctl, 0x1003), ALLOW);
        ASSERT_EQ(VERDICT(__NR_prctl, 4, 0), NOTHING);
        ASSERT_EQ(VERDICT(__NR_prctl, 3), ALLOW);
        ASSERT_EQ(VERDICT(__NR_read, 0), ALLOW);
        ASSERT_EQ(VERDICT(__NR_execve, 0), ALLOW);
    }
}

TEST(known_loader_is_not_asked_about_again) {
    static const enum determinism_clock clocks[] = { DETERMINISM_CLOCK_REAL,
        DETERMINISM_CLOCK_OFFSET, DETERMINISM_CLOCK_VIRTUAL, DETERMINISM_CLOCK_SERIAL };
    struct seccomp_data data = { .nr = __NR_arch_prctl,
        .arch = AUDIT_ARCH_X86_64,
        .instruction_pointer = 0x7ffff7fe0123,
        .args = { 0x1002 } };

    for (size_t i = 0; i < ARRAY_SIZE(clocks); i++) {
        unsigned n = 0;

        memset(program, 0, sizeof program);
        build(true, clocks[i]);
        ASSERT_EQ(verdict_of(&data), ASK);
        for (size_t at = 0; at < ARRAY_SIZE(program); at++)
            if (program[at].code == (BPF_JMP | BPF_JEQ | BPF_K) &&
                program[at].k == PLAN_LOADER_UNKNOWN) {
                program[at].k = (uint32_t)data.instruction_pointer;
                n++;
            }
        ASSERT_EQ(
            n, clocks[i] == DETERMINISM_CLOCK_OFFSET || clocks[i] == DETERMINISM_CLOCK_VIRTUAL);
        ASSERT_EQ(verdict_of(&data), n ? ALLOW : ASK);
        data.instruction_pointer++;
        ASSERT_EQ(verdict_of(&data), ASK);
        data.instruction_pointer--;
    }
}

TEST(with_a_seed_alone) {
    build(true, DETERMINISM_CLOCK_REAL);
    ASSERT_EQ(VERDICT(__NR_getrandom, 0), ASK);
    ASSERT_EQ(VERDICT(__NR_fork), ASK);
    ASSERT_EQ(VERDICT(__NR_vfork), ASK);
    ASSERT_EQ(VERDICT(__NR_clone, 17), ASK);
    ASSERT_EQ(VERDICT(__NR_clone, 0x10000), ALLOW);
    ASSERT_EQ(VERDICT(__NR_setrlimit, RLIMIT_RSS, 1), NOTHING);
    ASSERT_EQ(VERDICT(__NR_setrlimit, RLIMIT_LOCKS, 1), NOTHING);
    ASSERT_EQ(VERDICT(__NR_setrlimit, RLIMIT_NOFILE, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_RSS, 1), NOTHING);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_LOCKS, 1ull << 40), NOTHING);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_LOCKS, 0, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_RSS, 0, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_NOFILE, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_clock_gettime, CLOCK_REALTIME), ALLOW);
    ASSERT_EQ(VERDICT(__NR_time), ALLOW);
}

#define FROM(ip, number)                                                                           \
    verdict_of(&(struct seccomp_data){                                                             \
        .nr = (number), .arch = AUDIT_ARCH_X86_64, .instruction_pointer = (ip) })

#define FROM_PROGRAM(number, ...)                                                                  \
    verdict_of(&(struct seccomp_data){ .nr = (int)(number),                                        \
        .arch = AUDIT_ARCH_X86_64,                                                                 \
        .instruction_pointer = UINT64_MAX,                                                         \
        .args = { __VA_ARGS__ } })

TEST(serial_asks_about_nearly_all) {
    static const unsigned asked[] = { __NR_read, __NR_write, __NR_futex, __NR_execve, __NR_clone,
        __NR_exit_group, __NR_mmap, __NR_set_robust_list, __NR_rt_sigprocmask, __NR_wait4,
        __NR_getrandom, __NR_clock_gettime, 450 };
    static const unsigned alone[] = { __NR_getpid, __NR_rt_sigreturn, __NR_restart_syscall,
        __NR_mprotect, __NR_arch_prctl };

    for (int seeded = 0; seeded < 2; seeded++) {
        build(seeded, DETERMINISM_CLOCK_SERIAL);
        for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
            ASSERT_EQ(FROM(PLAN_PROGRAMS_FROM, asked[i]), ASK);
        for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
            ASSERT_EQ(FROM(PLAN_PROGRAMS_FROM, alone[i]), ALLOW);
        ASSERT_EQ(FROM(PLAN_PROGRAMS_FROM, __NR_sched_setaffinity), NOTHING);
        ASSERT_EQ(FROM(PLAN_PROGRAMS_FROM, 438), SECCOMP_RET_ERRNO | EPERM);
        ASSERT_EQ(FROM(UINT64_MAX, __NR_execve), ASK);
        /* init's own code, on the way to a command */
        ASSERT_EQ(FROM(PLAN_PROGRAMS_FROM - 1, __NR_execve), ALLOW);
        ASSERT_EQ(FROM(0x20000, __NR_sendmsg), ALLOW);
        ASSERT_EQ(FROM(0x20000, 438), SECCOMP_RET_ERRNO | EPERM);
        ASSERT_EQ(FROM(1ull << 32, __NR_execve), ASK);
    }
}

TEST(with_a_clock_alone) {
    build(false, DETERMINISM_CLOCK_OFFSET);
    ASSERT_EQ(VERDICT(__NR_gettimeofday), ASK);
    ASSERT_EQ(VERDICT(__NR_time), ASK);
    for (uint32_t clock = 0; clock < 12; clock++)
        ASSERT_EQ(VERDICT(__NR_clock_gettime, clock),
            clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI ||
                    clock == CLOCK_REALTIME_ALARM || clock == CLOCK_MONOTONIC_RAW
                ? ASK
                : ALLOW);
    ASSERT_EQ(VERDICT(__NR_times), ASK);
    ASSERT_EQ(VERDICT(__NR_clock_nanosleep, CLOCK_REALTIME, TIMER_ABSTIME), ASK);
    ASSERT_EQ(VERDICT(__NR_clock_nanosleep, CLOCK_TAI, TIMER_ABSTIME), ASK);
    ASSERT_EQ(VERDICT(__NR_clock_nanosleep, CLOCK_REALTIME, 0), ALLOW);
    ASSERT_EQ(VERDICT(__NR_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME), ALLOW);
    ASSERT_EQ(VERDICT(__NR_timer_settime, 0, TIMER_ABSTIME), ASK);
    ASSERT_EQ(VERDICT(__NR_timer_settime, 0, 0), ALLOW);
    ASSERT_EQ(VERDICT(__NR_timer_settime, 0, TIMER_ABSTIME, 0, 0, 0, PLAN_SETTIME_UNASKED), ALLOW);
    ASSERT_EQ(
        VERDICT(__NR_timer_settime, 0, TIMER_ABSTIME, 0, 0, 0, (uint32_t)PLAN_SETTIME_UNASKED),
        ASK);
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, 1), ASK);
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME | FUTEX_PRIVATE_FLAG,
                  0, 1ull << 32),
        ASK);
    ASSERT_EQ(
        VERDICT(__NR_futex, 0, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME | FUTEX_PRIVATE_FLAG, 0, 0),
        ALLOW);
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT, 0, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_getrandom), ALLOW);
    ASSERT_EQ(VERDICT(__NR_fork), ALLOW);
    ASSERT_EQ(VERDICT(__NR_prlimit64, 0, RLIMIT_RSS, 1), ALLOW);
}

TEST(with_a_virtual_clock) {
    static const unsigned always[] = { __NR_clock_gettime, __NR_gettimeofday, __NR_time, __NR_times,
        __NR_getrusage, __NR_sysinfo, __NR_nanosleep, __NR_clock_nanosleep, __NR_alarm,
        __NR_timer_create, __NR_timer_settime, __NR_timer_delete, __NR_timerfd_create,
        __NR_timerfd_settime, __NR_timerfd_gettime };
    /* The argument that is a pointer to the time. */
    static const struct {
        unsigned number, argument;
    } pointers[] = { { __NR_ppoll, 2 }, { __NR_select, 4 }, { __NR_pselect6, 4 },
        { __NR_epoll_pwait2, 3 }, { __NR_rt_sigtimedwait, 2 }, { __NR_semtimedop, 3 }, { 449, 3 },
        { 455, 4 } };

    build(false, DETERMINISM_CLOCK_VIRTUAL);
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        ASSERT_EQ(VERDICT(always[i], 0), ASK);
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++) {
        struct seccomp_data data = { .nr = (int)pointers[i].number, .arch = AUDIT_ARCH_X86_64 };

        ASSERT_EQ(verdict_of(&data), ALLOW);
        data.args[pointers[i].argument] = 1;
        ASSERT_EQ(verdict_of(&data), ASK);
        data.args[pointers[i].argument] = 1ull << 40;
        ASSERT_EQ(verdict_of(&data), ASK);
    }
    for (int timeout = -1; timeout < 2; timeout++) {
        ASSERT_EQ(VERDICT(__NR_poll, 1, 1, (uint32_t)timeout), timeout > 0 ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_epoll_wait, 1, 1, 1, (uint32_t)timeout), timeout > 0 ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_epoll_pwait, 1, 1, 1, (uint64_t)(int64_t)timeout),
            timeout > 0 ? ASK : ALLOW);
    }
    ASSERT_EQ(VERDICT(__NR_setitimer, 0), ASK);
    ASSERT_EQ(VERDICT(__NR_setitimer, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_getitimer, 0), ASK);
    ASSERT_EQ(VERDICT(__NR_getitimer, 2), ALLOW);
    for (uint32_t flags = 0; flags <= FUTEX_CLOCK_REALTIME; flags += FUTEX_CLOCK_REALTIME) {
        ASSERT_EQ(
            VERDICT(__NR_futex, 0, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | flags, 0, 1), ASK);
        ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT | flags, 0, 1ull << 32), ASK);
        ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAIT | FUTEX_PRIVATE_FLAG | flags, 0, 0), ALLOW);
    }
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_WAKE, 1, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_futex, 0, FUTEX_REQUEUE | FUTEX_PRIVATE_FLAG, 1, 1), ALLOW);
    ASSERT_EQ(VERDICT(__NR_read, 0), ALLOW);
    ASSERT_EQ(VERDICT(__NR_getrandom, 0), ALLOW);
    build(true, DETERMINISM_CLOCK_VIRTUAL);
    ASSERT_EQ(VERDICT(__NR_getrandom, 0), ASK);
    ASSERT_EQ(VERDICT(__NR_nanosleep, 0), ASK);
}

static int of_numbers(const void *a, const void *b) {
    return (int)*(const unsigned *)a - (int)*(const unsigned *)b;
}

/* The tree, from the first number to beyond the last, against a list: a number that is not in it is
 * the same to the program with any arguments, as is one of another ABI or a negative one. */
TEST(unnamed_calls_are_not_asked_about) {
    static unsigned named[] = {
        __NR_brk,
        438 /* pidfd_getfd */,
        __NR_arch_prctl,
        __NR_prctl,
        __NR_getrandom,
        __NR_fork,
        __NR_vfork,
        __NR_clone,
        __NR_setrlimit,
        __NR_prlimit64,
        __NR_clock_gettime,
        __NR_clock_getres,
        __NR_gettimeofday,
        __NR_time,
        __NR_times,
        __NR_getrusage,
        __NR_sysinfo,
        __NR_nanosleep,
        __NR_clock_nanosleep,
        __NR_alarm,
        __NR_timer_create,
        __NR_timer_settime,
        __NR_timer_gettime,
        __NR_timer_getoverrun,
        __NR_timer_delete,
        __NR_timerfd_create,
        __NR_timerfd_settime,
        __NR_timerfd_gettime,
        __NR_restart_syscall,
        __NR_setitimer,
        __NR_getitimer,
        __NR_poll,
        __NR_epoll_wait,
        __NR_epoll_pwait,
        __NR_epoll_pwait2,
        __NR_ppoll,
        __NR_select,
        __NR_pselect6,
        __NR_rt_sigtimedwait,
        __NR_semtimedop,
        449,
        455,
        __NR_futex,
        __NR_stat,
        __NR_fstat,
        __NR_lstat,
        __NR_newfstatat,
        __NR_statx,
        __NR_utimensat,
        __NR_utimes,
        __NR_utime,
        __NR_futimesat,
        __NR_creat,
        __NR_open,
        __NR_openat,
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
    static const uint64_t words[] = { 0, 1, 4 /* PR_SET_DUMPABLE */, RLIMIT_RSS, FUTEX_WAIT_BITSET,
        0x1002, UINT64_MAX };
    const size_t n = sizeof named / sizeof named[0];
    size_t n_asked = 0;

    qsort(named, n, sizeof named[0], of_numbers);
    build(true, DETERMINISM_CLOCK_VIRTUAL);
    for (unsigned number = 0; number <= 600; number++) {
        bool asked = false;

        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            uint64_t w = words[i];

            asked |= VERDICT((int)number, w, w, w, w, w, w) != ALLOW;
            ASSERT_EQ(VERDICT((int)(number | 0x40000000u), w, w, w, w, w, w), ALLOW);
            ASSERT_EQ(VERDICT(-1 - (int)number, w, w, w, w, w, w), ALLOW);
        }
        if (asked != !!bsearch(&number, named, n, sizeof named[0], of_numbers))
            FAIL("%u", number);
        n_asked += asked;
    }
    ASSERT_EQ(n_asked, n);
}

TEST(stamps_of_files) {
    static const unsigned looks[] = { __NR_stat, __NR_lstat, __NR_fstat, __NR_statx,
        __NR_newfstatat },
                          changes[] = { __NR_creat, __NR_mkdirat, __NR_unlinkat, __NR_renameat2,
                              __NR_linkat, __NR_symlinkat, __NR_openat2, __NR_truncate };

    for (enum determinism_clock clock = DETERMINISM_CLOCK_OFFSET;
         clock <= DETERMINISM_CLOCK_VIRTUAL; clock++) {
        bool is_virtual = clock == DETERMINISM_CLOCK_VIRTUAL;

        build(true, clock);
        for (unsigned i = 0; i < sizeof looks / sizeof looks[0]; i++)
            ASSERT_EQ(VERDICT(looks[i], 0), ASK);
        for (unsigned i = 0; i < sizeof changes / sizeof changes[0]; i++)
            ASSERT_EQ(VERDICT(changes[i], 0), is_virtual ? ASK : ALLOW);
        /* What the vDSO looks at first: by both halves of the word. */
        ASSERT_EQ(VERDICT(__NR_newfstatat, 0, 0, 0, 0, 0, PLAN_STAT_UNASKED), ALLOW);
        ASSERT_EQ(VERDICT(__NR_newfstatat, 0, 0, 0, 0, 0, (uint32_t)PLAN_STAT_UNASKED), ASK);
        ASSERT_EQ(VERDICT(__NR_newfstatat, 0, 0, 0, 0, 0, PLAN_STAT_UNASKED & ~0xffffffffull), ASK);
        ASSERT_EQ(VERDICT(__NR_statx, 0, 0, 0, 0, 0, PLAN_STAT_UNASKED), ASK);
        ASSERT_EQ(VERDICT(__NR_utimensat, 0, 0, 4096), ASK);
        ASSERT_EQ(VERDICT(__NR_utimensat, 0, 0, 1ull << 40), ASK);
        ASSERT_EQ(VERDICT(__NR_utimensat, 0, 0, 0), is_virtual ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_openat, 0, 0, 0), ALLOW);
        ASSERT_EQ(VERDICT(__NR_openat, 0, 0, 1), is_virtual ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_open, 0, 0100), is_virtual ? ASK : ALLOW);
        ASSERT_EQ(VERDICT(__NR_open, 0, 0x80000), ALLOW);
    }
    build(true, DETERMINISM_CLOCK_REAL);
    ASSERT_EQ(VERDICT(__NR_newfstatat, 0), ALLOW);
}

TEST(ipc_and_socket_times_are_asked_for) {
    static const struct {
        unsigned number, argument, asked[3], others[3];
    } objects[] = {
        { __NR_shmctl, 1, { 2, 13, 15 }, { 0, 1, 14 } },
        { __NR_msgctl, 1, { 2, 11, 13 }, { 0, 1, 12 } },
        { __NR_semctl, 2, { 2, 18, 20 }, { 0, 12, 19 } },
    };
    static const unsigned options[] = { 29, 35, 37, 63, 64, 65 },
                          requests[] = { 0x8906, 0x8907, 0x80108906, 0x80108907 };

    for (enum determinism_clock clock = DETERMINISM_CLOCK_REAL; clock <= DETERMINISM_CLOCK_SERIAL;
         clock++) {
        const uint32_t unnamed = clock == DETERMINISM_CLOCK_SERIAL ? ASK : ALLOW;

        build(true, clock);
        for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
            for (size_t j = 0; j < 3; j++) {
                uint64_t asked[3] = { [0] = 0 }, others[3] = { [0] = 0 };

                asked[objects[i].argument] = objects[i].asked[j];
                others[objects[i].argument] = objects[i].others[j];
                ASSERT_EQ(FROM_PROGRAM(objects[i].number, asked[0], asked[1], asked[2]),
                    clock == DETERMINISM_CLOCK_REAL ? ALLOW : ASK);
                ASSERT_EQ(
                    FROM_PROGRAM(objects[i].number, others[0], others[1], others[2]), unnamed);
            }
        for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
            ASSERT_EQ(FROM_PROGRAM(__NR_setsockopt, 3, SOL_SOCKET, options[i]),
                clock == DETERMINISM_CLOCK_REAL ? ALLOW : NOTHING);
            ASSERT_EQ(FROM_PROGRAM(__NR_setsockopt, 3, 6 /* TCP */, options[i]), unnamed);
        }
        ASSERT_EQ(FROM_PROGRAM(__NR_setsockopt, 3, SOL_SOCKET, 2), unnamed);
        for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
            ASSERT_EQ(FROM_PROGRAM(__NR_ioctl, 3, requests[i]),
                clock == DETERMINISM_CLOCK_REAL ? ALLOW : SECCOMP_RET_ERRNO | ENOENT);
        ASSERT_EQ(FROM_PROGRAM(__NR_ioctl, 3, 0x5401), unnamed);
    }
}

TEST(too_large_program_is_refused) {
    ASSERT_EQ(determinism_filter(true, DETERMINISM_CLOCK_OFFSET, false, program, 10), -ENOBUFS);
}

TEST(times) {
    static const struct {
        const char *text;
        int64_t seconds;
        uint32_t nanoseconds;
    } all[] = {
        { "1970-01-01", 0, 0 },
        { "1970-01-02", 86400, 0 },
        { "2025-01-01T00:00:00", 1735689600, 0 },
        { "2024-02-29T23:59:59Z", 1709251199, 0 },
        { "2000-03-01 00:00", 951868800, 0 },
        { "2025-01-01T00:00:00.5", 1735689600, 500000000 },
        { "2025-01-01T00:00:00,123456789Z", 1735689600, 123456789 },
        { "2025-01-01T01:30:00+01:30", 1735689600, 0 },
        { "2024-12-31T19:00-0500", 1735689600, 0 },
        { "2199-12-31T23:59:59", 7258118399, 0 },
        { "1970-01-01T00:00:00+01:00", -3600, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int64_t seconds;
        uint32_t nanoseconds;

        determinism_time(all[i].text, &seconds, &nanoseconds);
        if (seconds != all[i].seconds || nanoseconds != all[i].nanoseconds)
            FAIL("%s: %lld.%09u", all[i].text, (long long)seconds, nanoseconds);
    }
}

/* The key and nonce of RFC 8439 cannot be given here; with all of them zero its appendix A.1 has
 * the first block. */
TEST(chacha_is_chacha20) {
    static const uint8_t expected[16] = { 0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40,
        0x5d, 0x6a, 0xe5, 0x53, 0x86, 0xbd, 0x28 };
    static const uint8_t second[8] = { 0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a };
    uint8_t block[CHACHA_BLOCK];

    chacha_block(0, 0, 0, 0, block);
    ASSERT_MEM_EQ(block, sizeof expected, expected, sizeof expected);
    chacha_block(0, 0, 0, 1, block);
    ASSERT_MEM_EQ(block, sizeof second, second, sizeof second);
}

/* Results that were kept are compared with those of a later version. */
TEST(bytes_of_a_seed_stay_what_they_are) {
    char uuid[38], other[38];
    uint8_t bytes[2 * SEEDED_RANDOM_STEP], again[2 * SEEDED_RANDOM_STEP];

    determinism_uuid(7, uuid);
    determinism_uuid(8, other);
    ASSERT_TRUE(strcmp(uuid, other));
    ASSERT_EQ(strlen(uuid), 37);
    ASSERT_EQ(uuid[14], '4');
    ASSERT_EQ(uuid[36], '\n');
    seeded_random_bytes(7, 0, bytes, sizeof bytes);
    seeded_random_bytes(7, SEEDED_RANDOM_STEP, again, SEEDED_RANDOM_STEP);
    ASSERT_MEM_EQ(bytes + SEEDED_RANDOM_STEP, SEEDED_RANDOM_STEP, again, SEEDED_RANDOM_STEP);
    for (unsigned block = 0; block < sizeof bytes / CHACHA_BLOCK; block++) {
        chacha_block(7, 0, SEEDED_RANDOM_URANDOM, block, again);
        ASSERT_MEM_EQ(bytes + block * CHACHA_BLOCK, CHACHA_BLOCK, again, CHACHA_BLOCK);
    }
    seeded_random_bytes(8, 0, again, sizeof again);
    ASSERT_TRUE(memcmp(bytes, again, sizeof again));
    ASSERT_EQ(chacha_number(7, 0, 3), 0xeb68560176066d45ull);
    ASSERT_EQ(seeded_random_fork(7, 0), 7047731020437584910ull);
    ASSERT_EQ(seeded_random_fork(7, 1), 9190010582942298968ull);
    ASSERT_EQ(seeded_random_fork(seeded_random_fork(7, 0), 0), 2949222839903684161ull);
}
