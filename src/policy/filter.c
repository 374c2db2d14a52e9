/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generates the seccomp program (see filter.h).
 *
 * A jump of classic BPF only goes forward, and a conditional jump at most 255 instructions. So the
 * program is written back to front: the target of every jump already exists and its distance is
 * known. If the target is too far, a copy of the RET or a long jump is put next to the jump. A
 * "place" is an instruction's number counted from the end of the program.
 *
 * In the order of execution the program checks the architecture, searches a tree for the call's
 * number, and checks arguments. At installation the kernel runs the program once for every number;
 * later, calls that are always allowed skip it. So the depth of the tree is paid at installation.
 * The tree is balanced by the count of numbers in a range, and neighbours with the same rule form
 * one range.
 *
 * Arguments that the kernel itself reads as 32 bits (int and unsigned int) are compared by their
 * low 32 bits. Comparing all 64 would let a guest hide a value behind a high bit that the kernel
 * ignores. Memory behind a pointer is never read, because the guest could change it after the
 * check.
 */
#include "policy/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"

#if defined(__x86_64__)
#    include "policy/syscalls_x86_64.h"
#    define FILTER_ARCH AUDIT_ARCH_X86_64
#    define FILTER_X32_BIT 0x40000000u
#endif

/* The action for a call. Those up to FILTER_TRACED are verdicts; the others are generated from the
 * options or the arguments. */
enum filter_rule {
    FILTER_ENOSYS, /* not there; also the rule of numbers without a row */
    FILTER_ALLOW,
    FILTER_EPERM,
    FILTER_EACCES,
    FILTER_EINVAL,
    FILTER_EOPNOTSUPP,
    FILTER_EAFNOSUPPORT,
    FILTER_EPROTONOSUPPORT,
    FILTER_ESOCKTNOSUPPORT,
    FILTER_ENOPROTOOPT,
    FILTER_E2BIG,
    FILTER_DONE, /* returns 0 and does nothing */
    FILTER_KILL,
    FILTER_TRACED, /* a tracer with PTRACE_O_TRACESECCOMP decides, which a guest cannot be; without
                      one: ENOSYS */
    /* by argument */
    FILTER_CLONE,
    FILTER_UNSHARE,
    FILTER_PERSONALITY,
    FILTER_IOCTL,
    FILTER_FCNTL,
    FILTER_SOCKET,
    FILTER_SOCKETPAIR,
    FILTER_SECCOMP,
    FILTER_PRCTL,
    FILTER_SOCKOPT,
    FILTER_MKNOD,
    FILTER_MKNODAT,
    FILTER_RENAME,
    FILTER_CHECK_RESERVE, /* argument 1 is a mode that punches a hole */
    FILTER_CHECK_SELF,    /* the pid argument must be 0 */
    FILTER_CHECK_PRIORITY,
    FILTER_CHECK_IOPRIO,
    FILTER_CHECK_MODE1, /* no set-id bits in argument 1 */
    FILTER_CHECK_MODE2,
    FILTER_CHECK_OPEN, /* no set-id bits in the mode, if the flags say that there is a mode */
    FILTER_CHECK_OPENAT,
    FILTER_CHECK_PTRACE,
    FILTER_CHECK_FAULTS,
    FILTER_CHECK_NOT_INIT,  /* argument 0 is not pid 1 */
    FILTER_CHECK_LIMITS,    /* the same, and limits are set of the caller alone */
    FILTER_CHECK_ATTRIBUTE, /* argument 3, a length, is not the length of a long access control list
                             */
    /* by option: one of the above */
    FILTER_RESERVE,
    FILTER_MEMFD,
    FILTER_PAGES,
    FILTER_SYSVIPC,
    FILTER_SEGMENTS,
    FILTER_RULESET,
    FILTER_AFFINITY,
    FILTER_OTHERS,
    FILTER_LIMITS,
    FILTER_GETFD,
    FILTER_PEEK,
    FILTER_PTRACE,
    FILTER_FAULTS,
    FILTER_PRIORITY,
    FILTER_IOPRIO,
    FILTER_WATCH,
    FILTER_CHMOD,
    FILTER_CHMODAT,
    FILTER_CREAT,
    FILTER_OPEN,
    FILTER_OPENAT,
    FILTER_OPENAT2,
    FILTER_OWNER,
    FILTER_TIMES,
    FILTER_XATTR,
    FILTER_XATTR_SET,
    FILTER_XATTR_SET_AT,
    FILTER_NOTES,
    FILTER_SYNC,
    FILTER_CHROOT,
};

/* Of the kernel's interface, spelled out where a header is too old or would clash with libc's. */
#define NAMESPACE_FLAGS                                                                            \
    0x7e020000u /* CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; CLONE_NEWTIME  \
                   is no flag of clone */
#define PARENT_FLAG 0x00008000u /* CLONE_PARENT: a process that leaves the tree of its command */
#define UNSHARE_ALLOWED                                                                            \
    0x00050f00u /* CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: of the process itself */
#define PERSONALITY_ALLOWED                                                                        \
    0x00060008u /* PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE: setarch and gdb */
#define SOCKET_TYPE_MASK 0xfu
#define NEW_LISTENER 8u
#define OPEN_CREATES 0x00400040u /* O_CREAT, __O_TMPFILE */
#define SETID_BITS (S_ISUID | S_ISGID)
#define RENAME_WHITEOUT_FLAG 4u

#define ARGUMENT(i)                                                                                \
    ((uint32_t)offsetof(struct seccomp_data, args) +                                               \
        8u * (i))  /* its low half: little endian only */
#define REACH 250u /* of a conditional jump, with room for what make_near() adds */

struct program {
    struct sock_filter *instructions; /* filled from the end */
    unsigned capacity, n;
    bool full;
    unsigned places[FILTER_CHECK_ATTRIBUTE +
                    1]; /* of the checks of arguments; 0 (always a RET) if not written yet */
};

static struct sock_filter *instruction_at(const struct program *p, unsigned place) {
    return &p->instructions[p->capacity - 1 - place];
}

static unsigned emit_instruction(
    struct program *p, unsigned code, unsigned jt, unsigned jf, uint32_t k) {
    if (p->n == p->capacity) {
        p->full = true;
        return 0;
    }
    *instruction_at(p, p->n) = (struct sock_filter){ (uint16_t)code, (uint8_t)jt, (uint8_t)jf, k };
    return p->n++;
}

/* A place in reach of a conditional jump written next that does what `place` does. */
static unsigned make_near(struct program *p, unsigned place) {
    if (p->full || p->n - place <= REACH)
        return place;
    if (instruction_at(p, place)->code == (BPF_RET | BPF_K))
        return emit_instruction(p, BPF_RET | BPF_K, 0, 0, instruction_at(p, place)->k);
    return emit_instruction(p, BPF_JMP | BPF_JA, 0, 0, p->n - place - 1);
}

static unsigned emit_test(
    struct program *p, unsigned operation, uint32_t k, unsigned yes, unsigned no) {
    yes = make_near(p, yes);
    no = make_near(p, no);
    return emit_instruction(p, BPF_JMP | operation | BPF_K, p->n - yes - 1, p->n - no - 1, k);
}

/* Makes `next` the instruction that follows the one written next. */
static void emit_before(struct program *p, unsigned next) {
    if (next + 1 != p->n)
        emit_instruction(p, BPF_JMP | BPF_JA, 0, 0, p->n - next - 1);
}

static unsigned load_field(struct program *p, uint32_t offset, unsigned next) {
    emit_before(p, next);
    return emit_instruction(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static unsigned mask_bits(struct program *p, uint32_t bits, unsigned next) {
    emit_before(p, next);
    return emit_instruction(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, bits);
}

/* To `yes` if A is one of the values, else to `no`. */
static unsigned one_of(
    struct program *p, const uint32_t *values, size_t n, unsigned yes, unsigned no) {
    for (size_t i = n; i-- > 0;)
        no = emit_test(p, BPF_JEQ, values[i], yes, no);
    return no;
}

static uint32_t action_of(enum filter_rule rule) {
    static const uint32_t actions[FILTER_TRACED + 1] = {
        [FILTER_ENOSYS] = SECCOMP_RET_ERRNO | ENOSYS,
        [FILTER_ALLOW] = SECCOMP_RET_ALLOW,
        [FILTER_EPERM] = SECCOMP_RET_ERRNO | EPERM,
        [FILTER_EACCES] = SECCOMP_RET_ERRNO | EACCES,
        [FILTER_EINVAL] = SECCOMP_RET_ERRNO | EINVAL,
        [FILTER_EOPNOTSUPP] = SECCOMP_RET_ERRNO | EOPNOTSUPP,
        [FILTER_EAFNOSUPPORT] = SECCOMP_RET_ERRNO | EAFNOSUPPORT,
        [FILTER_EPROTONOSUPPORT] = SECCOMP_RET_ERRNO | EPROTONOSUPPORT,
        [FILTER_ESOCKTNOSUPPORT] = SECCOMP_RET_ERRNO | ESOCKTNOSUPPORT,
        [FILTER_ENOPROTOOPT] = SECCOMP_RET_ERRNO | ENOPROTOOPT,
        [FILTER_E2BIG] = SECCOMP_RET_ERRNO | E2BIG,
        [FILTER_DONE] = SECCOMP_RET_ERRNO | 0,
        [FILTER_KILL] = SECCOMP_RET_KILL_PROCESS,
        [FILTER_TRACED] = SECCOMP_RET_TRACE,
    };

    return actions[rule];
}

static unsigned emit_verdict(struct program *p, enum filter_rule rule) {
    uint32_t action = action_of(rule);

    for (unsigned place = p->n; place-- > 0 && p->n - place < REACH;)
        if (instruction_at(p, place)->code == (BPF_RET | BPF_K) &&
            instruction_at(p, place)->k == action)
            return place;
    return emit_instruction(p, BPF_RET | BPF_K, 0, 0, action);
}

static unsigned check_bits(
    struct program *p, unsigned argument, uint32_t bits, enum filter_rule found) {
    return load_field(p, ARGUMENT(argument),
        emit_test(p, BPF_JSET, bits, emit_verdict(p, found), emit_verdict(p, FILTER_ALLOW)));
}

static unsigned check_personality(struct program *p) {
    unsigned flags = emit_test(p, BPF_JSET, ~PERSONALITY_ALLOWED, emit_verdict(p, FILTER_EPERM),
        emit_verdict(p, FILTER_ALLOW));

    return load_field(p, ARGUMENT(0),
        emit_test(
            p, BPF_JEQ, 0xffffffffu, emit_verdict(p, FILTER_ALLOW), flags)); /* -1 only queries */
}

/* Calls that let a guest type into a terminal that it was given as a stream, change that terminal,
 * or hide its writes from the kernel; with keep_metadata also calls that change a file by its
 * inode. */
static unsigned check_ioctl(struct program *p, const struct filter_options *options) {
    static const uint32_t terminal[] = { TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS,
        0xc0606610u /* PAGEMAP_SCAN (dump/dirty_pages.c) */ };
    static const uint32_t inode[] = {
        0x40086602u, /* FS_IOC_SETFLAGS */
        0x40046602u, /* FS_IOC32_SETFLAGS: some file systems take it from 64-bit callers too */
        0x40087602u, /* FS_IOC_SETVERSION */
        0x401c5820u, /* FS_IOC_FSSETXATTR */
        0x40806685u, /* FS_IOC_ENABLE_VERITY */
    };
    /* The calls of XFS that other file systems have taken over: fallocate by another name. */
    static const uint32_t reserve[] = {
        0x40305828u, /* FS_IOC_RESVSP */
        0x4030582au, /* FS_IOC_RESVSP64 */
        0x40305839u, /* FS_IOC_ZERO_RANGE */
        0x401c5820u, /* FS_IOC_FSSETXATTR: with an extent size hint, XFS reserves as much as that
                        says for each byte that is written */
    };
    /* Directories that cannot be removed like others: nothing can be renamed out of them, or all of
     * it may be read-only. */
    static const uint32_t apart[] = {
        0x50009401u, /* BTRFS_IOC_SNAP_CREATE */
        0x50009417u, /* BTRFS_IOC_SNAP_CREATE_V2 */
        0x5000940eu, /* BTRFS_IOC_SUBVOL_CREATE */
        0x50009418u, /* BTRFS_IOC_SUBVOL_CREATE_V2 */
        0x4008941au, /* BTRFS_IOC_SUBVOL_SETFLAGS */
        0x800c6613u, /* FS_IOC_SET_ENCRYPTION_POLICY */
    };
    unsigned rest = emit_verdict(p, FILTER_ALLOW);

    if (options->deny_reserve) {
        rest = one_of(
            p, apart, sizeof(apart) / sizeof(apart[0]), emit_verdict(p, FILTER_EOPNOTSUPP), rest);
        rest = one_of(p, reserve, sizeof(reserve) / sizeof(reserve[0]),
            emit_verdict(p, FILTER_EOPNOTSUPP), rest);
    }
    if (options->keep_metadata)
        rest =
            one_of(p, inode, sizeof(inode) / sizeof(inode[0]), emit_verdict(p, FILTER_EPERM), rest);
    return load_field(p, ARGUMENT(1),
        one_of(p, terminal, sizeof(terminal) / sizeof(terminal[0]), emit_verdict(p, FILTER_EPERM),
            rest));
}

/* No leases: with a lease on a file that it may only read, the sandbox would delay every process of
 * the host that opens this file for writing, for 45 seconds. File systems without leases return
 * EINVAL. */
static unsigned check_fcntl(struct program *p) {
    static const uint32_t leases[] = { 1024 /* F_SETLEASE */, 1040 /* F_SETDELEG */ };

    return load_field(p, ARGUMENT(1),
        one_of(p, leases, sizeof(leases) / sizeof(leases[0]), emit_verdict(p, FILTER_EINVAL),
            emit_verdict(p, FILTER_ALLOW)));
}

/* TCP, UDP and ping sockets only, by name: protocol 0 of another type would be SCTP or DCCP, 262 is
 * TCP past a rule for TCP. SOCK_PACKET (10) of AF_INET would be AF_PACKET. */
static unsigned check_inet(struct program *p) {
    static const uint32_t stream[] = { 0, 6 /* TCP */ };
    static const uint32_t datagram[] = { 0, 17 /* UDP */, 1 /* ICMP */, 58 /* ICMPv6 */ };
    unsigned allow = emit_verdict(p, FILTER_ALLOW),
             refuse = emit_verdict(p, FILTER_EPROTONOSUPPORT);
    unsigned on_datagram = load_field(
        p, ARGUMENT(2), one_of(p, datagram, sizeof(datagram) / sizeof(datagram[0]), allow, refuse));
    unsigned on_stream = load_field(
        p, ARGUMENT(2), one_of(p, stream, sizeof(stream) / sizeof(stream[0]), allow, refuse));
    unsigned type = emit_test(p, BPF_JEQ, SOCK_RAW, emit_verdict(p, FILTER_EPERM),
        emit_verdict(p, FILTER_ESOCKTNOSUPPORT));

    type = emit_test(p, BPF_JEQ, SOCK_DGRAM, on_datagram, type);
    type = emit_test(p, BPF_JEQ, SOCK_STREAM, on_stream, type);
    return load_field(p, ARGUMENT(1), mask_bits(p, SOCKET_TYPE_MASK, type));
}

static unsigned check_socket(struct program *p, const struct filter_options *options) {
    bool net = options->process_isolation ? options->net_host : !options->no_inet;
    unsigned denied = emit_verdict(p, FILTER_EACCES);
    unsigned route =
        net ? load_field(p, ARGUMENT(2),
                  emit_test(p, BPF_JEQ, 0 /* NETLINK_ROUTE */, emit_verdict(p, FILTER_ALLOW),
                      emit_verdict(p, FILTER_EPROTONOSUPPORT)))
        : options->many_users
            ? load_field(p, ARGUMENT(2),
                  emit_test(p, BPF_JEQ, 0, denied, emit_verdict(p, FILTER_EPROTONOSUPPORT)))
            : denied;
    unsigned inet = net ? check_inet(p) : denied;
    unsigned family =
        emit_test(p, BPF_JEQ, AF_NETLINK, route, emit_verdict(p, FILTER_EAFNOSUPPORT));

    family = emit_test(p, BPF_JEQ, AF_INET6, inet, family);
    family = emit_test(p, BPF_JEQ, AF_INET, inet, family);
    family = emit_test(p, BPF_JEQ, AF_UNIX,
        options->process_isolation ? denied : emit_verdict(p, FILTER_ALLOW), family);
    return load_field(p, ARGUMENT(0), family);
}

/* A datagram socket of a pair can be connected again, to a socket of the host; a stream or
 * seqpacket one cannot. */
static unsigned check_socketpair(struct program *p, const struct filter_options *options) {
    static const uint32_t connected[] = { SOCK_STREAM, SOCK_SEQPACKET };
    unsigned local = emit_verdict(p, FILTER_ALLOW);

    if (options->process_isolation)
        local = load_field(p, ARGUMENT(1),
            mask_bits(p, SOCKET_TYPE_MASK,
                one_of(p, connected, 2, local, emit_verdict(p, FILTER_EACCES))));
    return load_field(
        p, ARGUMENT(0), emit_test(p, BPF_JEQ, AF_UNIX, local, emit_verdict(p, FILTER_EOPNOTSUPP)));
}

static unsigned check_mknod(
    struct program *p, const struct filter_options *options, unsigned argument) {
    static const uint32_t kinds[] = { 0, S_IFREG, S_IFIFO, S_IFSOCK };
    unsigned denied = emit_verdict(p, FILTER_EPERM);
    unsigned kind = mask_bits(p, S_IFMT,
        one_of(p, kinds, sizeof(kinds) / sizeof(kinds[0]), emit_verdict(p, FILTER_ALLOW), denied));

    if (options->deny_setid_bits)
        kind = emit_test(p, BPF_JSET, SETID_BITS, denied, kind);
    return load_field(p, ARGUMENT(argument), kind);
}

/* setpriority and ioprio_set: the caller itself or its process group, not all processes of the user
 * (the host's are among them). */
static unsigned check_own(struct program *p, uint32_t user) {
    unsigned denied = emit_verdict(p, FILTER_EPERM);
    unsigned who =
        load_field(p, ARGUMENT(1), emit_test(p, BPF_JEQ, 0, emit_verdict(p, FILTER_ALLOW), denied));

    return load_field(p, ARGUMENT(0), emit_test(p, BPF_JEQ, user, denied, who));
}

/* The same in a sandbox with its own pid namespace: init is excluded. It has the guest's id, so a
 * guest could starve it and cause an infrastructure error. */
static unsigned check_not_init(struct program *p, unsigned argument) {
    return load_field(p, ARGUMENT(argument),
        emit_test(p, BPF_JEQ, 1, emit_verdict(p, FILTER_EPERM), emit_verdict(p, FILTER_ALLOW)));
}

/* A command exists before its program starts, and init places its streams meanwhile. A guest that
 * lowered its limits then would cause an infrastructure error. So limits are set of the caller
 * alone, whose pid argument is 0, as in setrlimit(); those of others, but for init, are read. Two
 * limits without any effect can be set: init keeps a process's random stream in them. */
static unsigned check_limits(struct program *p) {
    unsigned allow = emit_verdict(p, FILTER_ALLOW), not_init = check_not_init(p, 0);
    unsigned resource = emit_test(p, BPF_JEQ, 5 /* RLIMIT_RSS */, not_init,
        emit_test(p, BPF_JEQ, 10 /* RLIMIT_LOCKS */, not_init, emit_verdict(p, FILTER_EPERM)));
    unsigned refuse = load_field(p, ARGUMENT(1), resource);
    unsigned high = load_field(p, ARGUMENT(2) + 4, emit_test(p, BPF_JEQ, 0, not_init, refuse));
    unsigned sets = load_field(p, ARGUMENT(2), emit_test(p, BPF_JEQ, 0, high, refuse));

    return load_field(p, ARGUMENT(0), emit_test(p, BPF_JEQ, 0, allow, sets));
}

/* A guest that traces a process must not decide on calls that a filter leaves to tracers
 * (check_faults). Kernels without that option return EINVAL. */
static unsigned check_ptrace(struct program *p, const struct filter_options *options) {
    static const uint32_t sets_options[] = { 0x4200 /* PTRACE_SETOPTIONS */,
        0x4206 /* PTRACE_SEIZE */, 21 /* PTRACE_OLDSETOPTIONS */ };
    unsigned allow = emit_verdict(p, FILTER_ALLOW);
    unsigned set = load_field(p, ARGUMENT(3),
        emit_test(
            p, BPF_JSET, 0x80 /* PTRACE_O_TRACESECCOMP */, emit_verdict(p, FILTER_EINVAL), allow));
    unsigned request = load_field(p, ARGUMENT(0),
        one_of(p, sets_options, sizeof(sets_options) / sizeof(sets_options[0]), set, allow));

    return options->process_isolation
               ? request
               : load_field(p, ARGUMENT(1),
                     emit_test(p, BPF_JEQ, 1, emit_verdict(p, FILTER_EPERM), request));
}

/* Guests have no userfaultfd. The dump worker makes one in a guest's process for dirty tracking
 * (dump/dirty_pages.c), which handles no kernel faults. */
static unsigned check_faults(struct program *p) {
    return load_field(p, ARGUMENT(0),
        emit_test(p, BPF_JEQ, 0x80001 /* O_CLOEXEC, UFFD_USER_MODE_ONLY */,
            emit_verdict(p, FILTER_TRACED), emit_verdict(p, FILTER_EPERM)));
}

static unsigned check_not_user(struct program *p, uint32_t user) {
    return load_field(p, ARGUMENT(0),
        emit_test(p, BPF_JEQ, user, emit_verdict(p, FILTER_EPERM), check_not_init(p, 1)));
}

static unsigned check_open(struct program *p, unsigned flags_argument) {
    unsigned mode = check_bits(p, flags_argument + 1, SETID_BITS, FILTER_EPERM);

    return load_field(p, ARGUMENT(flags_argument),
        emit_test(p, BPF_JSET, OPEN_CREATES, mode, emit_verdict(p, FILTER_ALLOW)));
}

/* A command is the subreaper of its tree, and stays it: else what it orphans would go to init, and
 * no time-out would find it. And no table of futexes of its own choosing, which takes gigabytes in
 * one call (Linux 6.16): EINVAL is what kernels before say. Nor names of mappings (PR_SET_VMA), up
 * to 96 bytes for each that no group is charged with: EINVAL is what kernels without them say. */
static unsigned check_prctl(struct program *p) {
    unsigned allow = emit_verdict(p, FILTER_ALLOW);
    unsigned to =
        load_field(p, ARGUMENT(1), emit_test(p, BPF_JEQ, 0, emit_verdict(p, FILTER_EPERM), allow));
    unsigned hash =
        emit_test(p, BPF_JEQ, 78 /* PR_FUTEX_HASH */, emit_verdict(p, FILTER_EINVAL), allow);

    hash =
        emit_test(p, BPF_JEQ, 0x53564d41u /* PR_SET_VMA */, emit_verdict(p, FILTER_EINVAL), hash);

    return load_field(
        p, ARGUMENT(0), emit_test(p, BPF_JEQ, 36 /* PR_SET_CHILD_SUBREAPER */, to, hash));
}

/* Socket options whose memory the kernel charges to no cgroup, and of which a socket or a network
 * accepts large values or any number. A kernel without the option returns ENOPROTOOPT. - Filters:
 * their machine code is charged to no cgroup, and its sum is limited for the whole host
 * (net.core.bpf_jit_limit). Beyond the limit no other sandbox would get its own filter. EPERM. -
 * Keys that sign segments (TCP_MD5SIG, TCP-AO): 4,000 per socket. Upper layers (TCP_ULP) and their
 * ciphers. - Groups of IPv6, and sources of groups: each is an entry of the network, 4,000 per
 * socket. Groups of IPv4 without sources are limited by igmp_max_memberships (guest/init/setup.c).
 * - Headers of IPv6 that are sent with each packet: up to 128 KiB per socket. */
static unsigned check_sockopt(struct program *p) {
    static const uint32_t programs[] = { SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF };
    unsigned allow = emit_verdict(p, FILTER_ALLOW), absent = emit_verdict(p, FILTER_ENOPROTOOPT);

    /* TCP_MD5SIG; from TCP_ULP on TCP_MD5SIG_EXT and TCP_FASTOPEN_KEY; TCP_AO_ADD_KEY, _DEL_KEY,
     * _INFO */
    unsigned tcp = emit_test(p, BPF_JGE, 31, absent, emit_test(p, BPF_JEQ, 14, absent, allow));
    tcp = load_field(p, ARGUMENT(2),
        emit_test(p, BPF_JGE, 41, allow,
            emit_test(p, BPF_JGE, 38, absent, emit_test(p, BPF_JGE, 34, allow, tcp))));

    /* IPV6_2292PKTOPTIONS, IPV6_JOIN_GROUP, IPV6_RTHDR; MCAST_JOIN_GROUP to MCAST_MSFILTER. Other
     * headers, and anycast, take a capability. */
    static const uint32_t of_ipv6[] = { 6, 20, 57 };
    unsigned ipv6 = one_of(p, of_ipv6, ARRAY_SIZE(of_ipv6), absent, allow);
    ipv6 = load_field(
        p, ARGUMENT(2), emit_test(p, BPF_JGE, 49, ipv6, emit_test(p, BPF_JGE, 42, absent, ipv6)));

    /* IP_BLOCK_SOURCE to MCAST_MSFILTER, but for MCAST_JOIN_GROUP and MCAST_LEAVE_GROUP */
    static const uint32_t whole_groups[] = { 42, 45 };
    unsigned ip = emit_test(
        p, BPF_JGE, 38, one_of(p, whole_groups, ARRAY_SIZE(whole_groups), allow, absent), allow);
    ip = load_field(p, ARGUMENT(2), emit_test(p, BPF_JGE, 49, allow, ip));

    unsigned socket = load_field(p, ARGUMENT(2),
        one_of(p, programs, ARRAY_SIZE(programs), emit_verdict(p, FILTER_EPERM), allow));
    unsigned level = emit_test(p, BPF_JEQ, 6 /* SOL_TCP */, tcp, allow);

    level = emit_test(p, BPF_JEQ, 41 /* SOL_IPV6 */, ipv6, level);
    level = emit_test(p, BPF_JEQ, 0 /* SOL_IP */, ip, level);
    return load_field(p, ARGUMENT(1), emit_test(p, BPF_JEQ, SOL_SOCKET, socket, level));
}

/* An access control list (POSIX ACL) of a file in memory is charged to nobody, and one of 64 KiB
 * can hang on each file, two on each directory. An attribute's name cannot be seen here, its length
 * can: such a list has 4 bytes and 8 for each entry, so of what is longer than
 * FILTER_ATTRIBUTE_BYTES every eighth length is refused, as too long. Other attributes are charged.
 */
static unsigned check_attribute(struct program *p) {
    unsigned allow = emit_verdict(p, FILTER_ALLOW);
    unsigned remainder =
        mask_bits(p, 7, emit_test(p, BPF_JEQ, 4, emit_verdict(p, FILTER_E2BIG), allow));

    return load_field(
        p, ARGUMENT(3), emit_test(p, BPF_JGE, FILTER_ATTRIBUTE_BYTES + 1, remainder, allow));
}

static unsigned emit_check(
    struct program *p, const struct filter_options *options, enum filter_rule rule) {
    switch ((int)rule) {
    case FILTER_CLONE:
        return check_bits(p, 0, NAMESPACE_FLAGS | PARENT_FLAG, FILTER_EPERM);
    case FILTER_UNSHARE:
        return check_bits(p, 0, ~UNSHARE_ALLOWED, FILTER_EPERM);
    case FILTER_PERSONALITY:
        return check_personality(p);
    case FILTER_IOCTL:
        return check_ioctl(p, options);
    case FILTER_FCNTL:
        return check_fcntl(p);
    case FILTER_SOCKET:
        return check_socket(p, options);
    case FILTER_SOCKETPAIR:
        return check_socketpair(p, options);
    case FILTER_SECCOMP:
        /* A seccomp listener blocks its processes in the kernel until it answers, and a dump cannot
         * include it. A kernel without listeners returns EINVAL. */
        return options->allow_listener ? emit_verdict(p, FILTER_ALLOW)
                                       : check_bits(p, 1, NEW_LISTENER, FILTER_EINVAL);
    case FILTER_PRCTL:
        return check_prctl(p);
    case FILTER_SOCKOPT:
        return check_sockopt(p);
    case FILTER_MKNOD:
        return check_mknod(p, options, 1);
    case FILTER_MKNODAT:
        return check_mknod(p, options, 2);
    case FILTER_RENAME:
        return check_bits(p, 4, RENAME_WHITEOUT_FLAG,
            FILTER_EINVAL); /* a whiteout is a device node, and layers give it a meaning */
    case FILTER_CHECK_RESERVE:
        return load_field(p, ARGUMENT(1),
            emit_test(p, BPF_JSET, 2 /* FALLOC_FL_PUNCH_HOLE */, emit_verdict(p, FILTER_ALLOW),
                emit_verdict(p, FILTER_EOPNOTSUPP)));
    case FILTER_CHECK_SELF:
        return load_field(p, ARGUMENT(0),
            emit_test(p, BPF_JEQ, 0, emit_verdict(p, FILTER_ALLOW), emit_verdict(p, FILTER_EPERM)));
    case FILTER_CHECK_PRIORITY:
        return options->process_isolation ? check_own(p, 2 /* PRIO_USER */) : check_not_user(p, 2);
    case FILTER_CHECK_IOPRIO:
        return options->process_isolation ? check_own(p, 3 /* IOPRIO_WHO_USER */)
                                          : check_not_user(p, 3);
    case FILTER_CHECK_MODE1:
        return check_bits(p, 1, SETID_BITS, FILTER_EPERM);
    case FILTER_CHECK_MODE2:
        return check_bits(p, 2, SETID_BITS, FILTER_EPERM);
    case FILTER_CHECK_OPEN:
        return check_open(p, 1);
    case FILTER_CHECK_OPENAT:
        return check_open(p, 2);
    case FILTER_CHECK_PTRACE:
        return check_ptrace(p, options);
    case FILTER_CHECK_FAULTS:
        return check_faults(p);
    case FILTER_CHECK_NOT_INIT:
        return check_not_init(p, 0);
    case FILTER_CHECK_LIMITS:
        return check_limits(p);
    case FILTER_CHECK_ATTRIBUTE:
        return check_attribute(p);
    default:
        return emit_verdict(p, rule);
    }
}

/* A rule that depends on the options as the rule that it is with these. */
static enum filter_rule resolve_rule(const struct filter_options *o, enum filter_rule rule) {
    switch ((int)rule) {
    case FILTER_RESERVE:
        return o->deny_reserve ? FILTER_CHECK_RESERVE : FILTER_ALLOW;
    case FILTER_MEMFD:
        return o->deny_uncharged ? FILTER_ENOSYS : FILTER_ALLOW;
    case FILTER_PAGES:
        return o->deny_uncharged ? FILTER_EINVAL : FILTER_ALLOW;
    case FILTER_SYSVIPC:
        return o->process_isolation || o->deny_uncharged ? FILTER_ENOSYS : FILTER_ALLOW;
    case FILTER_SEGMENTS:
        return o->process_isolation || (o->deny_uncharged && !o->allow_segments) ? FILTER_ENOSYS
                                                                                 : FILTER_ALLOW;
    case FILTER_RULESET:
        return o->deny_uncharged ? FILTER_EOPNOTSUPP : FILTER_ALLOW;
    case FILTER_AFFINITY:
        /* A kernel thread executes each migration to another CPU, before all other threads and
         * charged to no process: eight processes that migrate constantly occupy both CPUs of a
         * host, in spite of their weight or limit. If max_cpu is enforced by affinity, the affinity
         * is the limit. Programs pin themselves only for speed, and many fail if the call is
         * refused. So the call succeeds without an effect. */
        return !o->allow_affinity     ? FILTER_DONE
               : o->process_isolation ? FILTER_CHECK_SELF
                                      : FILTER_CHECK_NOT_INIT;
    case FILTER_OTHERS:
        return o->process_isolation ? FILTER_CHECK_SELF : FILTER_CHECK_NOT_INIT;
    case FILTER_LIMITS:
        return o->process_isolation ? FILTER_CHECK_SELF : FILTER_CHECK_LIMITS;
    case FILTER_GETFD:
        return o->allow_getfd ? FILTER_ALLOW : FILTER_EPERM;
    case FILTER_PEEK:
        return o->process_isolation ? FILTER_ALLOW : FILTER_CHECK_NOT_INIT;
    case FILTER_PTRACE:
        return FILTER_CHECK_PTRACE;
    case FILTER_FAULTS:
        return o->process_isolation ? FILTER_EPERM : FILTER_CHECK_FAULTS;
    case FILTER_PRIORITY:
        return FILTER_CHECK_PRIORITY;
    case FILTER_IOPRIO:
        return FILTER_CHECK_IOPRIO;
    case FILTER_WATCH:
        return o->process_isolation ? FILTER_EACCES : FILTER_ALLOW;
    case FILTER_CHMOD:
        return o->keep_metadata     ? FILTER_DONE
               : o->deny_setid_bits ? FILTER_CHECK_MODE1
                                    : FILTER_ALLOW;
    case FILTER_CHMODAT:
        return o->keep_metadata     ? FILTER_DONE
               : o->deny_setid_bits ? FILTER_CHECK_MODE2
                                    : FILTER_ALLOW;
    case FILTER_CREAT:
        return o->deny_setid_bits ? FILTER_CHECK_MODE1 : FILTER_ALLOW;
    case FILTER_OPEN:
        return o->deny_setid_bits ? FILTER_CHECK_OPEN : FILTER_ALLOW;
    case FILTER_OPENAT:
        return o->deny_setid_bits ? FILTER_CHECK_OPENAT : FILTER_ALLOW;
    case FILTER_OPENAT2:
        return o->deny_setid_bits ? FILTER_ENOSYS : FILTER_ALLOW; /* its mode is in memory */
    case FILTER_OWNER:
        return o->keep_metadata ? FILTER_EPERM : FILTER_ALLOW;
    case FILTER_TIMES:
        return o->keep_metadata ? FILTER_DONE : FILTER_ALLOW;
    case FILTER_XATTR:
        return o->keep_metadata ? FILTER_EOPNOTSUPP : FILTER_ALLOW;
    case FILTER_XATTR_SET:
        return o->keep_metadata ? FILTER_EOPNOTSUPP : FILTER_CHECK_ATTRIBUTE;
    case FILTER_XATTR_SET_AT:
        return o->keep_metadata ? FILTER_EOPNOTSUPP : FILTER_ENOSYS; /* its length is in memory */
    case FILTER_NOTES:
        return o->process_isolation ? FILTER_EOPNOTSUPP : FILTER_ALLOW;
    case FILTER_CHROOT:
        return o->many_users ? FILTER_ALLOW : FILTER_EPERM;
    case FILTER_SYNC:
        return o->no_sync ? FILTER_DONE : FILTER_ALLOW;
    default:
        return rule;
    }
}

#ifdef FILTER_ARCH

#    define FILTER_COUNT_ROW(number, name, rule) +1
#    define FILTER_ROW(number, name, rule) { number, FILTER_##rule, #    name },
#    define FILTER_N_SYSCALLS (0 FILTER_SYSCALLS(FILTER_COUNT_ROW))

static const struct filter_syscall {
    uint16_t number;
    uint8_t rule;
    const char *name;
} filter_syscalls[] = { FILTER_SYSCALLS(FILTER_ROW) }; /* in the order of their numbers */

struct range {
    uint32_t first;
    enum filter_rule rule;
};

/* From `first` on, up to the next range. */
static void add_range(struct range *ranges, size_t *n, uint32_t first, enum filter_rule rule) {
    if (*n > 0 && ranges[*n - 1].rule == rule)
        return;
    ranges[(*n)++] = (struct range){ first, rule };
}

static size_t make_ranges(const struct filter_options *options, struct range *ranges) {
    size_t n = 0;
    uint32_t next = 0;

    for (size_t i = 0; i < FILTER_N_SYSCALLS; i++) {
        const struct filter_syscall *call = &filter_syscalls[i];

        if (call->number != next)
            add_range(ranges, &n, next, FILTER_ENOSYS);
        add_range(ranges, &n, call->number, resolve_rule(options, (enum filter_rule)call->rule));
        next = call->number + 1u;
    }
    add_range(ranges, &n, next, FILTER_ENOSYS);
    add_range(ranges, &n, FILTER_X32_BIT, FILTER_KILL);
    add_range(ranges, &n, 0xffffffffu, FILTER_ENOSYS); /* -1: a call that a tracer has cancelled */
    return n;
}

/* How many numbers between two ranges' starts the kernel tries at installation. */
static uint32_t range_weight(const struct range *from, const struct range *to) {
    uint32_t last = filter_syscalls[FILTER_N_SYSCALLS - 1].number + 1u;

    return MIN(to->first, last) - MIN(from->first, last);
}

static unsigned emit_leaf(struct program *p, const struct range *range) {
    return range->rule <= FILTER_TRACED ? emit_verdict(p, range->rule) : p->places[range->rule];
}

/* How many of ranges[low..high) one leaf of the tree takes: a range, and with it up to MAX_SINGLES
 * single numbers inside it that have rules of their own. A single number costs one comparison there
 * instead of the two that cut it out, and compiling the program is most of what installing it
 * costs. */
#    define MAX_SINGLES 2
static size_t find_group(const struct range *ranges, size_t low, size_t high) {
    size_t end = low + 1;

    while (end + 1 < high && end - low < 2 * MAX_SINGLES &&
           ranges[end + 1].rule == ranges[low].rule &&
           ranges[end + 1].first == ranges[end].first + 1)
        end += 2;
    return end - low;
}

/* The search among ranges[low..high), which starts with a whole group and ends with one. */
static unsigned emit_search(
    struct program *p, const struct range *ranges, size_t low, size_t high) {
    size_t middle = low + find_group(ranges, low, high);

    if (middle >= high) {
        unsigned place = emit_leaf(p, &ranges[low]);
        for (size_t i = low + 1; i < high; i += 2)
            place = emit_test(p, BPF_JEQ, ranges[i].first, emit_leaf(p, &ranges[i]), place);
        return place;
    }
    for (;;) {
        size_t next = middle + find_group(ranges, middle, high);
        if (next >= high || 2 * range_weight(&ranges[low], &ranges[middle]) >=
                                range_weight(&ranges[low], &ranges[high]))
            break;
        middle = next;
    }

    unsigned right = emit_search(p, ranges, middle, high);
    unsigned left = emit_search(p, ranges, low, middle);
    return emit_test(p, BPF_JGE, ranges[middle].first, right, left);
}

int filter_build(
    const struct filter_options *options, struct sock_filter *program, size_t capacity) {
    struct program p = { .instructions = program,
        .capacity =
            (unsigned)(capacity < FILTER_MAX_INSTRUCTIONS ? capacity : FILTER_MAX_INSTRUCTIONS) };
    struct range ranges[2 * FILTER_N_SYSCALLS + 4];
    size_t n_ranges = make_ranges(options, ranges);

    ranges[n_ranges].first = 0xffffffffu;

    emit_instruction(&p, BPF_RET | BPF_K, 0, 0,
        SECCOMP_RET_KILL_PROCESS); /* place 0, so that 0 means "not written" below */
    for (size_t i = 0; i < n_ranges; i++)
        if (ranges[i].rule > FILTER_TRACED && p.places[ranges[i].rule] == 0)
            p.places[ranges[i].rule] = emit_check(&p, options, ranges[i].rule);

    unsigned tree =
        load_field(&p, offsetof(struct seccomp_data, nr), emit_search(&p, ranges, 0, n_ranges));
    load_field(&p, offsetof(struct seccomp_data, arch),
        emit_test(&p, BPF_JEQ, FILTER_ARCH, tree, emit_verdict(&p, FILTER_KILL)));
    if (p.full)
        return -ENOBUFS;

    memmove(program, instruction_at(&p, p.n - 1), p.n * sizeof(program[0]));
    return (int)p.n;
}

const char *filter_syscall_name(unsigned number) {
    size_t low = 0, high = FILTER_N_SYSCALLS;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (filter_syscalls[middle].number == number)
            return filter_syscalls[middle].name;
        if (filter_syscalls[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

#else

int filter_build(
    const struct filter_options *options, struct sock_filter *program, size_t capacity) {
    (void)options, (void)program, (void)capacity;
    return -ENOTSUP;
}

const char *filter_syscall_name(unsigned number) {
    (void)number;
    return NULL;
}

#endif
