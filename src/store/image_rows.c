/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/layer.h"
#include "store/manifests.h"
#include "store/store.h"

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
}

struct reading {
    int store;
    struct image_rows *rows;
};

/* images/NAME.json, for free(). */
static char *manifest_path(enum manifest_kind kind, const char *name) {
    auto_free char *file = manifest_file_name(name);
    char *path = NULL;

    if (!file || asprintf(&path, "%s/%s", store_manifest_directory(kind), file) < 0)
        return NULL;
    return path;
}

/* Whether a process has the image's topmost layer locked. */
static bool is_in_use(int store, const struct manifest *manifest) {
    auto_free char *path = NULL;

    if (!manifest->n_layers ||
        asprintf(&path, "layers/%s/meta.json", manifest->layers[manifest->n_layers - 1]) < 0)
        return true;
    auto_close int fd = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

static int count_layer(struct reading *reading, const char *id, uint64_t *ret_bytes) {
    json_t *layer = json_object_get(reading->rows->layers, id);
    struct layer_meta meta = { 0 };

    if (!layer) {
        (void)layer_meta_read(reading->store, id, &meta);
        layer = json_pack("{s:I, s:i}", "bytes", (json_int_t)meta.tree.bytes, "users", 0);
        if (json_object_set_new(reading->rows->layers, id, layer) < 0)
            return -ENOMEM;
    }
    json_t *users = json_object_get(layer, "users");
    json_integer_set(users, json_integer_value(users) + 1);
    *ret_bytes = (uint64_t)json_integer_value(json_object_get(layer, "bytes"));
    return 0;
}

static int add_row(
    void *context, const char *name, const struct manifest *manifest, const char *problem) {
    struct reading *reading = context;
    struct image_rows *rows = reading->rows;
    struct stat st = { 0 };

    if (problem || !manifest)
        return 0;
    if (rows->n == rows->capacity) {
        const size_t capacity = rows->capacity ? 2 * rows->capacity : 32;
        struct image_row *more = realloc(rows->list, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        rows->list = more;
        rows->capacity = capacity;
    }
    struct image_row row = { .name = strdup(name),
        .kind = manifest->kind,
        .n_layers = manifest->n_layers,
        .layers = calloc(manifest->n_layers + 1, sizeof *row.layers),
        .is_in_use = is_in_use(reading->store, manifest) };
    auto_free char *path = manifest_path(manifest->kind, name);
    int r = row.name && row.layers && path ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < manifest->n_layers; i++) {
        uint64_t bytes = 0;

        row.layers[i] = strdup(manifest->layers[i]);
        r = row.layers[i] ? count_layer(reading, manifest->layers[i], &bytes) : -ENOMEM;
        row.bytes += bytes;
    }
    if (r == 0 && fstatat(reading->store, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        row.used_s = st.st_mtime;
    rows->list[rows->n++] = row;
    return r;
}

int image_rows_read(int store, struct image_rows *ret_rows, struct rollbox_error *error) {
    struct image_rows rows = { .layers = json_object() };
    struct reading reading = { store, &rows };
    int r = rows.layers ? manifests_each(store, MANIFEST_IMAGE, add_row, &reading, error)
                        : out_of_memory(error);

    if (r == 0)
        r = manifests_each(store, MANIFEST_SNAPSHOT, add_row, &reading, error);
    for (size_t i = 0; r == 0 && i < rows.n; i++)
        for (size_t j = 0; j < rows.list[i].n_layers; j++) {
            const json_t *layer = json_object_get(rows.layers, rows.list[i].layers[j]);

            if (json_integer_value(json_object_get(layer, "users")) == 1)
                rows.list[i].own_bytes +=
                    (uint64_t)json_integer_value(json_object_get(layer, "bytes"));
        }
    if (r < 0) {
        image_rows_done(&rows);
        return r;
    }
    *ret_rows = rows;
    return 0;
}

void image_rows_done(struct image_rows *rows) {
    for (size_t i = 0; i < rows->n; i++) {
        free(rows->list[i].name);
        manifest_strings_free(rows->list[i].layers);
    }
    free(rows->list);
    json_decref(rows->layers);
    *rows = (struct image_rows){ 0 };
}

static int compare_own(const void *a, const void *b) {
    const struct image_row *x = a, *y = b;

    if (x->own_bytes != y->own_bytes)
        return x->own_bytes < y->own_bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

json_t *image_rows_json(struct image_rows *rows) {
    json_t *list = json_array();

    if (rows->n)
        qsort(rows->list, rows->n, sizeof *rows->list, compare_own);
    for (size_t i = 0; list && i < rows->n; i++) {
        const struct image_row *row = &rows->list[i];

        json_array_append_new(
            list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "name", row->name, "kind",
                      row->kind == MANIFEST_IMAGE ? "image" : "snapshot", "layers",
                      (json_int_t)row->n_layers, "bytes", (json_int_t)row->bytes, "own_bytes",
                      (json_int_t)row->own_bytes, "shared_bytes",
                      (json_int_t)(row->bytes - row->own_bytes), "used", (json_int_t)row->used_s,
                      "in_use", row->is_in_use));
    }
    return list;
}

/* ---- prune ---- */

static int remove_row(int store, struct image_rows *rows, struct image_row *row, json_t *removed,
    struct rollbox_error *error) {
    auto_free char *path = manifest_path(row->kind, row->name);

    if (!path)
        return out_of_memory(error);
    if (unlinkat(store, path, 0) < 0 && errno != ENOENT)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "store",
            "cannot remove the image %s: %s", row->name, strerror(errno));
    row->is_removed = true;
    for (size_t i = 0; i < row->n_layers; i++) {
        json_t *users = json_object_get(json_object_get(rows->layers, row->layers[i]), "users");

        json_integer_set(users, json_integer_value(users) - 1);
    }
    return json_array_append_new(removed, json_string(row->name)) < 0 ? out_of_memory(error) : 0;
}

static uint64_t bytes_left(const struct image_rows *rows) {
    uint64_t bytes = 0;
    const char *id;
    json_t *layer;

    json_object_foreach(rows->layers, id, layer) {
        if (json_integer_value(json_object_get(layer, "users")) > 0)
            bytes += (uint64_t)json_integer_value(json_object_get(layer, "bytes"));
    }
    return bytes;
}

static bool is_removable(const struct image_row *row) {
    return row->kind == MANIFEST_IMAGE && !row->is_in_use && !row->is_removed;
}

/* The image that nobody has used for the longest time; NULL. */
static struct image_row *find_oldest(struct image_rows *rows) {
    struct image_row *oldest = NULL;

    for (size_t i = 0; i < rows->n; i++)
        if (is_removable(&rows->list[i]) && (!oldest || rows->list[i].used_s < oldest->used_s))
            oldest = &rows->list[i];
    return oldest;
}

int image_rows_prune(
    int store, const struct prune_options *options, json_t *removed, struct rollbox_error *error) {
    const int64_t now = time(NULL);
    struct image_rows rows;
    struct image_row *row;

    if (!options->keep_bytes && !options->older_s)
        return 0;
    int r = image_rows_read(store, &rows, error);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && options->older_s && i < rows.n; i++)
        if (is_removable(&rows.list[i]) &&
            now - rows.list[i].used_s > (int64_t)MIN(options->older_s, (uint64_t)INT64_MAX))
            r = remove_row(store, &rows, &rows.list[i], removed, error);
    while (r == 0 && options->keep_bytes && bytes_left(&rows) > options->keep_bytes &&
           (row = find_oldest(&rows)))
        r = remove_row(store, &rows, row, removed, error);
    image_rows_done(&rows);
    return r;
}
