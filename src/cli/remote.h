/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands on a server (rollbox serve) instead of an engine of this machine: `rollbox --engine URL
 * COMMAND`. The requests are made by rollbox-http (src/http_client), a process for each; its
 * answers are shown as the engine's are.
 */
#ifndef ROLLBOX_CLI_REMOTE_H
#define ROLLBOX_CLI_REMOTE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "cli/options.h"

/* Takes the options that stand before the command (--engine, --token-file, ...) out of the
 * arguments, and puts them into the environment, where rollbox-http finds them. An engine's socket
 * is put into *ret_socket instead; NULL: none. The number of arguments that are left, or -1 after a
 * message. */
int remote_arguments(int argc, char **argv, const char **ret_socket);
/* Whether it is the address of a server; NULL is none. */
bool remote_is_url(const char *text);
/* The path of rollbox-http. 0 or -ENOENT. */
int remote_find_program(struct buf *path);

/* Whether the command is for a server: then *ret_status is its exit status. */
bool remote_command(const struct options *options, int *ret_status);
/* Whether the environment names a server. */
bool remote_is_named(void);

/* ---- requests ---- */

struct remote_answer {
    int status; /* of HTTP; 0: there was none, and a message was printed */
    struct buf body;
};

/* One request. `path` begins with "/v1"; `body` may be NULL; `header` may be NULL. */
void remote_ask(const struct options *options, const char *method, const char *path,
    const char *header, const json_t *body, struct remote_answer *ret_answer);
/* The same with streams: the request's body is read from `body_fd` and the answer's body written to
 * `to_fd`; a problem (status 400 and above) goes to *ret_answer. */
void remote_transfer(const struct options *options, const char *method, const char *path,
    int body_fd, int to_fd, struct remote_answer *ret_answer);

/* A request whose answer is read as it comes. */
struct remote_stream {
    FILE *lines;
    int pid;
    int status;
};
bool remote_stream_open(
    const struct options *options, const char *path, struct remote_stream *ret_stream);
/* Whether the answer was complete. */
bool remote_stream_close(struct remote_stream *stream);

/* Reports a problem: the exit status. */
int remote_fail(const struct options *options, const struct remote_answer *answer);

/* Appends a component of a path, percent-encoded; with `slashes` these stay. */
void remote_path_add(struct buf *to, const char *text, bool slashes);

/* Puts a text into a request's body; NULL: nothing. */
void remote_set_text(json_t *body, const char *key, const char *value);
/* The same for the policy that the options make. 0, or an exit status after a message. */
int remote_add_policy(const struct options *options, json_t *body);
/* Puts the labels of --label, and --trace, into a request's body. */
void remote_add_labels(const struct options *options, json_t *body);
/* The same for --priority and --queue-timeout. */
void remote_add_turn(const struct options *options, json_t *body);

/* ---- commands ---- */

int remote_run(const struct options *options);
int remote_exec(const struct options *options);
int remote_cp(const struct options *options);
/* Images, volumes, templates, policy plan. Whether it is one of them: then *ret_status is its exit
 * status. */
bool remote_named(const struct options *options, int *ret_status);
/* sandbox.c: shows an answer of the engine. */
int sandbox_show(const struct options *options, bool has_name, const char *json);

#endif
