/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service in a sandbox, at a port that is none of E2B's own. The request is built again from
 * what the server has read, and ends its connection, so nothing of it can be taken for another
 * request. The service's answer is passed on as it is, up to its end. WebSocket works, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "serve/e2b_port.h"

#define PIECE_BYTES ((size_t)64 << 10)

struct relay {
    struct pool_job job;
    struct exchange *exchange; /* NULL: the client has left */
    struct loop *loop;
    struct box *box;
    struct rollbox_sandbox *handle;
    unsigned port;
    int fd, r;
    struct rollbox_error error;
    struct loop_source source;
    struct buf out; /* for the service */
    bool is_working, is_full;
};

static void on_ready(struct loop_source *source, uint32_t events);

static void free_relay(struct relay *relay) {
    loop_remove(relay->loop, &relay->source);
    close_fd(&relay->fd);
    buf_done(&relay->out);
    box_unref(relay->box);
    free(relay);
}

/* ---- the request for the service ---- */

static bool is_dropped(const char *name) {
    static const char *const names[] = { "connection", "keep-alive", "te", "trailer",
        "transfer-encoding", "content-length", "expect", "proxy-authorization", "e2b-sandbox-id",
        "e2b-sandbox-port", "x-access-token", "e2b-traffic-access-token", "x-api-key" };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcasecmp(names[i], name))
            return true;
    return false;
}

static void write_request(struct relay *relay, const struct http_request *request) {
    struct buf *out = &relay->out;

    buf_printf(out, "%s %s%s%s HTTP/1.1\r\n", request->method, request->path,
        *request->query ? "?" : "", request->query);
    for (unsigned i = 0; i < request->n_headers; i++) {
        const char *name = request->text.data + request->headers[i].name;

        if (!is_dropped(name))
            buf_printf(out, "%s: %s\r\n", name, request->text.data + request->headers[i].value);
    }
    if (request->body.length || !strcmp(request->method, "POST") || !strcmp(request->method, "PUT"))
        buf_printf(out, "Content-Length: %zu\r\n", request->body.length);
    buf_printf(out, "Connection: %s\r\n\r\n", request->wants_upgrade ? "Upgrade" : "close");
    buf_add(out, request->body.data ? request->body.data : "", request->body.length);
}

/* ---- bytes ---- */

static void end(struct relay *relay) {
    struct exchange *exchange = TAKE_PTR(relay->exchange);
    struct http_connection *connection = exchange ? TAKE_PTR(exchange->connection) : NULL;

    if (exchange) {
        exchange->data = NULL;
        if (connection)
            *http_data(connection) = NULL;
        exchange_done(exchange);
    }
    free_relay(relay);
    if (connection)
        http_end(connection);
}

static void wait_for(struct relay *relay) {
    uint32_t events = relay->is_full ? 0 : EPOLLIN;

    if (relay->out.length)
        events |= EPOLLOUT;
    (void)loop_modify(relay->loop, &relay->source, events);
}

/* False: it has ended. */
static bool send_out(struct relay *relay) {
    while (relay->out.length) {
        ssize_t n = send(relay->fd, relay->out.data, relay->out.length, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            end(relay);
            return false;
        }
        relay->out.length -= (size_t)n;
        memmove(relay->out.data, relay->out.data + n, relay->out.length);
    }
    if (relay->exchange && relay->exchange->connection)
        http_pause(relay->exchange->connection, relay->out.length >= HTTP_UNSENT_MAX);
    wait_for(relay);
    return true;
}

static void on_ready(struct loop_source *source, uint32_t events) {
    struct relay *relay = container_of(source, struct relay, source);
    static char piece[PIECE_BYTES];

    if (events & EPOLLOUT && !send_out(relay))
        return;
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    ssize_t n = read(relay->fd, piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end(relay);
        return;
    }
    relay->is_full = http_write(relay->exchange->connection, piece, (size_t)n) >= HTTP_UNSENT_MAX;
    wait_for(relay);
}

static void on_input(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct relay *relay = exchange->data;

    (void)is_end;
    buf_add(&relay->out, data, length);
    (void)send_out(relay);
}

static void on_writable(struct exchange *exchange) {
    struct relay *relay = exchange->data;

    if (!relay)
        return;
    relay->is_full = false;
    if (relay->source.fd >= 0)
        wait_for(relay);
}

static void on_gone(struct exchange *exchange) {
    struct relay *relay = exchange->data;

    exchange->data = NULL;
    exchange_done(exchange);
    relay->exchange = NULL;
    if (!relay->is_working)
        free_relay(relay);
}

/* ---- connecting ---- */

static void work(struct pool_job *job) {
    struct relay *relay = container_of(job, struct relay, job);

    relay->r = rollbox_connect(relay->handle, relay->port, &relay->fd, &relay->error);
}

static void done(struct pool_job *job) {
    struct relay *relay = container_of(job, struct relay, job);
    struct exchange *exchange = relay->exchange;

    relay->is_working = false;
    if (!exchange || !exchange->connection) {
        if (exchange)
            on_gone(exchange);
        else
            free_relay(relay);
        return;
    }
    if (relay->r < 0) {
        unsigned port = relay->port;
        bool is_closed = relay->error.code == ROLLBOX_ERR_NOT_FOUND;
        struct rollbox_error error = relay->error;

        exchange->data = NULL;
        relay->fd = -EBADF;
        free_relay(relay);
        exchange_problem(exchange, 502, "port_closed",
            is_closed ? "the sandbox is running but port is not open: %u (%s)"
                      : "the sandbox is running but port is not open for clients: %u (%s)",
            port, is_closed ? "nothing listens there" : error.message);
        return;
    }
    exchange->input = on_input;
    exchange->writable = on_writable;
    http_take_over(exchange->connection);
    (void)loop_add(relay->loop, &relay->source, relay->fd, EPOLLIN | EPOLLOUT, on_ready);
}

void handle_e2b_port(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    struct relay *relay = e2b_of(exchange) ? calloc(1, sizeof *relay) : NULL;

    if (!exchange->box || !exchange->box->e2b)
        return;
    if (!relay) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    relay->exchange = exchange;
    relay->loop = exchange->server->loop;
    relay->box = exchange->box;
    relay->box->references++;
    relay->handle = relay->box->handle;
    relay->port = exchange->port;
    relay->fd = -EBADF;
    relay->source.fd = -1;
    relay->job = (struct pool_job){ .work = work, .done = done };
    relay->is_working = true;
    write_request(relay, request);
    exchange->data = relay;
    exchange->gone = on_gone;
    pool_submit(exchange->server->pool, &relay->job);
}
