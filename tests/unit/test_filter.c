/* SPDX-License-Identifier: Apache-2.0 */
/* src/policy/filter: the program run by an interpreter for every call's number and for chosen
 * arguments, and by the kernel with real calls and real programs. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "policy/filter.h"
#include "policy/syscalls_x86_64.h"
#include "test.h"

#define N_OPTIONS 4096u
#define ALLOW SECCOMP_RET_ALLOW
#define KILL SECCOMP_RET_KILL_PROCESS
#define ERRNO(number) (SECCOMP_RET_ERRNO | (number))

static struct sock_filter program[FILTER_MAX_INSTRUCTIONS];
static int n_program;

static struct filter_options options_of(unsigned bits) {
    return (struct filter_options){ bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1,
        bits >> 4 & 1, bits >> 5 & 1, bits >> 6 & 1, bits >> 7 & 1, bits >> 8 & 1, bits >> 9 & 1,
        bits >> 10 & 1, bits >> 11 & 1, bits >> 12 & 1 };
}

static void build(struct filter_options options) {
    n_program = filter_build(&options, program, FILTER_MAX_INSTRUCTIONS);
    ASSERT_GT(n_program, 0);
}

/* What classic BPF does with a call, with every jump and load checked. */
static uint32_t run_data(const struct seccomp_data *data) {
    uint32_t a = 0;

    for (int i = 0; i < n_program; i++) {
        const struct sock_filter *in = &program[i];
        bool taken = false;

        switch (in->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            ASSERT_TRUE(in->k % 4 == 0 && in->k < sizeof(*data));
            memcpy(&a, (const char *)data + in->k, 4);
            continue;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= in->k;
            continue;
        case BPF_JMP | BPF_JA:
            i += (int)in->k;
            continue;
        case BPF_JMP | BPF_JEQ | BPF_K:
            taken = a == in->k;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            taken = a >= in->k;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            taken = (a & in->k) != 0;
            break;
        case BPF_RET | BPF_K:
            return in->k;
        default:
            FAIL("instruction %d has the code 0x%x", i, in->code);
        }
        i += taken ? in->jt : in->jf;
    }
    FAIL("the program ran past its end");
}

static uint32_t run(unsigned number, uint64_t a0, uint64_t a1, uint64_t a2) {
    struct seccomp_data data = {
        .nr = (int)number, .arch = AUDIT_ARCH_X86_64, .args = { a0, a1, a2 }
    };

    return run_data(&data);
}

/* ---- by interpreter ---- */

TEST(every_number_has_its_verdict) {
    static const struct {
        unsigned number;
        const char *name, *rule;
    } rows[] = {
#define ROW(number, name, rule) { number, #name, #rule },
        FILTER_SYSCALLS(ROW)
#undef ROW
    };

    for (unsigned bits = 0; bits < N_OPTIONS; bits++) {
        unsigned next = 0;

        build(options_of(bits));
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            for (; next < rows[i].number; next++)
                ASSERT_EQ(run(next, 0, 0, 0), ERRNO(ENOSYS));
            next = rows[i].number + 1;
            ASSERT_STR_EQ(filter_syscall_name(rows[i].number), rows[i].name);
            if (strcmp(rows[i].rule, "ALLOW") == 0)
                ASSERT_EQ(run(rows[i].number, ~0ull, ~0ull, ~0ull), ALLOW);
            else if (strcmp(rows[i].rule, "EPERM") == 0)
                ASSERT_EQ(run(rows[i].number, 0, 0, 0), ERRNO(EPERM));
            else if (strcmp(rows[i].rule, "ENOSYS") == 0)
                ASSERT_EQ(run(rows[i].number, 0, 0, 0), ERRNO(ENOSYS));
        }
        for (; next < 2000; next++)
            ASSERT_EQ(run(next, 0, 0, 0), ERRNO(ENOSYS));
        ASSERT_EQ(run(0x3fffffff, 0, 0, 0), ERRNO(ENOSYS));
        ASSERT_EQ(run(0xffffffff, 0, 0, 0), ERRNO(ENOSYS));
    }
    ASSERT_NULL(filter_syscall_name(400));
    ASSERT_NULL(filter_syscall_name(100000));
}

TEST(other_abis_die) {
    struct seccomp_data data = { .nr = SYS_getpid, .arch = AUDIT_ARCH_I386 };

    for (unsigned bits = 0; bits < N_OPTIONS; bits++) {
        build(options_of(bits));
        data.arch = AUDIT_ARCH_I386;
        ASSERT_EQ(run_data(&data), KILL);
        data.arch = AUDIT_ARCH_AARCH64;
        ASSERT_EQ(run_data(&data), KILL);
        for (unsigned number = 0; number < 600; number++)
            ASSERT_EQ(run(0x40000000u + number, 0, 0, 0), KILL);
        ASSERT_EQ(run(0x80000000u, 0, 0, 0), KILL);
        ASSERT_EQ(run(0xfffffffeu, 0, 0, 0), KILL);
    }
}

struct expectation {
    unsigned number;
    uint64_t args[3];
    uint32_t verdict;
};

static void expect(
    struct filter_options options, const struct expectation *expectations, size_t n) {
    build(options);
    for (size_t i = 0; i < n; i++) {
        const struct expectation *e = &expectations[i];
        uint32_t got = run(e->number, e->args[0], e->args[1], e->args[2]);

        if (got != e->verdict)
            FAIL("row %zu: %s(0x%llx, 0x%llx, 0x%llx) is 0x%x, not 0x%x", i,
                filter_syscall_name(e->number), (unsigned long long)e->args[0],
                (unsigned long long)e->args[1], (unsigned long long)e->args[2], got, e->verdict);
        /* What the kernel ignores in the upper halves changes nothing. */
        uint32_t high = run(e->number, e->args[0] | 0xabcd00000000, e->args[1] | 0xabcd00000000,
            e->args[2] | 0xabcd00000000);
        if (high != e->verdict)
            FAIL("row %zu: with upper halves set it is 0x%x, not 0x%x", i, high, e->verdict);
    }
}

TEST(arguments_by_default) {
    static const struct expectation rows[] = {
        { SYS_clone, { SIGCHLD }, ALLOW },
        { SYS_clone, { 0x3d0f00 }, ALLOW }, /* a thread */
        { SYS_clone, { CLONE_VM | CLONE_VFORK | SIGCHLD }, ALLOW },
        { SYS_clone, { CLONE_NEWUSER | SIGCHLD }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWNS }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWCGROUP }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWUTS }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWIPC }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWPID }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_NEWNET }, ERRNO(EPERM) },
        { SYS_clone, { CLONE_PARENT | SIGCHLD },
            ERRNO(EPERM) }, /* a sibling of a command is in nobody's tree */
        { SYS_clone3, { 0 }, ERRNO(ENOSYS) },
        { SYS_unshare, { 0 }, ALLOW },
        { SYS_unshare, { CLONE_FILES | CLONE_FS | CLONE_SYSVSEM }, ALLOW },
        { SYS_unshare, { CLONE_NEWUSER }, ERRNO(EPERM) },
        { SYS_unshare, { CLONE_FILES | CLONE_NEWNS }, ERRNO(EPERM) },
        { SYS_unshare, { 0x80 /* CLONE_NEWTIME */ }, ERRNO(EPERM) },
        { SYS_unshare, { 0x80000000 }, ERRNO(EPERM) },
        { SYS_personality, { 0xffffffff }, ALLOW },
        { SYS_personality, { 0 }, ALLOW },
        { SYS_personality, { ADDR_NO_RANDOMIZE }, ALLOW },
        { SYS_personality, { PER_LINUX32 | UNAME26 }, ALLOW },
        { SYS_personality, { READ_IMPLIES_EXEC }, ERRNO(EPERM) },
        { SYS_personality, { MMAP_PAGE_ZERO }, ERRNO(EPERM) },
        { SYS_ioctl, { 0, TCGETS }, ALLOW },
        { SYS_ioctl, { 0, FIONREAD }, ALLOW },
        { SYS_ioctl, { 0, TIOCSCTTY }, ALLOW },
        { SYS_ioctl, { 0, TIOCSTI }, ERRNO(EPERM) },
        { SYS_fcntl, { 0, F_SETFL }, ALLOW },
        { SYS_fcntl, { 0, F_GETLEASE }, ALLOW },
        { SYS_fcntl, { 0, F_SETLEASE }, ERRNO(EINVAL) },
        { SYS_fcntl, { 0, 1040 /* F_SETDELEG */ }, ERRNO(EINVAL) },
        { SYS_fcntl, { 0, 0x100000000ul | F_SETLEASE }, ERRNO(EINVAL) },
        { SYS_ioctl, { 0, TIOCLINUX }, ERRNO(EPERM) },
        { SYS_ioctl, { 0, TIOCSETD }, ERRNO(EPERM) },
        { SYS_ioctl, { 3, 0xc0606610 /* PAGEMAP_SCAN */ }, ERRNO(EPERM) },
        { SYS_ioctl, { 0, TIOCCONS }, ERRNO(EPERM) },
        { SYS_ioctl, { 3, 0x40086602 }, ALLOW },
        { SYS_socket, { AF_UNIX, SOCK_STREAM, 0 }, ALLOW },
        { SYS_socket, { AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0 }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0 }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_STREAM, 6 }, ALLOW },
        { SYS_socket, { AF_INET6, SOCK_STREAM, 6 }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_DGRAM, 17 }, ALLOW },
        { SYS_socket, { AF_INET6, SOCK_DGRAM, 58 }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_STREAM, 262 }, ERRNO(EPROTONOSUPPORT) }, /* MPTCP */
        { SYS_socket, { AF_INET, SOCK_STREAM, 132 }, ERRNO(EPROTONOSUPPORT) }, /* SCTP */
        { SYS_socket, { AF_INET, SOCK_STREAM, 17 }, ERRNO(EPROTONOSUPPORT) },
        { SYS_socket, { AF_INET6, SOCK_STREAM, 256 }, ERRNO(EPROTONOSUPPORT) }, /* SMC */
        { SYS_socket, { AF_INET, SOCK_DGRAM, 136 }, ERRNO(EPROTONOSUPPORT) },   /* UDP-Lite */
        { SYS_socket, { AF_INET, SOCK_SEQPACKET, 0 },
            ERRNO(ESOCKTNOSUPPORT) }, /* SCTP by its type */
        { SYS_socket, { AF_INET, SOCK_DCCP, 0 }, ERRNO(ESOCKTNOSUPPORT) },
        { SYS_socket, { AF_INET, SOCK_PACKET, 0x300 },
            ERRNO(ESOCKTNOSUPPORT) }, /* AF_PACKET by its type */
        { SYS_socket, { AF_INET, SOCK_RAW, 1 }, ERRNO(EPERM) },
        { SYS_socket, { AF_INET6, SOCK_RAW | SOCK_CLOEXEC, 255 }, ERRNO(EPERM) },
        { SYS_socket, { AF_NETLINK, SOCK_RAW, 0 }, ALLOW },
        { SYS_socket, { AF_NETLINK, SOCK_RAW, 15 }, ERRNO(EPROTONOSUPPORT) },
        { SYS_socket, { AF_NETLINK, SOCK_DGRAM, 12 }, ERRNO(EPROTONOSUPPORT) },
        { SYS_socket, { AF_PACKET, SOCK_RAW, 0 }, ERRNO(EAFNOSUPPORT) },
        { SYS_socket, { AF_VSOCK, SOCK_STREAM, 0 }, ERRNO(EAFNOSUPPORT) },
        { SYS_socket, { AF_ALG, SOCK_SEQPACKET, 0 }, ERRNO(EAFNOSUPPORT) },
        { SYS_socketpair, { AF_UNIX, SOCK_DGRAM, 0 }, ALLOW },
        { SYS_socketpair, { AF_INET, SOCK_STREAM, 0 }, ERRNO(EOPNOTSUPP) },
        { SYS_seccomp, { SECCOMP_SET_MODE_FILTER, 0 }, ALLOW },
        { SYS_seccomp, { SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC }, ALLOW },
        { SYS_seccomp, { SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER },
            ERRNO(EINVAL) },
        { SYS_mknod, { 0, S_IFIFO | 0600 }, ALLOW },
        { SYS_mknod, { 0, 0644 }, ALLOW },
        { SYS_mknodat, { 0, 0, S_IFSOCK | 0600 }, ALLOW },
        { SYS_mknodat, { 0, 0, S_IFCHR | 0600 }, ERRNO(EPERM) },
        { SYS_mknod, { 0, S_IFBLK | 0600 }, ERRNO(EPERM) },
        { SYS_chmod, { 0, 06755 }, ALLOW },
        { SYS_memfd_create, { 0 }, ALLOW },
        { SYS_splice, { 0 }, ALLOW },
        { SYS_sched_setaffinity, { 1234 }, ERRNO(0) }, /* succeeds, and does nothing */
        { SYS_prlimit64, { 0 }, ALLOW },
        { SYS_prlimit64, { 0, RLIMIT_NPROC, 4096 }, ALLOW },
        { SYS_prlimit64, { 1, RLIMIT_NPROC },
            ERRNO(EPERM) }, /* init's limits would be those of what it starts next */
        { SYS_prlimit64, { 1234, RLIMIT_NOFILE, 4096 },
            ERRNO(EPERM) }, /* it may be a command that init has not started yet */
        { SYS_sched_setaffinity, { 1 }, ERRNO(0) },
        { SYS_sched_setscheduler, { 1 }, ERRNO(EPERM) },
        { SYS_sched_setparam, { 1 }, ERRNO(EPERM) },
        { SYS_sched_setattr, { 1 }, ERRNO(EPERM) },
        { SYS_sched_setattr, { 1234 }, ALLOW },
        { SYS_process_vm_readv, { 1 }, ERRNO(EPERM) },
        { SYS_process_vm_writev, { 1 }, ERRNO(EPERM) },
        { SYS_process_vm_readv, { 1234 }, ALLOW },
        { SYS_get_robust_list, { 1 }, ERRNO(EPERM) },
        { SYS_get_robust_list, { 0 }, ALLOW },
        { SYS_pidfd_open, { 1 }, ERRNO(EPERM) },
        { SYS_pidfd_open, { 1, O_EXCL /* PIDFD_THREAD */ }, ERRNO(EPERM) },
        { SYS_pidfd_open, { 1234 }, ALLOW },
        { SYS_kcmp, { 1 }, ERRNO(EPERM) },
        { SYS_setpriority, { PRIO_PROCESS, 0 }, ALLOW },
        { SYS_setpriority, { PRIO_PROCESS, 1234 }, ALLOW },
        { SYS_setpriority, { PRIO_PROCESS, 1 }, ERRNO(EPERM) },
        { SYS_setpriority, { PRIO_USER, 0 }, ERRNO(EPERM) }, /* init is the same user */
        { SYS_ioprio_set, { 1, 0 }, ALLOW },
        { SYS_ioprio_set, { 1, 1 }, ERRNO(EPERM) },
        { SYS_ioprio_set, { 3, 1000 }, ERRNO(EPERM) },
        { SYS_shmget, { 0 }, ALLOW },
        { SYS_mq_open, { 0 }, ERRNO(ENOSYS) },
        { SYS_inotify_add_watch, { 0 }, ALLOW },
        { SYS_openat2, { 0 }, ALLOW },
        { SYS_ptrace, { 0 }, ALLOW },
        { SYS_ptrace, { 16 /* PTRACE_ATTACH */, 1234 }, ALLOW },
        { SYS_ptrace, { 16, 1 }, ERRNO(EPERM) },
        { SYS_ptrace, { 0x4206 /* PTRACE_SEIZE */, 1 }, ERRNO(EPERM) },
        { SYS_ptrace, { 0x4206, 1234 }, ALLOW },
        { SYS_prctl, { PR_SET_CHILD_SUBREAPER, 1 }, ALLOW },
        { SYS_prctl, { PR_SET_CHILD_SUBREAPER, 0 },
            ERRNO(EPERM) }, /* what it orphans stays in its tree */
        { SYS_prctl, { PR_GET_CHILD_SUBREAPER, 0 }, ALLOW },
        { SYS_prctl, { PR_SET_DUMPABLE, 0 }, ALLOW },
        { SYS_prctl, { 78 /* PR_FUTEX_HASH */, 1 }, ERRNO(EINVAL) }, /* gigabytes in one call */
        { SYS_setsockopt, { 3, SOL_SOCKET, SO_REUSEADDR }, ALLOW },
        { SYS_setsockopt, { 3, SOL_SOCKET, SO_ATTACH_FILTER }, ERRNO(EPERM) },
        { SYS_setsockopt, { 3, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF }, ERRNO(EPERM) },
        { SYS_setsockopt, { 3, IPPROTO_TCP, SO_ATTACH_FILTER }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 14 /* TCP_MD5SIG */ }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_TCP | 1ull << 32, 32 /* TCP_MD5SIG_EXT */ },
            ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 1 /* TCP_NODELAY */ }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 13 /* TCP_CONGESTION */ }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 30 /* TCP_FASTOPEN_CONNECT */ }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 31 /* TCP_ULP */ }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 36 /* TCP_INQ */ }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_TCP, 38 /* TCP_AO_ADD_KEY */ }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, 6 /* IPV6_2292PKTOPTIONS */ }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, IPV6_RTHDR }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, IPV6_RECVPKTINFO }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_IP, MCAST_JOIN_GROUP }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_IP, MCAST_MSFILTER }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IP, IP_MULTICAST_ALL }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_IP, IP_TTL }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, IPV6_JOIN_GROUP }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, IPV6_V6ONLY }, ALLOW },
        { SYS_setsockopt, { 3, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP }, ERRNO(ENOPROTOOPT) },
        { SYS_setsockopt, { 3, IPPROTO_IP, IP_ADD_MEMBERSHIP }, ALLOW },
        { 463 /* setxattrat */, { 0 }, ERRNO(ENOSYS) },
        { SYS_setsockopt, { 3, IPPROTO_IPV6, SO_ATTACH_REUSEPORT_CBPF }, ALLOW },
        { SYS_landlock_create_ruleset, { 0 }, ALLOW },
        { SYS_mbind, { 0 }, ERRNO(EPERM) },
        { SYS_sync, { 0 }, ALLOW },
        { SYS_landlock_restrict_self, { 0 }, ALLOW },
        { SYS_io_uring_setup, { 0 }, ERRNO(ENOSYS) },
        { SYS_io_setup, { 0 }, ERRNO(ENOSYS) },
        { SYS_bpf, { 0 }, ERRNO(EPERM) },
        { SYS_userfaultfd, { 0 }, ERRNO(EPERM) },
        { SYS_userfaultfd, { 1 /* UFFD_USER_MODE_ONLY */ }, ERRNO(EPERM) },
        { SYS_userfaultfd, { 0x80001 },
            SECCOMP_RET_TRACE }, /* of who takes snapshots; ENOSYS where nobody is asked */
        { SYS_userfaultfd, { 0x80000 }, ERRNO(EPERM) },
        { SYS_open_by_handle_at, { 0 }, ERRNO(EPERM) },
        { SYS_keyctl, { 0 }, ERRNO(EPERM) },
        { SYS_memfd_secret, { 0 }, ERRNO(ENOSYS) },
    };

    expect((struct filter_options){ 0 }, rows, ARRAY_SIZE(rows));
    build((struct filter_options){ 0 });
    /* A guest does not become the tracer that is asked. */
    static const uint64_t options[] = { 0x4200 /* PTRACE_SETOPTIONS */, 0x4206,
        21 /* PTRACE_OLDSETOPTIONS */ };
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        struct seccomp_data asks = { .nr = SYS_ptrace,
            .arch = AUDIT_ARCH_X86_64,
            .args = { options[i], 1234, 0, 0x80 /* PTRACE_O_TRACESECCOMP */ } };
        ASSERT_EQ(run_data(&asks), ERRNO(EINVAL));
        asks.args[0] |= 1ull << 32;
        ASSERT_EQ(run_data(&asks), ERRNO(EINVAL));
        asks.args[3] = 0x7f;
        ASSERT_EQ(run_data(&asks), ALLOW);
    }
    /* A list of n entries has 4 + 8 n bytes. */
    for (uint64_t length = 0; length <= 65536; length++) {
        struct seccomp_data attribute = {
            .nr = SYS_fsetxattr, .arch = AUDIT_ARCH_X86_64, .args = { 3, 0, 0, length }
        };
        ASSERT_EQ(run_data(&attribute),
            length > FILTER_ATTRIBUTE_BYTES && length % 8 == 4 ? ERRNO(E2BIG) : ALLOW);
    }
    struct seccomp_data whiteout = {
        .nr = SYS_renameat2, .arch = AUDIT_ARCH_X86_64, .args = { [4] = 4 }
    };
    ASSERT_EQ(run_data(&whiteout), ERRNO(EINVAL));
    whiteout.args[4] = 1 | 2;
    ASSERT_EQ(run_data(&whiteout), ALLOW);
}

TEST(limits_of_other_processes_are_only_read) {
    struct filter_options options = { 0 };

    build(options);
    ASSERT_EQ(run(SYS_prlimit64, 1234, RLIMIT_NOFILE, 0), ALLOW);
    ASSERT_EQ(run(SYS_prlimit64, 1234, RLIMIT_NOFILE, UINT64_C(1) << 32), ERRNO(EPERM));
    ASSERT_EQ(run(SYS_prlimit64, 1234, RLIMIT_RSS, 4096), ALLOW);
    ASSERT_EQ(run(SYS_prlimit64, 1234, RLIMIT_LOCKS, 4096), ALLOW);
    ASSERT_EQ(run(SYS_prlimit64, 1, RLIMIT_LOCKS, 4096), ERRNO(EPERM));
}

TEST(arguments_with_process_isolation) {
    static const struct expectation rows[] = {
        { SYS_socket, { AF_UNIX, SOCK_STREAM, 0 }, ERRNO(EACCES) },
        { SYS_socket, { AF_INET, SOCK_STREAM, 0 }, ERRNO(EACCES) },
        { SYS_socket, { AF_INET6, SOCK_DGRAM, 0 }, ERRNO(EACCES) },
        { SYS_socket, { AF_NETLINK, SOCK_RAW, 0 }, ERRNO(EACCES) },
        { SYS_socket, { AF_VSOCK, SOCK_STREAM, 0 }, ERRNO(EAFNOSUPPORT) },
        { SYS_socketpair, { AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0 }, ALLOW },
        { SYS_socketpair, { AF_UNIX, SOCK_SEQPACKET, 0 }, ALLOW },
        { SYS_socketpair, { AF_UNIX, SOCK_DGRAM, 0 }, ERRNO(EACCES) },
        { SYS_socketpair, { AF_UNIX, SOCK_RAW, 0 },
            ERRNO(EACCES) }, /* a datagram one by another name */
        { SYS_prlimit64, { 0, RLIMIT_NOFILE }, ALLOW },
        { SYS_prlimit64, { 1234, RLIMIT_CPU }, ERRNO(EPERM) },
        { SYS_sched_setaffinity, { 0 }, ERRNO(0) },
        { SYS_sched_setscheduler, { 1234 }, ERRNO(EPERM) },
        { SYS_setpriority, { PRIO_PROCESS, 0 }, ALLOW },
        { SYS_setpriority, { PRIO_PROCESS, 1234 }, ERRNO(EPERM) },
        { SYS_setpriority, { PRIO_USER, 0 }, ERRNO(EPERM) }, { SYS_ioprio_set, { 1, 0 }, ALLOW },
        { SYS_ioprio_set, { 3, 0 }, ERRNO(EPERM) }, { SYS_shmget, { 0 }, ERRNO(ENOSYS) },
        { SYS_semop, { 0 }, ERRNO(ENOSYS) }, { SYS_mq_open, { 0 }, ERRNO(ENOSYS) },
        { SYS_inotify_add_watch, { 0 }, ERRNO(EACCES) }, { SYS_getxattr, { 0 }, ERRNO(EOPNOTSUPP) },
        { SYS_llistxattr, { 0 }, ERRNO(EOPNOTSUPP) },
        { 464 /* getxattrat */, { 0 }, ERRNO(EOPNOTSUPP) }, { SYS_fgetxattr, { 0 }, ALLOW },
        { SYS_kill, { 1 }, ALLOW }, /* Landlock's to scope */
    };
    static const struct expectation with_net[] = {
        { SYS_socket, { AF_UNIX, SOCK_STREAM, 0 }, ERRNO(EACCES) },
        { SYS_socket, { AF_INET, SOCK_STREAM, 0 }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_STREAM, 262 }, ERRNO(EPROTONOSUPPORT) },
        { SYS_socket, { AF_NETLINK, SOCK_RAW, 0 }, ALLOW },
    };

    expect((struct filter_options){ .process_isolation = true }, rows, ARRAY_SIZE(rows));
    expect((struct filter_options){ .process_isolation = true, .net_host = true }, with_net,
        ARRAY_SIZE(with_net));
}

/* With net none: nothing but Unix sockets, so nothing that a network namespace would remember. */
TEST(no_inet) {
    static const struct expectation without[] = {
        { SYS_socket, { AF_UNIX, SOCK_STREAM }, ALLOW },
        { SYS_socket, { AF_INET, SOCK_STREAM }, ERRNO(EACCES) },
        { SYS_socket, { AF_INET6, SOCK_DGRAM }, ERRNO(EACCES) },
        { SYS_socket, { AF_NETLINK, SOCK_RAW }, ERRNO(EACCES) },
        { SYS_socket, { AF_PACKET, SOCK_RAW }, ERRNO(EAFNOSUPPORT) },
        { SYS_socketpair, { AF_UNIX, SOCK_DGRAM }, ALLOW },
    };

    expect((struct filter_options){ .no_inet = true }, without, ARRAY_SIZE(without));
}

TEST(arguments_with_denials) {
    static const struct expectation pins[] = {
        { SYS_sched_setaffinity, { 0 }, ALLOW },
        { SYS_sched_setaffinity, { 1 }, ERRNO(EPERM) },
    };
    static const struct expectation limits[] = {
        { SYS_memfd_create, { 0 }, ERRNO(ENOSYS) },
        { SYS_shmget, { 0 }, ERRNO(ENOSYS) },
        { SYS_mq_open, { 0 }, ERRNO(ENOSYS) },
        { SYS_sched_getaffinity, { 0 }, ALLOW },
        { SYS_splice, { 0 }, ERRNO(EINVAL) },
        { SYS_vmsplice, { 0 }, ERRNO(EINVAL) },
        { SYS_tee, { 0 }, ERRNO(EINVAL) },
        { SYS_sendfile, { 0 }, ERRNO(EINVAL) },
        { SYS_copy_file_range, { 0 }, ALLOW },
        { SYS_landlock_create_ruleset, { 0 }, ERRNO(EOPNOTSUPP) },
    };
    static const struct expectation segments[] = {
        { SYS_shmget, { 0 }, ALLOW },
        { SYS_shmat, { 0 }, ALLOW },
        { SYS_shmctl, { 0 }, ALLOW },
        { SYS_shmdt, { 0 }, ALLOW },
        { SYS_semget, { 0 }, ERRNO(ENOSYS) },
        { SYS_msgget, { 0 }, ERRNO(ENOSYS) },
    };
    static const struct expectation setid[] = {
        { SYS_chmod, { 0, 0755 }, ALLOW },
        { SYS_chmod, { 0, 01777 }, ALLOW },
        { SYS_chmod, { 0, 04755 }, ERRNO(EPERM) },
        { SYS_fchmod, { 0, 02755 }, ERRNO(EPERM) },
        { SYS_fchmodat, { 0, 0, 04755 }, ERRNO(EPERM) },
        { SYS_fchmodat, { 0, 0, 0755 }, ALLOW },
        { 452, { 0, 0, 04755 }, ERRNO(EPERM) }, /* fchmodat2 */
        { SYS_creat, { 0, 04755 }, ERRNO(EPERM) },
        { SYS_creat, { 0, 0644 }, ALLOW },
        { SYS_open, { 0, O_RDONLY, 06777 }, ALLOW }, /* no mode without O_CREAT: garbage */
        { SYS_open, { 0, O_CREAT | O_WRONLY, 0644 }, ALLOW },
        { SYS_open, { 0, O_CREAT | O_WRONLY, 04755 }, ERRNO(EPERM) },
        { SYS_open, { 0, O_TMPFILE | O_WRONLY, 02755 }, ERRNO(EPERM) },
        { SYS_openat, { 0, 0, O_RDONLY | O_DIRECTORY }, ALLOW },
        { SYS_openat2, { 0 }, ERRNO(ENOSYS) },
        { SYS_mknod, { 0, S_IFREG | 04755 }, ERRNO(EPERM) },
        { SYS_mknod, { 0, S_IFREG | 0755 }, ALLOW },
    };
    static const struct expectation sync[] = {
        { SYS_sync, { 0 }, ERRNO(0) },
        { SYS_syncfs, { 3 }, ERRNO(0) },
        { SYS_fsync, { 3 }, ALLOW },
    };
    static const struct expectation metadata[] = {
        { SYS_chmod, { 0, 0777 }, ERRNO(0) },
        { SYS_fchmod, { 0, 0777 }, ERRNO(0) },
        { SYS_fchmodat, { 0, 0, 04777 }, ERRNO(0) },
        { 452, { 0, 0, 0777 }, ERRNO(0) },
        { SYS_chown, { 0 }, ERRNO(EPERM) },
        { SYS_utimensat, { 0 }, ERRNO(0) },
        { SYS_fsetxattr, { 0 }, ERRNO(EOPNOTSUPP) },
        { SYS_fgetxattr, { 0 }, ALLOW },
        { SYS_ioctl, { 3, 0x40086602 }, ERRNO(EPERM) },
        { SYS_ioctl, { 3, 0x401c5820 }, ERRNO(EPERM) },
        { SYS_ioctl, { 3, TCGETS }, ALLOW },
    };

    expect((struct filter_options){ .deny_uncharged = true }, limits, ARRAY_SIZE(limits));
    expect((struct filter_options){ .deny_uncharged = true, .allow_segments = true }, segments,
        ARRAY_SIZE(segments));
    expect((struct filter_options){ .allow_affinity = true }, pins, ARRAY_SIZE(pins));
    expect((struct filter_options){ .deny_setid_bits = true }, setid, ARRAY_SIZE(setid));
    expect((struct filter_options){ .no_sync = true }, sync, ARRAY_SIZE(sync));
    expect((struct filter_options){ .keep_metadata = true }, metadata, ARRAY_SIZE(metadata));
    expect(
        (struct filter_options){
            .keep_metadata = true, .deny_setid_bits = true, .process_isolation = true },
        metadata, ARRAY_SIZE(metadata));

    build((struct filter_options){ .deny_setid_bits = true });
    struct seccomp_data create = {
        .nr = SYS_openat, .arch = AUDIT_ARCH_X86_64, .args = { 0, 0, O_CREAT, 04755 }
    };
    ASSERT_EQ(run_data(&create), ERRNO(EPERM));
    create.args[3] = 0644;
    ASSERT_EQ(run_data(&create), ALLOW);
}

TEST(too_small_buffer_is_reported) {
    struct filter_options options = { 0 };
    struct sock_filter again[FILTER_MAX_INSTRUCTIONS];

    build(options);
    for (size_t capacity = 0; capacity < (size_t)n_program; capacity++)
        ASSERT_EQ(filter_build(&options, again, capacity), -ENOBUFS);
    ASSERT_EQ(filter_build(&options, again, (size_t)n_program), n_program);
    ASSERT_MEM_EQ(
        program, (size_t)n_program * sizeof(again[0]), again, (size_t)n_program * sizeof(again[0]));
}

TEST(text_has_names) {
    for (unsigned bits = 0; bits < N_OPTIONS; bits++) {
        auto_buf struct buf text = BUF_INIT;

        build(options_of(bits));
        ASSERT_OK(filter_disassemble(program, (size_t)n_program, &text));
        ASSERT_STR_CONTAINS(text.data, "load nr\n");
        ASSERT_STR_CONTAINS(text.data, "if arch == 0xc000003e (x86-64) then ");
        ASSERT_STR_CONTAINS(text.data, "(ioctl)");
        ASSERT_STR_CONTAINS(text.data, "errno EPERM\n");
        ASSERT_STR_CONTAINS(text.data, "kill process\n");
        ASSERT_STR_CONTAINS(text.data, "args[0].low has a bit of 0x7e028000");
    }
}

TEST(text_of_a_bad_program_is_refused) {
    static const struct sock_filter past_end[] = { BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, ALLOW) };
    static const struct sock_filter far[] = { BPF_STMT(BPF_JMP | BPF_JA, 0xffffffff),
        BPF_STMT(BPF_RET | BPF_K, ALLOW) };
    static const struct sock_filter unknown[] = { BPF_STMT(BPF_MISC | BPF_TAX, 0),
        BPF_STMT(BPF_RET | BPF_K, ALLOW) };
    auto_buf struct buf text = BUF_INIT;

    ASSERT_ERR(filter_disassemble(past_end, 2, &text), -EINVAL);
    ASSERT_ERR(filter_disassemble(far, 2, &text), -EINVAL);
    ASSERT_ERR(filter_disassemble(unknown, 2, &text), -EINVAL);
}

/* ---- by the kernel: each case is a process of its own, and lives with the filter from here on
 * ---- */

static void install(struct filter_options options) {
    build(options);
    struct sock_fprog whole = { (unsigned short)n_program, program };

    ASSERT_CALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    ASSERT_CALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &whole));
}

#define REFUSED(number, call)                                                                      \
    ({                                                                                             \
        errno = 0;                                                                                 \
        long r_ = (long)(call);                                                                    \
        int e_ = errno;                                                                            \
        if (r_ != -1 || e_ != (number))                                                            \
            FAIL("%s: %ld, errno %d, not %s", #call, r_, e_, #number);                             \
    })

static int signal_of(void (*child)(void)) {
    pid_t pid = (pid_t)ASSERT_CALL(fork());
    int status;

    if (pid == 0) {
        child();
        _exit(0);
    }
    ASSERT_CALL(waitpid(pid, &status, 0));
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(kernel_takes_every_program) {
    for (unsigned bits = 0; bits < N_OPTIONS; bits++) {
        pid_t pid = (pid_t)ASSERT_CALL(fork());
        int status;

        if (pid == 0) {
            install(options_of(bits));
            _exit(0);
        }
        ASSERT_CALL(waitpid(pid, &status, 0));
        ASSERT_EQ(status, 0);
    }
}

TEST(kernel_refuses_calls) {
    int fd = (int)ASSERT_CALL(open("/dev/null", O_RDWR));

    install((struct filter_options){ 0 });
    REFUSED(EPERM, syscall(SYS_unshare, CLONE_NEWUSER));
    REFUSED(EPERM, syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    REFUSED(EPERM, syscall(SYS_clone, 0xffff00000000ul | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    REFUSED(EPERM, syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    REFUSED(ENOSYS, syscall(SYS_clone3, NULL, 0));
    ASSERT_CALL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    REFUSED(EPERM, prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0));
    REFUSED(EPERM, syscall(SYS_mount, "none", "/", "tmpfs", 0, NULL));
    REFUSED(EPERM, ioctl(fd, TIOCSTI, "x"));
    REFUSED(EPERM, syscall(SYS_ioctl, fd, 0x100000000ul | TIOCSTI, "x"));
    REFUSED(ENOSYS, syscall(SYS_io_uring_setup, 1, NULL));
    REFUSED(EPERM, syscall(SYS_bpf, 0, NULL, 0));
    REFUSED(EPERM, syscall(SYS_chroot, "/"));
    REFUSED(EPROTONOSUPPORT, socket(AF_INET, SOCK_STREAM, 262));
    REFUSED(EPROTONOSUPPORT, socket(AF_INET, SOCK_STREAM, 132));
    REFUSED(EAFNOSUPPORT, socket(AF_VSOCK, SOCK_STREAM, 0));
    REFUSED(EPERM, socket(AF_INET, SOCK_RAW, 1));
    REFUSED(ENOSYS, syscall(500));
    REFUSED(EBADF, fcntl(-1, F_GETFD));
    ASSERT_CALL(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_CALL(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_CALL(personality(0xffffffff));
    ASSERT_CALL(unshare(CLONE_FILES));
}

static void call_by_int80(void) {
    long result;

    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(20 /* getpid of i386 */)
                     : "memory", "r8", "r9", "r10", "r11");
    if (result == -ENOSYS)
        raise(SIGSYS); /* a kernel without that ABI */
}

static void call_by_x32(void) {
    syscall(0x40000000 + SYS_getpid);
}

TEST(kernel_kills_other_abis) {
    install((struct filter_options){ 0 });
    ASSERT_EQ(signal_of(call_by_int80), SIGSYS);
    ASSERT_EQ(signal_of(call_by_x32), SIGSYS);
}

/* The calls that the init of a sandbox still makes after it has installed the filter. */
TEST(kernel_allows_what_init_needs) {
    struct landlock_ruleset_attr attribute = { .handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE };
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    long ruleset = syscall(SYS_landlock_create_ruleset, &attribute, sizeof(attribute), 0);
    siginfo_t info;

    install(options_of(N_OPTIONS - 1));
    if (ruleset >= 0)
        ASSERT_CALL(syscall(SYS_landlock_restrict_self, ruleset, 0));
    ASSERT_CALL(syscall(SYS_capset, &header, none));
    ASSERT_CALL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    ASSERT_CALL(setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }));
    ASSERT_CALL(chdir("/"));

    pid_t pid = vfork();
    if (pid == 0)
        _exit(3);
    ASSERT_CALL(waitid(P_PID, (id_t)pid, &info, WEXITED));
    ASSERT_EQ(info.si_status, 3);
    pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        if (setsid() < 0 || dup3(1, 9, O_CLOEXEC) < 0)
            _exit(1);
        pause();
    }
    ASSERT_CALL(kill(pid, SIGKILL));
    ASSERT_CALL(waitid(P_PID, (id_t)pid, &info, WEXITED));
}

TEST(kernel_keeps_metadata) {
    const char *directory = test_directory();
    struct stat before, after;

    ASSERT_CALL(chdir(directory));
    close((int)ASSERT_CALL(open("file", O_CREAT | O_WRONLY | O_CLOEXEC, 0640)));
    ASSERT_CALL(stat("file", &before));
    install((struct filter_options){ .process_isolation = true, .keep_metadata = true });
    ASSERT_CALL(chmod("file", 0777));
    ASSERT_CALL(utimensat(AT_FDCWD, "file", (struct timespec[2]){ { 1, 0 }, { 1, 0 } }, 0));
    REFUSED(EPERM, chown("file", 1, 1));
    REFUSED(EACCES, socket(AF_UNIX, SOCK_STREAM, 0));
    REFUSED(EPERM, syscall(SYS_prlimit64, getppid(), RLIMIT_NOFILE, NULL, NULL));
    ASSERT_CALL(stat("file", &after));
    ASSERT_EQ(after.st_mode, before.st_mode);
    ASSERT_EQ(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
}

/* Runs a shell command under the filter; 0 if it ended well. */
static void works(struct filter_options options, const char *program_name, const char *command) {
    auto_free char *probe = NULL;
    const char *directory = test_directory();

    ASSERT_TRUE(asprintf(&probe, "command -v %s >/dev/null 2>&1", program_name) > 0);
    if (system(probe) != 0)
        SKIP(program_name, "%s is not installed", program_name);
    ASSERT_CALL(chdir(directory));
    ASSERT_CALL(setenv("HOME", directory, 1));

    pid_t pid = (pid_t)ASSERT_CALL(fork());
    int status;
    if (pid == 0) {
        install(options);
        execl("/bin/bash", "bash", "-e", "-c", command, (char *)NULL);
        _exit(99);
    }
    ASSERT_CALL(waitpid(pid, &status, 0));
    ASSERT_EQ(status, 0);
}

TEST_TIMEOUT(bash_works, 60) {
    works((struct filter_options){ 0 }, "bash",
        "x=$(seq 100 | sort -n | tail -1); test $x = 100; echo a > f; chmod 755 f; touch f; cp -p "
        "f g; mv g h; tar cf t.tar f h; tar xf t.tar; mkfifo p");
}

TEST_TIMEOUT(bash_works_with_process_isolation, 60) {
    works((struct filter_options){ .process_isolation = true,
              .keep_metadata = true,
              .deny_uncharged = true,
              .deny_setid_bits = true },
        "bash",
        "x=$(seq 100 | sort -n | tail -1); test $x = 100; echo a > f; chmod 644 f; touch f; cp -p "
        "f g; mv g h; tar cf t.tar f h; tar xf t.tar --no-same-owner; rm -r f h");
}

TEST_TIMEOUT(python_works, 60) {
    works((struct filter_options){ 0 }, "python3",
        "python3 -c 'import multiprocessing, subprocess, threading, asyncio, socket, tempfile, os\n"
        "with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]\n"
        "assert subprocess.run([\"echo\", \"hi\"], capture_output=True).stdout == b\"hi\\n\"\n"
        "t = threading.Thread(target=print); t.start(); t.join()\n"
        "asyncio.run(asyncio.sleep(0)); socket.socketpair(); os.memfd_create(\"x\"); "
        "tempfile.TemporaryFile()'");
}

TEST_TIMEOUT(python_works_with_process_isolation, 60) {
    works(
        (struct filter_options){
            .process_isolation = true, .keep_metadata = true, .deny_uncharged = true },
        "python3",
        "python3 -c 'import multiprocessing, subprocess, asyncio, shutil\n"
        "with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]\n"
        "assert subprocess.run([\"echo\", \"hi\"], capture_output=True).stdout == b\"hi\\n\"\n"
        "open(\"a\", \"w\").write(\"x\"); shutil.copy2(\"a\", \"b\"); "
        "asyncio.run(asyncio.sleep(0))'");
}

TEST_TIMEOUT(gcc_works, 60) {
    works((struct filter_options){ 0 }, "gcc",
        "echo 'int main(void) { return 0; }' > a.c; gcc -o a a.c; ./a");
}

TEST_TIMEOUT(gcc_works_with_process_isolation, 60) {
    works(
        (struct filter_options){
            .process_isolation = true, .deny_uncharged = true, .deny_setid_bits = true },
        "gcc", "echo 'int main(void) { return 0; }' > a.c; gcc -o a a.c; ./a");
}

/* The linker makes its output executable by chmod, which keep_metadata leaves undone: the price of
 * that option. */
TEST_TIMEOUT(gcc_links_with_everything_denied, 60) {
    works(options_of(N_OPTIONS - 1), "gcc",
        "echo 'int main(void) { return 0; }' > a.c; gcc -o a a.c; test -s a; test ! -x a");
}

TEST_TIMEOUT(git_works, 60) {
    works((struct filter_options){ 0 }, "git",
        "git init -q r; cd r; echo a > a; git add a; git -c user.name=a -c user.email=a@b commit "
        "-q -m a; git log --oneline | grep -q a");
}

TEST_TIMEOUT(git_works_with_everything_denied, 60) {
    works(options_of(N_OPTIONS - 1), "git",
        "git init -q r; cd r; echo a > a; git add a; git -c user.name=a -c user.email=a@b commit "
        "-q -m a; git log --oneline | grep -q a");
}

TEST_TIMEOUT(perl_works, 60) {
    works((struct filter_options){ 0 }, "perl",
        "perl -e 'my $x = `echo hi`; die unless $x eq qq(hi\\n); if (!fork()) { exit 0 } wait; "
        "exit $? >> 8'");
}

TEST_TIMEOUT(node_works, 60) {
    works((struct filter_options){ 0 }, "node",
        "node -e 'require(\"fs\").writeFileSync(\"a\", \"x\"); "
        "require(\"child_process\").execFileSync(\"true\"); new "
        "(require(\"worker_threads\").Worker)(\"1\", {eval: true})'");
}

TEST_TIMEOUT(go_works, 120) {
    works((struct filter_options){ 0 }, "go", "go version");
}

TEST_TIMEOUT(java_works, 60) {
    works((struct filter_options){ 0 }, "java", "java -Xmx64m -version");
}

TEST_TIMEOUT(strace_works, 60) {
    works((struct filter_options){ 0 }, "strace",
        "strace -f -o log bash -c 'true | true'; grep -q execve log");
}

TEST_TIMEOUT(gdb_works, 60) {
    works((struct filter_options){ 0 }, "gdb",
        "gdb -batch -nx -ex run -ex quit /bin/true | grep -q 'exited normally'");
}
