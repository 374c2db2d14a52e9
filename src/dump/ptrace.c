/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping threads by ptrace, and making system calls in them.
 *
 * A thread that waits in a system call is stopped with the call interrupted. The kernel has put
 * -ERESTARTSYS or a related value into rax, and would restart the call when the thread resumes. The
 * dump worker makes its own calls in the thread meanwhile, at a `syscall` instruction of the vDSO.
 * For these, orig_rax is -1, so that the kernel restarts nothing, and all signals are blocked.
 *
 * The image contains registers that point before the interrupted instruction. Where a signal with a
 * handler is pending, restore moves them behind the instruction (IMAGE_ENDS). In this sandbox the
 * thread gets its original registers back, and the kernel restarts the call or ends it for a
 * signal. A wait with a relative time-out (-ERESTART_RESTARTBLOCK) is different: only the kernel
 * knows the remaining time, so it continues such a wait here, and syscall_restart.c finds out what
 * to put into the image.
 */
#include "dump/ptrace.h"

#include <cpuid.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "dump/syscall_restart.h"

#define NT_XSTATE 0x202  /* NT_X86_XSTATE */
#define GET_RSEQ 0x420f  /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */
#define EVENT_STOP 128   /* PTRACE_EVENT_STOP */
#define SYSCALL_LENGTH 2 /* 0f 05 */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define XSAVE_LEGACY 576u   /* the legacy area and the header */
#define XSAVE_FEATURES 464u /* offset of the component mask that the kernel enabled */
#define XSAVE_IN_USE 512u   /* XSTATE_BV: components that are not in their initial state */
#define XSAVE_ON_REQUEST (3ull << 17) /* AMX */
#define XSAVE_LEAF 0xd                /* leaf of CPUID */
#define OWN_VDSO 4096u /* bytes that are searched: its code begins in its first page */
#define MAX_SIGNALS_MET 1000
#define MAX_LOOKS 4
#define LOOK_NS 40000 /* poll for at most this long */
#define OTHER_NS 20000
#define OTHER_TRIES 10
#define FAR_NS 25000        /* a wait longer than this was for work on another processor */
#define GET_DISPATCH 0x4211 /* PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, Linux 6.4 */
#define CODE_64 0x33        /* the cs of 64-bit code */

/* End of each component of the extended state; 0: unknown. Cached, because in a virtual machine the
 * hypervisor answers CPUID, in some microseconds each. */
static uint32_t component_ends[63];
static bool components_known;
static uint64_t instruction_at; /* offset in the vDSO; 0: unknown */

static void learn_components(void) {
    unsigned low, high, size, offset, unused;

    components_known = true;
    if (!__get_cpuid_count(XSAVE_LEAF, 0, &low, &unused, &unused, &high))
        return;
    const uint64_t features = (uint64_t)high << 32 | low;
    for (unsigned component = 2; component < ARRAY_SIZE(component_ends); component++)
        if (features >> component & 1) {
            __cpuid_count(XSAVE_LEAF, component, size, offset, unused, unused);
            component_ends[component] = offset + size;
        }
}

static bool is_instruction(const unsigned char *code) {
    return code[0] == 0x0f && code[1] == 0x05;
}

void trace_prepare(void) {
    const unsigned char *vdso = (const void *)getauxval(AT_SYSINFO_EHDR);

    syscall_restart_prepare();
    if (!components_known)
        learn_components();
    for (size_t at = 0; vdso && !instruction_at && at + 1 < OWN_VDSO; at++)
        if (is_instruction(vdso + at))
            instruction_at = at;
}

static int get_registers(const struct trace *trace, struct image_registers *to) {
    struct iovec area = { to, sizeof *to };

    return ptrace(PTRACE_GETREGSET, trace->tid, NT_PRSTATUS, &area) < 0 ? -errno : 0;
}

static int set_registers(const struct trace *trace, const struct image_registers *from) {
    struct iovec area = { (void *)(uintptr_t)from, sizeof *from };

    return ptrace(PTRACE_SETREGSET, trace->tid, NT_PRSTATUS, &area) < 0 ? -errno : 0;
}

static bool is_broken_off(const struct image_registers *r) {
    const int64_t result = (int64_t)r->rax;

    return (int64_t)r->orig_rax >= 0 &&
           ((result <= -ERESTARTSYS && result >= -ERESTARTNOHAND) || result == RESTART_BLOCK);
}

/* Reads aligned words, because the page after the last byte may be missing. */
static bool is_at_instruction(const struct trace *trace, uint64_t at) {
    unsigned char code[2 * sizeof(long)] = { 0 };

    for (uint64_t i = 0; i < 2 && at % sizeof(long) + SYSCALL_LENGTH > i * sizeof(long); i++) {
        errno = 0;
        const long word = ptrace(
            PTRACE_PEEKTEXT, trace->tid, at / sizeof(long) * sizeof(long) + i * sizeof(long), 0);
        if (errno)
            return false;
        memcpy(code + i * sizeof word, &word, sizeof word);
    }
    return is_instruction(code + at % sizeof(long));
}

/* The kernel has prepared the restart, and the thread was stopped before it. */
static bool is_about_to_restart(const struct trace *trace, const struct image_registers *r) {
    return syscall_restart_is(r->rax) && is_at_instruction(trace, r->rip);
}

/* Moves the registers before the instruction whose call was interrupted. */
static void rewind_call(struct trace *trace) {
    struct image_registers *registers = &trace->registers;
    int64_t result = (int64_t)registers->rax;

    trace->stopped = *registers;
    trace->call = -1;
    trace->interruption = IMAGE_GOES_ON;
    if (is_broken_off(registers)) {
        trace->call = (long)(uint32_t)registers->orig_rax;
        registers->rip -= SYSCALL_LENGTH;
        registers->rax = registers->orig_rax;
        trace->interruption = result == -ERESTARTSYS      ? IMAGE_ENDS_UNLESS_RESTARTED
                              : result == -ERESTARTNOINTR ? IMAGE_GOES_ON
                                                          : IMAGE_ENDS;
    }
    registers->orig_rax = (uint64_t)-1;
    trace->elsewhere = *registers;
    if (trace->call != SYS_restart_syscall && !is_about_to_restart(trace, registers))
        return;
    const uint32_t number = syscall_restart_known(registers->rax)
                                ? syscall_restart_known(registers->rax)
                                : trace->restarted;
    if (number) {
        /* The call begins again there, and a handler ends it, as with restart_syscall. */
        trace->elsewhere.rax = number;
        trace->call = (long)number;
        trace->interruption = IMAGE_ENDS;
    } else if (trace->call >= 0) {
        /* The caller sees a call that a signal interrupted. */
        trace->elsewhere.rip += SYSCALL_LENGTH;
        trace->elsewhere.rax = (uint64_t)-EINTR;
        trace->interruption = IMAGE_GOES_ON;
    }
}

/* Writes the known call into the registers, so that the thread continues with it and the next dump
 * can read it. This is done at once, because the dump worker may be killed. */
static int leave_known(struct trace *trace) {
    const bool is_of_time = (int64_t)trace->stopped.rax == RESTART_BLOCK && trace->call >= 0;

    return is_of_time && syscall_restart_leave(&trace->stopped, (uint32_t)trace->call)
               ? set_registers(trace, &trace->stopped)
               : 0;
}

/* In a restart_syscall of an unknown call. */
static bool is_unknown(const struct trace *trace) {
    const struct image_registers *r = &trace->registers;

    return is_broken_off(r) ? syscall_restart_is(r->orig_rax) && !syscall_restart_known(r->orig_rax)
                            : !syscall_restart_known(r->rax) && is_about_to_restart(trace, r);
}

/* Resumes the thread, so that it enters its wait again, and interrupts it once more. */
static int look_up_hibernated(struct trace *trace) {
    if (ptrace(PTRACE_CONT, trace->tid, 0, 0) < 0)
        return errno == ESRCH ? -EAGAIN : -errno;
    const int number = syscall_restart_look(trace->tid, &trace->registers);
    trace->n_looks = number == -ENOTSUP ? MAX_LOOKS : trace->n_looks + 1;
    trace->restarted = number > 0 ? (uint32_t)number : 0;
    return ptrace(PTRACE_INTERRUPT, trace->tid, 0, 0) < 0 && errno != ESRCH ? -errno : -EAGAIN;
}

int trace_seize(struct trace *trace, pid_t tid) {
    *trace = (struct trace){ .tid = tid };
    int r = ptrace(PTRACE_SEIZE, tid, 0, 0) < 0 ? -errno : 0;
    if (r < 0 && r != -EPERM)
        return r;
    /* A thread that did not stop cannot be detached either. It stays traced. */
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0)
        return r < 0 ? r : -errno;
    trace->is_seized = true;
    return 0;
}

/* A signal that stops the thread first is delivered. The thread then stops as requested. */
static int look_at_stop(struct trace *trace, int status) {
    if (!WIFSTOPPED(status)) {
        trace->is_seized = false;
        return -ESRCH;
    }
    if (status >> 16 != EVENT_STOP) {
        int number = status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);

        return ptrace(PTRACE_CONT, trace->tid, 0, (void *)(uintptr_t)number) < 0 && errno != ESRCH
                   ? -errno
                   : -EAGAIN;
    }
    trace->stopped_by = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    int r = get_registers(trace, &trace->registers);
    if (r == 0 && !trace->restarted && trace->n_looks < MAX_LOOKS && !trace->stopped_by &&
        is_unknown(trace))
        return look_up_hibernated(trace);
    if (r == 0 &&
        ptrace(PTRACE_GETSIGMASK, trace->tid, sizeof trace->signal_mask, &trace->signal_mask) < 0)
        r = -errno;
    if (r < 0)
        return r;
    rewind_call(trace);
    r = leave_known(trace);
    trace->stands = r == 0;
    return r;
}

int trace_await(struct trace *trace) {
    int status;
    pid_t pid = waitpid(trace->tid, &status, __WALL | WNOHANG);

    if (pid == 0 || (pid < 0 && errno == EINTR))
        return -EAGAIN;
    if (pid < 0) {
        trace->is_seized = false;
        return -ESRCH;
    }
    return look_at_stop(trace, status);
}

static volatile uint32_t *count_of_calls;

void trace_count_at(volatile uint32_t *in_calls) {
    count_of_calls = in_calls;
}

static void count_traced(struct trace *trace, bool in_calls) {
    if (count_of_calls && trace->is_counted != in_calls)
        *count_of_calls += in_calls ? 1u : -1u;
    trace->is_counted = in_calls;
}

/*
 * A system call in another thread takes two context switches if that thread runs on this processor.
 * The scheduler prefers an idle processor, though, and waking that up takes ten times as long in a
 * virtual machine. So the thread is bound to this processor while calls are made in it. If the dump
 * worker is killed meanwhile, the engine kills the processes of the sandbox (in_calls).
 */
static cpu_set_t own_affinity, here;
static unsigned n_near;

static void draw_near(struct trace *trace) {
    int cpu = sched_getcpu();

    if (trace->is_near || trace->is_cow_fork || cpu < 0 || cpu >= CPU_SETSIZE ||
        sched_getaffinity(trace->tid, sizeof trace->affinity, &trace->affinity) < 0)
        return;
    if (!n_near) {
        CPU_ZERO(&here);
        CPU_SET(cpu, &here);
        if (sched_getaffinity(0, sizeof own_affinity, &own_affinity) < 0 ||
            sched_setaffinity(0, sizeof here, &here) < 0)
            return;
    }
    trace->is_near = sched_setaffinity(trace->tid, sizeof here, &here) == 0;
    n_near += trace->is_near;
    if (!n_near)
        (void)sched_setaffinity(0, sizeof own_affinity, &own_affinity);
}

static void draw_away(struct trace *trace) {
    cpu_set_t all;

    if (!trace->is_near)
        return;
    /* If none of its old processors is allowed any more, the thread may use all that its cpuset
     * allows. */
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(trace->tid, sizeof trace->affinity, &trace->affinity) < 0)
        (void)sched_setaffinity(trace->tid, sizeof all, &all);
    trace->is_near = false;
    if (!--n_near)
        (void)sched_setaffinity(0, sizeof own_affinity, &own_affinity);
}

static bool has_ended(const siginfo_t *info) {
    return info->si_pid && info->si_code != CLD_TRAPPED && info->si_code != CLD_STOPPED &&
           info->si_code != CLD_CONTINUED;
}

/* Collects the threads that this process traces. */
static void collect_threads_of(pid_t tid) {
    char path[32];
    struct dirent *entry;

    snprintf(path, sizeof path, "/proc/%d/task", (int)tid);
    DIR *threads = opendir(path);
    while (threads && (entry = readdir(threads))) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        siginfo_t info = { 0 };

        if (thread > 0 && thread != tid &&
            waitid(P_PID, (id_t)thread, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 &&
            has_ended(&info))
            (void)waitpid(thread, NULL, __WALL | WNOHANG);
    }
    if (threads)
        closedir(threads);
}

/* Like waitpid, but blocking without a race. When a process is killed, its first thread reports
 * that only after all other threads have been collected, and only the tracer can collect traced
 * threads. So ends of other threads are collected here. 0: call again. */
static pid_t sleep_for(pid_t tid, unsigned tries, int *ret_status) {
    siginfo_t info = { 0 };
    pid_t r;

    if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOWAIT | __WALL) < 0)
        return -1;
    r = waitpid(tid, ret_status, __WALL | WNOHANG);
    if (r != 0)
        return r;
    if (has_ended(&info)) {
        (void)waitpid(info.si_pid, NULL, __WALL | WNOHANG);
        return 0;
    }
    /* Another thread has stopped and will be handled later. It may hide one that has ended. */
    if (tries > OTHER_TRIES)
        collect_threads_of(tid);
    nanosleep(&(struct timespec){ .tv_nsec = OTHER_NS }, NULL);
    return 0;
}

/*
 * Returns 0 or the PTRACE_EVENT_* of the stop. A call takes a few microseconds. If another
 * processor executes it, sleeping and being woken up takes several times as long, so the wait polls
 * for a while. If this processor has to execute it, polling delays it. Which of the two applies is
 * predicted from the previous wait.
 */
static int wait_for(pid_t tid, bool is_near) {
    static bool is_far = true;
    const bool looks = is_far && !is_near;
    const int64_t begun = clock_now_ns();
    unsigned tries = 0;
    int status, r;

    do {
        is_far = is_near ? is_far : looks && clock_now_ns() - begun < LOOK_NS;
        r = looks && is_far ? waitpid(tid, &status, __WALL | WNOHANG)
                            : sleep_for(tid, tries++, &status);
    } while (r == 0 || (r < 0 && errno == EINTR));
    if (!looks && !is_near)
        is_far = clock_now_ns() - begun > FAR_NS;
    if (r < 0)
        return -errno;
    return WIFSTOPPED(status) ? status >> 16 : -ESRCH;
}

/* The thread's last call left it in a single step. If the dump worker were killed now, the
 * resulting trap would kill the process. So the thread is stopped again by PTRACE_INTERRUPT,
 * without having run. Nothing else stops it first, because all signals are still blocked. */
int trace_put_back(struct trace *trace) {
    if (!trace->stands || !trace->is_used)
        return 0;
    int r = set_registers(trace, &trace->stopped);
    if (r == 0 && (ptrace(PTRACE_INTERRUPT, trace->tid, 0, 0) < 0 ||
                      ptrace(PTRACE_CONT, trace->tid, 0, 0) < 0))
        r = -errno;
    if (r == 0)
        r = MIN(wait_for(trace->tid, trace->is_near), 0);
    draw_away(trace);
    if (r == 0 &&
        ptrace(PTRACE_SETSIGMASK, trace->tid, sizeof trace->signal_mask, &trace->signal_mask) < 0)
        r = -errno;
    trace->is_used = r < 0;
    if (r == 0 || r == -ESRCH)
        count_traced(trace, false);
    return r;
}

const char *trace_oddity(const struct trace *trace) {
    struct {
        uint64_t mode, selector, offset, length;
    } dispatch = { 0 };

    if (trace->registers.cs != CODE_64)
        return "it runs 32-bit code";
    if (ptrace((enum __ptrace_request)GET_DISPATCH, trace->tid, sizeof dispatch, &dispatch) == 0 &&
        dispatch.mode)
        return "it answers system calls itself (PR_SET_SYSCALL_USER_DISPATCH)";
    return NULL;
}

void trace_release(struct trace *trace) {
    if (!trace->is_seized)
        return;
    (void)trace_put_back(trace);
    (void)ptrace(PTRACE_DETACH, trace->tid, 0, 0);
    trace->is_seized = trace->stands = false;
}

ssize_t trace_read(int memory, uint64_t address, void *to, size_t length) {
    size_t done = 0;

    while (done < length) {
        ssize_t n = pread(memory, (char *)to + done, length - done, (off_t)(address + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return done || n == 0 ? (ssize_t)done : -errno;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int trace_find_instruction(struct trace_tools *tools, uint64_t start, uint64_t length) {
    static unsigned char code[65536];

    trace_prepare();
    /* The vDSO of all processes is the same, unless the project's code patched it. */
    if (instruction_at &&
        trace_read(tools->memory, start + instruction_at, code, SYSCALL_LENGTH) == SYSCALL_LENGTH &&
        is_instruction(code)) {
        tools->instruction = start + instruction_at;
        return 0;
    }
    ssize_t n = trace_read(tools->memory, start, code, MIN((size_t)length, sizeof code));

    for (ssize_t i = 0; i + 1 < n; i++)
        if (is_instruction(code + i)) {
            tools->instruction = start + (uint64_t)i;
            return 0;
        }
    return n < 0 ? (int)n : -ENOTSUP;
}

static int write_memory(
    const struct trace_tools *tools, uint64_t address, const void *data, size_t length) {
    return pwrite(tools->memory, data, length, (off_t)address) == (ssize_t)length ? 0 : -EFAULT;
}

static int begin_calls(struct trace *trace) {
    const uint64_t all = ~0ull;

    if (trace->is_used)
        return 0;
    count_traced(trace, true);
    if (ptrace(PTRACE_SETSIGMASK, trace->tid, sizeof all, &all) < 0) {
        count_traced(trace, false);
        return -errno;
    }
    trace->is_used = true;
    return 0;
}

static int begin_step(const struct trace *trace) {
    return ptrace(PTRACE_SINGLESTEP, trace->tid, 0, 0) < 0 ? -errno : 0;
}

static int step_instruction(const struct trace *trace) {
    int r = begin_step(trace);

    return r < 0 ? r : wait_for(trace->tid, trace->is_near);
}

int trace_call(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, void *ret_data, size_t length, int64_t *ret_result) {
    struct image_registers registers = trace->registers;
    uint64_t *places[] = { &registers.rdi, &registers.rsi, &registers.rdx, &registers.r10,
        &registers.r8, &registers.r9 };
    unsigned char saved[TRACE_SCRATCH];
    int r = length > TRACE_SCRATCH || n > ARRAY_SIZE(places) ? -EINVAL : begin_calls(trace);

    if (r < 0)
        return r;
    draw_near(trace);
    for (size_t i = 0; i < n; i++)
        *places[i] = arguments[i];
    registers.rax = (uint64_t)number;
    registers.rip = tools->instruction;
    if (length && trace_read(tools->memory, tools->scratch, saved, length) != (ssize_t)length)
        return -EFAULT;
    if (length)
        r = write_memory(tools, tools->scratch, ret_data, length);
    if (r == 0)
        r = set_registers(trace, &registers);
    for (unsigned met = 0; r == 0; met++) {
        int event = r = step_instruction(trace);
        if (event == PTRACE_EVENT_SECCOMP)
            r = step_instruction(trace); /* no tracer objects to the call */
        r = MIN(r, 0);
        if (r == 0)
            r = get_registers(trace, &registers);
        if (r < 0 || registers.rip != tools->instruction)
            break;
        /* A signal that cannot be blocked stopped the thread first. It has not moved. */
        if (met == MAX_SIGNALS_MET)
            r = -EBUSY;
    }
    if (r == 0 && registers.rip != tools->instruction + SYSCALL_LENGTH)
        r = -EINTR;
    *ret_result = (int64_t)registers.rax;
    if (r == 0 && length &&
        trace_read(tools->memory, tools->scratch, ret_data, length) != (ssize_t)length)
        r = -EFAULT;
    int back = length ? write_memory(tools, tools->scratch, saved, length) : 0;
    return r < 0 ? r : back;
}

int trace_set_dumpable(struct trace *trace, uint64_t vdso, bool is_dumpable) {
    const uint64_t arguments[] = { PR_SET_DUMPABLE, is_dumpable, 0, 0, 0 };
    int64_t result = -EINVAL;

    trace_prepare();
    const struct trace_tools tools = { .memory = -EBADF, .instruction = vdso + instruction_at };
    if (!vdso || !instruction_at || !is_at_instruction(trace, tools.instruction))
        return -ENOTSUP;
    int r = trace_call(trace, &tools, SYS_prctl, arguments, 5, NULL, 0, &result);
    return r < 0 ? r : (int)result;
}

int trace_call_asked(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, int64_t *ret_result) {
    if (ptrace(PTRACE_SETOPTIONS, trace->tid, 0, PTRACE_O_TRACESECCOMP) < 0)
        return -errno;
    int r = trace_call(trace, tools, number, arguments, n, NULL, 0, ret_result);
    (void)ptrace(PTRACE_SETOPTIONS, trace->tid, 0, 0);
    return r;
}

int trace_of_child(struct trace *trace, pid_t pid) {
    struct trace child = {
        .tid = pid, .is_used = true, .is_cow_fork = true
    }; /* all signals were blocked at the fork */
    int r = get_registers(&child, &child.registers);

    child.registers.orig_rax = (uint64_t)-1;
    if (r == 0)
        *trace = child;
    return r;
}

/* Runs from the child's first stop. The child unshares and closes its descriptors, or they would
 * stay open as long as it exists. -ESRCH: the child is gone. */
static int begin_child(pid_t pid, const struct trace_tools *tools) {
    const uint64_t all[] = { 0, UINT32_MAX, CLOSE_RANGE_UNSHARE };
    struct trace child;
    int64_t result = 0;
    int r = wait_for(pid, false);

    if (r >= 0)
        r = r == EVENT_STOP ? trace_of_child(&child, pid) : -EPROTO;
    if (r == 0)
        r = trace_call(&child, tools, SYS_close_range, all, ARRAY_SIZE(all), NULL, 0, &result);
    return r < 0 ? r : (int)result;
}

/* Steps over the clone call that the thread is in, with a stop for the birth of its child on the
 * way. The child has no stack, so if it were ever resumed it would fault before it could touch
 * shared resources. */
static int step_over_fork(struct trace *trace, const struct trace_tools *tools,
    struct image_registers *registers, pid_t *ret_pid) {
    unsigned long pid = 0;
    int r = 0;

    for (unsigned met = 0; r >= 0 && met <= MAX_SIGNALS_MET; met++) {
        int event = r = met ? step_instruction(trace) : wait_for(trace->tid, trace->is_near);

        if (event == PTRACE_EVENT_CLONE && ptrace(PTRACE_GETEVENTMSG, trace->tid, 0, &pid) < 0)
            r = -errno;
        if (r >= 0)
            r = MIN(get_registers(trace, registers), 0);
        if (r == 0 && event != PTRACE_EVENT_CLONE && registers->rip != tools->instruction)
            break;
    }
    *ret_pid = (pid_t)pid;
    if (r < 0)
        return r;
    return registers->rip == tools->instruction + SYSCALL_LENGTH ? 0 : -EINTR;
}

int trace_fork(struct trace *trace, const struct trace_tools *tools) {
    struct image_registers registers = trace->registers;
    int r = begin_calls(trace);

    registers.rax = SYS_clone;
    registers.rip = tools->instruction;
    registers.rdi = CLONE_FILES;
    registers.rsi = registers.rdx = registers.r10 = registers.r8 = registers.rsp = 0;
    if (r == 0 && ptrace(PTRACE_SETOPTIONS, trace->tid, 0, PTRACE_O_TRACECLONE) < 0)
        r = -errno;
    if (r == 0)
        r = set_registers(trace, &registers);
    if (r == 0)
        r = begin_step(trace);
    if (r < 0)
        (void)ptrace(PTRACE_SETOPTIONS, trace->tid, 0, 0);
    return r;
}

int trace_forked(
    struct trace *trace, const struct trace_tools *tools, pid_t *ret_pid, pid_t *ret_inner) {
    struct image_registers registers = { 0 };
    pid_t pid = 0;
    int r = step_over_fork(trace, tools, &registers, &pid);

    (void)ptrace(PTRACE_SETOPTIONS, trace->tid, 0, 0);
    if (r == 0 && (int64_t)registers.rax < 0)
        r = (int)registers.rax;
    if (r == 0 && pid <= 0)
        r = -ECHILD;
    int born = pid > 0 ? begin_child(pid, tools) : 0;
    *ret_pid = born == -ESRCH ? 0 : pid;
    *ret_inner = pid > 0 && (int64_t)registers.rax > 0 ? (pid_t)registers.rax : 0;
    return r < 0 ? r : born;
}

/* Up to the last component that each process has without a request. The components of AMX are large
 * and on request, and a sigreturn with room for them would be refused. */
static size_t length_without(uint64_t *features) {
    size_t length = XSAVE_LEGACY;

    trace_prepare();
    *features &= ~XSAVE_ON_REQUEST;
    for (unsigned component = 2; component < ARRAY_SIZE(component_ends); component++)
        if (*features >> component & 1)
            length = MAX(length, (size_t)component_ends[component]);
    return length;
}

int trace_xstate(const struct trace *trace, void *to, size_t capacity, size_t *ret_length,
    uint64_t *ret_features) {
    struct iovec area = { to, capacity };
    uint64_t in_use;

    if (ptrace(PTRACE_GETREGSET, trace->tid, NT_XSTATE, &area) < 0)
        return -errno;
    if (area.iov_len >= capacity || area.iov_len < XSAVE_LEGACY)
        return -ENOTSUP;
    memcpy(ret_features, (char *)to + XSAVE_FEATURES, sizeof *ret_features);
    memcpy(&in_use, (char *)to + XSAVE_IN_USE, sizeof in_use);
    if (in_use & XSAVE_ON_REQUEST)
        return -ENOTSUP;
    *ret_length = MIN(area.iov_len, length_without(ret_features));
    return 0;
}

int trace_rseq(const struct trace *trace, uint64_t *ret_address, uint64_t *ret_length,
    uint64_t *ret_signature) {
    struct {
        uint64_t pointer;
        uint32_t size, signature, flags, unused;
    } configuration = { 0 };

    if (ptrace((enum __ptrace_request)GET_RSEQ, trace->tid, sizeof configuration, &configuration) <
        0)
        return errno == EIO || errno == EINVAL ? 0
                                               : -errno; /* before Linux 5.13, or not configured:
                                                            glibc does not use rseq then either */
    *ret_address = configuration.pointer;
    *ret_length = configuration.size;
    *ret_signature = configuration.signature;
    return 0;
}

int trace_in_sequence(const struct trace *trace, int memory) {
    uint64_t address = 0, length, signature, section = 0;
    int r = trace_rseq(trace, &address, &length, &signature);

    if (r < 0 || !address)
        return r;
    return trace_read(memory, address + 8, &section, sizeof section) != sizeof section
               ? -EFAULT
               : section != 0;
}

int trace_pending(const struct trace *trace, bool is_shared, void *to, unsigned most) {
    struct {
        uint64_t from;
        uint32_t flags;
        int32_t n;
    } what = { 0, is_shared, (int32_t)most }; /* struct ptrace_peeksiginfo_args */
    long n = ptrace((enum __ptrace_request)0x4209 /* PTRACE_PEEKSIGINFO */, trace->tid, &what, to);

    return n < 0 ? -errno : (int)n;
}
