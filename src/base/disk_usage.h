/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much a directory of private files holds, on a disk that others use as well.
 *
 * It is added up by walking, while guests change it. Who moves a directory from where the walk
 * comes to where it was already has it counted nowhere; whether that can have been is told by a
 * second walk.
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
    bool forces;  /* directories that their owner, the caller, has shut are opened for good */
    bool is_deep; /* something lies deeper than MEASURE_DEPTH: it is not counted */
};

/* Adds up a directory (consumed) and what is below. False, and the rest is not looked at, once
 * there is more than the most of either, or something too deep. */
bool disk_usage_of(int take_directory, struct disk_usage *m);

/* Whether something can have come into a directory (consumed), or one below, or gone from there,
 * since then: clock_coarse_ns, before a walk began. What moves out of the way of this, too, is told
 * by where it was. */
bool disk_usage_has_moved(int take_directory, int64_t since_ns);

#endif
