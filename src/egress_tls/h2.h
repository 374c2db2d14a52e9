/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/2 between a guest and a server: each request of the guest's is a stream there and one here.
 *
 * Windows are opened again only as bytes leave for the other side, so a stream holds no more than
 * its window. Trailers and interim answers pass. A refused request is a complete answer on its
 * stream, and the connection stays.
 */
#ifndef ROLLBOX_EGRESS_TLS_H2_H
#define ROLLBOX_EGRESS_TLS_H2_H

#include "egress_tls/connection.h"

/* NULL: out of memory. */
struct h2 *h2_new(struct connection *connection);
struct h2 *h2_free(struct h2 *h2);

/* Takes bytes that have arrived in `in`, and puts those to send into `out`, of both sides. Has
 * anything moved? */
bool h2_advance(struct h2 *h2);
/* Nothing more is to come: both sessions are over, and all is sent. */
bool h2_is_over(const struct h2 *h2);
/* Does the server work on a request? */
bool h2_is_exchanging(const struct h2 *h2);

#endif
