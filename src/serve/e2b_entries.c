/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of files for E2B's clients; e2b_entries.h has the model. */
#include "serve/e2b_entries.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"

#define DEPTH_MAX 32

static const char *text_of(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));

    return text ? text : "";
}

static void permissions_of(const char *type, unsigned mode, char text[11]) {
    static const char letters[] = "rwxrwxrwx";

    text[0] = '-';
    if (!strcmp(type, "directory"))
        text[0] = 'd';
    else if (!strcmp(type, "symlink"))
        text[0] = 'l';
    for (unsigned i = 0; i < 9; i++)
        text[i + 1] = mode & (0400u >> i) ? letters[i] : '-';
    text[10] = '\0';
}

static json_t *time_of(const json_t *row) {
    json_int_t ns = json_integer_value(json_object_get(row, "mtime_ns"));
    const time_t seconds = (time_t)(ns / 1000000000);
    struct tm parts;
    char text[32], whole[64];

    (void)gmtime_r(&seconds, &parts);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(whole, sizeof whole, "%s.%09lldZ", text, (long long)(ns % 1000000000));
    return json_string(whole);
}

static const char *type_of(const char *type) {
    if (!strcmp(type, "directory"))
        return "FILE_TYPE_DIRECTORY";
    return strcmp(type, "symlink") ? "FILE_TYPE_FILE" : "FILE_TYPE_SYMLINK";
}

/* The row of librollbox as an entry. Sandboxes of these clients have one user. */
static json_t *entry_of(const json_t *row, const char *path) {
    const char *type = text_of(row, "type"), *name = strrchr(path, '/');
    unsigned mode = (unsigned)json_integer_value(json_object_get(row, "mode")) & 07777;
    char permissions[11], size[24];
    json_t *entry;

    permissions_of(type, mode, permissions);
    (void)snprintf(
        size, sizeof size, "%lld", (long long)json_integer_value(json_object_get(row, "size")));
    entry = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:s, s:o}", "name",
        name && name[1] ? name + 1 : path, "type", type_of(type), "path", path, "size", size,
        "mode", (int)mode, "permissions", permissions, "owner", "root", "group", "root",
        "modifiedTime", time_of(row));
    if (!strcmp(type, "symlink"))
        json_object_set(entry, "symlinkTarget", json_object_get(row, "target"));
    return entry;
}

int entries_stat(struct rollbox_sandbox *sandbox, const char *path, json_t **ret_entry,
    struct rollbox_error *error) {
    auto_free char *json = NULL;
    int r = rollbox_file_stat(sandbox, path, false, &json, error);
    json_t *row = r < 0 ? NULL : json_loads(json, 0, NULL);

    if (r < 0)
        return r;
    *ret_entry = entry_of(row, path);
    json_decref(row);
    return *ret_entry ? 0 : -ENOMEM;
}

static int add_level(struct rollbox_sandbox *sandbox, const char *path, int64_t depth, size_t most,
    json_t *entries, struct rollbox_error *error) {
    auto_free char *json = NULL;
    int r = rollbox_file_list(sandbox, path, &json, error);
    json_t *answer = r < 0 ? NULL : json_loads(json, 0, NULL), *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "entries"), i, row) {
        auto_buf struct buf below = BUF_INIT;

        buf_printf(&below, "%s/%s", strcmp(path, "/") ? path : "", text_of(row, "name"));
        if (buf_failed(&below) || json_array_size(entries) >= most)
            break;
        json_array_append_new(entries, entry_of(row, below.data));
        /* One that has gone meanwhile, or may not be read, has no entries. */
        if (depth > 1 && !strcmp(text_of(row, "type"), "directory"))
            (void)add_level(sandbox, below.data, depth - 1, most, entries, NULL);
    }
    json_decref(answer);
    return r;
}

int entries_list(struct rollbox_sandbox *sandbox, const char *path, int64_t depth, size_t most,
    json_t **ret_entries, struct rollbox_error *error) {
    json_t *entries = json_array();
    int r = add_level(
        sandbox, path, MIN(MAX(depth, (int64_t)1), (int64_t)DEPTH_MAX), most, entries, error);

    if (r < 0) {
        json_decref(entries);
        return r;
    }
    *ret_entries = entries;
    return 0;
}
