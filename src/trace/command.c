/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of commands; command.h has the model. */
#include "trace/command.h"

#include <string.h>

#include "base/cleanup.h"

static void add_result(struct buf *attributes, const struct trace_command *command) {
    const struct rollbox_result *result = command->result;

    trace_add_text(attributes, "gen_ai.operation.name", "execute_tool");
    trace_add_text(attributes, "gen_ai.tool.name", command->is_exec ? "exec" : "run");
    trace_add_text(attributes, "gen_ai.tool.type", "extension");
    trace_add_text(attributes, "rollbox.outcome", command->outcome);
    trace_add_number(attributes, "rollbox.wall_s", result->wall_ms / 1000);
    trace_add_number(attributes, "rollbox.cpu_s", result->cpu_ms / 1000);
    trace_add_integer(attributes, "rollbox.peak_memory_bytes", (int64_t)result->peak_memory_bytes);
    trace_add_integer(attributes, "rollbox.output_bytes",
        (int64_t)(result->stdout_length + result->stderr_length));
    if (result->outcome == ROLLBOX_OUTCOME_EXIT)
        trace_add_integer(attributes, "process.exit.code", result->exit_code);
    else if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        trace_add_text(attributes, "error.type", command->code);
    else
        trace_add_text(attributes, "error.type", command->outcome);
}

/* A program that exits with a status other than 0 has done its work. */
static const char *error_of(const struct trace_command *command) {
    enum rollbox_outcome outcome = command->result->outcome;

    if (outcome == ROLLBOX_OUTCOME_EXIT || outcome == ROLLBOX_OUTCOME_SIGNAL)
        return NULL;
    return outcome == ROLLBOX_OUTCOME_ERROR ? command->result->error.message : command->outcome;
}

static void add_part(struct trace_exporter *exporter, const struct trace_context *parent,
    const char *name, int64_t start_ns, int64_t end_ns) {
    const struct trace_span span = { .context = trace_context_child(parent),
        .parent = *parent,
        .name = name,
        .kind = TRACE_INTERNAL,
        .start_ns = start_ns,
        .end_ns = end_ns };

    trace_exporter_add(exporter, &span);
}

void trace_command_add(struct trace_exporter *exporter, const struct trace_command *command) {
    const struct rollbox_result *result = command->result;
    int64_t begun_ns = command->end_ns - (int64_t)(result->wall_ms * 1e6);
    int64_t setup_ns = begun_ns - (int64_t)(result->setup_ms * 1e6);
    int64_t queued_ns = setup_ns - (int64_t)(result->queue_ms * 1e6);
    auto_buf struct buf attributes = BUF_INIT;

    if (!command->context.is_sampled)
        return;
    if (command->asked_ns && command->asked_ns < queued_ns)
        queued_ns = command->asked_ns;
    if (command->attributes)
        buf_add(&attributes, command->attributes->data, command->attributes->length);
    add_result(&attributes, command);
    const struct trace_span span = { .context = command->context,
        .parent = command->parent,
        .name = command->is_exec ? "execute_tool exec" : "execute_tool run",
        .kind = TRACE_INTERNAL,
        .start_ns = queued_ns,
        .end_ns = command->end_ns,
        .attributes = &attributes,
        .links = &command->link,
        .n_links = !trace_context_is_none(&command->link),
        .error = error_of(command) };
    trace_exporter_add(exporter, &span);
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    add_part(exporter, &span.context, "rollbox.queue", queued_ns, setup_ns);
    add_part(exporter, &span.context, "rollbox.setup", setup_ns, begun_ns);
    add_part(exporter, &span.context, "rollbox.exec", begun_ns, command->end_ns);
}
