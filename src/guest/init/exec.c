/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting one command: from init to execve.
 *
 * The child shares init's memory, and init waits until the child has executed the program or ended.
 * So nothing is copied, and the child can report an error in a variable. Init knows for certain
 * whether the program runs: only a successful exec wakes it with `executing` set and no error. A
 * child that was killed before that is reported as killed. In a session other commands can do that,
 * and it is not an error of rollbox.
 *
 * vfork is not used, because another command of the session could stop the child at that moment,
 * and init would sleep in the kernel with it. Instead, the kernel clears a word and wakes a futex
 * when the child releases init's memory. Init waits for that, with a time-out after which it checks
 * the child.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/det/det.h"
#include "guest/init/command.h"
#include "guest/init/init.h"
#include "guest/init/users.h"
#include "guest/state.h"
#include "sys/syscalls.h"

#define TICK_NS 5000000
#define MAX_STOPS 200

struct child {
    const struct box *box;
    const struct exec_request *request;
    struct determinism_start determinism;
    volatile struct guest_fault fault;
    volatile int error; /* -errno */
    volatile bool executing;
};

static const char *find_env(char *const *envp, const char *name) {
    size_t length = strlen(name);

    for (; *envp; envp++)
        if (!strncmp(*envp, name, length) && (*envp)[length] == '=')
            return *envp + length + 1;
    return NULL;
}

/* execve along the sandbox's PATH, like execvpe but without allocation. Returns -errno. */
static int execute_request(const struct exec_request *request) {
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
    for (path = path ? path : "/usr/local/bin:/usr/bin:/bin";; path++) {
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

static int set_streams(const int *fds, size_t n) {
    int high[FD_MESSAGE_MAX_FDS];

    /* Moves the descriptors out of the way first, because one may have a number that another
     * needs. */
    for (size_t i = 0; i < n; i++) {
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, (int)n);
        if (high[i] < 0)
            return -errno;
    }
    for (size_t i = 0; i < n; i++)
        if (dup2(high[i], (int)i) < 0)
            return -errno;
    return sys_close_range((unsigned)n, ~0u, 0);
}

int exec_set_limit_of(const struct plan *plan, unsigned resource) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);

    for (uint32_t i = 0; i < plan->rlimits.n; i++)
        if (limits[i].resource == resource)
            return guest_set_limit((int)resource, limits[i].value, limits[i].value);
    return 0;
}

int exec_set_limits(const struct plan *plan, uint64_t processes) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);

    for (uint32_t i = 0; i < plan->rlimits.n; i++) {
        int r = guest_set_limit((int)limits[i].resource, limits[i].soft, limits[i].value);
        if (r < 0)
            return r;
    }
    struct rlimit now;
    if (!processes || (getrlimit(RLIMIT_NPROC, &now) == 0 && now.rlim_cur <= processes))
        return 0;
    return guest_set_limit(RLIMIT_NPROC, processes, processes);
}

/* A file or terminal that the caller passed (stdio_fds) is not covered by any rule. A program may
 * open it by name with the rights of its descriptor. No rule can express append-only. Pipes and
 * memory files need no rule. */
static int allow_streams(const struct box *box, const struct exec_request *request) {
    for (size_t i = 0; i < request->n_fds && i <= STDERR_FILENO; i++) {
        struct landlock_path_beneath_attr rule = { .parent_fd = request->fds[i] };
        struct stat st;
        int flags = fstat(request->fds[i], &st) < 0 ? -1 : fcntl(request->fds[i], F_GETFL);

        if (flags < 0 || (flags & (O_APPEND | O_PATH)) ||
            !(S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))
            continue;
        if ((flags & O_ACCMODE) != O_WRONLY)
            rule.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE;
        if ((flags & O_ACCMODE) != O_RDONLY)
            rule.allowed_access |= LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE;
        if (S_ISCHR(st.st_mode))
            rule.allowed_access |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
        rule.allowed_access &= box->plan->landlock_fs;
        int r = sys_landlock_add_rule(box->ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
        if (r < 0 && r != -EBADFD)
            return r;
    }
    return 0;
}

/* Denies system calls that inspect or change another process of the same user. A command that runs
 * untrusted programs has no other protection against them, because they have its uid. The policy's
 * filter stays below this one and has handled calls by other ABIs already. The strictest result of
 * two filters wins, so this filter cannot allow more. */
static int forbid_tracing(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ptrace, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_writev, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_kcmp, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pidfd_getfd, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_madvise, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = { .len = sizeof filter / sizeof filter[0], .filter = filter };

    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}

static int prepare_child(struct child *child) {
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
    /* In a session, the process is in the domain from its birth. */
    if (box->ruleset >= 0 && ((r = allow_streams(box, child->request)) < 0 ||
                                 (r = sys_landlock_restrict_self(box->ruleset, 0)) < 0))
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    if (child->request->no_trace && (r = forbid_tracing()) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    /* Before the descriptors change. The calls after this must not need an answer from init. */
    if (determinism_wanted(box->plan) && (r = dispatch_enter(box->plan, &child->determinism)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 1, r);
    if ((r = set_streams(child->request->fds, child->request->n_fds)) < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 0, r);
    if (child->request->terminal && (r = terminal_control()) < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 1, r);
    if ((r = exec_set_limits(box->plan, child->request->processes)) < 0)
        return guest_fault(fault, GUEST_STAGE_LIMITS, 0, r);
    /* The filter keeps commands from undoing this, so it can be relied on. */
    if (child->request->keeps_orphans && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return guest_fault(fault, GUEST_STAGE_SESSION, 1, -errno);
    if (child->request->user && (r = users_become(child->request->user)) < 0)
        return guest_fault(fault, GUEST_STAGE_USER, 0, r);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (box->plan->flags & PLAN_PROCESS && (r = box_install_filter(box->plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    return 0;
}

static int child_main(void *argument) {
    struct child *child = argument;
    int r = prepare_child(child);

    if (r == 0) {
        child->executing = true;
        r = execute_request(child->request);
        child->fault.stage = GUEST_STAGE_EXEC;
    }
    child->error = r;
    _exit(127);
}

/* Waits until the child has released init's memory. If a guest stops the child, it is continued,
 * and if a guest does so without end, the child is killed. A slow child is waited for: the engine
 * has a time-out for it. */
static void await_release(pid_t pid, const volatile int *memory) {
    struct timespec tick = { .tv_nsec = TICK_NS };

    for (unsigned stops = 0; *memory;) {
        siginfo_t stopped = { 0 };

        if (sys_call4(__NR_futex, memory,
                0 /* FUTEX_WAIT, not private: the kernel's wake-up is not private either */, 1,
                &tick) != -ETIMEDOUT)
            continue;
        if (sys_call5(__NR_waitid, P_PID, pid, &stopped, WSTOPPED | WNOHANG, NULL) == 0 &&
            stopped.si_pid)
            (void)sys_call2(__NR_kill, pid, stops++ < MAX_STOPS ? SIGCONT : SIGKILL);
    }
}

pid_t exec_spawn(
    const struct box *box, const struct exec_request *request, struct guest_fault *fault) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[32768];
    struct child child = { .box = box, .request = request };
    volatile int memory = 1;
    bool shares = determinism_wanted(box->plan);
    int r = shares ? dispatch_begin(box->plan, &child.determinism) : 0;

    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 2, r);
    pid_t pid = clone(child_main, stack + sizeof stack,
        CLONE_VM | CLONE_CHILD_CLEARTID | (shares ? CLONE_FILES : 0) | SIGCHLD, &child, NULL, NULL,
        &memory);

    if (pid < 0)
        r = guest_fault(fault, GUEST_STAGE_SPAWN, 0, -errno);
    else
        await_release(pid, &memory);
    if (shares)
        dispatch_end(&child.determinism, child.executing && !child.error ? request->fds : NULL);
    if (r < 0)
        return r;
    if (!child.error)
        return pid;
    waitpid(pid, NULL, __WALL);
    fault->stage = child.fault.stage ? child.fault.stage : GUEST_STAGE_SPAWN;
    fault->operation = child.fault.operation;
    return child.error;
}
