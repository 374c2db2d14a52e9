/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Describes a snapshot in JSON: the processes of its image (image/process_image.h) and the changes
 * of its files. Also verifies a snapshot and explains in words why it could not be restored.
 *
 * These are jobs for the engine (docs/reference/store-jobs.md). The engine knows the
 * snapshots; this process reads the data that guests chose.
 */
#ifndef ROLLBOX_STORE_DESCRIBE_H
#define ROLLBOX_STORE_DESCRIBE_H

#include <jansson.h>
#include <stdint.h>

#include "store/job.h"

/* {"kernel", "processes": [...]} of an image that image_is_sound. NULL: out of memory. */
json_t *describe_processes(const void *base, uint64_t length);

/* The job's "state" with the contents of its image and layers; with "verify", also its "checks". */
int describe_state(const struct job *job, json_t **ret_json, struct rollbox_error *error);

/* The same for a hibernated sandbox: the job on `fd` names it, and every digest is computed again
 * to verify it. */
int describe_hibernated(int store, int fd, json_t **ret_json, struct rollbox_error *error);

#endif
