/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-egress: the gateway of an engine's sandboxes with net "allow".
 *
 * One thread, one loop. The engine hands over the listeners that were opened inside each sandbox.
 * A connection of a guest arrives at one of them, and the socket's own address is the
 * one that the guest meant. It stands for one name, or is a literal; a rule of the policy has to
 * allow it; the name is resolved here, the addresses are checked, and one of those very addresses
 * is connected to. Then bytes are passed.
 *
 * The guest controls all bytes of its sockets, and servers all of theirs. So all that is kept for
 * one sandbox has a bound: connections, names, tallies and the log by their number, and bytes that
 * wait for a slow reader stay in the sockets' own buffers.
 *
 * A socket of a guest is reset when it is closed before its time, so that a guest cannot mistake a
 * part of an answer for all of it: SO_LINGER 0 from the beginning, which also holds when this
 * process is killed.
 */
#ifndef ROLLBOX_EGRESS_EGRESS_H
#define ROLLBOX_EGRESS_EGRESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "egress/turn.h"
#include "loop/loop.h"
#include "net/activity.h"
#include "net/address.h"
#include "net/client_hello.h"
#include "net/http_relay.h"
#include "net/match.h"
#include "net/names.h"
#include "net/recorder.h"
#include "net/recording.h"
#include "policy/policy.h"

#define EGRESS_CHUNK (256u << 10) /* passed at a time */
#define EGRESS_FIRST_BYTES_S 10   /* for a ClientHello or the first request to be complete */
#define EGRESS_CONNECT_S 10       /* for all addresses of a host together */
#define EGRESS_ADDRESSES 8        /* of a host, that are tried */

/* Rates: tokens are gained with time, up to a limit. */
struct bucket {
    int64_t tokens_milli;
    int64_t at_ns; /* when they were counted */
};

/* A policy, shared by all sandboxes that have the same text. */
struct rules {
    struct list node;
    unsigned users;
    char *text;
    struct policy *policy;
};

struct lookup;
/* Embedded in the owner that waits for a name's addresses. */
struct lookup_waiter {
    struct list node; /* linked while it waits */
    void (*done)(struct lookup_waiter *waiter, const struct address *addresses, size_t n);
};

/* The counts of one sandbox over a time. */
struct tally {
    struct list node;
    uint64_t id;
    uint64_t connections, refused, up, down, requests;
    struct tally_host {
        char *name;
        uint16_t port;
        uint64_t connections, up, down;
    } * hosts;
    struct tally_refusal {
        char *name;
        uint16_t port;
        enum net_why why;
        uint64_t count;
    } * refusals;
    size_t n_hosts, n_refusals;
};

/* Kinds of events that have a part of the log each. */
enum log_kind { LOG_NAMES, LOG_REFUSALS, LOG_CONNECTIONS, LOG_REQUESTS, LOG_KINDS };

struct log {
    int fd, file; /* the engine's, the user's; -EBADF: none */
    bool is_torn; /* the last line may be cut short */
    struct log_part {
        uint64_t bytes, events, dropped;
        bool is_full; /* a line has told that */
    } parts[LOG_KINDS];
};

struct listener {
    struct loop_source source;
    struct box *box;
    int fd;
    uint16_t port;
    bool is_udp;
};

/* One sandbox. */
struct box {
    struct list node;
    struct egress *egress;
    char *id;
    struct rules *rules;
    struct names names;
    struct net_activity *activity; /* or NULL: no slot */
    json_t *peers; /* names of sandboxes of its private network, an array; NULL: none */
    struct listener *listeners;
    size_t n_listeners;
    struct list connections, flows, dns_streams;
    uint32_t n_connections;        /* with those of `flows` and `dns_streams` */
    uint64_t up_bytes, down_bytes; /* of its life, for limits */
    uint64_t n_requests;
    struct tally totals;
    struct list tallies;
    struct log log;
    struct tape {
        struct recorder recorder;
        struct recording *recording; /* from which it is answered; NULL: by the hosts */
    } tape;
    struct turn turn;
    struct bucket accepts, queries, bytes;
    bool is_paused; /* past its rate of bytes */
    struct loop_timer accept_timer, query_timer, rate_timer;
};

struct egress {
    struct loop *loop;
    int engine_fd;
    struct loop_source engine_source;
    struct outbox {
        int fd; /* a duplicate of engine_fd: the loop has each descriptor once */
        struct loop_source source;
        struct list queue;
    } outbox;
    struct loop_source tls_source;
    int tls;      /* of rollbox-egress-tls, or -EBADF */
    int route;    /* netlink */
    int spare_fd; /* closed to accept, and refuse, one connection when descriptors are used up */
    struct list boxes, rules, handed;
    struct list inward; /* struct inward_group.node */
    struct resolver *resolver;
    struct net_activity *activity; /* NET_ACTIVITY_SLOTS, shared with the engine; or NULL */
    char *scratch;                 /* EGRESS_CHUNK bytes, for the running callback alone */
    uint64_t n_connections;
};

#endif
