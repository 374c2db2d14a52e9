/* SPDX-License-Identifier: Apache-2.0 */
/* WebSocket connections; websocket.h has the model. */
#include "serve/websocket.h"

#include <nettle/base64.h>
#include <nettle/sha1.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <wslay/wslay.h>

#include "base/cleanup.h"

#define SUBPROTOCOL "rollbox.v1"
#define KEY_LENGTH 24u /* 16 bytes as base64 */

struct websocket {
    struct exchange *exchange;
    wslay_event_context_ptr context;
    websocket_message *message;
    const char *in; /* what wslay has not read yet */
    size_t in_length, unsent;
    bool is_closed;
};

/* ---- wslay's callbacks ---- */

static ssize_t on_receive(
    wslay_event_context_ptr context, uint8_t *to, size_t length, int flags, void *userdata) {
    struct websocket *websocket = userdata;
    size_t n = MIN(length, websocket->in_length);

    (void)flags;
    if (!n) {
        wslay_event_set_error(context, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    memcpy(to, websocket->in, n);
    websocket->in += n;
    websocket->in_length -= n;
    return (ssize_t)n;
}

static ssize_t on_send(wslay_event_context_ptr context, const uint8_t *data, size_t length,
    int flags, void *userdata) {
    struct websocket *websocket = userdata;

    (void)context;
    (void)flags;
    if (websocket->exchange->connection)
        websocket->unsent = http_write(websocket->exchange->connection, data, length);
    return (ssize_t)length;
}

static void on_message(wslay_event_context_ptr context,
    const struct wslay_event_on_msg_recv_arg *message, void *userdata) {
    struct websocket *websocket = userdata;

    (void)context;
    if (wslay_is_ctrl_frame(message->opcode) || websocket->is_closed)
        return;
    websocket->message(websocket->exchange, message->opcode == WSLAY_TEXT_FRAME,
        (const char *)message->msg, message->msg_length);
}

/* ---- the handshake ---- */

/* Whether a header has this word in its list. */
static bool has_word(const char *value, const char *word) {
    size_t length = strlen(word);

    while (value && *value) {
        size_t n = strcspn(value, ", \t");

        if (n == length && !strncasecmp(value, word, n))
            return true;
        value += n + strspn(value + n, ", \t");
    }
    return false;
}

static bool is_own_origin(const struct exchange *exchange, const struct http_request *request) {
    const char *origin = http_header(request, "origin");
    const char *slashes = origin ? strstr(origin, "://") : NULL;

    return !origin || (slashes && http_host_allowed(slashes + 3, exchange->server->http.hosts));
}

static void add_accept(struct buf *to, const char *key) {
    static const char salt[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[BASE64_ENCODE_RAW_LENGTH(SHA1_DIGEST_SIZE) + 1] = "";
    uint8_t digest[SHA1_DIGEST_SIZE];
    struct sha1_ctx context;

    sha1_init(&context);
    sha1_update(&context, strlen(key), (const uint8_t *)key);
    sha1_update(&context, sizeof salt - 1, (const uint8_t *)salt);
    sha1_digest(&context, sizeof digest, digest);
    base64_encode_raw(text, sizeof digest, digest);
    buf_printf(to, "Sec-WebSocket-Accept: %s\r\n", text);
}

struct websocket *websocket_accept(struct exchange *exchange, websocket_message *message) {
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_receive, .send_callback = on_send, .on_msg_recv_callback = on_message
    };
    const struct http_request *request = http_request_of(exchange->connection);
    const char *key = http_header(request, "sec-websocket-key");
    const char *version = http_header(request, "sec-websocket-version");
    auto_buf struct buf lines = BUF_INIT;

    if (!request->wants_upgrade || !key || strlen(key) != KEY_LENGTH || !version ||
        strcmp(version, "13") != 0) {
        exchange_problem(exchange, 426, "request_invalid",
            "this path is for WebSocket, version 13: Upgrade: websocket");
        return NULL;
    }
    if (!is_own_origin(exchange, request)) {
        exchange_problem(exchange, 403, "request_invalid",
            "a page of another origin cannot open a WebSocket here; see --host of rollbox serve");
        return NULL;
    }
    struct websocket *websocket = calloc(1, sizeof *websocket);
    if (!websocket || wslay_event_context_server_init(&websocket->context, &callbacks, websocket)) {
        free(websocket);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    wslay_event_config_set_max_recv_msg_length(websocket->context, WEBSOCKET_MESSAGE_MAX);
    websocket->exchange = exchange;
    websocket->message = message;
    buf_add_text(&lines, "Upgrade: websocket\r\nConnection: Upgrade\r\n");
    add_accept(&lines, key);
    if (has_word(http_header(request, "sec-websocket-protocol"), SUBPROTOCOL))
        buf_add_text(&lines, "Sec-WebSocket-Protocol: " SUBPROTOCOL "\r\n");
    buf_printf(&lines, "Request-Id: %s\r\n", exchange->id);
    exchange->seen.status = 101;
    http_upgrade(exchange->connection, lines.data ? lines.data : "");
    return websocket;
}

struct websocket *websocket_free(struct websocket *websocket) {
    if (websocket) {
        wslay_event_context_free(websocket->context);
        free(websocket);
    }
    return NULL;
}

/* ---- messages ---- */

bool websocket_input(struct websocket *websocket, const char *data, size_t length) {
    websocket->in = data;
    websocket->in_length = length;
    int r = wslay_event_recv(websocket->context);
    websocket->in_length = 0;
    /* Answers to pings, or the answer to a fault. */
    if (r == 0)
        r = wslay_event_send(websocket->context);
    return r == 0 && wslay_event_want_read(websocket->context) &&
           !wslay_event_get_close_received(websocket->context);
}

static void queue(struct websocket *websocket, uint8_t opcode, const void *data, size_t length) {
    const struct wslay_event_msg message = { opcode, data, length };

    if (!websocket->is_closed && wslay_event_queue_msg(websocket->context, &message) == 0)
        (void)wslay_event_send(websocket->context);
}

size_t websocket_send(struct websocket *websocket, bool is_text, const void *data, size_t length) {
    websocket->unsent = 0;
    queue(websocket, is_text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, data, length);
    return websocket->unsent;
}

void websocket_ping(struct websocket *websocket) {
    queue(websocket, WSLAY_PING, "", 0);
}

void websocket_close(struct websocket *websocket, unsigned code, const char *reason) {
    if (websocket->is_closed)
        return;
    websocket->is_closed = true;
    if (wslay_event_queue_close(
            websocket->context, (uint16_t)code, (const uint8_t *)reason, strlen(reason)) == 0)
        (void)wslay_event_send(websocket->context);
    if (websocket->exchange->connection)
        http_end(websocket->exchange->connection);
}
