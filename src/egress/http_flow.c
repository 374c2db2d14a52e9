/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/http_flow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "egress/log.h"
#include "egress/relay.h"
#include "egress/tally.h"

static struct http_flow *flow_of(struct http_relay *relay) {
    return container_of(relay, struct http_flow, relay);
}

static void keep_text(char *to, size_t size, struct http_text text) {
    snprintf(to, size, "%.*s", (int)MIN(text.length, size - 1), text.text);
}

static void decide(
    struct http_relay *relay, const struct http_head *head, struct http_decision *decision) {
    struct http_flow *flow = flow_of(relay);
    struct box *box = flow->connection->box;
    uint32_t limit = box->rules->policy->network.max_requests;

    keep_text(flow->method, sizeof flow->method, head->method);
    keep_text(flow->path, sizeof flow->path, head->target);
    if (limit && box->n_requests >= limit) {
        decision->status = 429;
        decision->why = match_why_text(NET_WHY_LIMIT_REQUESTS);
        decision->text = "the sandbox has used up net_max_requests";
        return;
    }
    box->n_requests++;
    tally_request(box);
}

static void refused(struct http_relay *relay, unsigned status, const char *why, const char *text) {
    struct http_flow *flow = flow_of(relay);
    struct connection *connection = flow->connection;

    tally_refusal(
        connection->box, connection_host(connection), connection->port, match_why_of(why));
    log_event(connection->box, "http-refused", "{s:s, s:i, s:s, s:i, s:s}", "host",
        connection_host(connection), "port", (int)connection->port, "why", why, "status",
        (int)status, "text", text);
}

static void answered(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down) {
    struct http_flow *flow = flow_of(relay);
    struct connection *connection = flow->connection;

    if (log_wants_requests(connection->box))
        log_event(connection->box, "http", "{s:s, s:i, s:s, s:s, s:i, s:I, s:I}", "host",
            connection_host(connection), "port", (int)connection->port, "method", flow->method,
            "path", flow->path, "status", (int)status, "up", (json_int_t)up, "down",
            (json_int_t)down);
}

static const struct http_relay_calls calls = { decide, refused, answered, NULL };

int http_flow_new(struct connection *connection) {
    struct http_flow *flow = calloc(1, sizeof *flow);

    if (!flow)
        return -ENOMEM;
    flow->connection = connection;
    http_relay_init(&flow->relay, &calls, connection->name, connection->port);
    connection->http = flow;
    return 0;
}

struct http_flow *http_flow_free(struct http_flow *flow) {
    if (flow) {
        buf_done(&flow->to_upstream);
        buf_done(&flow->to_guest);
        free(flow);
    }
    return NULL;
}

void http_flow_refuse(struct http_flow *flow, unsigned status, enum net_why why, const char *text) {
    http_relay_refuse(&flow->relay, status, match_why_text(why), text, &flow->to_guest);
}

/* Sends what waits. 1: all of it; 0: the socket takes no more now; or -errno. */
static int flush(struct side *side, struct buf *from, size_t *sent, uint64_t *count) {
    side->is_full = false;
    if (buf_failed(from))
        return -ENOMEM;
    while (*sent < from->length) {
        ssize_t n =
            send(side->fd, from->data + *sent, from->length - *sent, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            side->is_full = true;
            return 0;
        }
        if (n < 0)
            return -errno;
        *sent += (size_t)n;
        *count += (uint64_t)n;
    }
    if (from->length)
        buf_done(from); /* an idle connection keeps no memory */
    *sent = 0;
    return 1;
}

/* Gives a side's bytes to the relay. 1: some were taken; 0: none; or -errno. */
static int take(struct http_flow *flow, struct side *side, bool is_guest) {
    char *scratch = flow->connection->box->egress->scratch;
    ssize_t n = relay_peek(side->fd, scratch, EGRESS_CHUNK);

    if (n == -EAGAIN || n == -EINTR) {
        relay_wake_for(side->fd, &side->looked_at, 0);
        return 0;
    }
    if (n < 0)
        return (int)n;
    size_t taken = 0;
    if (n > 0 && is_guest)
        taken =
            http_relay_guest(&flow->relay, scratch, (size_t)n, &flow->to_upstream, &flow->to_guest);
    else if (n > 0)
        taken = http_relay_upstream(&flow->relay, scratch, (size_t)n, &flow->to_guest);
    if (taken) {
        int r = relay_drop(side->fd, taken);

        relay_wake_for(side->fd, &side->looked_at, 0);
        return r < 0 ? r : 1;
    }
    if (n > 0 && !relay_has_ended(side->fd)) {
        relay_wake_for(side->fd, &side->looked_at, (size_t)n);
        return 0;
    }
    /* The last byte is here, and what waits is not complete. */
    side->has_ended = true;
    if (is_guest)
        http_relay_guest_eof(&flow->relay);
    else
        http_relay_upstream_eof(&flow->relay, &flow->to_guest);
    return 1;
}

static bool may_take_guest(const struct http_flow *flow) {
    if (flow->connection->guest.has_ended || flow->to_upstream.length || flow->to_guest.length)
        return false;
    return flow->relay.state < HTTP_RELAY_ENDED && !http_relay_waits_for_upstream(&flow->relay);
}

static bool may_take_upstream(const struct http_flow *flow) {
    const struct connection *connection = flow->connection;

    if (connection->state != UPSTREAM_CONNECTED || connection->upstream.has_ended)
        return false;
    return !flow->to_guest.length && flow->relay.state < HTTP_RELAY_ENDED;
}

/* A server may answer and close before it has read all of the request. So a failure to send to it
 * is no end: its answer is read, or its end. */
static int flush_all(struct http_flow *flow) {
    struct connection *connection = flow->connection;
    int r = flush(&connection->guest, &flow->to_guest, &flow->guest_sent, &connection->down);

    if (r < 0 || connection->state != UPSTREAM_CONNECTED)
        return r;
    r = flush(&connection->upstream, &flow->to_upstream, &flow->upstream_sent, &connection->up);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        buf_done(&flow->to_upstream);
        flow->upstream_sent = 0;
    }
    return 0;
}

static int take_all(struct http_flow *flow) {
    struct connection *connection = flow->connection;
    int from_guest = 0, from_upstream = 0;

    if (may_take_guest(flow))
        from_guest = take(flow, &connection->guest, true);
    if (from_guest >= 0 && may_take_upstream(flow))
        from_upstream = take(flow, &connection->upstream, false);
    if (from_upstream < 0) {
        connection->upstream.has_ended = true; /* reset by the server */
        http_relay_upstream_eof(&flow->relay, &flow->to_guest);
        from_upstream = 1;
    }
    return from_guest < 0 ? from_guest : from_guest + from_upstream;
}

/* Closing while bytes of the guest are unread would reset its socket, and it might lose the answer
 * that it has not read. */
static enum http_step linger(struct http_flow *flow) {
    struct side *guest = &flow->connection->guest;

    if (!flow->is_lingering)
        shutdown(guest->fd, SHUT_WR);
    for (int i = 0; i < 4; i++) {
        ssize_t n = recv(guest->fd, NULL, EGRESS_CHUNK, MSG_TRUNC | MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return HTTP_STEP_END;
        if (n < 0)
            break;
    }
    if (!flow->is_lingering)
        relay_wake_for(guest->fd, &guest->looked_at, 0);
    flow->is_lingering = true;
    return HTTP_STEP_LINGER;
}

enum http_step http_flow_step(struct http_flow *flow) {
    for (int i = 0; i < 8; i++) {
        if (flow->is_lingering)
            return linger(flow);
        if (flush_all(flow) < 0 || flow->relay.state == HTTP_RELAY_CUT)
            return HTTP_STEP_RESET;
        if (flow->relay.state == HTTP_RELAY_ENDED && !flow->to_guest.length)
            return linger(flow);
        int r = take_all(flow);
        if (r < 0)
            return HTTP_STEP_RESET;
        if (r == 0)
            break;
    }
    if (flow->to_upstream.length && flow->connection->state == UPSTREAM_NONE)
        return HTTP_STEP_CONNECT;
    return HTTP_STEP_WAIT;
}

uint32_t http_flow_guest_events(const struct http_flow *flow) {
    uint32_t events = flow->to_guest.length ? EPOLLOUT : 0u;

    return events | (flow->is_lingering || may_take_guest(flow) ? EPOLLIN : 0u);
}

uint32_t http_flow_upstream_events(const struct http_flow *flow) {
    uint32_t events = flow->to_upstream.length ? EPOLLOUT : 0u;

    return events | (may_take_upstream(flow) ? EPOLLIN : 0u);
}
