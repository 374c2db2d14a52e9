/* SPDX-License-Identifier: Apache-2.0 */
/* C strings that may be missing (NULL), and copies of texts that no NUL ends. */
#ifndef ROLLBOX_BASE_TEXT_H
#define ROLLBOX_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* `text`, or `fallback` if there is none. */
static inline const char *text_or(const char *text, const char *fallback) {
    return text ? text : fallback;
}

/* `text` if `shown`, else nothing: for formats with optional parts. */
static inline const char *text_if(bool shown, const char *text) {
    return shown ? text : "";
}

/* The length of `text`; 0 if there is none. */
static inline size_t text_size(const char *text) {
    return text ? strlen(text) : 0;
}

/* A copy of the `length` bytes, or those before the first NUL; NULL without memory. Unlike
 * strndup(), this may be used for part of a buffer under ASan's strict_string_checks, which read on
 * to a NUL. */
static inline char *text_copy(const char *bytes, size_t length) {
    const size_t n = strnlen(bytes, length);
    char *copy = malloc(n + 1);

    if (copy) {
        memcpy(copy, bytes, n);
        copy[n] = '\0';
    }
    return copy;
}

#endif
