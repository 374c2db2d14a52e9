/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats the engine's answers for people: tables, trees, differences. Texts in them may be a
 * guest's, so they are escaped (utf8_shown): a name can neither end its line, nor control the
 * terminal, nor reorder the text beside it.
 */
#ifndef ROLLBOX_CLI_SHOWN_H
#define ROLLBOX_CLI_SHOWN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct buf;

enum shown_kind {
    SHOWN_TEXT,
    SHOWN_COUNT,
    SHOWN_SIZE,
    SHOWN_MILLISECONDS,
    SHOWN_TIME,
    SHOWN_SECONDS,
    SHOWN_PERCENT,
    SHOWN_RIGHT, /* a text that is right-aligned */
};

struct format_column {
    const char *title;
    const char *key; /* in each row's object */
    enum shown_kind kind;
};

/* A text on standard output; NULL is nothing. format_line ends the line. */
void format_text(const char *text);
void format_line(const char *text);

/* A text of several lines on standard output. */
void shown_lines(const char *text);

/* A JSON text on standard output, and the end of its line. */
void format_json(const char *json);

/* The first bytes of a text on standard error. */
void format_error(const char *text, size_t length);

/* Prints an array of objects as a table with titles. Numbers are right-aligned. */
void format_table(const json_t *rows, const struct format_column *columns, size_t n_columns);

/* Prints rows as a tree, in the order of the list: each row below the one whose `key` (a text or a
 * number) is its "parent". */
void format_forest(const json_t *rows, const char *key, void (*show)(const json_t *row));

/* A size (base/size_text.h) on standard output. */
void format_size(double bytes);

/* Prints snapshots as a tree, with sizes and with the sandboxes that are at each. */
void format_snapshot_tree(const json_t *snapshots);

/* {"changes": [...]}: a line each, coloured on a terminal; with `text` each file's unified diff
 * below its line. */
void format_diff(const json_t *answer, bool text);

#endif
