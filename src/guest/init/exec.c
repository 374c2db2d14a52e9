/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command: from init to execve.
 *
 * The child shares init's memory and init sleeps until it has executed or ended, so nothing is
 * copied, and the child leaves word of a failure in a variable. Whether the program truly runs is
 * known without doubt: only an exec that succeeded wakes init with `executing` set and no error. A
 * child that was killed on its way there is told as killed: in a session others may do that, and it
 * is no failure of ours.
 *
 * It is not vfork: in a session other commands run, and one of them could stop the child just then,
 * and with it an init that sleeps in the kernel. The kernel clears a word and wakes who waits for
 * it when the child lets go of init's memory; init waits for that, and looks up now and then.
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

/* execve along the sandbox's PATH, as execvpe does, without its allocation. Returns -errno. */
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

    /* First out of the way: one of them may be where another belongs. */
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

/* Whoever started the engine may have a limit below ours, to which nobody here can add (ulimit -c
 * 0, for one): then that is the guest's. */
static int set_limit(int resource, rlim_t value) {
    struct rlimit limit, ours = { value, value };

    if (setrlimit(resource, &ours) == 0)
        return 0;
    if (errno != EPERM || sys_call4(__NR_prlimit64, 0, resource, NULL, &limit) < 0 ||
        limit.rlim_max >= value)
        return -EPERM;
    ours = (struct rlimit){ limit.rlim_max, limit.rlim_max };
    return setrlimit(resource, &ours) < 0 ? -errno : 0;
}

int exec_set_limits(const struct plan *plan, uint64_t processes) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);

    for (uint32_t i = 0; i < plan->rlimits.n; i++) {
        int r = set_limit((int)limits[i].resource, limits[i].value);
        if (r < 0)
            return r;
    }
    return processes ? set_limit(RLIMIT_NPROC, processes) : 0;
}

/* A file or terminal of the caller's own (stdio_fds) is outside of every rule. A program may open
 * it by name for as much as its descriptor allows; that of an append-only descriptor no rule can
 * say. Pipes and memory files need no rule. */
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

/* What one process sees or changes of another of the same user's by a system call. A command that
 * runs programs which it does not trust has no other hold on them: they have its uid. The policy's
 * filter stays below, and has ended calls by another ABI already. The strictest verdict of two
 * filters holds, so this one takes nothing back. */
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
    /* In a session it is in the domain since its birth. */
    if (box->ruleset >= 0 && ((r = allow_streams(box, child->request)) < 0 ||
                                 (r = sys_landlock_restrict_self(box->ruleset, 0)) < 0))
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    if (child->request->no_trace && (r = forbid_tracing()) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    /* Before it changes descriptors. What follows must not be asked about. */
    if (determinism_wanted(box->plan) &&
        (r = determinism_enter(box->plan, &child->determinism)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 1, r);
    if ((r = set_streams(child->request->fds, child->request->n_fds)) < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 0, r);
    if (child->request->terminal && (r = terminal_control()) < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 1, r);
    if ((r = exec_set_limits(box->plan, child->request->processes)) < 0)
        return guest_fault(fault, GUEST_STAGE_LIMITS, 0, r);
    /* Of no use if a command could undo it: the filter refuses that. */
    if (child->request->keeps_orphans && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return guest_fault(fault, GUEST_STAGE_SESSION, 1, -errno);
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

/* Until the child has let go of our memory. A guest that stops it is undone; one that does so
 * without end gets it killed. What is only slow is waited for: the engine has a time for that. */
static void await_release(pid_t pid, const volatile int *memory) {
    struct timespec tick = { .tv_nsec = TICK_NS };

    for (unsigned stops = 0; *memory;) {
        siginfo_t stopped = { 0 };

        if (sys_call4(__NR_futex, memory, 0 /* FUTEX_WAIT, by address: so the kernel wakes */, 1,
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
    int r = shares ? determinism_begin(box->plan, &child.determinism) : 0;

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
        determinism_end(&child.determinism, child.executing && !child.error ? request->fds : NULL);
    if (r < 0)
        return r;
    if (!child.error)
        return pid;
    waitpid(pid, NULL, __WALL);
    fault->stage = child.fault.stage ? child.fault.stage : GUEST_STAGE_SPAWN;
    fault->operation = child.fault.operation;
    return child.error;
}
