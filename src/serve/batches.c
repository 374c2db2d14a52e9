/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: jobs come in and rows go out, one JSON object a line, on one request. A job is a run
 * with an `id`; its row is the result with that id. Every line gets exactly one row.
 *
 * At most WINDOW jobs are under way. Meanwhile, and while the client does not read its rows, the
 * server does not read more jobs, so a batch needs bounded memory. If the client leaves, its jobs
 * are killed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/command.h"
#include "serve/engine_link.h"

#define WINDOW 64u
#define LINE_MAX_BYTES ((size_t)16 << 20)

struct batch {
    struct exchange *exchange;
    struct list jobs; /* in the order of their lines */
    struct buf line;
    struct loop_timer timer;
    unsigned n_jobs, n_lines;
    bool is_ordered, has_all, is_full, is_working, is_over;
};

struct job {
    struct list of_batch;
    struct batch *batch;
    struct exchange *exchange; /* of the job; NULL once it has its row */
    struct command *command;
    json_t *id;
    char *row;
};

static void take_lines(struct batch *batch);

/* ---- rows ---- */

static void free_job(struct job *job) {
    list_remove(&job->of_batch);
    job->batch->n_jobs--;
    if (job->command)
        command_free(job->command);
    json_decref(job->id);
    free(job->row);
    free(job);
}

static void write_row(struct batch *batch, struct job *job) {
    size_t unsent = http_write(batch->exchange->connection, job->row, strlen(job->row));

    batch->is_full = unsent >= HTTP_UNSENT_MAX;
    free_job(job);
}

static void write_rows(struct batch *batch) {
    list_for_each(node, &batch->jobs) {
        struct job *job = container_of(node, struct job, of_batch);

        if (job->row)
            write_row(batch, job);
        else if (batch->is_ordered)
            return;
    }
}

/* Of a batch whose client has left while a thread compiled the job's policy. */
static void drop_job(struct job *job) {
    struct batch *batch = job->batch;

    job->exchange->data = NULL;
    exchange_done(job->exchange);
    free_job(job);
    if (!batch->n_jobs)
        free(batch);
}

static void end_job(struct job *job, char *take_row) {
    struct batch *batch = job->batch;
    struct exchange *exchange = TAKE_PTR(job->exchange);

    job->row = take_row ? take_row : strdup("{\"outcome\":\"error\"}\n");
    exchange->data = NULL;
    exchange_done(exchange);
    if (!job->row)
        free_job(job);
    write_rows(batch);
    take_lines(batch);
}

/* `json` is an object's text; the id becomes its first member. */
static char *make_row(const struct job *job, const char *json) {
    auto_free char *id = json_dumps(job->id, JSON_ENCODE_ANY | JSON_COMPACT);
    struct buf row = BUF_INIT;

    buf_printf(&row, "{\"id\":%s,%s\n", id ? id : "null", json + 1);
    return buf_take(&row);
}

/* A problem as a row: a result whose outcome is error. */
static void on_refused(struct exchange *exchange, json_t *take_problem) {
    struct job *job = exchange->data;
    if (job->batch->is_over) {
        json_decref(take_problem);
        drop_job(job);
        return;
    }
    json_t *result = json_object_get(take_problem, "result");
    json_t *row = result ? json_incref(result)
                         : json_pack("{s:s, s:n, s:n, s:s, s:s, s:{s:O, s:O, s:O}}", "outcome",
                               "error", "exit_code", "signal", "stdout", "", "stderr", "", "error",
                               "code", json_object_get(take_problem, "code"), "stage",
                               json_object_get(take_problem, "stage"), "message",
                               json_object_get(take_problem, "detail"));
    auto_free char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(15));

    json_decref(row);
    json_decref(take_problem);
    end_job(job, text ? make_row(job, text) : NULL);
}

static void on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct job *job = exchange->data;
    const struct rollbox_result *result;
    auto_free char *json = NULL;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    command_ended(exchange, NULL, result);
    (void)rollbox_result_json(result, NULL, &json);
    end_job(job, json ? make_row(job, json) : NULL);
}

/* ---- jobs ---- */

static void start_run(struct exchange *exchange, struct rollbox_plan *plan) {
    struct job *job = exchange->data;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_run_options options = command_run_options(job->command);

    if (job->batch->is_over) {
        drop_job(job);
        return;
    }
    options.callback = on_end;
    options.userdata = exchange;
    options.priority = admission_priority(exchange);
    if (rollbox_start(exchange->link->engine, plan, &options, &exchange->run, &error) < 0)
        exchange_fail(exchange, &error);
}

/* False: out of memory. */
static bool start_job(struct batch *batch, const char *line, size_t length) {
    struct exchange *parent = batch->exchange;
    struct job *job = calloc(1, sizeof *job);
    struct exchange *exchange = calloc(1, sizeof *exchange);
    static const char *const id_key[] = { "id", NULL };
    json_error_t problem;

    batch->n_lines++;
    if (!job || !exchange) {
        free(job);
        free(exchange);
        return false;
    }
    *exchange = (struct exchange){ .server = parent->server,
        .route = parent->route,
        .tenant = parent->tenant,
        .scopes = parent->scopes,
        .quotas = parent->quotas,
        .has_begun = true,
        .waits = true,
        .data = job,
        .refused = on_refused };
    list_init(&exchange->of_operation);
    list_init(&exchange->of_engine);
    parent->server->n_exchanges++;
    job->batch = batch;
    job->exchange = exchange;
    list_add_tail(&batch->jobs, &job->of_batch);
    batch->n_jobs++;
    exchange->body = json_loadb(line, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
    job->id = json_incref(json_object_get(exchange->body, "id"));
    if (!job->id)
        job->id = json_integer(batch->n_lines);
    if (!json_is_object(exchange->body)) {
        exchange_problem(exchange, 400, "request_invalid", "line %u is not a JSON object: %.160s",
            batch->n_lines, exchange->body ? "another type" : problem.text);
    } else if (!exchange_knows(exchange, run_keys, id_key)) {
        return true; /* the row is made */
    } else if (exchange->server->draining) {
        exchange_problem(exchange, 503, "draining", "the server is shutting down");
    } else {
        /* A command that is refused has its row already, and the job may be gone. */
        struct command *command = command_read(exchange);

        if (command) {
            job->command = command;
            policies_prepare(exchange, ADMISSION_RUN, start_run);
        }
    }
    return true;
}

/* ---- the stream ---- */

/* Without all rows the client knows that the ends of the other jobs are unknown. */
static void end_batch(struct batch *batch, bool is_complete) {
    struct exchange *exchange = batch->exchange;
    struct http_connection *connection = TAKE_PTR(exchange->connection);

    *http_data(connection) = NULL;
    exchange_done(exchange);
    (is_complete ? http_end : http_abort)(connection);
}

static void on_time(struct loop_timer *timer) {
    take_lines(container_of(timer, struct batch, timer));
}

static bool has_room(struct batch *batch) {
    const struct exchange *exchange = batch->exchange;

    if (batch->is_full || batch->n_jobs >= WINDOW)
        return false;
    int64_t wait_ns = admission_wait_ns(exchange);
    if (wait_ns)
        (void)loop_timer_set(
            exchange->server->loop, &batch->timer, clock_now_ns() + wait_ns, on_time);
    return !wait_ns;
}

/* Starts as many jobs as there is room for. Frees the batch at its end. */
static void take_lines(struct batch *batch) {
    size_t start = 0;

    if (batch->is_working || batch->is_over)
        return;
    batch->is_working = true;
    while (start < batch->line.length && has_room(batch)) {
        const char *data = batch->line.data + start;
        const char *end = memchr(data, '\n', batch->line.length - start);
        size_t length = end ? (size_t)(end - data) : batch->line.length - start;

        if (!end && !batch->has_all)
            break;
        if (length && strspn(data, " \t\r") < length && !start_job(batch, data, length)) {
            end_batch(batch, false);
            return;
        }
        start += length + (end ? 1 : 0);
    }
    if (start) {
        memmove(batch->line.data, batch->line.data + start, batch->line.length - start);
        batch->line.length -= start;
    }
    batch->is_working = false;
    bool waits = batch->line.length && memchr(batch->line.data, '\n', batch->line.length);
    if (batch->has_all && !batch->line.length && !batch->n_jobs)
        end_batch(batch, true);
    else if (!batch->has_all)
        http_pause(batch->exchange->connection, batch->is_full || waits);
}

static void on_input(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct batch *batch = exchange->data;

    buf_add(&batch->line, data, length);
    batch->has_all = is_end;
    if (buf_failed(&batch->line) || (batch->line.length > LINE_MAX_BYTES &&
                                        !memchr(batch->line.data, '\n', batch->line.length))) {
        end_batch(batch, false);
        return;
    }
    take_lines(batch);
}

static void on_writable(struct exchange *exchange) {
    struct batch *batch = exchange->data;

    batch->is_full = false;
    (void)loop_timer_set(exchange->server->loop, &batch->timer, clock_now_ns(), on_time);
}

static void free_batch(void *data) {
    struct batch *batch = data;

    batch->is_over = true;
    loop_timer_clear(batch->exchange->server->loop, &batch->timer);
    list_for_each(node, &batch->jobs) {
        struct job *job = container_of(node, struct job, of_batch);

        if (job->exchange && !job->exchange->run)
            continue; /* a thread compiles its policy */
        if (job->exchange) {
            job->exchange->data = NULL;
            exchange_done(TAKE_PTR(job->exchange));
        }
        free_job(job);
    }
    buf_done(&batch->line);
    if (!batch->n_jobs)
        free(batch);
}

void handle_batch(struct exchange *exchange) {
    struct batch *batch = calloc(1, sizeof *batch);
    auto_buf struct buf ordered = BUF_INIT;

    if (!batch) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    batch->exchange = exchange;
    list_init(&batch->jobs);
    batch->is_ordered = http_query(http_request_of(exchange->connection), "ordered", &ordered) &&
                        ordered.data && strcmp(ordered.data, "0") != 0;
    exchange->data = batch;
    exchange->free_data = free_batch;
    exchange->input = on_input;
    exchange->writable = on_writable;
    exchange->gone = exchange_done;
    http_wait_for_body(exchange->connection);
    http_begin(exchange->connection, 200, "application/x-ndjson", "X-Accel-Buffering: no\r\n");
}
