/* SPDX-License-Identifier: Apache-2.0 */
/* System V's objects: a bound for their shared memory, and their times. sysv_ipc_times.c has the
 * model. */
#ifndef ROLLBOX_GUEST_DET_SYSV_IPC_TIMES_H
#define ROLLBOX_GUEST_DET_SYSV_IPC_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "guest/internal.h"

/* In init, with rights over the sandbox's IPC namespace: as plan->segment_bytes says, by the own
 * /proc/sys. False: the kernel does not let it, and sysv_ipc_refuse_segments must follow. */
bool sysv_ipc_bound_segments(const struct plan *plan, int proc_sys);
/* For init and all processes to come the calls are ENOSYS. 0 or -errno. */
int sysv_ipc_refuse_segments(void);

/* The time of day is `ahead_ns` ahead of the kernel's, unless it is virtual. False: the question is
 * none of these. */
struct seccomp_notif;
bool sysv_ipc_answer(
    const struct plan *plan, int listener, const struct seccomp_notif *question, int64_t ahead_ns);

#endif
