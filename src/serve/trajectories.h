/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trajectories that the server keeps: --state DIR has them in DIR/trajectories/TENANT/ID.jsonl,
 * with what GET /v1/trajectories lists of each in ID.json. Both names are the server's own.
 *
 * The recorder of the engine writes the file (docs/reference/trajectories.md). It holds a lock on
 * it until its last line is written, which the server has taken with the descriptor. So a file
 * without a lock has ended, also if the server was killed, and the next server finds all of them.
 *
 * A trajectory counts in its tenant's quota `disk`: the most that it may have while it is written,
 * and its size afterwards.
 */
#ifndef ROLLBOX_SERVE_TRAJECTORIES_H
#define ROLLBOX_SERVE_TRAJECTORIES_H

#include "serve/server.h"

/* Makes the directory below the state directory and reads what it has. 0, or 1 after a message. */
int trajectories_open(struct server *server, const char *state);
/* The member "record" of a body: whether it is sound. False: the answer is given. */
bool trajectories_wanted(struct exchange *exchange, bool *ret_wanted);
/* Records the exchange's sandbox from now on, as "record" of the body says, and then calls `then`
 * with the trajectory's id. Or closes the sandbox and answers. */
void trajectories_record(
    struct exchange *exchange, void (*then)(struct exchange *exchange, const char *id));

void handle_trajectories(struct exchange *exchange);
void handle_trajectory(struct exchange *exchange);
void handle_trajectory_delete(struct exchange *exchange);

#endif
