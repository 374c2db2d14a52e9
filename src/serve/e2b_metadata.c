/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata of files, which clients set with an upload (X-Metadata-NAME) and read with a file's
 * description. The server keeps it, so a guest cannot change it. It follows what clients do with
 * the file, but not what programs in the sandbox do: a file that a program moves has none.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "serve/e2b.h"

#define PREFIX "x-metadata-"
#define FILES_MAX 4096u /* with metadata, of a sandbox */
/* What a sandbox's paths and metadata may have together. Each of its forks has a copy. */
#define BYTES_MAX ((size_t)256 << 10)

static json_t *lower(const char *text) {
    auto_buf struct buf name = BUF_INIT;

    buf_add_text(&name, text);
    for (size_t i = 0; i < name.length; i++)
        name.data[i] = (char)tolower((unsigned char)name.data[i]);
    return json_string(name.data ? name.data : "");
}

json_t *e2b_metadata_of(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    json_t *metadata = json_object();

    for (unsigned i = 0; i < request->n_headers; i++) {
        const char *name = request->text.data + request->headers[i].name;
        const char *value = request->text.data + request->headers[i].value;

        if (strncasecmp(name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        json_t *key = lower(name + sizeof PREFIX - 1);
        int r = json_object_set_new(metadata, json_string_value(key), json_string(value));
        json_decref(key);
        if (r < 0) {
            json_decref(metadata);
            exchange_problem(
                exchange, 400, "invalid_argument", "a header X-Metadata-NAME is not UTF-8");
            return NULL;
        }
    }
    return metadata;
}

static size_t bytes_of(const char *path, const json_t *metadata) {
    size_t n = strlen(path);
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)metadata, name, value) n +=
        strlen(name) + json_string_length(value);
    return n;
}

static size_t bytes_of_all(const json_t *all) {
    const char *path;
    json_t *metadata;
    size_t n = 0;

    json_object_foreach((json_t *)(uintptr_t)all, path, metadata) n += bytes_of(path, metadata);
    return n;
}

static bool has_room(const json_t *all, const char *path, const json_t *metadata) {
    const json_t *before = json_object_get(all, path);
    const size_t freed = before ? bytes_of(path, before) : 0;

    return json_object_size(all) - (before != NULL) < FILES_MAX &&
           bytes_of_all(all) - freed + bytes_of(path, metadata) <= BYTES_MAX;
}

bool e2b_metadata_set(struct e2b_box *e2b, const char *path, json_t *metadata) {
    if (!json_object_size(metadata)) {
        if (e2b->file_metadata)
            json_object_del(e2b->file_metadata, path);
        return true;
    }
    if (!e2b->file_metadata)
        e2b->file_metadata = json_object();
    if (!has_room(e2b->file_metadata, path, metadata))
        return false;
    return json_object_set(e2b->file_metadata, path, metadata) >= 0;
}

/* What follows the tree's path; NULL: it is of another tree. */
static const char *below(const char *path, const char *tree) {
    size_t length = strlen(tree);

    return !strncmp(path, tree, length) && (!path[length] || path[length] == '/') ? path + length
                                                                                  : NULL;
}

void e2b_metadata_move(struct e2b_box *e2b, const char *path, const char *to) {
    json_t *moved = json_object(), *metadata;
    const char *name;
    void *next;

    /* What was at the destination is gone, too. */
    json_object_foreach_safe(e2b->file_metadata, next, name, metadata) {
        const char *rest = below(name, path);
        auto_buf struct buf whole = BUF_INIT;

        if (rest && to) {
            buf_printf(&whole, "%s%s", to, rest);
            json_object_set(moved, whole.data, metadata);
        }
        if (rest || (to && below(name, to)))
            json_object_del(e2b->file_metadata, name);
    }
    /* Longer paths may be too much. */
    if (bytes_of_all(e2b->file_metadata) + bytes_of_all(moved) <= BYTES_MAX)
        json_object_update(e2b->file_metadata, moved);
    json_decref(moved);
}

static void show(const struct e2b_box *e2b, json_t *entry) {
    const char *path = json_string_value(json_object_get(entry, "path"));
    json_t *metadata = path ? json_object_get(e2b->file_metadata, path) : NULL;

    if (metadata)
        json_object_set(entry, "metadata", metadata);
}

void e2b_metadata_show(const struct e2b_box *e2b, json_t *answer) {
    json_t *entry;
    size_t i;

    if (!e2b || !e2b->file_metadata)
        return;
    show(e2b, json_object_get(answer, "entry"));
    json_array_foreach(json_object_get(answer, "entries"), i, entry) show(e2b, entry);
    json_array_foreach(answer, i, entry) show(e2b, entry);
}
