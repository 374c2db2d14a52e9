/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics for Prometheus (GET /metrics), in its text format 0.0.4. docs/reference/metrics.md has
 * the names. Tenants are labels; ids and names of sandboxes, commands and rollouts never are,
 * because each value of a label is a series that Prometheus keeps.
 *
 * Counters and histograms are kept here. What sandboxes and engines hold now is asked of the
 * engines when /metrics is requested; one that does not answer within a second is left out, with
 * rollbox_engine_up 0.
 */
#ifndef ROLLBOX_SERVE_METRICS_H
#define ROLLBOX_SERVE_METRICS_H

#include "serve/server.h"

/* Counts a run or command that has ended. */
void metrics_command(const struct exchange *exchange, const struct rollbox_result *result);
/* Counts a request that is answered, and a problem with its code. `tenant` may be NULL. */
void metrics_request(const struct exchange *exchange);
void metrics_refused(const struct tenant *tenant, const char *code);
/* The same for a request that has no route, because HTTP itself is wrong with it. */
void metrics_malformed(int status);
void handle_metrics(struct exchange *exchange);

#endif
