/* SPDX-License-Identifier: Apache-2.0 */
/* C strings that may be missing (NULL). */
#ifndef ROLLBOX_BASE_TEXT_H
#define ROLLBOX_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
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

#endif
