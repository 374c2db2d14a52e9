/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection whose server is a recording (net/recording.h): the bytes of the server come when the
 * guest has sent the bytes that it sent before them.
 */
#ifndef ROLLBOX_EGRESS_REPLAY_H
#define ROLLBOX_EGRESS_REPLAY_H

#include "egress/connection.h"

enum replay_step {
    REPLAY_STEP_WAIT, /* for the guest */
    REPLAY_STEP_END,
    REPLAY_STEP_RESET,
    REPLAY_STEP_MISS, /* the guest says something else than it did */
};

/* NULL: out of memory. Freed with free(). */
struct replay *replay_new(struct connection *connection);
/* Moves what can be moved. */
enum replay_step replay_step(struct connection *connection);

#endif
