/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a program of ours, or continues a fork as something else, with no descriptors of the
 * engine except the chosen ones. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

/* A child that is on its way to its program while we continue: until it has executed it, it shares
 * our memory. */
static struct {
    const char *path;
    char words[64];
    char *argv[8];
    int fds[8], n_fds;
    _Alignas(16) char stack[16384];
} soon;

static char *program_in(const char *directory, const char *below, const char *name) {
    char *path = NULL;

    return asprintf(&path, "%s%s/%s", directory, below, name) < 0 ? NULL : path;
}

/* As a variable of the environment says, or beside this program, or where an installation has it
 * when this program is the CLI. If it is at none of these, its start fails and
 * says so. */
char *spawn_find_program(const char *variable, const char *program) {
    static const struct {
        bool beside;
        const char *below;
    } places[] = { { true, "" }, { true, "/../libexec/rollbox" }, { false, ROLLBOX_LIBEXECDIR } };
    const char *named = variable ? secure_getenv(variable) : NULL;

    if (named)
        return strdup(named);
    auto_free char *self = proc_own_program();
    if (!self)
        return NULL;
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        char *path = program_in(places[i].beside ? self : "", places[i].below, program);

        if (!path || access(path, X_OK) == 0)
            return path;
        free(path);
    }
    return program_in(self, "", program);
}

int spawn_clean(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *envp[] = { NULL };
    sigset_t none, all;

    sigemptyset(&none);
    memset(
        &all, 0xff, sizeof all); /* those too that the C library keeps for itself: it would start
                                    the child with them ignored, and sigfillset() leaves them out */
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < n_fds; i++)
        posix_spawn_file_actions_adddup2(&actions, fds[i], i);
    posix_spawn_file_actions_addclosefrom_np(&actions, n_fds);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    int r = -posix_spawn(ret_pid, path, &actions, &attributes, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return r;
}

/* System calls only, and such as leave errno alone, which is ours as well. */
__attribute__((no_sanitize("address"))) __attribute__((no_sanitize("undefined"))) static int
child_soon(void *unused) {
    char *envp[] = { NULL };
    uint64_t none = 0;
    long r = sys_call0(__NR_setsid);

    (void)unused;
    for (int i = 0; i < soon.n_fds && r >= 0; i++)
        r = sys_call3(__NR_dup3, soon.fds[i], i, 0);
    if (r >= 0 && sys_close_range((unsigned)soon.n_fds, ~0u, 0) == 0 &&
        sys_call4(__NR_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none) == 0)
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

struct within {
    const char *path;
    char *const *argv;
    const int *fds;
    int n_fds, namespace;
    volatile long error;
};

/* System calls only, as above; the parent waits. */
__attribute__((no_sanitize("address"))) __attribute__((no_sanitize("undefined"))) static int
child_within(void *data) {
    static const uint64_t by_default[4];
    struct within *w = data;
    char *envp[] = { NULL };
    uint64_t none = 0;
    long r = sys_call0(__NR_setsid);

    for (long number = 1; number < 65; number++)
        (void)sys_call4(__NR_rt_sigaction, number, by_default, NULL, sizeof none);
    if (r >= 0)
        r = sys_call2(__NR_setns, w->namespace, CLONE_NEWUSER);
    for (int i = 0; i < w->n_fds && r >= 0; i++)
        r = sys_call3(__NR_dup3, w->fds[i], i, 0);
    if (r >= 0)
        r = sys_close_range((unsigned)w->n_fds, ~0u, 0);
    if (r >= 0)
        r = sys_call4(__NR_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    if (r >= 0)
        r = sys_call3(__NR_execve, w->path, w->argv, envp);
    w->error = r;
    sys_call1(__NR_exit_group, 127);
    return 127;
}

int spawn_within(
    const char *path, char *const *argv, const int *fds, int n_fds, int namespace, pid_t *ret_pid) {
    static _Alignas(16) char stack[16384];
    struct within within = { path, argv, fds, n_fds, namespace, 0 };
    sigset_t all, before;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid =
        clone(child_within, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &within);
    int r = pid < 0 ? -errno : (int)within.error;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid > 0 && r < 0)
        (void)waitpid(pid, NULL, 0);
    else if (r == 0)
        *ret_pid = pid;
    return r;
}

static int close_all_but(const int *fds, size_t n_fds) {
    for (unsigned from = STDERR_FILENO + 1, kept;; from = kept + 1) {
        kept = ~0u; /* the lowest from there on; there is no such number */
        for (size_t i = 0; i < n_fds; i++)
            if (fds[i] >= (int)from)
                kept = MIN(kept, (unsigned)fds[i]);
        const unsigned last = kept == ~0u ? kept : kept - 1;
        int r = kept > from ? sys_close_range(from, last, 0) : 0;
        if (r < 0 || kept == ~0u)
            return r;
    }
}

int spawn_shed(const char *name, const int *fds, size_t n_fds) {
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    int r = setsid() < 0 ? -errno : close_all_but(fds, n_fds);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    return r;
}

pid_t spawn_fork(const char *name, const int *fds, size_t n_fds) {
    pid_t engine = getpid(), pid = fork();

    if (pid)
        return pid < 0 ? -errno : pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != engine || spawn_shed(name, fds, n_fds) < 0)
        _exit(1);
    return 0;
}
