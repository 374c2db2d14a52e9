/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads trajectories. A file is untrusted: it may be cut off anywhere, edited, or no trajectory at
 * all. The reader returns the complete steps in the order in which they began, and reports
 * everything that is wrong.
 */
#ifndef ROLLBOX_RECORD_READ_H
#define ROLLBOX_RECORD_READ_H

#include "base/list.h"
#include "record/record.h"

#define READ_MAX_VALUES (4u << 20) /* of a line: some hundred bytes of memory each */

struct step {
    struct list node;
    uint64_t number, begun_at;    /* begun_at: how many steps had ended when it began */
    uint64_t line;                /* of the file, from 1; the header is 1 */
    uint64_t ended;               /* it was the n-th to end */
    json_t *json;                 /* the whole line; a reference */
    json_t *action, *observation; /* in it */
    const char *kind, *digest;    /* in it */
    const json_t *header;         /* borrowed, from the comparison: its record; NULL: unknown */
    const json_t
        *contents; /* borrowed, from the comparison: contents of files by digest; NULL: unknown */
};

struct reader {
    int fd;     /* borrowed */
    char *name; /* for messages */
    struct buf buf;
    size_t at;
    bool eof, torn, read_all;
    json_t *header;
    char *end_reason; /* NULL: the last line is missing, so more steps may have happened */
    uint64_t line, n_steps, next_step;
    uint64_t changed_line; /* the first line whose digest does not match: it was changed, or one
                              before it; 0: none */
    struct chain chain;
    struct list pending; /* steps that have ended before one that began earlier */
};

/* Reads the header. `name` is what messages call it. reader_done also on failure. INVALID_ARGUMENT:
 * no trajectory, or of another version; IO. */
int reader_open(struct reader *reader, int fd, const char *name, struct rollbox_error *error);
void reader_done(struct reader *reader);

/* 1 and the next step, for step_free; 0 at the end; or as reader_open. */
int reader_next(struct reader *reader, struct step **ret_step, struct rollbox_error *error);
struct step *step_free(struct step *step);

/* Returns the kept part of a content, or of a text that may be {"base64"}. 0; -ENODATA: nothing was
 * kept; -EBADMSG. */
int read_bytes(const json_t *value, struct buf *to);

#endif
