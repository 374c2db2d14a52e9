/* SPDX-License-Identifier: Apache-2.0 */
/* A thread held still by ptrace: its registers, the memory of its process, and system calls made in
 * it. Calls are of one thread: the kernel knows a tracer by its thread. */
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
    int stopped_by;     /* a signal, as job control does it; 0: by us alone */
    bool is_used;       /* calls were made in it */
    bool is_counted;    /* among those that would not go on as they were */
    bool is_twin;       /* of ours alone */
    bool is_near;       /* it may run where we do alone, for as long as that: */
    cpu_set_t affinity; /* and then where it could before */
    struct image_registers
        stopped; /* with which it goes on here: the kernel sees to what it was in */
    struct image_registers registers; /* the same before that, with which calls are made */
    struct image_registers elsewhere; /* with which it goes on where it is restored: a relative wait
                                         that was broken off begins anew there */
    long call;                        /* in which it waits; -1: in none */
    unsigned n_looks;                 /* how often it was let go on to see what it waits in: */
    uint32_t restarted;               /* by restart_syscall; 0: that is not known */
    enum image_interruption interruption;
    uint64_t signal_mask;
};

/* What the calls of a process' threads are made with. */
struct trace_tools {
    int memory;           /* /proc/PID/mem */
    uint64_t instruction; /* where there is a `syscall`: the kernel's vDSO has one */
    uint64_t scratch;     /* TRACE_SCRATCH bytes of its memory; they are put back after each call */
};

/* Finds out what is the same for all threads, and slow to find out; whoever forks others to trace
 * does it once for all of them. It is done when it is needed, too. */
void trace_prepare(void);
/* Where to count, from now on, the threads that would not go on as they were if we were killed: who
 * sees us dead can tell by it. NULL: nowhere. */
void trace_count_at(volatile uint32_t *in_calls);
/* Asks a thread to stand still. 0 or -errno; ESRCH: it is gone. */
int trace_seize(struct trace *trace, pid_t tid);
/* Does it by now? 0; -EAGAIN; -ESRCH: it is gone. */
int trace_await(struct trace *trace);
/* After calls were made in it: as it stood before, so that it goes on as it was even if we are
 * killed. 0 or -errno. */
int trace_put_back(struct trace *trace);
/* Why no call can be made in it, as the kernel would not answer that; NULL: it can. */
const char *trace_oddity(const struct trace *trace);
/* It is as it was, and goes on. */
void trace_release(struct trace *trace);

/* Finds a `syscall` instruction among `length` bytes that a process has at `start`. 0 or -errno. */
int trace_find_instruction(struct trace_tools *tools, uint64_t start, uint64_t length);

/* From /proc/PID/mem: how many bytes were read, less than asked for where there is no memory; or
 * -errno. */
ssize_t trace_read(int memory, uint64_t address, void *to, size_t length);

/* Makes the thread call; tools->scratch may be among the arguments: it is filled from `ret_data`
 * and read back into it (NULL: neither). The call's result, or -errno, which ret_result tells
 * apart. */
int trace_call(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, void *ret_data, size_t length, int64_t *ret_result);

/* Whether others of its user may look into its process (PR_SET_DUMPABLE). Needs no file of /proc,
 * which these cannot open before. 0; -ENOTSUP: its vDSO is not the kernel's; or -errno. */
int trace_set_dumpable(struct trace *trace, uint64_t vdso, bool is_dumpable);

/* A call of which the process' filter asks its tracer. */
int trace_call_asked(struct trace *trace, const struct trace_tools *tools, long number,
    const uint64_t *arguments, size_t n, int64_t *ret_result);

/* Makes it fork: a child without descriptors that stands, and never runs; whose end is told to
 * nobody, but by wait4 with __WCLONE. 0 or -errno. Then it is under way, and whoever has begun that
 * does nothing else with the thread, or with memory of its process, until trace_forked has waited
 * for it. */
int trace_fork(struct trace *trace, const struct trace_tools *tools);
/* The child's pid (0: there is none, or it has ended), and the one that the process knows. 0 or
 * -errno. */
int trace_forked(
    struct trace *trace, const struct trace_tools *tools, pid_t *ret_pid, pid_t *ret_inner);

/* For calls to be made in such a child. 0 or -errno. */
int trace_of_child(struct trace *trace, pid_t pid);

/* What only the kernel knows of it. 0 or -errno. */
int trace_xstate(const struct trace *trace, void *to, size_t capacity, size_t *ret_length,
    uint64_t *ret_features);
int trace_rseq(const struct trace *trace, uint64_t *ret_address, uint64_t *ret_length,
    uint64_t *ret_signature);
/* Is a restartable sequence under way, as struct rseq (linux/rseq.h) says? Calls would be taken for
 * its end. 0, 1 or -errno. */
int trace_in_sequence(const struct trace *trace, int memory);
/* Signals that wait for it, or for its process: how many were read, at most `most` of 128 bytes
 * each, or -errno. */
int trace_pending(const struct trace *trace, bool is_shared, void *to, unsigned most);

#endif
