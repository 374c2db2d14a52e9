/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of sandboxes. librollbox's calls on files block, so a thread of the pool makes them. The
 * path of a request is absolute in the sandbox: /v1/sandboxes/S/files/tmp/a is /tmp/a.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/server.h"

#define READ_MAX ((uint64_t)64 << 20)

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
        job->r = rollbox_file_read(box, job->path, READ_MAX, &job->data, &job->length, &job->error);
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

static void done(struct pool_job *pool_job) {
    struct transfer_job *job = container_of(pool_job, struct transfer_job, job);
    struct exchange *exchange = job->exchange;

    if (job->r < 0)
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

void handle_file_put(struct exchange *exchange) {
    auto_buf struct buf text = BUF_INIT;
    bool mkdir = asks(exchange, "mkdir");
    unsigned long mode = mkdir ? 0755 : 0644;
    char *end;

    if (http_query(http_request_of(exchange->connection), "mode", &text) && text.data) {
        mode = strtoul(text.data, &end, 8);
        if (*end || !mode || mode > 0777) {
            exchange_problem(exchange, 400, "invalid_argument", "mode must be octal, 1 to 777");
            return;
        }
    }
    submit(exchange, mkdir ? TRANSFER_MKDIR : TRANSFER_WRITE, (unsigned)mode);
}

void handle_file_delete(struct exchange *exchange) {
    submit(exchange, asks(exchange, "recursive") ? TRANSFER_REMOVE_TREE : TRANSFER_REMOVE, 0);
}
