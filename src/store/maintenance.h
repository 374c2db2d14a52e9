/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a store and keeping it in order. Every function answers with one JSON object, which is
 * the caller's. */
#ifndef ROLLBOX_STORE_KEEP_H
#define ROLLBOX_STORE_KEEP_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include "store/image_rows.h"

#define KEEP_SNAPSHOT_PREFIX "snapshot:"

/* The kind of a name; *name is moved past "snapshot:". */
enum manifest_kind maintenance_kind_of(const char **name);

/* {"images": [{"name", "layers", "bytes", "files", "created", "problem"}], "snapshots": [...]} */
int maintenance_list(int store, json_t **ret_json, struct rollbox_error *error);

/* `name` is an image's, or "snapshot:" and a snapshot's. {"name", "kind", "layers": [...], "config"
 * or "places", ...} */
int maintenance_show(int store, const char *name, json_t **ret_json, struct rollbox_error *error);

/* Removes a manifest; its layers go with the next gc. {"removed"} */
int maintenance_remove(int store, const char *name, json_t **ret_json, struct rollbox_error *error);

/* Removes layers that no manifest names and no process uses, hibernated sandboxes that no engine
 * can wake, and leftovers of dead processes. {"removed_layers", "freed_bytes", "in_use",
 * "removed_work", "removed_asleep", "removed_images": [names]}. `options`: images that go first. */
int maintenance_collect(
    int store, const struct prune_options *options, json_t **ret_json, struct rollbox_error *error);

/* Reads every layer again, marks damaged ones, and removes the mark from others. Checks hibernated
 * sandboxes, too. {"layers", "asleep", "damaged": [{"layer", "reason", "used_by"} or {"asleep",
 * "sandbox", "file", "reason"}], "manifests": [{"name", "problem"}]} */
int maintenance_check(int store, json_t **ret_json, struct rollbox_error *error);

/* {"images", "snapshots", "layers", "bytes", "unused_layers", "unused_bytes", "asleep",
 * "hibernated_bytes", "woken", "woken_bytes", "free_bytes", "by_image": image_rows.h} */
int maintenance_usage(int store, json_t **ret_json, struct rollbox_error *error);

#endif
