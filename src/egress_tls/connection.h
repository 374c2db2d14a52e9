/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection of a guest, and its server's, both of which rollbox-egress handed over.
 *
 * The guest's handshake is paused after its first message until the server's has ended. So the
 * server is offered the protocols that the guest offers, the guest gets the one that the server
 * chose, and both sides speak the same version of HTTP. A server that cannot be reached, or whose
 * certificate is bad, makes every request a 502 in the guest: a clear answer in place of a failed
 * handshake.
 */
#ifndef ROLLBOX_EGRESS_TLS_CONNECTION_H
#define ROLLBOX_EGRESS_TLS_CONNECTION_H

#include "egress_tls/box.h"
#include "egress_tls/events.h"
#include "egress_tls/side.h"
#include "egress_tls/tape.h"
#include "net/http_relay.h"

struct ca;
struct h2;

/* The state that all connections share. */
struct gateway {
    struct loop *loop;
    struct ca *ca;
    SSL_CTX *client;
    struct events events;
};

struct connection {
    struct list node; /* of its box */
    struct gateway *gateway;
    struct tls_box *box;
    struct event_place place; /* its number, name, port and rule */
    struct side guest, upstream;
    struct loop_timer timer, pause;
    struct loop_task task;
    int64_t begun_ns, active_ns;
    enum connection_step {
        CONNECTION_HELLO,    /* the guest's first message */
        CONNECTION_UPSTREAM, /* the server's handshake */
        CONNECTION_GUEST,    /* the rest of the guest's */
        CONNECTION_OPEN,
        CONNECTION_DRAIN, /* all is sent; the guest has to close */
    } step;
    enum { OFFERS_NOTHING = 0, OFFERS_HTTP1 = 1, OFFERS_H2 = 2 } offers; /* flags, of the guest */
    struct net_target to; /* of the rule, when it began */
    bool has_to, may_be_private;
    bool is_tls_upstream;
    bool guest_eof_passed;
    bool is_paused;      /* by net_max_rate */
    const char *failure; /* of the server: the reason's name, or NULL */
    char failure_text[200];
    struct http_relay relay; /* HTTP/1 */
    struct h2 *h2;           /* HTTP/2, or NULL */
    struct exchange exchange;
    struct tape tape;                  /* HTTP/1 */
    uint64_t counted_up, counted_down; /* bytes that the box's counts have */
};

/* Contexts of TLS. NULL: out of memory, or no certificate among the roots' PEM. */
SSL_CTX *connection_client_context(const struct buf *roots);

/* Takes both descriptors, even on failure. 0 or -errno. */
int connection_new(struct gateway *gateway, struct tls_box *box, const struct event_place *place,
    bool is_tls, bool to_is_plain, int take_guest, int take_upstream);
/* Resets the guest's connection. */
struct connection *connection_free(struct connection *connection);
/* After a change of rules: resets it if no rule allows it any more, or leads to that server. */
void connection_check_rules(struct connection *connection);

#endif
