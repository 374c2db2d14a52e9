/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One TCP connection of a guest.
 *
 *     accept -> rule -> first bytes -> addresses -> connect -> pass bytes, or hand over -> end
 *
 * On ports 443 and 80, and where the gateway decrypts, the guest speaks first: nothing is resolved
 * before its first bytes are complete and allowed. On other ports the server may speak first, so it
 * is connected to at once, and its bytes are passed while those of the guest are still looked at.
 *
 * Every end goes through connection_refuse (with a reason; the guest's socket is reset) or
 * connection_end.
 */
#ifndef ROLLBOX_EGRESS_CONNECTION_H
#define ROLLBOX_EGRESS_CONNECTION_H

#include "egress/egress.h"

struct side {
    struct loop_source source;
    int fd;
    uint32_t events;  /* in the loop; 0: not in it */
    bool is_full;     /* takes no bytes now */
    bool has_ended;   /* sent its last byte, and the other side knows */
    size_t looked_at; /* bytes that wait for more to come: the socket wakes only for more */
};

/* The first line of bytes that are passed as they are, followed until it ends: a guest sends it in
 * as many pieces as it likes. */
struct first_line {
    bool is_watched, has_begun;
    uint8_t n_found; /* characters of "HTTP/" */
};

enum connection_upstream {
    UPSTREAM_NONE,
    UPSTREAM_RESOLVING,
    UPSTREAM_CONNECTING,
    UPSTREAM_CONNECTED,
};

struct connection {
    struct list node; /* of box->connections */
    struct list handed_node;
    struct box *box;
    uint64_t id;
    struct side guest, upstream;
    const char *name; /* NULL: a literal address. Owned by the box's names */
    char literal[ADDRESS_TEXT];
    struct address address; /* as the guest sees it */
    uint16_t port;
    size_t rule;
    enum net_tls tls;
    enum connection_upstream state;
    bool is_checked; /* the first bytes are allowed */
    struct first_line first_line;
    bool is_tls, is_handed;
    bool is_peer;           /* to another sandbox, by a socket of the engine's */
    struct http_flow *http; /* NULL: bytes are passed as they are */
    struct recorded_exchange recorded;
    struct replay *replay; /* answers in place of the server; or NULL */
    struct lookup_waiter waiter;
    struct address addresses[EGRESS_ADDRESSES];
    size_t n_addresses, next_address;
    struct loop_timer timer;
    int64_t active_ns, started_ns;
    uint64_t up, down, tallied_up, tallied_down;
};

/* Takes an accepted, non-blocking socket. */
void connection_start(struct box *box, int take_fd);
/* Judges the first bytes, if they are here already. May free the connection. */
void connection_look(struct connection *connection);
/* The rules are others: ends it if they do not allow it, or lead to another server. A connection
 * that was handed over is judged by rollbox-egress-tls. */
void connection_check_rules(struct connection *connection, const struct net_rules *before);
/* The engine's answer for one to another sandbox: its socket, or -EBADF. */
void connection_join_peer(struct box *box, uint64_t id, int take_fd);
/* The other sandboxes are others: connections to those that have left are ended. */
void connection_check_peers(struct box *box);
/* Brings the bytes so far into the tallies. */
void connection_tally(struct connection *connection);
/* After box->is_paused has changed. */
void connection_update(struct connection *connection);
void connection_refuse(struct connection *connection, enum net_why why);
/* `reset`: the guest's socket, and the server's. Frees the connection. */
void connection_end(struct connection *connection, bool reset);
/* Of a sandbox that ends, or whose gateway to TLS is gone. */
void connection_end_all(struct box *box);

/* The host as in tallies and logs. */
static inline const char *connection_host(const struct connection *connection) {
    return connection->name ? connection->name : connection->literal;
}

#endif
