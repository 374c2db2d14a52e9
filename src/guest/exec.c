/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command: from init to execve.
 *
 * The child shares init's memory and init sleeps until it has executed or ended (as vfork), so nothing is copied, and the child leaves word of a failure in
 * a variable. Whether the program truly runs is known without doubt: only an exec that succeeded wakes init with `executing` set and
 * no error; a child killed on its way there never set it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

struct child {
    const struct box *box;
    const struct exec_request *request;
    volatile struct guest_fault fault;
    volatile int error;         /* -errno */
    volatile bool executing;
};

static const char *find_env(char *const *envp, const char *name) {
    size_t length = strlen(name);

    for (; *envp; envp++)
        if (!strncmp(*envp, name, length) && (*envp)[length] == '=')
            return *envp + length + 1;
    return NULL;
}

/* execve along the sandbox' PATH, as execvpe does, without its allocation. Returns -errno. */
static int execute(const struct exec_request *request) {
    const char *name = request->argv[0], *path = find_env(request->envp, "PATH");
    size_t name_length = strlen(name);
    char full[4096];
    int worst = -ENOENT;

    if (!*name)
        return -ENOENT;
    if (strchr(name, '/')) {
        execve(name, request->argv, request->envp);
        return -errno;
    }
    for (path = path ? path : "/usr/local/bin:/usr/bin:/bin"; ; path++) {
        size_t length = strcspn(path, ":");

        if (length + name_length + 2 <= sizeof full) {
            memcpy(full, path, length);
            full[length] = '/';
            memcpy(full + length + (length > 0), name, name_length + 1);
            execve(full, request->argv, request->envp);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return -errno;
            if (errno == EACCES)
                worst = -EACCES;
        }
        path += length;
        if (!*path)
            return worst;
    }
}

static int set_streams(const int stdio[3]) {
    int high[3];

    /* First out of the way: one of them may be where another belongs. */
    for (int i = 0; i < 3; i++) {
        high[i] = fcntl(stdio[i], F_DUPFD_CLOEXEC, 10);
        if (high[i] < 0)
            return -errno;
    }
    for (int i = 0; i < 3; i++)
        if (dup2(high[i], i) < 0)
            return -errno;
    return sys_close_range(3, ~0u, 0);
}

static int set_limits(const struct plan *plan, uint64_t processes) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);

    for (uint32_t i = 0; i < plan->rlimits.n; i++) {
        struct rlimit limit = { limits[i].value, limits[i].value };
        if (setrlimit((int)limits[i].resource, &limit) < 0)
            return -errno;
    }
    if (processes && setrlimit(RLIMIT_NPROC, &(struct rlimit){ processes, processes }) < 0)
        return -errno;
    return 0;
}

static int prepare(struct child *child) {
    const struct box *box = child->box;
    struct guest_fault *fault = (struct guest_fault *)&child->fault;
    sigset_t none;
    int r;

    if (setsid() < 0)
        return guest_fault(fault, GUEST_STAGE_SESSION, 0, -errno);
    if (box->plan->flags & PLAN_PROCESS && (r = process_become_guest(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_USER, 0, r);
    if ((*child->request->cwd ? chdir(child->request->cwd) : fchdir(box->home)) < 0)
        return guest_fault(fault, GUEST_STAGE_CWD, 0, -errno);
    if ((r = set_limits(box->plan, child->request->processes)) < 0)
        return guest_fault(fault, GUEST_STAGE_LIMITS, 0, r);
    if (box->plan->flags & PLAN_LANDLOCK && (r = sys_landlock_restrict_self(box->ruleset, 0)) < 0)
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    if ((r = set_streams(child->request->stdio)) < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 0, r);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (box->plan->flags & PLAN_PROCESS && (r = box_install_filter(box->plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    return 0;
}

static int child_main(void *argument) {
    struct child *child = argument;
    int r = prepare(child);

    if (r == 0) {
        child->executing = true;
        r = execute(child->request);
        child->fault.stage = GUEST_STAGE_EXEC;
    }
    child->error = r;
    _exit(127);
}

pid_t exec_spawn(const struct box *box, const struct exec_request *request, struct guest_fault *fault) {
    static _Alignas(16) char stack[32768];
    struct child child = { .box = box, .request = request };
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);

    if (pid < 0)
        return guest_fault(fault, GUEST_STAGE_SPAWN, 0, -errno);
    if (child.executing && !child.error)
        return pid;
    waitpid(pid, NULL, __WALL);
    fault->stage = child.fault.stage ? child.fault.stage : GUEST_STAGE_SPAWN;
    fault->operation = child.fault.operation;
    return child.error ? child.error : -EINTR;
}
