/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Persistent volumes: directories of the store that sandboxes mount (docs/how-to/volumes.md).
 *
 * volumes/NAME has the files in "1" (a number, because the disk usage worker looks for one),
 * volume.json, and two files for locks. Everybody who has a volume mounted holds a shared lock on
 * `users`, so that it is not removed. A sandbox that writes holds a lock on `writers`: an exclusive
 * one, or a shared one if its policy shares the volume. The engine holds both, and the kernel
 * releases them when the engine ends.
 *
 * The processes of a killed engine's sandboxes end a moment later than it. So `writers` names the
 * init of a sandbox that writes alone, and the next writer looks whether that process still exists.
 *
 * This part is linked by the engine. volume_job.h makes, copies and removes volumes.
 */
#ifndef ROLLBOX_STORE_VOLUME_H
#define ROLLBOX_STORE_VOLUME_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "policy/volumes.h"

#define VOLUMES_DIRECTORY "volumes"
#define VOLUME_FILES "1"
#define VOLUME_FILES_NUMBER 1u

struct volume_meta {
    int64_t created_s;
    uint64_t max_bytes; /* 0: no limit */
};

/* Opens volumes/NAME; the caller owns *ret_directory. Errors: NOT_FOUND, IO. */
int volume_open(int store, const char *name, int *ret_directory, struct rollbox_error *error);
/* -EBADMSG if volume.json is not valid; other -errno. Sets no error. */
int volume_read_meta(int directory, struct volume_meta *ret_meta);

struct volume_lock {
    int users, writers; /* -EBADF: not held */
};

#define VOLUME_LOCK_NONE ((struct volume_lock){ -EBADF, -EBADF })

/* Takes the locks for a mode. Errors: NOT_FOUND (it is being removed), CONFLICT (another sandbox
 * writes), IO. */
int volume_lock_take(int store, int directory, const char *name, enum policy_volume_mode mode,
    struct volume_lock *ret_lock, struct rollbox_error *error);
/* Gives the locks back, although a fork of the caller may still have the descriptors. */
void volume_lock_done(struct volume_lock *lock);
/* Names the init of the sandbox that has taken the volume alone. */
void volume_lock_note(const struct volume_lock *lock, pid_t init);

#endif
