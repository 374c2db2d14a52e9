/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of resource usage; usage.h has the model. */
#include "serve/usage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/ended_boxes.h"
#include "serve/engines.h"

#define GIB ((double)(1 << 30))
#define SUM_BUCKETS 4096
#define LABEL_BYTES_MAX 512u

/* A tenant's own sum ("tenant NAME") has its other sums, and is never freed: counters of the
 * metrics are made of it, and no tenant's sums push out those of another one. */
struct sum {
    struct list in_bucket, by_age; /* in `tenants`, or in the tenant's `sums`, oldest first */
    const struct tenant *tenant;
    char *key; /* "KIND NAME" */
    struct usage_sum sum;
    struct list sums; /* of a tenant's own */
    unsigned n_sums;
};

static struct list buckets[SUM_BUCKETS], tenants;
static struct loop_timer timer;
static struct server *the_server;
static struct prices prices;
static bool has_prices;

static struct list *bucket_of(const struct tenant *tenant, const char *key) {
    unsigned hash = 2166136261u;

    for (const char *p = tenant->name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return &buckets[(hash ^ hash >> 15) % SUM_BUCKETS];
}

static struct sum *find_sum(const struct tenant *tenant, const char *key) {
    list_for_each(node, bucket_of(tenant, key)) {
        struct sum *sum = container_of(node, struct sum, in_bucket);

        if (sum->tenant == tenant && !strcmp(sum->key, key))
            return sum;
    }
    return NULL;
}

static void free_oldest(struct sum *home) {
    struct sum *sum = container_of(home->sums.next, struct sum, by_age);

    list_remove(&sum->in_bucket);
    list_remove(&sum->by_age);
    free(sum->key);
    free(sum);
    home->n_sums--;
}

/* NULL when out of memory. */
static struct sum *new_sum(const struct tenant *tenant, const char *key, struct list *ages) {
    struct sum *sum = calloc(1, sizeof *sum);

    if (!sum)
        return NULL;
    sum->key = strdup(key);
    if (!sum->key) {
        free(sum);
        return NULL;
    }
    sum->tenant = tenant;
    list_init(&sum->sums);
    list_add_tail(bucket_of(tenant, key), &sum->in_bucket);
    list_add_tail(ages, &sum->by_age);
    return sum;
}

static struct sum *home_of(const struct tenant *tenant) {
    auto_buf struct buf key = BUF_INIT;

    buf_printf(&key, "tenant %s", tenant->name);
    if (buf_failed(&key))
        return NULL;
    struct sum *home = find_sum(tenant, key.data);
    return home ? home : new_sum(tenant, key.data, &tenants);
}

/* One that exists, or a new one. NULL when out of memory. */
static struct sum *sum_for(const struct tenant *tenant, const char *kind, const char *name) {
    struct sum *home = home_of(tenant), *sum;
    auto_buf struct buf key = BUF_INIT;

    buf_printf(&key, "%s %s", kind, name);
    if (!home || buf_failed(&key))
        return NULL;
    sum = find_sum(tenant, key.data);
    if (sum == home)
        return home;
    if (sum) {
        list_remove(&sum->by_age);
        list_add_tail(&home->sums, &sum->by_age);
        return sum;
    }
    sum = new_sum(tenant, key.data, &home->sums);
    if (sum && ++home->n_sums > USAGE_SUMS)
        free_oldest(home);
    return sum;
}

static void add(
    const struct tenant *tenant, const char *kind, const char *name, const struct usage_sum *more) {
    struct sum *sum = sum_for(tenant, kind, name);

    if (!sum)
        return;
    sum->sum.runs += more->runs;
    sum->sum.commands += more->commands;
    sum->sum.cpu_ms += more->cpu_ms;
    sum->sum.wall_ms += more->wall_ms;
    sum->sum.gib_s += more->gib_s;
    sum->sum.disk_gib_s += more->disk_gib_s;
    sum->sum.snapshot_gib_s += more->snapshot_gib_s;
    sum->sum.running_s += more->running_s;
    sum->sum.paused_s += more->paused_s;
    sum->sum.hibernated_s += more->hibernated_s;
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

struct usage_sum usage_of_command(
    const struct exchange *exchange, const struct rollbox_result *result) {
    const json_t *text = json_object_get(exchange->body, "stdin");
    const json_t *base64 = json_object_get(exchange->body, "stdin_base64");
    struct usage_sum sum = { .wall_ms = result->wall_ms,
        .bytes_in = json_string_length(text) + json_string_length(base64) / 4 * 3,
        .bytes_out = result->stdout_length + result->stderr_length };

    sum.commands = exchange->box != NULL;
    sum.runs = !exchange->box;
    /* Of a command in a sandbox they are the sandbox's, which is measured. */
    if (!exchange->box) {
        sum.cpu_ms = result->cpu_ms;
        sum.gib_s = (double)result->peak_memory_bytes / GIB * result->wall_ms / 1000;
    }
    return sum;
}

bool usage_labels_ok(struct exchange *exchange) {
    return usage_labels_fit(exchange, json_object_get(exchange->body, "labels"));
}

bool usage_labels_fit(struct exchange *exchange, const json_t *labels) {
    const char *key;
    json_t *value;

    if (json_object_size(labels) > USAGE_LABELS) {
        exchange_problem(
            exchange, 400, "invalid_argument", "there may be at most %u labels", USAGE_LABELS);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)labels, key, value) {
        if (strlen(key) + json_string_length(value) <= LABEL_BYTES_MAX)
            continue;
        exchange_problem(exchange, 400, "invalid_argument",
            "the label \"%.64s\" and its value have more than %u bytes", key,
            (unsigned)LABEL_BYTES_MAX);
        return false;
    }
    return true;
}

void usage_ended(struct exchange *exchange, const struct rollbox_result *result) {
    const struct usage_sum more = usage_of_command(exchange, result);

    if (exchange->box) {
        add_of_box(exchange->box, &more);
        return;
    }
    add(exchange->tenant, "tenant", exchange->tenant->name, &more);
    add_labels(exchange->tenant, json_object_get(exchange->body, "labels"), &more);
}

/* ---- measuring ---- */

/* One measurement of all sandboxes: an answer of each engine. */
struct round {
    unsigned n_pending;
    void (*then)(void *userdata);
    void *userdata;
};

/* A question to an engine: about one sandbox, or about all of its. */
struct question {
    struct box *box;          /* referenced */
    struct engine_link *link; /* referenced */
    struct round *round;
    int64_t asked_ns;
};

static const char *const states[] = { "idle", "running", "starting", "paused", "asleep" };

static const char *state_of(const json_t *row) {
    const char *text = json_string_value(json_object_get(row, "state"));

    for (size_t i = 0; text && i < ARRAY_SIZE(states); i++)
        if (!strcmp(states[i], text))
            return states[i];
    return states[0];
}

/* A request that wakes the sandbox has taken its part of the quotas already, while the sandbox may
 * still be hibernated for a moment. */
static void note_sleep(struct box *box, bool is_asleep, int64_t now) {
    if (!is_asleep && !box->roused_ns)
        box_rouse(box);
    else if (is_asleep && !box->n_wakers &&
             now - box->roused_ns > (int64_t)USAGE_STEP_S * 1000000000)
        box_rest(box);
}

static void measure(struct box *box, const json_t *row) {
    struct box_measure *last = &box->measure;
    int64_t now = clock_now_ns();
    double seconds = (double)(now - last->at_ns) / 1e9;
    double cpu_ms = json_number_value(json_object_get(row, "cpu_ms"));
    struct usage_sum more = { 0 };

    last->at_ns = now;
    last->state = state_of(row);
    last->memory_bytes = (uint64_t)json_integer_value(json_object_get(row, "memory_bytes"));
    last->disk_bytes = (uint64_t)json_integer_value(json_object_get(row, "disk_bytes"));
    /* A restored sandbox counts from zero again. */
    if (last->cpu_ms >= 0)
        more.cpu_ms = cpu_ms >= last->cpu_ms ? cpu_ms - last->cpu_ms : cpu_ms;
    last->cpu_ms = cpu_ms;
    double disk_gib_s = (double)last->disk_bytes / GIB * seconds;
    note_sleep(box, !strcmp(last->state, "asleep"), now);
    if (!strcmp(last->state, "asleep")) {
        more.hibernated_s = seconds;
        more.snapshot_gib_s = disk_gib_s;
    } else if (!strcmp(last->state, "paused")) {
        more.paused_s = seconds;
        more.disk_gib_s = disk_gib_s;
    } else {
        more.running_s = seconds;
        more.disk_gib_s = disk_gib_s;
        more.gib_s = (double)last->memory_bytes / GIB * seconds;
    }
    add_of_box(box, &more);
}

static void end_round(struct round *round) {
    if (!round || --round->n_pending)
        return;
    if (round->then)
        round->then(round->userdata);
    free(round);
}

static void forget_question(struct question *question) {
    end_round(question->round);
    box_unref(question->box);
    engine_link_unref(question->link);
    free(question);
}

/* Rows by their names at this engine. */
static json_t *by_name(const json_t *answer) {
    json_t *rows = json_object(), *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "sandboxes"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));

        if (name)
            json_object_set(rows, name, row);
    }
    return rows;
}

static void measure_rows(
    struct server *server, const struct engine_link *link, int64_t asked_ns, json_t *rows) {
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);
            const json_t *row =
                box->link == link ? json_object_get(rows, rollbox_sandbox_name(box->handle)) : NULL;

            if (row)
                measure(box, row);
            else if (box->link == link && box->measure.at_ns < asked_ns)
                ended_boxes_ask(server, box);
        }
}

static void on_stats(struct rollbox_run *run, void *userdata) {
    struct question *question = userdata;
    const char *text = rollbox_call_json(run);
    json_t *answer = text ? json_loads(text, 0, NULL) : NULL;

    if (answer && question->box) {
        measure(question->box, answer);
    } else if (answer) {
        json_t *rows = by_name(answer);

        measure_rows(the_server, question->link, question->asked_ns, rows);
        json_decref(rows);
    }
    json_decref(answer);
    rollbox_run_free(run);
    forget_question(question);
}

static void ask(struct engine_link *link, struct box *box, struct round *round) {
    struct question *question = calloc(1, sizeof *question);
    struct rollbox_run *run;

    if (!question)
        return;
    *question = (struct question){ box, engine_link_ref(link), round, clock_now_ns() };
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_STATS,
        .sandbox = box ? rollbox_sandbox_name(box->handle) : NULL,
        .callback = on_stats,
        .userdata = question };
    if (box)
        box->references++;
    if (round)
        round->n_pending++;
    if (rollbox_call_start(link->engine, &call, &run, NULL) < 0)
        forget_question(question);
}

void usage_measure(struct box *box) {
    ask(box->link, box, NULL);
}

void usage_before_command(struct box *box) {
    const char *state = box->measure.state;

    if (state && (!strcmp(state, "paused") || !strcmp(state, "asleep")))
        usage_measure(box);
}

void usage_measure_all(void (*then)(void *userdata), void *userdata) {
    struct round *round = calloc(1, sizeof *round);

    if (!round) {
        if (then)
            then(userdata);
        return;
    }
    *round = (struct round){ 1, then, userdata };
    for (struct engine_link *link = engines_next(the_server, NULL); link;
         link = engines_next(the_server, link))
        ask(link, NULL, round);
    end_round(round);
}

static bool has_boxes(const struct server *server) {
    list_for_each(node, &server->tenants) {
        if (container_of(node, struct tenant, of_server)->use.now.of[QUOTA_SANDBOXES])
            return true;
    }
    return false;
}

static void on_time(struct loop_timer *unused) {
    (void)unused;
    if (has_boxes(the_server))
        usage_measure_all(NULL, NULL);
    (void)loop_timer_set(
        the_server->loop, &timer, clock_now_ns() + (int64_t)USAGE_STEP_S * 1000000000, on_time);
}

int usage_read_prices(const char *path) {
    char why[512];

    has_prices = prices_read(path, &prices, why, sizeof why);
    if (!has_prices)
        fprintf(stderr, "rollbox-serve: %s\n", why);
    return !has_prices;
}

void usage_start(struct server *server) {
    the_server = server;
    list_init(&tenants);
    for (size_t i = 0; i < SUM_BUCKETS; i++)
        list_init(&buckets[i]);
    on_time(NULL);
}

/* ---- answers ---- */

static const struct usage_sum *sum_of(
    const struct tenant *tenant, const char *kind, const char *name) {
    auto_buf struct buf key = BUF_INIT;

    buf_printf(&key, "%s %s", kind, name);
    const struct sum *sum = buf_failed(&key) ? NULL : find_sum(tenant, key.data);
    return sum ? &sum->sum : NULL;
}

const struct usage_sum *usage_of_tenant(const struct tenant *tenant) {
    return sum_of(tenant, "tenant", tenant->name);
}

const struct usage_sum *usage_of_box(const struct box *box) {
    return sum_of(box->tenant, "sandbox", box->name);
}

const struct prices *usage_prices(void) {
    return has_prices ? &prices : NULL;
}

double usage_cost(const struct prices *of, const struct usage_sum *sum) {
    const struct prices used = { .cpu_s = sum->cpu_ms / 1000,
        .gib_s = sum->gib_s,
        .disk_gib_s = sum->disk_gib_s,
        .snapshot_gib_s = sum->snapshot_gib_s,
        .call = (double)(sum->runs + sum->commands) };

    return prices_cost(of, &used);
}

/* `name` is a part of the key. */
static json_t *row_of(const struct sum *sum, const char *kind, const char *name) {
    const struct usage_sum *one = &sum->sum;
    json_t *row = json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "tenant",
        sum->tenant->name, kind, name, "runs", (json_int_t)one->runs, "commands",
        (json_int_t)one->commands, "cpu_ms", one->cpu_ms, "wall_ms", one->wall_ms, "gib_s",
        one->gib_s, "disk_gib_s", one->disk_gib_s, "snapshot_gib_s", one->snapshot_gib_s,
        "bytes_in", (json_int_t)one->bytes_in, "bytes_out", (json_int_t)one->bytes_out);

    json_object_set_new(row, "running_s", json_real(one->running_s));
    json_object_set_new(row, "paused_s", json_real(one->paused_s));
    json_object_set_new(row, "hibernated_s", json_real(one->hibernated_s));
    if (has_prices)
        json_object_set_new(row, "cost", json_real(usage_cost(&prices, one)));
    return row;
}

/* What a request asks for. */
struct wish {
    struct exchange *exchange;
    const char *kind; /* of the keys */
    const char *word; /* of the answer's rows */
    struct buf label; /* this one alone; "": any */
    bool is_value;    /* rows are named by the label's value */
};

static bool read_wish(struct wish *wish) {
    const struct http_request *request = http_request_of(wish->exchange->connection);
    static const char *const kinds[] = { "tenant", "sandbox", "lease", "label" };
    auto_buf struct buf by = BUF_INIT;

    wish->kind = kinds[0];
    (void)http_query(request, "label", &wish->label);
    if (http_query(request, "by", &by)) {
        wish->kind = NULL;
        for (size_t i = 0; by.data && i < ARRAY_SIZE(kinds); i++)
            if (!strcmp(kinds[i], by.data))
                wish->kind = kinds[i];
        /* A rollout is the label of that name. */
        if (by.data && !strcmp(by.data, "rollout")) {
            wish->kind = "label";
            wish->is_value = true;
            wish->label.length = 0;
            buf_add_text(&wish->label, "rollout");
        }
    }
    if (wish->kind && wish->is_value)
        wish->word = "rollout";
    else if (wish->kind)
        wish->word = !strcmp(wish->kind, "tenant") ? "name" : wish->kind;
    return wish->kind != NULL;
}

static bool may_see(const struct wish *wish, const struct sum *sum) {
    /* The administrator sees the sums of all tenants, and no names of theirs. */
    return sum->tenant == wish->exchange->tenant ||
           (!strcmp(wish->kind, "tenant") && wish->exchange->scopes & TOKEN_ADMIN);
}

static void add_row(json_t *rows, const struct wish *wish, const struct sum *sum) {
    const char *name = sum->key + strlen(wish->kind);
    const struct buf *label = &wish->label;

    if (!may_see(wish, sum) || strncmp(sum->key, wish->kind, strlen(wish->kind)) || *name++ != ' ')
        return;
    if (label->length &&
        (strncmp(name, label->data, label->length) != 0 || name[label->length] != '='))
        return;
    if (wish->is_value)
        name += label->length + 1;
    json_array_append_new(rows, row_of(sum, wish->word, name));
}

static void answer_usage(void *userdata) {
    struct wish *wish = userdata;
    struct exchange *exchange = wish->exchange;
    json_t *rows = json_array(), *answer;

    list_for_each(node, &tenants) {
        const struct sum *home = container_of(node, struct sum, by_age);

        add_row(rows, wish, home);
        list_for_each(other, &home->sums)
            add_row(rows, wish, container_of(other, struct sum, by_age));
    }
    answer = json_pack("{s:o}", "usage", rows);
    if (has_prices)
        json_object_set_new(answer, "prices", prices_json(&prices));
    buf_done(&wish->label);
    free(wish);
    exchange_answer_json(exchange, 200, answer);
}

void handle_usage(struct exchange *exchange) {
    struct wish *wish = calloc(1, sizeof *wish);

    if (!wish) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    wish->exchange = exchange;
    if (read_wish(wish)) {
        usage_measure_all(answer_usage, wish);
        return;
    }
    buf_done(&wish->label);
    free(wish);
    exchange_problem(
        exchange, 400, "invalid_argument", "by must be tenant, sandbox, lease, label or rollout");
}
