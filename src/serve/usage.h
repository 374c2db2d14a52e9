/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs, commands and sandboxes used, summed by tenant, sandbox, lease and label.
 *
 * A run's processor time and wall time are those of its result; its memory counts as its peak for
 * its wall time. Sandboxes are measured every USAGE_STEP_S, before each call that changes whether
 * they run, and at their end: what they hold counts for the time since the measurement before. A
 * paused sandbox costs neither memory nor processor time; of a hibernated one only its bytes in the
 * store count. Sums are kept in memory, at most USAGE_SUMS of a tenant; the one that was not added
 * to for the longest time goes first.
 *
 * With prices (--prices) each sum has a cost. base/prices.h has the file.
 */
#ifndef ROLLBOX_SERVE_USAGE_H
#define ROLLBOX_SERVE_USAGE_H

#include "base/prices.h"
#include "serve/server.h"

#define USAGE_STEP_S 5
#define USAGE_SUMS 20000u
#define USAGE_LABELS 64u /* of a run or sandbox */

struct usage_sum {
    uint64_t runs, commands;
    double cpu_ms, wall_ms, gib_s, disk_gib_s, snapshot_gib_s;
    double running_s, paused_s, hibernated_s; /* of sandboxes */
    uint64_t bytes_in, bytes_out;             /* of standard input, and of output */
};

/* Before the confinement: 0, or 1 after a message. */
int usage_read_prices(const char *path);
/* Begins to measure sandboxes. */
void usage_start(struct server *server);
/* Whether the labels of a body are few and short enough; false: the answer is given. */
bool usage_labels_ok(struct exchange *exchange);
/* The same of these. */
bool usage_labels_fit(struct exchange *exchange, const json_t *labels);
/* Adds a run or command that has ended; of a run, `labels` are its own. */
void usage_ended(struct exchange *exchange, const struct rollbox_result *result);
/* Measures one sandbox now, or all; `then` may be NULL. Requests that are sent to the engine later
 * have no effect on what is measured. */
void usage_measure(struct box *box);
/* The same if a command would wake it. */
void usage_before_command(struct box *box);
void usage_measure_all(void (*then)(void *userdata), void *userdata);
/* The sums of a tenant or sandbox; NULL: there are none. */
const struct usage_sum *usage_of_tenant(const struct tenant *tenant);
const struct usage_sum *usage_of_box(const struct box *box);
/* What one run or command adds. */
struct usage_sum usage_of_command(
    const struct exchange *exchange, const struct rollbox_result *result);
/* NULL: the server has no prices. */
const struct prices *usage_prices(void);
double usage_cost(const struct prices *prices, const struct usage_sum *sum);
void handle_usage(struct exchange *exchange);

#endif
