/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox cost: what rollouts, labels, tenants or sandboxes used, and what that costs.
 *
 * The sums are a server's (--engine URL), or those of the commands in trajectories: of these the
 * engine has measured processor time, wall time and the peak of the memory, and no disk.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/prices.h"
#include "cli/cli.h"
#include "cli/format.h"
#include "cli/remote.h"

#define GIB ((double)(1 << 30))
#define MILLION 1e6

/* The members of a row that are summed. */
static const char *const amounts[] = { "runs", "commands", "cpu_ms", "wall_ms", "gib_s",
    "disk_gib_s", "snapshot_gib_s", "running_s", "paused_s", "hibernated_s", "bytes_in",
    "bytes_out", "cost" };

static double number_of(const json_t *row, const char *key) {
    return json_number_value(json_object_get(row, key));
}

static void add_to(json_t *row, const char *key, double more) {
    json_object_set_new(row, key, json_real(number_of(row, key) + more));
}

/* ---- trajectories ---- */

static void add_step(json_t *row, const json_t *step) {
    const json_t *used = json_object_get(step, "resources");
    double wall_ms = number_of(used, "wall_ms");

    if (!json_is_object(used))
        return;
    add_to(row, "commands", 1);
    add_to(row, "cpu_ms", number_of(used, "cpu_ms"));
    add_to(row, "wall_ms", wall_ms);
    add_to(row, "gib_s", number_of(used, "peak_memory_bytes") / GIB * wall_ms / 1000);
}

static int add_trajectory(const struct options *options, const char *path, json_t *rows) {
    FILE *file = fopen(path, "re");
    auto_free char *line = NULL;
    json_t *row = json_object();
    size_t room = 0;
    bool is_header = true, ok = true;

    if (!file) {
        json_decref(row);
        return cli_fail(options, "cannot read %s: %s", path, strerror(errno));
    }
    while (ok && getline(&line, &room, file) > 0) {
        json_t *step = json_loads(line, 0, NULL);
        const char *format = json_string_value(json_object_get(step, "format"));

        if (is_header)
            ok = format && !strncmp(format, "rollbox-trajectory/", 19);
        else if (step)
            add_step(row, step);
        is_header = false;
        json_decref(step);
    }
    (void)fclose(file);
    json_object_set_new(row, "trajectory", json_string(path));
    json_array_append_new(rows, row);
    return ok && !is_header ? 0 : cli_fail(options, "%s is not a trajectory", path);
}

/* ---- a server ---- */

/* The kind of the rows: tenant, sandbox, lease, label or rollout; another word names a label. */
static const char *add_query(const char *by, struct buf *path) {
    static const char *const kinds[] = { "tenant", "sandbox", "lease", "label", "rollout" };

    buf_add_text(path, "/v1/usage?by=");
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (!strcmp(kinds[i], by)) {
            buf_add_text(path, by);
            return by;
        }
    buf_add_text(path, "label&label=");
    remote_path_add(path, by, false);
    return "label";
}

static int take_answer(
    const struct options *options, struct remote_answer *answer, const char *key, json_t *rows) {
    json_t *body, *row;
    size_t i;

    if (answer->status >= 400 || !answer->status)
        return remote_fail(options, answer);
    body = json_loadb(answer->body.data ? answer->body.data : "", answer->body.length, 0, NULL);
    if (!json_is_array(json_object_get(body, "usage"))) {
        json_decref(body);
        return cli_fail(options, "the server's answer is not usage");
    }
    json_array_foreach(json_object_get(body, "usage"), i, row) {
        if (!strcmp(key, "name"))
            json_object_set(row, "tenant", json_object_get(row, "name"));
        json_object_del(row, "name");
        json_array_append(rows, row);
    }
    json_decref(body);
    return 0;
}

static int ask(const struct options *options, const char *by, const char **ret_kind, json_t *rows) {
    auto_buf struct buf path = BUF_INIT;
    struct remote_answer answer;

    *ret_kind = add_query(by, &path);
    if (buf_failed(&path))
        return cli_fail(options, "out of memory");
    remote_ask(options, "GET", path.data, NULL, NULL, &answer);
    int status = take_answer(options, &answer, strcmp(*ret_kind, "tenant") ? "" : "name", rows);
    buf_done(&answer.body);
    return status;
}

/* ---- the sums ---- */

static double cost_of(const struct prices *prices, const json_t *row) {
    const struct prices used = { .cpu_s = number_of(row, "cpu_ms") / 1000,
        .gib_s = number_of(row, "gib_s"),
        .disk_gib_s = number_of(row, "disk_gib_s"),
        .snapshot_gib_s = number_of(row, "snapshot_gib_s"),
        .call = number_of(row, "runs") + number_of(row, "commands") };

    return prices_cost(prices, &used);
}

static void price_all(const struct prices *prices, json_t *rows) {
    json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
        json_object_set_new(row, "cost", json_real(cost_of(prices, row)));
}

static json_t *total_of(json_t *rows) {
    json_t *total = json_object(), *row;
    size_t i;

    json_array_foreach(rows, i, row) {
        for (size_t k = 0; k < ARRAY_SIZE(amounts); k++)
            if (json_object_get(row, amounts[k]))
                add_to(total, amounts[k], number_of(row, amounts[k]));
    }
    return total;
}

static void set_cell(json_t *row, const char *cell, const char *key, double divisor) {
    auto_buf struct buf text = BUF_INIT;

    if (!json_object_get(row, key))
        buf_add_text(&text, "-");
    else if (!strcmp(key, "cost"))
        buf_printf(&text, "%.6g", number_of(row, key) / divisor);
    else
        buf_printf(&text, "%.*f", divisor == 1 && strstr("runs commands", key) ? 0 : 3,
            number_of(row, key) / divisor);
    if (!buf_failed(&text))
        json_object_set_new(row, cell, json_string(text.data));
}

static void draw(json_t *rows, json_t *total, const char *kind) {
    static const struct {
        const char *title, *cell, *key;
        double divisor;
    } cells[] = {
        { "RUNS", "RUNS", "runs", 1 },
        { "COMMANDS", "COMMANDS", "commands", 1 },
        { "CPU s", "CPU", "cpu_ms", 1000 },
        { "MEMORY GiB s", "MEMORY", "gib_s", 1 },
        { "DISK GiB s", "DISK", "disk_gib_s", 1 },
        { "STORED GiB s", "STORED", "snapshot_gib_s", 1 },
        { "WALL s", "WALL", "wall_ms", 1000 },
        { "COST", "COST", "cost", 1 },
    };
    struct format_column columns[ARRAY_SIZE(cells) + 1] = { { "NAME", kind, SHOWN_TEXT } };
    json_t *row;
    size_t i;

    json_object_set_new(total, kind, json_string("total"));
    json_array_append(rows, total);
    for (size_t k = 0; k < ARRAY_SIZE(cells); k++) {
        columns[k + 1] = (struct format_column){ cells[k].title, cells[k].cell, SHOWN_RIGHT };
        json_array_foreach(rows, i, row)
            set_cell(row, cells[k].cell, cells[k].key, cells[k].divisor);
    }
    format_table(rows, columns, ARRAY_SIZE(columns));
}

static int show(const struct options *options, json_t *rows, const char *kind) {
    bool per_million = options_has(options, OPTION_PER_MILLION);
    size_t n = json_array_size(rows);
    json_t *total = total_of(rows);
    double each = n ? number_of(total, "cost") / (double)n * MILLION : 0;

    if (per_million && n && !json_object_get(total, "cost")) {
        json_decref(total);
        return cli_fail(options, "--per-million: there are no prices; give --prices FILE, or start "
                                 "the server with it");
    }
    if (options_has(options, OPTION_JSON)) {
        json_t *answer =
            json_pack("{s:O, s:O, s:I}", "rows", rows, "total", total, "count", (json_int_t)n);

        if (per_million)
            json_object_set_new(answer, "per_million", json_real(each));
        (void)json_dumpf(
            answer, stdout, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(answer);
    } else {
        draw(rows, total, kind);
        if (per_million)
            printf("per million: %.6g (of %zu)\n", each, n);
    }
    json_decref(total);
    return cli_flush(options, 0);
}

int cmd_cost(const struct options *options) {
    const char *given = options_text(options, OPTION_COST_BY), *by = given ? given : "tenant";
    const char *file, *kind = "trajectory";
    struct prices prices;
    char why[512];

    file = options_text(options, OPTION_PRICES);
    if (file && !prices_read(file, &prices, why, sizeof why))
        return cli_fail(options, "%s", why);
    if (given && options->n_rest)
        return cli_fail(options, "--by is for a server; of trajectories each has a row");
    if (!options->n_rest && !remote_is_named())
        return cli_fail(options,
            "give the address of a server (--engine https://HOST), or trajectories; an engine of "
            "this machine keeps no sums");
    json_t *rows = json_array();
    int status = options->n_rest ? 0 : ask(options, by, &kind, rows);
    for (int i = 0; !status && i < options->n_rest; i++)
        status = add_trajectory(options, options->rest[i], rows);
    if (!status && file)
        price_all(&prices, rows);
    if (!status)
        status = show(options, rows, kind);
    json_decref(rows);
    return status;
}
