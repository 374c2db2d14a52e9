/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to servers in sandboxes that the engine asks for itself: for published ports and for
 * other sandboxes of a private network. A client's are the operation CONNECT alone (op_connect.c).
 */
#ifndef ROLLBOX_ENGINE_INSIDE_H
#define ROLLBOX_ENGINE_INSIDE_H

#include <stdint.h>

#include "loop/loop.h"

struct session;

/* Embedded in its owner. Zeroed at first. */
struct inside {
    struct loop *loop;
    struct loop_source source;
    int answer; /* where init sends the socket */
    void (*done)(struct inside *inside, int fd);
};

/* Asks init for a connection to the port, which resumes or wakes the sandbox first. `done` is
 * called once, later, unless inside_cancel is called before: with the socket (non-blocking;
 * borrowed), which may still be connecting and resets the connection when it is closed, or -errno.
 * 0 or -errno: then `done` is not called. */
int inside_ask(struct inside *inside, struct session *session, uint16_t port,
    void (*done)(struct inside *inside, int fd));
void inside_cancel(struct inside *inside);

#endif
