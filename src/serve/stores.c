/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images and volumes of the server's machine, and imports: requests that rollbox-store carries out
 * (store_worker.h). Every tenant may see images and use them. To change the store, or see volumes,
 * a token needs the scope "host": these belong to the machine and not to a tenant.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "serve/relay.h"
#include "serve/side_watch.h"
#include "serve/store_worker.h"

#define ARGUMENTS_MAX 16

const char *const image_keys[] = { "reference", "name", "platform", "missing", NULL };
const char *const volume_keys[] = { "name", "size", NULL };

struct store_job {
    struct pool_job job;
    struct exchange *exchange;
    int socket;
    char *arguments[ARGUMENTS_MAX + 1];
    int status; /* of the answer */
    char *json;
    struct rollbox_error error;
    int r;
};

static void work(struct pool_job *pool_job) {
    struct store_job *job = container_of(pool_job, struct store_job, job);

    job->r = store_worker_run(
        job->socket, (const char *const *)job->arguments, -1, &job->json, &job->error);
}

static void done(struct pool_job *pool_job) {
    struct store_job *job = container_of(pool_job, struct store_job, job);

    if (job->r < 0)
        exchange_fail(job->exchange, &job->error);
    else if (job->status == 204)
        exchange_answer(job->exchange, 204, "", NULL);
    else
        exchange_answer(job->exchange, job->status, job->json, NULL);
    for (size_t i = 0; job->arguments[i]; i++)
        free(job->arguments[i]);
    free(job->json);
    free(job);
}

/* Runs the program with these arguments, NULL-terminated. */
static void run(struct exchange *exchange, int status, const char *const *arguments) {
    struct store_job *job = calloc(1, sizeof *job);
    bool ok = job != NULL;

    for (size_t i = 0; ok && i < ARGUMENTS_MAX && arguments[i]; i++)
        ok = (job->arguments[i] = strdup(arguments[i])) != NULL;
    if (!ok) {
        for (size_t i = 0; job && i < ARGUMENTS_MAX; i++)
            free(job->arguments[i]);
        free(job);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    job->job = (struct pool_job){ .work = work, .done = done };
    job->exchange = exchange;
    job->socket = exchange->server->store_socket;
    job->status = status;
    pool_submit(exchange->server->transfers, &job->job);
}

/* ---- images ---- */

void handle_images(struct exchange *exchange) {
    run(exchange, 200, (const char *const[]){ "ls", "--json", NULL });
}

void handle_image(struct exchange *exchange) {
    run(exchange, 200,
        (const char *const[]){ "inspect", "--json", "--", exchange->parameters[0], NULL });
}

void handle_image_delete(struct exchange *exchange) {
    run(exchange, 204,
        (const char *const[]){ "rm", "--json", "--", exchange->parameters[0], NULL });
}

void handle_image_pull(struct exchange *exchange) {
    const char *reference = NULL, *name = NULL, *platform = NULL;
    const char *arguments[ARGUMENTS_MAX + 1] = { "pull", "--json", "--no-progress" };
    bool missing = false;
    size_t n = 3;

    if (!exchange_string(exchange, "reference", &reference) ||
        !exchange_string(exchange, "name", &name) ||
        !exchange_string(exchange, "platform", &platform) ||
        !exchange_boolean(exchange, "missing", &missing))
        return;
    /* A path names a file of the server's machine, which is another request. */
    if (!reference || strncmp(reference, "docker://", 9) != 0) {
        exchange_problem(exchange, 400, "invalid_argument",
            "reference must be docker://REGISTRY/NAME:TAG, an image of a registry");
        return;
    }
    if (missing)
        arguments[n++] = "--missing";
    if (name) {
        arguments[n++] = "--name";
        arguments[n++] = name;
    }
    if (platform) {
        arguments[n++] = "--platform";
        arguments[n++] = platform;
    }
    arguments[n++] = "--";
    arguments[n++] = reference;
    run(exchange, 201, arguments);
}

/* ---- volumes ---- */

void handle_volumes(struct exchange *exchange) {
    run(exchange, 200, (const char *const[]){ "volume-ls", "--json", NULL });
}

void handle_volume(struct exchange *exchange) {
    run(exchange, 200,
        (const char *const[]){ "volume-inspect", "--json", "--", exchange->parameters[0], NULL });
}

void handle_volume_delete(struct exchange *exchange) {
    run(exchange, 204,
        (const char *const[]){ "volume-rm", "--json", "--", exchange->parameters[0], NULL });
}

void handle_volume_create(struct exchange *exchange) {
    const char *arguments[ARGUMENTS_MAX + 1] = { "volume-create", "--json" };
    const char *name = NULL, *size = NULL;
    size_t n = 2;

    if (!exchange_string(exchange, "name", &name) || !exchange_string(exchange, "size", &size))
        return;
    if (!name) {
        exchange_problem(exchange, 400, "invalid_argument", "name is missing");
        return;
    }
    if (size) {
        arguments[n++] = "--size";
        arguments[n++] = size;
    }
    arguments[n++] = "--";
    arguments[n++] = name;
    run(exchange, 201, arguments);
}

/* ---- imports ---- */

/* Copies all that comes. */
static int spool(int from, int to, struct rollbox_error *error) {
    char piece[(size_t)64 << 10];
    ssize_t n;
    int r = 0;

    while (r >= 0 && ((n = read(from, piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            r = fd_write_all(to, piece, (size_t)n);
    if (r >= 0 && (n < 0 || lseek(to, 0, SEEK_SET) < 0))
        r = -errno;
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
                       "cannot keep the import in a file: %s", strerror(-r))
                 : 0;
}

/* The program seeks in its file. */
static int import_work(struct relay_call *call, int fd, struct rollbox_error *error) {
    auto_close int file = store_worker_file(call->socket, error);
    const char *const arguments[] = { "import-snapshot", "--json", "--name", call->text, "--",
        "/dev/stdin", NULL };

    if (file < 0 || spool(fd, file, error) < 0)
        return -EIO;
    return store_worker_run(call->socket, arguments, file, &call->json, error);
}

/* A file of GET .../export, as the snapshot NAME of the store. */
void handle_import(struct exchange *exchange) {
    struct relay_call *call = calloc(1, sizeof *call);
    auto_buf struct buf name = BUF_INIT;

    if (!http_query(http_request_of(exchange->connection), "name", &name) || !name.length) {
        relay_call_free(call);
        exchange_problem(exchange, 400, "invalid_argument", "the query has no name=NAME");
        return;
    }
    if (call) {
        call->work = import_work;
        call->text = buf_take(&name);
        call->socket = exchange->server->store_socket;
        relay_in(exchange, call);
        return;
    }
    exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
}

/* ---- the worker ---- */

static struct side_watch watch;
static struct loop_source worker_source;

/* It sends nothing: this is its end. */
static void on_worker(struct loop_source *source, uint32_t events) {
    (void)events;
    fprintf(stderr, "rollbox-serve: rollbox-stores has ended; another one is started\n");
    loop_remove(watch.server->loop, source);
    side_watch_lost(&watch);
}

/* Under the number of the socket before: threads may have it. */
static int take_worker(struct server *server, int take_socket) {
    auto_close int socket = take_socket;

    if (dup3(socket, server->store_socket, O_CLOEXEC) < 0)
        return -errno;
    return loop_add(server->loop, &worker_source, server->store_socket, EPOLLIN, on_worker);
}

int stores_start(struct server *server) {
    watch = (struct side_watch){
        .server = server, .side = SIDE_STORES, .helper = &server->keeper_socket, .take = take_worker
    };
    server->store_socket = side_process_start(SIDE_STORES);
    return server->store_socket < 0
               ? server->store_socket
               : loop_add(server->loop, &worker_source, server->store_socket, EPOLLIN, on_worker);
}
