/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shells that keep their state between commands, as in the Python package
 * (python/rollbox/_shell.py): the same text is sent through the same pipes, and each command's
 * status is returned on a pipe of its own.
 */
#ifndef ROLLBOX_CLI_PLAY_SHELL_H
#define ROLLBOX_CLI_PLAY_SHELL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

#define PLAY_SHELL_FDS 4 /* standard input, status, output, errors */

struct play_shell {
    uint64_t step;           /* that its command was, in the record */
    struct rollbox_run *run; /* borrowed */
    char id[32];             /* of it, here */
    bool is_bash;
    int fds[PLAY_SHELL_FDS]; /* our ends; -EBADF once it is closed */
    struct buf unsent, statuses;
    uint64_t number; /* of its commands */
};

/* The result of one command. */
struct play_shell_result {
    enum rollbox_outcome outcome;
    int exit_code, signal;
    struct buf streams[2];
    bool truncated[2], ended;
    double wall_ms;
};

bool play_shell_is(const json_t *action); /* of an exec */

/* Pipes; `ret_theirs` are for the command, as its input and its descriptors 3, 4, 5, and the
 * caller's. 0 or -errno. */
int play_shell_open(
    struct play_shell *shell, const json_t *action, uint64_t step, int ret_theirs[PLAY_SHELL_FDS]);
void play_shell_close(struct play_shell *shell);

/* One command; timeout_ms -1: none. play_shell_result_done also on failure. */
int play_shell_run(struct play_shell *shell, struct rollbox_engine *engine,
    struct rollbox_sandbox *sandbox, const struct buf *command, int64_t timeout_ms, uint64_t limit,
    struct play_shell_result *ret_result, struct rollbox_error *error);
void play_shell_result_done(struct play_shell_result *result);

#endif
