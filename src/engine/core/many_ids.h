/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ids of an ordinary user's sandboxes with users many.
 *
 * One user namespace, U0, serves all of them, and lasts as long as the engine: in it the caller is
 * 0, and his range of /etc/subuid is PLAN_MANY_FIRST and up, as the ids of root's sandboxes are.
 * Two set-user-id programs write its maps, once. Launchers enter it, and so does each process that
 * handles files of such sandboxes.
 */
#ifndef ROLLBOX_ENGINE_CORE_MANY_IDS_H
#define ROLLBOX_ENGINE_CORE_MANY_IDS_H

#include <rollbox/rollbox.h>

#include <stdbool.h>

#include "policy/plan.h"

struct engine;
struct id_range;

/* Makes the namespace unless it is there. 0, or FEATURE_MISSING with the reason and the mend. */
int many_ids_make(struct engine *engine, struct rollbox_error *error);

/* Borrowed; -EBADF: there is none. */
int many_ids_namespace(const struct engine *engine);

/* Of that namespace. */
const struct id_range *many_ids_range(const struct engine *engine);

/* Whether sandboxes of a plan have ids of it. */
static inline bool many_ids_has(const struct plan *plan) {
    return (plan->flags & (PLAN_MANY_USERS | PLAN_AS_ROOT)) == PLAN_MANY_USERS;
}

/* The number of the id that a new sandbox's counts are charged to, from 1. One of 65,535, so it
 * comes again when the sandbox that had it has ended, as a rule. */
uint32_t many_ids_next_account(struct engine *engine);

void many_ids_finish(struct engine *engine);

#endif
