/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the HTTP server. The input goes through a real connection, in two pieces that its
 * first byte divides, to a user that answers every request with one byte. /s takes its body in
 * pieces, and answers in pieces; an upgraded connection gets its bytes back. The server must answer
 * or close, and every request that it hands to its user must have a method and a path.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http.h"

static int on_head(struct http_connection *connection, size_t *ret_body_max) {
    if (!strcmp(http_request_of(connection)->path, "/s"))
        http_stream_body(connection);
    *ret_body_max = 4096;
    return 0;
}

static void on_request(struct http_connection *connection) {
    struct http_request *request = http_request_of(connection);
    struct buf decoded = BUF_INIT;

    if (!request->method || !request->path || request->path[0] != '/' || !request->query ||
        request->body.length > 4096 || !http_header(request, "host"))
        abort();
    if (http_decode(request->path, strlen(request->path), &decoded) && decoded.data &&
        strlen(decoded.data) != decoded.length)
        abort();
    decoded.length = 0;
    (void)http_query(request, "a", &decoded);
    buf_done(&decoded);
    if (request->wants_upgrade)
        http_upgrade(connection, "Upgrade: websocket\r\n");
    else if (!strcmp(request->path, "/s"))
        http_begin(connection, 200, "text/plain", NULL);
    else
        http_reply(connection, 200, "text/plain", NULL, "x", 1);
}

static void on_body(
    struct http_connection *connection, const char *data, size_t length, bool is_end) {
    (void)http_write(connection, data, length);
    if (is_end || (length && data[0] == 'e'))
        http_end(connection);
}

static void on_gone(struct http_connection *connection) {
    (void)connection;
}

static void problem(struct buf *to, int status, const char *detail) {
    buf_printf(to, "%d %s", status, detail);
}

static struct loop *loop;
static struct loop_timer timer;

static void on_time(struct loop_timer *unused) {
    (void)unused;
    loop_stop(loop);
}

static void run_until_quiet(void) {
    (void)loop_timer_set(loop, &timer, 0, on_time);
    (void)loop_run(loop);
    (void)loop_timer_set(loop, &timer, 0, on_time);
    (void)loop_run(loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct http_user user = { .head = on_head,
        .request = on_request,
        .gone = on_gone,
        .writable = on_gone,
        .body = on_body,
        .problem = problem };
    static const char *const hosts[] = { "localhost", NULL };
    struct http_server server = { .user = &user, .hosts = hosts, .max_connections = 1 };
    int pair[2];

    if (size < 1 || size > 100000)
        return 0;
    if (!loop && loop_new(&loop) < 0)
        abort();
    server.loop = loop;
    list_init(&server.connections);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    if (http_accepted(&server, pair[0], NULL, false, 0) < 0)
        abort();
    size_t first = data[0] < size - 1 ? data[0] : size - 1;
    (void)!send(pair[1], data + 1, first, MSG_NOSIGNAL);
    run_until_quiet();
    (void)!send(pair[1], data + 1 + first, size - 1 - first, MSG_NOSIGNAL);
    run_until_quiet();
    close(pair[1]);
    run_until_quiet();
    http_close_all(&server, false);
    run_until_quiet();
    if (server.n_connections)
        abort();
    return 0;
}
