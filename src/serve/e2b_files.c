/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of sandboxes as E2B's daemon offers them: calls of the Connect protocol, and /files. A
 * thread of the pool makes librollbox's calls, as for the native API (transfers.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/e2b.h"
#include "serve/e2b_entries.h"
#include "serve/inflate.h"
#include "serve/upload_form.h"

#define READ_MAX ((uint64_t)64 << 20)
#define FILES_MAX 1000u
#define ENTRIES_MAX 100000u /* of a list */
#define MOVE_TIMEOUT_MS 60000

/* ---- users and paths ---- */

/* The user of Basic authentication, or of "username"; "" is the default one. */
static void user_of(struct exchange *exchange, struct buf *user) {
    const struct http_request *request = http_request_of(exchange->connection);
    const char *header = http_header(request, "authorization");

    if (header && !strncmp(header, "Basic ", 6)) {
        (void)base64_decode(header + 6, strlen(header + 6), user);
        if (user->data && strchr(user->data, ':'))
            *strchr(user->data, ':') = '\0';
    } else {
        (void)http_query(request, "username", user);
    }
}

/* A sandbox of these clients has one user, which is root. "user" is the same one with another home
 * directory. */
bool e2b_user_ok(struct exchange *exchange) {
    auto_buf struct buf user = BUF_INIT;

    user_of(exchange, &user);
    if (!user.data || !*user.data || !strcmp(user.data, "root") || !strcmp(user.data, "user"))
        return true;
    exchange_problem(exchange, 401, "user_unknown",
        "there is no user \"%.64s\": the sandbox has root, who is \"user\", too", user.data);
    return false;
}

bool e2b_is_root(struct exchange *exchange) {
    auto_buf struct buf user = BUF_INIT;

    user_of(exchange, &user);
    return user.data && !strcmp(user.data, "root");
}

/* Takes the components one by one. */
static void add_components(struct buf *to, const char *path) {
    while (*path) {
        size_t n = strcspn(path, "/");

        if (n == 2 && path[0] == '.' && path[1] == '.') {
            while (to->length && to->data[to->length - 1] != '/')
                to->length--;
            to->length -= to->length != 0;
        } else if (n && !(n == 1 && path[0] == '.')) {
            buf_add_text(to, "/");
            buf_add(to, path, n);
        }
        path += n + (path[n] == '/');
    }
    if (to->data)
        to->data[to->length] = '\0';
}

char *e2b_path(struct exchange *exchange, const char *path) {
    const struct e2b_box *e2b = e2b_of(exchange);
    struct buf whole = BUF_INIT;

    if (!e2b)
        return NULL;
    if (path[0] == '~' && (!path[1] || path[1] == '/'))
        path += 1 + (path[1] == '/');
    else if (path[0] == '/')
        e2b = NULL;
    if (e2b)
        add_components(&whole, e2b_is_root(exchange) ? e2b->root_home : e2b->home);
    add_components(&whole, path);
    if (!whole.length)
        buf_add_text(&whole, "/");
    char *text = buf_take(&whole);
    if (!text)
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    return text;
}

/* The path in that member of the body; NULL: the answer is given. */
static char *path_in(struct exchange *exchange, const char *key) {
    const char *path = "";

    return exchange_string(exchange, key, &path) ? e2b_path(exchange, path) : NULL;
}

/* ---- jobs ---- */

struct file_job {
    struct pool_job job;
    struct exchange *exchange;
    struct box *box;
    struct rollbox_sandbox *handle;
    void (*work)(struct file_job *job);
    char *path, *to;
    int64_t depth;
    struct buf body;
    struct file_part {
        char *path;
        const char *data; /* in `body` */
        size_t length;
    } * parts;
    size_t n_parts;
    void *data; /* what was read */
    size_t length;
    json_t *answer, *metadata; /* `metadata` of an upload */
    struct rollbox_error error;
    int r;
};

static void work(struct pool_job *pool_job) {
    struct file_job *job = container_of(pool_job, struct file_job, job);

    job->work(job);
}

static void free_job(struct file_job *job) {
    for (size_t i = 0; i < job->n_parts; i++)
        free(job->parts[i].path);
    free(job->parts);
    box_unref(job->box);
    free(job->path);
    free(job->to);
    free(job->data);
    json_decref(job->answer);
    json_decref(job->metadata);
    buf_done(&job->body);
    free(job);
}

static void fail(struct file_job *job, enum rollbox_error_code code, int number, const char *text) {
    job->error = (struct rollbox_error){ .code = code, .error_number = number, .stage = "files" };
    (void)snprintf(job->error.message, sizeof job->error.message, "%.500s: %s",
        job->path ? job->path : "files", text);
    job->r = -number;
}

static void move_work(struct file_job *job), remove_work(struct file_job *job);

/* The metadata of files follows what the job has done. */
static void follow_metadata(struct file_job *job) {
    struct e2b_box *e2b = job->box->e2b;

    if (!e2b)
        return;
    for (size_t i = 0; i < job->n_parts && job->r >= 0; i++) {
        if (e2b_metadata_set(e2b, job->parts[i].path, job->metadata))
            continue;
        fail(job, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOSPC,
            "it is written, but the metadata of the sandbox's files have no room for more");
    }
    if (job->work == remove_work || job->work == move_work)
        e2b_metadata_move(e2b, job->path, job->to);
    e2b_metadata_show(e2b, job->answer);
}

static void done(struct pool_job *pool_job) {
    struct file_job *job = container_of(pool_job, struct file_job, job);

    if (job->r >= 0)
        follow_metadata(job);
    if (job->r < 0)
        exchange_fail(job->exchange, &job->error);
    else if (job->data)
        exchange_bytes(job->exchange, job->data, job->length);
    else
        exchange_answer_json(job->exchange, 200, json_incref(job->answer));
    free_job(job);
}

static struct file_job *job_new(struct exchange *exchange, void (*what)(struct file_job *job)) {
    struct file_job *job = calloc(1, sizeof *job);

    if (!job) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    job->job = (struct pool_job){ .work = work, .done = done };
    job->exchange = exchange;
    job->box = exchange->box;
    job->box->references++;
    job->handle = job->box->handle;
    job->work = what;
    return job;
}

static void submit(struct file_job *job) {
    pool_submit(job->exchange->server->pool, &job->job);
}

/* A call with one path in its body. */
static void simple_call(struct exchange *exchange, void (*what)(struct file_job *job)) {
    char *path = e2b_user_ok(exchange) ? path_in(exchange, "path") : NULL;
    struct file_job *job = path ? job_new(exchange, what) : NULL;

    if (!job) {
        free(path);
        return;
    }
    job->path = path;
    job->depth = json_integer_value(json_object_get(exchange->body, "depth"));
    submit(job);
}

/* {"entry": ...} of a path that is there. */
static void answer_entry(struct file_job *job, const char *path) {
    json_t *entry = NULL;

    job->r = entries_stat(job->handle, path, &entry, &job->error);
    if (job->r >= 0)
        job->answer = json_pack("{s:o}", "entry", entry);
}

/* ---- calls ---- */

static void stat_work(struct file_job *job) {
    answer_entry(job, job->path);
}

void handle_e2b_stat(struct exchange *exchange) {
    simple_call(exchange, stat_work);
}

static void list_work(struct file_job *job) {
    json_t *rows = NULL;

    job->r = entries_list(job->handle, job->path, job->depth, ENTRIES_MAX, &rows, &job->error);
    if (job->r >= 0)
        job->answer = json_pack("{s:o}", "entries", rows);
}

void handle_e2b_list_dir(struct exchange *exchange) {
    simple_call(exchange, list_work);
}

static void mkdir_work(struct file_job *job) {
    auto_free char *json = NULL;

    if (rollbox_file_stat(job->handle, job->path, true, &json, NULL) >= 0) {
        fail(job, ROLLBOX_ERR_CONFLICT, EEXIST, "it is there already");
        return;
    }
    job->r = rollbox_file_mkdir(job->handle, job->path, 0755, &job->error);
    if (job->r >= 0)
        answer_entry(job, job->path);
}

void handle_e2b_make_dir(struct exchange *exchange) {
    simple_call(exchange, mkdir_work);
}

/* What is not there is removed. */
static void remove_work(struct file_job *job) {
    job->r = rollbox_file_remove(job->handle, job->path, true, &job->error);
    if (job->r < 0 && job->error.code == ROLLBOX_ERR_NOT_FOUND)
        job->r = 0;
    if (job->r >= 0)
        job->answer = json_object();
}

void handle_e2b_remove(struct exchange *exchange) {
    simple_call(exchange, remove_work);
}

/* By the sandbox's own `mv`, with its rights. */
static void move_work(struct file_job *job) {
    const char *const argv[] = { "mv", "-T", "-f", "--", job->path, job->to, NULL };
    const struct rollbox_exec_options options = { .size = sizeof options,
        .argv = argv,
        .cwd = "/",
        .timeout_ms = MOVE_TIMEOUT_MS,
        .output_limit = -1,
        .input_fd = -1,
        .stream_fds = { -1, -1 } };
    const struct rollbox_result *result;
    struct rollbox_run *run = NULL;
    auto_free char *json = NULL;

    job->r = rollbox_file_stat(job->handle, job->path, false, &json, &job->error);
    if (job->r >= 0)
        job->r = rollbox_exec(job->handle, &options, &run, &job->error);
    if (job->r < 0)
        return;
    /* Bounded by the command's time limit. */
    job->r = rollbox_wait(run, -1, &result);
    if (job->r >= 0 && result->outcome == ROLLBOX_OUTCOME_ERROR) {
        job->error = result->error;
        job->r = -EIO;
    } else if (job->r < 0 || result->outcome != ROLLBOX_OUTCOME_EXIT || result->exit_code) {
        fail(job, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "it cannot be moved there");
    }
    rollbox_run_free(run);
    if (job->r >= 0)
        answer_entry(job, job->to);
}

void handle_e2b_move(struct exchange *exchange) {
    char *from = e2b_user_ok(exchange) ? path_in(exchange, "source") : NULL;
    char *to = from ? path_in(exchange, "destination") : NULL;
    struct file_job *job = to ? job_new(exchange, move_work) : NULL;

    if (!job) {
        free(from);
        free(to);
        return;
    }
    job->path = from;
    job->to = to;
    submit(job);
}

/* ---- /files ---- */

/* The path of the query; NULL: the answer is given. */
static char *path_of_query(struct exchange *exchange) {
    auto_buf struct buf path = BUF_INIT;

    if (http_query(http_request_of(exchange->connection), "path", &path) && path.length)
        return e2b_path(exchange, path.data);
    exchange_problem(exchange, 400, "invalid_argument", "the parameter path is missing");
    return NULL;
}

static void read_work(struct file_job *job) {
    job->r =
        rollbox_file_read(job->handle, job->path, READ_MAX, &job->data, &job->length, &job->error);
    if (job->r >= 0 && !job->data)
        job->data = calloc(1, 1);
}

void handle_e2b_download(struct exchange *exchange) {
    char *path = e2b_user_ok(exchange) ? path_of_query(exchange) : NULL;
    struct file_job *job = path ? job_new(exchange, read_work) : NULL;

    if (!job) {
        free(path);
        return;
    }
    job->path = path;
    submit(job);
}

static void write_work(struct file_job *job) {
    job->answer = json_array();
    for (size_t i = 0; job->r >= 0 && i < job->n_parts; i++) {
        const struct file_part *part = &job->parts[i];
        const char *name = strrchr(part->path, '/');

        job->r = rollbox_file_write(job->handle, part->path, part->length ? part->data : "",
            part->length, 0644, &job->error);
        json_array_append_new(
            job->answer, json_pack("{s:s, s:s, s:s}", "name", name ? name + 1 : part->path, "type",
                             "file", "path", part->path));
    }
}

/* False: the answer is given. */
static bool add_part(struct file_job *job, char *take_path, const char *data, size_t length) {
    struct file_part *more =
        take_path ? realloc(job->parts, (job->n_parts + 1) * sizeof *more) : NULL;

    if (!more) {
        free(take_path);
        return false;
    }
    job->parts = more;
    job->parts[job->n_parts++] =
        (struct file_part){ .path = take_path, .data = data, .length = length };
    return true;
}

/* The form's parts "file"; the query's path, if there is one, names the only one. */
static bool add_form(struct file_job *job, struct form *form, const char *only) {
    struct exchange *exchange = job->exchange;
    struct form_part part;
    int r;

    while ((r = form_next(form, &part)) == 1) {
        bool is_file = part.name.data && !strcmp(part.name.data, "file");
        const char *name = only ? only : part.filename.data;
        const size_t room = only ? 1 : FILES_MAX;
        bool is_right = !is_file || (name && *name && job->n_parts < room);
        char *path = is_right && is_file ? e2b_path(exchange, name) : NULL;

        form_part_done(&part);
        if (!is_right) {
            exchange_problem(exchange, 400, "invalid_argument",
                "a part \"file\" needs a filename; with the parameter path there is one part");
            return false;
        }
        if (is_file && !add_part(job, path, part.data, part.length))
            return false;
    }
    if (r < 0)
        exchange_problem(exchange, 400, "request_invalid", "the form is malformed");
    return r >= 0;
}

static void upload(struct exchange *exchange) {
    struct http_request *request = http_request_of(exchange->connection);
    const char *type = http_header(request, "content-type");
    auto_buf struct buf only = BUF_INIT;
    struct file_job *job = job_new(exchange, write_work);
    struct form form;
    bool is_right = false;

    if (!job)
        return;
    job->body = request->body;
    request->body = BUF_INIT;
    job->metadata = e2b_metadata_of(exchange);
    if (!job->metadata) {
        free_job(job);
        return;
    }
    bool has_path = http_query(request, "path", &only) && only.length;
    if (form_open(&form, type, job->body.data ? job->body.data : "", job->body.length)) {
        is_right = add_form(job, &form, has_path ? only.data : NULL);
        form_done(&form);
    } else if (has_path) {
        char *path = e2b_path(exchange, only.data);

        is_right = path && add_part(job, path, job->body.data, job->body.length);
    } else {
        exchange_problem(exchange, 400, "invalid_argument",
            "the body must be a form with files, or the parameter path names one file");
    }
    if (is_right)
        submit(job);
    else
        free_job(job);
}

/* ---- compressed uploads ---- */

struct inflation {
    struct pool_job job;
    struct exchange *exchange;
    struct buf in, out;
    int r;
};

static void inflate_work(struct pool_job *job) {
    struct inflation *inflation = container_of(job, struct inflation, job);
    const struct buf *in = &inflation->in;

    inflation->r = inflate_gzip(in->data ? in->data : "", in->length, READ_MAX, &inflation->out);
}

static void inflate_done(struct pool_job *job) {
    struct inflation *inflation = container_of(job, struct inflation, job);
    struct exchange *exchange = inflation->exchange;

    if (!exchange->connection) {
        exchange_problem(exchange, 503, "cancelled", "the client has left");
    } else if (inflation->r == -EFBIG) {
        exchange_problem(exchange, 413, "too_large",
            "the body has more than %llu bytes when it is decompressed",
            (unsigned long long)READ_MAX);
    } else if (inflation->r == -ENOMEM) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    } else if (inflation->r < 0) {
        exchange_problem(exchange, 400, "request_invalid",
            "the body is not complete gzip, as Content-Encoding says");
    } else {
        http_request_of(exchange->connection)->body = inflation->out;
        inflation->out = BUF_INIT;
        upload(exchange);
    }
    buf_done(&inflation->in);
    buf_done(&inflation->out);
    free(inflation);
}

static void inflate_first(struct exchange *exchange) {
    struct inflation *inflation = calloc(1, sizeof *inflation);

    if (!inflation) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    inflation->job = (struct pool_job){ .work = inflate_work, .done = inflate_done };
    inflation->exchange = exchange;
    inflation->in = http_request_of(exchange->connection)->body;
    http_request_of(exchange->connection)->body = BUF_INIT;
    pool_submit(exchange->server->pool, &inflation->job);
}

void handle_e2b_upload(struct exchange *exchange) {
    const char *coding = http_header(http_request_of(exchange->connection), "content-encoding");

    if (!e2b_user_ok(exchange))
        return;
    if (!coding || !strcasecmp(coding, "identity"))
        upload(exchange);
    else if (!strcasecmp(coding, "gzip") || !strcasecmp(coding, "x-gzip"))
        inflate_first(exchange);
    else
        exchange_problem(exchange, 415, "request_invalid",
            "the body is compressed (%.32s); this server reads gzip", coding);
}
