/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grading: a verifier's command on named files of a sandbox, in a new sandbox that has nothing else
 * of the graded code. POST /v1/sandboxes/S/grade.
 *
 * Two sandboxes are made, by inner requests, so they count as the tenant's: the graded state, a
 * fork of the files without processes, of which only the file calls look in; and a clean one with
 * the policy of the request or of the sandbox. The outputs are copied as plain files, then the
 * verifier's files are put in place, and the command runs there. Both end with the answer.
 *
 * Outputs are files by their names. Whole directories, whose files may steer the verifier, are
 * graded by Sandbox.grade of the Python package.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/digits.h"
#include "serve/inner_post.h"
#include "serve/server.h"

#define OUTPUTS_MAX 256u
#define OUTPUT_BYTES ((uint64_t)64 << 20)
#define ALL_BYTES ((uint64_t)256 << 20)

const char *const grade_keys[] = { "argv", "code", "language", "files", "outputs", "stdin", "env",
    "cwd", "user", "timeout_ms", "output_limit", "policy", NULL };
static const char *const exec_parts[] = { "argv", "code", "language", "files", "stdin", "cwd",
    "user", "timeout_ms", "output_limit" };

struct grade {
    struct pool_job job;
    struct exchange *exchange; /* NULL once the client is gone, while something is under way */
    struct tenant *tenant;
    struct server *server;
    struct http_connection *inner; /* NULL: none */
    void (*then)(struct grade *grade, int status, const struct buf *body);
    struct box *state, *root; /* referenced */
    struct rollbox_sandbox *state_handle, *root_handle;
    json_t *outputs; /* of the body */
    json_t *missing; /* outputs that are no files */
    char home[40];
    bool is_working, was_killed;
    struct rollbox_error error;
    int r;
};

static void drop_box(struct grade *grade, struct box **box) {
    if (*box && !(*box)->is_gone)
        box_close(grade->server, *box);
    *box = box_unref(*box);
}

static void on_graded(struct grade *grade, int status, const struct buf *body);

static void free_grade(void *data) {
    struct grade *grade = data;

    if (grade->inner && grade->then == on_graded)
        http_inner_cancel(TAKE_PTR(grade->inner));
    /* A sandbox that is being made must be ended, and a thread has the others. */
    if (grade->is_working || grade->inner) {
        grade->exchange = NULL;
        return;
    }
    drop_box(grade, &grade->state);
    drop_box(grade, &grade->root);
    json_decref(grade->outputs);
    json_decref(grade->missing);
    free(grade);
}

/* ---- inner requests ---- */

static struct box *take_box(struct grade *grade, const json_t *name) {
    const char *text = json_string_value(name);
    struct box *box = text ? box_find(grade->server, grade->tenant, text) : NULL;

    if (box)
        box->references++;
    return box;
}

/* The client is gone, and the sandbox that it waited for may be there. */
static void abandon(struct grade *grade, const struct buf *body) {
    json_t *answer = inner_answer(body);
    const json_t *names = json_object_get(answer, "sandboxes");

    if (!grade->state)
        grade->state = take_box(grade, json_array_get(names, 0));
    else if (!grade->root)
        grade->root = take_box(grade, json_object_get(answer, "name"));
    json_decref(answer);
    free_grade(grade);
}

static void on_inner(void *userdata, int status, const char *type, struct buf *body) {
    struct grade *grade = userdata;

    (void)type;
    grade->inner = NULL;
    if (grade->exchange)
        grade->then(grade, status, body);
    else
        abandon(grade, body);
}

static void ask(struct grade *grade, const char *box, const char *rest, json_t *take_body,
    void (*then)(struct grade *grade, int status, const struct buf *body)) {
    grade->then = then;
    grade->inner = inner_post(grade->exchange, box, rest, take_body, on_inner, grade);
}

static void pass_on(struct grade *grade, int status, const struct buf *body) {
    inner_pass_on(grade->exchange, "grade", status, body);
}

/* ---- the command ---- */

static void on_graded(struct grade *grade, int status, const struct buf *body) {
    json_t *result = inner_answer(body);
    const json_t *code = json_object_get(result, "exit_code");

    if (status != 200) {
        json_decref(result);
        pass_on(grade, status, body);
        return;
    }
    json_object_set_new(result, "ok",
        json_boolean(json_is_integer(code) && !json_integer_value(code) &&
                     !json_array_size(grade->missing)));
    json_object_set(result, "missing", grade->missing);
    exchange_answer_json(grade->exchange, 200, result);
}

/* Nothing of the graded code's home, caches and configuration has a say. */
static json_t *environment(const struct grade *grade) {
    json_t *env = json_pack("{s:s, s:s+, s:s+, s:s, s:s+, s:s, s:s, s:s, s:s, s:s, s:s}", "HOME",
        grade->home, "XDG_CONFIG_HOME", grade->home, "/.config", "XDG_CACHE_HOME", grade->home,
        "/.cache", "PYTHONNOUSERSITE", "1", "PYTHONPYCACHEPREFIX", grade->home, "/pycache",
        "GIT_CONFIG_GLOBAL", "/dev/null", "GIT_CONFIG_COUNT", "2", "GIT_CONFIG_KEY_0",
        "core.hooksPath", "GIT_CONFIG_VALUE_0", "/dev/null", "GIT_CONFIG_KEY_1", "core.fsmonitor",
        "GIT_CONFIG_VALUE_1", "false");

    json_object_update(env, json_object_get(grade->exchange->body, "env"));
    return env;
}

static void run_verifier(struct grade *grade) {
    json_t *exec = json_pack("{s:o}", "env", environment(grade));

    for (size_t i = 0; i < ARRAY_SIZE(exec_parts); i++) {
        json_t *value = json_object_get(grade->exchange->body, exec_parts[i]);

        if (value)
            json_object_set(exec, exec_parts[i], value);
    }
    ask(grade, grade->root->name, "/execs", exec, on_graded);
}

/* ---- the outputs, in a thread ---- */

/* 1: it was copied; 0: it is no plain file; or negative with the error. */
static int copy_output(struct grade *grade, const char *path, uint64_t *all) {
    auto_free char *json = NULL;
    auto_free void *data = NULL;
    size_t length;

    int r = rollbox_file_stat(grade->state_handle, path, false, &json, &grade->error);
    if (r < 0)
        return grade->error.code == ROLLBOX_ERR_NOT_FOUND ? 0 : r;
    json_t *row = json_loads(json, 0, NULL);
    const char *type = json_string_value(json_object_get(row, "type"));
    bool is_file = type && !strcmp(type, "file");
    const json_t *told = json_object_get(row, "mode");
    unsigned mode = json_is_integer(told) ? (unsigned)json_integer_value(told) & 0777 : 0644;
    json_decref(row);
    if (!is_file)
        return 0;
    r = rollbox_file_read(grade->state_handle, path, OUTPUT_BYTES, &data, &length, &grade->error);
    if (r < 0 && grade->error.error_number == EFBIG)
        return 0;
    if (r < 0)
        return r;
    *all += length;
    if (*all > ALL_BYTES)
        return 0;
    r = rollbox_file_write(
        grade->root_handle, path, data, length, (mode | 0600) & 0777, &grade->error);
    return r < 0 ? r : 1;
}

static void work(struct pool_job *job) {
    struct grade *grade = container_of(job, struct grade, job);
    uint64_t all = 0;
    json_t *path;
    size_t i;

    grade->r = rollbox_file_mkdir(grade->root_handle, grade->home, 0700, &grade->error);
    json_array_foreach(grade->outputs, i, path) {
        int r = grade->r < 0 ? grade->r : copy_output(grade, json_string_value(path), &all);

        if (r == 0)
            json_array_append(grade->missing, path);
        if (r < 0)
            grade->r = r;
    }
}

static void done(struct pool_job *job) {
    struct grade *grade = container_of(job, struct grade, job);

    grade->is_working = false;
    if (!grade->exchange) {
        free_grade(grade);
        return;
    }
    drop_box(grade, &grade->state);
    if (grade->r < 0)
        exchange_fail(grade->exchange, &grade->error);
    else
        run_verifier(grade);
}

/* ---- the two sandboxes ---- */

static void on_root(struct grade *grade, int status, const struct buf *body) {
    json_t *answer = inner_answer(body);

    if (status == 201)
        grade->root = take_box(grade, json_object_get(answer, "name"));
    json_decref(answer);
    if (!grade->root) {
        pass_on(grade, status, body);
        return;
    }
    grade->state_handle = grade->state->handle;
    grade->root_handle = grade->root->handle;
    grade->is_working = true;
    grade->job = (struct pool_job){ .work = work, .done = done };
    pool_submit(grade->server->transfers, &grade->job);
}

static void fork_state(struct grade *grade);

static void on_killed(struct grade *grade, int status, const struct buf *body) {
    (void)status;
    (void)body;
    fork_state(grade);
}

static void on_state(struct grade *grade, int status, const struct buf *body) {
    json_t *answer = inner_answer(body);
    const json_t *names = json_object_get(answer, "sandboxes");
    const json_t *given = json_object_get(grade->exchange->body, "policy");
    json_t *policy =
        given ? json_incref((json_t *)given) : json_deep_copy(grade->exchange->box->policy);

    if (status == 201)
        grade->state = take_box(grade, json_array_get(names, 0));
    json_decref(answer);
    /* A guest that hinders the copy loses its processes. */
    bool is_hindered = status >= 500 && status != 503 && !grade->was_killed;
    if (grade->state) {
        ask(grade, "", "",
            json_pack("{s:o, s:i}", "policy", policy ? policy : json_object(), "idle_s", 3600),
            on_root);
        return;
    }
    json_decref(policy);
    if (!is_hindered) {
        pass_on(grade, status, body);
        return;
    }
    grade->was_killed = true;
    ask(grade, grade->exchange->box->name, "/signal", json_pack("{s:s}", "signal", "KILL"),
        on_killed);
}

static void fork_state(struct grade *grade) {
    ask(grade, grade->exchange->box->name, "/fork",
        json_pack("{s:i, s:s}", "n", 1, "processes", "drop"), on_state);
}

/* ---- the request ---- */

static const char *outputs_fault(const json_t *outputs) {
    json_t *one;
    size_t i;

    if (!json_is_array(outputs) || !json_array_size(outputs) ||
        json_array_size(outputs) > OUTPUTS_MAX)
        return "outputs must be a list of 1 to 256 paths of files";
    json_array_foreach((json_t *)outputs, i, one) {
        const char *path = json_string_value(one);

        if (!path || strlen(path) != json_string_length(one) || path[0] != '/' || !path[1] ||
            path[strlen(path) - 1] == '/' || strstr(path, "/../") ||
            (strlen(path) > 2 && !strcmp(path + strlen(path) - 3, "/..")))
            return "an output must be an absolute path of a file, without \"..\"";
    }
    return NULL;
}

static void on_gone(struct exchange *exchange) {
    if (!exchange->operation)
        exchange_done(exchange);
}

void handle_grade(struct exchange *exchange) {
    json_t *outputs = json_object_get(exchange->body, "outputs");
    const json_t *env = json_object_get(exchange->body, "env");
    const char *fault = outputs_fault(outputs);
    char digits[17];

    if (!fault && env && !json_is_object(env))
        fault = "env must be an object of strings";
    if (!fault && !json_object_get(exchange->body, "policy") && !exchange->box->policy)
        fault =
            "policy is missing: the server has not made this sandbox, and does not know its own";
    if (fault) {
        exchange_problem(exchange, 400, "invalid_argument", "%s", fault);
        return;
    }
    struct grade *grade = calloc(1, sizeof *grade);
    if (!grade) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    grade->exchange = exchange;
    grade->server = exchange->server;
    grade->tenant = exchange->tenant;
    grade->outputs = json_incref(outputs);
    grade->missing = json_array();
    digits_random(8, digits);
    (void)snprintf(grade->home, sizeof grade->home, "/tmp/.grade-%s", digits);
    exchange->data = grade;
    exchange->free_data = free_grade;
    exchange->gone = on_gone;
    fork_state(grade);
}
