/* SPDX-License-Identifier: Apache-2.0 */
/* Time stamps of files under time_start. file_times.c has the model. */
#ifndef ROLLBOX_GUEST_DET_FILE_TIMES_H
#define ROLLBOX_GUEST_DET_FILE_TIMES_H

/* 2^33 seconds, 272 years, which is added to a stamp that a guest sets: ext4's go to 2446. The code
 * in the vDSO has it in its text. */
#define STAMPS_MARK_S 8589934592

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/internal.h"

struct seccomp_notif;

/* In the launcher: what the kernel has for all sandboxes. */
void file_times_find_out(const struct plan *plan);
/* While the sandbox is made, before anything is mounted in it. */
void file_times_prepare(const struct box *box);
/* And when all is: which mounts hold its own files. */
void file_times_find_mounts(const struct plan *plan);
/* The clock starts. `ahead_ns`: what the time of day is ahead of the kernel's; `before_ns`: what it
 * was where the sandbox's processes come from. Neither is looked at if it is virtual. 0 or -errno.
 */
int file_times_begin(const struct plan *plan, int64_t ahead_ns, int64_t before_ns);
/* False: the question is none about stamps, or is to be let pass. */
bool file_times_answer(const struct plan *plan, int listener, const struct seccomp_notif *question);
/* What can be known of a stamp by itself. */
struct stamps_bounds {
    int64_t since_s; /* what is older is none of the sandbox' */
    int64_t born_s;  /* of files on this device, as stat(2) has it: what is not older, and not
                        STAMPS_MARK_S, is the kernel's, and ahead by what clocks are; -1: there is
                        none */
    uint64_t own_device;
    uint64_t pipes_device; /* likewise; what is there is of the clock's start, if that is virtual,
                              and else ahead by what clocks are */
    uint64_t anonymous_device; /* what is there has none of its own, however old they look */
    uint64_t renumbered_device,
        renumbered_as; /* that of its own files, as it is and as it is shown */
};
struct stamps_bounds file_times_bounds(void);
/* A process has a new image; `address` is where it has called brk from, or 0. Where its loader may
 * call newfstatat from, or 0. */
uint64_t file_times_executed(pid_t pid, uint64_t address);
/* virtual: what was written up to now is of now, and not of the time that the clock is about to
 * jump to. */
void file_times_settle(void);

#endif
