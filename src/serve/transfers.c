/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and trees of sandboxes. librollbox's calls on files block, so a thread of the pool makes
 * them. The path of a request is absolute in the sandbox: /v1/sandboxes/S/files/tmp/a is /tmp/a.
 *
 * Small files go in one piece. Larger files, and trees, which are tar archives, are
 * streams (relay.h). A body without Content-Length is kept in memory, and has at most
 * 64 MiB.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/files_stream.h"
#include "serve/relay.h"

#define STREAMED_BYTES ((uint64_t)1 << 20) /* that are read */
#define STREAMED_BODY ((uint64_t)8 << 20)  /* that are written */

enum transfer {
    TRANSFER_READ,
    TRANSFER_LIST,
    TRANSFER_STAT,
    TRANSFER_STAT_LINK,
    TRANSFER_WRITE,
    TRANSFER_MKDIR,
    TRANSFER_REMOVE,
    TRANSFER_REMOVE_TREE
};

struct transfer_job {
    struct pool_job job;
    struct exchange *exchange;
    struct box *box;
    struct rollbox_sandbox *handle; /* the box's, which it keeps */
    enum transfer transfer;
    char *path;
    struct buf user, owner; /* of WRITE; empty: none */
    struct buf body;
    unsigned mode;
    void *data;
    size_t length;
    char *json;
    struct rollbox_error error;
    int r;
};

static void work(struct pool_job *pool_job) {
    struct transfer_job *job = container_of(pool_job, struct transfer_job, job);
    struct rollbox_sandbox *box = job->handle;

    switch (job->transfer) {
    case TRANSFER_READ:
        job->r = rollbox_file_read(
            box, job->path, STREAMED_BYTES, &job->data, &job->length, &job->error);
        break;
    case TRANSFER_LIST:
        job->r = rollbox_file_list(box, job->path, &job->json, &job->error);
        break;
    case TRANSFER_STAT:
    case TRANSFER_STAT_LINK:
        job->r = rollbox_file_stat(
            box, job->path, job->transfer == TRANSFER_STAT, &job->json, &job->error);
        break;
    case TRANSFER_WRITE:
        job->r = rollbox_file_write_as(box, job->path, job->body.data ? job->body.data : "",
            job->body.length,
            &(struct rollbox_file_options){ .size = sizeof(struct rollbox_file_options),
                .user = job->user.data,
                .owner = job->owner.data,
                .mode = job->mode },
            &job->error);
        break;
    case TRANSFER_MKDIR:
        job->r = rollbox_file_mkdir(box, job->path, job->mode, &job->error);
        break;
    case TRANSFER_REMOVE:
    case TRANSFER_REMOVE_TREE:
        job->r =
            rollbox_file_remove(box, job->path, job->transfer == TRANSFER_REMOVE_TREE, &job->error);
        break;
    }
}

static struct relay_call *call_of(const struct exchange *exchange,
    int (*stream)(struct relay_call *call, int fd, struct rollbox_error *error)) {
    struct relay_call *call = calloc(1, sizeof *call);
    struct buf path = BUF_INIT;

    buf_printf(&path, "/%s", exchange->parameters[1]);
    if (!call || buf_failed(&path)) {
        buf_done(&path);
        return relay_call_free(call);
    }
    call->work = stream;
    call->text = buf_take(&path);
    return call;
}

static void no_memory(struct exchange *exchange) {
    exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
}

static int read_stream(struct relay_call *call, int fd, struct rollbox_error *error) {
    return files_stream_read(call->sandbox, call->text, fd, error);
}

static void stream_file(struct exchange *exchange) {
    struct relay_call *call = call_of(exchange, read_stream);

    if (call)
        relay_out(exchange, call, "application/octet-stream");
    else
        no_memory(exchange);
}

static bool is_too_large(const struct transfer_job *job) {
    return job->r < 0 && job->transfer == TRANSFER_READ && job->error.error_number == EFBIG &&
           job->exchange->connection;
}

static void done(struct pool_job *pool_job) {
    struct transfer_job *job = container_of(pool_job, struct transfer_job, job);
    struct exchange *exchange = job->exchange;

    if (is_too_large(job))
        stream_file(exchange);
    else if (job->r < 0)
        exchange_fail(exchange, &job->error);
    else if (job->transfer == TRANSFER_READ)
        exchange_bytes(exchange, job->data, job->length);
    else if (job->json)
        exchange_answer(exchange, 200, job->json, NULL);
    else
        exchange_answer(exchange, 204, "", NULL);
    box_unref(job->box);
    free(job->path);
    free(job->data);
    free(job->json);
    buf_done(&job->user);
    buf_done(&job->owner);
    buf_done(&job->body);
    free(job);
}

static void submit(struct exchange *exchange, enum transfer transfer, unsigned mode) {
    struct http_request *request = http_request_of(exchange->connection);
    struct transfer_job *job = calloc(1, sizeof *job);
    struct buf path = BUF_INIT;

    buf_printf(&path, "/%s", exchange->parameters[1]);
    if (!job || buf_failed(&path)) {
        free(job);
        buf_done(&path);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    job->job = (struct pool_job){ .work = work, .done = done };
    job->exchange = exchange;
    job->box = exchange->box;
    job->box->references++;
    job->handle = job->box->handle;
    job->transfer = transfer;
    job->path = buf_take(&path);
    job->mode = mode;
    if (transfer == TRANSFER_WRITE) {
        (void)http_query(request, "user", &job->user);
        (void)http_query(request, "owner", &job->owner);
    }
    job->body = request->body;
    request->body = BUF_INIT;
    pool_submit(exchange->server->pool, &job->job);
}

static bool asks(struct exchange *exchange, const char *name) {
    auto_buf struct buf value = BUF_INIT;

    return http_query(http_request_of(exchange->connection), name, &value);
}

void handle_file_get(struct exchange *exchange) {
    auto_buf struct buf follow = BUF_INIT;
    enum transfer transfer = TRANSFER_READ;

    if (asks(exchange, "list"))
        transfer = TRANSFER_LIST;
    else if (asks(exchange, "stat"))
        transfer = TRANSFER_STAT;
    if (transfer == TRANSFER_STAT &&
        http_query(http_request_of(exchange->connection), "follow", &follow) && follow.data &&
        !strcmp(follow.data, "0"))
        transfer = TRANSFER_STAT_LINK;
    submit(exchange, transfer, 0);
}

static bool mode_of(struct exchange *exchange, unsigned *ret_mode) {
    auto_buf struct buf text = BUF_INIT;
    unsigned long mode;
    char *end;

    if (!http_query(http_request_of(exchange->connection), "mode", &text) || !text.data)
        return true;
    mode = strtoul(text.data, &end, 8);
    if (*end || !mode || mode > 0777) {
        exchange_problem(exchange, 400, "invalid_argument", "mode must be octal, 1 to 777");
        return false;
    }
    *ret_mode = (unsigned)mode;
    return true;
}

static struct rollbox_file_options options_of(const struct relay_call *call) {
    return (struct rollbox_file_options){ .size = sizeof(struct rollbox_file_options),
        .user = call->user.data,
        .owner = call->owner.data,
        .mode = call->mode };
}

static int write_stream(struct relay_call *call, int fd, struct rollbox_error *error) {
    const struct rollbox_file_options options = options_of(call);

    return files_stream_write(call->sandbox, call->text, fd, call->size, &options, error);
}

/* Whether the body is a stream. The head is there. */
bool transfer_is_streamed(const struct http_request *request, uint64_t *ret_size) {
    const char *length = http_header(request, "content-length");

    *ret_size = length ? strtoull(length, NULL, 10) : 0;
    return *ret_size > STREAMED_BODY;
}

static void take_stream(struct exchange *exchange, struct relay_call *take_call) {
    const struct http_request *request = http_request_of(exchange->connection);

    (void)http_query(request, "user", &take_call->user);
    (void)http_query(request, "owner", &take_call->owner);
    relay_in(exchange, take_call);
}

void handle_file_put(struct exchange *exchange) {
    bool mkdir = asks(exchange, "mkdir");
    unsigned mode = mkdir ? 0755 : 0644;
    uint64_t size;

    if (!mode_of(exchange, &mode))
        return;
    if (mkdir || !transfer_is_streamed(http_request_of(exchange->connection), &size)) {
        submit(exchange, mkdir ? TRANSFER_MKDIR : TRANSFER_WRITE, mode);
        return;
    }
    struct relay_call *call = call_of(exchange, write_stream);
    if (!call) {
        no_memory(exchange);
        return;
    }
    call->mode = mode;
    call->size = size;
    take_stream(exchange, call);
}

/* ---- trees ---- */

static int archive_work(struct relay_call *call, int fd, struct rollbox_error *error) {
    return files_stream_archive(call->sandbox, call->text, fd, error);
}

static int extract_work(struct relay_call *call, int fd, struct rollbox_error *error) {
    const struct rollbox_file_options options = options_of(call);

    return files_stream_extract(call->sandbox, call->text, fd, &options, error);
}

void handle_tree_get(struct exchange *exchange) {
    struct relay_call *call = call_of(exchange, archive_work);

    if (call)
        relay_out(exchange, call, "application/x-tar");
    else
        no_memory(exchange);
}

void handle_tree_put(struct exchange *exchange) {
    struct relay_call *call = call_of(exchange, extract_work);

    if (call)
        take_stream(exchange, call);
    else
        no_memory(exchange);
}

void handle_file_delete(struct exchange *exchange) {
    submit(exchange, asks(exchange, "recursive") ? TRANSFER_REMOVE_TREE : TRANSFER_REMOVE, 0);
}
