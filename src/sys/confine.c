/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/confine.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/syscalls.h"

#define NOBODY 65534u

#if defined(__x86_64__)
#    define OUR_ARCH AUDIT_ARCH_X86_64
#    define X32_CALLS 0x40000000
#elif defined(__aarch64__)
#    define OUR_ARCH AUDIT_ARCH_AARCH64
#else
#    error "the system calls of this architecture are not known yet"
#endif

#define MAX_CALLS 128

#define STATEMENT(code, k) ((struct sock_filter)BPF_STMT(code, k))
#define JUMP(code, k, yes, no) ((struct sock_filter)BPF_JUMP(code, k, yes, no))
#define LOAD(offset) STATEMENT(BPF_LD | BPF_W | BPF_ABS, offset)
#define RETURN(action) STATEMENT(BPF_RET | BPF_K, action)
#define ARGUMENT(n) (offsetof(struct seccomp_data, args) + 8 * (n))

unsigned short confine_filter_head(struct sock_filter *program) {
    unsigned short n = 0;

    program[n++] = LOAD(offsetof(struct seccomp_data, arch));
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0);
    program[n++] = RETURN(SECCOMP_RET_KILL_PROCESS);
    program[n++] = LOAD(offsetof(struct seccomp_data, nr));
#ifdef X32_CALLS
    program[n++] = JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_CALLS, 0, 1);
    program[n++] = RETURN(SECCOMP_RET_KILL_PROCESS);
#endif
    return n;
}

int confine_landlock_abi(void) {
    const char *masked = secure_getenv("ROLLBOX_KFEAT");
    int abi;

    if (masked != NULL && strstr(masked, "-landlock") != NULL)
        return 0;
    abi = sys_landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return abi < 0 ? 0 : abi;
}

uint64_t confine_landlock_files(int abi) {
    uint64_t all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;

    if (abi >= 2)
        all |= LANDLOCK_ACCESS_FS_REFER;
    if (abi >= 3)
        all |= LANDLOCK_ACCESS_FS_TRUNCATE;
    if (abi >= 5)
        all |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
    return all;
}

/* An id that owns nothing, and no capability. In a user namespace that has one id alone root keeps
 * it, and is an ordinary user outside. */
static int leave_root(const struct confine_service *service) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    const struct __user_cap_data_struct none[2] = { 0 };

    (void)service;
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

int confine_memory(void) {
    const struct rlimit none = { 0, 0 };

    if (setrlimit(RLIMIT_CORE, &none) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

/* After the change of ids, which undoes it. */
static int hide_memory(const struct confine_service *service) {
    (void)service;
    return confine_memory();
}

/* After the change of ids, which undoes it. */
static int follow_parent(const struct confine_service *service) {
    (void)service;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

static int enter_landlock(const struct confine_service *service) {
    int abi = confine_landlock_abi();
    struct uapi_landlock_ruleset all = { .handled_access_fs = confine_landlock_files(abi) };

    if (abi < 1)
        return 0;
    if (abi >= 4 && !service->may_connect)
        all.handled_access_net = LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP;
    if (abi >= 6)
        all.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL;
    auto_close int ruleset = sys_landlock_create_ruleset(&all, uapi_landlock_ruleset_size(abi), 0);
    return ruleset < 0 ? ruleset : sys_landlock_restrict_self(ruleset, 0);
}

int confine_calls(const struct confine_service *service) {
    struct sock_filter program[2 * MAX_CALLS + CONFINE_FILTER_HEAD + 16];
    struct sock_fprog description;
    unsigned short n = confine_filter_head(program);

    if (service->n_calls > MAX_CALLS)
        return -E2BIG;
    for (size_t i = 0; i < service->n_calls; i++) {
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)service->calls[i], 0, 1);
        program[n++] = RETURN(SECCOMP_RET_ALLOW);
    }
    if (service->may_connect) {
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_connect, 0, 1);
        program[n++] = RETURN(SECCOMP_RET_ALLOW);
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 5);
        program[n++] = LOAD(ARGUMENT(0));
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 1, 0);
        program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1);
        program[n++] = RETURN(SECCOMP_RET_ALLOW);
        program[n++] = RETURN(SECCOMP_RET_ERRNO | EPERM);
    }
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 1, 0);
    program[n++] = JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 0, 3);
    program[n++] = LOAD(ARGUMENT(2));
    program[n++] = JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0);
    program[n++] = RETURN(SECCOMP_RET_ALLOW);
    /* An error and not the end: libraries ask for things that they can do without. */
    program[n++] = RETURN(SECCOMP_RET_ERRNO | EPERM);
    description = (struct sock_fprog){ n, program };
    long r =
        sys_call3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &description);

    return r > 0 ? -ESRCH : (int)r; /* the id of a thread that cannot take the filter */
}

int confine_service(const struct confine_service *service, const char **ret_step) {
    static const struct {
        const char *name;
        int (*run)(const struct confine_service *service);
    } steps[] = {
        { "give up root", leave_root },
        { "hide its memory", hide_memory },
        { "end with the engine", follow_parent },
        { "enter Landlock", enter_landlock },
        { "filter system calls", confine_calls },
    };

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        int result = steps[i].run(service);

        *ret_step = steps[i].name;
        if (result < 0)
            return result;
    }
    return 0;
}
