/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/confine.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/syscalls.h"

#define NOBODY 65534

#if defined(__x86_64__)
#    define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#    define OUR_ARCH AUDIT_ARCH_AARCH64
#else
#    error "the system calls of this architecture are not known yet"
#endif

/* No open, socket, connect, execve, clone, kill, ptrace or ioctl. fcntl and setsockopt act on
 * descriptors that the process has; recvmsg brings those of egress and the engine alone. */
static const int allowed[] = {
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_recvmsg,
    __NR_sendmsg,
    __NR_recvfrom,
    __NR_sendto,
    __NR_close,
    __NR_shutdown,
    __NR_setsockopt,
    __NR_getsockopt,
    __NR_fcntl,
    __NR_fstat,
    __NR_lseek,
    __NR_pread64,
    __NR_epoll_ctl,
    __NR_epoll_pwait,
    __NR_epoll_pwait2,
    __NR_timerfd_settime,
    __NR_getrandom,
    __NR_clock_gettime,
    __NR_gettimeofday,
    __NR_getpid,
    __NR_gettid,
    __NR_mmap,
    __NR_mremap,
    __NR_munmap,
    __NR_mprotect,
    __NR_madvise,
    __NR_brk,
    __NR_futex,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_restart_syscall,
    __NR_sched_yield,
    __NR_exit,
    __NR_exit_group,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,
    __NR_time,
#endif
};

static int filter_system_calls(void) {
    struct sock_filter program[2 * ARRAY_SIZE(allowed) + 8];
    unsigned short n = 0;
    struct sock_fprog description;

    program[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        program[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    /* An error and not the end: libraries ask for things that they can do without. */
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    description = (struct sock_fprog){ n, program };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &description) < 0 ? -errno : 0;
}

/* A second layer: a kernel without Landlock has the filter, which lets no path in. */
static int enter_landlock(void) {
    const char *masked = secure_getenv("ROLLBOX_KFEAT");
    int abi = masked != NULL && strstr(masked, "-landlock") != NULL
                  ? 0
                  : sys_landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    struct uapi_landlock_ruleset all;
    auto_close int ruleset = -EBADF;

    if (abi < 1)
        return 0;
    all = (struct uapi_landlock_ruleset){
        .handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1,
    };
    if (abi >= 4)
        all.handled_access_net = LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP;
    if (abi >= 6)
        all.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL;
    ruleset = sys_landlock_create_ruleset(&all, uapi_landlock_ruleset_size(abi), 0);
    return ruleset < 0 ? ruleset : sys_landlock_restrict_self(ruleset, 0);
}

/* Root's rights are for opening the files, which has been done. */
static int drop_root(void) {
    if (geteuid() != 0)
        return 0;
    if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
        setresuid(NOBODY, NOBODY, NOBODY) < 0)
        return -errno;
    return 0;
}

/* The secrets are in no core file, and /proc/PID/mem is closed to processes of the same user. */
static int hide_memory(void) {
    const struct rlimit none = { 0, 0 };

    if (setrlimit(RLIMIT_CORE, &none) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

static int follow_parent(void) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

int confine_self(const char **ret_step) {
    static const struct {
        const char *name;
        int (*run)(void);
    } steps[] = {
        { "give up root", drop_root },
        { "hide its memory", hide_memory },
        { "end with the engine", follow_parent },
        { "enter Landlock", enter_landlock },
        { "filter system calls", filter_system_calls },
    };

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        int result = steps[i].run();

        *ret_step = steps[i].name;
        if (result < 0)
            return result;
    }
    return 0;
}
