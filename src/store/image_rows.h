/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images and snapshots of a store with their sizes: what each has for itself, and what it shares;
 * and the removal of images that nobody has used for long, or for which there is no room.
 *
 * The time of the last use of an image is the time of change of its manifest's file, which the
 * engine sets when it opens the image. An image is in use while a process has its topmost layer
 * locked. Snapshots are never removed here: nobody could pull them again.
 */
#ifndef ROLLBOX_STORE_IMAGE_ROWS_H
#define ROLLBOX_STORE_IMAGE_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "store/manifest.h"

struct image_row {
    char *name;
    enum manifest_kind kind;
    int64_t used_s;
    char **layers; /* ids */
    size_t n_layers;
    uint64_t bytes, own_bytes; /* own: of layers that no other image or snapshot has */
    bool is_in_use, is_removed;
};

struct image_rows {
    struct image_row *list;
    size_t n, capacity;
    json_t *layers; /* {id: {"bytes", "users"}} of those in the list */
};

int image_rows_read(int store, struct image_rows *ret_rows, struct rollbox_error *error);
void image_rows_done(struct image_rows *rows);

/* [{"name", "kind", "layers", "bytes", "own_bytes", "shared_bytes", "used", "in_use"}], what has
 * most for itself first. NULL when out of memory. */
json_t *image_rows_json(struct image_rows *rows);

/* What gc does besides. 0: no limit. */
struct prune_options {
    uint64_t keep_bytes; /* of layers that images and snapshots name */
    uint64_t older_s;    /* images that nobody has used for so long */
};

/* Removes the manifests of images: those that are too old, then the least recently used ones until
 * the rest is small enough. The names are appended to `removed`. */
int image_rows_prune(
    int store, const struct prune_options *options, json_t *removed, struct rollbox_error *error);

#endif
