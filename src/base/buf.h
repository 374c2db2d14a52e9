/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte buffer. It remembers the first failure to grow, so a writer appends without checks
 * and calls buf_failed once at the end. A NUL that is not counted always follows the content, so
 * text can be used as a string.
 */
#ifndef ROLLBOX_BASE_BUF_H
#define ROLLBOX_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* NULL while empty */
    size_t length;
    size_t capacity;
    bool failed;
};

#define BUF_INIT ((struct buf){ NULL, 0, 0, false })
#define auto_buf __attribute__((cleanup(buf_done)))

/* Returns room for `more` bytes at the end. The caller adds the bytes that it wrote to `length`.
 * NULL when out of memory. */
void *buf_reserve(struct buf *buf, size_t more);
void buf_add(struct buf *buf, const void *data, size_t length);
void buf_add_text(struct buf *buf, const char *text);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *buf, const char *format, ...);
static inline bool buf_failed(const struct buf *buf) {
    return buf->failed;
}
/* Returns the content as a string, which the caller frees, and leaves the buffer empty. NULL when
 * out of memory. */
char *buf_take(struct buf *buf);
/* Frees the reserved memory that the buffer does not use. */
void buf_fit(struct buf *buf);
void buf_done(struct buf *buf);

#endif
