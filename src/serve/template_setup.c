/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/templates: a sandbox is made, or forked, by an inner request; its set-up runs there; a
 * snapshot is taken, and the processes are killed. warm_templates.h has the model. A template whose
 * request fails, or whose client leaves, leaves no sandbox.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <guest_source.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/inner_post.h"
#include "serve/warm_templates.h"

#define SETUP_MS INT64_C(600000)
#define SETUP_MAX_MS (INT64_C(86400) * 1000)
#define FOR_EVER_MS INT64_C(1000000000000)
#define CODE_MAX ((size_t)60 << 10) /* as a message, an empty pipe has room for it */
#define ANSWER_MAX ((size_t)1 << 20)
#define TOLD_MAX 2000u /* of what a failed set-up wrote */

const char *const template_keys[] = { "name", "policy", "code", "argv", "env", "cwd", "files",
    "timeout_ms", "labels", "lease", "sandbox", "snapshot", NULL };
static const char *const exec_parts[] = { "argv", "env", "cwd", "files" };
static const char *const create_parts[] = { "policy", "labels", "lease" };

struct setup {
    struct exchange *exchange; /* NULL once the client is gone, while a request is under way */
    struct server *server;
    struct tenant *tenant;
    struct http_connection *inner; /* NULL: none */
    void (*then)(struct setup *setup, int status, const struct buf *body);
    struct box *box; /* referenced */
    char name[SERVER_NAME_MAX + 1];
    bool is_made;
    int64_t timeout_ms;
    /* Of Python code: its interpreter. */
    struct rollbox_run *run;
    struct loop_source source;
    struct loop_timer timer;
    struct buf answer;
    int control, results;
};

static void on_command(struct setup *setup, int status, const struct buf *body);

static void free_setup(void *data) {
    struct setup *setup = data;

    /* A command ends with its client, and does not run until its time-out. */
    if (setup->inner && setup->then == on_command)
        http_inner_cancel(TAKE_PTR(setup->inner));

    loop_timer_clear(setup->server->loop, &setup->timer);
    if (setup->results >= 0)
        loop_remove(setup->server->loop, &setup->source);
    close_fd(&setup->results);
    close_fd(&setup->control);
    setup->run = rollbox_run_free(setup->run);
    if (setup->inner) { /* a sandbox that is being made must be ended */
        setup->exchange = NULL;
        return;
    }
    if (setup->box && !setup->is_made && !setup->box->is_gone)
        box_close(setup->server, setup->box);
    box_unref(setup->box);
    buf_done(&setup->answer);
    free(setup);
}

static void on_gone(struct exchange *exchange) {
    if (!exchange->operation)
        exchange_done(exchange);
}

/* ---- inner requests ---- */

static void take_box(struct setup *setup, const struct buf *body) {
    json_t *answer = inner_answer(body);
    const json_t *forked = json_array_get(json_object_get(answer, "sandboxes"), 0);
    const char *name = json_string_value(forked ? forked : json_object_get(answer, "name"));

    setup->box = name ? box_find(setup->server, setup->tenant, name) : NULL;
    if (setup->box)
        setup->box->references++;
    json_decref(answer);
}

static void on_inner(void *userdata, int status, const char *type, struct buf *body) {
    struct setup *setup = userdata;

    (void)type;
    setup->inner = NULL;
    if (!setup->box && status == 201)
        take_box(setup, body);
    if (setup->exchange)
        setup->then(setup, status, body);
    else
        free_setup(setup);
}

static void ask(struct setup *setup, const char *box, const char *rest, json_t *take_body,
    void (*then)(struct setup *setup, int status, const struct buf *body)) {
    setup->then = then;
    setup->inner = inner_post(setup->exchange, box, rest, take_body, on_inner, setup);
}

static void pass_on(struct setup *setup, int status, const struct buf *body) {
    inner_pass_on(setup->exchange, "template", status, body);
}

/* `output` has the end of what the set-up wrote; NULL: nothing. */
static void fail(struct setup *setup, const char *why, const char *output, size_t length) {
    size_t cut = length > TOLD_MAX ? length - TOLD_MAX : 0;
    auto_buf struct buf told = BUF_INIT;

    if (output && length)
        buf_printf(&told, ": %.*s", (int)(length - cut), output + cut);
    exchange_problem(setup->exchange, 422, "template_failed",
        "the set-up of the template %s, so there is no template%s", why,
        told.data ? told.data : "");
}

/* ---- the snapshot ---- */

static void on_killed(struct setup *setup, int status, const struct buf *body) {
    struct box *box = setup->box;

    (void)status;
    (void)body; /* what is left of the set-up ends with the template */
    if (box->is_gone) {
        exchange_problem(
            setup->exchange, 410, "not_found", "the template has ended with its engine");
        return;
    }
    box->is_template = setup->is_made = true;
    exchange_answer_json(setup->exchange, 201, warm_template_row(box));
}

static void on_snapshot(struct setup *setup, int status, const struct buf *body) {
    if (status == 201)
        ask(setup, setup->box->name, "/signal", json_pack("{s:s}", "signal", "KILL"), on_killed);
    else
        pass_on(setup, status, body);
}

static void take_snapshot(struct setup *setup) {
    ask(setup, setup->box->name, "/snapshots",
        json_pack("{s:s, s:s}", "name", WARM_TEMPLATE_SNAPSHOT, "processes", "keep"), on_snapshot);
}

/* ---- a command ---- */

static void on_command(struct setup *setup, int status, const struct buf *body) {
    json_t *result = inner_answer(body);
    const char *outcome = json_string_value(json_object_get(result, "outcome"));
    const json_t *text = json_object_get(result, "stderr");

    if (status != 200)
        pass_on(setup, status, body);
    else if (outcome && !strcmp(outcome, "exit") &&
             !json_integer_value(json_object_get(result, "exit_code")))
        take_snapshot(setup);
    else
        fail(setup, "failed", json_string_value(text), json_string_length(text));
    json_decref(result);
}

static void run_command(struct setup *setup) {
    json_t *exec = json_pack("{s:I}", "timeout_ms", (json_int_t)setup->timeout_ms);

    for (size_t i = 0; i < ARRAY_SIZE(exec_parts); i++) {
        json_t *value = json_object_get(setup->exchange->body, exec_parts[i]);

        if (value)
            json_object_set(exec, exec_parts[i], value);
    }
    ask(setup, setup->box->name, "/execs", exec, on_command);
}

/* ---- Python code ---- */

/* The length of the interpreter's message; 0: it has not come. */
static size_t message_length(const struct setup *setup) {
    uint64_t length = 0;

    if (setup->answer.length >= sizeof length)
        memcpy(&length, setup->answer.data, sizeof length);
    return be64toh(length);
}

static bool has_message(const struct setup *setup) {
    size_t length = message_length(setup);

    return length && (length > ANSWER_MAX || setup->answer.length - 8 >= length);
}

static void stop_reading(struct setup *setup) {
    loop_timer_clear(setup->server->loop, &setup->timer);
    if (setup->results >= 0)
        loop_remove(setup->server->loop, &setup->source);
    close_fd(&setup->results);
}

/* The interpreter waits, has told what its code raised, or has ended. */
static void conclude(struct setup *setup) {
    size_t length = message_length(setup);
    const struct rollbox_result *result;

    stop_reading(setup);
    json_t *message = length && length <= ANSWER_MAX && setup->answer.length - 8 >= length
                          ? json_loadb(setup->answer.data + 8, length, 0, NULL)
                          : NULL;
    const json_t *raised = json_object_get(json_object_get(message, "raised"), "traceback");
    if (json_is_true(json_object_get(message, "ready")))
        take_snapshot(setup);
    else if (raised)
        fail(setup, "raised an exception", json_string_value(raised), json_string_length(raised));
    else if (rollbox_wait(setup->run, 0, &result) < 0)
        fail(setup, "ended early", NULL, 0);
    else if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        struct rollbox_error error = result->error;

        exchange_fail(setup->exchange, &error);
    } else
        fail(setup, "ended early", result->stderr_data, result->stderr_length);
    json_decref(message);
}

/* False: no more will come. */
static bool read_some(struct setup *setup) {
    char piece[4096];
    ssize_t n;

    while (!has_message(setup) && (n = read(setup->results, piece, sizeof piece)) != 0) {
        if (n > 0)
            buf_add(&setup->answer, piece, (size_t)n);
        else if (errno != EINTR)
            return errno == EAGAIN;
    }
    return has_message(setup);
}

static void on_results(struct loop_source *source, uint32_t events) {
    struct setup *setup = container_of(source, struct setup, source);

    (void)events;
    if (!read_some(setup) && setup->results >= 0) {
        loop_remove(setup->server->loop, source); /* on_ended comes */
        close_fd(&setup->results);
    } else if (has_message(setup)) {
        conclude(setup);
    }
}

static void on_ended(struct rollbox_run *run, void *userdata) {
    struct setup *setup = userdata;

    (void)run;
    /* After the snapshot it was killed. */
    if (setup->inner || setup->is_made || !setup->exchange)
        return;
    if (setup->results >= 0)
        (void)read_some(setup);
    conclude(setup);
}

static void on_late(struct loop_timer *timer) {
    struct setup *setup = container_of(timer, struct setup, timer);

    fail(setup, "did not end within its timeout_ms", NULL, 0);
}

/* Starts the interpreter with these ends of its pipes: 0 or -errno, or an answer is given (1). */
static int start(struct setup *setup, int input, const int extra[2]) {
    const char *const argv[] = { "python3", "-c", guest_source, NULL };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_exec_options exec = { .size = sizeof exec,
        .argv = argv,
        .timeout_ms = FOR_EVER_MS,
        .output_limit = -1,
        .operation_id = "python",
        .input_fd = input,
        .stream_fds = { -1, -1 },
        .extra_fds = extra,
        .n_extra_fds = 2,
        .callback = on_ended,
        .userdata = setup };

    int r = loop_add(setup->server->loop, &setup->source, setup->results, EPOLLIN, on_results);
    if (r >= 0)
        r = loop_timer_set(setup->server->loop, &setup->timer,
            clock_now_ns() + setup->timeout_ms * 1000000, on_late);
    if (r < 0)
        return r;
    if (rollbox_exec(setup->box->handle, &exec, &setup->run, &error) >= 0)
        return 0;
    exchange_fail(setup->exchange, &error);
    return 1;
}

/* The code as a message to the interpreter; its pipe is empty, and has room. */
static bool send_code(struct setup *setup) {
    const json_t *code = json_object_get(setup->exchange->body, "code");
    json_t *message = json_pack("{s:s}", "code", code ? json_string_value(code) : "");
    auto_free char *text = json_dumps(message, JSON_COMPACT);
    auto_buf struct buf bytes = BUF_INIT;
    size_t length = text ? strlen(text) : 0;

    json_decref(message);
    if (!text || length > CODE_MAX) {
        exchange_problem(setup->exchange, text ? 413 : 503,
            text ? "too_large" : "resource_exhausted",
            "code has at most %zu KiB; make the template from a sandbox with more in its files",
            CODE_MAX >> 10);
        return false;
    }
    const uint64_t prefix = htobe64(length);
    buf_add(&bytes, &prefix, sizeof prefix);
    buf_add(&bytes, text, length);
    if (!buf_failed(&bytes) &&
        write(setup->control, bytes.data, bytes.length) == (ssize_t)bytes.length)
        return true;
    exchange_problem(
        setup->exchange, 503, "resource_exhausted", "the server has no room for a stream");
    return false;
}

static int make_pipe(int *ret_read, int *ret_write) {
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *ret_read = ends[0];
    *ret_write = ends[1];
    return 0;
}

static void run_python(struct setup *setup) {
    auto_close int theirs = -EBADF, other = -EBADF, standard = -EBADF, unused = -EBADF;

    if (make_pipe(&theirs, &setup->control) < 0 || make_pipe(&setup->results, &other) < 0 ||
        make_pipe(&standard, &unused) < 0) {
        exchange_problem(
            setup->exchange, 503, "resource_exhausted", "the server has no room for a stream");
        return;
    }
    (void)fcntl(setup->control, F_SETFL, O_NONBLOCK);
    (void)fcntl(setup->results, F_SETFL, O_NONBLOCK);
    if (!send_code(setup))
        return;
    const int extra[2] = { theirs, other };
    int r = start(setup, standard, extra);
    if (r < 0)
        exchange_problem(
            setup->exchange, 503, "resource_exhausted", "the server has no room for a stream");
}

/* ---- the sandbox ---- */

static void on_created(struct setup *setup, int status, const struct buf *body) {
    if (!setup->box)
        pass_on(setup, status, body);
    else if (json_object_get(setup->exchange->body, "argv"))
        run_command(setup);
    else
        run_python(setup);
}

static void box_name_of(const struct setup *setup, char name[2 * (SERVER_NAME_MAX + 1)]) {
    (void)snprintf(name, 2 * (SERVER_NAME_MAX + 1), WARM_TEMPLATE_PREFIX "%s", setup->name);
}

static void on_forked(struct setup *setup, int status, const struct buf *body) {
    json_t *labels = json_object_get(setup->exchange->body, "labels");
    char name[2 * (SERVER_NAME_MAX + 1)];

    if (!setup->box) {
        pass_on(setup, status, body);
        return;
    }
    box_name_of(setup, name);
    if (!box_take_name(setup->server, setup->box, name)) {
        exchange_problem(
            setup->exchange, 409, "conflict", "there is a sandbox \"%s\" already", name);
        return;
    }
    if (labels) {
        json_decref(setup->box->labels);
        setup->box->labels = json_incref(labels);
    }
    take_snapshot(setup);
}

static void fork_sandbox(struct setup *setup, const char *sandbox) {
    const char *snapshot = NULL;

    if (!exchange_string(setup->exchange, "snapshot", &snapshot))
        return;
    if (!box_name_ok(sandbox)) {
        exchange_problem(
            setup->exchange, 404, "not_found", "there is no sandbox \"%.64s\"", sandbox);
        return;
    }
    json_t *body = json_pack("{s:i, s:s}", "n", 1, "processes", "keep");
    if (snapshot)
        json_object_set_new(body, "snapshot", json_string(snapshot));
    ask(setup, sandbox, "/fork", body, on_forked);
}

static void create_sandbox(struct setup *setup) {
    char name[2 * (SERVER_NAME_MAX + 1)];

    box_name_of(setup, name);
    json_t *body = json_pack("{s:s}", "name", name);
    for (size_t i = 0; i < ARRAY_SIZE(create_parts); i++) {
        json_t *value = json_object_get(setup->exchange->body, create_parts[i]);

        if (value)
            json_object_set(body, create_parts[i], value);
    }
    ask(setup, "", "", body, on_created);
}

/* ---- the request ---- */

static const char *fault_of(const json_t *body, const char *name, const char *sandbox) {
    const bool has_code = json_object_get(body, "code"), has_argv = json_object_get(body, "argv");
    const json_t *labels = json_object_get(body, "labels");

    if (!name || !box_name_ok(name) ||
        strlen(name) + strlen(WARM_TEMPLATE_PREFIX) > SERVER_NAME_MAX)
        return "name must be 1 to 38 of A-Z a-z 0-9 _ . - and not begin with . or -";
    if (labels && !json_is_object(labels))
        return "labels must be an object";
    if (has_code + has_argv + (sandbox != NULL) > 1)
        return "a template has one of code, argv and sandbox";
    if (json_object_get(body, "snapshot") && !sandbox)
        return "snapshot is one of a sandbox: sandbox is missing";
    if (sandbox && (json_object_get(body, "policy") || json_object_get(body, "lease")))
        return "policy and lease are those of the sandbox";
    for (size_t i = 1; i < ARRAY_SIZE(exec_parts); i++)
        if (json_object_get(body, exec_parts[i]) && !has_argv)
            return "env, cwd and files need argv; with code, the policy has env and cwd";
    return NULL;
}

void handle_template_create(struct exchange *exchange) {
    const char *name = NULL, *sandbox = NULL, *code = NULL;
    int64_t timeout_ms = SETUP_MS;

    if (!exchange_string(exchange, "name", &name) ||
        !exchange_string(exchange, "sandbox", &sandbox) ||
        !exchange_string(exchange, "code", &code) ||
        !exchange_integer(exchange, "timeout_ms", 1, SETUP_MAX_MS, &timeout_ms))
        return;
    const char *fault = fault_of(exchange->body, name, sandbox);
    if (fault) {
        exchange_problem(exchange, 400, "invalid_argument", "%s", fault);
        return;
    }
    struct setup *setup = calloc(1, sizeof *setup);
    if (!setup) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    setup->exchange = exchange;
    setup->server = exchange->server;
    setup->tenant = exchange->tenant;
    setup->timeout_ms = timeout_ms;
    setup->control = setup->results = -EBADF;
    (void)snprintf(setup->name, sizeof setup->name, "%s", name);
    exchange->data = setup;
    exchange->free_data = free_setup;
    exchange->gone = on_gone;
    if (sandbox)
        fork_sandbox(setup, sandbox);
    else
        create_sandbox(setup);
}
