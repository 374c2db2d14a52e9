/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http_relay.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

void http_relay_init(struct http_relay *relay, const struct http_relay_calls *calls,
    const char *name, uint16_t port) {
    *relay = (struct http_relay){
        .calls = calls,
        .name = name,
        .port = port,
        .state = HTTP_RELAY_IDLE,
        .is_persistent = true,
    };
}

void http_relay_refuse(struct http_relay *relay, unsigned status, const char *why, const char *text,
    struct buf *to_guest) {
    if (relay->state >= HTTP_RELAY_TUNNEL)
        return;
    if (relay->state == HTTP_RELAY_BUSY && relay->has_answer)
        relay->state = HTTP_RELAY_CUT;
    else {
        http_add_refusal(to_guest, status, why, text, relay->asked.is_head);
        relay->state = HTTP_RELAY_ENDED;
    }
    relay->calls->refused(relay, status, why, text);
}

static void pass(
    struct http_relay *relay, enum http_relay_part part, const char *data, size_t length) {
    if (relay->calls->passed)
        relay->calls->passed(relay, part, data, length);
}

static void add_text(struct buf *to, struct http_text text) {
    buf_add(to, text.text, text.length);
}

static bool is_set(const struct http_decision *decision, struct http_text name) {
    for (size_t i = 0; i < decision->n_set; i++)
        if (decision->set[i].name.length == name.length &&
            strncasecmp(decision->set[i].name.text, name.text, name.length) == 0)
            return true;
    return false;
}

/* Headers of the guest about its connection to the gateway. By naming any header in Connection a
 * guest could have a server's proxy drop it, the injected one included. */
static bool is_about_connection(const struct http_head *head, struct http_text name) {
    static const char *const names[] = { "Connection", "Keep-Alive", "Proxy-Connection",
        "Proxy-Authorization", "HTTP2-Settings" };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (http_text_is(name, names[i]))
            return true;
    return http_text_is(name, "Upgrade") && !head->is_websocket;
}

static void add_header(struct buf *to, const struct http_header *header) {
    add_text(to, header->name);
    buf_add(to, ": ", 2);
    add_text(to, header->value);
    buf_add(to, "\r\n", 2);
}

static void write_request(
    struct buf *to, const struct http_head *head, const struct http_decision *decision) {
    add_text(to, head->method);
    buf_add(to, " ", 1);
    add_text(to, head->target);
    buf_printf(to, " HTTP/1.%u\r\n", head->minor);
    for (size_t i = 0; i < head->n_headers; i++) {
        const struct http_header *header = &head->headers[i];

        if (!is_about_connection(head, header->name) && !is_set(decision, header->name))
            add_header(to, header);
    }
    for (size_t i = 0; i < decision->n_set; i++)
        add_header(to, &decision->set[i]);
    if (head->is_websocket)
        buf_add_text(to, "Connection: Upgrade\r\n");
    else if (!head->is_persistent)
        buf_add_text(to, "Connection: close\r\n");
    else if (head->minor == 0)
        buf_add_text(to, "Connection: keep-alive\r\n");
    buf_add(to, "\r\n", 2);
}

static void begin_exchange(struct http_relay *relay, const struct http_head *head) {
    relay->state = HTTP_RELAY_BUSY;
    relay->has_answer = false;
    relay->is_persistent = head->is_persistent;
    relay->status = 0;
    relay->up_bytes = relay->down_bytes = 0;
    relay->n_requests++;
    http_body_start(&relay->up, head);
}

/* Takes the head of a request. Returns its length, or 0. */
static size_t take_request(struct http_relay *relay, const char *data, size_t length,
    struct buf *to_upstream, struct buf *to_guest) {
    struct http_head head;
    struct http_decision decision = { 0 };
    const char *why = NULL;
    ssize_t n = http_read_request(data, length, &relay->guest_scanned, &head, &why);
    size_t before = to_upstream->length;

    if (n == 0)
        return 0;
    relay->guest_scanned = 0;
    relay->asked = (struct http_asked){ .is_head = false };
    if (n < 0) {
        char text[160];

        snprintf(text, sizeof text, "rollbox: the request is not valid HTTP/1.1: %s", why);
        http_relay_refuse(relay, 400, "bad_request", text, to_guest);
        return length;
    }
    relay->asked.is_head = http_text_is(head.method, "HEAD");
    relay->asked.is_websocket = head.is_websocket;
    if (!http_host_is(head.host, relay->name, relay->port))
        decision = (struct http_decision){ .status = 403,
            .why = "host_other",
            .text = "rollbox: the request's Host is not the host of its connection" };
    else
        relay->calls->decide(relay, &head, &decision);
    if (decision.status != 0) {
        http_relay_refuse(relay, decision.status, decision.why, decision.text, to_guest);
        return length;
    }
    begin_exchange(relay, &head);
    write_request(to_upstream, &head, &decision);
    relay->up_bytes = to_upstream->length - before;
    if (relay->up.is_done)
        pass(relay, HTTP_RELAY_REQUEST_END, NULL, 0);
    return (size_t)n;
}

static void end_exchange(struct http_relay *relay) {
    if (!relay->has_answer || !relay->down.is_done)
        return;
    /* A server that has answered and closes does not read the rest of the request. */
    if (!relay->up.is_done && relay->is_persistent)
        return;
    relay->state = relay->is_persistent ? HTTP_RELAY_IDLE : HTTP_RELAY_ENDED;
    relay->calls->answered(relay, relay->status, relay->up_bytes, relay->down_bytes);
}

static size_t take_request_body(struct http_relay *relay, const char *data, size_t length,
    struct buf *to_upstream, struct buf *to_guest) {
    struct http_text content = { NULL, 0 };
    ssize_t n = http_body_take(&relay->up, data, length, &content);

    if (n < 0) {
        relay->is_persistent = false;
        http_relay_refuse(relay, 400, "bad_request",
            "rollbox: the request's body is not valid HTTP/1.1", to_guest);
        return length;
    }
    buf_add(to_upstream, data, (size_t)n);
    relay->up_bytes += (size_t)n;
    if (content.length)
        pass(relay, HTTP_RELAY_CONTENT, content.text, content.length);
    if (relay->up.is_done) {
        pass(relay, HTTP_RELAY_REQUEST_END, NULL, 0);
        end_exchange(relay);
    }
    return (size_t)n;
}

size_t http_relay_guest(struct http_relay *relay, const char *data, size_t length,
    struct buf *to_upstream, struct buf *to_guest) {
    size_t taken = 0;

    while (taken < length) {
        const char *at = data + taken;
        size_t left = length - taken, n = 0;

        switch (relay->state) {
        case HTTP_RELAY_IDLE:
            n = take_request(relay, at, left, to_upstream, to_guest);
            break;
        case HTTP_RELAY_BUSY:
            if (!relay->up.is_done)
                n = take_request_body(relay, at, left, to_upstream, to_guest);
            break;
        case HTTP_RELAY_TUNNEL:
            buf_add(to_upstream, at, left);
            pass(relay, HTTP_RELAY_TUNNEL_UP, at, left);
            relay->up_bytes += left;
            return length;
        case HTTP_RELAY_ENDED:
        case HTTP_RELAY_CUT:
            return length;
        }
        if (n == 0)
            break;
        taken += n;
    }
    return taken;
}

/* Takes the head of an answer, which passes as it is. Returns its length, or 0. */
static size_t take_answer(
    struct http_relay *relay, const char *data, size_t length, struct buf *to_guest) {
    struct http_head head;
    const char *why = NULL;
    ssize_t n = http_read_answer(data, length, &relay->upstream_scanned, relay->asked, &head, &why);

    if (n == 0)
        return 0;
    relay->upstream_scanned = 0;
    if (n < 0) {
        char text[160];

        snprintf(text, sizeof text, "rollbox: the server's answer is not valid HTTP/1.1: %s", why);
        http_relay_refuse(relay, 502, "upstream_http", text, to_guest);
        return length;
    }
    buf_add(to_guest, data, (size_t)n);
    pass(relay, HTTP_RELAY_ANSWER, data, (size_t)n);
    relay->down_bytes += (size_t)n;
    if (head.status < 200 && head.status != 101)
        return (size_t)n;
    relay->has_answer = true;
    relay->status = head.status;
    relay->is_persistent &= head.is_persistent && head.framing != HTTP_UNTIL_CLOSE;
    http_body_start(&relay->down, &head);
    if (head.framing == HTTP_TUNNEL)
        relay->state = HTTP_RELAY_TUNNEL;
    else if (relay->down.is_done)
        end_exchange(relay);
    return (size_t)n;
}

static size_t take_answer_body(
    struct http_relay *relay, const char *data, size_t length, struct buf *to_guest) {
    ssize_t n = http_body_take(&relay->down, data, length, NULL);

    if (n < 0) {
        relay->state = HTTP_RELAY_CUT;
        relay->calls->refused(
            relay, 0, "upstream_http", "rollbox: the server's answer has a body that is not valid");
        return length;
    }
    buf_add(to_guest, data, (size_t)n);
    pass(relay, HTTP_RELAY_ANSWER, data, (size_t)n);
    relay->down_bytes += (size_t)n;
    if (relay->down.is_done)
        end_exchange(relay);
    return (size_t)n;
}

size_t http_relay_upstream(
    struct http_relay *relay, const char *data, size_t length, struct buf *to_guest) {
    size_t taken = 0;

    while (taken < length) {
        const char *at = data + taken;
        size_t left = length - taken, n = 0;

        switch (relay->state) {
        case HTTP_RELAY_IDLE:
            /* An answer that nobody asked for would be taken for that of the next request. */
            relay->state = HTTP_RELAY_ENDED;
            return length;
        case HTTP_RELAY_BUSY:
            if (relay->has_answer && relay->down.is_done) {
                relay->is_persistent = false;
                end_exchange(relay);
                return length;
            }
            n = relay->has_answer ? take_answer_body(relay, at, left, to_guest)
                                  : take_answer(relay, at, left, to_guest);
            break;
        case HTTP_RELAY_TUNNEL:
            buf_add(to_guest, at, left);
            pass(relay, HTTP_RELAY_ANSWER, at, left);
            relay->down_bytes += left;
            return length;
        case HTTP_RELAY_ENDED:
        case HTTP_RELAY_CUT:
            return length;
        }
        if (n == 0)
            break;
        taken += n;
    }
    return taken;
}

void http_relay_guest_eof(struct http_relay *relay) {
    if (relay->state == HTTP_RELAY_IDLE)
        relay->state = HTTP_RELAY_ENDED;
    else if (relay->state == HTTP_RELAY_BUSY) {
        relay->is_persistent = false;
        /* The server would wait for the rest of the body. */
        if (!relay->up.is_done)
            relay->state = HTTP_RELAY_CUT;
    }
}

void http_relay_upstream_eof(struct http_relay *relay, struct buf *to_guest) {
    switch (relay->state) {
    case HTTP_RELAY_IDLE:
        relay->state = HTTP_RELAY_ENDED;
        break;
    case HTTP_RELAY_BUSY:
        relay->is_persistent = false;
        if (!relay->has_answer)
            http_relay_refuse(relay, 502, "upstream_closed",
                "rollbox: the server closed the connection without an answer", to_guest);
        else if (http_body_eof(&relay->down) < 0)
            relay->state = HTTP_RELAY_CUT;
        else
            end_exchange(relay);
        break;
    case HTTP_RELAY_TUNNEL:
        relay->state = HTTP_RELAY_ENDED;
        relay->calls->answered(relay, relay->status, relay->up_bytes, relay->down_bytes);
        break;
    case HTTP_RELAY_ENDED:
    case HTTP_RELAY_CUT:
        break;
    }
}

bool http_relay_waits_for_upstream(const struct http_relay *relay) {
    return relay->state == HTTP_RELAY_BUSY && relay->up.is_done;
}
