/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fairness among sandboxes: the sockets of each are in an epoll instance of its own, and that one
 * is in the loop. So a sandbox has one place in the loop's order, however many of its connections
 * are busy, and a turn of it is short.
 *
 * The instance exists while there is a socket in it: an idle sandbox has its listeners alone.
 */
#ifndef ROLLBOX_EGRESS_TURN_H
#define ROLLBOX_EGRESS_TURN_H

#include "loop/loop.h"

struct turn {
    struct loop *loop; /* the owner's to set */
    struct loop_source source;
    int epoll; /* while there are sources */
    unsigned n_sources;
};

/* As loop_add, loop_modify and loop_remove. */
int turn_add(struct turn *turn, struct loop_source *source, int fd, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t));
int turn_modify(struct turn *turn, struct loop_source *source, uint32_t events);
void turn_remove(struct turn *turn, struct loop_source *source);

#endif
