/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that a process image agrees with the record that names it (hibernated_check.h).
 *
 * The engine trusts the record, and init trusts the image. If the two differed, one would wait for
 * something that the other does not have, such as the end of a command without a process.
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
