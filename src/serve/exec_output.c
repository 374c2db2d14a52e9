/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of what a command has written until now: GET .../execs/E/output. The engine's list of
 * commands tells how much there is, so the answer does not wait for the command. An attachment
 * gives all of the output from its start; what is before the part is dropped, and after the part
 * the attachment ends. So an answer needs constant memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "serve/engine_link.h"
#include "serve/range.h"

#define PIECE_BYTES ((size_t)64 << 10)
#define PIECES_A_TURN 4u /* then other clients have theirs */

struct output {
    struct exchange *exchange;
    struct range range;
    struct loop_source source;
    struct loop_task more;
    int fd;
    bool is_paused;
    uint64_t at, from, to; /* received until now; the part */
    /* Of a command that has ended, the result has the output. It is the run's, which is not freed
     * before the exchange. */
    const char *data;
};

static void free_output(void *data) {
    struct output *output = data;

    loop_remove(output->exchange->server->loop, &output->source);
    loop_task_cancel(&output->more);
    close_fd(&output->fd);
    free(output);
}

/* `is_whole`: all of the part was written. */
static void end(struct output *output, bool is_whole) {
    struct exchange *exchange = output->exchange;
    struct http_connection *connection = TAKE_PTR(exchange->connection);

    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        (is_whole ? http_end : http_abort)(connection);
}

static bool begin(struct output *output, uint64_t total, bool has_ended) {
    struct exchange *exchange = output->exchange;
    auto_buf struct buf lines = BUF_INIT;
    int status;

    buf_printf(&lines, "Request-Id: %s\r\nRollbox-State: %s\r\n", exchange->id,
        has_ended ? "ended" : "running");
    if (!range_bounds(exchange, &output->range, total, &output->from, &output->to, &status, &lines))
        return false;
    exchange->seen.status = status;
    http_begin(exchange->connection, status, "application/octet-stream", lines.data);
    return true;
}

/* Bytes that come next in the output. False: the client reads too slowly, or the part is whole. */
static bool take(struct output *output, const char *bytes, size_t n) {
    uint64_t first = output->at, from = MAX(first, output->from);
    uint64_t to = MIN(first + n, output->to);

    output->at += n;
    if (from < to && http_write(output->exchange->connection, bytes + (from - first),
                         (size_t)(to - from)) >= HTTP_UNSENT_MAX)
        output->is_paused = true;
    return !output->is_paused && output->at < output->to;
}

/* ---- of a command that has ended ---- */

static void run_more(struct loop_task *task) {
    struct output *output = container_of(task, struct output, more);

    for (unsigned n = 0; output->at < output->to; n++) {
        if (n == PIECES_A_TURN) {
            loop_defer(output->exchange->server->loop, task, run_more);
            return;
        }
        (void)take(output, output->data + output->at,
            (size_t)MIN((uint64_t)PIECE_BYTES, output->to - output->at));
        if (output->is_paused)
            return;
    }
    end(output, true);
}

static void on_result(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct output *output = exchange->data;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0) {
        exchange_problem(exchange, 502, "engine_lost", "the engine has ended");
        return;
    }
    const char *data = output->range.is_stderr ? result->stderr_data : result->stdout_data;
    size_t total = output->range.is_stderr ? result->stderr_length : result->stdout_length;
    if (result->outcome == ROLLBOX_OUTCOME_ERROR && !total &&
        result->error.code == ROLLBOX_ERR_NOT_FOUND) {
        struct rollbox_error error = result->error;

        exchange_fail(exchange, &error);
        return;
    }
    output->data = data;
    if (!begin(output, total, true))
        return;
    output->at = output->from;
    run_more(&output->more);
}

/* ---- of a running command ---- */

static void on_output(struct loop_source *source, uint32_t events) {
    struct output *output = container_of(source, struct output, source);
    static char piece[PIECE_BYTES];
    ssize_t n = read(output->fd, piece, sizeof piece);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* the engine or the sandbox has ended */
        end(output, false);
        return;
    }
    (void)take(output, piece, (size_t)n);
    if (output->at >= output->to)
        end(output, true);
    else if (output->is_paused)
        loop_remove(output->exchange->server->loop, &output->source);
}

static void on_writable(struct exchange *exchange) {
    struct output *output = exchange->data;

    if (!output->is_paused)
        return;
    output->is_paused = false;
    if (output->data)
        loop_defer(exchange->server->loop, &output->more, run_more);
    else
        (void)loop_add(exchange->server->loop, &output->source, output->fd, EPOLLIN, on_output);
}

static void on_end(struct rollbox_run *run, void *userdata) {
    (void)run;
    (void)userdata; /* what it had written when the request came is in the pipe */
}

static void attach(struct exchange *exchange, const int streams[2], rollbox_callback callback) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_attach_options options = { .size = sizeof options,
        .operation_id = exchange->parameters[1],
        .input_fd = -1,
        .stream_fds = { streams[0], streams[1] },
        .callback = callback,
        .userdata = exchange };

    exchange->run = rollbox_run_free(exchange->run);
    if (rollbox_attach(exchange->box->handle, &options, &exchange->run, &error) < 0)
        exchange_fail(exchange, &error);
}

static void follow(struct output *output, uint64_t total) {
    struct exchange *exchange = output->exchange;
    int pair[2], streams[2] = { -1, -1 };

    if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0) {
        exchange_problem(
            exchange, 503, "resource_exhausted", "the server has no room for a stream");
        return;
    }
    auto_close int theirs = pair[1];
    output->fd = pair[0];
    if (!begin(output, total, false))
        return;
    if (output->from == output->to) {
        end(output, true);
        return;
    }
    streams[output->range.is_stderr] = theirs;
    exchange->run = rollbox_run_free(exchange->run);
    const struct rollbox_attach_options options = { .size = sizeof options,
        .operation_id = exchange->parameters[1],
        .input_fd = -1,
        .stream_fds = { streams[0], streams[1] },
        .callback = on_end,
        .userdata = exchange };
    if (loop_add(exchange->server->loop, &output->source, output->fd, EPOLLIN, on_output) < 0 ||
        rollbox_attach(exchange->box->handle, &options, &exchange->run, NULL) < 0)
        end(output, false);
}

/* ---- the request ---- */

/* The row of the command, or NULL. */
static const json_t *row_of(const json_t *answer, const char *id) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "execs"), i, row) {
        const char *name = json_string_value(json_object_get(row, "id"));

        if (name && !strcmp(name, id))
            return row;
    }
    return NULL;
}

static void on_listed(struct rollbox_run *run, void *userdata) {
    static const int none[2] = { -1, -1 };
    struct exchange *exchange = userdata;
    struct output *output = exchange->data;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        struct rollbox_error error = result->error;

        exchange_fail(exchange, &error);
        return;
    }
    json_t *answer = json_loads(rollbox_call_json(run), 0, NULL);
    const json_t *row = row_of(answer, exchange->parameters[1]);
    const char *state = json_string_value(json_object_get(row, "state"));
    const json_t *bytes =
        json_object_get(row, output->range.is_stderr ? "stderr_bytes" : "stdout_bytes");
    if (!row)
        exchange_problem(
            exchange, 404, "not_found", "there is no command \"%.64s\"", exchange->parameters[1]);
    else if (json_is_integer(bytes))
        follow(output, (uint64_t)json_integer_value(bytes));
    else if (state && !strcmp(state, "ended"))
        attach(exchange, none, on_result);
    else
        exchange_problem(exchange, 409, "conflict",
            "the command is hibernated with its sandbox; wake the sandbox first");
    json_decref(answer);
}

void handle_exec_output(struct exchange *exchange) {
    struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_EXECS,
        .sandbox = rollbox_sandbox_name(exchange->box->handle),
        .callback = on_listed,
        .userdata = exchange };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct output *output = calloc(1, sizeof *output);

    if (!output) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    output->exchange = exchange;
    output->fd = -EBADF;
    output->source.fd = -1;
    list_init(&output->more.node);
    exchange->data = output;
    exchange->free_data = free_output;
    exchange->gone = exchange_done;
    exchange->writable = on_writable;
    if (!range_read(exchange, &output->range))
        return;
    if (rollbox_call_start(exchange->link->engine, &call, &exchange->run, &error) < 0)
        exchange_fail(exchange, &error);
}
