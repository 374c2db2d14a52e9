/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs, commands and sandboxes used, summed by tenant, sandbox, lease and label.
 *
 * A run's processor time and wall time are those of its result; its memory counts as its peak for
 * its wall time. Sandboxes are measured every USAGE_STEP_S: what they hold counts for that long, so
 * that a paused one costs memory and a hibernated one nothing. Sums are kept in memory, at most
 * USAGE_SUMS of them; the one that was not added to for the longest time goes first.
 */
#ifndef ROLLBOX_SERVE_USAGE_H
#define ROLLBOX_SERVE_USAGE_H

#include "serve/server.h"

#define USAGE_STEP_S 5
#define USAGE_SUMS 20000u

struct usage_sum {
    uint64_t runs, commands;
    double cpu_ms, wall_ms, gib_s, disk_gib_s;
    uint64_t bytes_in, bytes_out; /* of standard input, and of output */
};

/* Begins to measure sandboxes. */
void usage_start(struct server *server);
/* Adds a run or command that has ended; of a run, `labels` are its own. */
void usage_ended(struct exchange *exchange, const struct rollbox_result *result);
void handle_usage(struct exchange *exchange);

#endif
