/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does an image of processes agree with the record that names it (hibernated_check.h)?
 *
 * The engine believes the record, and init the image. Where the two differ, one would wait for what
 * the other does not have: for the end of a command without a process, or for a pipe too few.
 */
#ifndef ROLLBOX_STORE_HIBERNATED_IMAGE_H
#define ROLLBOX_STORE_HIBERNATED_IMAGE_H

#include <jansson.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "image/process_image.h"

/* An image that was opened: it is sound. */
struct hibernated_image {
    const void *data; /* mapped */
    size_t length;
    const struct image *header; /* within that */
};

/*
 * Maps image `i` of `record` (the engine's part) from `fd`, and compares the two. `stage` is for
 * the error: DAMAGED, with the field and both values.
 */
int hibernated_image_open(const json_t *record, size_t i, int fd, const char *stage,
    struct hibernated_image *ret_image, struct rollbox_error *error);
void hibernated_image_done(struct hibernated_image *image);

/* The same, and closes it again. */
int hibernated_image_check(
    const json_t *record, size_t i, int fd, const char *stage, struct rollbox_error *error);

#endif
