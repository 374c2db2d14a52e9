/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of net/activity.h. */
#ifndef ROLLBOX_ENGINE_NETWORK_GATEWAY_ACTIVITY_H
#define ROLLBOX_ENGINE_NETWORK_GATEWAY_ACTIVITY_H

#include <stdbool.h>
#include <stddef.h>

#include "net/activity.h"

struct gateway_activity {
    int fd; /* of the shared memory; -EBADF: there is none, and every command is asked about */
    struct net_activity *slots;
    bool used[NET_ACTIVITY_SLOTS];
    unsigned next;
};

void gateway_activity_init(struct gateway_activity *activity);
void gateway_activity_done(struct gateway_activity *activity);
/* A gateway starts, with no connections. */
void gateway_activity_reset(struct gateway_activity *activity);

/* For a sandbox; -1: none is free. */
int gateway_activity_take(struct gateway_activity *activity);
void gateway_activity_release(struct gateway_activity *activity, int slot);
/* A counter that is_quiet compares with later. */
uint64_t gateway_activity_turns(const struct gateway_activity *activity, int slot);
/* Has nothing happened since then in the sandbox with these sockets, and does nothing wait? */
bool gateway_activity_is_quiet(const struct gateway_activity *activity, int slot, uint64_t turns,
    const int *fds, size_t n_fds);

#endif
