/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *buf_reserve(struct buf *buf, size_t more) {
    size_t needed;

    if (buf->failed || __builtin_add_overflow(buf->length, more, &needed) ||
        __builtin_add_overflow(needed, 1, &needed)) {
        buf->failed = true;
        return NULL;
    }
    if (needed > buf->capacity) {
        size_t capacity = buf->capacity < 256 ? 256 : buf->capacity;

        while (capacity < needed)
            if (__builtin_mul_overflow(capacity, 2, &capacity))
                capacity = needed;
        char *data = realloc(buf->data, capacity);
        if (!data) {
            buf->failed = true;
            return NULL;
        }
        buf->data = data;
        buf->capacity = capacity;
    }
    return buf->data + buf->length;
}

void buf_add(struct buf *buf, const void *data, size_t length) {
    char *at = buf_reserve(buf, length);

    if (!at)
        return;
    if (length)
        memcpy(at, data, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
}

void buf_add_text(struct buf *buf, const char *text) {
    buf_add(buf, text, strlen(text));
}

void buf_printf(struct buf *buf, const char *format, ...) {
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *at = n < 0 ? NULL : buf_reserve(buf, (size_t)n);
    if (at) {
        vsnprintf(at, (size_t)n + 1, format, again);
        buf->length += (size_t)n;
    } else {
        buf->failed = true;
    }
    va_end(again);
}

char *buf_take(struct buf *buf) {
    buf_add(buf, "", 0);
    if (buf->failed)
        return NULL;
    char *data = buf->data;
    *buf = BUF_INIT;
    return data;
}

void buf_fit(struct buf *buf) {
    char *data = buf->length && !buf->failed ? realloc(buf->data, buf->length) : NULL;

    if (data) {
        buf->data = data;
        buf->capacity = buf->length;
    }
}

void buf_done(struct buf *buf) {
    free(buf->data);
    *buf = BUF_INIT;
}
