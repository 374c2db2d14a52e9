/* SPDX-License-Identifier: Apache-2.0 */
/* The way out of a sandbox with net "allow": routes, rules and sockets of its network namespace. */
#ifndef ROLLBOX_GUEST_INIT_NETWORK_H
#define ROLLBOX_GUEST_INIT_NETWORK_H

#include <stdbool.h>
#include <stddef.h>

#include "policy/plan.h"

#define NETWORK_MAX_SOCKETS (PLAN_NET_MAX_PORTS + 2)

struct network {
    int fds[NETWORK_MAX_SOCKETS]; /* listeners of TCP, and sockets of UDP */
    size_t n;
    bool is_transparent; /* one listener gets all connections; else one each port */
};

/* In the calling process's network namespace, whose loopback interface is up, and with the rights
 * of its user namespace. 0 or -errno (E2BIG: too many ports for this kernel, which lacks what
 * transparent mode needs). */
int network_open(const struct plan *plan, struct network *network);
void network_close(struct network *network);

#endif
