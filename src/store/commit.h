/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROLLBOX_STORE_COMMIT_H
#define ROLLBOX_STORE_COMMIT_H

#include <jansson.h>

#include "store/job.h"

#define COMMIT_PREFIX ".rollbox-commit-"

/* Publishes the places of the job that have a base on the host, one after the other; `part` NULL: all. *ret_json: {"committed": [{"path", "changes", "base_dev", "base_ino"}], "since_ns"}. Errors: CONFLICT (the host
 * changed), PATH_DENIED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, IO; after each, the
 * host's directory of that place is as it was; those before it are published. */
int commit_places(const struct job *job, const char *part, json_t **ret_json, struct rollbox_error *error);

/* Removes what commits have left beside `path`, unless somebody holds its lock. */
int commit_sweep(const char *path, struct rollbox_error *error);

#endif
