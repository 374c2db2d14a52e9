/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files are read after the sandbox's last step, because reading changes a file's access time, which
 * a command could see. A file that was rewritten after the recorded step has another digest by
 * then, and so is not mistaken for the recorded version.
 */
#include "cli/recorded_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "record/record.h"

#define MAX_CONTENT (256u << 10)
#define MAX_CONTENTS (64u << 20)
#define MAX_FILES 1024 /* each needs a request, which takes almost a millisecond */

static size_t add_content(json_t *contents, const void *data, size_t length) {
    char digest[RECORD_DIGEST_HEX + 1];

    digest_hex(data, length, digest);
    json_object_set_new(contents, digest, json_stringn_nocheck(length ? data : "", length));
    return length;
}

static size_t add_file(json_t *contents, struct rollbox_sandbox *sandbox, const char *path) {
    auto_free void *data = NULL;
    size_t length;

    return rollbox_file_read(sandbox, path, MAX_CONTENT, &data, &length, NULL) < 0
               ? 0
               : add_content(contents, data, length);
}

/* The content of a link is its target. */
static size_t add_link(json_t *contents, struct rollbox_sandbox *sandbox, const char *path) {
    auto_free char *json = NULL;
    json_t *answer =
        rollbox_file_stat(sandbox, path, false, &json, NULL) < 0 ? NULL : json_loads(json, 0, NULL);
    const json_t *target = json_object_get(answer, "target");
    size_t n = json_is_string(target)
                   ? add_content(contents, json_string_value(target), json_string_length(target))
                   : 0;

    json_decref(answer);
    return n;
}

static size_t add_change(json_t *contents, struct rollbox_sandbox *sandbox, const json_t *change) {
    const char *type = json_string_value(json_object_get(change, "type")),
               *path = json_string_value(json_object_get(change, "path"));

    if (!type || !path || json_integer_value(json_object_get(change, "size")) > MAX_CONTENT)
        return 0;
    return !strcmp(type, "file")      ? add_file(contents, sandbox, path)
           : !strcmp(type, "symlink") ? add_link(contents, sandbox, path)
                                      : 0;
}

json_t *recorded_files_of(struct rollbox_sandbox *sandbox) {
    auto_free char *json = NULL;
    json_t *contents = json_object(), *change;
    size_t i, total = 0, n = 0;

    if (!contents || rollbox_diff(sandbox, NULL, NULL, false, &json, NULL) < 0)
        return contents;
    json_t *answer = json_loads(json, 0, NULL);
    json_array_foreach(json_object_get(answer, "changes"), i,
        change) if (total < MAX_CONTENTS && n++ < MAX_FILES) total +=
        add_change(contents, sandbox, change);
    json_decref(answer);
    return contents;
}
