/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Idempotency-Key: the first request with a key is carried out, and its answer is kept; a retry
 * gets the same answer, at once or when it is there. The same key with another request is refused
 * (409), and so is a key whose answer was dropped (410): nothing is ever carried out twice in
 * silence.
 *
 * Answers are kept for a day, if all of them together fit into the server's bounds. Beyond these,
 * the tenant that has the most loses its oldest answers, and keeps their keys; or its oldest keys.
 * So one tenant's requests never cost another tenant an answer. With --state the answers are in the
 * journal too, so a server that starts again after any end of this one still knows them. A key is
 * in the journal before its request is begun: if the server ended before the answer, a retry learns
 * that (410), and is not carried out.
 *
 * A run is asked for by its key, too (runs.c): what waits for its end is a retry like any other.
 */
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "serve/digits.h"
#include "serve/server.h"

#define KEY_MAX 255u
#define KEPT_S 86400

enum operation_state {
    OPERATION_RUNS,
    OPERATION_ENDED,
    OPERATION_DROPPED, /* its answer is not kept any more */
    OPERATION_LOST,    /* a server before this one has ended meanwhile */
};

struct operation {
    struct list node; /* in server->operations */
    struct list in_bucket;
    struct server *server;
    struct tenant *tenant;
    struct list of_tenant, in_answers;
    unsigned char key[32], fingerprint[32];
    int64_t made_s; /* since 1970 */
    enum operation_state state;
    struct list waiters;    /* struct exchange.of_operation */
    struct exchange *owner; /* carries it out; NULL: it was answered */
    bool is_run;
    bool is_promised; /* its client has got 202, so any end of it is kept */
    int status;
    char *type, *headers, *body;
};

static void add(struct sha256_ctx *context, const char *text) {
    sha256_update(context, strlen(text) + 1, (const uint8_t *)text);
}

/* ---- the table ---- */

static struct list *bucket_of(struct server *server, const unsigned char key[32]) {
    return &server->operations_by[(key[0] | key[1] << 8) % ARRAY_SIZE(server->operations_by)];
}

static struct operation *find(struct server *server, const unsigned char key[32]) {
    list_for_each(node, bucket_of(server, key)) {
        struct operation *operation = container_of(node, struct operation, in_bucket);

        if (!memcmp(operation->key, key, sizeof operation->key))
            return operation;
    }
    return NULL;
}

static struct operation *new_operation(struct server *server, struct tenant *tenant,
    const unsigned char key[32], const unsigned char fingerprint[32], int64_t made_s) {
    struct operation *operation = calloc(1, sizeof *operation);

    if (!operation)
        return NULL;
    operation->server = server;
    operation->tenant = tenant;
    operation->made_s = made_s;
    memcpy(operation->key, key, sizeof operation->key);
    memcpy(operation->fingerprint, fingerprint, sizeof operation->fingerprint);
    list_init(&operation->waiters);
    list_init(&operation->in_answers);
    list_add_tail(&server->operations, &operation->node);
    list_add_tail(bucket_of(server, key), &operation->in_bucket);
    list_add_tail(&tenant->operations, &operation->of_tenant);
    server->n_operations++;
    tenant->n_operations++;
    return operation;
}

static void drop_answer(struct operation *operation) {
    if (operation->body) {
        operation->server->answer_bytes -= strlen(operation->body);
        operation->tenant->answer_bytes -= strlen(operation->body);
    }
    list_remove(&operation->in_answers);
    if (operation->state == OPERATION_ENDED)
        operation->state = OPERATION_DROPPED;
    free(TAKE_PTR(operation->type));
    free(TAKE_PTR(operation->headers));
    free(TAKE_PTR(operation->body));
}

static void free_operation(struct operation *operation) {
    drop_answer(operation);
    list_remove(&operation->node);
    list_remove(&operation->in_bucket);
    list_remove(&operation->of_tenant);
    operation->server->n_operations--;
    operation->tenant->n_operations--;
    free(operation);
}

/* False: out of memory, and the answer is not kept. */
static bool keep_answer(struct operation *operation, int status, const char *type,
    const char *headers, const char *body) {
    operation->state = OPERATION_ENDED;
    operation->status = status;
    operation->type = strdup(type);
    operation->headers = strdup(headers ? headers : "");
    operation->body = strdup(body);
    if (operation->body) {
        operation->server->answer_bytes += strlen(body);
        operation->tenant->answer_bytes += strlen(body);
        list_add_tail(&operation->tenant->answers, &operation->in_answers);
    }
    if (operation->type && operation->headers && operation->body)
        return true;
    drop_answer(operation);
    return false;
}

/* The tenant with the most keys, or the most bytes of answers. */
static struct tenant *largest(const struct server *server, bool by_bytes) {
    struct tenant *most = NULL;

    list_for_each(node, &server->tenants) {
        struct tenant *tenant = container_of(node, struct tenant, of_server);

        if (!most || (by_bytes ? tenant->answer_bytes > most->answer_bytes
                               : tenant->n_operations > most->n_operations))
            most = tenant;
    }
    return most;
}

/* False: all of them are being carried out. */
static bool free_oldest(struct tenant *tenant) {
    list_for_each(node, &tenant->operations) {
        struct operation *operation = container_of(node, struct operation, of_tenant);

        if (operation->state == OPERATION_RUNS)
            continue;
        free_operation(operation);
        return true;
    }
    return false;
}

static void expire(struct server *server) {
    int64_t now = time(NULL);

    list_for_each(node, &server->operations) {
        struct operation *operation = container_of(node, struct operation, node);

        if (now - operation->made_s <= KEPT_S)
            break;
        if (operation->state != OPERATION_RUNS)
            free_operation(operation);
    }
    while (server->n_operations > server->operations_max && free_oldest(largest(server, false)))
        ;
    while (server->answer_bytes > server->answer_bytes_max)
        drop_answer(
            container_of(largest(server, true)->answers.next, struct operation, in_answers));
}

/* ---- the journal ---- */

static json_t *line_of(const char *kind, const struct operation *operation) {
    char key[65];

    digits_of(operation->key, 32, key);
    return json_pack("{s:s, s:s}", "kind", kind, "key", key);
}

static json_t *begin_line(const struct operation *operation) {
    char fingerprint[65];
    json_t *line = line_of("begin", operation);

    digits_of(operation->fingerprint, 32, fingerprint);
    json_object_set_new(line, "tenant", json_string(operation->tenant->name));
    json_object_set_new(line, "request", json_string(fingerprint));
    json_object_set_new(line, "made", json_integer(operation->made_s));
    if (operation->is_run)
        json_object_set_new(line, "run", json_true());
    return line;
}

static json_t *end_line(const struct operation *operation) {
    json_t *line = line_of("end", operation);

    json_object_set_new(line, "status", json_integer(operation->status));
    json_object_set_new(line, "type", json_string(operation->type));
    json_object_set_new(line, "headers", json_string(operation->headers));
    json_object_set_new(line, "body", json_string(operation->body));
    return line;
}

bool operations_replay(struct server *server, const char *kind, const json_t *line) {
    unsigned char key[32], fingerprint[32];
    bool begins = !strcmp(kind, "begin");

    if (!begins && strcmp(kind, "end") != 0 && strcmp(kind, "forget") != 0)
        return false;
    if (!digits_read(json_string_value(json_object_get(line, "key")), key, 32))
        return true;
    struct operation *operation = find(server, key);
    if (begins && !operation &&
        digits_read(json_string_value(json_object_get(line, "request")), fingerprint, 32)) {
        const char *name = json_string_value(json_object_get(line, "tenant"));
        struct tenant *tenant = tenant_of(server, name && token_tenant_ok(name) ? name : "default");

        operation = tenant ? new_operation(server, tenant, key, fingerprint,
                                 json_integer_value(json_object_get(line, "made")))
                           : NULL;
        if (operation)
            operation->state = OPERATION_LOST;
        if (operation)
            operation->is_run = json_is_true(json_object_get(line, "run"));
    } else if (!strcmp(kind, "end") && operation) {
        const char *type = json_string_value(json_object_get(line, "type"));
        const char *body = json_string_value(json_object_get(line, "body"));

        drop_answer(operation);
        if (type && body)
            (void)keep_answer(operation, (int)json_integer_value(json_object_get(line, "status")),
                type, json_string_value(json_object_get(line, "headers")), body);
        else
            operation->state = OPERATION_DROPPED;
    } else if (!begins && operation) {
        free_operation(operation);
    }
    return true;
}

void operations_dump(struct server *server, struct journal *journal) {
    expire(server);
    list_for_each(node, &server->operations) {
        const struct operation *operation = container_of(node, struct operation, node);

        (void)journal_add(journal, begin_line(operation));
        if (operation->state == OPERATION_ENDED)
            (void)journal_add(journal, end_line(operation));
        else if (operation->state == OPERATION_DROPPED)
            (void)journal_add(journal, line_of("end", operation));
    }
}

/* ---- requests ---- */

/* A retry gets the answer of the first. */
static void replay(struct exchange *exchange, const struct operation *operation) {
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    auto_buf struct buf lines = BUF_INIT;

    buf_printf(&lines, "Request-Id: %s\r\n%s%s", exchange->id,
        strcmp(exchange->route->method, "GET") ? "Idempotency-Replayed: true\r\n" : "",
        operation->headers);
    exchange->seen.status = operation->status;
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_reply(connection, operation->status, operation->type, lines.data, operation->body,
            strlen(operation->body));
}

/* After these statuses a request may be retried: the server has not carried it out. */
static bool may_be_tried_again(int status) {
    return status == 429 || status == 503;
}

static void answered(struct operation *operation, int status, const char *type, const char *headers,
    const char *body) {
    struct server *server = operation->server;
    bool is_kept = keep_answer(operation, status, type, headers, body);
    bool is_forgotten = may_be_tried_again(status) && !operation->is_promised;

    operation->owner = NULL;
    if (is_forgotten)
        (void)journal_add(server->journal, line_of("forget", operation));
    else if (is_kept)
        (void)journal_add(server->journal, end_line(operation));
    while (!list_empty(&operation->waiters)) {
        struct exchange *exchange =
            container_of(operation->waiters.next, struct exchange, of_operation);

        list_remove(&exchange->of_operation);
        if (is_kept)
            replay(exchange, operation);
        else
            exchange_problem(exchange, 410, "idempotency_expired", "the answer was not kept");
    }
    if (is_forgotten)
        free_operation(operation);
}

bool operation_answer(struct exchange *exchange, struct operation *operation) {
    switch (operation->state) {
    case OPERATION_RUNS:
        list_add_tail(&operation->waiters, &exchange->of_operation);
        return false;
    case OPERATION_ENDED:
        replay(exchange, operation);
        return true;
    case OPERATION_DROPPED:
        exchange_problem(exchange, 410, "idempotency_expired",
            "this request was carried out, and its answer is not kept any more");
        return true;
    case OPERATION_LOST:
        exchange_problem(exchange, 410, "idempotency_lost",
            "the server ended while it carried this request out, and its answer is unknown; to do "
            "it again, send it with another key");
        return true;
    }
    return true;
}

/* The key is known: its request is answered, waits, or is refused. */
static enum operation_start repeat(
    struct exchange *exchange, struct operation *operation, const unsigned char fingerprint[32]) {
    if (memcmp(operation->fingerprint, fingerprint, 32) == 0)
        return operation_answer(exchange, operation) ? OPERATION_ANSWERED : OPERATION_WAITS;
    exchange_problem(exchange, 409, "idempotency_conflict", "this %s was used for another request",
        operation->is_run ? "id" : "Idempotency-Key");
    return OPERATION_ANSWERED;
}

static void key_of(const struct tenant *tenant, const char *key, unsigned char digest[32]) {
    struct sha256_ctx context;

    sha256_init(&context);
    add(&context, tenant->name);
    add(&context, key);
    sha256_digest(&context, 32, digest);
}

struct operation *operation_of_run(
    struct server *server, const struct tenant *tenant, const char *key) {
    unsigned char digest[32];

    key_of(tenant, key, digest);
    expire(server);
    struct operation *operation = find(server, digest);
    return operation && operation->is_run ? operation : NULL;
}

struct exchange *operation_owner(const struct operation *operation) {
    return operation->state == OPERATION_RUNS ? operation->owner : NULL;
}

const char *operation_body(const struct operation *operation) {
    return operation->state == OPERATION_ENDED ? operation->body : NULL;
}

void operation_promise(struct operation *operation) {
    operation->is_promised = true;
}

void operation_forget_answer(struct operation *operation) {
    struct server *server = operation->server;

    if (operation->state != OPERATION_ENDED)
        return;
    drop_answer(operation);
    (void)journal_add(server->journal, line_of("end", operation));
}

enum operation_start operation_begin(struct exchange *exchange, const char *key, bool is_run) {
    const struct http_request *request = http_request_of(exchange->connection);
    struct server *server = exchange->server;
    unsigned char digest[32], fingerprint[32];
    struct sha256_ctx context;

    if (!*key || strlen(key) > KEY_MAX) {
        exchange_problem(exchange, 400, "request_invalid",
            "Idempotency-Key must have 1 to %u characters", KEY_MAX);
        return OPERATION_ANSWERED;
    }
    key_of(exchange->tenant, key, digest);
    sha256_init(&context);
    add(&context, request->path);
    add(&context, request->query);
    sha256_update(&context, request->body.length, (const uint8_t *)request->body.data);
    sha256_digest(&context, sizeof fingerprint, fingerprint);
    expire(server);
    struct operation *operation = find(server, digest);
    if (operation)
        return repeat(exchange, operation, fingerprint);
    operation = new_operation(server, exchange->tenant, digest, fingerprint, time(NULL));
    if (!operation) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return OPERATION_ANSWERED;
    }
    operation->owner = exchange;
    operation->is_run = is_run;
    if (journal_add(server->journal, begin_line(operation)) < 0) {
        free_operation(operation);
        exchange_problem(exchange, 503, "resource_exhausted",
            "the server cannot write its journal, so it could not promise to do this only once");
        return OPERATION_ANSWERED;
    }
    exchange->operation = operation;
    exchange->answered = answered;
    return OPERATION_BEGUN;
}
