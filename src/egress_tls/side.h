/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One socket of a connection, with TLS or without: bytes that arrived and bytes to send.
 *
 * No call blocks. A side reads only as many bytes as its owner has room for. So a peer that does
 * not read delays only the other side of its own connection.
 */
#ifndef ROLLBOX_EGRESS_TLS_SIDE_H
#define ROLLBOX_EGRESS_TLS_SIDE_H

#include <openssl/ssl.h>
#include <sys/types.h>

#include "base/buf.h"
#include "loop/loop.h"

#define SIDE_IN (72u << 10)   /* a head, and room to read */
#define SIDE_OUT (256u << 10) /* with more to send, the other side is not read */

struct side {
    struct loop_source source;
    int fd;   /* owned */
    SSL *ssl; /* owned; NULL: plain */
    struct buf in, out;
    size_t sent; /* of `out` */
    enum side_state {
        SIDE_OPEN,
        SIDE_EOF,    /* the peer sends nothing more */
        SIDE_CUT,    /* the same, without TLS's notice: an attacker may have cut it off */
        SIDE_BROKEN, /* an error */
    } state;
    bool cannot_send;
    bool wants_write; /* TLS has to write before it can read */
    uint64_t received, written;
};

void side_init(struct side *side, int take_fd, SSL *take_ssl);
void side_done(struct loop *loop, struct side *side);

/* Reads until `in` is full or nothing waits. Is there more than before? */
bool side_read(struct side *side);
/* Writes `out`. Has any been written? */
bool side_write(struct side *side);
void side_consume(struct side *side, size_t length);
static inline size_t side_unsent(const struct side *side) {
    return side->out.length - side->sent;
}
/* Has TLS bytes that the socket does not show? */
bool side_has_pending(const struct side *side);

/* Ends the sent stream: TLS's notice if wanted, then the socket's end. */
void side_shutdown(struct side *side, bool with_notice);
/* Makes closing the socket reset the connection, or end it in order. */
void side_set_reset(struct side *side, bool resets);

#endif
