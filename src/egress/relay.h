/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passing bytes from one socket to another without keeping any.
 *
 * The bytes are looked at (MSG_PEEK), sent, and as many as were taken are then dropped from the
 * source. What a slow reader does not take stays in the source's receive buffer, whose window tells
 * the sender to wait. So a connection costs the same memory at any speed.
 * Sockets are of TCP; relay_pass takes Unix sockets, too.
 */
#ifndef ROLLBOX_EGRESS_RELAY_H
#define ROLLBOX_EGRESS_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum relay {
    RELAY_MORE,   /* there may be more at once */
    RELAY_SOURCE, /* wait for the source */
    RELAY_TARGET, /* wait for the target */
    RELAY_END,    /* the source has ended */
};

/* Passes up to `limit` bytes through `scratch`, and returns how many (0 with RELAY_MORE is not
 * possible), or -errno: *ret_failed is then the socket that failed. */
ssize_t relay_pass(
    int source, int target, char *scratch, size_t limit, enum relay *ret_next, int *ret_failed);

/* Reads without consuming. Returns the number of bytes or -errno. */
ssize_t relay_peek(int source, void *data, size_t limit);
/* Drops bytes that relay_peek has read. */
int relay_drop(int source, size_t length);
/* The socket is readable only when it has more than `bytes`, or has ended. *looked_at keeps the
 * number, 0 at first. */
void relay_wake_for(int source, size_t *looked_at, size_t bytes);
/* Has the other end sent its last byte? True also if the connection is gone. */
bool relay_has_ended(int source);

#endif
