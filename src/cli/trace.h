/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of commands on this machine's engine, if OTEL_EXPORTER_OTLP_ENDPOINT names a collector. */
#ifndef ROLLBOX_CLI_TRACE_H
#define ROLLBOX_CLI_TRACE_H

#include <rollbox/rollbox.h>
#include <stdint.h>

#include "cli/options.h"

/* Sends the spans of a run or command that has ended and was asked for at `asked_ns`
 * (clock_now_ns; 0: when the engine received it). `program` is its argv[0], or NULL; `sandbox` is
 * of a command in a sandbox, else NULL. */
void cli_trace(const struct options *options, const struct rollbox_result *result,
    const char *program, const char *sandbox, int64_t asked_ns);

#endif
