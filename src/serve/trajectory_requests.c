/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET and DELETE /v1/trajectories: what the server has kept. A file is read in pieces, as fast as
 * the client takes them, so an answer of any length needs constant memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/range.h"
#include "serve/trajectories.h"
#include "serve/trajectory.h"

#define PIECE_BYTES ((size_t)64 << 10)
#define PIECES_A_TURN 4u /* then other clients have theirs */
#define LOOK_NS (INT64_C(100) * 1000000)
#define ROWS_MAX 1000u

/* NULL: the answer is given. */
static struct trajectory *wanted(struct exchange *exchange) {
    const char *id = exchange->parameters[0];

    struct trajectory *trajectory = trajectory_find(exchange->tenant, id);

    if (!trajectory)
        exchange_problem(exchange, 404, "not_found", "there is no trajectory \"%.64s\"%s", id,
            trajectories_kept() ? "" : ": the server was started without --state");
    return trajectory;
}

/* ---- the list ---- */

static json_t *row_of(struct trajectory *trajectory) {
    json_t *row = json_pack("{s:s, s:I, s:b}", "id", trajectory->id, "bytes",
        (json_int_t)trajectory->bytes, "ended", (int)trajectory->has_ended);

    json_object_update(row, trajectory->about);
    return row;
}

void handle_trajectories(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    auto_buf struct buf after = BUF_INIT, sandbox = BUF_INIT;
    struct trajectory *trajectory = NULL;
    const char *next = NULL;

    if (!trajectories_kept()) {
        exchange_problem(exchange, 501, "feature_missing",
            "this server keeps no trajectories: it was started without --state");
        return;
    }
    bool is_next = http_query(request, "after", &after);
    bool is_of_one = http_query(request, "sandbox", &sandbox);
    if (is_next &&
        !(trajectory = trajectory_find(exchange->tenant, after.data ? after.data : ""))) {
        exchange_problem(exchange, 404, "not_found",
            "there is no trajectory \"%.64s\" after which the list would continue",
            after.data ? after.data : "");
        return;
    }
    json_t *rows = json_array();
    while ((trajectory = trajectory_next(exchange->tenant, trajectory))) {
        const char *name = json_string_value(json_object_get(trajectory->about, "sandbox"));

        if (is_of_one && (!name || strcmp(name, sandbox.data ? sandbox.data : "") != 0))
            continue;
        trajectory_look(trajectory);
        json_array_append_new(rows, row_of(trajectory));
        if (json_array_size(rows) == ROWS_MAX) {
            next = trajectory_next(exchange->tenant, trajectory) ? trajectory->id : NULL;
            break;
        }
    }
    exchange_answer_json(
        exchange, 200, json_pack("{s:o, s:s?}", "trajectories", rows, "next", next));
}

/* ---- one ---- */

struct reading {
    struct exchange *exchange;
    struct loop_task more;
    struct loop_timer timer;
    int fd;
    bool follows, is_paused;
    uint64_t at, to;
    char id[TRAJECTORY_DIGITS + 1];
};

static void free_reading(void *data) {
    struct reading *reading = data;

    loop_task_cancel(&reading->more);
    loop_timer_clear(reading->exchange->server->loop, &reading->timer);
    close_fd(&reading->fd);
    free(reading);
}

static void end(struct reading *reading, bool is_whole) {
    struct exchange *exchange = reading->exchange;
    struct http_connection *connection = TAKE_PTR(exchange->connection);

    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        (is_whole ? http_end : http_abort)(connection);
}

static void send_more(struct loop_task *task);

static void on_look(struct loop_timer *timer) {
    struct reading *reading = container_of(timer, struct reading, timer);

    loop_defer(reading->exchange->server->loop, &reading->more, send_more);
}

/* All that the file had is sent: whether more has come, or will. */
static void look(struct reading *reading) {
    struct exchange *exchange = reading->exchange;
    struct trajectory *trajectory = trajectory_find(exchange->tenant, reading->id);
    struct stat st;

    if (!reading->follows) {
        end(reading, true);
        return;
    }
    /* First whether it has ended: then it has all of its bytes. */
    if (trajectory)
        trajectory_look(trajectory);
    if (fstat(reading->fd, &st) < 0) {
        end(reading, false);
        return;
    }
    reading->follows = trajectory && !trajectory->has_ended;
    bool has_more = (uint64_t)st.st_size > reading->to;
    reading->to = (uint64_t)st.st_size;
    if (has_more || !reading->follows)
        loop_defer(exchange->server->loop, &reading->more, send_more);
    else
        (void)loop_timer_set(
            exchange->server->loop, &reading->timer, clock_now_ns() + LOOK_NS, on_look);
}

static void send_more(struct loop_task *task) {
    struct reading *reading = container_of(task, struct reading, more);
    struct exchange *exchange = reading->exchange;
    static char piece[PIECE_BYTES];

    for (unsigned n = 0; reading->at < reading->to; n++) {
        size_t wanted_bytes = (size_t)MIN((uint64_t)PIECE_BYTES, reading->to - reading->at);

        if (n == PIECES_A_TURN) {
            loop_defer(exchange->server->loop, task, send_more);
            return;
        }
        ssize_t got = pread(reading->fd, piece, wanted_bytes, (off_t)reading->at);
        if (got <= 0) { /* an error of the disk, or the recorder has cut a line off */
            end(reading, false);
            return;
        }
        reading->at += (uint64_t)got;
        reading->is_paused =
            http_write(exchange->connection, piece, (size_t)got) >= HTTP_UNSENT_MAX;
        if (reading->is_paused)
            return;
    }
    look(reading);
}

static void on_writable(struct exchange *exchange) {
    struct reading *reading = exchange->data;

    if (!reading->is_paused)
        return;
    reading->is_paused = false;
    loop_defer(exchange->server->loop, &reading->more, send_more);
}

static bool asks_to_follow(const struct exchange *exchange) {
    auto_buf struct buf value = BUF_INIT;

    return http_query(http_request_of(exchange->connection), "follow", &value) &&
           (!value.data || strcmp(value.data, "0") != 0);
}

/* Answers with the head. False: the answer is given. */
static bool begin(struct reading *reading, const struct trajectory *trajectory) {
    struct exchange *exchange = reading->exchange;
    auto_buf struct buf lines = BUF_INIT;
    struct range range;
    int status;

    if (!range_read(exchange, &range))
        return false;
    range.name = "trajectory";
    buf_printf(&lines, "Request-Id: %s\r\nRollbox-State: %s\r\n", exchange->id,
        trajectory->has_ended ? "ended" : "running");
    if (!range_bounds(
            exchange, &range, trajectory->bytes, &reading->at, &reading->to, &status, &lines))
        return false;
    reading->follows = asks_to_follow(exchange) && reading->to == trajectory->bytes &&
                       !trajectory->has_ended && status == 200;
    exchange->seen.status = status;
    http_begin(exchange->connection, status, "application/x-ndjson", lines.data);
    return true;
}

void handle_trajectory(struct exchange *exchange) {
    struct trajectory *trajectory = wanted(exchange);

    if (!trajectory)
        return;
    struct reading *reading = calloc(1, sizeof *reading);
    if (!reading) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    reading->exchange = exchange;
    reading->fd = -EBADF;
    list_init(&reading->more.node);
    memcpy(reading->id, trajectory->id, sizeof reading->id);
    exchange->data = reading;
    exchange->free_data = free_reading;
    exchange->gone = exchange_done;
    exchange->writable = on_writable;
    trajectory_look(trajectory);
    reading->fd = trajectory_file(trajectory);
    if (reading->fd < 0) {
        exchange_problem(exchange, 404, "not_found",
            "the file of the trajectory cannot be read: %s", strerror(-reading->fd));
        return;
    }
    if (begin(reading, trajectory))
        loop_defer(exchange->server->loop, &reading->more, send_more);
}

void handle_trajectory_delete(struct exchange *exchange) {
    struct trajectory *trajectory = wanted(exchange);

    if (!trajectory)
        return;
    trajectory_look(trajectory);
    if (!trajectory->has_ended) {
        exchange_problem(
            exchange, 409, "conflict", "the trajectory is being written; delete its sandbox first");
        return;
    }
    int r = trajectory_remove(trajectory);
    if (r < 0)
        exchange_problem(
            exchange, 503, "io", "cannot remove the trajectory's files: %s", strerror(-r));
    else
        exchange_answer(exchange, 204, "", NULL);
}
