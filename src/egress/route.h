/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is an address one of the host's own? In the kernel's routing table, the route to such an address
 * is local (or broadcast, or multicast). The gateway queries the table for each connection, because
 * addresses change, and a list of addresses lacks ranges that an administrator made local.
 */
#ifndef ROLLBOX_EGRESS_ROUTE_H
#define ROLLBOX_EGRESS_ROUTE_H

#include <stdbool.h>

#include "net/address.h"

/* A netlink socket, or -errno. Before the confinement. */
int route_open(void);
/* True also if the kernel gives no answer. False for an address without any route. */
bool route_is_own(int route, const struct address *address);

#endif
