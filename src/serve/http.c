/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 connections; http.h has the model. */
#include "serve/http.h"

#include <errno.h>
#include <llhttp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"

#define HEADERS_STEP 8u
#define READ_BYTES ((size_t)64 << 10)

enum state {
    STATE_HEAD,   /* waits for a head */
    STATE_BODY,   /* its body is read */
    STATE_BUSY,   /* the user has it */
    STATE_STREAM, /* the user answers in pieces */
    STATE_RAW,    /* upgraded */
    STATE_FLUSH,  /* the answer is complete, and being sent */
    STATE_LINGER, /* it is sent, and what the client still sends is dropped */
    STATE_CLOSED, /* freed by a task */
};

/* A request of the server's own, http_inner. */
struct inner {
    http_inner_done *done;
    void *userdata;
    int status;
    char type[64];
    struct buf body;
};

struct http_connection {
    struct http_server *server;
    struct inner *inner; /* NULL: a client's */
    struct list of_server;
    struct loop_source source;
    struct loop_timer timer, body_timer;
    struct loop_task task;
    int fd;
    struct tls_session *tls; /* NULL: none */
    enum state state;
    bool is_local, close_after, was_full, wants_write;
    bool was_refused;                                    /* its body was not read to the end */
    bool streams_body, body_open, is_paused, is_patient; /* of a streamed body */
    uid_t peer;
    uint32_t events;
    struct buf in, out;
    size_t sent, body_max;
    llhttp_t parser;
    struct http_request request;
    const char *refusal; /* of the parser's callbacks */
    int refusal_status;
    void *data;
};

static void process(struct http_connection *connection);
static void on_event(struct loop_source *source, uint32_t events);

/* ---- texts ---- */

void http_close_after(struct http_connection *connection) {
    connection->close_after = true;
}

const char *http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        { 101, "Switching Protocols" },
        { 200, "OK" },
        { 201, "Created" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 410, "Gone" },
        { 413, "Content Too Large" },
        { 415, "Unsupported Media Type" },
        { 416, "Range Not Satisfiable" },
        { 417, "Expectation Failed" },
        { 421, "Misdirected Request" },
        { 422, "Unprocessable Content" },
        { 426, "Upgrade Required" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 502, "Bad Gateway" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
        { 511, "Network Authentication Required" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}

const char *http_head_fault(const char *data, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char c = data[i];

        if (c == '\0')
            return "the head has a NUL byte";
        if (c == '\n' && (i == 0 || data[i - 1] != '\r'))
            return "the head has a line feed without a carriage return";
        if (c == '\r' && i + 1 < length && data[i + 1] != '\n')
            return "the head has a carriage return without a line feed";
        if ((c == ' ' || c == '\t') && (i == 0 || data[i - 1] == '\n'))
            return "the head has a folded line";
    }
    return length && (data[0] == '\r' || data[0] == '\n') ? "the head begins with an empty line"
                                                          : NULL;
}

static bool has_host(const char *name, size_t length, const char *const *hosts) {
    for (size_t i = 0; hosts[i]; i++)
        if (strlen(hosts[i]) == length && !strncasecmp(hosts[i], name, length))
            return true;
    return false;
}

bool http_sandbox_host(const char *value, unsigned *ret_port, struct buf *id) {
    size_t digits = strspn(value, "0123456789"), name;
    unsigned long port = digits && digits <= 5 ? strtoul(value, NULL, 10) : 0;

    if (value[digits] != '-' || !port || port > UINT16_MAX)
        return false;
    name = strcspn(value + digits + 1, ".:");
    if (!name || value[digits + 1 + name] != '.')
        return false;
    *ret_port = (unsigned)port;
    buf_add(id, value + digits + 1, name);
    return !buf_failed(id);
}

/* "PORT-SANDBOX.HOST" is a port of a sandbox, and "api.HOST" is where E2B's clients send the other
 * requests. */
static bool is_below_host(const char *value, size_t length, const char *const *hosts) {
    const char *dot = memchr(value, '.', length);
    auto_buf struct buf id = BUF_INIT;
    unsigned port;

    if (!dot || !(!strncasecmp(value, "api.", 4) || http_sandbox_host(value, &port, &id)))
        return false;
    return has_host(dot + 1, length - (size_t)(dot + 1 - value), hosts);
}

bool http_host_allowed(const char *value, const char *const *hosts) {
    size_t length = strlen(value);
    const char *colon = value[0] == '[' ? strchr(value, ']') : strchr(value, ':');

    if (colon && value[0] == '[')
        colon++;
    if (colon && *colon) {
        if (*colon != ':' || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
            return false;
        length = (size_t)(colon - value);
    }
    return has_host(value, length, hosts) || is_below_host(value, length, hosts);
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool http_decode(const char *text, size_t length, struct buf *to) {
    for (size_t i = 0; i < length; i++) {
        char c = text[i];

        if (c == '%') {
            int high = i + 2 < length ? hex_digit(text[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(text[i + 2]) : -1;

            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0')
            return false;
        buf_add(to, &c, 1);
    }
    return !buf_failed(to);
}

bool http_query(const struct http_request *request, const char *name, struct buf *to) {
    size_t name_length = strlen(name);

    for (const char *p = request->query; *p;) {
        size_t n = strcspn(p, "&");

        if (n > name_length && !strncmp(p, name, name_length) && p[name_length] == '=')
            return http_decode(p + name_length + 1, n - name_length - 1, to);
        p += n + (p[n] == '&');
    }
    return false;
}

const char *http_header(const struct http_request *request, const char *name) {
    for (unsigned i = 0; i < request->n_headers; i++)
        if (!strcasecmp(request->text.data + request->headers[i].name, name))
            return request->text.data + request->headers[i].value;
    return NULL;
}

struct http_server *http_server_of(struct http_connection *connection) {
    return connection->server;
}

struct http_request *http_request_of(struct http_connection *connection) {
    return &connection->request;
}

struct tls_session *http_tls(const struct http_connection *connection) {
    return connection->tls;
}

bool http_is_own_user(const struct http_connection *connection) {
    return connection->is_local && (connection->peer == geteuid() || connection->peer == 0);
}

void **http_data(struct http_connection *connection) {
    return &connection->data;
}

int http_identity(const struct http_connection *connection) {
    return connection->fd;
}

/* ---- time ---- */

static void on_timeout(struct loop_timer *timer);

static void set_timer(struct http_connection *connection, int64_t ms) {
    (void)loop_timer_set(
        connection->server->loop, &connection->timer, clock_now_ns() + ms * 1000000, on_timeout);
}

static void clear_timer(struct http_connection *connection) {
    loop_timer_clear(connection->server->loop, &connection->timer);
}

static void on_body_timeout(struct loop_timer *timer);

static void set_body_timer(struct http_connection *connection) {
    loop_timer_clear(connection->server->loop, &connection->body_timer);
    if (connection->body_open && !connection->is_paused && !connection->is_patient)
        (void)loop_timer_set(connection->server->loop, &connection->body_timer,
            clock_now_ns() + (int64_t)HTTP_BODY_MS * 1000000, on_body_timeout);
}

/* ---- the end ---- */

static void forget_headers(struct http_request *request) {
    buf_done(&request->text);
    free(request->headers);
    request->headers = NULL;
    request->n_headers = request->headers_room = 0;
}

static void request_done(struct http_request *request) {
    free(request->path);
    free(request->query);
    buf_done(&request->body);
    forget_headers(request);
    *request = (struct http_request){ .n_headers = 0 };
}

static void free_connection(struct http_connection *connection) {
    loop_task_cancel(&connection->task);
    clear_timer(connection);
    loop_timer_clear(connection->server->loop, &connection->body_timer);
    loop_remove(connection->server->loop, &connection->source);
    list_remove(&connection->of_server);
    connection->server->n_connections--;
    connection->tls = tls_session_free(connection->tls);
    close_fd(&connection->fd);
    request_done(&connection->request);
    buf_done(&connection->in);
    buf_done(&connection->out);
    free(connection);
}

/* The user's request will not be answered by the user. */
static void tell_gone(struct http_connection *connection) {
    if (connection->data)
        connection->server->user->gone(connection);
    connection->data = NULL;
}

/* The user learns it from the loop, and not within its own call. */
static void run_free(struct loop_task *task) {
    struct http_connection *connection = container_of(task, struct http_connection, task);

    tell_gone(connection);
    free_connection(connection);
}

static void close_connection(struct http_connection *connection) {
    if (connection->state == STATE_CLOSED)
        return;
    connection->state = STATE_CLOSED;
    clear_timer(connection);
    loop_timer_clear(connection->server->loop, &connection->body_timer);
    loop_remove(connection->server->loop, &connection->source);
    /* Callers up the stack may still look at it. */
    loop_task_cancel(&connection->task);
    loop_defer(connection->server->loop, &connection->task, run_free);
}

void http_close_all(struct http_server *server, bool idle_only) {
    list_for_each(node, &server->connections) {
        struct http_connection *connection = container_of(node, struct http_connection, of_server);

        if (!idle_only || connection->state == STATE_LINGER ||
            (connection->state == STATE_HEAD && !connection->in.length))
            close_connection(connection);
    }
}

static void refuse(struct http_connection *connection, int status, const char *detail);

static void on_body_timeout(struct loop_timer *timer) {
    refuse(container_of(timer, struct http_connection, body_timer), 408,
        "the request did not arrive in time");
}

static void on_timeout(struct loop_timer *timer) {
    struct http_connection *connection = container_of(timer, struct http_connection, timer);

    if ((connection->state == STATE_HEAD && connection->in.length) ||
        connection->state == STATE_BODY)
        refuse(connection, 408, "the request did not arrive in time");
    else
        close_connection(connection);
}

/* ---- writing ---- */

/* A client that does not read is not listened to: what it sends may call for more answers. */
static bool takes_raw(const struct http_connection *connection) {
    return connection->state == STATE_RAW && !connection->is_paused && !connection->was_full;
}

static void update_events(struct http_connection *connection) {
    bool reads = connection->state == STATE_HEAD || connection->state == STATE_BODY ||
                 connection->state == STATE_LINGER ||
                 (!connection->is_paused && connection->body_open) || takes_raw(connection);
    uint32_t events = EPOLLRDHUP;

    if (reads)
        events |= EPOLLIN;
    if (connection->wants_write || (reads && connection->tls && tls_wants_write(connection->tls)))
        events |= EPOLLOUT;
    if (connection->state != STATE_CLOSED && events != connection->events) {
        connection->events = events;
        (void)loop_modify(connection->server->loop, &connection->source, events);
    }
}

static void run_process(struct loop_task *task) {
    process(container_of(task, struct http_connection, task));
}

/* The answer is sent: the next request, or the end. */
static void finish(struct http_connection *connection) {
    bool is_unread = connection->close_after && connection->was_refused;

    request_done(&connection->request);
    connection->data = NULL;
    if (is_unread) {
        /* Closing with unread bytes would reset the connection, and the client might not get the
         * answer. */
        if (connection->tls)
            tls_end(connection->tls);
        (void)shutdown(connection->fd, SHUT_WR);
        connection->state = STATE_LINGER;
        connection->in.length = 0;
        set_timer(connection, HTTP_LINGER_MS);
        return;
    }
    if (connection->close_after || connection->server->draining) {
        if (connection->tls)
            tls_end(connection->tls);
        (void)shutdown(connection->fd, SHUT_WR);
        close_connection(connection);
        return;
    }
    connection->state = STATE_HEAD;
    set_timer(connection, connection->in.length ? HTTP_HEAD_MS : HTTP_IDLE_MS);
    loop_defer(connection->server->loop, &connection->task, run_process);
}

/* Bytes or -errno. */
static ssize_t send_some(struct http_connection *connection, const void *data, size_t length) {
    if (connection->tls)
        return tls_write(connection->tls, data, length);
    ssize_t n = send(connection->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

static void flush(struct http_connection *connection) {
    size_t before = connection->out.length - connection->sent;

    while (connection->sent < connection->out.length) {
        ssize_t n = send_some(connection, connection->out.data + connection->sent,
            connection->out.length - connection->sent);

        if (n == -EINTR)
            continue;
        if (n < 0 && n != -EAGAIN) {
            close_connection(connection);
            return;
        }
        if (n < 0)
            break;
        connection->sent += (size_t)n;
    }
    size_t unsent = connection->out.length - connection->sent;
    if (!unsent) {
        /* An idle connection keeps no buffer. */
        buf_done(&connection->out);
        connection->sent = 0;
    } else if (connection->sent > HTTP_UNSENT_MAX) {
        memmove(connection->out.data, connection->out.data + connection->sent, unsent);
        connection->out.length = unsent;
        connection->sent = 0;
    }
    if (!unsent && connection->state == STATE_FLUSH) {
        connection->wants_write = false;
        finish(connection);
    } else {
        connection->wants_write = unsent > 0;
        if (!unsent)
            clear_timer(connection);
        else if (unsent < before || !connection->timer.position)
            set_timer(connection, HTTP_WRITE_MS);
    }
    bool has_room = (connection->state == STATE_STREAM || connection->state == STATE_RAW) &&
                    connection->was_full && unsent < HTTP_UNSENT_MAX;
    if (has_room)
        connection->was_full = false;
    update_events(connection);
    if (has_room && takes_raw(connection) && connection->in.length)
        loop_defer(connection->server->loop, &connection->task, run_process);
    if (has_room)
        connection->server->user->writable(connection);
}

static void add_head(struct http_connection *connection, int status, const char *type,
    const char *headers, size_t length, bool chunked) {
    struct buf *out = &connection->out;

    buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http_reason(status));
    if (type)
        buf_printf(out, "Content-Type: %s\r\n", type);
    if (chunked)
        buf_add_text(out, "Transfer-Encoding: chunked\r\n");
    else if (status != 204)
        buf_printf(out, "Content-Length: %zu\r\n", length);
    buf_add_text(out, "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n");
    if (connection->close_after || connection->server->draining)
        buf_add_text(out, "Connection: close\r\n");
    if (headers)
        buf_add_text(out, headers);
    buf_add_text(out, "\r\n");
}

/* The answer ends before the body: what comes must not be taken for a request. */
static void drop_body(struct http_connection *connection) {
    if (!connection->body_open)
        return;
    connection->body_open = false;
    connection->close_after = connection->was_refused = true;
    set_body_timer(connection);
}

/* ---- requests of the server's own ---- */

static void free_inner(struct http_connection *connection) {
    loop_task_cancel(&connection->task);
    buf_done(&connection->inner->body);
    free(connection->inner);
    request_done(&connection->request);
    free(connection);
}

static void run_inner_done(struct loop_task *task) {
    struct http_connection *connection = container_of(task, struct http_connection, task);
    struct inner *inner = connection->inner;

    inner->done(inner->userdata, inner->status, inner->type, &inner->body);
    free_inner(connection);
}

static void inner_begin(struct http_connection *connection, int status, const char *type) {
    connection->state = STATE_STREAM;
    connection->inner->status = status;
    (void)snprintf(connection->inner->type, sizeof connection->inner->type, "%s", type ? type : "");
}

static void inner_write(struct http_connection *connection, const void *data, size_t length) {
    struct inner *inner = connection->inner;

    if (length > HTTP_INNER_MAX - MIN(inner->body.length, HTTP_INNER_MAX))
        inner->status = 0;
    else
        buf_add(&inner->body, data, length);
}

/* The asker gets the answer from the loop, and not within its own call. */
static void inner_end(struct http_connection *connection) {
    connection->state = STATE_CLOSED;
    if (buf_failed(&connection->inner->body))
        connection->inner->status = 0;
    loop_defer(connection->server->loop, &connection->task, run_inner_done);
}

struct http_connection *http_inner(struct http_server *server, const char *method, const char *path,
    const char *query, http_inner_done *done, void *userdata) {
    struct http_connection *connection = calloc(1, sizeof *connection);
    struct inner *inner = calloc(1, sizeof *inner);

    if (!connection || !inner) {
        free(connection);
        free(inner);
        return NULL;
    }
    *inner = (struct inner){ .done = done, .userdata = userdata };
    connection->server = server;
    connection->inner = inner;
    connection->fd = -EBADF;
    connection->peer = (uid_t)-1;
    connection->state = STATE_BUSY;
    list_init(&connection->task.node);
    list_init(&connection->of_server);
    connection->request = (struct http_request){
        .method = method, .path = strdup(path), .query = strdup(query), .keep_alive = true
    };
    if (connection->request.path && connection->request.query)
        return connection;
    free_inner(connection);
    return NULL;
}

void http_inner_cancel(struct http_connection *connection) {
    tell_gone(connection);
    free_inner(connection);
}

/* ---- answers ---- */

void http_reply(struct http_connection *connection, int status, const char *type,
    const char *headers, const void *body, size_t length) {
    bool is_head = connection->request.method && !strcmp(connection->request.method, "HEAD");

    if (connection->state == STATE_CLOSED)
        return;
    if (connection->inner) {
        inner_begin(connection, status, type);
        inner_write(connection, body, length);
        inner_end(connection);
        return;
    }
    drop_body(connection);
    add_head(connection, status, type, headers, length, false);
    if (!is_head && length)
        buf_add(&connection->out, body, length);
    connection->state = STATE_FLUSH;
    if (buf_failed(&connection->out))
        close_connection(connection);
    else
        flush(connection);
}

void http_begin(
    struct http_connection *connection, int status, const char *type, const char *headers) {
    if (connection->state == STATE_CLOSED)
        return;
    if (connection->inner) {
        inner_begin(connection, status, type);
        return;
    }
    add_head(connection, status, type, headers, 0, true);
    connection->state = STATE_STREAM;
    /* A stream may last for hours, and there are thousands. */
    forget_headers(&connection->request);
    flush(connection);
}

size_t http_write(struct http_connection *connection, const void *data, size_t length) {
    bool is_raw = connection->state == STATE_RAW;

    if ((!is_raw && connection->state != STATE_STREAM) || !length)
        return 0;
    if (connection->inner) {
        inner_write(connection, data, length);
        return 0;
    }
    if (!is_raw)
        buf_printf(&connection->out, "%zx\r\n", length);
    buf_add(&connection->out, data, length);
    if (!is_raw)
        buf_add_text(&connection->out, "\r\n");
    if (buf_failed(&connection->out)) {
        close_connection(connection);
        return 0;
    }
    flush(connection);
    size_t unsent = connection->out.length - connection->sent;
    connection->was_full = unsent >= HTTP_UNSENT_MAX;
    if (is_raw)
        update_events(connection);
    return unsent;
}

void http_upgrade(struct http_connection *connection, const char *headers) {
    if (connection->state == STATE_CLOSED)
        return;
    buf_printf(&connection->out, "HTTP/1.1 101 %s\r\n%s\r\n", http_reason(101), headers);
    http_take_over(connection);
}

void http_take_over(struct http_connection *connection) {
    if (connection->state == STATE_CLOSED)
        return;
    connection->state = STATE_RAW;
    connection->is_paused = false;
    flush(connection);
    /* The client may have sent its first messages with the request. */
    if (connection->state == STATE_RAW && connection->in.length)
        loop_defer(connection->server->loop, &connection->task, run_process);
}

void http_stream_body(struct http_connection *connection) {
    connection->streams_body = true;
}

void http_wait_for_body(struct http_connection *connection) {
    connection->is_patient = true;
    set_body_timer(connection);
}

void http_pause(struct http_connection *connection, bool paused) {
    if (connection->inner || connection->state == STATE_CLOSED || connection->is_paused == paused)
        return;
    connection->is_paused = paused;
    set_body_timer(connection);
    update_events(connection);
    if (!paused && connection->in.length)
        loop_defer(connection->server->loop, &connection->task, run_process);
}

void http_end(struct http_connection *connection) {
    if (connection->state == STATE_RAW)
        connection->close_after = connection->was_refused = true;
    else if (connection->state != STATE_STREAM)
        return;
    else if (!connection->inner)
        buf_add_text(&connection->out, "0\r\n\r\n");
    if (connection->inner) {
        inner_end(connection);
        return;
    }
    drop_body(connection);
    connection->state = STATE_FLUSH;
    flush(connection);
}

void http_abort(struct http_connection *connection) {
    if (connection->state != STATE_STREAM && connection->state != STATE_RAW)
        return;
    if (connection->inner) {
        connection->inner->status = 0;
        inner_end(connection);
        return;
    }
    drop_body(connection);
    connection->state = STATE_FLUSH;
    connection->close_after = true;
    flush(connection);
}

void http_revoke(struct http_connection *connection) {
    if (connection->state == STATE_RAW)
        close_connection(connection);
    else if (connection->state != STATE_CLOSED)
        refuse(connection, 401, "the token was revoked or has expired during the request");
}

static void refuse(struct http_connection *connection, int status, const char *detail) {
    auto_buf struct buf body = BUF_INIT;

    if (connection->state == STATE_STREAM) {
        close_connection(connection);
        return;
    }
    tell_gone(connection);
    connection->server->user->problem(&body, status, detail);
    connection->close_after = connection->was_refused = true;
    connection->body_open = false;
    connection->state = STATE_BUSY;
    http_reply(connection, status, "application/problem+json", NULL, body.data, body.length);
}

/* ---- the parser's callbacks ---- */

static struct http_connection *of_parser(llhttp_t *parser) {
    return container_of(parser, struct http_connection, parser);
}

static int refuse_later(struct http_connection *connection, int status, const char *detail) {
    if (!connection->refusal) {
        connection->refusal = detail;
        connection->refusal_status = status;
    }
    return -1;
}

static int on_url(llhttp_t *parser, const char *at, size_t length) {
    struct http_connection *connection = of_parser(parser);
    const char *question = memchr(at, '?', length);
    size_t n = question ? (size_t)(question - at) : length;

    if (!length || at[0] != '/' || memchr(at, '#', length))
        return refuse_later(connection, 400, "the request target is not a path");
    connection->request.path = text_copy(at, n);
    connection->request.query = question ? text_copy(question + 1, length - n - 1) : strdup("");
    return connection->request.path && connection->request.query ? 0 : -1;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t length) {
    struct http_connection *connection = of_parser(parser);
    struct http_request *request = &connection->request;

    if (request->n_headers == HTTP_HEADERS_MAX)
        return refuse_later(connection, 431, "the request has too many header fields");
    if (request->n_headers == request->headers_room) {
        unsigned room = request->headers_room + HEADERS_STEP;
        struct http_field *more = realloc(request->headers, room * sizeof *more);

        if (!more)
            return -1;
        request->headers = more;
        request->headers_room = room;
    }
    request->headers[request->n_headers].name = (uint32_t)request->text.length;
    request->headers[request->n_headers].value = (uint32_t)(request->text.length + length);
    request->n_headers++;
    buf_add(&request->text, at, length);
    buf_add(&request->text, "", 1);
    request->headers[request->n_headers - 1].value = (uint32_t)request->text.length;
    buf_add(&request->text, "", 1);
    return buf_failed(&request->text) ? -1 : 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t length) {
    struct http_request *request = &of_parser(parser)->request;

    /* The NUL of the value so far goes: a value may come in pieces. */
    request->text.length--;
    buf_add(&request->text, at, length);
    buf_add(&request->text, "", 1);
    return buf_failed(&request->text) ? -1 : 0;
}

static int check_framing(struct http_connection *connection) {
    const struct http_request *request = &connection->request;
    unsigned hosts = 0, lengths = 0, codings = 0;
    const char *host = NULL;

    for (unsigned i = 0; i < request->n_headers; i++) {
        const char *name = request->text.data + request->headers[i].name;
        const char *value = request->text.data + request->headers[i].value;

        if (!strcasecmp(name, "host")) {
            hosts++;
            host = value;
        } else if (!strcasecmp(name, "content-length")) {
            lengths++;
            if (!*value || strspn(value, "0123456789") != strlen(value))
                return refuse_later(connection, 400, "Content-Length is not a number");
        } else if (!strcasecmp(name, "transfer-encoding")) {
            codings++;
            if (strcasecmp(value, "chunked"))
                return refuse_later(connection, 400, "Transfer-Encoding is not chunked");
        }
    }
    if (hosts != 1)
        return refuse_later(connection, 400, "there must be one Host");
    if (lengths + codings > 1)
        return refuse_later(
            connection, 400, "there must be at most one of Content-Length and Transfer-Encoding");
    if (!connection->is_local && !http_host_allowed(host, connection->server->hosts))
        return refuse_later(
            connection, 421, "this server has no such host; see --host of rollbox serve");
    return 0;
}

static int on_headers_complete(llhttp_t *parser) {
    struct http_connection *connection = of_parser(parser);
    struct http_request *request = &connection->request;
    const char *expect;

    request->method = llhttp_method_name((llhttp_method_t)llhttp_get_method(parser));
    if (llhttp_get_http_major(parser) != 1 || llhttp_get_http_minor(parser) != 1)
        return refuse_later(connection, 505, "only HTTP/1.1 is served");
    if (check_framing(connection) < 0)
        return -1;
    if (llhttp_get_upgrade(parser)) {
        const char *upgrade = http_header(request, "upgrade");

        if (llhttp_get_method(parser) != HTTP_GET || !upgrade || strcasecmp(upgrade, "websocket") ||
            http_header(request, "content-length") || http_header(request, "transfer-encoding"))
            return refuse_later(
                connection, 501, "the connection can be upgraded to WebSocket alone");
        request->wants_upgrade = true;
    }
    expect = http_header(request, "expect");
    if (expect && strcasecmp(expect, "100-continue"))
        return refuse_later(connection, 417, "only the expectation 100-continue is known");
    request->keep_alive = llhttp_should_keep_alive(parser);
    buf_fit(&request->text); /* it may have to wait long */
    connection->close_after = !request->keep_alive;
    return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t length) {
    struct http_connection *connection = of_parser(parser);

    if (!connection->streams_body &&
        length > connection->body_max - connection->request.body.length)
        return refuse_later(connection, 413, "the request's body is too large");
    buf_add(&connection->request.body, at, length);
    return buf_failed(&connection->request.body)
               ? refuse_later(connection, 503, "the server is out of memory")
               : 0;
}

static int on_message_complete(llhttp_t *parser) {
    (void)parser;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* ---- reading ---- */

static void consume(struct http_connection *connection, size_t n) {
    memmove(connection->in.data, connection->in.data + n, connection->in.length - n);
    connection->in.length -= n;
}

/* Gives bytes to the parser. 1: the message is complete; 0: more is wanted; -1: answered with a
 * refusal. */
static int feed(struct http_connection *connection, size_t length, size_t *ret_used) {
    enum llhttp_errno r = llhttp_execute(&connection->parser, connection->in.data, length);

    *ret_used = length;
    if (r == HPE_OK)
        return 0;
    if (r == HPE_PAUSED) {
        *ret_used = (size_t)(llhttp_get_error_pos(&connection->parser) - connection->in.data);
        return 1;
    }
    refuse(connection, connection->refusal ? connection->refusal_status : 400,
        connection->refusal ? connection->refusal : "the request is malformed");
    return -1;
}

static void dispatch(struct http_connection *connection) {
    connection->state = STATE_BUSY;
    clear_timer(connection);
    update_events(connection);
    connection->server->user->request(connection);
}

static void ask_for_body(struct http_connection *connection) {
    if (http_header(&connection->request, "expect")) {
        buf_add_text(&connection->out, "HTTP/1.1 100 Continue\r\n\r\n");
        flush(connection);
    }
}

/* Gives the user what has come of a streamed body. */
static void deliver(struct http_connection *connection, bool is_end) {
    struct buf piece = connection->request.body;

    connection->request.body = BUF_INIT;
    if (is_end)
        connection->body_open = false;
    set_body_timer(connection);
    if (piece.length || is_end)
        connection->server->user->body(connection, piece.data, piece.length, is_end);
    buf_done(&piece);
}

static void begin_streamed_body(struct http_connection *connection, bool complete) {
    connection->body_open = true;
    if (!complete)
        ask_for_body(connection);
    if (connection->state == STATE_CLOSED)
        return;
    dispatch(connection);
    if (connection->body_open)
        deliver(connection, complete);
    update_events(connection);
}

/* The head is complete in the first `length` bytes. */
static void take_head(struct http_connection *connection, size_t length) {
    const struct http_user *user = connection->server->user;
    size_t used;

    llhttp_init(&connection->parser, HTTP_REQUEST, &settings);
    connection->refusal = NULL;
    connection->body_max = 0;
    connection->close_after = connection->was_refused = false;
    connection->streams_body = connection->body_open = connection->is_paused = false;
    connection->is_patient = false;
    int complete = feed(connection, length, &used);
    if (complete < 0)
        return;
    consume(connection, complete ? used : length);
    connection->state = STATE_BUSY;
    connection->was_refused = !complete; /* if it is */
    int status = user->head(connection, &connection->body_max);
    if (connection->state == STATE_CLOSED)
        return;
    connection->was_refused = connection->was_refused && status;
    if (status) {
        /* A body that nobody reads would be taken for the next request. */
        return;
    }
    if (connection->streams_body) {
        begin_streamed_body(connection, complete);
        return;
    }
    if (complete) {
        dispatch(connection);
        return;
    }
    connection->state = STATE_BODY;
    set_timer(connection, HTTP_BODY_MS);
    ask_for_body(connection);
}

/* The next piece of a streamed body; false: there is none yet. */
static bool take_piece(struct http_connection *connection) {
    size_t used;
    int complete = feed(connection, connection->in.length, &used);

    if (complete < 0)
        return false;
    consume(connection, used);
    deliver(connection, complete);
    return true;
}

static void process(struct http_connection *connection) {
    while (connection->state == STATE_HEAD && connection->in.length) {
        char *end = memmem(connection->in.data, connection->in.length, "\r\n\r\n", 4);
        size_t length = end ? (size_t)(end - connection->in.data) + 4 : connection->in.length;
        const char *fault = http_head_fault(connection->in.data, length);

        if (fault) {
            refuse(connection, 400, fault);
            return;
        }
        if (length > HTTP_HEAD_MAX) {
            refuse(connection, 431, "the request's head is too large");
            return;
        }
        if (!end)
            break;
        take_head(connection, length);
    }
    while (takes_raw(connection) && connection->in.length) {
        struct buf piece = connection->in;

        connection->in = BUF_INIT;
        connection->server->user->body(connection, piece.data, piece.length, false);
        buf_done(&piece);
    }
    while (connection->body_open && connection->in.length && !connection->is_paused &&
           connection->state != STATE_CLOSED)
        if (!take_piece(connection))
            return;
    while (connection->state == STATE_BODY && connection->in.length) {
        size_t used;
        int complete = feed(connection, connection->in.length, &used);

        if (complete < 0)
            return;
        consume(connection, used);
        set_timer(connection, HTTP_BODY_MS);
        if (complete)
            dispatch(connection);
    }
    update_events(connection);
}

/* Bytes, 0 at the end, or -errno. There is room for a whole record of TLS, so none of its bytes
 * stays in OpenSSL, where epoll would not see it. */
static ssize_t receive_some(struct http_connection *connection) {
    void *room = buf_reserve(&connection->in, READ_BYTES);

    if (!room)
        return 0;
    if (connection->tls)
        return tls_read(connection->tls, room, READ_BYTES);
    ssize_t n = recv(connection->fd, room, READ_BYTES, MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

static void receive(struct http_connection *connection) {
    ssize_t n = receive_some(connection);

    if (n == -EAGAIN || n == -EINTR) {
        update_events(connection);
        return;
    }
    if (n <= 0) {
        close_connection(connection);
        return;
    }
    if (connection->state == STATE_LINGER)
        return;
    if (connection->state == STATE_HEAD && !connection->in.length)
        set_timer(connection, HTTP_HEAD_MS);
    connection->in.length += (size_t)n;
    process(connection);
    if (!connection->in.length && connection->state != STATE_CLOSED)
        buf_done(&connection->in);
}

static void on_event(struct loop_source *source, uint32_t events) {
    struct http_connection *connection = container_of(source, struct http_connection, source);

    if (events & (EPOLLERR | EPOLLHUP)) {
        close_connection(connection);
        return;
    }
    /* A handshake may wait for room. */
    if (events & EPOLLOUT && connection->tls && tls_wants_write(connection->tls))
        receive(connection);
    else if (events & EPOLLOUT)
        flush(connection);
    if (connection->state == STATE_CLOSED)
        return;
    if (events & EPOLLIN && connection->events & EPOLLIN)
        receive(connection);
    /* The client has closed its side: it does not wait for an answer any more. */
    else if (events & EPOLLRDHUP)
        close_connection(connection);
}

int http_accepted(
    struct http_server *server, int take_fd, struct tls *tls, bool is_local, uid_t peer) {
    struct http_connection *connection = calloc(1, sizeof *connection);

    if (!connection) {
        close(take_fd);
        return -ENOMEM;
    }
    connection->server = server;
    connection->fd = take_fd;
    connection->is_local = is_local;
    connection->peer = peer;
    connection->events = EPOLLIN | EPOLLRDHUP;
    list_init(&connection->task.node);
    if (tls)
        connection->tls = tls_session_new(tls, take_fd);
    int r = tls && !connection->tls ? -ENOMEM
                                    : loop_add(server->loop, &connection->source, take_fd,
                                          connection->events, on_event);
    if (r < 0) {
        close(take_fd);
        tls_session_free(connection->tls);
        free(connection);
        return r;
    }
    list_add_tail(&server->connections, &connection->of_server);
    server->n_connections++;
    set_timer(connection, HTTP_HEAD_MS);
    return 0;
}
