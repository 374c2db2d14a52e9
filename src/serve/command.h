/* SPDX-License-Identifier: Apache-2.0 */
/* A command as a request's body has it, for runs, execs and channels. */
#ifndef ROLLBOX_SERVE_COMMAND_H
#define ROLLBOX_SERVE_COMMAND_H

#include "serve/server.h"

/* Points into the exchange's body. */
struct command {
    const char **argv, **env;
    struct rollbox_file *files;
    size_t n_files, n_owned;
    void *owned[1024]; /* decoded data and "K=V" */
    const char *cwd, *user;
    const void *stdin_data;
    size_t stdin_length;
    int64_t timeout_ms, output_limit;
    bool is_code;
};

/* NULL: the answer is given. */
struct command *command_read(struct exchange *exchange);
void command_free(struct command *command);
/* What a run and a command in a sandbox have in common; points into the command. */
struct rollbox_run_options command_run_options(const struct command *command);
struct rollbox_exec_options command_exec_options(const struct command *command);
/* Adds an ended run or command to the usage and the events; `id` of a command. */
void command_ended(struct exchange *exchange, const char *id, const struct rollbox_result *result);
/* Callbacks of runs and commands: the end becomes the answer, or the client has left. */
void command_on_end(struct rollbox_run *run, void *exchange);
void command_on_gone(struct exchange *exchange);
/* The seconds of "Prefer: wait=N"; 0: respond-async; -1: the client waits for the end. */
int64_t command_preference(const struct http_request *request);
/* The seconds of ?wait=N; false: the answer is given. */
bool command_wait_of(struct exchange *exchange, int64_t *ret_seconds);
/* The terminal of the member `key` of an object; false: the answer is given. */
bool command_terminal(struct exchange *exchange, const json_t *value, struct rollbox_terminal *ret);

#endif
