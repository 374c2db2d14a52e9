/* SPDX-License-Identifier: Apache-2.0 */
/* Times of System V's objects: ipc.c has the model. */
#ifndef ROLLBOX_GUEST_IPC_H
#define ROLLBOX_GUEST_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "guest/internal.h"

/* The time of day is `ahead_ns` ahead of the kernel's, unless it is virtual. False: the question is none of these. */
struct seccomp_notif;
bool ipc_answer(const struct plan *plan, int listener, const struct seccomp_notif *question, int64_t ahead_ns);

#endif
