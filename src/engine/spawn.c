/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a program of ours with nothing of the engine's but the descriptors that it is meant to have. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/engine.h"
#include "sys/syscalls.h"

/* Of a child that is on its way to its program while we go on: until it has executed it, it is in our memory. */
static struct {
    const char *path;
    char words[64];
    char *argv[8];
    int fds[8], n_fds;
    _Alignas(16) char stack[16384];
} soon;

int spawn_clean(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *envp[] = { NULL };
    sigset_t none;

    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < n_fds; i++)
        posix_spawn_file_actions_adddup2(&actions, fds[i], i);
    posix_spawn_file_actions_addclosefrom_np(&actions, n_fds);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    int r = -posix_spawn(ret_pid, path, &actions, &attributes, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return r;
}

/* System calls only, and such as leave errno alone, which is ours as well. */
__attribute__((no_sanitize("address"))) __attribute__((no_sanitize("undefined"))) static int child_soon(void *unused) {
    char *envp[] = { NULL };
    uint64_t none = 0;
    long r = sys_call0(__NR_setsid);

    (void)unused;
    for (int i = 0; i < soon.n_fds && r >= 0; i++)
        r = sys_call3(__NR_dup3, soon.fds[i], i, 0);
    if (r >= 0 && sys_close_range((unsigned)soon.n_fds, ~0u, 0) == 0 && sys_call4(__NR_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none) == 0)
        sys_call3(__NR_execve, soon.path, soon.argv, envp);
    sys_call1(__NR_exit_group, 127);
    return 127;
}

int spawn_soon(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid) {
    char *at = soon.words, *end = soon.words + sizeof soon.words;
    size_t n = 0;

    if (soon.n_fds || n_fds > (int)ARRAY_SIZE(soon.fds))
        return spawn_clean(path, argv, fds, n_fds, ret_pid);
    soon.path = path;
    for (; argv[n]; n++) {
        size_t size = strlen(argv[n]) + 1;

        if (n + 1 >= ARRAY_SIZE(soon.argv) || size > (size_t)(end - at))
            return spawn_clean(path, argv, fds, n_fds, ret_pid);
        soon.argv[n] = memcpy(at, argv[n], size);
        at += size;
    }
    soon.argv[n] = NULL;
    memcpy(soon.fds, fds, (size_t)n_fds * sizeof *fds);
    soon.n_fds = n_fds;
    *ret_pid = clone(child_soon, soon.stack + sizeof soon.stack, CLONE_VM | SIGCHLD, NULL);
    return *ret_pid < 0 ? -errno : 0;
}

static int by_number(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* Closes all descriptors above the standard streams but these, which are in order. 0 or -errno. */
static int keep_only(const int *fds, size_t n) {
    unsigned from = STDERR_FILENO + 1;
    int r = 0;

    for (size_t i = 0; i <= n && r == 0; i++) {
        unsigned to = i < n ? (unsigned)fds[i] : ~0u;

        if (i < n && fds[i] < 0)
            continue;
        if (i == n || to > from)
            r = sys_close_range(from, i < n ? to - 1 : to, 0);
        from = to + 1;
    }
    return r;
}

pid_t spawn_fork(const char *name, int *fds, size_t n_fds) {
    sigset_t all;
    pid_t engine = getpid(), pid = fork();

    if (pid)
        return pid < 0 ? -errno : pid;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    qsort(fds, n_fds, sizeof fds[0], by_number);
    if (getppid() != engine || setsid() < 0 || keep_only(fds, n_fds) < 0)
        _exit(1);
    return 0;
}
