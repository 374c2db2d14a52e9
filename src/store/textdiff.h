/* SPDX-License-Identifier: Apache-2.0 */
/* The difference of two texts as a unified diff, as `diff -u` words it. */
#ifndef ROLLBOX_STORE_TEXTDIFF_H
#define ROLLBOX_STORE_TEXTDIFF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define TEXTDIFF_MAX_BYTES (1u << 20) /* of each side; more is reported as too large */

/* True for text that a unified diff can show: UTF-8 without NUL. */
bool textdiff_is_text(const void *data, size_t length);

/* Appends the diff: two header lines with the names, then hunks with three lines of context.
 * Nothing is appended for equal texts. Never longer than both texts, their lines' marks and the
 * hunks' heads. 0 or -ENOMEM. */
int textdiff(const char *old_name, const void *old_data, size_t old_length, const char *new_name,
    const void *new_data, size_t new_length, struct buf *to);

#endif
