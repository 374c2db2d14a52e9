/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptrace.
 *
 * A process that waits in a system call is stopped with the call broken off: the kernel has put -ERESTARTSYS or a relative of it into rax, and would make the call again when the process goes on. Other calls are made in it meanwhile
 * from the very `syscall` instruction it waits at; for them orig_rax is -1, so that the kernel restarts nothing. What the process goes on with, here or where it is restored, are the registers of before that instruction.
 */
#include "snapshot/trace.h"

#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define NT_XSTATE 0x202         /* NT_X86_XSTATE */
#define GET_RSEQ 0x420f         /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */
#define SYSCALL_LENGTH 2        /* 0f 05 */
#define ERESTARTSYS 512
#define ERESTARTNOHAND 514
#define RED_ZONE 128
#define XSAVE_LEGACY 576u      /* the legacy area and the header */
#define XSAVE_FEATURES 464u    /* where the kernel says which components the processor has */
#define XSAVE_IN_USE 512u      /* XSTATE_BV: which of them are not as at the start */
#define XSAVE_ON_REQUEST (3ull << 17)      /* AMX */
#define SCRATCH 512
#define MAX_TRIES 2000
#define TRY_AGAIN_NS 500000

static int await_stop(pid_t pid) {
    int status;

    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFSTOPPED(status) ? 0 : -ESRCH;
}

static int get_registers(const struct trace *trace, struct image_registers *to) {
    struct iovec area = { to, sizeof *to };

    return ptrace(PTRACE_GETREGSET, trace->pid, NT_PRSTATUS, &area) < 0 ? -errno : 0;
}

static int set_registers(const struct trace *trace, const struct image_registers *from) {
    struct iovec area = { (void *)(uintptr_t)from, sizeof *from };

    return ptrace(PTRACE_SETREGSET, trace->pid, NT_PRSTATUS, &area) < 0 ? -errno : 0;
}

/* To before the instruction whose call was broken off. */
static int rewind_call(struct trace *trace) {
    struct image_registers *registers = &trace->registers;
    int64_t result = (int64_t)registers->rax;
    unsigned char instruction[SYSCALL_LENGTH];

    if ((int64_t)registers->orig_rax < 0 || result > -ERESTARTSYS || result < -ERESTARTNOHAND)
        return -EBUSY;
    registers->rip -= SYSCALL_LENGTH;
    registers->rax = registers->orig_rax;
    registers->orig_rax = (uint64_t)-1;
    trace->instruction = registers->rip;
    if (trace_read(trace, trace->instruction, instruction, sizeof instruction) != sizeof instruction)
        return -EFAULT;
    return instruction[0] == 0x0f && instruction[1] == 0x05 ? 0 : -EBUSY;
}

static int stop_once(struct trace *trace, long call) {
    int r = ptrace(PTRACE_SEIZE, trace->pid, 0, 0) < 0 ? -errno : 0;

    if (r < 0)
        return r;
    if (ptrace(PTRACE_INTERRUPT, trace->pid, 0, 0) < 0)
        r = -errno;
    if (r == 0)
        r = await_stop(trace->pid);
    if (r == 0)
        r = get_registers(trace, &trace->registers);
    if (r == 0 && (long)trace->registers.orig_rax != call)
        r = -EBUSY;
    if (r == 0)
        r = rewind_call(trace);
    if (r < 0)
        (void)ptrace(PTRACE_DETACH, trace->pid, 0, 0);
    return r;
}

int trace_begin(struct trace *trace, pid_t pid, long call) {
    char path[32];
    int r = -EBUSY;

    *trace = (struct trace){ .pid = pid };
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    trace->memory = open(path, O_RDWR | O_CLOEXEC);
    if (trace->memory < 0)
        return -errno;
    /* It may be on its way there still, which nothing announces. */
    for (unsigned tries = 0; r == -EBUSY && tries < MAX_TRIES; tries++) {
        r = stop_once(trace, call);
        if (r == -EBUSY)
            nanosleep(&(struct timespec){ .tv_nsec = TRY_AGAIN_NS }, NULL);
    }
    if (r < 0)
        close(trace->memory);
    return r;
}

void trace_end(struct trace *trace) {
    (void)set_registers(trace, &trace->registers);
    (void)ptrace(PTRACE_DETACH, trace->pid, 0, 0);
    close(trace->memory);
}

ssize_t trace_read(const struct trace *trace, uint64_t address, void *to, size_t length) {
    size_t done = 0;

    while (done < length) {
        ssize_t n = pread(trace->memory, (char *)to + done, length - done, (off_t)(address + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return done || n == 0 ? (ssize_t)done : -errno;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

uint64_t trace_scratch(const struct trace *trace) {
    return (trace->registers.rsp - RED_ZONE - SCRATCH) & ~(uint64_t)63;
}

static int write_memory(const struct trace *trace, uint64_t address, const void *data, size_t length) {
    return pwrite(trace->memory, data, length, (off_t)address) == (ssize_t)length ? 0 : -EFAULT;
}

int trace_call(struct trace *trace, long number, const uint64_t *arguments, size_t n, void *ret_data, size_t length, int64_t *ret_result) {
    struct image_registers registers = trace->registers;
    uint64_t *places[] = { &registers.rdi, &registers.rsi, &registers.rdx, &registers.r10, &registers.r8, &registers.r9 };
    unsigned char saved[SCRATCH];
    int r = 0;

    if (length > SCRATCH || n > sizeof places / sizeof places[0])
        return -EINVAL;
    for (size_t i = 0; i < n; i++)
        *places[i] = arguments[i];
    registers.rax = (uint64_t)number;
    registers.rip = trace->instruction;
    if (length && trace_read(trace, trace_scratch(trace), saved, length) != (ssize_t)length)
        return -EFAULT;
    if (length)
        r = write_memory(trace, trace_scratch(trace), ret_data, length);
    if (r == 0)
        r = set_registers(trace, &registers);
    if (r == 0 && ptrace(PTRACE_SINGLESTEP, trace->pid, 0, 0) < 0)
        r = -errno;
    if (r == 0)
        r = await_stop(trace->pid);
    if (r == 0)
        r = get_registers(trace, &registers);
    if (r < 0)
        return r;
    /* A signal, which stopped it first, leaves it where it was. */
    if (registers.rip != trace->instruction + SYSCALL_LENGTH)
        return -EINTR;
    *ret_result = (int64_t)registers.rax;
    if (length && trace_read(trace, trace_scratch(trace), ret_data, length) != (ssize_t)length)
        return -EFAULT;
    return length ? write_memory(trace, trace_scratch(trace), saved, length) : 0;
}

/* Up to the last component that a process has without asking for it: those of AMX, which are large, are another matter, and a sigreturn with room for them would be refused. */
static size_t length_without(uint64_t *features) {
    size_t length = XSAVE_LEGACY;

    *features &= ~XSAVE_ON_REQUEST;
    for (unsigned component = 2; component < 63; component++) {
        unsigned size, offset, flags, unused;

        if (*features >> component & 1 && __get_cpuid_count(0xd, component, &size, &offset, &flags, &unused))
            length = MAX(length, (size_t)offset + size);
    }
    return length;
}

int trace_xstate(const struct trace *trace, void *to, size_t capacity, size_t *ret_length, uint64_t *ret_features) {
    struct iovec area = { to, capacity };
    uint64_t in_use;

    if (ptrace(PTRACE_GETREGSET, trace->pid, NT_XSTATE, &area) < 0)
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

int trace_signal_mask(const struct trace *trace, uint64_t *ret_mask) {
    return ptrace(PTRACE_GETSIGMASK, trace->pid, sizeof *ret_mask, ret_mask) < 0 ? -errno : 0;
}

int trace_rseq(const struct trace *trace, uint64_t *ret_address, uint64_t *ret_length, uint64_t *ret_signature) {
    struct {
        uint64_t pointer;
        uint32_t size, signature, flags, unused;
    } configuration = { 0 };

    if (ptrace((enum __ptrace_request)GET_RSEQ, trace->pid, sizeof configuration, &configuration) < 0)
        return errno == EIO || errno == EINVAL ? 0 : -errno;    /* before 5.13, or not configured: then glibc has none either */
    *ret_address = configuration.pointer;
    *ret_length = configuration.size;
    *ret_signature = configuration.signature;
    return 0;
}
