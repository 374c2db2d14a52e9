/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces that a plan of either isolation is compiled from. */
#include "policy/compiler.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

uint32_t compiler_text(struct compiler *c, const char *value) {
    size_t at = sizeof(struct plan) + c->texts.length;

    if (!value)
        return 0;
    buf_add(&c->texts, value, strlen(value) + 1);
    return (uint32_t)at;
}

uint32_t compiler_bytes(struct compiler *c, const void *data, size_t length) {
    size_t at = sizeof(struct plan) + c->texts.length;

    buf_add(&c->texts, data, length);
    return (uint32_t)at;
}

void compiler_rule(struct compiler *c, const char *path, uint64_t access, uint32_t kind) {
    struct plan_rule r = {
        .access = access & c->plan.landlock_fs, .path = compiler_text(c, path), .kind = kind
    };

    if (r.access)
        buf_add(&c->rules, &r, sizeof r);
}

void compiler_limit(struct compiler *c, unsigned resource, uint64_t value) {
    struct plan_rlimit l = { .resource = resource, .value = value };

    buf_add(&c->rlimits, &l, sizeof l);
}

bool compiler_is_below(const char *path, const char *parent) {
    size_t n = strlen(parent);

    return !strncmp(path, parent, n) && (path[n] == '/' || path[n] == '\0' || !strcmp(parent, "/"));
}

int compiler_denied(const struct compiler *c, const char *key, const struct policy_path *grant,
    const char *real, struct rollbox_error *error) {
    const struct policy_paths *list = &c->policy->fs_denied;

    for (size_t i = 0; i < list->n; i++) {
        const char *path = list->items[i].path,
                   *denied = c->host->denied[i].real ? c->host->denied[i].real : path;

        if (!compiler_is_below(real, denied))
            continue;
        if (grant->optional)
            return 1;
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "%s: %s: leads to %s, and %s is denied%s; grant another path or %s", key, grant->path,
            real, path, list->items[i].optional ? " by default" : " (fs_denied)",
            list->items[i].optional ? "name that one in a list of grants, too" : "deny less");
    }
    return 0;
}
