/* SPDX-License-Identifier: Apache-2.0 */
/* The code interpreter of E2B's clients; e2b_code.h has the model. */
#include "serve/e2b_code.h"

#include <e2b_interpreter_source.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/digits.h"
#include "serve/e2b_process_internal.h"

#define CONTEXTS_MAX 64u
#define LINE_MAX_BYTES ((size_t)64 << 20)
#define KEEPALIVE_NS (INT64_C(5) * 1000000000)

const char *const e2b_interpreter = e2b_interpreter_source;
static const char end_line[] = "{\"type\": \"end_of_execution\"}\n";

struct context {
    struct list of_box;
    struct e2b_box *e2b;
    char id[SERVER_NAME_MAX + 1];
    const char *language; /* static */
    char *cwd;
    struct process *process;
    struct list executions; /* the first one runs */
    struct buf in;          /* an incomplete line */
    bool is_busy, is_default;
};

struct execution {
    struct list of_context;
    struct context *context;
    struct exchange *exchange; /* NULL: the client has left */
    char *request;             /* a line for the interpreter; NULL: it has it */
    struct loop_timer keepalive;
    bool has_begun;
};

static const struct process_user context_user;

static void on_keepalive(struct loop_timer *timer);
static void next(struct context *context);

static struct execution *first_of(const struct context *context) {
    return list_empty(&context->executions)
               ? NULL
               : container_of(context->executions.next, struct execution, of_context);
}

/* ---- one piece of code ---- */

static void free_execution(struct execution *execution) {
    loop_timer_clear(execution->context->e2b->server->loop, &execution->keepalive);
    list_remove(&execution->of_context);
    free(execution->request);
    free(execution);
}

/* The answer is complete. Its client may not have read all of it; the next one's can. */
static void finish(struct execution *execution) {
    struct exchange *exchange = TAKE_PTR(execution->exchange);
    struct process *process = execution->context->process;

    free_execution(execution);
    if (process)
        process_go_on(process);
    if (!exchange)
        return;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    exchange->data = NULL;
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_end(connection);
}

static void write_text(struct execution *execution, const char *data, size_t length) {
    struct exchange *exchange = execution->exchange;

    if (!exchange || !exchange->connection)
        return;
    if (!execution->has_begun) {
        execution->has_begun = true;
        http_begin(exchange->connection, 200, "application/x-ndjson", NULL);
    }
    (void)loop_timer_set(
        exchange->server->loop, &execution->keepalive, clock_now_ns() + KEEPALIVE_NS, on_keepalive);
    if (http_write(exchange->connection, data, length) >= HTTP_UNSENT_MAX)
        execution->context->process->is_full = true;
}

static void on_keepalive(struct loop_timer *timer) {
    static const char line[] = "{\"type\": \"keepalive\"}\n";

    write_text(container_of(timer, struct execution, keepalive), line, sizeof line - 1);
}

/* Ends one whose interpreter has died. */
static void fail(struct execution *execution, const char *detail) {
    struct exchange *exchange = execution->exchange;
    auto_buf struct buf text = BUF_INIT;

    if (exchange && !execution->has_begun) {
        execution->exchange = NULL;
        exchange->data = NULL;
        free_execution(execution);
        exchange_problem(exchange, 500, "setup_failed",
            "the interpreter could not be started, or has ended: %s", detail);
        return;
    }
    json_t *line = json_pack("{s:s, s:s, s:s, s:s}", "type", "error", "name", "InterpreterEnded",
        "value", detail, "traceback", detail);
    char *json = json_dumps(line, 0);
    json_decref(line);
    buf_printf(&text, "%s\n%s", json ? json : "{}", end_line);
    free(json);
    if (exchange && exchange->connection)
        (void)http_write(exchange->connection, text.data, text.length);
    finish(execution);
}

static void on_gone(struct exchange *exchange) {
    struct execution *execution = exchange->data;
    struct context *context = execution->context;

    execution->exchange = NULL;
    exchange->data = NULL;
    exchange_done(exchange);
    if (execution->request) {
        free_execution(execution);
    } else if (context->process) {
        process_signal(context->process, SIGINT, ROLLBOX_SCOPE_MAIN);
        process_go_on(context->process);
    }
}

static void on_writable(struct exchange *exchange) {
    const struct execution *execution = exchange->data;

    if (execution && execution->context->process)
        process_go_on(execution->context->process);
}

/* ---- the interpreter's answers ---- */

static void take_line(struct context *context, const char *line, size_t length) {
    struct execution *execution = first_of(context);
    bool is_end = length == sizeof end_line - 1 && !memcmp(line, end_line, length);

    if (execution && !execution->request)
        write_text(execution, line, length);
    if (!is_end)
        return;
    context->is_busy = false;
    if (execution && !execution->request)
        finish(execution);
}

static void on_output(struct process *process, bool is_error, const char *data, size_t length) {
    struct context *context = process_userdata(process);

    /* Its own errors, which its end tells. */
    if (is_error)
        return;
    buf_add(&context->in, data, length);
    size_t at = 0;
    for (const char *end; at < context->in.length &&
                          (end = memchr(context->in.data + at, '\n', context->in.length - at));) {
        size_t n = (size_t)(end - context->in.data) - at + 1;

        take_line(context, context->in.data + at, n);
        at += n;
    }
    context->in.length -= at;
    memmove(context->in.data, context->in.data + at, context->in.length);
    if (context->in.length > LINE_MAX_BYTES)
        process_signal(process, SIGKILL, ROLLBOX_SCOPE_TREE);
    next(context);
}

static void on_ended(struct process *process) {
    struct context *context = process_userdata(process);
    const json_t *end = process->end;
    const char *detail = json_string_value(json_object_get(json_object_get(end, "end"), "status"));

    if (!detail)
        detail = json_string_value(json_object_get(json_object_get(end, "error"), "message"));
    context->process = NULL;
    context->is_busy = false;
    context->in.length = 0;
    for (struct execution *execution; (execution = first_of(context));)
        fail(execution, detail ? detail : "it has ended");
}

static const struct process_user context_user = { .output = on_output, .ended = on_ended };

/* ---- contexts ---- */

static void free_context(struct context *context) {
    struct process *process = TAKE_PTR(context->process);

    for (struct execution *execution; (execution = first_of(context));)
        fail(execution, "its context was removed");
    if (process) {
        process_set_user(process, NULL, NULL);
        process_signal(process, SIGKILL, ROLLBOX_SCOPE_TREE);
    }
    list_remove(&context->of_box);
    context->e2b->n_contexts--;
    buf_done(&context->in);
    free(context->cwd);
    free(context);
}

void e2b_code_end(struct e2b_box *e2b) {
    list_for_each(node, &e2b->contexts) {
        struct context *context = container_of(node, struct context, of_box);
        struct process *process = TAKE_PTR(context->process);

        if (process)
            process_set_user(process, NULL, NULL);
        free_context(context);
    }
}

static struct context *context_new(
    struct e2b_box *e2b, const char *id, const char *language, const char *cwd) {
    struct context *context = calloc(1, sizeof *context);

    if (!context)
        return NULL;
    context->e2b = e2b;
    context->language = language;
    context->cwd = strdup(cwd);
    (void)snprintf(context->id, sizeof context->id, "%s", id);
    list_init(&context->executions);
    list_add_tail(&e2b->contexts, &context->of_box);
    e2b->n_contexts++;
    return context;
}

void e2b_code_copy(const struct e2b_box *from, struct e2b_box *to) {
    for (const struct list *node = from->contexts.next; node != &from->contexts;
         node = node->next) {
        const struct context *of = container_of(node, struct context, of_box);
        struct context *context = context_new(to, of->id, of->language, of->cwd);

        if (!context)
            continue;
        context->is_default = of->is_default;
        context->is_busy = of->is_busy;
        context->process = of->process ? process_find(to, process_pid(of->process)) : NULL;
        if (context->process)
            process_set_user(context->process, &context_user, context);
    }
}

/* The known word for a language; NULL: there is none. */
static const char *language_of(const char *name) {
    static const char *const words[][2] = { { "python", "python" }, { "python3", "python" },
        { "bash", "bash" }, { "sh", "bash" }, { "javascript", "javascript" },
        { "js", "javascript" } };

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (!strcmp(words[i][0], name))
            return words[i][1];
    return NULL;
}

/* Of a request without a context: python, or the body's. NULL: the answer is given. */
static const char *language_in(struct exchange *exchange) {
    const json_t *value = json_object_get(exchange->body, "language");
    const char *language =
        !value || json_is_null(value)
            ? "python"
            : (json_is_string(value) ? language_of(json_string_value(value)) : NULL);

    if (!language)
        exchange_problem(exchange, 400, "feature_missing",
            "this language is not offered; there are python, bash and javascript");
    return language;
}

static struct context *find(struct exchange *exchange, const char *id) {
    struct e2b_box *e2b = e2b_of(exchange);

    if (!e2b)
        return NULL;
    list_for_each(node, &e2b->contexts) {
        struct context *context = container_of(node, struct context, of_box);

        if (!strcmp(context->id, id))
            return context;
    }
    exchange_problem(exchange, 404, "not_found", "there is no context \"%.64s\"", id);
    return NULL;
}

/* NULL: the answer is given. */
static struct context *make(
    struct exchange *exchange, const char *language, const char *cwd, bool is_default) {
    struct e2b_box *e2b = e2b_of(exchange);
    char id[SERVER_NAME_MAX + 1] = "ctx-";
    struct context *context = NULL;

    if (!e2b)
        return NULL;
    digits_random(10, id + 4);
    if (e2b->n_contexts < CONTEXTS_MAX)
        context = context_new(e2b, id, language, cwd && *cwd ? cwd : e2b->home);
    if (context)
        context->is_default = is_default;
    else
        exchange_problem(exchange, 429, "quota_exceeded",
            "a sandbox has at most %u contexts; remove some", CONTEXTS_MAX);
    return context;
}

static struct context *default_context(struct exchange *exchange, const char *language) {
    struct e2b_box *e2b = e2b_of(exchange);

    if (!e2b)
        return NULL;
    list_for_each(node, &e2b->contexts) {
        struct context *context = container_of(node, struct context, of_box);

        if (context->is_default && context->language == language)
            return context;
    }
    return make(exchange, language, NULL, true);
}

/* False: the answer is given. */
static bool start_process(struct exchange *exchange, struct context *context) {
    const char *const argv[] = { E2B_INTERPRETER(context->language), NULL };
    const char *const env[] = { "PYTHONDONTWRITEBYTECODE=1", NULL };
    const struct process_start wanted = { .argv = argv,
        .env = env,
        .cwd = context->cwd,
        .timeout_ms = ROLLBOX_NO_TIMEOUT,
        .has_stdin = true };

    if (!context->process)
        context->process = process_start(exchange, &wanted, json_object(), &context_user, context);
    return context->process != NULL;
}

/* Gives the interpreter its next piece of code. */
static void next(struct context *context) {
    struct execution *execution = first_of(context);

    if (context->is_busy || !execution || !context->process)
        return;
    char *request = TAKE_PTR(execution->request);
    context->is_busy = true;
    ssize_t r = process_write(context->process, request, strlen(request));
    free(request);
    if (r < 0)
        fail(execution, "it reads no more");
}

static char *request_of(const struct exchange *exchange) {
    json_t *env = json_object_get(exchange->body, "env_vars");
    json_t *line = json_pack("{s:O, s:O}", "code", json_object_get(exchange->body, "code"), "env",
        json_is_object(env) ? env : json_object());
    char *text = json_dumps(line, JSON_COMPACT | JSON_ENSURE_ASCII), *request = NULL;

    json_decref(line);
    if (!text || asprintf(&request, "%s\n", text) < 0)
        request = NULL;
    free(text);
    return request;
}

void handle_e2b_execute(struct exchange *exchange) {
    const json_t *id = json_object_get(exchange->body, "context_id");
    struct context *context;
    const char *language;

    if (!json_is_string(json_object_get(exchange->body, "code"))) {
        exchange_problem(exchange, 422, "invalid_argument", "code must be a string");
        return;
    }
    if (json_is_string(id)) {
        context = find(exchange, json_string_value(id));
    } else {
        language = language_in(exchange);
        context = language ? default_context(exchange, language) : NULL;
    }
    if (!context || !start_process(exchange, context))
        return;
    struct execution *execution = calloc(1, sizeof *execution);
    if (execution)
        execution->request = request_of(exchange);
    if (!execution || !execution->request) {
        free(execution);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    execution->context = context;
    execution->exchange = exchange;
    list_add_tail(&context->executions, &execution->of_context);
    exchange->data = execution;
    exchange->gone = on_gone;
    exchange->writable = on_writable;
    next(context);
}

/* ---- requests about contexts ---- */

static json_t *describe(const struct context *context) {
    return json_pack("{s:s, s:s, s:s}", "id", context->id, "language", context->language, "cwd",
        context->cwd ? context->cwd : "");
}

void handle_e2b_context_create(struct exchange *exchange) {
    const char *language = language_in(exchange);

    if (!language)
        return;
    const char *cwd = json_string_value(json_object_get(exchange->body, "cwd"));
    if (!cwd)
        cwd = "";
    if (strlen(cwd) >= PATH_MAX) {
        exchange_problem(exchange, 400, "invalid_argument", "cwd is too long for a path");
        return;
    }
    auto_free char *path = e2b_path(exchange, cwd);
    const struct context *context = path ? make(exchange, language, path, false) : NULL;

    if (context)
        exchange_answer_json(exchange, 200, describe(context));
}

void handle_e2b_contexts(struct exchange *exchange) {
    struct e2b_box *e2b = e2b_of(exchange);

    if (!e2b)
        return;
    json_t *rows = json_array();
    list_for_each(node, &e2b->contexts)
        json_array_append_new(rows, describe(container_of(node, struct context, of_box)));
    exchange_answer_json(exchange, 200, rows);
}

void handle_e2b_context_delete(struct exchange *exchange) {
    struct context *context = find(exchange, exchange->parameters[0]);

    if (!context)
        return;
    free_context(context);
    exchange_answer(exchange, 204, "", NULL);
}

void handle_e2b_context_restart(struct exchange *exchange) {
    struct context *context = find(exchange, exchange->parameters[0]);

    if (!context)
        return;
    for (struct execution *execution; (execution = first_of(context));)
        fail(execution, "its context was restarted");
    struct process *process = TAKE_PTR(context->process);
    context->is_busy = false;
    context->in.length = 0;
    if (process) {
        process_set_user(process, NULL, NULL);
        process_signal(process, SIGKILL, ROLLBOX_SCOPE_TREE);
    }
    exchange_answer(exchange, 200, "{}", NULL);
}
