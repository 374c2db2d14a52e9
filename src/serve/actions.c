/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on a sandbox for which librollbox has no form that does not wait: a thread of the pool
 * makes them. Exports take as long as their reader does (relay.h).
 */
#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/events.h"
#include "serve/family.h"
#include "serve/relay.h"

const char *const commit_keys[] = { "path", "force", NULL };
const char *const note_keys[] = { "note", "shell", NULL };

struct action {
    struct pool_job job;
    struct exchange *exchange;
    struct rollbox_sandbox *sandbox;
    struct box *box;
    int (*call)(struct action *action);
    char *text, *json;
    bool force;
    struct rollbox_error error;
    int r;
};

static void work(struct pool_job *job) {
    struct action *action = container_of(job, struct action, job);

    action->r = action->call(action);
}

static void done(struct pool_job *job) {
    struct action *action = container_of(job, struct action, job);
    struct exchange *exchange = action->exchange;

    if (action->r < 0)
        exchange_fail(exchange, &action->error);
    else if (action->json)
        exchange_answer(exchange, 200, action->json, NULL);
    else
        exchange_answer(exchange, 204, "", NULL);
    box_unref(action->box);
    free(action->text);
    free(action->json);
    free(action);
}

/* `text` is copied; NULL: none. */
static void submit(
    struct exchange *exchange, const char *text, bool force, int (*call)(struct action *action)) {
    struct action *action = calloc(1, sizeof *action);

    if (action && text)
        action->text = strdup(text);
    if (!action || (text && !action->text)) {
        free(action);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    action->job = (struct pool_job){ .work = work, .done = done };
    action->exchange = exchange;
    action->box = exchange->box;
    action->box->references++;
    action->sandbox = action->box->handle;
    action->call = call;
    action->force = force;
    pool_submit(exchange->server->pool, &action->job);
}

/* ---- commit, rules of the network ---- */

static int commit(struct action *action) {
    return rollbox_commit(
        action->sandbox, action->text, action->force, &action->json, &action->error);
}

void handle_commit(struct exchange *exchange) {
    const char *path = NULL;
    bool force = false;

    if (exchange_string(exchange, "path", &path) && exchange_boolean(exchange, "force", &force))
        submit(exchange, path, force, commit);
}

static int net_set(struct action *action) {
    return rollbox_net_set(action->sandbox, action->text, &action->error);
}

void handle_net_set(struct exchange *exchange) {
    if (!policies_allowed(exchange, exchange->body))
        return;
    auto_free char *text = json_dumps(exchange->body, JSON_COMPACT);
    submit(exchange, text, false, net_set);
}

static int net_tally(struct action *action) {
    return rollbox_net_tally(action->sandbox, action->text, &action->json, &action->error);
}

void handle_net_tally(struct exchange *exchange) {
    submit(exchange, exchange->parameters[1], false, net_tally);
}

/* ---- notes ---- */

static int note(struct action *action) {
    return rollbox_note(action->sandbox, action->text, &action->error);
}

/* Bytes of {"KEY": base64}; the caller frees them. */
static void *bytes_of(const json_t *row, const char *key, size_t *ret_length) {
    const char *text = json_string_value(json_object_get(row, key));
    size_t length = text ? strlen(text) : 0, n = BASE64_DECODE_LENGTH(length);
    uint8_t *bytes = malloc(n + 1);
    struct base64_decode_ctx context;

    base64_decode_init(&context);
    *ret_length = 0;
    if (bytes && text && base64_decode_update(&context, &n, bytes, length, text) &&
        base64_decode_final(&context))
        *ret_length = n;
    return bytes;
}

static int64_t number_of(const json_t *row, const char *key) {
    return json_integer_value(json_object_get(row, key));
}

static int note_shell(struct action *action) {
    json_t *row = json_loads(action->text, JSON_ALLOW_NUL, NULL);
    const char *outcome = json_string_value(json_object_get(row, "outcome"));
    size_t command_length, output_length, errors_length;
    auto_free void *command = bytes_of(row, "command", &command_length);
    auto_free void *output = bytes_of(row, "stdout", &output_length);
    auto_free void *errors = bytes_of(row, "stderr", &errors_length);
    struct rollbox_shell_note note = { .size = sizeof note,
        .operation_id = json_string_value(json_object_get(row, "id")),
        .command = command,
        .command_length = command_length,
        .timeout_ms = number_of(row, "timeout_ms"),
        .output_limit = (uint64_t)number_of(row, "output_limit"),
        .exit_code = (int)number_of(row, "exit_code"),
        .signal = (int)number_of(row, "signal"),
        .stdout_data = output,
        .stdout_length = output_length,
        .stderr_data = errors,
        .stderr_length = errors_length,
        .stdout_truncated = json_is_true(json_object_get(row, "stdout_truncated")),
        .stderr_truncated = json_is_true(json_object_get(row, "stderr_truncated")),
        .ended = json_is_true(json_object_get(row, "ended")),
        .wall_ms = json_number_value(json_object_get(row, "wall_ms")) };

    for (int i = ROLLBOX_OUTCOME_EXIT; outcome && i <= ROLLBOX_OUTCOME_ERROR; i++)
        if (!strcmp(rollbox_outcome_name((enum rollbox_outcome)i), outcome))
            note.outcome = (enum rollbox_outcome)i;
    int r = rollbox_note_shell(action->sandbox, &note, &action->error);
    json_decref(row);
    return r;
}

void handle_note(struct exchange *exchange) {
    const json_t *body = exchange->body, *value = json_object_get(body, "note");
    const json_t *shell = json_object_get(body, "shell");

    if (!value == !shell) {
        exchange_problem(exchange, 400, "invalid_argument", "give either note or shell");
        return;
    }
    auto_free char *text = json_dumps(value ? value : shell, JSON_COMPACT | JSON_ENCODE_ANY);
    /* Kept in memory after the request: a long one would be a way to fill it. */
    const bool is_short = text && strlen(text) <= FAMILY_NOTE_MAX;
    if (value) {
        family_note(exchange->box, text);
        events_of_box(exchange->box, "sandbox.note",
            is_short ? json_pack("{s:O}", "note", value) : json_pack("{s:n}", "note"));
    }
    submit(exchange, text, false, value ? note : note_shell);
}

/* ---- exports ---- */

static int export_work(struct relay_call *call, int fd, struct rollbox_error *error) {
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return call->is_live ? rollbox_export_live(call->sandbox, call->text, path, error)
                         : rollbox_export(call->sandbox, call->text, path, error);
}

void handle_export(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    auto_buf struct buf snapshot = BUF_INIT, live = BUF_INIT;
    struct relay_call *call = calloc(1, sizeof *call);

    if (!call) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    call->work = export_work;
    if (http_query(request, "snapshot", &snapshot) && snapshot.data)
        call->text = strdup(snapshot.data);
    call->is_live = http_query(request, "live", &live);
    relay_out(exchange, call, "application/octet-stream");
}
