/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: one command in a sandbox of its own.
 *
 * A run's id is its Idempotency-Key, so a second request under it is a retry, and nothing runs
 * twice. A client that waits for less than the end ("Prefer: respond-async" or "wait=N") gets 202,
 * and the exchange continues without a connection, as after a client with a key has left. Its
 * answer is kept as one for a retry, and GET /v1/runs/ID waits for it.
 */
#include <ctype.h>
#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/command.h"
#include "serve/digits.h"
#include "serve/engine_link.h"
#include "serve/range.h"

#define ID_MAX 64u

const char *const run_keys[] = { "id", "policy", "argv", "code", "language", "env", "cwd", "stdin",
    "stdin_base64", "files", "timeout_ms", "output_limit", "labels", "priority", "queue_timeout_ms",
    "trace", NULL };

/* An exchange that waits for a run: the first with its id, or a later one. */
struct run_request {
    struct exchange *exchange;
    struct loop_timer timer; /* then the answer is 202 */
    struct command *command; /* of the first, until the engine has it */
    char *id;
};

static void free_request(void *data) {
    struct run_request *request = data;

    loop_timer_clear(request->exchange->server->loop, &request->timer);
    if (request->command)
        command_free(request->command);
    free(request->id);
    free(request);
}

static struct run_request *new_request(struct exchange *exchange, const char *id) {
    struct run_request *request = calloc(1, sizeof *request);

    if (!request) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    request->exchange = exchange;
    request->id = id ? strdup(id) : NULL;
    exchange->data = request;
    exchange->free_data = free_request;
    if (!id || request->id)
        return request;
    exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    return NULL;
}

/* ---- its id ---- */

static bool id_ok(const char *id) {
    size_t length = strlen(id);

    return length >= 1 && length <= ID_MAX &&
           strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
               length;
}

bool run_key(struct exchange *exchange, const char **ret_key) {
    const char *header = *ret_key, *id = NULL;

    if (!exchange_string(exchange, "id", &id))
        return false;
    if (!id)
        return true;
    if (!id_ok(id)) {
        exchange_problem(
            exchange, 400, "invalid_argument", "id must be 1 to %u of A-Z a-z 0-9 _ . -", ID_MAX);
        return false;
    }
    if (header && strcmp(header, id) != 0) {
        exchange_problem(exchange, 400, "invalid_argument",
            "the id of a run is its Idempotency-Key: give one of them, or the same twice");
        return false;
    }
    *ret_key = id;
    return true;
}

/* ---- 202 ---- */

static bool is_plain(unsigned char c) {
    return isascii(c) && (isalnum(c) || strchr("-._~", c));
}

static void add_location(struct buf *to, const char *id) {
    buf_add_text(to, "Location: /v1/runs/");
    for (const unsigned char *p = (const unsigned char *)id; *p; p++)
        buf_printf(to, is_plain(*p) ? "%c" : "%%%02X", *p);
    buf_add_text(to, "\r\n");
}

/* Of a run that has not ended; `owner` carries it out. */
static json_t *describe(const char *id, const struct exchange *owner) {
    unsigned position = admission_position(owner);
    json_t *told = json_pack("{s:s, s:s}", "id", id, "state", owner->run ? "running" : "queued");

    if (position)
        json_object_set_new(told, "queue_position", json_integer(position));
    return told;
}

/* The client of the first request learns that the run continues. */
static void on_patience(struct loop_timer *timer) {
    struct run_request *request = container_of(timer, struct run_request, timer);
    struct exchange *exchange = request->exchange;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    auto_buf struct buf headers = BUF_INIT;

    if (!connection)
        return;
    json_t *told = describe(request->id, exchange);
    auto_free char *text = json_dumps(told, JSON_COMPACT);
    json_decref(told);
    operation_promise(exchange->operation);
    buf_printf(&headers, "Request-Id: %s\r\n", exchange->id);
    add_location(&headers, request->id);
    *http_data(connection) = NULL;
    http_reply(connection, 202, "application/json", headers.data, text ? text : "{}",
        strlen(text ? text : "{}"));
}

/* The same for one that waits for the first. */
static void on_waited(struct loop_timer *timer) {
    struct run_request *request = container_of(timer, struct run_request, timer);
    struct exchange *exchange = request->exchange;
    struct operation *operation = operation_of_run(exchange->server, exchange->tenant, request->id);
    const struct exchange *owner = operation ? operation_owner(operation) : NULL;
    auto_buf struct buf headers = BUF_INIT;

    json_t *told = owner ? describe(request->id, owner)
                         : json_pack("{s:s, s:s}", "id", request->id, "state", "queued");
    auto_free char *text = json_dumps(told, JSON_COMPACT);
    json_decref(told);
    if (operation)
        operation_promise(operation);
    add_location(&headers, request->id);
    list_remove(&exchange->of_operation);
    exchange_answer(exchange, 202, text ? text : "{}", headers.data);
}

static void set_timer(
    struct run_request *request, int64_t seconds, void (*then)(struct loop_timer *timer)) {
    if (loop_timer_set(request->exchange->server->loop, &request->timer,
            clock_now_ns() + seconds * 1000000000, then) < 0)
        then(&request->timer);
}

/* The exchange waits for an operation already. */
static void wait_for(struct exchange *exchange, const char *id, int64_t seconds) {
    struct run_request *request = new_request(exchange, id);

    if (request)
        set_timer(request, seconds, on_waited);
}

void run_wait_again(struct exchange *exchange, const char *key) {
    int64_t seconds = command_preference(http_request_of(exchange->connection));

    if (seconds >= 0)
        wait_for(exchange, key, seconds);
}

/* ---- the first request ---- */

static void start_run(struct exchange *exchange, struct rollbox_plan *plan) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct run_request *request = exchange->data;

    if (exchange->is_cancelled) {
        exchange_problem(exchange, 499, "cancelled", "the run was cancelled before it began");
        return;
    }
    struct rollbox_run_options options = command_run_options(request->command);
    options.callback = command_on_end;
    options.userdata = exchange;
    options.priority = admission_priority(exchange);
    if (rollbox_start(exchange->link->engine, plan, &options, &exchange->run, &error) < 0) {
        exchange_fail(exchange, &error);
        return;
    }
    command_free(TAKE_PTR(request->command));
}

/* A key for a client that gave none and will ask for the result. */
static bool make_key(struct exchange *exchange, char key[SERVER_NAME_MAX + 1]) {
    memcpy(key, "run-", 4);
    digits_random(10, key + 4);
    return operation_begin(exchange, key, true) == OPERATION_BEGUN;
}

void handle_run(struct exchange *exchange) {
    const struct http_request *http = http_request_of(exchange->connection);
    int64_t seconds = command_preference(http);
    const char *id = http_header(http, "idempotency-key");
    char made[SERVER_NAME_MAX + 1];

    if (!run_key(exchange, &id))
        return;
    if (seconds >= 0 && !id) {
        if (!make_key(exchange, made))
            return;
        id = made;
    }
    struct run_request *request = new_request(exchange, id);
    if (!request)
        return;
    request->command = command_read(exchange);
    if (!request->command)
        return;
    exchange->gone = command_on_gone;
    if (seconds >= 0)
        set_timer(request, seconds, on_patience);
    policies_prepare(exchange, ADMISSION_RUN, start_run);
}

/* ---- later requests ---- */

static struct operation *find(struct exchange *exchange) {
    struct operation *operation =
        operation_of_run(exchange->server, exchange->tenant, exchange->parameters[0]);

    if (!operation)
        exchange_problem(exchange, 404, "not_found",
            "there is no run \"%.64s\": runs have an id if their request had one, an "
            "Idempotency-Key or \"Prefer: respond-async\", and are kept for a day",
            exchange->parameters[0]);
    return operation;
}

void handle_run_get(struct exchange *exchange) {
    int64_t seconds;

    if (!command_wait_of(exchange, &seconds))
        return;
    struct operation *operation = find(exchange);
    if (operation && !operation_answer(exchange, operation))
        wait_for(exchange, exchange->parameters[0], seconds);
}

/* Ends a run that may not have begun. */
static void cancel(struct exchange *owner) {
    if (owner->run)
        (void)rollbox_kill(owner->run, ROLLBOX_OUTCOME_ERROR);
    else if (admission_position(owner))
        exchange_problem(owner, 499, "cancelled", "the run was cancelled before it began");
    else
        owner->is_cancelled = true;
}

void handle_run_delete(struct exchange *exchange) {
    struct operation *operation = find(exchange);

    if (!operation)
        return;
    struct exchange *owner = operation_owner(operation);
    if (owner) {
        operation_promise(operation);
        cancel(owner);
    } else {
        operation_forget_answer(operation);
    }
    exchange_answer(exchange, 204, "", NULL);
}

/* ---- output ---- */

/* The bytes of a stream of a kept result; of binary ones *ret_decoded is the memory. */
static const char *stream_of(
    const json_t *result, const char *name, size_t *ret_length, char **ret_decoded) {
    char key[24];

    (void)snprintf(key, sizeof key, "%s_base64", name);
    const json_t *text = json_object_get(result, name), *base64 = json_object_get(result, key);
    if (!base64) {
        *ret_length = json_string_length(text);
        return json_string_value(text);
    }
    struct base64_decode_ctx context;
    size_t length = json_string_length(base64), n = BASE64_DECODE_LENGTH(length);
    char *bytes = malloc(n + 1);

    base64_decode_init(&context);
    if (!bytes ||
        !base64_decode_update(&context, &n, (uint8_t *)bytes, length, json_string_value(base64))) {
        free(bytes);
        return NULL;
    }
    *ret_length = n;
    return *ret_decoded = bytes;
}

void handle_run_output(struct exchange *exchange) {
    struct operation *operation;
    struct range range;

    if (!range_read(exchange, &range) || !(operation = find(exchange)))
        return;
    const struct exchange *owner = operation_owner(operation);
    const char *body = operation_body(operation);
    if (owner) {
        exchange_answer_json(exchange, 202, describe(exchange->parameters[0], owner));
        return;
    }
    if (!body) {
        (void)operation_answer(exchange, operation);
        return;
    }
    json_t *answer = json_loads(body, JSON_ALLOW_NUL, NULL);
    const json_t *told = json_object_get(answer, "result");
    auto_free char *decoded = NULL;
    size_t length = 0;
    const char *data =
        stream_of(told ? told : answer, range_stream_name(&range), &length, &decoded);
    if (data)
        range_answer(exchange, &range, data, length);
    else
        exchange_problem(exchange, 404, "not_found", "the run has no output: it did not begin");
    json_decref(answer);
}
