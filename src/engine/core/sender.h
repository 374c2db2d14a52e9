/* SPDX-License-Identifier: Apache-2.0 */
/* Sends messages that may have to wait for room in the socket. */
#ifndef ROLLBOX_ENGINE_CORE_SENDER_H
#define ROLLBOX_ENGINE_CORE_SENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"

#define MAX_RUN_EXTRA 8 /* descriptors of a command from 3 on */

struct outgoing {
    struct list node; /* sender->waiting */
    struct buf message;
    int fds[MAX_RUN_EXTRA + 1];
    size_t n_fds, bytes;
};

struct sender {
    struct loop *loop;
    struct loop_source
        *source; /* of the socket: its owner reads from it, and calls sender_flush on EPOLLOUT */
    struct loop_timer retry;
    struct list waiting;
    size_t bytes, n;  /* waiting bytes, with memory files, and messages */
    uint64_t flying;  /* bytes of memory files that were sent since the other end had read all */
    size_t pauses_at; /* bytes: with more waiting, nothing is read from the socket. 0: it is always
                         read */
    bool by_event;    /* it waits for room in the socket */
    void (*over)(struct sender *sender, struct outgoing *outgoing,
        int r); /* takes what has waited: it is sent, or (-errno) never can be */
};

void sender_init(struct sender *sender, struct loop *loop, struct loop_source *source,
    void (*over)(struct sender *, struct outgoing *, int));
int sender_send(struct sender *sender, struct buf *message, const int *fds,
    size_t n_fds); /* 0: it is sent; 1: it has to wait; -errno: it never can be sent */
int sender_keep(struct sender *sender, struct outgoing *outgoing, struct buf *message,
    const int *fds, size_t n_fds); /* what has to wait, in an empty *outgoing; takes the message. 0,
                                      or -errno: then neither */
void sender_flush(struct sender *sender);
bool sender_is_paused(const struct sender *sender); /* more waits than may: see pauses_at */
void outgoing_done(struct outgoing *outgoing);      /* does not wait any more */

#endif
