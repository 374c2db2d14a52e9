/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that rollbox-egress-tls continues: it gets both sockets and reports what happens. */
#ifndef ROLLBOX_EGRESS_TLS_H
#define ROLLBOX_EGRESS_TLS_H

#include "egress/connection.h"

/* Sends both sockets, of which nothing was read. 0 or -errno; the connection keeps its own
 * descriptors. */
int tls_hand_over(struct connection *connection);

#endif
