/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces that a plan of either isolation is compiled from. */
#include "policy/compiler.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/ulimits.h"

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

void compiler_limit(struct compiler *c, unsigned resource, uint64_t value, uint64_t most) {
    const struct policy_ulimit *asked = policy_ulimit_of(c->policy, resource);
    uint64_t own = asked ? MAX(most, value) : value;
    struct plan_rlimit l = { .resource = resource, .value = own, .soft = own };

    buf_add(&c->rlimits, &l, sizeof l);
    if (!asked)
        return;
    l.value = MIN(asked->hard, own);
    l.soft = MIN(asked->soft, l.value);
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

/* ---- operations ---- */

void compiler_op(struct compiler *c, struct buf *to, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode, uint16_t grant) {
    struct plan_op op = { .kind = (uint16_t)kind,
        .grant = grant,
        .mode = (uint32_t)mode,
        .path = compiler_text(c, path),
        .source = compiler_text(c, source) };

    buf_add(to, &op, sizeof op);
}

void compiler_template_op(struct compiler *c, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode) {
    compiler_op(c, &c->template_ops, kind, path, source, mode, 0);
}

void compiler_box_op(struct compiler *c, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode) {
    compiler_op(c, &c->box_ops, kind, path, source, mode, 0);
}

/* The layers that the policy's snapshot has for a place. */
static const struct plan_image_place *stored_place(
    const struct compiler *c, const char *path, bool is_file) {
    for (size_t i = 0; c->host->snapshot && i < c->host->snapshot->n_places; i++)
        if (!strcmp(c->host->snapshot->places[i].path, path) &&
            c->host->snapshot->places[i].is_file == is_file)
            return &c->host->snapshot->places[i];
    return NULL;
}

/* The places that a sandbox may write. The number of a place is part of the layers' format, so the
 * order in which places are added must depend only on the policy and the host's files. */
void compiler_place(struct compiler *c, const char *path, const char *base, uint32_t mode,
    uint32_t flags, uint16_t grant) {
    const struct plan_image_place *stored = stored_place(c, path, flags & PLAN_PLACE_FILE);
    struct buf under = BUF_INIT;

    if (stored) {
        buf_add_text(&under, stored->under);
        if (base && !stored->is_file)
            buf_printf(&under, ":%s", base);
        c->texts.failed |= buf_failed(&under);
    }
    struct plan_op op = { .kind = PLAN_OP_PLACE,
        .grant = grant,
        .mode = mode,
        .path = compiler_text(c, path),
        .source = compiler_text(c, stored ? under.data : base),
        .value = c->n_places++ | flags };

    buf_add(&c->box_ops, &op, sizeof op);
    buf_done(&under);
}

void compiler_file_bytes(
    struct compiler *c, const char *path, const void *content, size_t length, uint32_t mode) {
    struct plan_op op = { .kind = PLAN_OP_FILE,
        .mode = mode,
        .path = compiler_text(c, path),
        .source = compiler_bytes(c, content, length),
        .value = length };

    buf_add(&c->template_ops, &op, sizeof op);
}

void compiler_file(struct compiler *c, const char *path, const char *content, uint32_t mode) {
    compiler_file_bytes(c, path, content, strlen(content), mode);
}
