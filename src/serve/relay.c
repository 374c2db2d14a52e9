/* SPDX-License-Identifier: Apache-2.0 */
/* Streams between clients and calls that block; relay.h has the model. */
#include "serve/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"

#define PIECE_BYTES ((size_t)64 << 10)

struct relay {
    struct pool_job job;
    struct exchange *exchange; /* NULL once the client is gone */
    struct relay_call *call;
    struct loop *loop;
    struct loop_source source;
    struct box *box; /* referenced; NULL: none */
    const char *type;
    int ours, theirs; /* ends of the pipe; -EBADF: closed */
    bool is_in, has_begun, has_ended, failed, body_ended;
    struct buf pending; /* of the body */
    struct rollbox_error error;
};

struct relay_call *relay_call_free(struct relay_call *call) {
    if (!call)
        return NULL;
    free(call->text);
    free(call->json);
    buf_done(&call->user);
    buf_done(&call->owner);
    free(call);
    return NULL;
}

static void free_relay(struct relay *relay) {
    loop_remove(relay->loop, &relay->source);
    close_fd(&relay->ours);
    close_fd(&relay->theirs);
    box_unref(relay->box);
    buf_done(&relay->pending);
    relay->call = relay_call_free(relay->call);
    free(relay);
}

static void work(struct pool_job *job) {
    struct relay *relay = container_of(job, struct relay, job);

    relay->failed = relay->call->work(relay->call, relay->theirs, &relay->error) < 0;
}

/* Takes the exchange from the relay. */
static struct exchange *let_go(struct relay *relay) {
    struct exchange *exchange = TAKE_PTR(relay->exchange);

    exchange->data = NULL;
    exchange->input = NULL;
    exchange->writable = NULL;
    return exchange;
}

static void end_out(struct relay *relay) {
    struct exchange *exchange = let_go(relay);

    if (!relay->has_begun && relay->failed) {
        exchange_fail(exchange, &relay->error);
        return;
    }
    struct http_connection *connection = exchange->connection;
    exchange->connection = NULL;
    *http_data(connection) = NULL;
    exchange_done(exchange);
    if (!relay->has_begun)
        http_begin(connection, 200, relay->type, NULL);
    (relay->failed ? http_abort : http_end)(connection);
}

static void end_in(struct relay *relay) {
    struct exchange *exchange = let_go(relay);

    if (relay->failed)
        exchange_fail(exchange, &relay->error);
    else if (relay->call->json)
        exchange_answer(exchange, 201, relay->call->json, NULL);
    else
        exchange_answer(exchange, 204, "", NULL);
}

/* Answers once the thread has ended, and of an answer in pieces once the pipe is empty. */
static void end_when_complete(struct relay *relay) {
    if (!relay->has_ended)
        return;
    if (relay->exchange && !relay->is_in && relay->ours >= 0)
        return;
    if (relay->exchange)
        (relay->is_in ? end_in : end_out)(relay);
    free_relay(relay);
}

static void done(struct pool_job *job) {
    struct relay *relay = container_of(job, struct relay, job);

    relay->has_ended = true;
    close_fd(&relay->theirs);
    end_when_complete(relay);
}

static void on_gone(struct exchange *exchange) {
    struct relay *relay = exchange->data;

    (void)let_go(relay);
    loop_remove(relay->loop, &relay->source);
    close_fd(&relay->ours); /* so the thread's end of it fails */
    exchange_done(exchange);
    end_when_complete(relay);
}

/* ---- to the client ---- */

static void on_readable(struct loop_source *source, uint32_t events) {
    struct relay *relay = container_of(source, struct relay, source);
    static char piece[PIECE_BYTES];
    ssize_t n = read(relay->ours, piece, sizeof piece);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        loop_remove(relay->loop, &relay->source);
        close_fd(&relay->ours);
        end_when_complete(relay);
        return;
    }
    struct http_connection *connection = relay->exchange->connection;
    if (!relay->has_begun)
        http_begin(connection, 200, relay->type, NULL);
    relay->has_begun = true;
    if (http_write(connection, piece, (size_t)n) >= HTTP_UNSENT_MAX)
        loop_remove(relay->loop, &relay->source);
}

static void on_writable(struct exchange *exchange) {
    struct relay *relay = exchange->data;

    if (relay && relay->ours >= 0 && relay->source.fd < 0)
        (void)loop_add(relay->loop, &relay->source, relay->ours, EPOLLIN, on_readable);
}

/* ---- from the client ---- */

/* Writes what is pending. The client is not read while some is left. */
static void write_pending(struct relay *relay) {
    size_t at = 0;

    while (relay->ours >= 0 && at < relay->pending.length) {
        ssize_t n = write(relay->ours, relay->pending.data + at, relay->pending.length - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            /* The call reads no more; its end says why. The rest of the body is dropped. */
            loop_remove(relay->loop, &relay->source);
            close_fd(&relay->ours);
            break;
        }
        at += (size_t)n;
    }
    bool is_full = relay->ours >= 0 && at < relay->pending.length;
    if (is_full && at) {
        memmove(relay->pending.data, relay->pending.data + at, relay->pending.length - at);
        relay->pending.length -= at;
    } else if (!is_full) {
        buf_done(&relay->pending);
    }
    if (relay->ours >= 0)
        (void)loop_modify(relay->loop, &relay->source, is_full ? EPOLLOUT : 0);
    if (relay->exchange && relay->exchange->connection)
        http_pause(relay->exchange->connection, is_full);
    if (!is_full && relay->body_ended && relay->ours >= 0) {
        loop_remove(relay->loop, &relay->source);
        close_fd(&relay->ours);
    }
}

static void on_room(struct loop_source *source, uint32_t events) {
    struct relay *relay = container_of(source, struct relay, source);

    if (events & EPOLLOUT) {
        write_pending(relay);
        return;
    }
    /* The call has closed its end. */
    loop_remove(relay->loop, &relay->source);
    close_fd(&relay->ours);
    write_pending(relay);
}

static void on_input(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct relay *relay = exchange->data;

    relay->body_ended = is_end;
    if (relay->ours < 0)
        return;
    buf_add(&relay->pending, data, length);
    write_pending(relay);
}

/* ---- both ---- */

static void start(
    struct exchange *exchange, struct relay_call *take_call, const char *type, bool is_in) {
    struct relay *relay = calloc(1, sizeof *relay);
    int pair[2] = { -1, -1 };

    if (!relay || pipe2(pair, O_CLOEXEC) < 0) {
        free(relay);
        relay_call_free(take_call);
        exchange_problem(
            exchange, 503, "resource_exhausted", "the server has no room for a stream");
        return;
    }
    relay->is_in = is_in;
    relay->type = type;
    relay->call = take_call;
    relay->exchange = exchange;
    relay->loop = exchange->server->loop;
    relay->box = exchange->box;
    if (relay->box) {
        relay->box->references++;
        take_call->sandbox = relay->box->handle;
    }
    relay->ours = pair[is_in];
    relay->theirs = pair[!is_in];
    relay->job = (struct pool_job){ .work = work, .done = done };
    (void)fcntl(relay->ours, F_SETFL, O_NONBLOCK | (is_in ? O_WRONLY : O_RDONLY));
    (void)loop_add(relay->loop, &relay->source, relay->ours, is_in ? 0 : EPOLLIN,
        is_in ? on_room : on_readable);
    exchange->data = relay;
    exchange->gone = on_gone;
    exchange->writable = is_in ? NULL : on_writable;
    exchange->input = is_in ? on_input : NULL;
    pool_submit(exchange->server->transfers, &relay->job);
}

void relay_out(struct exchange *exchange, struct relay_call *take_call, const char *type) {
    start(exchange, take_call, type, false);
}

void relay_in(struct exchange *exchange, struct relay_call *take_call) {
    start(exchange, take_call, NULL, true);
}
