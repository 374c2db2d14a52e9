/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Persistent volumes of a policy: directories of the store that outlive sandboxes.
 *
 * The key `volumes` maps the name of a volume to a path in the sandbox, or to an object with the
 * path and a mode. docs/how-to/volumes.md explains the modes.
 */
#ifndef ROLLBOX_POLICY_VOLUMES_H
#define ROLLBOX_POLICY_VOLUMES_H

#include <stdbool.h>

#include "policy/policy.h"

#define VOLUME_NAME_MAX 64
#define VOLUMES_MAX 64 /* of one policy */

enum policy_volume_mode {
    POLICY_VOLUME_EXCLUSIVE, /* this sandbox may write, and no other may meanwhile */
    POLICY_VOLUME_SHARED,    /* others may write, too, if they also ask for this mode */
    POLICY_VOLUME_READ_ONLY,
    POLICY_VOLUME_PRIVATE, /* copy-on-write: the volume itself never changes */
};

struct policy_volume {
    char *name;
    char *path; /* in the sandbox, as of struct policy_path */
    enum policy_volume_mode mode;
};

/* 1 to 64 letters, digits and "._-", the first a letter or digit. */
bool policy_is_volume_name(const char *text);
/* "exclusive", "shared", "read-only" or "private". */
const char *policy_volume_mode_name(enum policy_volume_mode mode);
/* Does the volume itself change? */
static inline bool policy_volume_is_written(const struct policy_volume *volume) {
    return volume->mode == POLICY_VOLUME_EXCLUSIVE || volume->mode == POLICY_VOLUME_SHARED;
}
bool policy_writes_volumes(const struct policy *policy);
void policy_volumes_done(struct policy_volumes *volumes);

#endif
