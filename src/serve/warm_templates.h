/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tenants' templates: /v1/templates. (templates.h has another thing, the operator's policies
 * for E2B's clients.)
 *
 * The template NAME of a tenant is its sandbox template.NAME with a snapshot "template", which has
 * the processes of a set-up; they are killed once the snapshot is there. A sandbox of a template is
 * a fork of this snapshot. So quotas, tenants and the end of an engine are those of sandboxes.
 *
 * The set-up is a command, or Python code. After Python code an interpreter waits for a program as
 * in a template of `rollbox template create` (src/cli/template.c): run_code of the Python package
 * sends it one in each fork.
 */
#ifndef ROLLBOX_SERVE_WARM_TEMPLATES_H
#define ROLLBOX_SERVE_WARM_TEMPLATES_H

#include "serve/server.h"

#define WARM_TEMPLATE_PREFIX "template."

#define WARM_TEMPLATE_SNAPSHOT "template"

/* For POST /v1/sandboxes with a member "template": checks the other members, and makes the
 * template's sandbox the exchange's. False: the answer is given. */
bool warm_template_take(struct exchange *exchange, const char *name);

/* What the answers say of a template. */
json_t *warm_template_row(const struct box *box);

void handle_templates(struct exchange *exchange);
void handle_template(struct exchange *exchange);
void handle_template_create(struct exchange *exchange);
void handle_template_delete(struct exchange *exchange);
extern const char *const template_keys[];

#endif
