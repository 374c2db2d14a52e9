/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: is it valid, and a copy in which what is not valid is replaced by U+FFFD; base64 for the bytes as they were. */
#ifndef ROLLBOX_BASE_UTF8_H
#define ROLLBOX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* True for well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF). */
bool utf8_valid(const void *data, size_t length);

/* Appends the text, each maximal ill-formed part replaced by one U+FFFD, as Python's errors="replace" does. */
void utf8_replace(struct buf *to, const void *data, size_t length);

/* Appends a JSON string; what is not valid UTF-8 is replaced. Returns whether all of it was valid. */
bool utf8_json(struct buf *to, const void *data, size_t length);

/* Appends the base64 (RFC 4648, padded) of the data. */
void base64_encode(struct buf *to, const void *data, size_t length);

#endif
