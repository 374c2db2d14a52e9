/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files that compile a plan. */
#ifndef ROLLBOX_POLICY_COMPILER_H
#define ROLLBOX_POLICY_COMPILER_H

#include "policy/plan.h"

#define READ_ONLY (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define MASK (READ_ONLY | MOUNT_ATTR_NOEXEC)

struct compiler {
    const struct policy *policy;
    const struct plan_host *host;
    struct plan plan; /* the head being filled */
    struct buf texts, template_ops, box_ops, rules, rlimits, net_ports;
    unsigned n_hidden, n_places;
    uint64_t access_read, access_write, access_file;
};

/* A text of the plan: its offset, 0 for NULL. */
uint32_t compiler_text(struct compiler *c, const char *value);
/* The same for bytes of any value. */
uint32_t compiler_bytes(struct compiler *c, const void *data, size_t length);

/* `kind` is an enum plan_rule_kind. Rights that the kernel does not know are left out. */
void compiler_rule(struct compiler *c, const char *path, uint64_t access, uint32_t kind);

/* A limit of the sandbox's own: `value`, or with a limit of the policy for this resource at most
 * `most`, and the policy's below that. */
void compiler_limit(struct compiler *c, unsigned resource, uint64_t value, uint64_t most);

/* Whether the target of a grant is denied, or lies below a denied path. The policy's text decides
 * this only if no link lies between. 1: the grant is a default and is left out; 0: it is not
 * denied; otherwise the error. */
int compiler_denied(const struct compiler *c, const char *key, const struct policy_path *grant,
    const char *real, struct rollbox_error *error);

/* Whether `path` is the directory `parent` or lies below it. */
bool compiler_is_below(const char *path, const char *parent);

/* An operation of the template or of each sandbox; `grant` of plan_grant(), or 0. */
void compiler_op(struct compiler *c, struct buf *to, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode, uint16_t grant);
void compiler_template_op(struct compiler *c, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode);
void compiler_box_op(struct compiler *c, enum plan_op_kind kind, const char *path,
    const char *source, uint64_t mode);
/* A place that a sandbox may write. */
void compiler_place(struct compiler *c, const char *path, const char *base, uint32_t mode,
    uint32_t flags, uint16_t grant);
/* A file of the template. */
void compiler_file(struct compiler *c, const char *path, const char *content, uint32_t mode);
void compiler_file_bytes(
    struct compiler *c, const char *path, const void *content, size_t length, uint32_t mode);

/* plan_grants.c: the paths that the policy grants or denies. */
int plan_grants(struct compiler *c, struct rollbox_error *error);

/* plan_network.c: the ports of net "allow", and how connections get to the gateway. */
int plan_network(struct compiler *c, struct rollbox_error *error);

/* plan_process.c: fills in the parts of a plan that isolation process does not share with
 * namespaces (all but rights, limits and the filter). */
int plan_process(struct compiler *c, struct rollbox_error *error);

#endif
