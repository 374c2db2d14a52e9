/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the first bytes that a guest sends on a connection, without consuming them: TLS for the
 * right name, a request of plain HTTP, or another protocol. */
#ifndef ROLLBOX_EGRESS_FIRST_BYTES_H
#define ROLLBOX_EGRESS_FIRST_BYTES_H

#include "egress/connection.h"

enum first_bytes {
    FIRST_BYTES_MORE,  /* the socket wakes when there are more */
    FIRST_BYTES_END,   /* the guest closed without a word */
    FIRST_BYTES_TLS,   /* its name is the connection's */
    FIRST_BYTES_HTTP,  /* Host is still to be checked */
    FIRST_BYTES_OTHER, /* allowed as it is */
    FIRST_BYTES_REFUSED,
};

/* Do these next bytes make the line one of HTTP? */
bool first_line_is_http(struct first_line *line, const char *data, size_t length);

enum first_bytes first_bytes_read(struct connection *connection, enum net_why *ret_why);
/* The socket wakes for any byte again. */
void first_bytes_done(struct connection *connection);

#endif
