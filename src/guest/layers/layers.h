/* SPDX-License-Identifier: Apache-2.0 */
/* The files of sandboxes as layers: copying and merging them. */
#ifndef ROLLBOX_GUEST_LAYERS_LAYERS_H
#define ROLLBOX_GUEST_LAYERS_LAYERS_H

#include <sys/stat.h>

#include "guest/internal.h"

/* merge.c: owner, mode, times and attributes of the file `from`, whose stat is given, for
 * the file `to`; both opened for reading. Those that an overlay has for itself are left out. */
int copy_attributes(int from, int to, const struct stat *st);
/* A new tmpfs, or the empty directory of that name in PLAN_UPPERS, with what these layers (roots,
 * bottom first) make together, most of it of the guest's id, as a detached mount; or -errno. How
 * much there is, is told of a tmpfs alone. The caller is a process for this alone, and calls
 * copy_end before it ends. */
int copy_layers(const int *layers, size_t n, uint32_t id, const struct box *to, uint64_t *ret_bytes,
    uint64_t *ret_entries);
void copy_end(void);

#endif
