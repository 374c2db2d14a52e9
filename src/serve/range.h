/* SPDX-License-Identifier: Apache-2.0 */
/* A part of the output of a run or command, as a request asks for it: ?stream=, ?offset= and
 * ?length=, or "Range: bytes=FROM-TO". */
#ifndef ROLLBOX_SERVE_RANGE_H
#define ROLLBOX_SERVE_RANGE_H

#include "serve/server.h"

struct range {
    const char *name; /* for messages; NULL: of the stream */
    bool is_stderr;
    bool is_header; /* "Range": the answer is 206 */
    bool is_suffix; /* the last `length` bytes */
    uint64_t offset, length;
};

/* False: the answer is given. */
bool range_read(struct exchange *exchange, struct range *ret_range);
const char *range_stream_name(const struct range *range);
/* The bounds within `total` bytes, and the head of the answer. False: there are no such bytes, and
 * the answer is given. An offset at the end is an empty part, from which a client resumes. */
bool range_bounds(struct exchange *exchange, const struct range *range, uint64_t total,
    uint64_t *ret_from, uint64_t *ret_to, int *ret_status, struct buf *headers);
/* Answers with the part of these bytes. */
void range_answer(
    struct exchange *exchange, const struct range *range, const char *data, size_t length);

#endif
