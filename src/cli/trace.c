/* SPDX-License-Identifier: Apache-2.0 */
/* Traces without a server; trace.h has the model. The parent is TRACEPARENT's span. */
#include "cli/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "trace/command.h"

static struct trace_exporter exporter = { .socket = -EBADF };
static struct trace_sampler sampler;
static bool has_tried;

/* A trace that cannot be sent is no reason to fail: the command has done its work. */
static bool start(void) {
    if (has_tried)
        return exporter.socket >= 0;
    has_tried = true;
    return trace_exporter_wanted() &&
           trace_sampler_read(
               getenv("OTEL_TRACES_SAMPLER"), getenv("OTEL_TRACES_SAMPLER_ARG"), &sampler) &&
           trace_exporter_start(&exporter) >= 0;
}

static void add_labels(const struct options *options, struct buf *attributes) {
    for (size_t i = 0; i < options->n_uses; i++) {
        const char *pair = options->uses[i].value, *value;
        auto_buf struct buf name = BUF_INIT;

        if (options->uses[i].option->id != OPTION_LABEL)
            continue;
        value = strchr(pair, '=') + 1;
        buf_printf(&name, "rollbox.label.%.*s", (int)(value - pair - 1), pair);
        if (!buf_failed(&name))
            trace_add_text(attributes, name.data, value);
    }
}

void cli_trace(const struct options *options, const struct rollbox_result *result,
    const char *program, const char *sandbox, int64_t asked_ns) {
    auto_buf struct buf attributes = BUF_INIT;
    struct trace_command command = { .result = result,
        .outcome = rollbox_outcome_name(result->outcome),
        .code = rollbox_error_name(result->error.code),
        .attributes = &attributes,
        .is_exec = sandbox != NULL,
        .end_ns = clock_real_ns() };

    if (!start())
        return;
    (void)trace_context_read(getenv("TRACEPARENT"), &command.parent);
    command.context = trace_sampler_begin(&sampler, &command.parent);
    if (asked_ns)
        command.asked_ns = command.end_ns - (clock_now_ns() - asked_ns);
    if (program && strrchr(program, '/'))
        program = strrchr(program, '/') + 1;
    if (program)
        trace_add_text(&attributes, "process.executable.name", program);
    if (sandbox)
        trace_add_text(&attributes, "rollbox.sandbox", sandbox);
    add_labels(options, &attributes);
    trace_command_add(&exporter, &command);
    trace_exporter_flush(&exporter);
}
