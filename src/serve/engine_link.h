/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to an engine, and what belongs to it; engines.h has the model. */
#ifndef ROLLBOX_SERVE_ENGINE_LINK_H
#define ROLLBOX_SERVE_ENGINE_LINK_H

#include <rollbox/rollbox.h>

#include "base/list.h"
#include "serve/keeper.h"

struct engine_slot;

/* A compiled policy. */
struct known_plan {
    struct list node;
    char *text;
    struct rollbox_plan *plan;
};

struct engine_link {
    struct engine_slot *slot;
    struct keeper_engine name; /* the slot's */
    struct rollbox_engine *engine;
    struct list plans; /* struct known_plan */
    unsigned n_plans;
    unsigned references;                    /* also its load */
    uint64_t memory_budget, memory_started; /* bytes: of its runs; budget 0: not known */
};

/* Consumes the engine; one reference. NULL when out of memory. */
struct engine_link *engine_link_new(
    struct engine_slot *slot, const struct keeper_engine *name, struct rollbox_engine *take_engine);
/* Both take NULL. */
struct engine_link *engine_link_ref(struct engine_link *link);
struct engine_link *engine_link_unref(struct engine_link *link);

#endif
