/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: every run, sandbox, fork and command of a tenant passes here before an engine gets it.
 *
 * An exchange holds what its work may use (the limits of its policy) until it ends. A sandbox takes
 * its part over when it is entered (box_new) and gives it back when it is forgotten, so quotas hold
 * over all requests that make sandboxes, also while these are being made.
 *
 * Runs and sandboxes then wait in the fair queue (fair_queue.h) until the engine can begin with
 * them. An engine does the starts of all tenants in the order in which it gets them, so it is given
 * only a few at a time: FRESH_MAX runs that have begun within FRESH_NS, and no more memory than it
 * has. So what a tenant sends delays others by a few starts, however much it is.
 *
 * Requests of new kinds need nothing of their own: policies_prepare admits runs and sandboxes,
 * admission_forks and admission_command the rest.
 */
#ifndef ROLLBOX_SERVE_ADMISSION_H
#define ROLLBOX_SERVE_ADMISSION_H

#include "serve/server.h"

/* For policies_prepare: takes the quotas of a run or sandbox with this policy. False: the answer is
 * given. */
bool admission_take(struct exchange *exchange, enum admission_kind kind, const json_t *policy);
/* For policies_prepare: calls exchange->prepared when the work may begin; or answers. */
void admission_enter(struct exchange *exchange, struct rollbox_plan *plan);
/* For an engine that has others' runs, too. */
enum rollbox_priority admission_priority(const struct exchange *exchange);
/* How long until the rate of the tenant allows one more start; 0: now. */
int64_t admission_wait_ns(const struct exchange *exchange);
/* For n forks of the exchange's sandbox. False: the answer is given. */
bool admission_forks(struct exchange *exchange, unsigned n);
/* For n forks of each of these sandboxes at once. */
bool admission_fork_group(
    struct exchange *exchange, struct box *const *boxes, size_t n_boxes, unsigned n);
/* Before anything that may wake the exchange's sandbox. One that is hibernated needs room in the
 * quotas again. False: the answer is given. */
bool admission_awake(struct exchange *exchange);
/* Until admission_awake is called again, the exchange does nothing that wakes its sandbox. */
void admission_rest(struct exchange *exchange);
/* For a command in a sandbox. False: the answer is given. */
bool admission_command(struct exchange *exchange);
/* Of the journal: the starts of the day. True: the line was one of these. */
bool admission_replay(struct server *server, const char *kind, const json_t *line);
void admission_dump(struct server *server, struct journal *journal);
/* What `from` holds is held by `to`, an exchange of the same tenant. */
void admission_move(struct exchange *from, struct exchange *to);

/* The place of a run or sandbox in its tenant's queue, from 1; 0: it does not wait there. */
unsigned admission_position(const struct exchange *exchange);

void admission_start(struct server *server);

#endif
