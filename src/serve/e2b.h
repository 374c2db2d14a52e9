/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interfaces of E2B's clients, on the server's own port: the control plane (e2b_control.c), and
 * what they find at a sandbox's ports 49983 (processes and files: e2b_process.c, e2b_files.c) and
 * 49999 (a code interpreter: e2b_code.c). Their services in a sandbox are reached through
 * e2b_port.c.
 *
 * A request to a sandbox has the headers E2b-Sandbox-Id and E2b-Sandbox-Port, or a Host
 * "PORT-ID.HOST". It has a token of that sandbox (X-Access-Token or E2B-Traffic-Access-Token, or a
 * signature of an address), and not the tenant's. The sandbox remembers with which token of the
 * tenant it was created or connected to last, and the request has the rights of that one: it is
 * refused once that token is.
 *
 * Sandboxes are made and changed by the functions of the native API, on a request that is changed
 * into one of these; a translator changes the answer back. So all checks and quotas hold.
 */
#ifndef ROLLBOX_SERVE_E2B_H
#define ROLLBOX_SERVE_E2B_H

#include "serve/server.h"

#define E2B_ENVD_PORT 49983u
#define E2B_CODE_PORT 49999u
#define E2B_TOKEN_BYTES 16u

struct process_followers;

/* What a sandbox has for these clients. It ends with the sandbox's place in the server's table. */
struct e2b_box {
    struct list of_server;
    struct server *server;
    struct box *box;
    char token[2 * E2B_TOKEN_BYTES + 1];
    char *bearer;                 /* "Bearer TOKEN" of the tenant */
    char *template_id, *snapshot; /* `snapshot`: this sandbox only holds that snapshot */
    char *origin;                 /* of a snapshot: the sandbox */
    const char *home, *root_home; /* static: where relative paths start; the user root's */
    json_t *metadata;
    json_t *file_metadata;     /* e2b_metadata.c: objects by paths; NULL: none */
    int64_t started_s, ends_s; /* since 1970 */
    struct loop_timer timer;
    bool auto_pause, is_paused;
    bool has_network, allows_internet; /* a network whose rules can change; reaches something */
    bool is_public; /* its services need no token: its random id is the secret, as with E2B */
    struct list processes;                     /* e2b_process.c */
    const struct process_followers *followers; /* the clients that follow processes */
    uint32_t last_pid;
    struct list contexts; /* e2b_code.c */
    struct list watchers; /* e2b_watch.c */
    unsigned n_contexts, n_watchers;
};

/* ---- e2b.c ---- */

/* Of a new sandbox, with this lifetime; NULL: out of memory. */
struct e2b_box *e2b_box_new(struct exchange *exchange, struct box *box, int64_t timeout_s);
/* The sandbox has the rights of this request's token from now on. */
void e2b_box_connected(struct exchange *exchange, struct e2b_box *e2b);
/* The end is that many seconds from now. */
void e2b_box_end_at(struct e2b_box *e2b, int64_t timeout_s);

/* Whether the request is for a sandbox's port; then `id` is the sandbox's. */
bool e2b_is_for_sandbox(const struct http_request *request, unsigned *ret_port, struct buf *id);
/* Finds the sandbox of a request for one. 0: *ret_header is what authenticates the tenant, as in
 * the header Authorization; otherwise the status. The exchange has the sandbox then. */
int e2b_find(struct exchange *exchange, unsigned port, const char *id, const char **ret_header);

/* ---- e2b_answers.c ---- */

/* The exchange's sandbox's; NULL: the answer is given, for it has ended. */
struct e2b_box *e2b_of(struct exchange *exchange);
/* Answers of another form for the server's problems. */
exchange_translate e2b_control_answer, e2b_envd_answer, e2b_connect_answer;
/* A problem that e2b_find found. */
void e2b_refuse(struct exchange *exchange, int status);

/* ---- e2b_routes.c ---- */

/* The requests to a port of a sandbox, or to the control plane (0). Any path of another port is of
 * the first row. */
const struct route *e2b_routes(unsigned port, size_t *ret_n);
exchange_translate *e2b_translator(const struct route *route, unsigned port);

/* ---- e2b_control.c ---- */

void handle_e2b_create(struct exchange *exchange);
void handle_e2b_connect(struct exchange *exchange);
void handle_e2b_resume(struct exchange *exchange);
void handle_e2b_list(struct exchange *exchange);
void handle_e2b_get(struct exchange *exchange);
void handle_e2b_kill(struct exchange *exchange);
void handle_e2b_timeout(struct exchange *exchange);
void handle_e2b_pause(struct exchange *exchange);
void handle_e2b_fork(struct exchange *exchange);
void handle_e2b_snapshot(struct exchange *exchange);
void handle_e2b_snapshots(struct exchange *exchange);
void handle_e2b_drop(struct exchange *exchange);
void handle_e2b_metrics(struct exchange *exchange);
void handle_e2b_network(struct exchange *exchange);
void handle_e2b_alias(struct exchange *exchange);
void handle_e2b_no_builds(struct exchange *exchange);

/* ---- e2b_network.c ---- */

/* The hosts that the settings allow, as a new list; `is_default`: everything, unless they say
 * otherwise. NULL: the answer is given. */
json_t *e2b_network_rules(struct exchange *exchange, const json_t *settings, bool is_default);

/* ---- e2b_metadata.c ---- */

/* The metadata that an upload's headers have, as a new object. NULL: the answer is given. */
json_t *e2b_metadata_of(struct exchange *exchange);
/* A file has been written with that metadata. False: the sandbox's files have too much of it. */
bool e2b_metadata_set(struct e2b_box *e2b, const char *path, json_t *metadata);
/* A file or a tree has been moved (`to` NULL: removed). */
void e2b_metadata_move(struct e2b_box *e2b, const char *path, const char *to);
/* Adds it to the members "entry" and "entries" of an answer. */
void e2b_metadata_show(const struct e2b_box *e2b, json_t *answer);

/* ---- e2b_files.c ---- */

/* The user that a request names, if the sandbox has it; false: the answer is given. */
bool e2b_user_ok(struct exchange *exchange);
/* Whether a request is the user root's, and not the default user's. */
bool e2b_is_root(struct exchange *exchange);
/* A path of a client as an absolute one, without "." and "..". NULL: the answer is given. */
char *e2b_path(struct exchange *exchange, const char *path);
void handle_e2b_stat(struct exchange *exchange);
void handle_e2b_list_dir(struct exchange *exchange);
void handle_e2b_make_dir(struct exchange *exchange);
void handle_e2b_move(struct exchange *exchange);
void handle_e2b_remove(struct exchange *exchange);
void handle_e2b_download(struct exchange *exchange);
void handle_e2b_upload(struct exchange *exchange);

#endif
