/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: is it valid, and a copy in which what is not valid is replaced by U+FFFD; base64 for the
 * bytes as they were; and a copy that is safe to show. */
#ifndef ROLLBOX_BASE_UTF8_H
#define ROLLBOX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* True for well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF).
 */
bool utf8_valid(const void *data, size_t length);

/* Appends the text, each maximal ill-formed part replaced by one U+FFFD, as Python's
 * errors="replace" does. */
void utf8_replace(struct buf *to, const void *data, size_t length);

/* Appends a JSON string; what is not valid UTF-8 is replaced. Returns whether all of it was valid.
 * Characters that a terminal acts on (utf8_shown) are written as \uNNNN. */
bool utf8_json(struct buf *to, const void *data, size_t length);

/* Appends the text as it may be shown on a terminal, whoever chose it: \xNN in the place of control
 * characters (C0, DEL, C1) and of bytes that are not UTF-8, \uNNNN in the place of characters that
 * change the order or the lines of what is around them. Those of `allowed` stay: "\n", "\t". */
void utf8_shown(struct buf *to, const void *text, size_t length, const char *allowed);

/* The same for a whole JSON text, in which such characters can be in strings alone: it means what
 * it meant. */
void utf8_json_shown(struct buf *to, const void *text, size_t length);

/* Appends the base64 (RFC 4648, padded) of the data. */
void base64_encode(struct buf *to, const void *data, size_t length);

#endif
