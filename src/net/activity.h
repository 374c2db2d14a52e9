/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that rollbox-egress shares with the engine, so that the engine need not ask for the counts
 * of a command that did nothing in the network: most commands.
 *
 * `turns` grows before a connection or datagram is taken from a sandbox's sockets, and with each
 * count. So where nothing waits in the sockets, and then `turns` is as it was and there is no
 * connection, nothing has happened.
 */
#ifndef ROLLBOX_NET_ACTIVITY_H
#define ROLLBOX_NET_ACTIVITY_H

#include <stdatomic.h>
#include <stdint.h>

#define NET_ACTIVITY_SLOTS 4096 /* further sandboxes are asked about */

struct net_activity {
    _Atomic uint64_t turns;
    _Atomic uint64_t connections;
};

#endif
