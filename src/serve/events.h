/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: what happens to a tenant's sandboxes, for dashboards and autoscalers. The server keeps
 * the latest EVENTS_KEPT of each tenant, each with a number of that tenant's; GET /v1/events sends
 * those after a number, and then more as they happen.
 */
#ifndef ROLLBOX_SERVE_EVENTS_H
#define ROLLBOX_SERVE_EVENTS_H

#include "serve/server.h"

#define EVENTS_KEPT 8192u

/* `type` is such as "sandbox.created"; `take_data` has its members, NULL: none. */
void events_add(struct tenant *tenant, const char *type, json_t *take_data);
/* The same of a sandbox; `take_more` has more members, NULL: none. */
void events_of_box(const struct box *box, const char *type, json_t *take_more);
/* Told of each event of a tenant, until it is taken out of the list. */
struct events_watcher {
    struct list node;
    void (*told)(struct events_watcher *watcher);
};

void events_watch(struct tenant *tenant, struct events_watcher *watcher);
/* The number of the tenant's first event that is kept. */
uint64_t events_first(const struct tenant *tenant);
/* The tenant's next event after *number, as it is sent; *number becomes its number. NULL: there is
 * none yet. */
const char *events_next(const struct tenant *tenant, uint64_t *number);

/* ---- event_stream.c ---- */

void handle_events(struct exchange *exchange);

#endif
