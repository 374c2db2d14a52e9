/* SPDX-License-Identifier: Apache-2.0 */
/* The files of sandboxes as layers: copying and merging them. */
#ifndef ROLLBOX_GUEST_LAYERS_LAYERS_H
#define ROLLBOX_GUEST_LAYERS_LAYERS_H

#include <sys/stat.h>

#include "guest/internal.h"

/* merge.c: copies owner, mode, times and attributes of the file `from`, whose stat is given, to the
 * file `to`; both opened for reading. An overlay's own attributes are left out. */
int copy_attributes(int from, int to, const struct stat *st);
/* Merges these layers (roots, bottom first) into a new tmpfs, or into the empty directory of that
 * name in PLAN_UPPERS. Most files have the guest's `id`. Returns a detached mount, or -errno. The
 * sizes are returned for a tmpfs only. The caller is a process for this purpose, and calls
 * copy_end() before it ends. */
int copy_layers(const int *layers, size_t n, uint32_t id, const struct box *to, uint64_t *ret_bytes,
    uint64_t *ret_entries);
void copy_end(void);

#endif
