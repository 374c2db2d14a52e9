/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans as OTLP's JSON has them: one object a line, which rollbox-otlp puts into its requests as
 * they are.
 */
#ifndef ROLLBOX_TRACE_SPAN_H
#define ROLLBOX_TRACE_SPAN_H

#include <stdint.h>

#include "base/buf.h"
#include "trace/context.h"

/* Longer texts of attributes are cut. */
#define TRACE_TEXT_MAX ((size_t)1024)

enum trace_kind { TRACE_INTERNAL = 1, TRACE_SERVER = 2 };

/* All is borrowed. */
struct trace_span {
    struct trace_context context, parent; /* `parent` may be none */
    const char *name;
    enum trace_kind kind;
    int64_t start_ns, end_ns;     /* since 1970 */
    const struct buf *attributes; /* by the functions below; NULL: none */
    const struct trace_context *links;
    size_t n_links;
    const char *error; /* NULL: the span has no error */
};

void trace_add_text(struct buf *attributes, const char *key, const char *text);
void trace_add_bytes(struct buf *attributes, const char *key, const void *text, size_t length);
void trace_add_integer(struct buf *attributes, const char *key, int64_t value);
void trace_add_number(struct buf *attributes, const char *key, double value);
/* Appends the span's line. */
void trace_span_write(struct buf *to, const struct trace_span *span);

#endif
