/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/confine.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "sys/syscalls.h"

#define NOBODY 65534u

#if defined(__x86_64__)
#    define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#    define OUR_ARCH AUDIT_ARCH_AARCH64
#else
#    error "the system calls of this architecture are not known yet"
#endif

/* What the loop, the sockets, c-ares and malloc use. Descriptors that they work on were opened
 * before, came from the engine or are sockets. */
static const int allowed[] = {
    __NR_read,
    __NR_readv,
    __NR_write,
    __NR_writev,
    __NR_close,
    __NR_fcntl,
    __NR_lseek,
    __NR_fstat,
#ifdef __NR_newfstatat
    __NR_newfstatat, /* fstat of newer C libraries; tells of a path no more than what it is */
#endif
    __NR_recvfrom,
    __NR_recvmsg,
    __NR_sendto,
    __NR_sendmsg,
    __NR_accept4,
    __NR_connect,
    __NR_shutdown,
    __NR_getsockname,
    __NR_getpeername,
    __NR_getsockopt,
    __NR_setsockopt,
    __NR_epoll_pwait,
    __NR_epoll_ctl,
    __NR_epoll_create1,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,
#endif
    __NR_clock_gettime,
    __NR_gettimeofday,
#ifdef __NR_time
    __NR_time,
#endif
    __NR_brk,
    __NR_munmap,
    __NR_mremap,
    __NR_madvise,
    __NR_futex,
    __NR_getrandom,
    __NR_getpid,
    __NR_gettid,
    __NR_rt_sigreturn,
    __NR_rt_sigprocmask,
    __NR_restart_syscall,
    __NR_exit,
    __NR_exit_group,
};

#define STATEMENT(code, k) ((struct sock_filter)BPF_STMT(code, k))
#define JUMP(code, k, yes, no) ((struct sock_filter)BPF_JUMP(code, k, yes, no))
#define LOAD(offset) STATEMENT(BPF_LD | BPF_W | BPF_ABS, offset)
#define RETURN(action) STATEMENT(BPF_RET | BPF_K, action)
#define ARGUMENT(n) (offsetof(struct seccomp_data, args) + 8 * (n))

static int filter_system_calls(void) {
    struct sock_filter program[2 * ARRAY_SIZE(allowed) + 32];
    unsigned short n = 0;

    program[n++] = LOAD(offsetof(struct seccomp_data, arch));
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0);
    program[n++] = RETURN(SECCOMP_RET_KILL_PROCESS);
    program[n++] = LOAD(offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
        program[n++] = RETURN(SECCOMP_RET_ALLOW);
    }
    /* Memory, but none that can be executed. */
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 1, 0);
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 0, 3);
    program[n++] = LOAD(ARGUMENT(2));
    program[n++] = JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 6, 0);
    program[n++] = RETURN(SECCOMP_RET_ALLOW);
    /* Sockets of the Internet. */
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 4);
    program[n++] = LOAD(ARGUMENT(0));
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 1, 0);
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1);
    program[n++] = RETURN(SECCOMP_RET_ALLOW);
    program[n++] = RETURN(SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog description = { n, program };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &description) < 0 ? -errno : 0;
}

/* Kernels without Landlock have the filter of system calls alone, which refuses the same. */
static int enter_landlock(void) {
    int abi = sys_landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    if (abi < 1)
        return 0;
    uint64_t all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
    all |= abi >= 2 ? LANDLOCK_ACCESS_FS_REFER : 0;
    all |= abi >= 3 ? LANDLOCK_ACCESS_FS_TRUNCATE : 0;
    all |= abi >= 5 ? LANDLOCK_ACCESS_FS_IOCTL_DEV : 0;
    struct uapi_landlock_ruleset attributes = { .handled_access_fs = all,
        .scoped = abi >= 6 ? LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET : 0 };
    auto_close int ruleset =
        sys_landlock_create_ruleset(&attributes, uapi_landlock_ruleset_size(abi), 0);
    return ruleset < 0 ? ruleset : sys_landlock_restrict_self(ruleset, 0);
}

/* An id that owns nothing, and no capability. In a user namespace that has but one id root keeps
 * it, and is that user outside. */
static int leave_root(void) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    const struct __user_cap_data_struct none[2] = { 0 };

    if (geteuid() == 0) {
        if (setgroups(0, NULL) < 0 && errno != EPERM)
            return -errno;
        if (setresgid(NOBODY, NOBODY, NOBODY) < 0 && errno != EINVAL)
            return -errno;
        if (setresuid(NOBODY, NOBODY, NOBODY) < 0 && errno != EINVAL)
            return -errno;
    }
    return sys_capset(&header, none);
}

#if defined(__SANITIZE_ADDRESS__)
/* The search for leaks at the end opens files and traces the process, which is refused by then. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void) {
    return "detect_leaks=0";
}
#endif

int confine_gateway(struct rollbox_error *error) {
    const struct rlimit none = { 0, 0 };
    int r = leave_root();

    /* After the change of ids, which undoes both. The engine's end is also seen at its socket. */
    if (r == 0 &&
        (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ||
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0))
        r = -errno;
    (void)setrlimit(RLIMIT_CORE, &none);
    if (r == 0)
        r = enter_landlock();
#if !defined(__SANITIZE_ADDRESS__)
    if (r == 0)
        r = filter_system_calls();
#else
    (void)filter_system_calls; /* a sanitizer reads its own memory map */
#endif
    return r < 0 ? error_set(error, ROLLBOX_ERR_SETUP_FAILED, -r, "setup",
                       "cannot confine the network gateway: %s", strerror(-r))
                 : 0;
}
