/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of a sandbox as E2B's daemon has them: a process lives on without a client, and any
 * number of clients may follow it. What it writes while nobody follows is dropped.
 *
 * A process is a command of the engine under an id of its own. `pid` is a number that this server
 * gives, not the one inside the sandbox. When the sandbox is hibernated or forked, the server
 * attaches to the command again under the same id, which gives it the output from then on, and
 * claims its standard input.
 */
#ifndef ROLLBOX_SERVE_E2B_PROCESS_H
#define ROLLBOX_SERVE_E2B_PROCESS_H

#include "serve/e2b.h"

struct process;

/* A receiver of the output instead of clients: the code interpreter. */
struct process_user {
    void (*output)(struct process *process, bool is_error, const char *data, size_t length);
    void (*ended)(struct process *process); /* the process is freed afterwards */
};

struct process_start {
    const char *const *argv, *const *env; /* NULL-terminated */
    const char *cwd;
    int64_t timeout_ms;
    const struct rollbox_terminal *terminal;
    bool has_stdin;
};

/* Starts one. The exchange's sandbox and rights are its. `take_config` describes it to clients.
 * NULL: the answer is given. */
struct process *process_start(struct exchange *exchange, const struct process_start *start,
    json_t *take_config, const struct process_user *user, void *userdata);
void *process_userdata(const struct process *process);
void process_set_user(struct process *process, const struct process_user *user, void *userdata);
uint32_t process_pid(const struct process *process);
struct process *process_find(struct e2b_box *e2b, uint32_t pid);
/* More for its standard input. Returns the bytes that it has not taken; -EPIPE: it takes none. */
ssize_t process_write(struct process *process, const void *data, size_t length);
void process_close_stdin(struct process *process);
void process_signal(struct process *process, int signal_number, enum rollbox_scope scope);

/* Ends all, with their sandbox. */
void e2b_processes_end(struct e2b_box *e2b);
/* The sandbox has woken, or is a fork. */
void e2b_processes_woken(struct e2b_box *e2b);
void e2b_processes_copy(const struct e2b_box *from, struct e2b_box *to);
/* The same for a snapshot: it has their names alone. */
void e2b_processes_remember(const struct e2b_box *from, struct e2b_box *to);

void handle_e2b_start(struct exchange *exchange);
void handle_e2b_follow(struct exchange *exchange);
void handle_e2b_processes(struct exchange *exchange);
void handle_e2b_input(struct exchange *exchange);
void handle_e2b_stream_input(struct exchange *exchange);
void handle_e2b_signal(struct exchange *exchange);
void handle_e2b_close_stdin(struct exchange *exchange);
void handle_e2b_update(struct exchange *exchange);

#endif
