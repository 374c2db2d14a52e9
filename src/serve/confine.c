/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server parses requests of strangers, so it gives up all other rights once it listens, its
 * threads run and its engine is connected.
 *
 * Landlock: of the file system it may read the directories of the token file and of the TLS files,
 * write below --state, and remove its socket. It may neither bind nor connect a TCP socket. The
 * directories and not the files, because a new version of a file is renamed into its place. A file
 * that is a symbolic link is read in the directory of its target too.
 * seccomp: the allow-list has the calls of the loop, the C library and librollbox, and no execve,
 * clone, ptrace, mount, socket, connect or bind. sys/confine.c has the filter.
 */
#include "serve/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/confine.h"
#include "sys/syscalls.h"

static const int allowed[] = {
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_pread64,
    __NR_pwrite64,
    __NR_lseek,
    __NR_close,
    __NR_fstat,
    __NR_newfstatat,
    __NR_openat, /* the token file; Landlock says where */
    __NR_unlinkat,
    __NR_fcntl,
    __NR_dup,
    __NR_dup3,
    __NR_pipe2,
    __NR_memfd_create,
    __NR_ftruncate,
    __NR_fsync, /* these three are the journal's */
    __NR_flock,
    __NR_renameat,
    __NR_mkdirat, /* a tenant's directory of trajectories; Landlock says where */
    __NR_eventfd2,
    __NR_epoll_create1,
    __NR_epoll_ctl,
    __NR_epoll_pwait,
    __NR_epoll_pwait2,
    __NR_ppoll,
    __NR_timerfd_create,
    __NR_timerfd_settime,
    __NR_accept4,
    __NR_socketpair, /* to the files agents of sandboxes */
    __NR_recvmsg,
    __NR_sendmsg,
    __NR_recvfrom,
    __NR_sendto,
    __NR_shutdown,
    __NR_setsockopt,
    __NR_getsockopt,
    __NR_getsockname,
    __NR_getpeername,
    __NR_pidfd_send_signal, /* its engine, when that hangs at the end */
    __NR_waitid,
    __NR_wait4,
    __NR_getrandom,
    __NR_clock_gettime,
    __NR_clock_nanosleep,
    __NR_gettimeofday,
    __NR_getpid,
    __NR_gettid,
    __NR_getuid,
    __NR_geteuid,
    __NR_mremap,
    __NR_munmap,
    __NR_madvise,
    __NR_brk,
    __NR_futex,
    __NR_rseq,
    __NR_set_robust_list,
    __NR_rt_sigprocmask,
    __NR_rt_sigaction,
    __NR_rt_sigreturn,
    __NR_restart_syscall,
    __NR_sched_yield,
    __NR_sched_getaffinity,
    __NR_tgkill, /* abort() */
    __NR_exit,
    __NR_exit_group,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,
    __NR_poll,
    __NR_stat,
    __NR_open,
    __NR_unlink,
    __NR_time,
#endif
};

#define STATE_ACCESS                                                                               \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |  \
        LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |                             \
        LANDLOCK_ACCESS_FS_TRUNCATE)

static int allow(int ruleset, const char *directory, uint64_t access) {
    struct landlock_path_beneath_attr rule = { .allowed_access = access };

    auto_close int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rule.parent_fd = fd;
    return sys_landlock_add_rule(ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

static int allow_directory(int ruleset, const char *path, uint64_t access) {
    auto_free char *copy = strdup(path);

    return copy ? allow(ruleset, dirname(copy), access) : -ENOMEM;
}

static int allow_file(int ruleset, const char *path) {
    auto_free char *target = realpath(path, NULL);
    int r = allow_directory(ruleset, path, LANDLOCK_ACCESS_FS_READ_FILE);

    return r < 0 || !target ? r : allow_directory(ruleset, target, LANDLOCK_ACCESS_FS_READ_FILE);
}

/* Before the threads are started, because a ruleset is each thread's own. */
int confine_files(
    const char *const *read, size_t n_read, const char *state, const char *socket_path) {
    int abi = confine_landlock_abi();
    struct uapi_landlock_ruleset all;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    if (abi < 1)
        return 0;
    all = (struct uapi_landlock_ruleset){
        .handled_access_fs = confine_landlock_files(abi),
    };
    if (abi >= 4)
        all.handled_access_net = LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP;
    if (abi >= 6)
        all.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET;
    auto_close int ruleset = sys_landlock_create_ruleset(&all, uapi_landlock_ruleset_size(abi), 0);
    if (ruleset < 0)
        return ruleset;
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n_read; i++)
        if (read[i])
            r = allow_file(ruleset, read[i]);
    if (r >= 0 && state)
        r = allow(ruleset, state, STATE_ACCESS);
    if (r >= 0 && socket_path)
        r = allow_directory(ruleset, socket_path, LANDLOCK_ACCESS_FS_REMOVE_FILE);
    return r < 0 ? r : sys_landlock_restrict_self(ruleset, 0);
}

int confine_server(void) {
    int r = confine_memory();

    return r < 0 ? r
                 : confine_calls(&(struct confine_service){
                       .calls = allowed, .n_calls = ARRAY_SIZE(allowed) });
}
