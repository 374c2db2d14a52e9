/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/tenant_metrics.h"

#include "base/cleanup.h"
#include "serve/tenants.h"

enum { QUOTA, USED, REFUSED, WAITING, STARTED, WAITED, FAMILIES };

static const struct {
    const char *name, *type, *help;
} families[FAMILIES] = {
    [QUOTA] = { "rollbox_quota", "gauge", "Quotas that are set for a tenant." },
    [USED] = { "rollbox_quota_used", "gauge", "What a tenant has of its quotas." },
    [REFUSED] = { "rollbox_quota_refused_total", "counter", "Requests that a quota has refused." },
    [WAITING] = { "rollbox_tenant_queue_length", "gauge",
        "Runs and sandboxes that wait in the server." },
    [STARTED] = { "rollbox_tenant_started_total", "counter",
        "Runs and sandboxes that have left the server's queue." },
    [WAITED] = { "rollbox_tenant_queue_seconds_total", "counter",
        "Time that these have waited in it." },
};
static const char *const priorities[FAIR_PRIORITIES] = { "high", "normal", "low" };

/* cpus and rate are kept in thousandths. */
static double value_of(enum quota quota, uint64_t value) {
    return quota == QUOTA_CPUS || quota == QUOTA_RATE ? (double)value / 1000 : (double)value;
}

static void add_tenant(const struct tenant_numbers *numbers, void *data) {
    struct buf *texts = data;

    for (enum quota i = 0; i < QUOTA_N; i++) {
        const char *name = quota_name(i);

        if (numbers->quotas.of[i] != QUOTA_NONE)
            buf_printf(&texts[QUOTA], "rollbox_quota{tenant=\"%s\",quota=\"%s\"} %.15g\n",
                numbers->name, name, value_of(i, numbers->quotas.of[i]));
        if (i == QUOTA_BURST)
            continue;
        buf_printf(&texts[REFUSED],
            "rollbox_quota_refused_total{tenant=\"%s\",quota=\"%s\"} %llu\n", numbers->name, name,
            (unsigned long long)numbers->refused.of[i]);
        if (i != QUOTA_RATE)
            buf_printf(&texts[USED], "rollbox_quota_used{tenant=\"%s\",quota=\"%s\"} %.15g\n",
                numbers->name, name, value_of(i, numbers->now.of[i]));
    }
    for (size_t i = 0; i < FAIR_PRIORITIES; i++)
        buf_printf(&texts[WAITING],
            "rollbox_tenant_queue_length{tenant=\"%s\",priority=\"%s\"} %u\n", numbers->name,
            priorities[i], numbers->queued[i]);
    buf_printf(&texts[STARTED], "rollbox_tenant_started_total{tenant=\"%s\"} %llu\n", numbers->name,
        (unsigned long long)numbers->n_started);
    buf_printf(&texts[WAITED], "rollbox_tenant_queue_seconds_total{tenant=\"%s\"} %.9g\n",
        numbers->name, numbers->waited_s);
}

void tenant_metrics(struct buf *to, struct server *server) {
    struct buf texts[FAMILIES] = { { 0 } }; /* BUF_INIT, each */

    tenants_each(server, add_tenant, texts);
    for (size_t i = 0; i < FAMILIES; i++) {
        if (texts[i].length)
            buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", families[i].name, families[i].help,
                families[i].name, families[i].type);
        buf_add(to, texts[i].data, texts[i].length);
        buf_done(&texts[i]);
    }
}
