/* SPDX-License-Identifier: Apache-2.0 */
/* A chain of layers as one file, and back (docs/reference/store-format.md, "Snapshot files"). */
#ifndef ROLLBOX_STORE_SNAPSHOT_H
#define ROLLBOX_STORE_SNAPSHOT_H

#include <jansson.h>

#include "store/job.h"
#include "store/unpack.h"

/* Writes the job's layers, lower and upper, to a file that appears when it is complete. *ret_json:
 * {"path", "bytes", "layers", "files"}. */
int snapshot_export(
    const struct job *job, const char *path, json_t **ret_json, struct rollbox_error *error);

/* Brings one into the store. *ret_json: {"name", "layers", "new_layers", "bytes", "files",
 * "isolation"}. */
int snapshot_import(int store, const char *path, const char *name,
    const struct unpack_limits *limits, json_t **ret_json, struct rollbox_error *error);

#endif
