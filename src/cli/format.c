/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/size_text.h"
#include "base/utf8.h"
#include "cli/cli.h"

#define RED "\033[31m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

/* ---- texts ---- */

static void add_escaped(struct buf *to, const char *text, const char *allowed) {
    utf8_shown(to, text, strlen(text), allowed);
}

static void print_escaped(const char *text, const char *allowed) {
    auto_buf struct buf shown = BUF_INIT;

    if (text)
        add_escaped(&shown, text, allowed);
    if (shown.length)
        fwrite(shown.data, 1, shown.length, stdout);
}

void format_text(const char *text) {
    print_escaped(text, "");
}

void shown_lines(const char *text) {
    print_escaped(text, "\n");
}

void format_error(const char *text, size_t length) {
    auto_free char *copy = strndup(text, length);
    auto_buf struct buf shown = BUF_INIT;

    if (copy)
        add_escaped(&shown, copy, "\t");
    if (shown.length)
        fwrite(shown.data, 1, shown.length, stderr);
}

void format_json(const char *json) {
    auto_buf struct buf shown = BUF_INIT;

    utf8_json_shown(&shown, json, strlen(json));
    buf_add(&shown, "\n", 1);
    if (!buf_failed(&shown))
        fwrite(shown.data, 1, shown.length, stdout);
}

void format_line(const char *text) {
    format_text(text);
    putchar('\n');
}

void format_size(double bytes) {
    auto_buf struct buf text = BUF_INIT;

    size_text_add(&text, bytes);
    print_escaped(text.data, "");
}

/* "850ms", "12.3s", "2m05s", "3h12m", "4d07h". */
static void add_duration(struct buf *to, double ms) {
    uint64_t s = ms > 0 && ms < 1e15 ? (uint64_t)(ms / 1000) : 0;

    if (ms < 1000)
        buf_printf(to, "%.0fms", MAX(ms, 0.0));
    else if (s < 60)
        buf_printf(to, "%.1fs", ms / 1000);
    else if (s < 3600)
        buf_printf(to, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
    else if (s < 86400)
        buf_printf(to, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s % 3600 / 60);
    else
        buf_printf(to, "%" PRIu64 "d%02" PRIu64 "h", s / 86400, s % 86400 / 3600);
}

/* ---- tables ---- */

static void add_cell(struct buf *to, const json_t *value, enum shown_kind kind) {
    if (!value || json_is_null(value)) {
        buf_add_text(to, "-");
    } else if (json_is_string(value)) {
        add_escaped(to, json_string_value(value), "");
    } else if (json_is_array(value)) {
        buf_printf(to, "%zu", json_array_size(value));
    } else if (!json_is_number(value)) {
        buf_add_text(to, json_is_true(value) ? "yes" : "no");
    } else {
        double number = json_number_value(value);

        switch (kind) {
        case SHOWN_TEXT:
        case SHOWN_RIGHT:
        case SHOWN_COUNT:
            buf_printf(to, "%.0f", number);
            break;
        case SHOWN_SIZE:
            size_text_add(to, number);
            break;
        case SHOWN_MILLISECONDS:
            add_duration(to, number);
            break;
        case SHOWN_SECONDS:
            add_duration(to, 1000 * number);
            break;
        case SHOWN_PERCENT:
            buf_printf(to, "%.1f%%", number);
            break;
        case SHOWN_TIME: {
            time_t then = (time_t)number;
            struct tm local;
            char text[32];

            if (number < 0 || number > 1e11 || !localtime_r(&then, &local) ||
                !strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local))
                buf_add_text(to, "-");
            else
                buf_add_text(to, text);
            break;
        }
        }
    }
    buf_add(to, "", 0);
}

/* The columns of a text on a terminal, if every character takes one column. */
static size_t width_of(const char *text) {
    size_t width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cells(
    char *const *cells, const size_t *widths, const struct format_column *columns, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *text = cells[i] ? cells[i] : "";
        int pad = (int)(widths[i] - MIN(widths[i], width_of(text)));
        bool right = columns[i].kind != SHOWN_TEXT && columns[i].kind != SHOWN_TIME;

        /* The last column is not padded: no line ends in spaces. */
        const int before = right ? pad : 0;
        const int after = right || i + 1 == n ? 0 : pad;
        printf("%s%*s%s%*s", i ? "  " : "", before, "", text, after, "");
    }
    putchar('\n');
}

void format_table(const json_t *rows, const struct format_column *columns, size_t n_columns) {
    size_t n_rows = json_array_size(rows);
    auto_free size_t *widths = calloc(n_columns, sizeof *widths);
    auto_free char **cells = calloc((n_rows + 1) * n_columns, sizeof *cells);
    json_t *row;
    size_t i;

    if (!widths || !cells)
        return;
    for (size_t j = 0; j < n_columns; j++) {
        cells[j] = strdup(columns[j].title);
        widths[j] = strlen(columns[j].title);
    }
    json_array_foreach(rows, i, row) for (size_t j = 0; j < n_columns; j++) {
        struct buf cell = BUF_INIT;

        add_cell(&cell, json_object_get(row, columns[j].key), columns[j].kind);
        cells[(i + 1) * n_columns + j] = buf_take(&cell);
        if (cells[(i + 1) * n_columns + j])
            widths[j] = MAX(widths[j], width_of(cells[(i + 1) * n_columns + j]));
    }
    for (i = 0; i <= n_rows; i++)
        print_cells(cells + i * n_columns, widths, columns, n_columns);
    for (i = 0; i < (n_rows + 1) * n_columns; i++)
        free(cells[i]);
}

/* ---- trees ---- */

struct forest {
    const json_t *nodes;
    void (*show)(const json_t *row);
    size_t *first,
        *next; /* for each node: its first child and its next sibling, as index + 1; 0: none */
    struct buf prefix;
};

static void print_node(const json_t *node) {
    const char *name = json_string_value(json_object_get(node, "name"));
    const char *kind = json_string_value(json_object_get(node, "kind"));
    const json_t *sandboxes = json_object_get(node, "sandboxes"),
                 *disk = json_object_get(node, "disk_bytes");
    json_int_t files = json_integer_value(json_object_get(node, "files")),
               processes = json_integer_value(json_object_get(node, "processes"));
    auto_buf struct buf size = BUF_INIT;
    auto_buf struct buf memory = BUF_INIT;
    json_t *sandbox;
    size_t i;

    format_text(json_string_value(json_object_get(node, "id")));
    if (name && name[0]) {
        printf(" \"");
        format_text(name);
        putchar('"');
    }
    size_text_add(&size, json_number_value(json_object_get(node, "bytes")));
    printf("  %s, %" JSON_INTEGER_FORMAT " file%s", size.data ? size.data : "", files,
        files == 1 ? "" : "s");
    if (processes) {
        size_text_add(&memory, json_number_value(json_object_get(node, "memory_bytes")));
        printf("; %" JSON_INTEGER_FORMAT " process%s, %s", processes, processes == 1 ? "" : "es",
            memory.data ? memory.data : "");
    }
    /* Snapshots that contain only files need no word. */
    if (kind && strcmp(kind, "files") != 0) {
        printf(", ");
        format_text(kind);
    }
    if (json_is_integer(disk) && json_integer_value(disk)) {
        printf(", ");
        format_size(json_number_value(disk));
        printf(" on disk");
    }
    if (json_is_true(json_object_get(node, "automatic")))
        printf(", automatic");
    json_array_foreach(sandboxes, i, sandbox) {
        printf(i ? ", " : "  <- ");
        format_text(json_string_value(sandbox));
    }
    putchar('\n');
}

static void print_below(struct forest *forest, size_t node) {
    size_t length = forest->prefix.length;

    for (size_t child = forest->first[node]; child; child = forest->next[child - 1]) {
        bool last = !forest->next[child - 1];

        if (length)
            printf("%s", forest->prefix.data);
        printf("%s", last ? "`-- " : "|-- ");
        forest->show(json_array_get(forest->nodes, child - 1));
        buf_add_text(&forest->prefix, last ? "    " : "|   ");
        if (!buf_failed(&forest->prefix)) {
            print_below(forest, child - 1);
            forest->prefix.length = length;
            forest->prefix.data[length] = '\0';
        }
    }
}

/* A row's id as a key; "" if it has none. */
static const char *key_of(const json_t *value, char text[32]) {
    text[0] = '\0';
    if (json_is_integer(value))
        (void)snprintf(text, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return json_is_string(value) ? json_string_value(value) : text;
}

/* The index of a row's parent + 1; 0: it has none, or an unknown one. */
static size_t parent_of(const json_t *index, const json_t *row) {
    char text[32];

    return (size_t)json_integer_value(
        json_object_get(index, key_of(json_object_get(row, "parent"), text)));
}

void format_forest(const json_t *rows, const char *key, void (*show)(const json_t *row)) {
    size_t n = json_array_size(rows);
    auto_free size_t *first = calloc(n + 1, sizeof *first), *next = calloc(n + 1, sizeof *next);
    struct forest forest = {
        .nodes = rows, .show = show, .first = first, .next = next, .prefix = BUF_INIT
    };
    json_t *index = json_object();
    char text[32];

    for (size_t i = 0; first && next && i < n; i++) {
        const char *id = key_of(json_object_get(json_array_get(rows, i), key), text);

        if (*id)
            (void)json_object_set_new(index, id, json_integer((json_int_t)i + 1));
    }
    /* Backwards, so that siblings are in the order of the answer. A parent comes before its
     * children: a row with a later parent is shown as a root, so there is no cycle. */
    for (size_t i = n; first && next && i-- > 0;) {
        size_t parent = parent_of(index, json_array_get(rows, i));

        if (parent && parent - 1 < i) {
            next[i] = first[parent - 1];
            first[parent - 1] = i + 1;
        }
    }
    for (size_t i = 0; first && next && i < n; i++) {
        size_t parent = parent_of(index, json_array_get(rows, i));

        if (parent && parent - 1 < i)
            continue;
        show(json_array_get(rows, i));
        print_below(&forest, i);
    }
    json_decref(index);
    buf_done(&forest.prefix);
}

void format_snapshot_tree(const json_t *snapshots) {
    format_forest(snapshots, "id", print_node);
}

/* ---- differences ---- */

static const char *colour_of(char change) {
    if (change == 'A')
        return GREEN;
    return change == 'D' ? RED : YELLOW;
}

static const char *colour_of_line(char first) {
    if (first == '+')
        return GREEN;
    return first == '-' ? RED : "";
}

static void print_text(const char *text, bool colours) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        auto_free char *line = strndup(text, length);
        const char *colour = colours ? colour_of_line(text[0]) : "";

        if (!line)
            return;
        printf("%s", colour);
        if (isatty(STDOUT_FILENO))
            print_escaped(line, "\t");
        else
            printf("%s", line);
        printf("%s\n", colour[0] ? PLAIN : "");
        text += length + (text[length] == '\n');
    }
}

void format_diff(const json_t *answer, bool text) {
    const bool colours = cli_colours(STDOUT_FILENO);
    json_t *change;
    size_t i;

    json_array_foreach(json_object_get(answer, "changes"), i, change) {
        const char *kind = json_string_value(json_object_get(change, "change")),
                   *type = json_string_value(json_object_get(change, "type"));
        const json_t *size = json_object_get(change, "size"),
                     *old_size = json_object_get(change, "old_size");
        const char *diff = json_string_value(json_object_get(change, "diff"));
        auto_buf struct buf sizes = BUF_INIT;

        bool before = json_is_number(old_size) && kind && kind[0] != 'A',
             after = json_is_number(size) && kind && kind[0] != 'D';
        if (before)
            size_text_add(&sizes, json_number_value(old_size));
        if (before && after)
            buf_add_text(&sizes, " -> ");
        if (after)
            size_text_add(&sizes, json_number_value(size));
        const char *colour = colours && kind ? colour_of(kind[0]) : "";
        const char mark = kind ? kind[0] : '?';
        printf("%s%c%s ", colour, mark, colours ? PLAIN : "");
        format_text(json_string_value(json_object_get(change, "path")));
        if (type && strcmp(type, "directory") == 0)
            putchar('/');
        else if (type && strcmp(type, "symlink") == 0)
            putchar('@');
        else if (sizes.length)
            printf("  (%s)", sizes.data);
        putchar('\n');
        if (text && diff)
            print_text(diff, colours);
    }
}
