/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spans of a run or command that has ended: `execute_tool run` or `execute_tool exec`, and
 * below it rollbox.queue, rollbox.setup and rollbox.exec. Their times are counted back from the
 * end.
 */
#ifndef ROLLBOX_TRACE_COMMAND_H
#define ROLLBOX_TRACE_COMMAND_H

#include <rollbox/rollbox.h>

#include "trace/exporter.h"

/* All is borrowed. */
struct trace_command {
    struct trace_context context, parent, link; /* the last two may be none */
    const struct rollbox_result *result;
    const char *outcome;          /* its name */
    const char *code;             /* the name of its error's code */
    const struct buf *attributes; /* beside those of the result */
    bool is_exec;                 /* in a sandbox that stays */
    int64_t asked_ns, end_ns;     /* since 1970; `asked_ns` 0: when the engine received it */
};

void trace_command_add(struct trace_exporter *exporter, const struct trace_command *command);

#endif
