/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of resource usage; usage.h has the model. */
#include "serve/usage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/engines.h"

#define GIB ((double)(1 << 30))
#define SUM_BUCKETS 4096

struct sum {
    struct list in_bucket, by_age; /* oldest first */
    const struct tenant *tenant;
    char *key; /* "KIND NAME" */
    struct usage_sum sum;
};

static struct list buckets[SUM_BUCKETS], ages;
static unsigned n_sums;
static struct loop_timer timer;
static struct server *the_server;
static int64_t measured_ns;
static double step_s;

static struct list *bucket_of(const struct tenant *tenant, const char *key) {
    unsigned hash = 2166136261u;

    for (const char *p = tenant->name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return &buckets[(hash ^ hash >> 15) % SUM_BUCKETS];
}

static void free_sum(struct sum *sum) {
    list_remove(&sum->in_bucket);
    list_remove(&sum->by_age);
    n_sums--;
    free(sum->key);
    free(sum);
}

static void add(
    const struct tenant *tenant, const char *kind, const char *name, const struct usage_sum *more) {
    auto_buf struct buf key = BUF_INIT;
    struct sum *sum = NULL;

    buf_printf(&key, "%s %s", kind, name);
    if (buf_failed(&key))
        return;
    list_for_each(node, bucket_of(tenant, key.data)) {
        struct sum *one = container_of(node, struct sum, in_bucket);

        if (one->tenant == tenant && !strcmp(one->key, key.data))
            sum = one;
    }
    if (!sum) {
        sum = calloc(1, sizeof *sum);
        if (!sum)
            return;
        sum->tenant = tenant;
        list_add_tail(bucket_of(tenant, key.data), &sum->in_bucket);
        sum->key = buf_take(&key);
        list_add_tail(&ages, &sum->by_age);
        if (++n_sums > USAGE_SUMS)
            free_sum(container_of(ages.next, struct sum, by_age));
    } else {
        list_remove(&sum->by_age);
        list_add_tail(&ages, &sum->by_age);
    }
    sum->sum.runs += more->runs;
    sum->sum.commands += more->commands;
    sum->sum.cpu_ms += more->cpu_ms;
    sum->sum.wall_ms += more->wall_ms;
    sum->sum.gib_s += more->gib_s;
    sum->sum.disk_gib_s += more->disk_gib_s;
    sum->sum.bytes_in += more->bytes_in;
    sum->sum.bytes_out += more->bytes_out;
}

static void add_labels(
    const struct tenant *tenant, const json_t *labels, const struct usage_sum *more) {
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)labels, key, value) {
        auto_buf struct buf name = BUF_INIT;

        if (!json_is_string(value))
            continue;
        buf_printf(&name, "%s=%s", key, json_string_value(value));
        if (!buf_failed(&name))
            add(tenant, "label", name.data, more);
    }
}

static void add_of_box(const struct box *box, const struct usage_sum *more) {
    add(box->tenant, "tenant", box->tenant->name, more);
    add(box->tenant, "sandbox", box->name, more);
    if (box->lease[0])
        add(box->tenant, "lease", box->lease, more);
    add_labels(box->tenant, box->labels, more);
}

void usage_ended(struct exchange *exchange, const struct rollbox_result *result) {
    const json_t *text = json_object_get(exchange->body, "stdin");
    const json_t *base64 = json_object_get(exchange->body, "stdin_base64");
    struct usage_sum more = { .wall_ms = result->wall_ms,
        .bytes_in = json_string_length(text) + json_string_length(base64) / 4 * 3,
        .bytes_out = result->stdout_length + result->stderr_length };

    if (exchange->box) {
        /* Its processor time and memory are the sandbox's, which is measured. */
        more.commands = 1;
        add_of_box(exchange->box, &more);
        return;
    }
    more.runs = 1;
    more.cpu_ms = result->cpu_ms;
    more.gib_s = (double)result->peak_memory_bytes / GIB * result->wall_ms / 1000;
    add(exchange->tenant, "tenant", exchange->tenant->name, &more);
    add_labels(exchange->tenant, json_object_get(exchange->body, "labels"), &more);
}

/* ---- measuring ---- */

static struct box *box_of(struct server *server, const char *name) {
    for (size_t i = 0; name && i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (!strcmp(rollbox_sandbox_name(box->handle), name))
                return box;
        }
    return NULL;
}

static void measure(struct box *box, const json_t *row, double seconds) {
    double cpu_ms = json_number_value(json_object_get(row, "cpu_ms"));
    double memory = json_number_value(json_object_get(row, "memory_bytes"));
    double disk = json_number_value(json_object_get(row, "disk_bytes"));
    struct usage_sum more = { .gib_s = memory / GIB * seconds, .disk_gib_s = disk / GIB * seconds };

    /* A restored sandbox counts from zero again. */
    if (cpu_ms >= box->cpu_ms)
        more.cpu_ms = cpu_ms - box->cpu_ms;
    else
        more.cpu_ms = cpu_ms;
    box->cpu_ms = cpu_ms;
    add_of_box(box, &more);
}

/* The answers of all engines are for the same step. */
static void on_stats(struct rollbox_run *run, void *userdata) {
    struct server *server = userdata;
    const char *text = rollbox_call_json(run);
    json_t *answer = text ? json_loads(text, 0, NULL) : NULL, *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "sandboxes"), i, row) {
        struct box *box = box_of(server, json_string_value(json_object_get(row, "name")));

        if (box)
            measure(box, row, step_s);
    }
    json_decref(answer);
    rollbox_run_free(run);
}

static bool has_boxes(const struct server *server) {
    list_for_each(node, &server->tenants) {
        if (container_of(node, struct tenant, of_server)->n_sandboxes)
            return true;
    }
    return false;
}

static void measure_all(void) {
    int64_t now = clock_now_ns();
    struct rollbox_run *run;

    step_s = (double)(now - measured_ns) / 1e9;
    measured_ns = now;
    for (struct engine_link *link = engines_next(the_server, NULL); link;
         link = engines_next(the_server, link)) {
        const struct rollbox_call_options call = { .size = sizeof call,
            .call = ROLLBOX_CALL_STATS,
            .callback = on_stats,
            .userdata = the_server };

        (void)rollbox_call_start(link->engine, &call, &run, NULL);
    }
}

static void on_time(struct loop_timer *unused) {
    (void)unused;
    if (!has_boxes(the_server))
        measured_ns = clock_now_ns();
    else
        measure_all();
    (void)loop_timer_set(
        the_server->loop, &timer, clock_now_ns() + (int64_t)USAGE_STEP_S * 1000000000, on_time);
}

void usage_start(struct server *server) {
    the_server = server;
    list_init(&ages);
    for (size_t i = 0; i < SUM_BUCKETS; i++)
        list_init(&buckets[i]);
    on_time(NULL);
}

/* ---- answers ---- */

static json_t *row_of(const struct sum *sum, const char *kind) {
    const struct usage_sum *one = &sum->sum;

    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "tenant",
        sum->tenant->name, kind, strchr(sum->key, ' ') + 1, "runs", (json_int_t)one->runs,
        "commands", (json_int_t)one->commands, "cpu_ms", one->cpu_ms, "wall_ms", one->wall_ms,
        "gib_s", one->gib_s, "disk_gib_s", one->disk_gib_s, "bytes_in", (json_int_t)one->bytes_in,
        "bytes_out", (json_int_t)one->bytes_out);
}

void handle_usage(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    static const char *const kinds[] = { "tenant", "sandbox", "lease", "label" };
    auto_buf struct buf by = BUF_INIT, label = BUF_INIT;
    const char *kind = "tenant";
    json_t *rows = json_array();

    if (http_query(request, "by", &by)) {
        kind = NULL;
        for (size_t i = 0; by.data && i < ARRAY_SIZE(kinds); i++)
            if (!strcmp(kinds[i], by.data))
                kind = kinds[i];
    }
    if (!kind) {
        json_decref(rows);
        exchange_problem(
            exchange, 400, "invalid_argument", "by must be tenant, sandbox, lease or label");
        return;
    }
    bool has_label = http_query(request, "label", &label) && label.data;
    list_for_each(node, &ages) {
        const struct sum *sum = container_of(node, struct sum, by_age);
        size_t n = strlen(kind);
        bool is_own = sum->tenant == exchange->tenant;
        /* The administrator sees the sums of all tenants, and no names of theirs. */
        bool may_see = is_own || (!strcmp(kind, "tenant") && exchange->scopes & TOKEN_ADMIN);

        if (!may_see || strncmp(sum->key, kind, n) != 0 || sum->key[n] != ' ')
            continue;
        if (has_label && (strncmp(sum->key + n + 1, label.data, label.length) != 0 ||
                             sum->key[n + 1 + label.length] != '='))
            continue;
        json_array_append_new(rows, row_of(sum, !strcmp(kind, "tenant") ? "name" : kind));
    }
    exchange_answer_json(exchange, 200, json_pack("{s:o}", "usage", rows));
}
