/* SPDX-License-Identifier: Apache-2.0 */
/* Templates of tenants: the list, and sandboxes from them. warm_templates.h has the model;
 * template_setup.c makes them. */
#include "serve/warm_templates.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/engine_link.h"

/* NULL: the answer is given. */
static struct box *find(struct exchange *exchange, const char *name) {
    char box_name[2 * (SERVER_NAME_MAX + 1)];

    (void)snprintf(box_name, sizeof box_name, WARM_TEMPLATE_PREFIX "%.*s", SERVER_NAME_MAX, name);
    struct box *box = box_find(exchange->server, exchange->tenant, box_name);
    if (box && box->is_template)
        return box;
    exchange_problem(exchange, 404, "not_found",
        "there is no template \"%.64s\": it was not made, was deleted, or ended with its engine; "
        "POST /v1/templates makes it again",
        name);
    return NULL;
}

json_t *warm_template_row(const struct box *box) {
    return json_pack("{s:s, s:s, s:O?, s:O?}", "name", box->name + strlen(WARM_TEMPLATE_PREFIX),
        "sandbox", box->name, "labels", box->labels, "policy", box->policy);
}

void handle_templates(struct exchange *exchange) {
    const struct server *server = exchange->server;
    json_t *rows = json_array();

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            const struct box *box = container_of(node, struct box, of_names);

            if (box->tenant == exchange->tenant && box->is_template)
                json_array_append_new(rows, warm_template_row(box));
        }
    exchange_answer_json(exchange, 200, json_pack("{s:o}", "templates", rows));
}

void handle_template(struct exchange *exchange) {
    const struct box *box = find(exchange, exchange->parameters[0]);

    if (box)
        exchange_answer_json(exchange, 200, warm_template_row(box));
}

void handle_template_delete(struct exchange *exchange) {
    struct box *box = find(exchange, exchange->parameters[0]);

    if (!box)
        return;
    box_close(exchange->server, box);
    exchange_answer(exchange, 204, "", NULL);
}

/* ---- sandboxes from them ---- */

/* The rest of a sandbox's creation is the template's. */
static bool has_only_own(struct exchange *exchange) {
    static const char *const own[] = { "template", "name", "labels", "lease", "record", "priority",
        "queue_timeout_ms" };
    const char *key;
    json_t *value;

    json_object_foreach(exchange->body, key, value) {
        bool is_own = false;

        for (size_t i = 0; i < ARRAY_SIZE(own); i++)
            is_own = is_own || !strcmp(own[i], key);
        if (!is_own) {
            exchange_problem(exchange, 400, "invalid_argument",
                "%.64s cannot be given with template: the template's policy and lifetime apply",
                key);
            return false;
        }
    }
    return true;
}

bool warm_template_take(struct exchange *exchange, const char *name) {
    struct box *box = has_only_own(exchange) ? find(exchange, name) : NULL;

    if (!box)
        return false;
    exchange->box = box;
    box->references++;
    exchange->link = engine_link_ref(box->link);
    return true;
}
