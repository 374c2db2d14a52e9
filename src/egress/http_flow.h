/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that speaks plain HTTP: the Host of every request is checked. net/http_relay.h does
 * the work; here its bytes are moved. What it has written and a socket does not take waits here, at
 * most one chunk for each side, because nothing more is read meanwhile.
 */
#ifndef ROLLBOX_EGRESS_HTTP_FLOW_H
#define ROLLBOX_EGRESS_HTTP_FLOW_H

#include "base/buf.h"
#include "egress/connection.h"

struct http_flow {
    struct http_relay relay;
    struct connection *connection;
    struct buf to_upstream, to_guest;
    size_t upstream_sent, guest_sent;
    bool is_lingering; /* the last answer is sent; waits for the guest to close */
    char method[16], path[256];
};

enum http_step {
    HTTP_STEP_WAIT,    /* for sockets */
    HTTP_STEP_CONNECT, /* a request is allowed, and there is no server yet */
    HTTP_STEP_LINGER,  /* the last answer is sent: wait for the guest to close, and not long */
    HTTP_STEP_END,
    HTTP_STEP_RESET,
};

/* 0 or -ENOMEM. */
int http_flow_new(struct connection *connection);
struct http_flow *http_flow_free(struct http_flow *flow);
/* Moves what can be moved. */
enum http_step http_flow_step(struct http_flow *flow);
/* Answers the request under way with an error. */
void http_flow_refuse(struct http_flow *flow, unsigned status, enum net_why why, const char *text);
/* Which events the sides wait for. */
uint32_t http_flow_guest_events(const struct http_flow *flow);
uint32_t http_flow_upstream_events(const struct http_flow *flow);

#endif
