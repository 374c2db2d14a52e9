/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name server that a guest sees at every address: it answers from the rules and the table of
 * names alone. No query of a guest is ever sent on, so names carry no data out.
 */
#ifndef ROLLBOX_EGRESS_DNS_SERVER_H
#define ROLLBOX_EGRESS_DNS_SERVER_H

#include "egress/egress.h"

/* Queries over UDP wait at the listener. */
void dns_server_read(struct listener *listener);
/* An accepted connection to port 53. */
void dns_stream_start(struct box *box, int take_fd);
void dns_stream_end_all(struct box *box);

#endif
