/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of the server's work (OpenTelemetry).
 *
 *   rollbox.rollout      a sandbox, from its creation to its end; of a fork, with links to its
 *                        parent's and to that of the fork
 *     execute_tool exec  a command: with the children rollbox.queue, rollbox.setup, rollbox.exec
 *     rollbox.snapshot   and the other calls that change a sandbox
 *   execute_tool run     a run, with the same children
 *
 * The parent of a rollout or run is the request's `traceparent`, of the rest the rollout. A request
 * within a rollout may have a `traceparent` other than that of the creation: that is the parent
 * then, and the rollout a link. Samplers decide once for a trace.
 *
 * Without a collector nothing is recorded, and `traceparent` is only handed on to programs.
 */
#ifndef ROLLBOX_SERVE_TRACES_H
#define ROLLBOX_SERVE_TRACES_H

#include "serve/config.h"
#include "serve/server.h"

/* Starts rollbox-otlp, if a collector is named. Before the confinement and the loop's threads; 0,
 * or 1 after a message. */
int traces_start(struct server *server, const struct config *config);
/* The rollouts that are open end here, and all is sent. */
void traces_stop(void);
/* A request has come. */
void traces_request(struct exchange *exchange);
/* The command of an exchange is about to be given to the engine: its span gets its id. */
void traces_command_begins(struct exchange *exchange);
void traces_command_ended(
    const struct exchange *exchange, const char *id, const struct rollbox_result *result);
/* The context for a command's environment; false: there is none. */
bool traces_for_guest(const struct exchange *exchange, struct trace_context *ret);
/* A call that has changed the exchange's sandbox, such as "snapshot". */
void traces_call_ended(struct exchange *exchange, const char *call, const char *snapshot);
/* `fork_of` may be NULL. */
void traces_box_created(
    struct box *box, const struct exchange *exchange, const struct box *fork_of);
/* False: there is no collector. */
bool traces_counts(uint64_t *ret_exported, uint64_t *ret_dropped);

#endif
