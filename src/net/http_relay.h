/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP/1 connection of a guest and one to the server, between which requests and answers are
 * passed. No I/O: the owner gives bytes and sends the bytes that it gets.
 *
 * One request is under way at a time; requests that a guest sends ahead wait. So an answer of the
 * gateway never overtakes one of the server, and both sides agree about which answer is whose.
 * Heads of requests are written again from their parts, with only the headers about the connection
 * that the gateway itself means. Bodies pass as they are, once their framing is checked.
 */
#ifndef ROLLBOX_NET_HTTP_RELAY_H
#define ROLLBOX_NET_HTTP_RELAY_H

#include "net/http.h"

struct http_relay;

/* What the owner decides about a request. It holds until the call of the relay returns. */
struct http_decision {
    unsigned status;  /* 0: forward it; else the status of the refusal */
    const char *why;  /* of a refusal: the reason's name */
    const char *text; /* of a refusal: one line */
    /* Headers that replace those of the same names. */
    const struct http_header *set;
    size_t n_set;
};

enum http_relay_part {
    HTTP_RELAY_CONTENT,     /* of a request, without its framing */
    HTTP_RELAY_REQUEST_END, /* no bytes: the request is complete */
    HTTP_RELAY_ANSWER,      /* all bytes of the server */
    HTTP_RELAY_TUNNEL_UP,   /* the guest's, after a switch of protocols */
};

struct http_relay_calls {
    /* Called once for each well-formed request to the relay's host. `decision` is zero. */
    void (*decide)(
        struct http_relay *relay, const struct http_head *head, struct http_decision *decision);
    /* A request was refused, by the relay (bad_request, host_other, upstream_http) or by `decide`;
     * `text` says more. */
    void (*refused)(struct http_relay *relay, unsigned status, const char *why, const char *text);
    /* An exchange has ended. `up` and `down` are bytes of its messages. */
    void (*answered)(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down);
    /* May be NULL. Bytes of an exchange that is under way, in their order. */
    void (*passed)(
        struct http_relay *relay, enum http_relay_part part, const char *data, size_t length);
};

struct http_relay {
    const struct http_relay_calls *calls;
    const char *name; /* borrowed: the host that requests must name */
    uint16_t port;
    enum http_relay_state {
        HTTP_RELAY_IDLE,   /* between exchanges */
        HTTP_RELAY_BUSY,   /* an exchange is under way */
        HTTP_RELAY_TUNNEL, /* WebSocket */
        HTTP_RELAY_ENDED,  /* send the rest to the guest, then end both connections */
        HTTP_RELAY_CUT,    /* an answer is cut short: reset the guest's connection */
    } state;
    size_t guest_scanned, upstream_scanned;
    struct http_asked asked;
    struct http_body up, down;
    bool has_answer;    /* the head of the final answer has passed */
    bool is_persistent; /* another request may follow */
    unsigned status;
    uint64_t up_bytes, down_bytes; /* of this exchange */
    uint64_t n_requests;
};

void http_relay_init(struct http_relay *relay, const struct http_relay_calls *calls,
    const char *name, uint16_t port);

/* Both take bytes that have arrived and return how many: those that are left have to be given
 * again, with more behind them or when the other side has moved on. Failures of `to_*` to grow are
 * for the owner to see. */
size_t http_relay_guest(struct http_relay *relay, const char *data, size_t length,
    struct buf *to_upstream, struct buf *to_guest);
size_t http_relay_upstream(
    struct http_relay *relay, const char *data, size_t length, struct buf *to_guest);

/* A side sends nothing more; all of its bytes that could be taken were. */
void http_relay_guest_eof(struct http_relay *relay);
void http_relay_upstream_eof(struct http_relay *relay, struct buf *to_guest);

/* Refuses in place of going further: the request under way, if its answer has not begun, else all
 * that follows. For limits and servers that cannot be reached. */
void http_relay_refuse(struct http_relay *relay, unsigned status, const char *why, const char *text,
    struct buf *to_guest);

/* Does the relay wait for the server alone? */
bool http_relay_waits_for_upstream(const struct http_relay *relay);

#endif
