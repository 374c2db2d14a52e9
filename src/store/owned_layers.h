/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of image layers in which files have their true owners.
 *
 * An ordinary user's layers belong to that user, and attributes say whose the files should be.
 * That serves sandboxes of one user. One of many users needs files of ids of the user's range
 * (sys/id_range.h). So each layer gets a copy, once an image is used that way: a layer of its own,
 * whose id the file "many" of the first one names together with the range. It is made in the user
 * namespace of the range, and only there can it be read and removed.
 */
#ifndef ROLLBOX_STORE_OWNED_LAYERS_H
#define ROLLBOX_STORE_OWNED_LAYERS_H

#include <jansson.h>
#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "store/manifest.h"

/* Enters the user namespace of the caller's range, for good: afterwards the caller is 0, with
 * rights over files of the range. Root has these and stays outside. Error: FEATURE_MISSING, with
 * what is missing. */
int owned_layers_enter(struct rollbox_error *error);

/* The copy of a layer for the range that was entered. */
bool owned_layers_find(int store, const char *id, char ret_id[LAYER_ID_LENGTH + 1]);

/* Makes the copies that an image lacks, after owned_layers_enter. `path` is the store's. *ret_json:
 * {"layers": N, "new": N}. */
int owned_layers_make(
    int store, const char *path, const char *name, json_t **ret_json, struct rollbox_error *error);

#endif
