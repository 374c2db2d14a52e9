/* SPDX-License-Identifier: Apache-2.0 */
/* Spans as JSON; span.h has the model. Numbers do not depend on the locale. */
#include "trace/span.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

static void begin(struct buf *to, const char *key) {
    buf_add_text(to, to->length ? ",{\"key\":" : "{\"key\":");
    (void)utf8_json(to, key, strlen(key));
    buf_add_text(to, ",\"value\":");
}

void trace_add_bytes(struct buf *attributes, const char *key, const void *text, size_t length) {
    auto_buf struct buf clean = BUF_INIT;

    begin(attributes, key);
    utf8_replace(&clean, text, MIN(length, TRACE_TEXT_MAX));
    buf_add_text(attributes, "{\"stringValue\":");
    (void)utf8_json(attributes, clean.data ? clean.data : "", clean.length);
    buf_add_text(attributes, "}}");
}

void trace_add_text(struct buf *attributes, const char *key, const char *text) {
    trace_add_bytes(attributes, key, text, strlen(text));
}

void trace_add_integer(struct buf *attributes, const char *key, int64_t value) {
    begin(attributes, key);
    buf_printf(attributes, "{\"intValue\":\"%lld\"}}", (long long)value);
}

void trace_add_number(struct buf *attributes, const char *key, double value) {
    begin(attributes, key);
    /* In a program that has set no locale. */
    buf_printf(attributes, "{\"doubleValue\":%.9g}}", isfinite(value) ? value : 0);
}

static void add_id(struct buf *to, const char *key, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";
    char text[2 * sizeof(((struct trace_context *)0)->trace)];

    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    buf_add_text(to, "\"");
    buf_add_text(to, key);
    buf_add_text(to, "\":\"");
    buf_add(to, text, 2 * n);
    buf_add_text(to, "\"");
}

static void add_ids(struct buf *to, const struct trace_context *context) {
    add_id(to, "traceId", context->trace, sizeof context->trace);
    buf_add_text(to, ",");
    add_id(to, "spanId", context->span, sizeof context->span);
}

void trace_span_write(struct buf *to, const struct trace_span *span) {
    buf_add_text(to, "{");
    add_ids(to, &span->context);
    if (!trace_context_is_none(&span->parent)) {
        buf_add_text(to, ",");
        add_id(to, "parentSpanId", span->parent.span, sizeof span->parent.span);
    }
    buf_printf(to,
        ",\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%lld\",\"endTimeUnixNano\":\"%lld\"",
        span->name, (int)span->kind, (long long)span->start_ns, (long long)span->end_ns);
    if (span->attributes && span->attributes->length) {
        buf_add_text(to, ",\"attributes\":[");
        buf_add(to, span->attributes->data, span->attributes->length);
        buf_add_text(to, "]");
    }
    for (size_t i = 0; i < span->n_links; i++) {
        buf_add_text(to, i ? ",{" : ",\"links\":[{");
        add_ids(to, &span->links[i]);
        buf_add_text(to, "}");
    }
    if (span->n_links)
        buf_add_text(to, "]");
    if (span->error) {
        buf_add_text(to, ",\"status\":{\"code\":2,\"message\":");
        (void)utf8_json(to, span->error, strlen(span->error));
        buf_add_text(to, "}");
    }
    buf_add_text(to, "}\n");
}
