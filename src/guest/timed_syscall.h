/* SPDX-License-Identifier: Apache-2.0 */
/* System calls of init that a guest could delay: timed_syscall.c has the model. */
#ifndef ROLLBOX_GUEST_BOUNDED_H
#define ROLLBOX_GUEST_BOUNDED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* In init, once, before the first call. 0 or -errno. */
int timed_syscall_begin(void);
/* Makes a system call that is interrupted after about `limit_us`. Its result, or -EINTR. */
long timed_syscall_call(
    long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t limit_us);

/* Makes a thread stop (ptrace) before it continues. The stop is reported to a wait for the thread,
 * as status >> 16. False: it has another tracer, or its process is in an execve. */
#define BOUNDED_STOP_EVENT 128
bool timed_syscall_stop(pid_t thread);
/* 1 if the thread has stopped and `stopped` accepted the status; if that returns false, the thread
 * continues with its signal. 0: not yet. -errno: it is gone. */
int timed_syscall_has_stopped(pid_t thread, bool (*stopped)(pid_t thread, int status));
/* A short pause, for the thread to get there. */
void timed_syscall_pause(void);

#endif
