/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of runs: bounds for each connection, a queue for each client, the memory budget. */
#ifndef ROLLBOX_ENGINE_RUN_ADMISSION_H
#define ROLLBOX_ENGINE_RUN_ADMISSION_H

#include <stdint.h>

struct engine;
struct run;
struct rollbox_error;

/* Counts what the request keeps in the engine for its client. 0, or it is more than the engine
 * keeps for one connection (-errno). */
int admission_hold(struct run *run, struct rollbox_error *error);
void admission_handed_over(struct run *run); /* init has the run's descriptors */
void admission_unhold(struct run *run);

void admission_join(struct run *run);  /* the queue of its client */
void admission_leave(struct run *run); /* that queue, or any other list by in_queue */

/* The client whose first queued run starts next; NULL: no queued run has room. */
struct client *admission_next(struct engine *engine);
struct run *admission_first(const struct client *client); /* of its queue, which is not empty */

/* Another client takes the run over, with its place among the runs that start; NULL: nobody does. A
 * run that waits elsewhere (for its sandbox, for an interpreter) waits on. */
void admission_move(struct run *run, struct client *to);

/* The run leaves the queue, and its memory limit is reserved until admission_end. */
void admission_start(struct run *run);
void admission_end(struct run *run); /* nothing if it was not started */

/* What a sandbox counts in the budget; `own` is its present part. */
void admission_session(struct engine *engine, uint64_t *own, uint64_t memory);

#endif
