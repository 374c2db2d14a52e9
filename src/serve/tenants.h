/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a tenant: for GET /v1/status, GET /v1/quota and the metrics. */
#ifndef ROLLBOX_SERVE_TENANTS_H
#define ROLLBOX_SERVE_TENANTS_H

#include "serve/server.h"

struct tenant_numbers {
    const char *name;
    struct amounts now;    /* gauges; `starts` of the day; QUOTA_QUEUED: what waits */
    struct amounts quotas; /* of all its tokens; QUOTA_NONE: no limit */
    /* Counters: requests that a quota has refused. QUOTA_QUEUED: also those that waited for too
     * long, or found the server's queue full. */
    struct amounts refused;
    unsigned queued[FAIR_PRIORITIES]; /* high, normal, low */
    unsigned weight;
    uint64_t n_started; /* counter: runs and sandboxes that passed the queue */
    double waited_s;    /* counter: their time in it */
    double oldest_s;    /* gauge: how long the first in the queue waits */
};

/* Calls `each` for every tenant; the numbers are valid within the call. */
void tenants_each(struct server *server,
    void (*each)(const struct tenant_numbers *numbers, void *data), void *data);
struct tenant_numbers tenant_numbers_of(struct server *server, const struct tenant *tenant);
/* {"current", "quotas", "refused", "queued", "weight", ...}: a new reference. */
json_t *tenant_json(const struct tenant_numbers *numbers);

void handle_quota(struct exchange *exchange);

#endif
