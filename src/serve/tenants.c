/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants that the server has seen. */
#include "serve/tenants.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define DAY_S 86400

struct tenant *tenant_of(struct server *server, const char *name) {
    list_for_each(node, &server->tenants) {
        struct tenant *tenant = container_of(node, struct tenant, of_server);

        if (!strcmp(tenant->name, name))
            return tenant;
    }
    struct tenant *tenant = calloc(1, sizeof *tenant);
    if (!tenant)
        return NULL;
    memcpy(tenant->name, name, strlen(name) + 1);
    fair_tenant_init(&tenant->turns);
    list_init(&tenant->operations);
    list_init(&tenant->answers);
    list_init(&tenant->events.kept);
    list_init(&tenant->events.watchers);
    list_add_tail(&server->tenants, &tenant->of_server);
    return tenant;
}

/* ---- numbers ---- */

struct tenant_numbers tenant_numbers_of(struct server *server, const struct tenant *tenant) {
    const struct tenant_rules *rules = tokens_tenant(&server->tokens, tenant->name);
    struct tenant_numbers numbers = { .name = tenant->name,
        .now = tenant->use.now,
        .quotas = rules ? rules->quotas : server->tokens.defaults,
        .refused = tenant->use.refused,
        .weight = rules ? rules->weight : 1,
        .n_started = tenant->n_started,
        .waited_s = (double)tenant->waited_ns / 1e9 };
    int64_t now = clock_now_ns(), oldest = now;

    if (tenant->use.day != time(NULL) / DAY_S)
        numbers.now.of[QUOTA_STARTS] = 0;
    numbers.now.of[QUOTA_QUEUED] = tenant->turns.n;
    for (size_t i = 0; i < FAIR_PRIORITIES; i++)
        list_for_each(node, &tenant->turns.items[i]) {
            oldest = MIN(oldest, container_of(node, struct fair_item, node)->since_ns);
            numbers.queued[i]++;
        }
    numbers.oldest_s = (double)(now - oldest) / 1e9;
    return numbers;
}

void tenants_each(struct server *server,
    void (*each)(const struct tenant_numbers *numbers, void *data), void *data) {
    list_for_each(node, &server->tenants) {
        const struct tenant_numbers numbers =
            tenant_numbers_of(server, container_of(node, struct tenant, of_server));

        each(&numbers, data);
    }
}

static const enum quota told[] = { QUOTA_SANDBOXES, QUOTA_RUNNING, QUOTA_QUEUED, QUOTA_MEMORY,
    QUOTA_CPUS, QUOTA_DISK, QUOTA_STARTS, QUOTA_RATE, QUOTA_BURST };

json_t *tenant_json(const struct tenant_numbers *numbers) {
    json_t *current = json_object(), *quotas = json_object(), *refused = json_object();

    for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
        enum quota quota = told[i];
        const char *name = quota_name(quota);

        json_object_set_new(quotas, name, quota_to_json(quota, numbers->quotas.of[quota]));
        if (quota == QUOTA_BURST)
            continue;
        json_object_set_new(refused, name, json_integer((json_int_t)numbers->refused.of[quota]));
        if (quota != QUOTA_RATE)
            json_object_set_new(current, name, quota_to_json(quota, numbers->now.of[quota]));
    }
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:{s:i, s:i, s:i}, s:i, s:I, s:f, s:f}",
        "tenant", numbers->name, "sandboxes", (json_int_t)numbers->now.of[QUOTA_SANDBOXES],
        "running", (json_int_t)numbers->now.of[QUOTA_RUNNING], "current", current, "quotas", quotas,
        "refused", refused, "queued", "high", (int)numbers->queued[FAIR_HIGH], "normal",
        (int)numbers->queued[FAIR_NORMAL], "low", (int)numbers->queued[FAIR_LOW], "weight",
        (int)numbers->weight, "started", (json_int_t)numbers->n_started, "waited_s",
        numbers->waited_s, "oldest_s", numbers->oldest_s);
}

/* The tenant's own; its quotas are those that hold for this token. */
void handle_quota(struct exchange *exchange) {
    struct tenant_numbers numbers = tenant_numbers_of(exchange->server, exchange->tenant);

    numbers.quotas = exchange->quotas;
    exchange_answer_json(exchange, 200, tenant_json(&numbers));
}
