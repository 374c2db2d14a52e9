/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that are compiled, files that are fetched, and cells of notebooks; fusion.h has the
 * model. */
#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/command.h"
#include "serve/digits.h"
#include "serve/e2b_code.h"
#include "serve/engine_link.h"
#include "serve/ceilings.h"
#include "serve/fusion.h"
#include "serve/traces.h"

#define FETCH_MAX ((uint64_t)16 << 20)
#define FILES_MAX 512u

/* Compilers may be where the system's PATH does not look. */
static const char *const environment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin:"
    "/usr/local/cargo/bin",
    "HOME=/tmp", "GOCACHE=/tmp/.go-cache", "GO111MODULE=off", NULL
};

struct fusion_steps {
    struct pool_job job;       /* reads the files */
    struct exchange *exchange; /* NULL: the client has left, and a thread has the job still */
    struct engine_link *link;
    struct rollbox_sandbox *handle; /* NULL: it is not there yet */
    json_t *compiled, *done;
    json_t *wanted, *files;
    const char *status;
    struct buf cells;
    bool is_working;
};

/* The sandbox ends. */
static void free_steps(struct fusion_steps *steps) {
    struct rollbox_run *run;

    if (steps->handle) {
        const struct rollbox_call_options call = { .size = sizeof call,
            .call = ROLLBOX_CALL_CLOSE,
            .sandbox = rollbox_sandbox_name(steps->handle) };

        if (rollbox_call_start(steps->link->engine, &call, &run, NULL) >= 0)
            rollbox_run_free(run);
        rollbox_sandbox_free(steps->handle);
    }
    engine_link_unref(steps->link);
    json_decref(steps->compiled);
    json_decref(steps->done);
    json_decref(steps->wanted);
    json_decref(steps->files);
    buf_done(&steps->cells);
    free(steps);
}

void fusion_steps_free(struct fusion_steps *steps) {
    if (!steps)
        return;
    steps->exchange = NULL;
    if (!steps->is_working)
        free_steps(steps);
}

static struct fusion_steps *steps_of(const struct exchange *exchange) {
    return ((struct fusion *)exchange->data)->steps;
}

/* What rollbox could not do: clients try again. */
static void fail(struct exchange *exchange, const char *message) {
    auto_free char *copy = strdup(message);
    struct fusion_steps *steps = steps_of(exchange);

    fusion_answer(
        exchange, "SandboxError", copy ? copy : "", TAKE_PTR(steps->compiled), NULL, NULL);
}

/* ---- cells ---- */

/* The cell to which a line of the interpreter belongs. */
static json_t *cell_of(json_t *cells, const char *type) {
    if (!strcmp(type, "number_of_executions"))
        json_array_append_new(cells,
            json_pack("{s:s, s:s, s:[], s:[]}", "stdout", "", "stderr", "", "display", "error"));
    return json_array_get(cells, json_array_size(cells) - 1);
}

static void add_text(json_t *cell, const char *key, const json_t *line) {
    const char *before = json_string_value(json_object_get(cell, key));
    const char *more = json_string_value(json_object_get(line, "text"));
    auto_buf struct buf text = BUF_INIT;

    buf_add_text(&text, before ? before : "");
    buf_add_text(&text, more ? more : "");
    json_object_set_new(cell, key, json_string(text.data ? text.data : ""));
}

static json_t *error_of(const json_t *line) {
    const char *text = json_string_value(json_object_get(line, "traceback"));
    json_t *lines = json_array();

    for (const char *p = text ? text : ""; *p;) {
        size_t n = strcspn(p, "\n");

        json_array_append_new(lines, json_stringn(p, n));
        p += n + (p[n] == '\n');
    }
    return json_pack("{s:O?, s:O?, s:o}", "ename", json_object_get(line, "name"), "evalue",
        json_object_get(line, "value"), "traceback", lines);
}

static void add_line(json_t *cells, const json_t *line) {
    const char *type = json_string_value(json_object_get(line, "type"));
    json_t *cell = type ? cell_of(cells, type) : NULL;

    if (!cell)
        return;
    if (!strcmp(type, "stdout") || !strcmp(type, "stderr"))
        add_text(cell, type, line);
    else if (!strcmp(type, "display"))
        json_array_append(json_object_get(cell, "display"), json_object_get(line, "data"));
    else if (!strcmp(type, "error"))
        json_array_append_new(json_object_get(cell, "error"), error_of(line));
}

/* The interpreter's lines as cells. They are the guest's: what is malformed is left out. */
static json_t *cells_of(const struct rollbox_result *result) {
    const char *data = result->stdout_data;
    json_t *cells = json_array();

    for (size_t at = 0; at < result->stdout_length;) {
        const char *end = memchr(data + at, '\n', result->stdout_length - at);
        size_t n = end ? (size_t)(end - data) - at : result->stdout_length - at;
        json_t *line = json_loadb(data + at, n, JSON_ALLOW_NUL, NULL);

        add_line(cells, line);
        json_decref(line);
        at += n + 1;
    }
    return cells;
}

static void answer_cells(
    struct exchange *exchange, struct fusion_steps *steps, json_t *take_files) {
    json_t *cells = json_is_array(steps->compiled) ? TAKE_PTR(steps->compiled) : json_array();

    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:s, s:o, s:o, s:s, s:o}", "status", steps->status, "message", "",
            "driver", TAKE_PTR(steps->done), "cells", cells, "executor_pod_name", "rollbox",
            "files", take_files));
}

/* ---- files ---- */

static void finish(struct exchange *exchange) {
    struct fusion_steps *steps = steps_of(exchange);
    json_t *files = steps->files ? TAKE_PTR(steps->files) : json_object();

    if (((struct fusion *)exchange->data)->language)
        fusion_answer(
            exchange, steps->status, "", TAKE_PTR(steps->compiled), TAKE_PTR(steps->done), files);
    else
        answer_cells(exchange, steps, files);
}

/* A file that is not there is left out. */
static void fetch(struct pool_job *job) {
    struct fusion_steps *steps = container_of(job, struct fusion_steps, job);
    const json_t *name;
    size_t i;

    steps->files = json_object();
    json_array_foreach(steps->wanted, i, name) {
        const char *path = json_string_value(name);
        auto_buf struct buf whole = BUF_INIT, text = BUF_INIT;
        void *data = NULL;
        size_t length = 0;

        buf_printf(&whole, "%s%s", path[0] == '/' ? "" : "/tmp/", path);
        if (buf_failed(&whole) ||
            rollbox_file_read(steps->handle, whole.data, FETCH_MAX, &data, &length, NULL) < 0)
            continue;
        base64_encode(&text, data ? data : "", length);
        json_object_set_new(steps->files, path, json_string(text.data ? text.data : ""));
        free(data);
    }
}

static void fetched(struct pool_job *job) {
    struct fusion_steps *steps = container_of(job, struct fusion_steps, job);

    steps->is_working = false;
    if (steps->exchange)
        finish(steps->exchange);
    else
        free_steps(steps);
}

static void fetch_or_finish(struct exchange *exchange) {
    struct fusion_steps *steps = steps_of(exchange);

    if (!json_array_size(steps->wanted)) {
        finish(exchange);
        return;
    }
    steps->is_working = true;
    steps->job = (struct pool_job){ .work = fetch, .done = fetched };
    pool_submit(exchange->server->pool, &steps->job);
}

/* ---- steps ---- */

static void start_command(struct exchange *exchange, const char *const *argv, int64_t timeout_ms,
    bool with_files, rollbox_callback callback) {
    const struct fusion *fusion = exchange->data;
    const json_t *input = json_object_get(exchange->body, "stdin");
    const char *text = fusion->cells ? fusion->cells : json_string_value(input);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_exec_options options = { .size = sizeof options,
        .argv = argv,
        .env = environment,
        .cwd = "/tmp",
        .timeout_ms = timeout_ms,
        .output_limit = ceilings_lower_output(exchange, FUSION_OUTPUT_MAX),
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .callback = callback,
        .userdata = exchange };

    if (with_files) {
        options.files = fusion->files;
        options.n_files = fusion->n_files;
    }
    if (text && *text) {
        options.stdin_data = text;
        options.stdin_length = fusion->cells ? strlen(text) : json_string_length(input);
    }
    exchange->run = rollbox_run_free(exchange->run);
    traces_command_begins(exchange);
    if (rollbox_exec(steps_of(exchange)->handle, &options, &exchange->run, &error) < 0)
        fail(exchange, error.message);
}

/* Whether rollbox carried the step out; false: the answer is given. */
static bool is_done(struct exchange *exchange, const struct rollbox_result *result) {
    if (result->outcome != ROLLBOX_OUTCOME_ERROR)
        return true;
    fail(exchange, result->error.message);
    return false;
}

static bool is_success(const struct rollbox_result *result) {
    return result->outcome == ROLLBOX_OUTCOME_EXIT && !result->exit_code;
}

static void on_run(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct fusion_steps *steps = steps_of(exchange);
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0 || !is_done(exchange, result))
        return;
    command_ended(exchange, NULL, result);
    steps->status = is_success(result) ? "Success" : "Failed";
    steps->done = fusion_result(result);
    if (!((struct fusion *)exchange->data)->language) {
        if (is_success(result))
            steps->compiled = cells_of(result);
        /* It is the interpreter's, not the cells'. */
        json_object_set_new(steps->done, "stdout", json_string(""));
    }
    fetch_or_finish(exchange);
}

static void on_compiled(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct fusion *fusion = exchange->data;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0 || !is_done(exchange, result))
        return;
    fusion->steps->compiled = fusion_result(result);
    if (is_success(result)) {
        start_command(exchange, fusion->language->run, fusion->run_ms, false, on_run);
        return;
    }
    fusion_answer(exchange, "Failed", "", TAKE_PTR(fusion->steps->compiled), NULL, NULL);
}

static void on_created(struct rollbox_run *run, void *userdata) {
    static const char *const cells[] = { "python3", "-c", NULL, "jupyter", NULL };
    struct exchange *exchange = userdata;
    struct fusion *fusion = exchange->data;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_result *result;
    const char *argv[ARRAY_SIZE(cells)];

    if (rollbox_wait(run, 0, &result) < 0 || !is_done(exchange, result))
        return;
    if (rollbox_call_sandbox(run, 0, &fusion->steps->handle, &error) < 0) {
        fail(exchange, error.message);
        return;
    }
    if (!exchange->connection && !exchange->operation) {
        exchange_done(exchange);
        return;
    }
    if (!fusion->language) {
        memcpy(argv, cells, sizeof argv);
        argv[2] = e2b_interpreter;
        start_command(exchange, argv, fusion->run_ms, true, on_run);
    } else if (fusion->language->compile[0]) {
        start_command(exchange, fusion->language->compile, fusion->compile_ms, true, on_compiled);
    } else {
        start_command(exchange, fusion->language->run, fusion->run_ms, true, on_run);
    }
}

/* While the sandbox is being made, its end is waited for: nobody else would close it. */
static void on_gone(struct exchange *exchange) {
    if (steps_of(exchange)->handle)
        exchange_done(exchange);
}

static json_t *wanted_of(const struct exchange *exchange) {
    json_t *wanted = json_array(), *name;
    size_t i;

    json_array_foreach(json_object_get(exchange->body, "fetch_files"), i, name) {
        if (json_is_string(name) && i < FILES_MAX)
            json_array_append(wanted, name);
    }
    return wanted;
}

void fusion_steps_start(struct exchange *exchange, struct rollbox_plan *plan) {
    struct fusion *fusion = exchange->data;
    struct fusion_steps *steps = calloc(1, sizeof *steps);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    char name[2 * (SERVER_NAME_MAX + 1)], digits[21];
    auto_buf struct buf whole = BUF_INIT;

    if (!steps) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    digits_random(10, digits);
    buf_printf(&whole, "%s.fusion-%s", exchange->tenant->name, digits);
    memcpy(name, whole.data, MIN(whole.length + 1, sizeof name));
    const struct rollbox_sandbox_options options = { .size = sizeof options, .name = name };
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_CREATE,
        .plan = plan,
        .create = &options,
        .callback = on_created,
        .userdata = exchange };
    steps->exchange = exchange;
    steps->link = engine_link_ref(exchange->link);
    steps->wanted = wanted_of(exchange);
    fusion->steps = steps;
    exchange->gone = on_gone;
    if (rollbox_call_start(exchange->link->engine, &call, &exchange->run, &error) < 0)
        fail(exchange, error.message);
}
