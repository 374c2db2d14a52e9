/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trace contexts (W3C Trace Context): which trace and span something belongs to, and whether the
 * trace is recorded. A context without a trace id is none.
 */
#ifndef ROLLBOX_TRACE_CONTEXT_H
#define ROLLBOX_TRACE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#define TRACE_TEXT 55 /* of a traceparent */

struct trace_context {
    uint8_t trace[16], span[8];
    bool is_sampled;
};

/* Reads a traceparent: of version 00, or the same fields of a later one. False: it is malformed or
 * NULL, and *ret is none. */
bool trace_context_read(const char *text, struct trace_context *ret);
void trace_context_write(const struct trace_context *context, char to[TRACE_TEXT + 1]);
bool trace_context_is_none(const struct trace_context *context);
/* A new span of the trace of `parent`, with its decision about sampling. */
struct trace_context trace_context_child(const struct trace_context *parent);

/* The rule by which traces are recorded: one of OpenTelemetry's standard samplers. */
struct trace_sampler {
    bool follows_parent;
    double ratio; /* of traces without a parent, or of all: 0 to 1 */
};

/* `name` is as of OTEL_TRACES_SAMPLER, NULL: parentbased_always_on; `argument` is as of
 * OTEL_TRACES_SAMPLER_ARG, NULL: 1. False: one of them is not known. */
bool trace_sampler_read(const char *name, const char *argument, struct trace_sampler *ret);
/* A span below `parent`, which may be none: then it begins a trace. */
struct trace_context trace_sampler_begin(
    const struct trace_sampler *sampler, const struct trace_context *parent);

#endif
