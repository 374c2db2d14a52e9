/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/trees: forks of sandboxes as trees (family.h), with the snapshots from which they are. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/engine_link.h"
#include "serve/family.h"

void handle_trees(struct exchange *exchange) {
    exchange_answer_json(exchange, 200, json_pack("{s:o}", "trees", family_list(exchange->tenant)));
}

/* `snapshots` is consumed; NULL: no sandbox of the tree lives. */
static void answer(struct exchange *exchange, json_t *snapshots) {
    const json_t *nodes = exchange->data;

    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:O, s:o}", "id", exchange->parameters[0], "nodes", nodes, "snapshots",
            snapshots ? snapshots : json_array()));
}

/* The engine's tree of one sandbox has the snapshots of all of its family. */
static void on_tree(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;
    const char *text = rollbox_wait(run, 0, &result) < 0 ? NULL : rollbox_call_json(run);
    json_t *tree = text ? json_loads(text, 0, NULL) : NULL;

    if (tree)
        box_rename(exchange->server, exchange->tenant, tree);
    json_t *snapshots = json_incref(json_object_get(tree, "snapshots"));
    json_decref(tree);
    answer(exchange, snapshots);
}

static void free_nodes(void *nodes) {
    json_decref(nodes);
}

static struct box *living(struct exchange *exchange, const json_t *nodes) {
    const json_t *node;
    size_t i;

    json_array_foreach(nodes, i, node) {
        const char *name = json_string_value(json_object_get(node, "sandbox"));

        if (json_is_null(json_object_get(node, "ended")) && name)
            return box_find(exchange->server, exchange->tenant, name);
    }
    return NULL;
}

void handle_tree(struct exchange *exchange) {
    const char *id = exchange->parameters[0];
    struct box *box = box_find(exchange->server, exchange->tenant, id);
    char own[17];

    /* A sandbox's name is one for its tree. */
    if (box && family_of(box, own)) {
        free(exchange->parameters[0]);
        id = exchange->parameters[0] = strdup(own);
    }
    if (!id) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    json_t *nodes = family_nodes(exchange->tenant, id);
    if (!nodes) {
        exchange_problem(exchange, 404, "not_found",
            "there is no tree \"%.64s\": a sandbox has one from its first fork on", id);
        return;
    }
    exchange->data = nodes;
    exchange->free_data = free_nodes;
    box = living(exchange, nodes);
    if (!box) {
        answer(exchange, NULL);
        return;
    }
    exchange->box = box;
    box->references++;
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_TREE,
        .sandbox = rollbox_sandbox_name(box->handle),
        .callback = on_tree,
        .userdata = exchange };
    if (rollbox_call_start(box->link->engine, &call, &exchange->run, NULL) < 0)
        answer(exchange, NULL);
}
