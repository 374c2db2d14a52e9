/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays the actions of a trajectory in a new sandbox under the recorded policy.
 *
 * Steps begin in their recorded order. Each begins when as many steps have ended as in the record,
 * so commands that ran side by side do so again. A step with data that the record does not have (a
 * secret, a terminal's keys, a stream longer than the kept part) is refused by name before anything
 * runs. Commits are not repeated: a replay must not change the host.
 */
#ifndef ROLLBOX_CLI_PLAY_H
#define ROLLBOX_CLI_PLAY_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include "cli/options.h"
#include "record/read.h"

struct played;
struct play_shell;

struct play {
    const struct options *options;
    struct rollbox_engine *engine; /* borrowed */
    struct rollbox_sandbox *sandbox;
    const char *name;    /* of the record, for messages */
    bool redacted;       /* there were rules */
    struct played *runs; /* commands, by the order in which they begin */
    size_t n_runs, n_shells;
    struct play_shell **shells; /* play_shell.h */
    json_t *snapshots;          /* ids of the record to ours */
};

/* A new sandbox for the header, under the caller's --policy or the record's, if that grants no more
 * than the default or --trust is given. 0; or negative with *error filled. play_done also on
 * failure. */
int play_begin(struct play *play, const struct options *options, struct rollbox_engine *engine,
    const struct reader *reader, struct rollbox_error *error);

/* Records it to `fd` by the same rules as the trajectory that is played. */
int play_record(
    struct play *play, const struct reader *reader, int fd, struct rollbox_error *error);

/* Replays a step. INVALID_ARGUMENT: it cannot be replayed, with the reason. An error that the step
 * had as well does not count. */
int play_step(struct play *play, const struct step *step, struct rollbox_error *error);

/* Continues as child number N (from 0) of the fork that this step of a parent's record made, in
 * place of the parent. */
int play_fork(
    struct play *play, const struct step *step, uint64_t index, struct rollbox_error *error);

/* Waits for those commands that were among the first `n_ended` steps to end; UINT64_MAX: for all
 * but those that the sandbox's end ended. */
int play_settle(struct play *play, uint64_t n_ended, struct rollbox_error *error);

struct rollbox_sandbox *play_take_sandbox(struct play *play);
void play_done(struct play *play);

#endif
