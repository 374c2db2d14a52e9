/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a file or pipe, read one by one. Only the current line, and the rest of the last read,
 * are in memory. */
#ifndef ROLLBOX_CLI_LINES_H
#define ROLLBOX_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define LINES_LIMIT (256u << 20)

struct line_reader {
    int fd;        /* borrowed */
    bool blocking; /* a regular file: reads never wait for anybody */
    bool eof;
    bool torn;     /* the line just given had no newline: it was the end of the file */
    uint64_t line; /* number of the line just given, from 1 */
    size_t at;     /* in buf: where the next line begins */
    size_t seen;   /* in buf: up to where no newline was found */
    struct buf buf;
};

void line_reader_init(struct line_reader *lines, int fd, bool blocking);

/* 1 and the next line without its newline (valid until the next call, followed by a NUL); 0 when
 * there is none: at the end of the file (`eof`), or, unless blocking, until the descriptor polls
 * readable again; -EFBIG for a line past LINES_LIMIT; or -errno. */
int line_reader_next(struct line_reader *lines, char **ret_line, size_t *ret_length);
void line_reader_done(struct line_reader *lines);

#endif
