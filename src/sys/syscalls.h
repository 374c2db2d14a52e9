/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls for which Debian 12's glibc has no wrapper, or whose wrapper does more than the
 * call. Each returns the kernel's value: a result, or -errno.
 *
 * The wrappers neither set nor read errno and call no C library function. So they may be used
 * between clone and exec, in a process that shares its parent's memory, and in the guest layer.
 */
#ifndef ROLLBOX_SYS_SYSCALLS_H
#define ROLLBOX_SYS_SYSCALLS_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sys/uapi.h"

/* Any call with up to six arguments. */
static inline long sys_call6(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    /* clang-format off */
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    /* clang-format on */
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
#else
#    error "system calls of this architecture are not known yet"
#endif
}

#define SYS_ARG(x) ((long)(x))
#define sys_call0(n) sys_call6((n), 0, 0, 0, 0, 0, 0)
#define sys_call1(n, a) sys_call6((n), SYS_ARG(a), 0, 0, 0, 0, 0)
#define sys_call2(n, a, b) sys_call6((n), SYS_ARG(a), SYS_ARG(b), 0, 0, 0, 0)
#define sys_call3(n, a, b, c) sys_call6((n), SYS_ARG(a), SYS_ARG(b), SYS_ARG(c), 0, 0, 0)
#define sys_call4(n, a, b, c, d)                                                                   \
    sys_call6((n), SYS_ARG(a), SYS_ARG(b), SYS_ARG(c), SYS_ARG(d), 0, 0)
#define sys_call5(n, a, b, c, d, e)                                                                \
    sys_call6((n), SYS_ARG(a), SYS_ARG(b), SYS_ARG(c), SYS_ARG(d), SYS_ARG(e), 0)

/* fcntl(2), F_DUPFD_CLOEXEC. musl's wrapper makes a second call, as does its open(2). */
static inline int sys_dup_above(int fd, int least) {
    return (int)sys_call3(__NR_fcntl, fd, 1030, least);
}

/* clone(2). Returns in both processes, like fork, with 0 in the child. The child runs on a copy of
 * the caller's stack, so CLONE_VM must not be used. glibc's fork handlers do not run, and glibc's
 * cached state is the parent's: the child may use only this header and async-signal-safe functions.
 * The low byte of `flags` has the exit signal. With CLONE_PIDFD, `ret_pidfd` receives the
 * descriptor. Container profiles answer clone3 with ENOSYS, because a filter cannot see its flags,
 * so clone3 is used only for what clone cannot do. */
static inline __attribute__((always_inline)) long sys_clone(unsigned long flags, int *ret_pidfd) {
    return sys_call5(__NR_clone, flags, NULL, ret_pidfd, NULL, NULL);
}

/* clone3(2). It alone can start a process in another cgroup (CLONE_INTO_CGROUP). Otherwise as
 * sys_clone. */
static inline __attribute__((always_inline)) long sys_clone3(struct clone_args *args, size_t size) {
    return sys_call2(__NR_clone3, args, size);
}

/* openat2(2). `how` must be zeroed before it is filled. */
static inline int sys_openat2(int dir_fd, const char *path, const struct open_how *how) {
    return (int)sys_call4(__NR_openat2, dir_fd, path, how, sizeof(*how));
}

/* landlock_create_ruleset(2). With `ruleset` NULL and size 0, LANDLOCK_CREATE_RULESET_VERSION
 * returns the ABI. */
static inline int sys_landlock_create_ruleset(
    const struct uapi_landlock_ruleset *ruleset, size_t size, unsigned flags) {
    return (int)sys_call3(__NR_landlock_create_ruleset, ruleset, size, flags);
}

/* landlock_add_rule(2). `rule` is a struct landlock_path_beneath_attr or uapi_landlock_net_port, by
 * `type` (UAPI_LANDLOCK_RULE_*). */
static inline int sys_landlock_add_rule(
    int ruleset_fd, unsigned type, const void *rule, unsigned flags) {
    return (int)sys_call4(__NR_landlock_add_rule, ruleset_fd, type, rule, flags);
}

static inline int sys_landlock_restrict_self(int ruleset_fd, unsigned flags) {
    return (int)sys_call2(__NR_landlock_restrict_self, ruleset_fd, flags);
}

static inline int sys_open_tree(int dir_fd, const char *path, unsigned flags) {
    return (int)sys_call3(__NR_open_tree, dir_fd, path, flags);
}

static inline int sys_move_mount(
    int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    return (int)sys_call5(__NR_move_mount, from_fd, from, to_fd, to, flags);
}

static inline int sys_fsopen(const char *type, unsigned flags) {
    return (int)sys_call2(__NR_fsopen, type, flags);
}

static inline int sys_fsconfig(
    int fs_fd, unsigned command, const char *key, const void *value, int aux) {
    return (int)sys_call5(__NR_fsconfig, fs_fd, command, key, value, aux);
}

static inline int sys_fsmount(int fs_fd, unsigned flags, unsigned attributes) {
    return (int)sys_call3(__NR_fsmount, fs_fd, flags, attributes);
}

static inline int sys_fspick(int dir_fd, const char *path, unsigned flags) {
    return (int)sys_call3(__NR_fspick, dir_fd, path, flags);
}

static inline int sys_mount_setattr(
    int dir_fd, const char *path, unsigned flags, const struct mount_attr *attr) {
    return (int)sys_call5(__NR_mount_setattr, dir_fd, path, flags, attr, sizeof(*attr));
}

static inline int sys_mount(const char *source, const char *target, const char *type,
    unsigned long flags, const void *data) {
    return (int)sys_call5(__NR_mount, source, target, type, flags, data);
}

static inline int sys_umount2(const char *target, int flags) {
    return (int)sys_call2(__NR_umount2, target, flags);
}

static inline int sys_pivot_root(const char *new_root, const char *put_old) {
    return (int)sys_call2(__NR_pivot_root, new_root, put_old);
}

static inline int sys_setns(int fd, int type) {
    return (int)sys_call2(__NR_setns, fd, type);
}

static inline int sys_unshare(unsigned long flags) {
    return (int)sys_call1(__NR_unshare, flags);
}

static inline int sys_pidfd_open(pid_t pid, unsigned flags) {
    return (int)sys_call2(__NR_pidfd_open, pid, flags);
}

static inline int sys_pidfd_send_signal(int pidfd, int number, siginfo_t *info, unsigned flags) {
    return (int)sys_call4(__NR_pidfd_send_signal, pidfd, number, info, flags);
}

static inline int sys_pidfd_getfd(int pidfd, int fd, unsigned flags) {
    return (int)sys_call3(__NR_pidfd_getfd, pidfd, fd, flags);
}

static inline int sys_close_range(unsigned first, unsigned last, unsigned flags) {
    return (int)sys_call3(__NR_close_range, first, last, flags);
}

static inline int sys_seccomp(unsigned operation, unsigned flags, void *args) {
    return (int)sys_call3(__NR_seccomp, operation, flags, args);
}

static inline int sys_execveat(
    int dir_fd, const char *path, char *const argv[], char *const envp[], int flags) {
    return (int)sys_call5(__NR_execveat, dir_fd, path, argv, envp, flags);
}

/* Raw calls that change this thread alone. glibc's setresuid and similar functions signal every
 * thread of the process, which a child that shares its parent's memory must not do. */
static inline int sys_setresuid(uid_t real, uid_t effective, uid_t saved) {
    return (int)sys_call3(__NR_setresuid, real, effective, saved);
}

static inline int sys_setresgid(gid_t real, gid_t effective, gid_t saved) {
    return (int)sys_call3(__NR_setresgid, real, effective, saved);
}

static inline int sys_setgroups(size_t n, const gid_t *groups) {
    return (int)sys_call2(__NR_setgroups, n, groups);
}

/* capset(2); the structures of <linux/capability.h> */
static inline int sys_capset(void *header, const void *data) {
    return (int)sys_call2(__NR_capset, header, data);
}

static inline int sys_capget(void *header, void *data) {
    return (int)sys_call2(__NR_capget, header, data);
}

static inline int sys_prctl(
    int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    return (int)sys_call5(__NR_prctl, option, a, b, c, d);
}

static inline pid_t sys_getpid(void) {
    return (pid_t)sys_call0(__NR_getpid);
}

/* wait4(2). `status` has the form of <sys/wait.h>; `usage` (struct rusage) may be NULL. */
static inline pid_t sys_wait4(pid_t pid, int *status, int options, void *usage) {
    return (pid_t)sys_call4(__NR_wait4, pid, status, options, usage);
}

static inline __attribute__((noreturn)) void sys_exit_group(int status) {
    for (;;)
        (void)sys_call1(__NR_exit_group, status);
}

#endif
