/* SPDX-License-Identifier: Apache-2.0 */
/* Events that rollbox-egress puts into results and logs, sent over its socket. */
#ifndef ROLLBOX_EGRESS_TLS_EVENTS_H
#define ROLLBOX_EGRESS_TLS_EVENTS_H

#include <jansson.h>
#include <stdint.h>

#include "base/list.h"
#include "loop/loop.h"
#include "net/http.h"

/* Where events happen. */
struct event_place {
    char *box; /* both are owned by the one that has this */
    char *name;
    uint64_t connection;
    uint16_t port;
    size_t rule;
};

/* A request, as events name it. */
struct exchange {
    char *method, *path; /* NULL: none yet */
    long rule;
    uint64_t up, down;
};

struct events {
    struct loop *loop;
    struct loop_source *source; /* of the socket, with the events that it waits for in any case */
    int socket;
    struct list queue;
    size_t n_queued;
};

void events_init(struct events *events, struct loop *loop, struct loop_source *source, int socket);
void events_done(struct events *events);
/* The socket has room again. 0, or -errno when the peer has gone. */
int events_flush(struct events *events);

/* `exchange` and `why` may be NULL. */
void events_add(struct events *events, const struct event_place *place, const char *event,
    const struct exchange *exchange, unsigned status, const char *why);
/* The end of a connection, with its bytes. */
void events_add_close(
    struct events *events, const struct event_place *place, uint64_t up, uint64_t down);

void exchange_set(
    struct exchange *exchange, struct http_text method, struct http_text target, long rule);
void exchange_done(struct exchange *exchange);

#endif
