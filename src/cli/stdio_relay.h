/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay moves one stream's bytes, in constant memory, from one descriptor to another or into a
 * buffer. The guest only holds pipes of rollbox, never the caller's terminal or files; otherwise it
 * could use their ioctls, offsets and other names.
 *
 * A relay polls the input first, and polls the output only while it has input. So an idle stream
 * costs nothing, and a full one stops the guest as a full pipe would. The caller's descriptors stay
 * blocking, because all processes that have them share that flag. So output is written only
 * after poll reports room: to a pipe by splice, which does not block, otherwise in pieces for which
 * poll has promised room.
 */
#ifndef ROLLBOX_CLI_RELAY_H
#define ROLLBOX_CLI_RELAY_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct keys;

enum relay_state { RELAY_WAIT_INPUT, RELAY_WAIT_OUTPUT, RELAY_DONE };

struct stdio_relay {
    enum relay_state state;
    int from;              /* borrowed, or owned if own_from */
    int to;                /* -EBADF: into `collected` */
    bool own_from, own_to; /* closed when the stream ends: the other side must see it */
    bool splice;           /* both are pipes */
    bool over;    /* more than `limit` came; the stream has ended at exactly `limit` bytes */
    size_t piece; /* largest single write */
    uint64_t limit, passed; /* bytes */
    struct buf collected;
    char *copy; /* read but not yet written: copy[copy_at .. copy_end) */
    struct keys
        *keys; /* borrowed: the input is typed, and searched for these keys; NULL: it is not */
    size_t copy_at, copy_end;
    char tail[1024]; /* the last bytes that passed through `copy`: not those that were spliced */
    size_t tail_length;
    bool broken; /* the reader of `to` is gone */
    int error;   /* errno of a failed read, or write other than EPIPE; 0 */
};

/* The caller's input to the guest's pipe (`to` is consumed, and made non-blocking). */
void stdio_relay_init_input(struct stdio_relay *relay, int from, int take_to);

/* The guest's pipe (`from` is consumed, and made non-blocking) to a descriptor, or into memory if
 * `to` is -EBADF. */
void stdio_relay_init_output(struct stdio_relay *relay, int take_from, int to, uint64_t limit);

/* The event that the relay waits for; fd -1 when it is done. */
void stdio_relay_poll(const struct stdio_relay *relay, struct pollfd *ret_poll);

/* Continues after poll has reported an event. */
void stdio_relay_ready(struct stdio_relay *relay);

/* Called when there is no writer any longer: ends the relay if nothing is left to move. */
void stdio_relay_writers_gone(struct stdio_relay *relay);
void stdio_relay_done(struct stdio_relay *relay);

#endif
