/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volumes that the engine's boxes have mounted: their locks and their quotas.
 *
 * A box holds a reference to each volume of its policy from before its mounts are made until its
 * processes are gone. Boxes of one session that follow each other (reset) share a reference to a
 * volume that the session has alone, so the old box may still be dying.
 *
 * A volume with a size is measured by a worker process while boxes write to it: soon after the
 * free space of the file system has dropped by the remainder of the volume's limit. If the volume
 * is over its limit and has grown since the last excess, all boxes that write to it meet their
 * disk limit. They may then remove files.
 */
#ifndef ROLLBOX_ENGINE_BOX_VOLUME_LEASE_H
#define ROLLBOX_ENGINE_BOX_VOLUME_LEASE_H

#include <rollbox/rollbox.h>

#include "policy/policy.h"

struct box;
struct engine;
struct volume_leases;

/* The files of a volume of the policy, without links, for the caller to free. `store`: its path. */
int volume_lease_find(const char *name, char **ret_files, struct rollbox_error *error);

/* For all volumes of the box's policy. `owner`: an identity (the session's), never followed; NULL:
 * the box is one of its own. Errors: those of volume_lock_take. */
int volume_leases_take(struct box *box, const void *owner, struct rollbox_error *error);
/* The box's init exists; exclusive locks record its pid. */
void volume_leases_made(struct box *box);
void volume_leases_drop(struct box *box);

#endif
