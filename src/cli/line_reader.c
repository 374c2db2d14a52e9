/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define READ_SIZE (256u << 10)

void line_reader_init(struct line_reader *lines, int fd, bool blocking) {
    *lines = (struct line_reader){ .fd = fd, .blocking = blocking, .buf = BUF_INIT };
}

/* Takes the next complete line from the buffer. At the end of the file, the rest is a line. */
static bool take_line(struct line_reader *lines, char **ret_line, size_t *ret_length) {
    struct buf *buf = &lines->buf;
    char *newline = lines->seen < buf->length
                        ? memchr(buf->data + lines->seen, '\n', buf->length - lines->seen)
                        : NULL;

    lines->seen = newline ? (size_t)(newline - buf->data) + 1 : buf->length;
    if (!newline && !(lines->eof && lines->at < buf->length))
        return false;
    size_t end = newline ? lines->seen - 1 : buf->length;
    lines->torn = !newline;
    buf->data[end] = '\0';
    *ret_line = buf->data + lines->at;
    *ret_length = end - lines->at;
    lines->at = lines->seen;
    lines->line++;
    return true;
}

static bool is_readable(int fd) {
    struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

    return poll(&poll_fd, 1, 0) > 0;
}

int line_reader_next(struct line_reader *lines, char **ret_line, size_t *ret_length) {
    struct buf *buf = &lines->buf;

    for (;;) {
        if (take_line(lines, ret_line, ret_length))
            return 1;
        if (lines->eof || (!lines->blocking && !is_readable(lines->fd)))
            return 0;
        if (lines->at) {
            memmove(buf->data, buf->data + lines->at, buf->length - lines->at);
            buf->length -= lines->at;
            lines->seen -= lines->at;
            lines->at = 0;
        }
        if (buf->length > LINES_LIMIT)
            return -EFBIG;
        char *to = buf_reserve(buf, READ_SIZE);
        if (!to)
            return -ENOMEM;
        ssize_t n = read(lines->fd, to, READ_SIZE);
        if (n < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return -errno;
        }
        buf->length += (size_t)n;
        lines->eof = n == 0;
    }
}

void line_reader_done(struct line_reader *lines) {
    buf_done(&lines->buf);
}
