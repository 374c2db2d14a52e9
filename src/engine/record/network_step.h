/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of commands in sandboxes with net "allow". The gateway's counts for a command come after
 * its end, so its step waits for them, and the record's later steps wait behind it: lines are in
 * the order of ends. The command's result waits, too, so that its step is still recorded before
 * anybody has that.
 */
#ifndef ROLLBOX_ENGINE_RECORD_NETWORK_STEP_H
#define ROLLBOX_ENGINE_RECORD_NETWORK_STEP_H

#include "engine/record/recorder.h"

/* Takes the message, and duplicates of the descriptors. `tally` 0: it waits for the steps before it
 * alone. False: it cannot, and has taken nothing. */
bool network_step_hold(struct record *record, uint64_t tally, struct buf *message, const int *fds,
    size_t n_fds, uint64_t bytes);
/* Does any step of the record wait? */
bool network_step_waits(const struct record *record);
/* The counts are here, as JSON. */
void network_step_tally(uint64_t tally, const char *network);
/* The record ends, or all do (NULL): their steps go without counts. */
void network_step_flush(const struct record *record);

#endif
