/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Idempotency-Key: the first request with a key is carried out, and its answer is kept; a retry
 * gets the same answer, at once or when it is there. The same key with another request is refused
 * (409), and so is a key whose answer was dropped (410): nothing is ever carried out twice in
 * silence.
 *
 * Answers are kept in memory for a day, as long as together they have at most ANSWERS_BYTES; what
 * is older keeps its key alone.
 */
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/server.h"

#define KEY_MAX 255u
#define ANSWERS_BYTES ((size_t)256 << 20)
#define KEYS_MAX 200000u
#define KEPT_NS (INT64_C(86400) * 1000000000)

struct operation {
    struct list node; /* in server->operations */
    struct list in_bucket;
    struct server *server;
    unsigned char key[32], fingerprint[32];
    int64_t made_ns;
    bool has_ended, is_dropped;
    struct list waiters; /* struct exchange.of_operation */
    int status;
    const char *type;
    char *headers, *body;
};

static void add(struct sha256_ctx *context, const char *text) {
    sha256_update(context, strlen(text) + 1, (const uint8_t *)text);
}

static void free_operation(struct operation *operation) {
    list_remove(&operation->node);
    list_remove(&operation->in_bucket);
    operation->server->n_operations--;
    free(operation->headers);
    free(operation->body);
    free(operation);
}

static void drop_answer(struct operation *operation) {
    operation->server->operation_bytes -= strlen(operation->body);
    operation->is_dropped = true;
    free(TAKE_PTR(operation->headers));
    free(TAKE_PTR(operation->body));
}

static void expire(struct server *server) {
    int64_t now = clock_now_ns();

    list_for_each(node, &server->operations) {
        struct operation *operation = container_of(node, struct operation, node);
        bool is_old = now - operation->made_ns > KEPT_NS || server->n_operations > KEYS_MAX;

        if (!operation->has_ended)
            continue;
        if (operation->body && (is_old || server->operation_bytes > ANSWERS_BYTES))
            drop_answer(operation);
        if (is_old)
            free_operation(operation);
        else if (server->operation_bytes <= ANSWERS_BYTES)
            break;
    }
}

/* A retry gets the answer of the first. */
static void replay(struct exchange *exchange, const struct operation *operation) {
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    auto_buf struct buf lines = BUF_INIT;

    buf_printf(&lines, "Request-Id: %s\r\nIdempotency-Replayed: true\r\n%s", exchange->id,
        operation->headers);
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_reply(connection, operation->status, operation->type, lines.data, operation->body,
            strlen(operation->body));
}

static void answered(struct operation *operation, int status, const char *type, const char *headers,
    const char *body) {
    operation->has_ended = true;
    operation->status = status;
    operation->type = type;
    operation->headers = strdup(headers ? headers : "");
    operation->body = strdup(body);
    if (operation->headers && operation->body)
        operation->server->operation_bytes += strlen(body);
    while (!list_empty(&operation->waiters)) {
        struct exchange *exchange =
            container_of(operation->waiters.next, struct exchange, of_operation);

        list_remove(&exchange->of_operation);
        if (operation->headers && operation->body)
            replay(exchange, operation);
        else
            exchange_problem(exchange, 410, "idempotency_expired", "the answer was not kept");
    }
    /* Errors that a retry may mend are not kept: nothing was carried out. */
    if (!operation->headers || !operation->body || status == 429 || status == 503) {
        if (operation->body)
            operation->server->operation_bytes -= strlen(body);
        free_operation(operation);
    }
}

bool operation_begin(struct exchange *exchange, const char *key) {
    const struct http_request *request = http_request_of(exchange->connection);
    struct server *server = exchange->server;
    unsigned char digest[32], fingerprint[32];
    struct sha256_ctx context;

    if (!*key || strlen(key) > KEY_MAX) {
        exchange_problem(exchange, 400, "request_invalid",
            "Idempotency-Key must have 1 to %u characters", KEY_MAX);
        return false;
    }
    sha256_init(&context);
    add(&context, exchange->tenant->name);
    add(&context, key);
    sha256_digest(&context, sizeof digest, digest);
    add(&context, request->path);
    add(&context, request->query);
    sha256_update(&context, request->body.length, (const uint8_t *)request->body.data);
    sha256_digest(&context, sizeof fingerprint, fingerprint);
    expire(server);
    struct list *bucket =
        &server->operations_by[(digest[0] | digest[1] << 8) % ARRAY_SIZE(server->operations_by)];
    list_for_each(node, bucket) {
        struct operation *operation = container_of(node, struct operation, in_bucket);

        if (memcmp(operation->key, digest, sizeof digest) != 0)
            continue;
        if (memcmp(operation->fingerprint, fingerprint, sizeof fingerprint) != 0)
            exchange_problem(exchange, 409, "idempotency_conflict",
                "this Idempotency-Key was used for another request");
        else if (operation->is_dropped)
            exchange_problem(exchange, 410, "idempotency_expired",
                "this request was carried out, and its answer is not kept any more");
        else if (operation->has_ended)
            replay(exchange, operation);
        else
            list_add_tail(&operation->waiters, &exchange->of_operation);
        return false;
    }
    struct operation *operation = calloc(1, sizeof *operation);
    if (!operation) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return false;
    }
    operation->server = server;
    operation->made_ns = clock_now_ns();
    memcpy(operation->key, digest, sizeof digest);
    memcpy(operation->fingerprint, fingerprint, sizeof fingerprint);
    list_init(&operation->waiters);
    list_add_tail(&server->operations, &operation->node);
    list_add_tail(bucket, &operation->in_bucket);
    server->n_operations++;
    exchange->operation = operation;
    exchange->answered = answered;
    return true;
}
