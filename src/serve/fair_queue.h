/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fair queue: which of the requests that wait is started next.
 *
 * Tenants take turns by virtual time (start-time fair queueing): each start adds its cost, divided
 * by the tenant's weight, to the tenant's time, and the tenant with the least time is next. A
 * tenant that comes back begins at the present time of the queue, so it has no credit for its
 * absence, and one that sends more gets no more turns than others.
 *
 * Within a tenant requests of a higher priority are first, and equals in the order in which they
 * came. A request that has waited FAIR_AGE_NS counts as one priority higher, so that even low ones
 * are started some time.
 *
 * A request that finds no room is passed over by those that do, so that a large one does not block
 * small ones. Once others have been given as much as the large one needs FAIR_PASSES times over,
 * nothing else is started before it: it cannot wait for ever.
 *
 * The queue reads no clock and knows no requests: its user has those, and tests have fakes.
 */
#ifndef ROLLBOX_SERVE_FAIR_QUEUE_H
#define ROLLBOX_SERVE_FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define FAIR_AGE_NS (INT64_C(10) * 1000000000)
#define FAIR_PASSES 4u
#define FAIR_LOOK_MAX 32u /* requests of one tenant and priority that are looked at for a start */

enum fair_priority { FAIR_HIGH, FAIR_NORMAL, FAIR_LOW, FAIR_PRIORITIES };

struct fair_tenant {
    struct list in_turns; /* of the queue, while something waits */
    struct list items[FAIR_PRIORITIES];
    unsigned n, weight; /* that wait; 0: 1 */
    double time;        /* virtual */
};

struct fair_item {
    struct list node; /* empty: it does not wait */
    struct fair_tenant *tenant;
    enum fair_priority priority;
    int64_t since_ns;
    uint64_t cost; /* in the turns of its tenant: at least 1 */
    uint64_t size; /* that it needs of the room, for what passes it */
    uint64_t passed;
};

struct fair_queue {
    struct list turns;
    unsigned n;
    double time;
};

void fair_queue_init(struct fair_queue *queue);
void fair_tenant_init(struct fair_tenant *tenant);
void fair_item_init(struct fair_item *item);
void fair_queue_add(struct fair_queue *queue, struct fair_tenant *tenant, struct fair_item *item);
/* Takes one out that is not to be started; nothing if it does not wait. */
void fair_queue_leave(struct fair_queue *queue, struct fair_item *item);
/* The next one for which `fits` has room, taken out and charged; NULL: none. */
struct fair_item *fair_queue_next(struct fair_queue *queue, int64_t now_ns,
    bool (*fits)(const struct fair_item *item, void *data), void *data);

#endif
