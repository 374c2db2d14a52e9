/* SPDX-License-Identifier: Apache-2.0 */
/* The files that were written in a box. */
#ifndef ROLLBOX_ENGINE_FILES_BOX_FILES_H
#define ROLLBOX_ENGINE_FILES_BOX_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct box;
struct files_baseline;

bool box_is_pristine(struct box *box); /* nothing seems to run in it, and nothing was written: as
                                          far as is known without a request to init */
bool op_files_are_pristine(struct box *box); /* nothing was written since it was made, though it may
                                                be in the next moment if something runs */
struct files_baseline *box_files_baseline(
    struct box *box); /* to find out later whether anything was written; NULL: not known */
int box_seems_empty(const struct box *box); /* 1: nothing runs but agents; 0; -errno: unknown */

/* Since it was made; on disk nobody knows, and both are 0. 0 or -ENOMEM. */
int box_files_written(struct box *box, uint64_t *ret_bytes, uint64_t *ret_entries);

#endif
