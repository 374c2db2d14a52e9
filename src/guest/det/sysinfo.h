/* SPDX-License-Identifier: Apache-2.0 */
/* sysinfo(2) for the sandbox (sysinfo.c has the model). */
#ifndef ROLLBOX_GUEST_DET_SYSINFO_H
#define ROLLBOX_GUEST_DET_SYSINFO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/sysinfo.h>

#include "policy/plan.h"

struct seccomp_notif;

/* The sandbox's CLOCK_BOOTTIME minus init's, which is the host's. */
extern int64_t sysinfo_uptime_ahead_ns;

/* In init, before the policy's filter and before any other process of the sandbox: init answers the
 * call from now on. 0 or -errno. */
int sysinfo_begin(const struct plan *plan);
/* Fills in the sandbox's values. False: the kernel has no such call. */
bool sysinfo_fill(struct sysinfo *ret_info);
/* Answers such a call with these values, or with the given ones. */
void sysinfo_answer(int listener, const struct seccomp_notif *question);
void sysinfo_answer_with(
    int listener, const struct seccomp_notif *question, const struct sysinfo *info);

#endif
