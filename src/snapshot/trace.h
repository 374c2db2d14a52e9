/* SPDX-License-Identifier: Apache-2.0 */
/* A process held still by ptrace: its registers, its memory, and system calls made in it. Calls are of one thread: the kernel knows a tracer by its thread. */
#ifndef ROLLBOX_SNAPSHOT_TRACE_H
#define ROLLBOX_SNAPSHOT_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/image.h"

struct trace {
    pid_t pid;
    int memory;                 /* /proc/PID/mem */
    struct image_registers registers;   /* as it was stopped; it gets them back, and with them its system call again */
    uint64_t instruction;       /* where it has a `syscall` */
};

/* Seizes the single-threaded process and stops it where it waits in `call`. Once it returns 0 the process goes on only by trace_end, or when the caller dies. 0 or -errno: EBUSY if it never waits there. */
int trace_begin(struct trace *trace, pid_t pid, long call);
void trace_end(struct trace *trace);

/* How many bytes were read, less than asked for where there is no memory; or -errno. */
ssize_t trace_read(const struct trace *trace, uint64_t address, void *to, size_t length);

/* Makes the process call; `scratch`, 512 bytes of its memory, may be among the arguments: it is filled from `ret_data` and read back into it (NULL: neither). The call's result, or -errno, which ret_result tells apart. */
int trace_call(struct trace *trace, long number, const uint64_t *arguments, size_t n, void *ret_data, size_t length, int64_t *ret_result);
uint64_t trace_scratch(const struct trace *trace);

/* What only the kernel knows of it. 0 or -errno. */
int trace_xstate(const struct trace *trace, void *to, size_t capacity, size_t *ret_length, uint64_t *ret_features);
int trace_signal_mask(const struct trace *trace, uint64_t *ret_mask);
int trace_rseq(const struct trace *trace, uint64_t *ret_address, uint64_t *ret_length, uint64_t *ret_signature);

#endif
