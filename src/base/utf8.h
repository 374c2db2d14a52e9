/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: validation, copies with U+FFFD in place of invalid bytes, copies that are safe to show,
 * and base64 for the original bytes. */
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

/* The same, or null without data. */
void json_add_string(struct buf *to, const void *data, size_t length);

/* Appends untrusted text in a form that is safe on a terminal. Control characters (C0, DEL, C1) and
 * bytes that are not UTF-8 become \xNN. Characters that change the order or the lines of the text
 * around them become \uNNNN. Characters in `allowed` ("\n", "\t") stay. */
void utf8_shown(struct buf *to, const void *text, size_t length, const char *allowed);

/* Does the same for a complete JSON text, in which such characters occur only in strings. The
 * meaning stays the same. */
void utf8_json_shown(struct buf *to, const void *text, size_t length);

/* Appends the base64 (RFC 4648, padded) of the data. */
void base64_encode(struct buf *to, const void *data, size_t length);
/* Appends what such a text stands for. 0, -EBADMSG or -ENOMEM. */
int base64_decode(const char *text, size_t length, struct buf *to);

#endif
