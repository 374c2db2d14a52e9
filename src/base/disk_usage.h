/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of a directory of private files on a disk that other programs also use.
 *
 * The size is the sum over a walk, while guests change the tree. A directory that moves from a part
 * not yet walked to a part already walked is not counted. A second walk (disk_usage_has_moved)
 * tells whether that can have happened.
 */
#ifndef ROLLBOX_BASE_MEASURE_H
#define ROLLBOX_BASE_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#define MEASURE_DEPTH                                                                              \
    500 /* a deeper tree counts as too much: a descriptor is held for each level, and nothing      \
           honest is that deep */

struct disk_usage {
    uint64_t bytes, entries, max_bytes, max_entries;
    bool forces;  /* makes directories readable for good that their owner, the caller, has made
                     unreadable */
    bool is_deep; /* the tree is deeper than MEASURE_DEPTH; the rest was not counted */
};

/* Adds up a directory (consumed) and its descendants. Returns false, without walking the rest, once
 * a maximum is exceeded or the tree is too deep. */
bool disk_usage_of(int take_directory, struct disk_usage *m);

/* Whether an entry can have moved into or out of a directory (consumed) or one below it since
 * `since_ns`, a value of clock_coarse_ns from before the walk. A directory that moves away from
 * this walk as well is detected by its old parent. */
bool disk_usage_has_moved(int take_directory, int64_t since_ns);

#endif
