/* SPDX-License-Identifier: Apache-2.0 */
/* The operator's templates; templates.h has the model. They are read once, at the start, because
 * the server is confined to fewer files afterwards. */
#include "serve/templates.h"

#include <stdio.h>
#include <string.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define FILE_MAX ((size_t)1 << 20)

static json_t *templates; /* policies by names */

static int complain(const char *path, const char *why) {
    fprintf(stderr, "rollbox-serve: --template: %s: %s\n", path, why);
    return 1;
}

int templates_read(const char *text) {
    const char *path = strchr(text, '=');
    auto_free char *name = path ? strndup(text, (size_t)(path - text)) : NULL;
    auto_buf struct buf content = BUF_INIT;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    json_error_t fault;

    if (!name || !*name || !*++path)
        return complain(text, "it is not NAME=FILE, a template's name and the file of its policy");
    int r = fd_read_file(path, FILE_MAX, &content);
    if (r < 0)
        return complain(path, strerror(-r));
    if (rollbox_policy_check(content.data ? content.data : "", content.length, NULL, &error) < 0)
        return complain(path, error.message);
    json_t *policy = json_loadb(content.data, content.length, JSON_REJECT_DUPLICATES, &fault);
    if (!json_is_object(policy)) {
        json_decref(policy);
        return complain(path, "it is not a JSON object");
    }
    if (!templates)
        templates = json_object();
    return json_object_set_new(templates, name, policy) < 0 ? complain(path, "out of memory") : 0;
}

const json_t *templates_find(const char *name) {
    return json_object_get(templates, name);
}
