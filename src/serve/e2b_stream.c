/* SPDX-License-Identifier: Apache-2.0 */
/* The requests about processes, and the streams of those that follow one; e2b_process.h has the
 * model. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "serve/ceilings.h"
#include "serve/command.h"
#include "serve/connect.h"
#include "serve/e2b_process_internal.h"
#include "serve/e2b_stream.h"
#include "serve/late_call.h"

#define STREAM_TYPE "application/connect+json"
#define KEEPALIVE_NS (INT64_C(40) * 1000000000)
#define DEADLINE_MAX_MS INT64_C(100000000000)

/* A client that follows a process. */
struct follower {
    struct list of_process;
    struct exchange *exchange;
    struct process *process; /* NULL: it has ended */
    struct loop_timer keepalive, deadline;
    bool is_owner; /* it started the process, which ends at its deadline */
    bool is_full;
};

static struct loop *loop_of(const struct follower *follower) {
    return follower->exchange->server->loop;
}

static void on_keepalive(struct loop_timer *timer);

static void free_follower(void *data) {
    struct follower *follower = data;

    loop_timer_clear(loop_of(follower), &follower->keepalive);
    loop_timer_clear(loop_of(follower), &follower->deadline);
    list_remove(&follower->of_process);
    free(follower);
}

static size_t send_message(struct follower *follower, unsigned flags, json_t *take_message) {
    auto_buf struct buf frame = BUF_INIT;

    connect_add(&frame, flags, take_message);
    (void)loop_timer_set(
        loop_of(follower), &follower->keepalive, clock_now_ns() + KEEPALIVE_NS, on_keepalive);
    if (buf_failed(&frame) || !follower->exchange->connection)
        return 0;
    return http_write(follower->exchange->connection, frame.data, frame.length);
}

static void on_keepalive(struct loop_timer *timer) {
    struct follower *follower = container_of(timer, struct follower, keepalive);

    (void)send_message(follower, 0, json_pack("{s:{s:{}}}", "event", "keepalive"));
}

/* The last message, and the end of the answer. */
static void finish(struct follower *follower, json_t *take_error) {
    struct exchange *exchange = follower->exchange;
    json_t *last = take_error ? json_pack("{s:o}", "error", take_error) : json_object();

    (void)send_message(follower, CONNECT_END, last);
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_end(connection);
}

static bool streams_output(
    struct process *process, bool is_error, const char *data, size_t length) {
    const char *output = is_error ? "stderr" : "stdout";
    const char *name = process->is_terminal ? "pty" : output;
    auto_buf struct buf text = BUF_INIT;
    bool is_full = false;

    if (list_empty(&process->streams))
        return false;
    base64_encode(&text, data, length);
    if (buf_failed(&text))
        return false;
    list_for_each(node, &process->streams) {
        struct follower *follower = container_of(node, struct follower, of_process);

        follower->is_full =
            send_message(follower, 0,
                json_pack("{s:{s:{s:s}}}", "event", "data", name, text.data)) >= HTTP_UNSENT_MAX;
        is_full = is_full || follower->is_full;
    }
    return is_full;
}

static void streams_end(struct process *process) {
    const json_t *end = process->end;
    const json_t *error = json_object_get(end, "error");

    list_for_each(node, &process->writers) {
        struct exchange *exchange = container_of(node, struct exchange, of_engine);

        list_remove(&exchange->of_engine);
        exchange_problem(exchange, 404, "not_found", "the process has ended");
    }
    list_for_each(node, &process->streams) {
        struct follower *follower = container_of(node, struct follower, of_process);

        list_remove(&follower->of_process);
        follower->process = NULL;
        if (!end)
            continue;
        if (!error)
            (void)send_message(follower, 0, json_pack("{s:O}", "event", end));
        finish(follower, error ? json_incref((json_t *)(uintptr_t)error) : NULL);
    }
}

const struct process_followers e2b_streams = { .output = streams_output, .ended = streams_end };

/* A problem as the only message of an answer that is a stream. */
static void on_refused(struct exchange *exchange, json_t *take_problem) {
    auto_buf struct buf frame = BUF_INIT;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    int status = 400;

    json_t *error = e2b_connect_answer(exchange, &status, take_problem);
    connect_add(&frame, CONNECT_END, json_pack("{s:o}", "error", error));
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_reply(connection, 200, STREAM_TYPE, NULL, frame.data, frame.length);
}

/* ---- following ---- */

static void go_on(struct process *process) {
    for (const struct list *node = process->streams.next; node != &process->streams;
         node = node->next)
        if (container_of(node, struct follower, of_process)->is_full)
            return;
    process_go_on(process);
}

static void on_writable(struct exchange *exchange) {
    struct follower *follower = exchange->data;

    follower->is_full = false;
    if (follower->process)
        go_on(follower->process);
}

/* The process lives on. */
static void on_gone(struct exchange *exchange) {
    struct follower *follower = exchange->data;
    struct process *process = follower->process;

    exchange_done(exchange);
    if (process)
        go_on(process);
}

static void on_deadline(struct loop_timer *timer) {
    struct follower *follower = container_of(timer, struct follower, deadline);
    struct process *process = follower->process;

    list_remove(&follower->of_process);
    follower->process = NULL;
    finish(follower, connect_error("deadline_exceeded", "the request's time limit is over"));
    if (process)
        go_on(process);
}

static void on_process_deadline(struct loop_timer *timer) {
    struct process *process = container_of(timer, struct process, deadline);

    if (!process->end)
        process->end = json_pack("{s:{s:s, s:s}}", "error", "code", "deadline_exceeded", "message",
            "the process ran longer than its time limit");
    process_signal(process, SIGKILL, ROLLBOX_SCOPE_TREE);
}

/* The exchange is answered by the process's events from now on. */
static void follow(struct exchange *exchange, struct process *process, bool is_owner) {
    const char *header = http_header(http_request_of(exchange->connection), "connect-timeout-ms");
    long long ms = header ? strtoll(header, NULL, 10) : 0;
    struct follower *follower = calloc(1, sizeof *follower);

    if (!follower) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    follower->exchange = exchange;
    follower->process = process;
    follower->is_owner = is_owner;
    list_add_tail(&process->streams, &follower->of_process);
    exchange->data = follower;
    exchange->free_data = free_follower;
    exchange->gone = on_gone;
    exchange->writable = on_writable;
    if (ms > 0 && ms < DEADLINE_MAX_MS) {
        struct loop_timer *timer = is_owner ? &process->deadline : &follower->deadline;

        (void)loop_timer_set(loop_of(follower), timer, clock_now_ns() + ms * 1000000,
            is_owner ? on_process_deadline : on_deadline);
    }
    http_begin(exchange->connection, 200, STREAM_TYPE, NULL);
    (void)send_message(
        follower, 0, json_pack("{s:{s:{s:I}}}", "event", "start", "pid", (json_int_t)process->pid));
}

/* The one message of a request with a stream as its answer. NULL: the answer is given. */
static json_t *read_message(struct exchange *exchange) {
    struct http_request *request = http_request_of(exchange->connection);
    json_t *message = NULL;

    if (connect_take(&request->body, &message) == 1)
        return message;
    exchange_problem(exchange, 400, "request_invalid",
        "the body is not one message of the Connect protocol with JSON, uncompressed");
    return NULL;
}

/* ---- Start ---- */

static const char **texts_of(const json_t *config, size_t room) {
    const json_t *arguments = json_object_get(config, "args");
    const char **texts = calloc(json_array_size(arguments) + 2 + room, sizeof *texts);
    const json_t *text;
    size_t i;

    if (!texts)
        return NULL;
    texts[0] = json_string_value(json_object_get(config, "cmd"));
    json_array_foreach((json_t *)(uintptr_t)arguments, i, text) {
        texts[i + 1] = json_string_value(text);
        if (!texts[i + 1] || strlen(texts[i + 1]) != json_string_length(text))
            texts[0] = NULL;
    }
    if (texts[0])
        return texts;
    free(texts);
    return NULL;
}

static void free_env(char **env) {
    for (char **p = env; p && *p; p++)
        free(*p);
    free(env);
}

/* `home` NULL: the policy's. */
static char **env_of(const json_t *config, const char *home) {
    json_t *values = json_object_get(config, "envs"), *value;
    char **env = calloc(json_object_size(values) + 2, sizeof *env);
    const char *name;
    size_t n = 0;

    if (home && env && asprintf(&env[n], "HOME=%s", home) >= 0)
        n++;
    json_object_foreach(values, name, value) {
        if (!env || !json_is_string(value) || !*name || strchr(name, '=') ||
            asprintf(&env[n], "%s=%s", name, json_string_value(value)) < 0) {
            if (env)
                env[n] = NULL;
            free_env(env);
            return NULL;
        }
        n++;
    }
    return env;
}

static bool terminal_of(const json_t *pty, struct rollbox_terminal *ret) {
    const json_t *size = json_object_get(pty, "size");
    json_int_t rows = json_integer_value(json_object_get(size, "rows"));
    json_int_t columns = json_integer_value(json_object_get(size, "cols"));

    *ret = (struct rollbox_terminal){ (unsigned short)(rows ? rows : 24),
        (unsigned short)(columns ? columns : 80) };
    return rows >= 0 && columns >= 0 && rows <= UINT16_MAX && columns <= UINT16_MAX;
}

static struct process *start(struct exchange *exchange, const json_t *message) {
    const json_t *config = json_object_get(message, "process");
    const json_t *pty = json_object_get(message, "pty");
    const char *cwd = json_string_value(json_object_get(config, "cwd"));
    struct rollbox_terminal terminal = { 24, 80 };
    const char **argv = texts_of(config, 0);
    const struct e2b_box *e2b = exchange->box->e2b;
    const char *home = e2b && e2b_is_root(exchange) ? e2b->root_home : NULL;
    char **env = env_of(config, home);
    auto_free char *directory = NULL;
    struct process *process = NULL;

    if (home && (!cwd || !*cwd))
        cwd = home;
    if (!argv || !env || (json_is_object(pty) && !terminal_of(pty, &terminal))) {
        exchange_problem(exchange, 400, "invalid_argument",
            "process needs cmd, args (strings) and envs (an object of strings); a pty has a size");
    } else if (!cwd || !*cwd || (directory = e2b_path(exchange, cwd))) {
        const struct process_start wanted = { .argv = argv,
            .env = (const char *const *)env,
            .cwd = directory,
            .timeout_ms = ceilings_time(exchange),
            .terminal = json_is_object(pty) ? &terminal : NULL,
            .has_stdin = json_is_true(json_object_get(message, "stdin")) };

        process =
            process_start(exchange, &wanted, json_incref((json_t *)(uintptr_t)config), NULL, NULL);
    }
    free(argv);
    free_env(env);
    return process;
}

void handle_e2b_start(struct exchange *exchange) {
    exchange->refused = on_refused;
    json_t *message = e2b_user_ok(exchange) ? read_message(exchange) : NULL;
    if (!message)
        return;
    struct process *process = start(exchange, message);
    if (process) {
        process->tag = json_incref(json_object_get(message, "tag"));
        follow(exchange, process, true);
    }
    json_decref(message);
}

/* ---- the requests about one ---- */

/* The process that a message selects; NULL: the answer is given. */
static struct process *selected(struct exchange *exchange, const json_t *message) {
    const json_t *selector = json_object_get(message, "process");
    const json_t *pid = json_object_get(selector, "pid"), *tag = json_object_get(selector, "tag");
    struct e2b_box *e2b = e2b_of(exchange);

    if (!e2b)
        return NULL;
    list_for_each(node, &e2b->processes) {
        struct process *process = container_of(node, struct process, of_box);
        bool is_it = json_is_integer(pid) ? json_integer_value(pid) == process->pid
                                          : tag && process->tag && json_equal(process->tag, tag);

        if (is_it && !process->user)
            return process;
    }
    exchange_problem(exchange, 404, "not_found", "there is no such process");
    return NULL;
}

void handle_e2b_follow(struct exchange *exchange) {
    exchange->refused = on_refused;
    json_t *message = read_message(exchange);
    struct process *process = message ? selected(exchange, message) : NULL;

    json_decref(message);
    if (process)
        follow(exchange, process, false);
}

void handle_e2b_processes(struct exchange *exchange) {
    const struct e2b_box *e2b = e2b_of(exchange);
    json_t *rows = json_array();

    if (!e2b) {
        json_decref(rows);
        return;
    }
    list_for_each(node, &((struct e2b_box *)(uintptr_t)e2b)->processes) {
        const struct process *process = container_of(node, struct process, of_box);

        if (!process->user && !process->end)
            json_array_append_new(rows, json_pack("{s:O*, s:I, s:O*}", "config", process->config,
                                            "pid", (json_int_t)process->pid, "tag", process->tag));
    }
    exchange_answer_json(exchange, 200, json_pack("{s:o}", "processes", rows));
}

/* "input": {"stdin"|"pty": BASE64}. False: the answer is given. */
static bool give_input(
    struct exchange *exchange, struct process *process, const json_t *input, ssize_t *ret_left) {
    const json_t *data = json_object_get(input, process->is_terminal ? "pty" : "stdin");
    auto_buf struct buf bytes = BUF_INIT;

    if (!json_is_string(data) ||
        base64_decode(json_string_value(data), json_string_length(data), &bytes) < 0) {
        exchange_problem(exchange, 400, "invalid_argument", "input needs %s with base64",
            process->is_terminal ? "pty" : "stdin");
        return false;
    }
    *ret_left = process_write(process, bytes.data ? bytes.data : "", bytes.length);
    if (*ret_left >= 0)
        return true;
    exchange_problem(exchange, 400, "failed_precondition",
        "the process has no open standard input; start it with stdin");
    return false;
}

static void wait_for_input(struct exchange *exchange, struct process *process) {
    list_add_tail(&process->writers, &exchange->of_engine);
}

void handle_e2b_input(struct exchange *exchange) {
    struct process *process = selected(exchange, exchange->body);
    ssize_t left = 0;

    if (!process || !give_input(exchange, process, json_object_get(exchange->body, "input"), &left))
        return;
    exchange->gone = exchange_done;
    if ((size_t)left < HTTP_UNSENT_MAX)
        exchange_answer(exchange, 200, "{}", NULL);
    else
        wait_for_input(exchange, process);
}

/* ---- StreamInput: a stream of the client ---- */

struct input_stream {
    struct buf in;
    struct process *process; /* looked up again with each message: it may have ended */
    uint32_t pid;
};

static void free_input_stream(void *data) {
    struct input_stream *stream = data;

    buf_done(&stream->in);
    free(stream);
}

static void end_input_stream(struct exchange *exchange) {
    auto_buf struct buf frames = BUF_INIT;
    struct http_connection *connection = exchange->connection;

    connect_add(&frames, 0, json_object());
    connect_add(&frames, CONNECT_END, json_object());
    exchange->connection = NULL;
    *http_data(connection) = NULL;
    exchange_done(exchange);
    http_reply(connection, 200, STREAM_TYPE, NULL, frames.data, frames.length);
}

/* False: the exchange is gone. */
static bool take_message(struct exchange *exchange, const json_t *message) {
    struct input_stream *stream = exchange->data;
    const json_t *start = json_object_get(message, "start");
    struct e2b_box *e2b = exchange->box->e2b;
    ssize_t left = 0;

    if (start) {
        struct process *process = selected(exchange, start);

        /* Without one the answer is given, and the stream is freed. */
        if (process)
            stream->pid = process->pid;
        return process != NULL;
    }
    const json_t *input = json_object_get(json_object_get(message, "data"), "input");
    struct process *process = e2b ? process_find(e2b, stream->pid) : NULL;
    if (!input)
        return true;
    if (!process) {
        exchange_problem(exchange, 404, "not_found", "there is no such process");
        return false;
    }
    if (!give_input(exchange, process, input, &left))
        return false;
    if ((size_t)left >= HTTP_UNSENT_MAX) {
        http_pause(exchange->connection, true);
        if (list_empty(&exchange->of_engine))
            wait_for_input(exchange, process);
    }
    return true;
}

static void on_piece(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct input_stream *stream = exchange->data;
    json_t *message = NULL;
    int r;

    buf_add(&stream->in, data, length);
    while ((r = connect_take(&stream->in, &message)) == 1) {
        bool goes_on = take_message(exchange, message);

        json_decref(message);
        if (!goes_on)
            return;
    }
    if (r < 0 || (is_end && stream->in.length))
        exchange_problem(
            exchange, 400, "request_invalid", "a message of the Connect protocol is malformed");
    else if (is_end)
        end_input_stream(exchange);
}

void handle_e2b_stream_input(struct exchange *exchange) {
    struct input_stream *stream = calloc(1, sizeof *stream);

    if (!stream) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange->refused = on_refused;
    exchange->data = stream;
    exchange->free_data = free_input_stream;
    exchange->gone = exchange_done;
    exchange->input = on_piece;
    http_wait_for_body(exchange->connection);
}

/* ---- the rest ---- */

void handle_e2b_signal(struct exchange *exchange) {
    const char *name = json_string_value(json_object_get(exchange->body, "signal"));
    bool is_kill = name && !strcmp(name, "SIGNAL_SIGKILL");
    bool is_known = is_kill || (name && !strcmp(name, "SIGNAL_SIGTERM"));
    struct process *process = selected(exchange, exchange->body);

    if (!process)
        return;
    if (!is_known) {
        exchange_problem(
            exchange, 400, "invalid_argument", "signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM");
        return;
    }
    process_signal(process, is_kill ? SIGKILL : SIGTERM, ROLLBOX_SCOPE_TREE);
    exchange_answer(exchange, 200, "{}", NULL);
}

void handle_e2b_close_stdin(struct exchange *exchange) {
    struct process *process = selected(exchange, exchange->body);

    if (!process)
        return;
    if (process->is_terminal) {
        exchange_problem(exchange, 400, "invalid_argument",
            "a terminal's input is ended by its end of file key");
        return;
    }
    process_close_stdin(process);
    exchange_answer(exchange, 200, "{}", NULL);
}

void handle_e2b_update(struct exchange *exchange) {
    struct process *process = selected(exchange, exchange->body);
    struct rollbox_terminal terminal;

    if (!process)
        return;
    const json_t *pty = json_object_get(exchange->body, "pty");
    if (!json_is_object(pty) || !process->is_terminal || !terminal_of(pty, &terminal)) {
        exchange_problem(
            exchange, 400, "invalid_argument", "pty needs a size, and the process a terminal");
        return;
    }
    late_call_answer(exchange, process->id,
        &(struct rollbox_call_options){ .call = ROLLBOX_CALL_RESIZE, .terminal = &terminal });
}
