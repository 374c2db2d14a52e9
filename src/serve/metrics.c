/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms; metrics.h has the model. metrics_text.c has the answer. */
#include "serve/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/series.h"

#define SERIES_BUCKETS 1024

const double series_bounds[SERIES_BOUNDS] = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800 };

static struct list buckets[SERIES_BUCKETS];
struct list series_all[SERIES_FAMILIES];

static void prepare(void) {
    if (series_all[0].next)
        return;
    for (size_t i = 0; i < SERIES_BUCKETS; i++)
        list_init(&buckets[i]);
    for (size_t i = 0; i < SERIES_FAMILIES; i++)
        list_init(&series_all[i]);
}

static unsigned hash(unsigned from, const char *text) {
    for (; *text; text++)
        from = (from ^ (unsigned char)*text) * 16777619u;
    return from * 31;
}

/* The series of a family with these labels. `first` and `second` live as long as the process, or
 * are copied if they are new. NULL when out of memory. */
static struct series *series_of(
    enum series_family family, const char *first, const char *second, int status) {
    unsigned place = hash(hash(2166136261u ^ (unsigned)family, first), second) ^ (unsigned)status;

    prepare();
    struct list *bucket = &buckets[(place ^ place >> 13) % SERIES_BUCKETS];
    list_for_each(node, bucket) {
        struct series *series = container_of(node, struct series, in_bucket);

        if (series->family == family && series->status == status && !strcmp(series->first, first) &&
            !strcmp(series->second, second))
            return series;
    }
    struct series *series = calloc(1, sizeof *series);
    if (!series)
        return NULL;
    series->family = family;
    series->first = strdup(first);
    series->second = strdup(second);
    series->status = status;
    if (!series->first || !series->second) {
        free(series->first);
        free(series->second);
        free(series);
        return NULL;
    }
    list_add_tail(bucket, &series->in_bucket);
    list_add_tail(&series_all[family], &series->of_family);
    return series;
}

static void count(enum series_family family, const char *first, const char *second, int status) {
    struct series *series = series_of(family, first, second, status);

    if (series)
        series->n++;
}

static void observe(
    enum series_family family, const char *first, const char *second, double seconds) {
    struct series *series = series_of(family, first, second, 0);
    size_t i = 0;

    if (!series)
        return;
    while (i < SERIES_BOUNDS && seconds > series_bounds[i])
        i++;
    series->in_bound[i]++;
    series->n++;
    series->sum += seconds;
}

void metrics_command(const struct exchange *exchange, const struct rollbox_result *result) {
    const char *tenant = exchange->tenant->name;
    double in_engine_ms = result->queue_ms + result->setup_ms + result->wall_ms;
    double waited_ms = result->queue_ms;

    count(exchange->box ? SERIES_EXECS : SERIES_RUNS, tenant, rollbox_outcome_name(result->outcome),
        0);
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    /* The server's own queue, and its threads that compile policies. */
    if (exchange->seen.asked_ns)
        waited_ms +=
            MAX((double)(clock_now_ns() - exchange->seen.asked_ns) / 1e6 - in_engine_ms, 0);
    observe(SERIES_EXEC_SECONDS, tenant, "", result->wall_ms / 1000);
    observe(SERIES_START_SECONDS, tenant, "", result->setup_ms / 1000);
    observe(SERIES_QUEUE_SECONDS, tenant, "", waited_ms / 1000);
}

void metrics_request(const struct exchange *exchange) {
    const struct route *route = exchange->route;
    int status = exchange->seen.status;

    if (!exchange->seen.is_request)
        return;
    count(SERIES_REQUESTS, route->method, route->path, status ? status : 200);
    observe(SERIES_REQUEST_SECONDS, route->method, route->path,
        (double)(clock_now_ns() - exchange->seen.begun_ns) / 1e9);
}

void metrics_refused(const struct tenant *tenant, const char *code) {
    count(SERIES_REFUSED, tenant ? tenant->name : "", code, 0);
}

void metrics_malformed(int status) {
    count(SERIES_REQUESTS, "", "", status);
}
