/* SPDX-License-Identifier: Apache-2.0 */
/* A thread stopped by ptrace: its registers, the memory of its process, and system calls made in
 * it. All calls come from one thread, because the kernel identifies a tracer by its thread. */
#ifndef ROLLBOX_DUMP_TRACE_H
#define ROLLBOX_DUMP_TRACE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/process_image.h"

#define TRACE_SCRATCH 512

struct trace {
    pid_t tid;
    bool is_seized, stands;
    int stopped_by;     /* the signal of a job-control stop; 0: stopped by this tracer alone */
    bool is_used;       /* calls were made in it */
    bool is_counted;    /* it is in the count of threads that would resume with wrong registers */
    bool is_cow_fork;   /* a copy-on-write fork */
    bool is_near;       /* bound to the tracer's processor */
    cpu_set_t affinity; /* its processors before that */
    struct image_registers
        stopped; /* the thread resumes with these here, and the kernel restarts its call */
    struct image_registers registers; /* the same without the restart, for making calls */
    struct image_registers elsewhere; /* for a restore: an interrupted relative wait begins again */
    long call;                        /* the call that it waits in; -1: none */
    unsigned n_looks;                 /* the times it was resumed to find out its call: */
    uint32_t restarted;               /* the call behind restart_syscall; 0: unknown */
    enum image_interruption interruption;
    uint64_t signal_mask;
};

/* The means of making calls in the threads of a process. */
struct trace_tools {
    int memory;           /* /proc/PID/mem */
    uint64_t instruction; /* address of a `syscall` instruction, in the vDSO */
    uint64_t scratch; /* TRACE_SCRATCH bytes of its memory, which are put back after each call */
};

/* Computes what is the same for all threads and is slow. A process that forks tracers calls it once
 * for all of them. Otherwise it happens on first use. */
void trace_prepare(void);
/* Sets the place of a count of threads that would resume with wrong registers if the tracer were
 * killed. The observer of the tracer's death reads it. NULL: no count. */
void trace_count_at(volatile uint32_t *in_calls);
/* Asks a thread to stop. 0 or -errno; ESRCH: it is gone. */
int trace_seize(struct trace *trace, pid_t tid);
/* Has the thread stopped? 0; -EAGAIN; -ESRCH: it is gone. */
int trace_await(struct trace *trace);
/* After calls were made in the thread: restores its state, so that it resumes correctly even if the
 * tracer is killed. 0 or -errno. */
int trace_put_back(struct trace *trace);
/* The reason why no call can be made in the thread: the kernel would not execute it. NULL: calls
 * are possible. */
const char *trace_oddity(const struct trace *trace);
/* Resumes the thread with its own registers. */
void trace_release(struct trace *trace);

/* Finds a `syscall` instruction among `length` bytes at `start` of a process. 0 or -errno. */
int trace_find_instruction(struct trace_tools *tools, uint64_t start, uint64_t length);

/* Reads from /proc/PID/mem: the number of bytes, which is smaller where memory is missing, or
 * -errno. */
ssize_t trace_read(int memory, uint64_t address, void *to, size_t length);

/* Makes the thread execute a system call. tools->scratch may be among the arguments: it is filled
 * from `ret_data` and read back into it (NULL: neither). 0 and the call's result in ret_result, or
 * -errno. */
int trace_call(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, void *ret_data, size_t length, int64_t *ret_result);

/* Sets whether processes of the same user may inspect this one (PR_SET_DUMPABLE). It needs no file
 * of /proc, because those cannot be opened before. 0; -ENOTSUP: the vDSO is not the kernel's; or
 * -errno. */
int trace_set_dumpable(struct trace *trace, uint64_t vdso, bool is_dumpable);

/* Makes a call that the process's filter passes to a tracer. */
int trace_call_asked(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, int64_t *ret_result);

/* Starts a fork of the process. The child has no descriptors, is stopped and never runs. Only wait4
 * with __WCLONE reports its end. 0 or -errno. Until trace_forked() the caller must not use the
 * thread or the memory of its process. */
int trace_fork(struct trace *trace, const struct trace_tools *tools);
/* The child's pid (0: none, or it has ended), and its pid inside the sandbox. 0 or -errno. */
int trace_forked(
    struct trace *trace, const struct trace_tools *tools, pid_t *ret_pid, pid_t *ret_inner);

/* Sets up a trace for calls in such a child. 0 or -errno. */
int trace_of_child(struct trace *trace, pid_t pid);

/* State that only the kernel has. 0 or -errno. */
int trace_xstate(const struct trace *trace, void *to, size_t capacity, size_t *ret_length,
    uint64_t *ret_features);
int trace_rseq(const struct trace *trace, uint64_t *ret_address, uint64_t *ret_length,
    uint64_t *ret_signature);
/* Is the thread in a restartable sequence, by its struct rseq (linux/rseq.h)? A call would abort
 * the sequence. 0, 1 or -errno. */
int trace_in_sequence(const struct trace *trace, int memory);
/* Reads the pending signals of the thread or of its process, at most `most` of 128 bytes each:
 * their number, or -errno. */
int trace_pending(const struct trace *trace, bool is_shared, void *to, unsigned most);

#endif
