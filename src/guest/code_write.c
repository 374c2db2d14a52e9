/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing to the code of a guest's process.
 *
 * By tradition, /proc/PID/mem lets a process that may trace another one write to its read-only
 * pages. Since Linux 6.12 a kernel can restrict this to the actual tracer
 * (CONFIG_PROC_MEM_FORCE_PTRACE, proc_mem.force_override=), as Debian's 7.x does.
 *
 * On such a kernel, a thread of init attaches to the process, writes, and ends. The kernel detaches
 * all tracees of a thread that ends, and a process that was attached by PTRACE_SEIZE is never
 * stopped, so neither the process nor its parent notices. It is a thread and not a process because
 * Yama may let a process trace only its descendants, and a guest's process is a descendant of init.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/code_write.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

#define THREAD_FLAGS                                                                               \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static enum { UNKNOWN, PLAIN, TRACED } way;

struct request {
    pid_t pid;
    int memory;
    uint64_t to;
    const void *from;
    size_t size;
    long result;
};

static long write_plainly(const struct request *q) {
    long n = sys_call4(__NR_pwrite64, q->memory, q->from, q->size, q->to);

    if (n == (long)q->size)
        return 0;
    return n < 0 ? n : -EFAULT;
}

/* Runs in a thread that has only a stack; errno is shared, so it makes raw system calls only. */
static int attach_and_write(void *data) {
    struct request *q = data;

    q->result = sys_call4(__NR_ptrace, PTRACE_SEIZE, q->pid, 0, 0);
    if (q->result == 0)
        q->result = write_plainly(q);
    sys_call1(__NR_exit, 0);
    __builtin_unreachable();
}

static int write_traced(struct request *q) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[8192];
    pid_t self = getpid();
    pid_t tid = clone(attach_and_write, stack + sizeof stack, THREAD_FLAGS, q);

    if (tid < 0)
        return -errno;
    /* The thread is gone only after the kernel has detached its tracee. */
    while (sys_call3(__NR_tgkill, self, tid, 0) == 0)
        sys_call0(__NR_sched_yield);
    return (int)q->result;
}

/* With a child, which has the same vDSO. */
static int probe_traced(int proc, const void *vdso) {
    pid_t pid = (pid_t)sys_clone(SIGCHLD, NULL);

    if (pid == 0)
        for (;;)
            (void)sys_call0(__NR_pause);
    if (pid < 0)
        return pid;
    struct request q = { .pid = pid,
        .memory = guest_open_process(proc, pid, "/mem", O_RDWR),
        .to = (uintptr_t)vdso,
        .from = vdso,
        .size = 1 };
    int r = q.memory < 0 ? q.memory : write_traced(&q);
    if (q.memory >= 0)
        close(q.memory);
    (void)sys_call2(__NR_kill, pid, SIGKILL);
    (void)sys_call4(__NR_wait4, pid, NULL, __WALL, NULL);
    return r < 0 ? -EOPNOTSUPP : 0;
}

static int probe_write(int proc) {
    const void *vdso = (const void *)getauxval(AT_SYSINFO_EHDR);

    if (!vdso)
        return -EOPNOTSUPP;
    struct request q = { .memory = guest_open_process(proc, getpid(), "/mem", O_RDWR),
        .to = (uintptr_t)vdso,
        .from = vdso,
        .size = 1 };
    if (q.memory < 0)
        return q.memory;
    long r = write_plainly(&q);
    close(q.memory);
    if (r == 0)
        way = PLAIN;
    else if (probe_traced(proc, vdso) == 0)
        way = TRACED;
    return way == UNKNOWN ? -EOPNOTSUPP : 0;
}

int code_write_probe(int proc) {
    if (way != UNKNOWN)
        return 0;
    if (proc >= 0)
        return probe_write(proc);
    int own = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (own < 0)
        return -errno;
    int r = probe_write(own);
    close(own);
    return r;
}

int code_write(pid_t pid, int memory, uint64_t to, const void *from, size_t size) {
    struct request q = { .pid = pid, .memory = memory, .to = to, .from = from, .size = size };

    return way == TRACED ? write_traced(&q) : (int)write_plainly(&q);
}
