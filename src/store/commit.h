/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROLLBOX_STORE_COMMIT_H
#define ROLLBOX_STORE_COMMIT_H

#include <jansson.h>

#include "store/job.h"

#define COMMIT_PREFIX ".rollbox-commit-"

/* Publishes a place of the job that has a base on the host; `part` NULL: the job's only one. *ret_json: {"committed": [{"path", "changes", "base_dev", "base_ino"}], "since_ns"}. Errors: CONFLICT (the host
 * changed), PATH_DENIED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, IO; after each, the host's directory is as it was. */
int commit_place(const struct job *job, const char *part, json_t **ret_json, struct rollbox_error *error);

#endif
