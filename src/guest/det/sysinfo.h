/* SPDX-License-Identifier: Apache-2.0 */
/* sysinfo(2) as of the sandbox (sysinfo.c has the model). */
#ifndef ROLLBOX_GUEST_DET_SYSINFO_H
#define ROLLBOX_GUEST_DET_SYSINFO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/sysinfo.h>

#include "policy/plan.h"

struct seccomp_notif;

/* What CLOCK_BOOTTIME of the sandbox is ahead of init's, which is the host's. */
extern int64_t sysinfo_uptime_ahead_ns;

/* In init, before the policy's filter and before any other process of the sandbox: it is asked from
 * now on. 0 or -errno. */
int sysinfo_begin(const struct plan *plan);
/* What a sandbox is told. False: the kernel has no such call. */
bool sysinfo_fill(struct sysinfo *ret_info);
/* To a question of that call: so; or this. */
void sysinfo_answer(int listener, const struct seccomp_notif *question);
void sysinfo_answer_with(
    int listener, const struct seccomp_notif *question, const struct sysinfo *info);

#endif
