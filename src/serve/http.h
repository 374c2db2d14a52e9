/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 connections of the server. llhttp parses; this file decides what it accepts beyond that.
 *
 * Strictness. A request that two parsers could read differently is refused, and the connection is
 * closed: a bare CR or LF, NUL, a folded line, a missing or doubled Host, a Host that is not in the
 * list, Content-Length together with Transfer-Encoding, any coding but one "chunked".
 *
 * A connection has one request at a time. It calls its user three times: `head` when the head is
 * complete (the user authenticates, finds the route, and says how large the body may be),
 * `request` when the body is complete, and `gone` if the client leaves before the answer's end. The
 * user answers with http_reply, or http_begin, http_write and http_end. Bytes that arrive
 * meanwhile wait for their turn in the kernel.
 *
 * A user that calls http_stream_body within `head` gets `request` at once, and the body in pieces
 * by `body`, also while it answers in pieces. An answer that ends before the body closes the
 * connection. http_upgrade makes a stream of bytes of the connection, for WebSocket. While
 * HTTP_UNSENT_MAX bytes or more are unsent there, nothing is received.
 *
 * Time limits: HTTP_HEAD_MS for a head, HTTP_BODY_MS without a byte of the body, HTTP_WRITE_MS
 * without progress of a reader, HTTP_IDLE_MS between requests.
 */
#ifndef ROLLBOX_SERVE_HTTP_H
#define ROLLBOX_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"
#include "serve/tls.h"

#define HTTP_HEAD_MAX ((size_t)64 << 10)
#define HTTP_HEADERS_MAX 100u
#define HTTP_HEAD_MS 10000
#define HTTP_BODY_MS 30000
#define HTTP_WRITE_MS 60000
#define HTTP_IDLE_MS 75000
#define HTTP_LINGER_MS 2000 /* what a client still sends after a refusal is read and dropped */
#define HTTP_UNSENT_MAX ((size_t)1 << 20) /* past it the user should stop writing */

struct http_server;
struct http_connection;

/* A request. Strings live until the answer's end. */
struct http_request {
    const char *method;
    char *path;  /* without the query; percent-encoded */
    char *query; /* without '?'; "" if there is none */
    struct buf body;
    bool keep_alive, wants_upgrade; /* to WebSocket */
    unsigned n_headers, headers_room;
    struct http_field {
        uint32_t name, value; /* in `text` */
    } * headers;
    struct buf text;
};

/* The callbacks of a user of connections. They must not free the connection. */
struct http_user {
    /* 0 with the most bytes of a body, or a status with which it has been answered already
     * (http_refuse). */
    int (*head)(struct http_connection *connection, size_t *ret_body_max);
    void (*request)(struct http_connection *connection);
    void (*gone)(struct http_connection *connection);     /* before the end of the answer */
    void (*writable)(struct http_connection *connection); /* less than HTTP_UNSENT_MAX is unsent */
    /* A piece of a streamed body, in request->body, which is dropped afterwards; or bytes of an
     * upgraded connection, of which there is no end. */
    void (*body)(struct http_connection *connection, const char *data, size_t length, bool is_end);
    /* A problem as a JSON body, for an error that the connection itself finds. */
    void (*problem)(struct buf *to, int status, const char *detail);
};

struct http_server {
    struct loop *loop;
    const struct http_user *user;
    const char *const *hosts; /* names that Host may have; NULL-terminated */
    bool draining;            /* every answer closes its connection */
    struct list connections;
    unsigned n_connections, max_connections;
    void *userdata;
};

/* Takes an accepted, non-blocking socket. `tls`: it speaks TLS; NULL: it does not. */
int http_accepted(
    struct http_server *server, int take_fd, struct tls *tls, bool is_local, uid_t peer);
/* Within `head`: the body comes in pieces. Its most bytes do not count. */
void http_stream_body(struct http_connection *connection);
/* Stops reading a streamed body, or an upgraded connection, or continues. */
void http_pause(struct http_connection *connection, bool paused);
/* The client may be silent for any time within its body. */
void http_wait_for_body(struct http_connection *connection);
/* Answers 101 with these header lines. http_write sends bytes as they are then, and http_end closes
 * the connection when they are sent. */
void http_upgrade(struct http_connection *connection, const char *headers);
/* As http_upgrade, without an answer of the server's own: what http_write sends is the answer. */
void http_take_over(struct http_connection *connection);
/* The connection ends with the present answer. */
void http_close_after(struct http_connection *connection);
void http_close_all(struct http_server *server, bool idle_only);

struct http_server *http_server_of(struct http_connection *connection);
struct http_request *http_request_of(struct http_connection *connection);
const char *http_header(const struct http_request *request, const char *name); /* NULL: none */
/* NULL: the connection has no TLS. */
struct tls_session *http_tls(const struct http_connection *connection);
/* Whether the peer of a Unix socket is this process's user or root. */
bool http_is_own_user(const struct http_connection *connection);
void **http_data(struct http_connection *connection); /* the user's, NULL at each request's start */
int http_identity(const struct http_connection *connection); /* a number, for logs */

/* The value of a query parameter, percent-decoded, into `to`; false if it is not there or is not
 * valid. */
bool http_query(const struct http_request *request, const char *name, struct buf *to);
/* Decodes %XX; false if it is malformed or has a NUL. */
bool http_decode(const char *text, size_t length, struct buf *to);

/* Answers completely. `headers`: more header lines, each with CRLF; NULL: none. */
void http_reply(struct http_connection *connection, int status, const char *type,
    const char *headers, const void *body, size_t length);
/* Answers in pieces. http_write returns the bytes that are unsent. */
void http_begin(
    struct http_connection *connection, int status, const char *type, const char *headers);
size_t http_write(struct http_connection *connection, const void *data, size_t length);
void http_end(struct http_connection *connection);
/* The request is not permitted any more: 401 if it has no answer yet, else the connection ends. The
 * user learns it as `gone`. */
void http_revoke(struct http_connection *connection);
/* Ends an answer in pieces without its terminating chunk: the client sees that it is incomplete. */
void http_abort(struct http_connection *connection);

/* ---- requests of the server's own ---- */

#define HTTP_INNER_MAX ((size_t)96 << 20) /* of an answer; a larger one breaks off */

/* Gets the answer, once, from the loop. `status` 0: the answer broke off. The callee may take the
 * body; its connection is freed afterwards. */
typedef void http_inner_done(void *userdata, int status, const char *type, struct buf *body);

/* A connection without a socket, whose request is complete. The caller gives it to the user as
 * `request` would be given, and its body in request->body. NULL: out of memory. */
struct http_connection *http_inner(struct http_server *server, const char *method, const char *path,
    const char *query, http_inner_done *done, void *userdata);
/* The answer is not wanted any more: the request's user learns that its client is gone. */
void http_inner_cancel(struct http_connection *connection);

const char *http_reason(int status);

/* The port and the sandbox's id of a Host value "PORT-ID.HOST"; false: it has another form. */
bool http_sandbox_host(const char *value, unsigned *ret_port, struct buf *id);

/* Whether a Host value names one of the hosts, with or without a port, or something below it that
 * http_sandbox_host or "api." has. */
bool http_host_allowed(const char *value, const char *const *hosts);

/* The first fault in `length` bytes of a head that is not complete yet or ends with an empty line:
 * a description, or NULL. */
const char *http_head_fault(const char *data, size_t length);

#endif
