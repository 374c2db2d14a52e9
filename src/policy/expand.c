/* SPDX-License-Identifier: Apache-2.0 */
/* Grants without the denied paths in them: see expand.h for the model. */
#include "policy/expand.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct expansion {
    const char *const *denied;
    size_t n_denied, *budget;
    const struct expand_lister *lister;
    int (*emit)(void *data, const char *path, bool directory, bool whole);
    void *emit_data;
};

int expand_entries_add(struct expand_entries *entries, const char *name, bool directory) {
    if (entries->n == entries->capacity) {
        size_t capacity = MAX(entries->capacity * 2, (size_t)64);
        struct expand_entry *items = reallocarray(entries->items, capacity, sizeof *items);

        if (!items)
            return -ENOMEM;
        entries->items = items;
        entries->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    entries->items[entries->n++] = (struct expand_entry){ copy, directory };
    return 0;
}

void expand_entries_done(struct expand_entries *entries) {
    for (size_t i = 0; i < entries->n; i++)
        free(entries->items[i].name);
    free(entries->items);
    *entries = (struct expand_entries){ 0 };
}

/* Is `path` the other or below it? */
static bool is_below(const char *path, const char *other) {
    size_t n = strlen(other);

    return !strncmp(path, other, n) && (!path[n] || path[n] == '/' || (n && other[n - 1] == '/'));
}

static bool holds_denied(const struct expansion *e, const char *path) {
    for (size_t i = 0; i < e->n_denied; i++)
        if (is_below(e->denied[i], path))
            return true;
    return false;
}

static int compare_paths(const void *left, const void *right) {
    const struct expand_entry *a = left, *b = right;

    return strcmp(a->name, b->name);
}

static int expand_path(const struct expansion *e, const char *path, bool directory, bool whole) {
    struct expand_entries entries = { 0 };
    char inner[4096];
    int r;

    if (!holds_denied(e, path)) {
        if (!*e->budget)
            return -E2BIG;
        --*e->budget;
        return e->emit(e->emit_data, path, directory, whole);
    }
    if (!directory)
        return 0;
    for (size_t i = 0; i < e->n_denied; i++)
        if (!strcmp(e->denied[i], path))
            return 0;
    r = e->lister->list(e->lister->data, path, &entries);
    /* Equal hosts give equal plans. */
    if (r == 0 && entries.n)
        qsort(entries.items, entries.n, sizeof *entries.items, compare_paths);
    for (size_t i = 0; r == 0 && i < entries.n; i++) {
        int n = snprintf(inner, sizeof inner, "%s%s%s", path,
            path[strlen(path) - 1] == '/' ? "" : "/", entries.items[i].name);
        r = n < 0 || (size_t)n >= sizeof inner
                ? -ENAMETOOLONG
                : expand_path(e, inner, entries.items[i].directory, false);
    }
    expand_entries_done(&entries);
    return r;
}

int expand_grant(const char *path, bool directory, const char *const *denied, size_t n_denied,
    const struct expand_lister *lister, size_t *budget,
    int (*emit)(void *data, const char *path, bool directory, bool whole), void *emit_data) {
    struct expansion e = { denied, n_denied, budget, lister, emit, emit_data };

    return expand_path(&e, path, directory, true);
}
