/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile program tries by system call: `probe NAME` makes one group of attempts inside a
 * sandbox.
 *
 * Exit status 0: every attempt was refused; 1: one was not, and standard output says which. Death
 * by SIGSYS counts as refused. Constants are spelled out where Debian 12's headers lack them.
 * Everything is raw: no library may quietly fall back to a harmless call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int breaches;

static void breach(const char *what) {
    printf("NOT REFUSED: %s\n", what);
    fflush(stdout);
    breaches++;
}

/* Each attempt in a child of its own: one that kills, or that changes the process, does not spoil
 * the next. `call` is evaluated there. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        fflush(stdout);                                                                            \
        pid_t child_ = fork();                                                                     \
        if (child_ == 0) {                                                                         \
            errno = 0;                                                                             \
            long r_ = (long)(call);                                                                \
            _exit(r_ >= 0 ? 42 : 0);                                                               \
        }                                                                                          \
        int status_ = 0;                                                                           \
        waitpid(child_, &status_, 0);                                                              \
        if (child_ < 0)                                                                            \
            breach("fork failed, so this was not tried: " #call);                                  \
        else if (WIFEXITED(status_) && WEXITSTATUS(status_) == 42)                                 \
            breach(#call);                                                                         \
    } while (0)

#define NR_open_tree 428
#define NR_move_mount 429
#define NR_fsopen 430
#define NR_fsconfig 431
#define NR_fsmount 432
#define NR_fspick 433
#define NR_pidfd_open 434
#define NR_clone3 435
#define NR_pidfd_getfd 438
#define NR_process_madvise 440
#define NR_mount_setattr 442
#define NR_quotactl_fd 443
#define NR_memfd_secret 447
#define NR_process_mrelease 448
#define NR_statmount 457
#define NR_listmount 458
#define NR_lsm_set_self_attr 460

#define HIGH                                                                                       \
    (1ULL << 40) /* bits above those that the kernel looks at in an int argument; a filter must    \
                    not look at them either */

/* ---- namespaces ---- */

static void probe_unshare(void) {
    static const unsigned long flags[] = { CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET,
        CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP, 0x80 /* NEWTIME */ };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        REFUSED(syscall(SYS_unshare, flags[i]));
        REFUSED(syscall(SYS_unshare, flags[i] | HIGH));
    }
}

static void probe_clone(void) {
    static const unsigned long flags[] = { CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET,
        CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        for (int high = 0; high < 2; high++) {
            long pid =
                syscall(SYS_clone, flags[i] | SIGCHLD | (high ? HIGH : 0), NULL, NULL, NULL, NULL);

            if (pid == 0)
                _exit(0);
            if (pid > 0) {
                breach("clone with a namespace flag");
                waitpid((pid_t)pid, NULL, 0);
            }
        }
}

static void probe_clone3(void) {
    static const uint64_t flags[] = { CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET,
        CLONE_NEWUSER | CLONE_NEWNS };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        uint64_t args[11] = { flags[i], 0, 0, 0, SIGCHLD };
        long pid = syscall(NR_clone3, args, 88);

        if (pid == 0)
            _exit(0);
        if (pid > 0) {
            breach("clone3 with a namespace flag");
            waitpid((pid_t)pid, NULL, 0);
        }
    }
    /* Threads and processes by glibc go through clone3 first and must still come to be. */
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        breach("plain fork fails");
    waitpid(pid, NULL, 0);
}

static void probe_setns(void) {
    static const char *const names[] = { "user", "mnt", "pid", "net", "ipc", "uts", "cgroup" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int who = 0; who < 2; who++) {
            char path[64];

            snprintf(path, sizeof path, "/proc/%s/ns/%s", who ? "1" : "self", names[i]);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd >= 0)
                REFUSED(syscall(SYS_setns, fd, 0));
        }
    int fd = (int)syscall(NR_pidfd_open, 1, 0);
    if (fd >= 0) {
        REFUSED(syscall(SYS_setns, fd, CLONE_NEWNS));
        REFUSED(syscall(SYS_setns, fd, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID));
    }
}

/* ---- mounts and roots ---- */

static void probe_mount(void) {
    mkdir("/tmp/m", 0700);
    REFUSED(syscall(SYS_mount, "none", "/tmp/m", "tmpfs", 0, NULL));
    REFUSED(syscall(SYS_mount, "proc", "/tmp/m", "proc", 0, NULL));
    REFUSED(syscall(SYS_mount, "sysfs", "/tmp/m", "sysfs", 0, NULL));
    REFUSED(syscall(SYS_mount, "/", "/tmp/m", NULL, MS_BIND | MS_REC, NULL));
    REFUSED(syscall(SYS_mount, NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    REFUSED(syscall(SYS_mount, NULL, "/usr", NULL, MS_REMOUNT | MS_BIND, NULL));
    REFUSED(syscall(SYS_mount, NULL, "/", NULL, MS_SHARED | MS_REC, NULL));
    REFUSED(syscall(SYS_umount2, "/proc", MNT_DETACH));
    REFUSED(syscall(SYS_umount2, "/tmp", MNT_DETACH));
    REFUSED(syscall(SYS_umount2, "/etc", MNT_DETACH));
    REFUSED(syscall(SYS_umount2, "/", MNT_DETACH));
    REFUSED(syscall(NR_fsopen, "tmpfs", 0));
    REFUSED(syscall(NR_fspick, AT_FDCWD, "/", 0));
    REFUSED(syscall(NR_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */));
    REFUSED(syscall(NR_open_tree, AT_FDCWD, "/", 1 | 0x8000 /* AT_RECURSIVE */));
    REFUSED(syscall(NR_move_mount, AT_FDCWD, "/usr", AT_FDCWD, "/tmp/m", 0));
    struct {
        uint64_t set, clear, propagation, userns;
    } attributes = { 0, 1 /* RDONLY */, 0, 0 };
    REFUSED(syscall(NR_mount_setattr, AT_FDCWD, "/", 0x8000, &attributes, sizeof attributes));
    REFUSED(syscall(SYS_swapon, "/tmp/m", 0));
    REFUSED(syscall(SYS_quotactl, 0x800007 << 8, NULL, 0, NULL));
}

static void probe_chroot(void) {
    mkdir("/tmp/r", 0700);
    mkdir("/tmp/r/old", 0700);
    REFUSED(syscall(SYS_chroot, "/tmp/r"));
    REFUSED(syscall(SYS_chroot, "/"));
    REFUSED(syscall(SYS_pivot_root, "/tmp/r", "/tmp/r/old"));
    REFUSED(syscall(SYS_pivot_root, ".", "."));
}

static void probe_handles(void) {
    struct {
        struct file_handle head;
        unsigned char data[128];
    } handle = { .head = { .handle_bytes = 128 } };
    int id;

    /* A handle needs no right to make; with a mount fd and this call it opens any file of the file
     * system. */
    if (syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &handle, &id, 0) < 0) {
        handle.head.handle_bytes = 8;
        handle.head.handle_type = 1;
        memset(handle.data, 0, sizeof handle.data);
        handle.data[0] = 2;
    }
    int mount = open("/usr", O_RDONLY | O_DIRECTORY);
    REFUSED(syscall(SYS_open_by_handle_at, mount, &handle, O_RDONLY));
    REFUSED(syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY | O_PATH));
}

static void probe_mknod(void) {
    REFUSED(syscall(SYS_mknod, "/tmp/mem", S_IFCHR | 0666, makedev(1, 1)));
    REFUSED(syscall(SYS_mknod, "/tmp/kmsg", S_IFCHR | 0666, makedev(1, 11)));
    REFUSED(syscall(SYS_mknod, "/tmp/disk", S_IFBLK | 0666, makedev(8, 0)));
    REFUSED(syscall(SYS_mknodat, AT_FDCWD, "/tmp/disk2", S_IFBLK | 0666, makedev(254, 0)));
    REFUSED(syscall(SYS_mknod, "/dev/shm/fuse", S_IFCHR | 0666, makedev(10, 229)));
}

/* ---- the kernel's larger doors ---- */

static void probe_io_uring(void) {
    char parameters[120] = "";

    REFUSED(syscall(425, 8, parameters));
    REFUSED(syscall(426, 0, 1, 0, 0, NULL, 0));
    REFUSED(syscall(427, -1, 0, NULL, 0));
}

static void probe_bpf(void) {
    uint64_t map[16] = { 2 /* array */ | 4ULL << 32, 4 | 1ULL << 32 };

    REFUSED(syscall(SYS_bpf, 0, map, sizeof map));
    char attributes[128] = { [4] = (char)128 };
    REFUSED(syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0));
    REFUSED(syscall(SYS_userfaultfd, 1 /* USER_MODE_ONLY */));
    REFUSED(syscall(SYS_userfaultfd, 0x80001));
    REFUSED(syscall(SYS_userfaultfd, 0));
    REFUSED(syscall(SYS_fanotify_init, 0, 0));
    REFUSED(syscall(SYS_fanotify_init, 0x200 /* REPORT_FID */, 0));
    REFUSED(syscall(NR_lsm_set_self_attr, 100, NULL, 0, 0));
}

static void probe_keys(void) {
    REFUSED(syscall(SYS_add_key, "user", "rollbox", "x", 1, -2));
    REFUSED(syscall(SYS_add_key, "user", "rollbox", "x", 1, -4));
    REFUSED(syscall(SYS_keyctl, 0, -3, 0, 0, 0));
    REFUSED(syscall(SYS_keyctl, 0, -4, 1, 0, 0));
    REFUSED(syscall(SYS_keyctl, 1, NULL, 0, 0, 0));
    REFUSED(syscall(SYS_request_key, "user", "rollbox", NULL, 0));
}

static void probe_machine(void) {
    struct timespec now = { 1, 0 };
    char timex[208] = { 1 };

    REFUSED(syscall(SYS_reboot, 0xfee1dead, 672274793, 0 /* CAD_OFF */, NULL));
    REFUSED(syscall(SYS_kexec_load, 0, 0, NULL, 0));
    REFUSED(syscall(SYS_init_module, "", 0, ""));
    REFUSED(syscall(SYS_finit_module, -1, "", 0));
    REFUSED(syscall(SYS_delete_module, "no_such_module", 0));
    REFUSED(syscall(SYS_clock_settime, 0, &now));
    REFUSED(syscall(SYS_settimeofday, &now, NULL));
    REFUSED(syscall(SYS_adjtimex, timex));
    REFUSED(syscall(SYS_sethostname, "x", 1));
    REFUSED(syscall(SYS_setdomainname, "x", 1));
    REFUSED(syscall(SYS_acct, "/tmp/acct"));
    REFUSED(syscall(SYS_syslog, 10, NULL, 0));
    REFUSED(syscall(SYS_syslog, 3, timex, sizeof timex));
    REFUSED(syscall(SYS_vhangup));
#ifdef __x86_64__
    REFUSED(syscall(SYS_iopl, 3));
    REFUSED(syscall(SYS_ioperm, 0x80, 1, 1));
#endif
}

/* ---- other ABIs ---- */

static void probe_int80(void) {
#ifdef __x86_64__
    pid_t child = fork();

    if (child == 0) {
        long r;
        __asm__ volatile("int $0x80"
                         : "=a"(r)
                         : "a"(20L /* getpid */)
                         : "memory", "r8", "r9", "r10", "r11");
        _exit(r > 0 ? 42 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
        breach("a 32-bit getpid by int 0x80");
    /* Numbers mean other calls there: 310 is unshare. */
    child = fork();
    if (child == 0) {
        long r;
        __asm__ volatile("int $0x80"
                         : "=a"(r)
                         : "a"(310L), "b"((long)CLONE_NEWUSER)
                         : "memory", "r8", "r9", "r10", "r11");
        _exit(r == 0 ? 42 : 0);
    }
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
        breach("a 32-bit unshare by int 0x80");
#endif
}

static void probe_x32(void) {
#ifdef __x86_64__
    REFUSED(syscall(0x40000000 | SYS_getpid));
    REFUSED(syscall(0x40000000 | SYS_unshare, CLONE_NEWUSER));
    REFUSED(syscall(0x40000000 | 521 /* ptrace */, PTRACE_ATTACH, 1, 0, 0));
    REFUSED(syscall(0x40000000 | 514 /* ioctl */, 0, TIOCSTI, "x"));
    /* A number that is a call only where the upper half is cut off. */
    REFUSED(syscall(HIGH | SYS_unshare, CLONE_NEWUSER));
#endif
}

/* ---- other processes ---- */

static void probe_init(void) {
    char buffer[64];
    struct iovec here = { buffer, sizeof buffer }, there = { (void *)0x400000, sizeof buffer };

    REFUSED(syscall(SYS_ptrace, PTRACE_ATTACH, 1, 0, 0));
    REFUSED(syscall(SYS_ptrace, PTRACE_SEIZE, 1, 0, 0));
    REFUSED(syscall(SYS_process_vm_readv, 1, &here, 1, &there, 1, 0));
    REFUSED(syscall(SYS_process_vm_writev, 1, &here, 1, &there, 1, 0));
    int fd = (int)syscall(NR_pidfd_open, 1, 0);
    if (fd >= 0)
        for (int i = 0; i < 16; i++)
            REFUSED(syscall(NR_pidfd_getfd, fd, i, 0));
    REFUSED(open("/proc/1/mem", O_RDWR));
    REFUSED(open("/proc/1/mem", O_RDONLY));
    REFUSED(open("/proc/1/exe", O_RDWR));
    REFUSED(open("/proc/1/root/etc/passwd", O_RDONLY));
    REFUSED(open("/proc/1/cwd/", O_RDONLY));
    REFUSED(open("/proc/1/environ", O_RDONLY) >= 0 &&
                    read(open("/proc/1/environ", O_RDONLY), buffer, 64) > 0
                ? 0
                : -1);
    REFUSED(
        open("/proc/1/maps", O_RDONLY) >= 0 && read(open("/proc/1/maps", O_RDONLY), buffer, 64) > 0
            ? 0
            : -1);
    REFUSED(open("/proc/1/fd/3", O_RDONLY));
    REFUSED(open("/proc/1/map_files", O_RDONLY | O_DIRECTORY));
    struct rlimit64 {
        uint64_t now, most;
    } limit = { 0, 0 };
    REFUSED(syscall(SYS_prlimit64, 1, RLIMIT_NOFILE, &limit, NULL));
    REFUSED(syscall(SYS_move_pages, 1, 0, NULL, NULL, NULL, 0));
    REFUSED(syscall(SYS_migrate_pages, 1, 1, "", ""));
}

/* Pid 1 must live through every signal that a process of its own sandbox sends. */
static void probe_signal_init(void) {
    for (int s = 1; s <= 64; s++)
        if (s != SIGKILL && s != SIGSTOP)
            kill(1, s);
    kill(1, SIGKILL);
    kill(1, SIGSTOP);
    int fd = (int)syscall(NR_pidfd_open, 1, 0);
    if (fd >= 0)
        syscall(424, fd, SIGKILL, NULL, 0);
    /* It still reaps: an orphan does not stay a zombie. */
    int ends[2];
    char byte;
    if (pipe(ends) < 0)
        return;
    if (fork() == 0) {
        if (fork() == 0)
            _exit(0);
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 0)
        breach("a pipe that nobody holds has a byte");
    wait(NULL);
}

static void probe_rights(void) {
    struct rlimit limit;

    REFUSED(syscall(SYS_setuid, 0) == 0 && geteuid() == 0 && getuid() != 0 ? 0 : -1);
    REFUSED(syscall(SYS_setgroups, 1, (gid_t[]){ 0 }));
    REFUSED(syscall(SYS_setresuid, 65000, 65000, 65000));
    REFUSED(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0));
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        breach("no_new_privs is not set");
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 2)
        breach("no system-call filter");
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max = limit.rlim_max + 1;
    REFUSED(setrlimit(RLIMIT_NOFILE, &limit));
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    while (status && fgets(line, sizeof line, status)) {
        unsigned long long set;

        if (sscanf(line, "Cap%*[A-Za-z]: %llx", &set) == 1 && set != 0)
            breach(line);
    }
}

/* ---- sockets ---- */

/* Families and types that no policy opens. */
static void probe_odd_sockets(void) {
    static const int families[] = { 16, 17, 29, 30, 31, 32, 15, 21, 23, 38, 39, 40, 41, 42, 43, 44,
        45, 5, 6, 3, 9, 4 };

    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int type = 1; type <= 5; type++)
            for (int high = 0; high < 2; high++) {
                long fd =
                    syscall(SYS_socket, (unsigned long)families[i] | (high ? HIGH : 0), type, 0);

                /* Route queries (getaddrinfo, if_nametoindex) are netlink's one honest use. */
                if (fd >= 0 && families[i] != 16) {
                    char text[64];

                    snprintf(text, sizeof text, "socket(family %d, type %d)", families[i], type);
                    breach(text);
                }
                if (fd >= 0)
                    close((int)fd);
            }
    static const int protocols[] = { 2, 4, 5, 6, 9, 10, 11, 12, 15, 16, 18, 21 };
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        REFUSED(syscall(SYS_socket, AF_NETLINK, SOCK_RAW, protocols[i]));
}

static void probe_raw_sockets(void) {
    REFUSED(syscall(SYS_socket, AF_INET, SOCK_RAW, 1));
    REFUSED(syscall(SYS_socket, AF_INET, SOCK_RAW, 255));
    REFUSED(syscall(SYS_socket, AF_INET6, SOCK_RAW, 58));
    REFUSED(syscall(SYS_socket, AF_PACKET, SOCK_RAW, 0x0300));
    REFUSED(syscall(SYS_socket, AF_PACKET, SOCK_DGRAM, 0));
}

/* `netconnect PORT`: every transport that a TCP-only rule forgets, to the loopback of every
 * process that shares our network. */
static int net_port;

static long connect_by(int family, int type, int protocol) {
    struct sockaddr_storage address = { .ss_family = (sa_family_t)family };
    unsigned char *bytes = (unsigned char *)&address;
    long fd = syscall(SYS_socket, family, type, protocol);

    if (fd < 0)
        return -1;
    bytes[2] = (unsigned char)(net_port >> 8);
    bytes[3] = (unsigned char)net_port;
    if (family == AF_INET) {
        bytes[4] = 127;
        bytes[7] = 1;
    } else {
        bytes[8 + 15] = 1;
    }
    if (syscall(SYS_connect, fd, &address, family == AF_INET ? 16 : 28) < 0)
        return -1;
    return syscall(SYS_sendto, fd, "harm", 4, MSG_NOSIGNAL, NULL, 0) == 4 && type != SOCK_DGRAM
               ? 0
               : -1;
}

static long fast_open(void) {
    unsigned char address[16] = { AF_INET, 0, (unsigned char)(net_port >> 8),
        (unsigned char)net_port, 127, 0, 0, 1 };
    long fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);

    return fd < 0 ? -1
                  : syscall(SYS_sendto, fd, "harm", 4, MSG_FASTOPEN | MSG_NOSIGNAL, address, 16);
}

static void probe_netconnect(void) {
    REFUSED(connect_by(AF_INET, SOCK_STREAM, 0));
    REFUSED(connect_by(AF_INET6, SOCK_STREAM, 0));
    REFUSED(connect_by(AF_INET, SOCK_STREAM, 262 /* MPTCP */));
    REFUSED(connect_by(AF_INET6, SOCK_STREAM, 262));
    REFUSED(connect_by(AF_INET, SOCK_STREAM, 132 /* SCTP */));
    REFUSED(connect_by(AF_INET, SOCK_SEQPACKET, 132));
    REFUSED(connect_by(AF_INET, SOCK_STREAM, 256 /* SMC */));
    REFUSED(connect_by(AF_INET, SOCK_DGRAM, 136 /* UDP-Lite */));
    REFUSED(fast_open());
    connect_by(AF_INET, SOCK_DGRAM, 0); /* the test's own UDP socket tells */
    connect_by(AF_INET6, SOCK_DGRAM, 0);
}

/* ---- terminals ---- */

static void probe_tiocsti(void) {
    static const unsigned long requests[] = { TIOCSTI, TIOCSTI | HIGH, TIOCSTI | 1ULL << 32 };

    for (int fd = 0; fd < 3; fd++)
        for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
            REFUSED(syscall(SYS_ioctl, fd, requests[i], "x"));
    int tty = open("/dev/tty", O_RDWR);
    if (tty >= 0)
        REFUSED(syscall(SYS_ioctl, tty, TIOCSTI, "x"));
    REFUSED(syscall(SYS_ioctl, 0, TIOCLINUX, "\3"));
    REFUSED(syscall(SYS_ioctl, 0, TIOCLINUX | HIGH, "\3"));
    REFUSED(syscall(SYS_ioctl, 0, TIOCSCTTY, 1));
    REFUSED(syscall(SYS_ioctl, 0, TIOCSETD, (int[]){ 21 /* N_GSM0710 */ }));
    REFUSED(syscall(SYS_ioctl, 0, TIOCCONS, 0));
}

/* ---- descriptors ---- */

static void probe_descriptors(void) {
    for (int fd = 3; fd < 70000; fd++)
        if (fcntl(fd, F_GETFD) >= 0) {
            char path[64], target[256];

            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(path, target, sizeof target - 1);
            target[n < 0 ? 0 : n] = '\0';
            printf("descriptor %d is open: %s\n", fd, target);
            breaches++;
        }
}

/* ---- memory that limits forget ---- */

static void probe_memfd_secret(void) {
    long fd = syscall(NR_memfd_secret, 0);

    /* Pages that the kernel cannot read back: allowed at most within RLIMIT_MEMLOCK. */
    if (fd >= 0 && ftruncate((int)fd, 64 << 20) == 0) {
        char *p = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
        if (p != MAP_FAILED)
            breach("64 MiB of secret memory");
    }
}

/* ---- executing what was written ---- */

static void probe_setuid_file(void) {
    int in = open("/proc/self/exe", O_RDONLY), out = open("/tmp/su", O_WRONLY | O_CREAT, 0700);
    char buffer[65536];
    ssize_t n;

    while ((n = read(in, buffer, sizeof buffer)) > 0)
        if (write(out, buffer, (size_t)n) != n)
            break;
    fchmod(out, 06777);
    close(out);
    pid_t child = fork();
    if (child == 0) {
        execl("/tmp/su", "probe", "whoami", (char *)NULL);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
        breach("a setuid file of one's own gives rights");
}

static void probe_whoami(void) {
    exit(geteuid() != getuid() || getegid() != getgid() ? 42 : 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} probes[] = {
    { "unshare", probe_unshare },
    { "clone", probe_clone },
    { "clone3", probe_clone3 },
    { "setns", probe_setns },
    { "mount", probe_mount },
    { "chroot", probe_chroot },
    { "handles", probe_handles },
    { "mknod", probe_mknod },
    { "io_uring", probe_io_uring },
    { "bpf", probe_bpf },
    { "keys", probe_keys },
    { "machine", probe_machine },
    { "int80", probe_int80 },
    { "x32", probe_x32 },
    { "init", probe_init },
    { "signal_init", probe_signal_init },
    { "rights", probe_rights },
    { "odd_sockets", probe_odd_sockets },
    { "raw_sockets", probe_raw_sockets },
    { "netconnect", probe_netconnect },
    { "tiocsti", probe_tiocsti },
    { "descriptors", probe_descriptors },
    { "memfd_secret", probe_memfd_secret },
    { "setuid_file", probe_setuid_file },
    { "whoami", probe_whoami },
};

int main(int argc, char **argv) {
    if (argc == 3)
        net_port = atoi(argv[2]);
    for (size_t i = 0; argc >= 2 && i < sizeof probes / sizeof *probes; i++)
        if (strcmp(probes[i].name, argv[1]) == 0) {
            probes[i].run();
            if (!breaches)
                printf("held\n");
            return breaches ? 1 : 0;
        }
    fprintf(stderr, "no such probe\n");
    return 2;
}
