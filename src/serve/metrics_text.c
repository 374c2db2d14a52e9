/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /metrics. The sandboxes are measured, each engine is asked for its status, and the answer is
 * written when both are there, or after SCRAPE_NS. An answer that comes later is dropped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/engines.h"
#include "serve/metrics.h"
#include "serve/series.h"
#include "serve/tenant_metrics.h"
#include "serve/traces.h"
#include "serve/usage.h"

#define SCRAPE_NS (INT64_C(1000) * 1000000)
#define CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Engines of one request. It lives until its answer is given and no engine is to answer. */
struct scrape {
    struct exchange *exchange; /* NULL: answered */
    struct server *server;
    struct loop_timer timer;
    unsigned n_pending;
    json_t *engines; /* their status by their names */
};

struct question {
    struct scrape *scrape;
    char name[KEEPER_OWNER_MAX];
};

/* ---- the text ---- */

static void begin(struct buf *to, const char *name, const char *type, const char *help) {
    buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_histogram(
    struct buf *to, const char *name, const struct series *series, const char *labels) {
    const char *comma = *labels ? "," : "";
    uint64_t n = 0;

    for (size_t i = 0; i < SERIES_BOUNDS; i++) {
        n += series->in_bound[i];
        buf_printf(to, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, series_bounds[i],
            (unsigned long long)n);
    }
    buf_printf(to, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_sum{%s} %.9g\n%s_count{%s} %llu\n", name,
        labels, comma, (unsigned long long)series->n, name, labels, series->sum, name, labels,
        (unsigned long long)series->n);
}

/* Tenants' names, routes and codes need no escape. */
static void add_labels(struct buf *to, const struct series *series) {
    switch (series->family) {
    case SERIES_RUNS:
    case SERIES_EXECS:
        buf_printf(to, "tenant=\"%s\",outcome=\"%s\"", series->first, series->second);
        break;
    case SERIES_REFUSED:
        buf_printf(to, "tenant=\"%s\",code=\"%s\"", series->first, series->second);
        break;
    case SERIES_REQUESTS:
        buf_printf(to, "method=\"%s\",route=\"%s\",status=\"%d\"", series->first, series->second,
            series->status);
        break;
    case SERIES_REQUEST_SECONDS:
        buf_printf(to, "method=\"%s\",route=\"%s\"", series->first, series->second);
        break;
    case SERIES_START_SECONDS:
    case SERIES_EXEC_SECONDS:
    case SERIES_QUEUE_SECONDS:
        buf_printf(to, "tenant=\"%s\"", series->first);
        break;
    }
}

static const struct {
    const char *name, *type, *help;
} families[SERIES_FAMILIES] = {
    [SERIES_RUNS] = { "rollbox_runs_total", "counter", "Runs that have ended, by outcome." },
    [SERIES_EXECS] = { "rollbox_execs_total", "counter",
        "Commands in sandboxes that have ended, by outcome." },
    [SERIES_REFUSED] = { "rollbox_refused_total", "counter",
        "Requests that were answered with a problem, by its code." },
    [SERIES_REQUESTS] = { "rollbox_http_requests_total", "counter", "Answered HTTP requests." },
    [SERIES_START_SECONDS] = { "rollbox_start_seconds", "histogram",
        "Set-up of a run or command: from the end of its queue to the program's start." },
    [SERIES_EXEC_SECONDS] = { "rollbox_exec_seconds", "histogram",
        "Wall time of runs and commands, from the program's start to its end." },
    [SERIES_QUEUE_SECONDS] = { "rollbox_queue_seconds", "histogram",
        "Time that runs and commands waited before their set-up." },
    [SERIES_REQUEST_SECONDS] = { "rollbox_http_request_seconds", "histogram",
        "Time from the head of an HTTP request to the end of its answer." },
};

static void add_series(struct buf *to) {
    for (size_t i = 0; i < SERIES_FAMILIES; i++) {
        begin(to, families[i].name, families[i].type, families[i].help);
        if (!series_all[i].next)
            continue;
        list_for_each(node, &series_all[i]) {
            const struct series *series = container_of(node, struct series, of_family);
            auto_buf struct buf labels = BUF_INIT;

            add_labels(&labels, series);
            if (buf_failed(&labels))
                continue;
            if (i >= SERIES_START_SECONDS)
                add_histogram(to, families[i].name, series, labels.data);
            else
                buf_printf(to, "%s{%s} %llu\n", families[i].name, labels.data,
                    (unsigned long long)series->n);
        }
    }
}

static const char *const states[] = { "idle", "running", "starting", "paused", "asleep" };

struct totals {
    unsigned in_state[ARRAY_SIZE(states)];
    uint64_t memory, disk;
};

static struct totals totals_of(const struct server *server, const struct tenant *tenant) {
    struct totals totals = { 0 };

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            const struct box *box = container_of(node, struct box, of_names);

            if (box->tenant != tenant)
                continue;
            for (size_t k = 0; k < ARRAY_SIZE(states); k++)
                totals.in_state[k] +=
                    !strcmp(states[k], box->measure.state ? box->measure.state : "starting");
            totals.disk += box->measure.disk_bytes;
            totals.memory += box->measure.memory_bytes;
        }
    return totals;
}

static void add_sandboxes(struct buf *to, const struct server *server) {
    auto_buf struct buf memory = BUF_INIT, disk = BUF_INIT, running = BUF_INIT;

    begin(to, "rollbox_sandboxes", "gauge", "Sandboxes by state.");
    begin(&memory, "rollbox_sandbox_memory_bytes", "gauge", "Memory of the sandboxes.");
    begin(&disk, "rollbox_sandbox_disk_bytes", "gauge", "Files of the sandboxes.");
    begin(&running, "rollbox_running", "gauge", "Runs and commands that have not ended.");
    list_for_each(node, &server->tenants) {
        const struct tenant *tenant = container_of(node, struct tenant, of_server);
        const struct totals totals = totals_of(server, tenant);

        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
            buf_printf(to, "rollbox_sandboxes{tenant=\"%s\",state=\"%s\"} %u\n", tenant->name,
                states[i], totals.in_state[i]);
        buf_printf(&memory, "rollbox_sandbox_memory_bytes{tenant=\"%s\"} %llu\n", tenant->name,
            (unsigned long long)totals.memory);
        buf_printf(&disk, "rollbox_sandbox_disk_bytes{tenant=\"%s\"} %llu\n", tenant->name,
            (unsigned long long)totals.disk);
        buf_printf(&running, "rollbox_running{tenant=\"%s\"} %u\n", tenant->name,
            (unsigned)tenant->use.now.of[QUOTA_RUNNING]);
    }
    buf_add(to, memory.data, memory.length);
    buf_add(to, disk.data, disk.length);
    buf_add(to, running.data, running.length);
}

static double of_sum(const struct usage_sum *sum, size_t which) {
    switch (which) {
    case 0:
        return sum->cpu_ms / 1000;
    case 1:
        return sum->gib_s;
    case 2:
        return sum->disk_gib_s;
    case 3:
        return sum->snapshot_gib_s;
    case 4:
        return (double)sum->bytes_out;
    default:
        return usage_cost(usage_prices(), sum);
    }
}

static void add_usage(struct buf *to, const struct server *server) {
    static const struct {
        const char *name, *help;
    } rows[] = {
        { "rollbox_cpu_seconds_total", "Processor time of runs and sandboxes." },
        { "rollbox_memory_gib_seconds_total", "Memory of runs and running sandboxes." },
        { "rollbox_disk_gib_seconds_total", "Files of sandboxes that are not hibernated." },
        { "rollbox_snapshot_gib_seconds_total", "Stored bytes of hibernated sandboxes." },
        { "rollbox_output_bytes_total", "Output of runs and commands." },
        { "rollbox_cost_total", "Cost by the server's price table." },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows) - !usage_prices(); i++) {
        begin(to, rows[i].name, "counter", rows[i].help);
        list_for_each(node, &server->tenants) {
            const struct tenant *tenant = container_of(node, struct tenant, of_server);
            const struct usage_sum *sum = usage_of_tenant(tenant);

            if (sum)
                buf_printf(
                    to, "%s{tenant=\"%s\"} %.12g\n", rows[i].name, tenant->name, of_sum(sum, i));
        }
    }
}

static void add_engine_figures(struct buf *to, const json_t *engines) {
    static const struct {
        const char *name, *key, *help;
    } rows[] = {
        { "rollbox_queue_length", "queued", "Runs in the engine's queue." },
        { "rollbox_engine_running", "running", "Runs and commands of the engine." },
        { "rollbox_engine_sandboxes", "sandboxes", "Sandboxes of the engine, with prepared ones." },
        { "rollbox_pool_spares", "spares", "Prepared sandboxes that wait for a run." },
        { "rollbox_pool_plans", "plans", "Compiled policies of the engine." },
        { "rollbox_memory_budget_bytes", "memory_budget_bytes", "Memory for the limits of runs." },
        { "rollbox_memory_reserved_bytes", "memory_reserved_bytes",
            "Sum of the memory limits of what runs." },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *name;
        json_t *status;

        begin(to, rows[i].name, "gauge", rows[i].help);
        json_object_foreach((json_t *)(uintptr_t)engines, name, status) {
            const json_t *figure = json_object_get(status, rows[i].key);

            if (json_is_integer(figure))
                buf_printf(to, "%s{engine=\"%s\"} %lld\n", rows[i].name, name,
                    (long long)json_integer_value(figure));
        }
    }
}

static void add_engines(struct buf *to, struct server *server, const json_t *engines) {
    json_t *slots = engines_status(server), *row;
    auto_buf struct buf restarts = BUF_INIT;
    size_t i;

    begin(to, "rollbox_engine_up", "gauge", "Whether the engine answers.");
    begin(&restarts, "rollbox_engine_restarts_total", "counter",
        "Engines that were lost, and replaced or connected again.");
    json_array_foreach(slots, i, row) {
        const char *owner = json_string_value(json_object_get(row, "tenant"));
        char name[KEEPER_OWNER_MAX];

        (void)snprintf(name, sizeof name, "%lld",
            (long long)json_integer_value(json_object_get(row, "engine")));
        if (owner)
            (void)snprintf(name, sizeof name, "%s", owner);
        buf_printf(to, "rollbox_engine_up{engine=\"%s\"} %d\n", name,
            json_object_get(engines, name) != NULL);
        buf_printf(&restarts, "rollbox_engine_restarts_total{engine=\"%s\"} %lld\n", name,
            (long long)json_integer_value(json_object_get(row, "restarts")));
    }
    json_decref(slots);
    buf_add(to, restarts.data, restarts.length);
    add_engine_figures(to, engines);
}

static void add_server(struct buf *to, const struct server *server) {
    uint64_t exported, dropped;
    unsigned leases = 0;

    list_for_each(node, &server->leases)
        leases++;
    begin(to, "rollbox_build_info", "gauge", "The server's version.");
    buf_printf(to, "rollbox_build_info{version=\"%s\"} 1\n", rollbox_version());
    begin(to, "rollbox_connections", "gauge", "Connections of clients.");
    buf_printf(to, "rollbox_connections %u\n", server->http.n_connections);
    begin(to, "rollbox_requests_open", "gauge", "Requests that are not answered completely.");
    buf_printf(to, "rollbox_requests_open %u\n", server->n_exchanges);
    begin(to, "rollbox_leases", "gauge", "Leases that have not ended.");
    buf_printf(to, "rollbox_leases %u\n", leases);
    begin(to, "rollbox_draining", "gauge", "Whether the server takes no new work.");
    buf_printf(to, "rollbox_draining %d\n", (int)server->draining);
    begin(to, "rollbox_tokens_valid", "gauge", "Whether the tokens file is valid as it is now.");
    buf_printf(to, "rollbox_tokens_valid %d\n", !server->tokens.fault[0]);
    if (!traces_counts(&exported, &dropped))
        return;
    begin(to, "rollbox_otlp_exported_total", "counter", "Spans that the collector has taken.");
    buf_printf(to, "rollbox_otlp_exported_total %llu\n", (unsigned long long)exported);
    begin(to, "rollbox_otlp_dropped_total", "counter", "Spans that were dropped.");
    buf_printf(to, "rollbox_otlp_dropped_total %llu\n", (unsigned long long)dropped);
}

/* ---- asking ---- */

static void free_scrape(struct scrape *scrape) {
    if (scrape->exchange || scrape->n_pending)
        return;
    json_decref(scrape->engines);
    free(scrape);
}

static void answer(struct scrape *scrape) {
    struct exchange *exchange = TAKE_PTR(scrape->exchange);
    struct server *server = scrape->server;
    auto_buf struct buf text = BUF_INIT;

    loop_timer_clear(server->loop, &scrape->timer);
    add_server(&text, server);
    add_engines(&text, server, scrape->engines);
    add_sandboxes(&text, server);
    tenant_metrics(&text, server);
    add_usage(&text, server);
    add_series(&text);
    if (buf_failed(&text))
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    else
        exchange_text(exchange, CONTENT_TYPE, text.data, text.length);
}

static void on_time(struct loop_timer *timer) {
    struct scrape *scrape = container_of(timer, struct scrape, timer);

    answer(scrape);
    free_scrape(scrape);
}

static void end_question(struct scrape *scrape) {
    if (--scrape->n_pending == 0 && scrape->exchange)
        answer(scrape);
    free_scrape(scrape);
}

static void on_measured(void *userdata) {
    end_question(userdata);
}

static void on_status(struct rollbox_run *run, void *userdata) {
    struct question *question = userdata;
    const char *text = rollbox_call_json(run);
    json_t *status = text ? json_loads(text, 0, NULL) : NULL;

    if (status)
        json_object_set_new(question->scrape->engines, question->name, status);
    rollbox_run_free(run);
    end_question(question->scrape);
    free(question);
}

static void ask(struct scrape *scrape, const struct engine_link *link) {
    struct question *question = calloc(1, sizeof *question);
    struct rollbox_run *run;

    if (!question)
        return;
    question->scrape = scrape;
    (void)snprintf(question->name, sizeof question->name, "%u", link->name.number);
    if (*link->name.owner)
        (void)snprintf(question->name, sizeof question->name, "%s", link->name.owner);
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_STATUS,
        .callback = on_status,
        .userdata = question };
    if (rollbox_call_start(link->engine, &call, &run, NULL) < 0)
        free(question);
    else
        scrape->n_pending++;
}

void handle_metrics(struct exchange *exchange) {
    struct server *server = exchange->server;
    struct scrape *scrape = calloc(1, sizeof *scrape);

    if (!scrape) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    scrape->exchange = exchange;
    scrape->server = server;
    scrape->engines = json_object();
    scrape->n_pending = 2;
    for (struct engine_link *link = engines_next(server, NULL); link;
         link = engines_next(server, link))
        ask(scrape, link);
    (void)loop_timer_set(server->loop, &scrape->timer, clock_now_ns() + SCRAPE_NS, on_time);
    usage_measure_all(on_measured, scrape);
    end_question(scrape);
}
