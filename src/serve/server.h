/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's state, and one request's.
 *
 * An exchange is a request with its answer. It begins when a head has a route and a valid token,
 * and ends with one answer. It may outlive its client: `connection` is NULL then, and the
 * exchange's `gone` has decided what becomes of its work.
 *
 * A tenant is a name that tokens have. It sees its own sandboxes and nothing else: every lookup
 * takes the tenant, and what belongs to another one does not exist.
 */
#ifndef ROLLBOX_SERVE_SERVER_H
#define ROLLBOX_SERVE_SERVER_H

#include <jansson.h>
#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"
#include "serve/fair_queue.h"
#include "serve/http.h"
#include "serve/journal.h"
#include "serve/pool.h"
#include "serve/quota.h"
#include "serve/tls.h"
#include "serve/tokens.h"
#include "trace/context.h"

#define SERVER_NAME_MAX 47 /* of a sandbox: the engine's name has the tenant's before it */
#define SERVER_BUCKETS 1024

struct tenant {
    struct list of_server;
    char name[TOKEN_TENANT_MAX + 1];
    struct quota_use use;
    bool keeps_starts; /* they are to be written to the journal */
    struct fair_tenant turns;
    double mean_ms; /* of its runs */
    uint64_t n_started, waited_ns;
    struct list operations; /* struct operation.of_tenant, oldest first */
    struct list answers;    /* struct operation.in_answers, oldest first */
    unsigned n_operations;
    size_t answer_bytes;
    struct list families; /* family.c; not initialised before the first */
    size_t n_family_nodes;
    uint64_t watched_bytes; /* that watchers of its sandboxes remember: e2b_watch.c */
    struct tenant_events {
        struct list kept, watchers; /* struct event, oldest first; struct events_watcher */
        uint64_t latest;            /* its number */
        unsigned n_kept;
    } events;
};

/* What a sandbox used when it was measured last: usage.c. */
struct box_measure {
    int64_t at_ns; /* at first: its creation */
    double cpu_ms;
    uint64_t memory_bytes, disk_bytes;
    const char *state; /* of usage_states; NULL: not measured yet */
};

/* A sandbox of a tenant. */
struct box {
    struct list of_names; /* in server->boxes */
    unsigned references;  /* the table's, and those of jobs that use the handle */
    struct tenant *tenant;
    char name[SERVER_NAME_MAX + 1]; /* the client's word for it */
    struct engine_link *link;       /* referenced: the handle's engine */
    struct rollbox_sandbox *handle;
    struct rollbox_sandbox **old_handles; /* of engines before: a thread may use one */
    size_t n_old_handles;
    unsigned n_late_calls; /* late_call.c */
    json_t *labels;
    json_t *policy;                  /* of its creation; NULL: the server does not know it */
    char lease[SERVER_NAME_MAX + 1]; /* "": none */
    uint64_t number;                 /* random: never used again */
    bool is_detached;                /* it outlives the server's connection to its engine */
    struct box_measure measure;
    struct amounts held;                /* of its tenant's quotas: the limits of its policy, */
    struct amounts resting;             /* but for what it gave back while it is hibernated */
    int64_t roused_ns;                  /* when it took that again; 0: it has not */
    unsigned n_wakers;                  /* requests under way that wake it, or may do so */
    struct e2b_box *e2b;                /* what E2B's clients have of it; NULL: nothing */
    void (*forgotten)(struct box *box); /* frees that */
    struct box_trace *trace;            /* NULL: none */
    void (*freed)(struct box *box);     /* NULL: nothing */
    struct family *family;              /* family.c; NULL: it has no forks and is none */
    json_t *node;                       /* its part of that */
    json_t *note;                       /* the latest */
    bool is_template;                   /* warm_templates.h */
    bool is_gone;                       /* not in the table any more */
};

struct engine_link;

struct exchange;

/* A request that a handler makes for its own client, as if that client had sent it. */
struct inner_request {
    const char *method, *path, *query; /* percent-encoded; query NULL: none */
    const void *body;
    size_t length;
};

/* The same tenant and limits as the parent's, with no scopes but `scopes`. NULL: out of memory, and
 * `done` will not be called. To give it up, http_inner_cancel. */
typedef struct http_connection *server_inner(const struct exchange *parent, unsigned scopes,
    const struct inner_request *request, http_inner_done *done, void *userdata);

struct server {
    struct loop *loop;
    server_inner *inner; /* makes inner requests */
    struct http_server http;
    struct list engines;     /* engines.c */
    struct journal *journal; /* NULL: nothing outlives the server */
    struct loop_task flush_task;
    struct pool *pool, *transfers;   /* of calls; of what takes as long as its client does */
    int store_socket, keeper_socket; /* store_worker.h, keeper.h */
    int exit_status;
    struct tokens tokens;
    struct tls *tls; /* NULL: none */
    struct list tenants;
    struct fair_queue queue; /* admission.c */
    struct list tokened;     /* struct exchange.tokened: revocation.c */
    struct list boxes[SERVER_BUCKETS];
    struct list leases;
    struct list inputs;       /* open standard inputs */
    struct list mcp_calls;    /* of tools, that run */
    struct list rex_sessions; /* swerex_session.c */
    struct list e2b_boxes;    /* struct e2b_box */
    struct list operations; /* struct operation: answers that are kept for a retry, oldest first */
    struct list operations_by[16384]; /* by their keys */
    unsigned n_operations, operations_max;
    size_t answer_bytes, answer_bytes_max;
    bool draining;
    unsigned n_exchanges;
};

struct exchange;

/* Makes an answer for the clients of another interface from the server's own one, which it
 * consumes and which may be NULL. NULL: an answer without a body. A status of 0: the exchange
 * continues, and is not answered. */
typedef json_t *exchange_translate(struct exchange *exchange, int *status, json_t *take_answer);

enum route_body {
    BODY_JSON,
    BODY_TEXT, /* as large as JSON; the handler parses it */
    BODY_BYTES,
    BODY_FILE,   /* as BODY_BYTES, or in pieces if it is large (transfers.c) */
    BODY_STREAM, /* in pieces, to exchange->input; without Idempotency-Key */
};

struct route {
    const char *method, *path; /* a segment in braces is a parameter; the last may be {path...} */
    unsigned scope;            /* enum token_scope that is needed; 0: no token */
    enum route_body body;
    const char *const *keys; /* the members that a JSON body may have; NULL-terminated */
    void (*handle)(struct exchange *exchange);
};

#define EXCHANGE_PARAMETERS 3

struct operation;
/* Keeps an answer for retries. */
typedef void exchange_answered(struct operation *operation, int status, const char *type,
    const char *headers, const char *body);

/* Of a request, for metrics and traces. */
struct exchange_seen {
    bool is_request;                   /* and not a line of a batch */
    int status;                        /* 0: 200, in pieces */
    int64_t begun_ns, asked_ns;        /* its head came; its command was asked for */
    struct trace_context caller, span; /* traces.c */
};

/* A run or sandbox on its way to its engine: admission.c. */
struct turn {
    struct fair_item item;     /* waits in server->queue, */
    struct rollbox_plan *plan; /* to begin with this */
    struct list of_fresh;      /* has begun a moment ago */
    int64_t started_ns, timeout_ns;
    unsigned n; /* forks; 1 of others */
    bool is_run, has_started;
};

/* The token of a request: revocation.c. */
struct tokened {
    struct list of_server; /* not in batches' jobs and the like */
    char id[17];
    int64_t expires;
};

struct exchange {
    struct server *server;
    struct http_connection *connection; /* NULL once the client is gone */
    const struct route *route;
    struct tenant *tenant;
    unsigned scopes;
    struct amounts quotas;                      /* of the token and its tenant */
    struct amounts share, held;                 /* of one run or sandbox; in all: admission.c */
    void (*release)(struct exchange *exchange); /* gives that back, at the end */
    struct turn turn;
    bool waits; /* until its tenant's quotas have room, instead of being refused */
    struct tokened tokened;
    char *parameters[EXCHANGE_PARAMETERS];   /* decoded */
    json_t *body;                            /* an object; NULL of a raw one */
    struct box *box;                         /* referenced */
    struct engine_link *link;                /* referenced: of the box, or chosen */
    struct list of_engine;                   /* waits for an engine, */
    void (*then)(struct exchange *exchange); /* for this */
    void (*prepared)(struct exchange *exchange, struct rollbox_plan *plan); /* policies.c */
    struct rollbox_run *run;
    unsigned port;                 /* of a sandbox, to which the request goes (e2b.h); 0: none */
    struct operation *operation;   /* a POST with an Idempotency-Key */
    exchange_answered *answered;   /* of that */
    exchange_translate *translate; /* NULL: its answers are the server's own */
    struct list of_operation;      /* waits for the answer of the first with that key */
    bool has_begun, counts_running;
    bool is_cancelled; /* a run that is to end before it begins */
    bool may_wake;     /* it is one of the box's n_wakers */
    /* A piece of a streamed body, or bytes of an upgraded connection. */
    void (*input)(struct exchange *exchange, const char *data, size_t length, bool is_end);
    /* Takes problems instead of an answer, once the connection is upgraded or answered in pieces.
     */
    void (*refused)(struct exchange *exchange, json_t *take_problem);
    void (*writable)(struct exchange *exchange); /* the client has read the unsent bytes */
    void (*gone)(struct exchange *exchange);     /* the client has left; NULL: the work continues */
    void *data;                                  /* the handler's, freed by free_data */
    void (*free_data)(void *data);
    struct exchange_seen seen;
    char id[17], command_id[65];
};

/* ---- router.c ---- */

extern const struct http_user router_user;

/* The server's `inner`. */
server_inner router_inner;

/* ---- exchange.c ---- */

/* A problem (RFC 9457) as a new object. */
json_t *exchange_problem_json(
    int status, const char *code, const char *stage, const char *detail, const char *id);

/* Each answers and frees the exchange. `json` is not consumed. */
void exchange_answer(struct exchange *exchange, int status, const char *json, const char *headers);
void exchange_answer_json(struct exchange *exchange, int status, json_t *take_json);
void exchange_bytes(struct exchange *exchange, const void *data, size_t length);
void exchange_text(struct exchange *exchange, const char *type, const void *data, size_t length);
void exchange_fail(struct exchange *exchange, const struct rollbox_error *error);
void exchange_problem(struct exchange *exchange, int status, const char *code, const char *format,
    ...) __attribute__((format(printf, 4, 5)));
/* 400 for a misspelled word of this kind, with the one that was meant unless it is NULL. */
void exchange_unknown(struct exchange *exchange, const char *code, const char *kind,
    const char *word, const char *meant);
/* 405 with the methods that the path has, separated by commas. */
void exchange_no_method(struct exchange *exchange, const char *allowed);
/* 429 with the quota. */
void exchange_over(struct exchange *exchange, const struct quota_verdict *verdict);
/* 503: the server's queue is full. */
void exchange_full(struct exchange *exchange, unsigned current, unsigned maximum);
/* A result that is no answer to a request that rollbox could carry out: a problem with "result". */
void exchange_result(
    struct exchange *exchange, const struct rollbox_result *result, const char *id);
/* Frees it without an answer, after the end of a stream. */
void exchange_done(struct exchange *exchange);

/* Of a JSON body: whether each member is one of these. False: as below. */
bool exchange_knows(
    struct exchange *exchange, const char *const *keys, const char *const *more_keys);
/* Of a JSON body: the member if it is of that type. False: the answer is given, and the exchange
 * is gone. A member that is missing leaves *ret as it is. */
bool exchange_string(struct exchange *exchange, const char *key, const char **ret);
bool exchange_integer(
    struct exchange *exchange, const char *key, int64_t least, int64_t most, int64_t *ret);
bool exchange_boolean(struct exchange *exchange, const char *key, bool *ret);

/* The HTTP status of an error code. */
int exchange_status_of(enum rollbox_error_code code);

/* ---- revocation.c ---- */

/* Requests end when their token is revoked or expires, also in the middle of a stream. */
void revocation_start(struct server *server);

/* ---- tenants.c ---- */

/* One that is new is made; NULL when out of memory. */
struct tenant *tenant_of(struct server *server, const char *name);

/* ---- boxes.c ---- */

struct box *box_find(struct server *server, const struct tenant *tenant, const char *name);
/* Enters a sandbox that the exchange has made; the handle is consumed. NULL when out of memory. */
struct box *box_new(
    struct exchange *exchange, const char *name, struct rollbox_sandbox *take_handle);
/* Enters one that a server before this one has made. */
struct box *box_restore(struct server *server, struct tenant *tenant, const char *name,
    struct engine_link *link, struct rollbox_sandbox *take_handle, const struct amounts *held);
/* It is found again at another engine. */
void box_move(struct box *box, struct engine_link *link, struct rollbox_sandbox *take_handle);
struct box *box_unref(struct box *box);
/* Takes it out of the table. */
void box_forget(struct server *server, struct box *box);
/* Ends the sandbox without waiting, and takes it out of the table. */
void box_close(struct server *server, struct box *box);
/* A hibernated sandbox holds no memory and processors of its tenant's quotas; one that is awake
 * holds them again, even if the quotas are lower by now. */
void box_rest(struct box *box);
void box_rouse(struct box *box);
/* What it holds when it is awake. */
static inline struct amounts box_limits(const struct box *box) {
    struct amounts all = box->held;

    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        all.of[i] += box->resting.of[i];
    return all;
}

bool box_name_ok(const char *name);
void box_random_name(char name[SERVER_NAME_MAX + 1]);
/* Gives it another name; false: the name is taken. */
bool box_take_name(struct server *server, struct box *box, const char *name);
/* Puts clients' names where the engine's are. */
void box_rename(struct server *server, const struct tenant *tenant, json_t *value);

/* ---- policies.c ---- */

enum admission_kind { ADMISSION_RUN, ADMISSION_SANDBOX };

/* Checks the policy of the body's member "policy" against scopes and ceilings, takes its quotas and
 * has it compiled. Calls `then` when the work may begin; or answers. */
void policies_prepare(struct exchange *exchange, enum admission_kind kind,
    void (*then)(struct exchange *exchange, struct rollbox_plan *plan));

/* Whether the token's scopes allow this policy; false: the answer is given. */
bool policies_allowed(struct exchange *exchange, const json_t *policy);

/* ---- policy_check.c ---- */

void handle_policy(struct exchange *exchange);

/* ---- state.c: what outlives the server (--state) ---- */

/* Reads the journal and looks its sandboxes up at the engines. 0, or 1 after a message. */
int state_open(struct server *server, const char *directory);
/* Keep and forget a detached sandbox, and a durable lease. */
int state_keep_box(struct server *server, const struct box *box);
void state_forget_box(struct server *server, const struct box *box);
/* What the sandbox of a line has of its tenant's quotas. */
struct amounts state_amounts(const json_t *line);
int state_keep_lease(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s);
void state_forget_lease(struct server *server, const struct tenant *tenant, const char *id);

/* ---- operations.c ---- */

#define OPERATIONS_MAX 500000u
#define ANSWER_BYTES_MAX ((size_t)256 << 20)

/* Of the journal: whether the line was one of an operation. */
bool operations_replay(struct server *server, const char *kind, const json_t *line);
void operations_dump(struct server *server, struct journal *journal);

enum operation_start {
    OPERATION_BEGUN,    /* the request continues */
    OPERATION_WAITS,    /* it is a retry and waits for the answer of the first */
    OPERATION_ANSWERED, /* the exchange is gone */
};

enum operation_start operation_begin(struct exchange *exchange, const char *key, bool is_run);
/* The run of this key, which the tenant has asked for; NULL: there is none. */
struct operation *operation_of_run(
    struct server *server, const struct tenant *tenant, const char *key);
/* As a retry: false if the exchange waits now. */
bool operation_answer(struct exchange *exchange, struct operation *operation);
/* The exchange that carries it out; NULL: it has ended. */
struct exchange *operation_owner(const struct operation *operation);
/* The kept answer; NULL: there is none. */
const char *operation_body(const struct operation *operation);
/* Its client knows that it continues: any end of it is kept. */
void operation_promise(struct operation *operation);
void operation_forget_answer(struct operation *operation);

/* ---- runs.c ---- */

void handle_run(struct exchange *exchange);
void handle_run_get(struct exchange *exchange);
void handle_run_output(struct exchange *exchange);
void handle_run_delete(struct exchange *exchange);
/* The key of a POST: its member "id", or the header's. False: the answer is given. */
bool run_key(struct exchange *exchange, const char **ret_key);
/* A retry of a run that has not ended: for as long as the client prefers. */
void run_wait_again(struct exchange *exchange, const char *key);
extern const char *const run_keys[];

/* ---- commands.c ---- */

void handle_exec(struct exchange *exchange);
void handle_exec_put(struct exchange *exchange);
void handle_exec_get(struct exchange *exchange);
void handle_exec_stream(struct exchange *exchange);
void stream_writable(struct exchange *exchange);
extern const char *const exec_keys[];

/* ---- exec_output.c ---- */

void handle_exec_output(struct exchange *exchange);

/* ---- sandboxes.c ---- */

void handle_create(struct exchange *exchange);
void handle_list(struct exchange *exchange);
/* Reads "signal" and "scope" of the body. False: the answer is given. */
bool call_signal(struct exchange *exchange, struct rollbox_call_options *call);
void handle_fork(struct exchange *exchange);
void handle_call(struct exchange *exchange); /* a call on a sandbox, by its route */
void handle_status(struct exchange *exchange);
void handle_label(struct exchange *exchange);
/* Enters a fork of a sandbox; the handle is consumed. NULL: out of memory. */
struct box *fork_enter(struct exchange *exchange, struct box *parent, const char *snapshot,
    struct rollbox_sandbox *take_handle);
/* "processes" of the body. False: the answer is given. */
bool call_processes(struct exchange *exchange, struct rollbox_state_options *state);
extern const char *const label_keys[];
extern const char *const create_keys[],
    *const snapshot_keys[], *const fork_keys[], *const reset_keys[], *const signal_keys[],
                                                                         *const state_keys[],
                                                                             *const resize_keys[];

/* ---- channel.c ---- */

void handle_channel(struct exchange *exchange);
void handle_terminal(struct exchange *exchange);

/* ---- trees.c, fork_group.c ---- */

void handle_trees(struct exchange *exchange);
void handle_tree(struct exchange *exchange);
void handle_fork_group(struct exchange *exchange);
extern const char *const fork_group_keys[];

/* ---- actions.c ---- */

void handle_commit(struct exchange *exchange);
void handle_net_set(struct exchange *exchange);
void handle_net_tally(struct exchange *exchange);
void handle_note(struct exchange *exchange);
void handle_export(struct exchange *exchange);
extern const char *const commit_keys[], *const note_keys[];

/* ---- batches.c ---- */

void handle_batch(struct exchange *exchange);

/* ---- stdin.c ---- */

/* Keeps the write end of a command's standard input; *ret_fd is the read end, the caller's. */
int input_open(struct exchange *exchange, const char *id, int *ret_fd);
void handle_stdin(struct exchange *exchange);

/* ---- leases.c ---- */

bool lease_exists(struct server *server, const struct tenant *tenant, const char *id);
bool lease_is_durable(struct server *server, const struct tenant *tenant, const char *id);
/* Of the journal. */
void leases_dump(
    struct server *server, void (*dump)(struct server *server, const struct tenant *tenant,
                               const char *id, int64_t ttl_s));
bool lease_restore(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s);
/* The same for the server's own use: a lease of the tenant; 0 or -errno. Renewal and end tell
 * whether there was one. */
int lease_open(struct server *server, const struct tenant *tenant, int64_t ttl_s,
    char id[SERVER_NAME_MAX + 1]);
bool lease_touch(struct server *server, const struct tenant *tenant, const char *id);
bool lease_end(struct server *server, const struct tenant *tenant, const char *id);
void handle_lease_create(struct exchange *exchange);
void handle_lease_renew(struct exchange *exchange);
void handle_lease_delete(struct exchange *exchange);
extern const char *const lease_keys[];

/* ---- fusion.c ---- */

void handle_fusion_run(struct exchange *exchange);
void handle_fusion_cells(struct exchange *exchange);
void handle_fusion_ping(struct exchange *exchange);

/* ---- mcp.c ---- */

void handle_mcp(struct exchange *exchange);
void handle_mcp_end(struct exchange *exchange);

/* ---- swerex.c ---- */

void handle_rex_alive(struct exchange *exchange);
void handle_rex_create(struct exchange *exchange);
void handle_rex_run(struct exchange *exchange);
void handle_rex_close_session(struct exchange *exchange);
void handle_rex_execute(struct exchange *exchange);
void handle_rex_read(struct exchange *exchange);
void handle_rex_write(struct exchange *exchange);
void handle_rex_upload(struct exchange *exchange);
void handle_rex_close(struct exchange *exchange);

/* ---- grade.c ---- */

void handle_grade(struct exchange *exchange);
extern const char *const grade_keys[];

/* ---- stores.c ---- */

void handle_images(struct exchange *exchange);
void handle_image(struct exchange *exchange);
void handle_image_pull(struct exchange *exchange);
void handle_image_delete(struct exchange *exchange);
void handle_volumes(struct exchange *exchange);
void handle_volume(struct exchange *exchange);
void handle_volume_create(struct exchange *exchange);
void handle_volume_delete(struct exchange *exchange);
void handle_import(struct exchange *exchange);
/* Starts the process that runs rollbox-store, before the confinement. 0 or -errno. */
int stores_start(struct server *server);
extern const char *const image_keys[], *const volume_keys[];

/* ---- transfers.c ---- */

void handle_file_get(struct exchange *exchange);
void handle_file_put(struct exchange *exchange);
void handle_file_delete(struct exchange *exchange);
void handle_tree_get(struct exchange *exchange);
void handle_tree_put(struct exchange *exchange);
bool transfer_is_streamed(const struct http_request *request, uint64_t *ret_size);

#endif
