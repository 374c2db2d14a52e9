/* SPDX-License-Identifier: Apache-2.0 */
/* Timers that expire at a time of day: abs_timers.c has the model. */
#ifndef ROLLBOX_GUEST_DET_ABS_TIMERS_H
#define ROLLBOX_GUEST_DET_ABS_TIMERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Answers timerfd_settime or timer_settime with TIMER_ABSTIME; the sandbox's time of day is
 * `ahead_ns` ahead of the kernel's. False: the kernel makes the call, or reports an error. */
struct seccomp_notif;
bool abs_timers_answer(int listener, const struct seccomp_notif *question, int64_t ahead_ns);
/* A thread has stopped. False if the stop was not made here. */
bool abs_timers_stopped(pid_t thread, int status);
/* Waits until no thread is being stopped. */
void abs_timers_settle(void);

#endif
