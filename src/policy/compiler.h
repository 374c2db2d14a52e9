/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that compile a plan share. */
#ifndef ROLLBOX_POLICY_COMPILER_H
#define ROLLBOX_POLICY_COMPILER_H

#include "policy/plan.h"

struct compiler {
    const struct policy *policy;
    const struct plan_host *host;
    struct plan plan; /* the head being filled */
    struct buf texts, template_ops, box_ops, rules, rlimits;
    unsigned n_hidden, n_places;
    uint64_t access_read, access_write, access_file;
};

/* A text of the plan: its offset, 0 for NULL. */
uint32_t compiler_text(struct compiler *c, const char *value);

/* `kind` is an enum plan_rule_kind. Rights that the kernel does not know are left out. */
void compiler_rule(struct compiler *c, const char *path, uint64_t access, uint32_t kind);

void compiler_limit(struct compiler *c, unsigned resource, uint64_t value);

/* Is what a grant leads to denied, or below something that is? The policy's text tells only where
 * no link lies between. 1: it is a default, to be left out; 0: it is not; or the error. */
int compiler_denied(const struct compiler *c, const char *key, const struct policy_path *grant,
    const char *real, struct rollbox_error *error);

/* Is `path` the directory `parent`, or below it? */
bool compiler_is_below(const char *path, const char *parent);

/* plan_process.c: the whole of a plan of isolation process but what both levels have (rights,
 * limits, the filter). */
int plan_process(struct compiler *c, struct rollbox_error *error);

#endif
