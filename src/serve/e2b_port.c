/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service in a sandbox, at a port that is none of E2B's own. The request is built again from
 * what the server has read, and ends its connection, so nothing of it can be taken for another
 * request. WebSocket works, too.
 *
 * A proxy in front of the server may keep a connection for requests of other clients, and a service
 * is not trusted. So every answer has "Connection: close" and no other such line, and nothing
 * that comes after the request reaches the service unless it has accepted an upgrade.
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
#define ANSWER_HEAD_MAX ((size_t)64 << 10)

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
    struct buf out;  /* for the service */
    struct buf head; /* of its answer, as far as it has come */
    bool is_working, is_full, wants_upgrade;
    bool has_begun;   /* the client has the answer's head */
    bool is_upgraded; /* bytes of the client go to the service */
};

static void on_ready(struct loop_source *source, uint32_t events);

static void free_relay(struct relay *relay) {
    loop_remove(relay->loop, &relay->source);
    close_fd(&relay->fd);
    buf_done(&relay->out);
    buf_done(&relay->head);
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

/* The service has no answer that could be passed on. */
static void refuse(struct relay *relay, const char *detail) {
    struct exchange *exchange = TAKE_PTR(relay->exchange);

    free_relay(relay);
    exchange->data = NULL;
    exchange_problem(exchange, 502, "protocol", "the service in the sandbox: %s", detail);
}

static void end(struct relay *relay) {
    if (relay->exchange && !relay->has_begun) {
        refuse(relay, "it closed the connection before its answer");
        return;
    }
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
    if (relay->is_upgraded && relay->exchange)
        http_pause(relay->exchange->connection, relay->out.length >= HTTP_UNSENT_MAX);
    wait_for(relay);
    return true;
}

static void send_to_client(struct relay *relay, const void *data, size_t length) {
    if (length)
        relay->is_full = http_write(relay->exchange->connection, data, length) >= HTTP_UNSENT_MAX;
}

/* The status of a head, as "HTTP/1.x NNN"; 0: it is none. */
static int status_of(const char *head, size_t length) {
    static const char version[] = "HTTP/1.";
    const size_t at = sizeof version + 1;

    if (length < at + 4 || memcmp(head, version, sizeof version - 1) != 0 || head[at - 1] != ' ' ||
        strspn(head + at, "0123456789") != 3)
        return 0;
    return (int)strtol(head + at, NULL, 10);
}

/* A head without the lines about the connection, which is closed after the answer. */
static void close_head(struct buf *to, const char *head, size_t length) {
    static const char *const names[] = { "connection", "keep-alive", "proxy-connection",
        "upgrade" };

    for (size_t at = 0; at < length - 2;) {
        const char *end = memmem(head + at, length - at, "\r\n", 2);
        size_t n = (size_t)(end - head) + 2 - at, name = strcspn(head + at, ": \t\r");
        bool is_kept = true;

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            if (name == strlen(names[i]) && !strncasecmp(head + at, names[i], name))
                is_kept = false;
        if (is_kept)
            buf_add(to, head + at, n);
        at += n;
    }
    buf_add_text(to, "Connection: close\r\n\r\n");
}

/* Passes the answer's head on. False: it is refused, and the relay is freed. */
static bool begin_answer(struct relay *relay, int status, size_t length) {
    struct http_connection *connection = relay->exchange->connection;
    auto_buf struct buf first = BUF_INIT;

    if (status == 101 && !relay->wants_upgrade) {
        refuse(relay, "it changes the protocol, and the request did not ask for it");
        return false;
    }
    relay->has_begun = true;
    relay->is_upgraded = status == 101;
    if (relay->is_upgraded)
        buf_add(&first, relay->head.data, length);
    else
        close_head(&first, relay->head.data, length);
    buf_add(&first, relay->head.data + length, relay->head.length - length);
    http_take_over(connection);
    http_pause(connection, !relay->is_upgraded);
    if (!buf_failed(&first))
        send_to_client(relay, first.data, first.length);
    buf_done(&relay->head);
    return true;
}

/* Takes bytes of the answer's head. Interim answers are left out. False: the relay is freed. */
static bool take_head(struct relay *relay, const char *data, size_t length) {
    struct buf *head = &relay->head;
    const char *end;

    buf_add(head, data, length);
    while (!buf_failed(head) && head->length &&
           (end = memmem(head->data, head->length, "\r\n\r\n", 4))) {
        size_t n = (size_t)(end - head->data) + 4;
        int status = http_head_fault(head->data, n) ? 0 : status_of(head->data, n);

        if (status < 100) {
            refuse(relay, "its answer is not of HTTP/1.1");
            return false;
        }
        if (status == 101 || status >= 200)
            return begin_answer(relay, status, n);
        head->length -= n;
        memmove(head->data, head->data + n, head->length);
    }
    if (!buf_failed(head) && head->length <= ANSWER_HEAD_MAX &&
        !(head->length && http_head_fault(head->data, head->length)))
        return true;
    refuse(relay, "the head of its answer is malformed or too large");
    return false;
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
    if (relay->has_begun)
        send_to_client(relay, piece, (size_t)n);
    else if (!take_head(relay, piece, (size_t)n))
        return;
    wait_for(relay);
}

static void on_input(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct relay *relay = exchange->data;

    (void)is_end;
    if (!relay || !relay->is_upgraded)
        return;
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
    (void)loop_add(relay->loop, &relay->source, relay->fd, EPOLLIN | EPOLLOUT, on_ready);
}

void handle_e2b_port(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);

    if (!e2b_of(exchange))
        return;
    struct relay *relay = calloc(1, sizeof *relay);
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
    relay->wants_upgrade = request->wants_upgrade;
    write_request(relay, request);
    exchange->data = relay;
    exchange->gone = on_gone;
    pool_submit(exchange->server->pool, &relay->job);
}
