/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/engine_link.h"

#include <jansson.h>
#include <stdlib.h>

/* 0: it has none, or it is not known. */
static uint64_t budget_of(struct rollbox_engine *engine) {
    char *text = NULL;
    uint64_t budget = 0;

    if (rollbox_engine_status(engine, &text, NULL) >= 0) {
        json_t *status = json_loads(text, 0, NULL);

        budget = (uint64_t)json_integer_value(json_object_get(status, "memory_budget_bytes"));
        json_decref(status);
    }
    free(text);
    return budget;
}

struct engine_link *engine_link_new(struct engine_slot *slot, const struct keeper_engine *name,
    struct rollbox_engine *take_engine) {
    struct engine_link *link = calloc(1, sizeof *link);

    if (!link) {
        rollbox_engine_close(take_engine);
        return NULL;
    }
    list_init(&link->plans);
    link->slot = slot;
    link->name = *name;
    link->engine = take_engine;
    link->references = 1;
    link->memory_budget = budget_of(take_engine);
    return link;
}

struct engine_link *engine_link_ref(struct engine_link *link) {
    if (link)
        link->references++;
    return link;
}

struct engine_link *engine_link_unref(struct engine_link *link) {
    if (!link || --link->references)
        return NULL;
    list_for_each(node, &link->plans) {
        struct known_plan *known = container_of(node, struct known_plan, node);

        list_remove(node);
        free(known->text);
        free(known);
    }
    rollbox_engine_close(link->engine);
    free(link);
    return NULL;
}
