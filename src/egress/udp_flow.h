/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams to the UDP ports that rules name.
 *
 * A flow is one socket of the guest and one destination; it has a connected socket of its own
 * outside, so that only that server can answer. Flows count as connections and end when idle. A
 * flow's first datagram waits for the address; others that come meanwhile are dropped, as a network
 * may do.
 */
#ifndef ROLLBOX_EGRESS_UDP_FLOW_H
#define ROLLBOX_EGRESS_UDP_FLOW_H

#include "egress/egress.h"

void udp_flow_read(struct listener *listener);
void udp_flow_check_rules(struct box *box, const struct net_rules *before);
void udp_flow_tally(struct box *box);
void udp_flow_end_all(struct box *box);

#endif
