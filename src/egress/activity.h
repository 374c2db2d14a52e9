/* SPDX-License-Identifier: Apache-2.0 */
/* A sandbox's activity in memory shared with the engine (net/activity.h). */
#ifndef ROLLBOX_EGRESS_ACTIVITY_H
#define ROLLBOX_EGRESS_ACTIVITY_H

#include "egress/egress.h"

/* Before something of the sandbox's is taken, and after each count: the engine sees it. */
static inline void activity_touch(struct box *box) {
    if (box->activity)
        atomic_fetch_add(&box->activity->turns, 1);
}
/* One connection more, or less. */
static inline void activity_count(struct box *box, bool more) {
    box->n_connections += more ? 1 : -1u;
    if (box->activity)
        atomic_store(&box->activity->connections, box->n_connections);
}

#endif
