/* SPDX-License-Identifier: Apache-2.0 */
/* System V objects: a limit for their shared memory, and their times. sysv_ipc_times.c has the
 * model. */
#ifndef ROLLBOX_GUEST_DET_SYSV_IPC_TIMES_H
#define ROLLBOX_GUEST_DET_SYSV_IPC_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "guest/internal.h"

/* In init, with rights over the sandbox's IPC namespace: sets plan->segment_bytes through its own
 * /proc/sys. False: the kernel does not allow it, and sysv_ipc_refuse_segments must follow. */
bool sysv_ipc_bound_segments(const struct plan *plan, int proc_sys);
/* Makes the calls fail with ENOSYS for init and all later processes. 0 or -errno. */
int sysv_ipc_refuse_segments(void);

/* The time of day is `ahead_ns` ahead of the kernel's, unless it is virtual. False: not one of
 * these calls. */
struct seccomp_notif;
bool sysv_ipc_answer(
    const struct plan *plan, int listener, const struct seccomp_notif *question, int64_t ahead_ns);

#endif
