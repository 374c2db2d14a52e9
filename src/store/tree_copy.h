/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the files of a layer or volume, which guests may have written: no link is followed, and
 * sockets and devices are left out (files_is_left_out). Hard links stay hard links, holes stay
 * holes, and data is shared where the file system can (reflinks). Modes and times are those of the
 * original; the caller's rules give owners and attributes.
 */
#ifndef ROLLBOX_STORE_TREE_COPY_H
#define ROLLBOX_STORE_TREE_COPY_H

#include <rollbox/rollbox.h>

#include "store/files.h"

/* Both return 0 or -errno. */
struct tree_copy_rules {
    /* The owner, mode and attributes of a new file or directory `to`. */
    int (*give)(const struct files_entry *entry, int from, int to);
    /* The owner of a new link, FIFO or whiteout. */
    int (*give_name)(const struct files_entry *entry, int parent, const char *name);
};

/* Fills the empty directory `to`, which gets what `from` has, too. Errors: RESOURCE_EXHAUSTED, IO
 * and those of files_walk. */
int tree_copy(int from, int to, const struct tree_copy_rules *rules, struct rollbox_error *error);

#endif
