/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges: members of their bodies, answers, problems. server.h has the model. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "policy/read.h"
#include "serve/engine_link.h"
#include "serve/metrics.h"
#include "serve/server.h"

#define JSON_TYPE "application/json"
#define PROBLEM_TYPE "application/problem+json"

/* ---- problems ---- */

int exchange_status_of(enum rollbox_error_code code) {
    switch (code) {
#define CASE(name, number, http, python, text)                                                     \
    case ROLLBOX_ERR_##name:                                                                       \
        return http;
        ROLLBOX_ERRORS(CASE)
#undef CASE
    case ROLLBOX_OK:
        break;
    }
    return 500;
}

json_t *exchange_problem_json(
    int status, const char *code, const char *stage, const char *detail, const char *id) {
    auto_buf struct buf clean = BUF_INIT;

    utf8_replace(&clean, detail, strlen(detail));
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:b, s:s}", "type", "about:blank", "title",
        http_reason(status), "status", status, "detail", clean.data ? clean.data : "", "code", code,
        "stage", stage, "retryable", status == 429 || status == 502 || status == 503, "request_id",
        id);
}

/* ---- the end of an exchange ---- */

void exchange_done(struct exchange *exchange) {
    metrics_request(exchange);
    if (exchange->connection)
        *http_data(exchange->connection) = NULL;
    if (exchange->release)
        exchange->release(exchange);
    list_remove(&exchange->of_operation);
    list_remove(&exchange->of_engine);
    if (exchange->tokened.of_server.next)
        list_remove(&exchange->tokened.of_server);
    if (exchange->operation)
        exchange->answered(exchange->operation, 499, PROBLEM_TYPE, "",
            "{\"status\":499,\"code\":\"cancelled\",\"detail\":\"the client has left\"}");
    exchange->run = rollbox_run_free(exchange->run);
    if (exchange->free_data)
        exchange->free_data(exchange->data);
    if (exchange->may_wake)
        exchange->box->n_wakers--;
    box_unref(exchange->box);
    engine_link_unref(exchange->link);
    json_decref(exchange->body);
    for (size_t i = 0; i < EXCHANGE_PARAMETERS; i++)
        free(exchange->parameters[i]);
    exchange->server->n_exchanges--;
    free(exchange);
}

/* Has the exchange's translator make another answer. NULL: the exchange is not to be answered. */
static char *translated(struct exchange *exchange, int *status, const char *body) {
    json_t *answer = exchange->translate(exchange, status, json_loads(body, JSON_ALLOW_NUL, NULL));
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

    json_decref(answer);
    if (!*status) {
        free(text);
        return NULL;
    }
    return text ? text : strdup("");
}

static void send_answer(struct exchange *exchange, int status, const char *type,
    const char *headers, const char *body) {
    auto_free char *other = exchange->translate ? translated(exchange, &status, body) : NULL;
    if (exchange->translate && !other)
        return;
    if (other) {
        type = JSON_TYPE;
        body = other;
    }
    struct http_connection *connection = exchange->connection;
    struct operation *operation = TAKE_PTR(exchange->operation);
    exchange_answered *answered = exchange->answered;
    auto_buf struct buf lines = BUF_INIT;

    buf_printf(&lines, "Request-Id: %s\r\n%s", exchange->id, headers ? headers : "");
    exchange->seen.status = status;
    /* The connection may take its next request within http_reply. */
    exchange->connection = NULL;
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (operation)
        answered(operation, status, type, headers, body);
    if (connection)
        http_reply(connection, status, type, lines.data, body, strlen(body));
}

void exchange_answer(struct exchange *exchange, int status, const char *json, const char *headers) {
    send_answer(exchange, status, JSON_TYPE, headers, json);
}

void exchange_answer_json(struct exchange *exchange, int status, json_t *take_json) {
    auto_free char *text = json_dumps(take_json, JSON_COMPACT | JSON_REAL_PRECISION(15));

    json_decref(take_json);
    if (text)
        exchange_answer(exchange, status, text, NULL);
    else
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
}

void exchange_bytes(struct exchange *exchange, const void *data, size_t length) {
    exchange_text(exchange, "application/octet-stream", data, length);
}

void exchange_text(struct exchange *exchange, const char *type, const void *data, size_t length) {
    struct http_connection *connection = exchange->connection;
    auto_buf struct buf lines = BUF_INIT;

    buf_printf(&lines, "Request-Id: %s\r\n", exchange->id);
    if (connection) {
        *http_data(connection) = NULL;
        exchange->connection = NULL;
        http_reply(connection, 200, type, lines.data, data, length);
    }
    exchange_done(exchange);
}

static void send_problem(
    struct exchange *exchange, json_t *take_problem, int status, const char *headers) {
    metrics_refused(exchange->tenant, json_string_value(json_object_get(take_problem, "code")));
    if (exchange->refused) {
        exchange->refused(exchange, take_problem);
        return;
    }
    auto_free char *text = json_dumps(take_problem, JSON_COMPACT);

    json_decref(take_problem);
    send_answer(exchange, status, PROBLEM_TYPE, headers, text ? text : "{}");
}

void exchange_no_method(struct exchange *exchange, const char *allowed) {
    auto_buf struct buf line = BUF_INIT;

    buf_printf(&line, "Allow: %s\r\n", allowed);
    send_problem(exchange,
        exchange_problem_json(405, "request_invalid", "request",
            "the path has no such method; GET /v1/openapi.json lists them", exchange->id),
        405, line.data);
}

void exchange_problem(
    struct exchange *exchange, int status, const char *code, const char *format, ...) {
    char detail[1200];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(detail, sizeof detail, format, list);
    va_end(list);
    send_problem(exchange, exchange_problem_json(status, code, "request", detail, exchange->id),
        status, status == 503 ? "Retry-After: 1\r\n" : NULL);
}

/* The problem of an error of librollbox. It contains the errno, which Python's callers compare. */
static json_t *error_problem(const struct exchange *exchange, const struct rollbox_error *error) {
    json_t *problem = exchange_problem_json(exchange_status_of(error->code),
        rollbox_error_name(error->code), error->stage, error->message, exchange->id);

    if (error->error_number)
        json_object_set_new(problem, "errno", json_integer(error->error_number));
    return problem;
}

void exchange_fail(struct exchange *exchange, const struct rollbox_error *error) {
    int status = exchange_status_of(error->code);

    send_problem(exchange, error_problem(exchange, error), status,
        status == 503 ? "Retry-After: 1\r\n" : NULL);
}

void exchange_over(struct exchange *exchange, const struct quota_verdict *verdict) {
    const char *name = quota_name(verdict->quota);
    json_t *current = quota_to_json(verdict->quota, verdict->current);
    json_t *maximum = quota_to_json(verdict->quota, verdict->maximum);
    auto_free char *maximum_text = json_dumps(maximum, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    auto_free char *current_text = json_dumps(current, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    const char *most = maximum_text ? maximum_text : "?";
    char detail[240], retry[40] = "";

    if (verdict->quota == QUOTA_RATE)
        (void)snprintf(detail, sizeof detail,
            "the quota \"rate\" of the tenant is %s starts a second; try again later", most);
    else if (verdict->retry_s < 0)
        (void)snprintf(detail, sizeof detail,
            "the quota \"%s\" of the tenant is %s, and this request alone needs more; lower the "
            "limits of its policy, or its number of forks",
            name, most);
    else
        (void)snprintf(detail, sizeof detail,
            "the quota \"%s\" of the tenant is %s, and the tenant has %s; end some, or try again "
            "later",
            name, most, current_text ? current_text : "?");
    json_t *problem = exchange_problem_json(429, "quota_exceeded", "quota", detail, exchange->id);
    json_object_set_new(problem, "limit", json_string(name));
    json_object_set_new(problem, "current", current);
    json_object_set_new(problem, "maximum", maximum);
    json_object_set_new(problem, "retryable", json_boolean(verdict->retry_s >= 0));
    if (verdict->retry_s >= 0)
        (void)snprintf(retry, sizeof retry, "Retry-After: %lld\r\n", (long long)verdict->retry_s);
    send_problem(exchange, problem, 429, retry);
}

void exchange_full(struct exchange *exchange, unsigned current, unsigned maximum) {
    json_t *problem = exchange_problem_json(503, "queue_full", "quota",
        "the server is full: too many requests of all tenants wait; try again later", exchange->id);

    json_object_set_new(problem, "limit", json_string("queue"));
    json_object_set_new(problem, "current", json_integer(current));
    json_object_set_new(problem, "maximum", json_integer(maximum));
    send_problem(exchange, problem, 503, "Retry-After: 1\r\n");
}

/* A run's answer also has the time of its wait, in the server's queue and in the engine's. */
static void answer_result(
    struct exchange *exchange, const struct rollbox_result *result, const char *json) {
    const struct turn *turn = &exchange->turn;
    auto_buf struct buf text = BUF_INIT;

    if (!turn->is_run || !turn->started_ns) {
        exchange_answer(exchange, 200, json, NULL);
        return;
    }
    double waited_ms = (double)(turn->started_ns - turn->item.since_ns) / 1e6;
    buf_add(&text, json, strlen(json) - 1); /* without its brace */
    buf_printf(&text, ",\"queue_ms\":%.3f}", waited_ms + result->queue_ms);
    if (buf_failed(&text))
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    else
        exchange_answer(exchange, 200, text.data, NULL);
}

void exchange_result(
    struct exchange *exchange, const struct rollbox_result *result, const char *id) {
    auto_free char *json = NULL;
    struct rollbox_error error = result->error;

    if (rollbox_result_json(result, id, &json) < 0) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    if (result->outcome != ROLLBOX_OUTCOME_ERROR) {
        answer_result(exchange, result, json);
        return;
    }
    int status = exchange_status_of(error.code);
    json_t *problem = error_problem(exchange, &error);
    json_object_set_new(problem, "result", json_loads(json, 0, NULL));
    send_problem(exchange, problem, status, status == 503 ? "Retry-After: 1\r\n" : NULL);
}

/* ---- members of a body ---- */

static bool has_word(const char *const *words, const char *word) {
    for (; *words; words++)
        if (!strcmp(*words, word))
            return true;
    return false;
}

void exchange_unknown(struct exchange *exchange, const char *code, const char *kind,
    const char *word, const char *meant) {
    char hint[128] = "";

    if (meant)
        (void)snprintf(hint, sizeof hint, ": did you mean \"%.100s\"?", meant);
    exchange_problem(exchange, 400, code, "unknown %s \"%.100s\"%s", kind, word, hint);
}

static const char *nearest_word(const char *const *words, const char *word) {
    size_t n = 0;

    while (words[n])
        n++;
    return read_nearest(word, words, n);
}

bool exchange_knows(
    struct exchange *exchange, const char *const *keys, const char *const *more_keys) {
    const char *key;
    json_t *value;

    json_object_foreach(exchange->body, key, value) {
        if (!has_word(keys, key) && !has_word(more_keys, key)) {
            const char *meant = nearest_word(keys, key);

            exchange_unknown(exchange, "request_invalid", "member", key,
                meant ? meant : nearest_word(more_keys, key));
            return false;
        }
    }
    return true;
}

bool exchange_string(struct exchange *exchange, const char *key, const char **ret) {
    const json_t *value = json_object_get(exchange->body, key);

    if (!value)
        return true;
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        exchange_problem(exchange, 400, "invalid_argument", "%s must be a string without NUL", key);
        return false;
    }
    *ret = json_string_value(value);
    return true;
}

bool exchange_integer(
    struct exchange *exchange, const char *key, int64_t least, int64_t most, int64_t *ret) {
    const json_t *value = json_object_get(exchange->body, key);

    if (!value)
        return true;
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most) {
        exchange_problem(exchange, 400, "invalid_argument",
            "%s must be a whole number from %lld to %lld", key, (long long)least, (long long)most);
        return false;
    }
    *ret = json_integer_value(value);
    return true;
}

bool exchange_boolean(struct exchange *exchange, const char *key, bool *ret) {
    const json_t *value = json_object_get(exchange->body, key);

    if (!value)
        return true;
    if (!json_is_boolean(value)) {
        exchange_problem(exchange, 400, "invalid_argument", "%s must be true or false", key);
        return false;
    }
    *ret = json_is_true(value);
    return true;
}
