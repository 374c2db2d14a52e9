/* SPDX-License-Identifier: Apache-2.0 */
/* System calls of init's that a guest could make last: timed_syscall.c has the model. */
#ifndef ROLLBOX_GUEST_BOUNDED_H
#define ROLLBOX_GUEST_BOUNDED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* In init, once, before the first call. 0 or -errno. */
int timed_syscall_begin(void);
/* A system call that is given up after about `limit_us`. Its result, or -EINTR. */
long timed_syscall_call(
    long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t limit_us);

/* Has a thread stop (ptrace) before it goes on, which is told to who waits for it, as status >> 16.
 * False: it has a tracer of its own, or its process is in an execve. */
#define BOUNDED_STOP_EVENT 128
bool timed_syscall_stop(pid_t thread);
/* 1 if it has stopped, which is told to `stopped`: if that returns false, it goes on with its
 * signal. 0: not yet. -errno: it is gone. */
int timed_syscall_has_stopped(pid_t thread, bool (*stopped)(pid_t thread, int status));
/* A moment, for it to get there. */
void timed_syscall_pause(void);

#endif
