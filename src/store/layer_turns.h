/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process imports a layer, and the others wait for it.
 *
 * The file `importing` of the store has one byte for each layer and each name of an image: the
 * beginning of a digest is its offset. A process that imports holds a lock on its bytes, and the
 * kernel releases it when the last copy of the descriptor is closed. The locks belong to the open
 * file, so that a child process has those of its parent.
 *
 * Waiting in a circle is impossible: a name is locked before layers, and layers in the order of
 * their offsets and all at once.
 */
#ifndef ROLLBOX_STORE_LAYER_TURNS_H
#define ROLLBOX_STORE_LAYER_TURNS_H

#include <stddef.h>

/* Opens the file. Returns a descriptor, which holds the locks, or -errno. */
int layer_turns_open(int store);

/* Waits for the turn to import an image of this name. 0 or -errno. */
int layer_turns_take_name(int turns, const char *name);

/* Waits for the turns of all of these layers (diff ids). Taking a turn again is no error. 0 or
 * -errno. */
int layer_turns_take(int turns, char *const *diff_ids, size_t n);

#endif
