/* SPDX-License-Identifier: Apache-2.0 */
/* The results of commands, which are kept for retries. */
#ifndef ROLLBOX_ENGINE_COMMAND_RESULT_H
#define ROLLBOX_ENGINE_COMMAND_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

struct client;
struct engine;
struct run;

void result_send(struct run *run); /* to its client and all who wait for it */
void result_send_error(
    struct client *client, uint64_t serial, const struct rollbox_error *error); /* without a run */
/* 1: answered; 0: it is not kept; -EEXIST: it is another request's. Fingerprint 0: any. */
int result_replay(struct client *client, uint64_t serial, const void *operation, size_t length,
    uint64_t fingerprint);
void result_send_summary(struct client *client, uint64_t serial, enum rollbox_outcome outcome,
    int status, uint64_t wall_ns, uint64_t cpu_ns); /* of one whose output is gone */
bool result_streams(struct engine *engine, const void *operation, size_t length, size_t most,
    struct buf streams[2]); /* appends stdout and stderr of one that is kept; false: they are not
                               there whole, or more than `most` bytes */
void result_restore(struct engine *engine, const void *operation, size_t length,
    enum rollbox_outcome outcome, int status, uint64_t wall_ns, uint64_t cpu_ns,
    const struct buf streams[2]); /* keeps it, of a command of an engine before this one */
void result_forget(struct engine *engine, const void *operation, size_t length);
void result_forget_all(struct engine *engine);
void result_forget_client(
    const struct client *client); /* which waits for a result that waits for a tally */
/* A client asks for a tally: 0, or -ENOMEM. */
int result_hold_reply(struct client *client, uint64_t serial, uint64_t tally);
/* The command is over: asks the gateway for its tally, once. The tally's number, which result_tally
 * gets; 0: there is none, or run->end.counts.network has it already. */
uint64_t run_tally_end(struct run *run);
/* The same for a command that continues, as a shell between two lines. */
uint64_t run_tally_restart(const struct run *run);
void result_tally(
    uint64_t tally, const char *network); /* the gateway's counts as JSON: the result is complete */

#endif
