/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROLLBOX_STORE_COMMIT_H
#define ROLLBOX_STORE_COMMIT_H

#include <jansson.h>

#include "store/job.h"

#define COMMIT_PREFIX ".rollbox-commit-"

/* Publishes the places of the job that have a base on the host, one after the other; `part` NULL:
 * all. *ret_json: {"committed": [{"path", "changes", "base_dev", "base_ino"}], "since_ns"}. Errors:
 * CONFLICT (the host changed), PATH_DENIED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, IO; after each,
 * the host's directory of that place is as it was; those before it are published. */
int commit_places(
    const struct job *job, const char *part, json_t **ret_json, struct rollbox_error *error);

/* The message for each exchanged directory, with the old one's lock, when the job has `kept`: this,
 * then "PLACE\0STAGE\0". */
struct commit_exchange {
    uint64_t old_device, old_inode; /* the directory that was there, now new/ in STAGE */
    uint64_t device, inode; /* the directory that the commit put there; it may have changed since */
};

/* Removes the leftovers of commits beside `path`, unless they are locked. */
int commit_sweep(const char *path, struct rollbox_error *error);

#endif
