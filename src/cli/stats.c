/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox stats: the resource usage of an engine's sandboxes, as a table that is redrawn at each
 * interval.
 *
 * The engine reports totals. A CPU share is the difference of two totals over the time between
 * them, so the first table appears after one interval. On a terminal each table replaces the
 * previous one. Elsewhere the tables follow each other, and with --json each is one line.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/size_text.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "cli/format.h"

#define INTERVAL_S 1.0
#define INTERVAL_MOST_S 86400.0
#define HOME_AND_CLEAR "\033[H\033[J"

/* The engine's answer, and its time. */
struct sample {
    json_t *rows;    /* the requested sandboxes */
    json_t *by_name; /* the same rows by their names */
    int64_t taken_ns;
};

static void sample_done(struct sample *sample) {
    json_decref(sample->rows);
    json_decref(sample->by_name);
    *sample = (struct sample){ 0 };
}

static bool is_asked_for(const struct options *options, const char *name) {
    for (int i = 0; i < options->n_rest; i++)
        if (name && strcmp(options->rest[i], name) == 0)
            return true;
    return options->n_rest == 0;
}

static int take(
    const struct options *options, struct rollbox_engine *engine, struct sample *ret_sample) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;
    json_t *row;
    size_t i;

    if (rollbox_sandbox_stats(engine, &json, &error) < 0)
        return cli_fail_error(options, &error);
    json_t *answer = json_loads(json, 0, NULL);
    if (!answer)
        return cli_fail(
            options, "the engine's answer is no JSON; are engine and command of one version?");
    *ret_sample = (struct sample){
        .rows = json_array(), .by_name = json_object(), .taken_ns = clock_now_ns()
    };
    json_array_foreach(json_object_get(answer, "sandboxes"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));

        if (is_asked_for(options, name)) {
            (void)json_array_append(ret_sample->rows, row);
            (void)json_object_set(ret_sample->by_name, name, row);
        }
    }
    json_decref(answer);
    return 0;
}

/* Sets "cpu_percent", relative to one CPU: two busy ones are 200. Null if there is no earlier
 * total, or if that included processes that have ended. */
static void set_cpu(const struct sample *before, struct sample *now) {
    double elapsed_ms = (double)(now->taken_ns - before->taken_ns) / 1e6;
    json_t *row;
    size_t i;

    json_array_foreach(now->rows, i, row) {
        const json_t *earlier =
            json_object_get(before->by_name, json_string_value(json_object_get(row, "name")));
        const json_t *from = json_object_get(earlier, "cpu_ms"),
                     *to = json_object_get(row, "cpu_ms");
        double used_ms = json_number_value(to) - json_number_value(from);
        const bool is_known =
            json_is_number(from) && json_is_number(to) && used_ms >= 0 && elapsed_ms > 0;

        (void)json_object_set_new(row, "cpu_percent",
            is_known ? json_real(round(1000 * used_ms / elapsed_ms) / 10) : json_null());
    }
}

static void add_figure(struct buf *to, const json_t *value, bool is_size) {
    if (!json_is_number(value))
        buf_add_text(to, "-");
    else if (is_size)
        size_text_add(to, json_number_value(value));
    else
        buf_printf(to, "%.0f", json_number_value(value));
}

/* "12.3M / 512M" for the table. */
static void set_ratio(
    json_t *row, const char *key, const char *used, const char *most, bool is_size) {
    auto_buf struct buf text = BUF_INIT;

    add_figure(&text, json_object_get(row, used), is_size);
    buf_add_text(&text, " / ");
    add_figure(&text, json_object_get(row, most), is_size);
    if (!buf_failed(&text))
        (void)json_object_set_new(row, key, json_string(text.data));
}

static void draw(const struct options *options, const struct sample *sample, bool redraws) {
    static const struct format_column columns[] = {
        { "NAME", "name", SHOWN_TEXT },
        { "STATE", "state", SHOWN_TEXT },
        { "CPU", "cpu_percent", SHOWN_PERCENT },
        { "MEMORY / LIMIT", "memory", SHOWN_RIGHT },
        { "DISK / LIMIT", "disk", SHOWN_RIGHT },
        { "PROCESSES", "tasks", SHOWN_RIGHT },
    };
    json_t *row;
    size_t i;

    if (options_has(options, OPTION_JSON)) {
        json_t *answer = json_pack("{s:O}", "sandboxes", sample->rows);

        (void)json_dumpf(
            answer, stdout, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(answer);
        return;
    }
    json_array_foreach(sample->rows, i, row) {
        set_ratio(row, "memory", "memory_bytes", "max_memory_bytes", true);
        set_ratio(row, "disk", "disk_bytes", "max_disk_bytes", true);
        set_ratio(row, "tasks", "processes", "max_processes", false);
    }
    if (redraws)
        printf(HOME_AND_CLEAR);
    format_table(sample->rows, columns, ARRAY_SIZE(columns));
}

static void wait_for(double seconds) {
    struct timespec left = { .tv_sec = (time_t)seconds,
        .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* Each name must be a sandbox at the start. Sandboxes that end later leave the table. */
static int check_names(const struct options *options, struct rollbox_engine *engine) {
    for (int i = 0; i < options->n_rest; i++) {
        struct rollbox_error error = { .code = ROLLBOX_OK };
        struct rollbox_sandbox *sandbox;

        if (rollbox_sandbox_open(engine, options->rest[i], &sandbox, &error) < 0)
            return cli_fail_error(options, &error);
        rollbox_sandbox_free(sandbox);
    }
    return 0;
}

static int watch(const struct options *options, struct rollbox_engine *engine) {
    const struct option_use *interval = options_last(options, OPTION_INTERVAL);
    const double seconds = interval ? MIN(interval->number, INTERVAL_MOST_S) : INTERVAL_S;
    const bool is_once = options_has(options, OPTION_ONCE),
               redraws = !is_once && isatty(STDOUT_FILENO);
    struct sample before = { 0 }, now = { 0 };
    int status = check_names(options, engine);

    if (!status)
        status = take(options, engine, &before);
    while (!status) {
        wait_for(seconds);
        status = take(options, engine, &now);
        if (status)
            break;
        set_cpu(&before, &now);
        draw(options, &now, redraws);
        status = cli_flush(options, 0);
        const bool all_gone = options->n_rest && json_array_size(now.rows) == 0;
        sample_done(&before);
        before = now;
        now = (struct sample){ 0 };
        if (is_once || all_gone)
            break;
    }
    sample_done(&before);
    sample_done(&now);
    return status;
}

int cmd_stats(const struct options *options) {
    struct rollbox_engine *engine;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    status = watch(options, engine);
    rollbox_engine_close(engine);
    return status;
}
