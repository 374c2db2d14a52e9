/* SPDX-License-Identifier: Apache-2.0 */
/* Time stamps of files under time_start: file_times.c has the model. */
#ifndef ROLLBOX_GUEST_DET_FILE_TIMES_H
#define ROLLBOX_GUEST_DET_FILE_TIMES_H

/* 2^33 seconds, 272 years, which is added to a stamp that a guest sets: ext4's stamps end in 2446.
 * The vDSO's assembly code contains this number. */
#define STAMPS_MARK_S 8589934592

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/internal.h"

struct seccomp_notif;

/* Called in the launcher: determines the values that all sandboxes share. */
void file_times_find_out(const struct plan *plan);
/* While the sandbox is made, before any mount. */
void file_times_prepare(const struct box *box);
/* After all mounts: finds those that have the sandbox's own files. */
void file_times_find_mounts(const struct plan *plan);
/* Starts the clock. `ahead_ns`: time of day minus the kernel's; `before_ns`: the same where the
 * sandbox's processes come from. Both are ignored if the clock is virtual. 0 or -errno. */
int file_times_begin(const struct plan *plan, int64_t ahead_ns, int64_t before_ns);
/* False: the call is not about stamps, or passes to the kernel. */
bool file_times_answer(const struct plan *plan, int listener, const struct seccomp_notif *question);
/* The facts that a stamp alone shows. */
struct stamps_bounds {
    int64_t since_s; /* older stamps are not from the sandbox */
    int64_t born_s;  /* files on this device (encoding of stat(2)): a stamp that is not older, and
                        below STAMPS_MARK_S, is the kernel's and shown with the clock's offset; -1:
                        no such device */
    uint64_t own_device;
    uint64_t pipes_device; /* the same encoding; pipes have the clock's start if that is virtual,
                              else the clock's offset */
    uint64_t anonymous_device; /* files there have no stamps of their own, however old they look */
    uint64_t renumbered_device, renumbered_as; /* the device of its own files, real and as shown */
};
struct stamps_bounds file_times_bounds(void);
/* A process has executed a program. `address`: where it called brk from, or 0. Returns an address
 * from which its loader may call newfstatat, or 0. */
uint64_t file_times_executed(pid_t pid, uint64_t address);
/* Virtual time: gives files written so far the present time, and not the time that the clock is
 * about to jump to. */
void file_times_settle(void);

#endif
