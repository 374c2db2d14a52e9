/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/many_ids.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "sys/id_range.h"

_Static_assert(ID_RANGE_COUNT == PLAN_MANY_IDS, "a range has the ids of one sandbox");

int many_ids_make(struct engine *engine, struct rollbox_error *error) {
    struct guest_ids *ids = &engine->launchers.guest_ids;
    char problem[ID_RANGE_TEXT];

    if (ids->has_namespace)
        return 0;
    int r = id_range_find(&ids->range, problem);
    if (r == 0)
        r = id_range_namespace(&ids->range, PLAN_MANY_FIRST, problem);
    if (r < 0)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "users many: %s; without that, use users one", problem);
    ids->user_namespace = r;
    ids->has_namespace = true;
    log_at(LOG_INFO, "engine", NULL, "users many: user ids from %u, group ids from %u",
        ids->range.uid_first, ids->range.gid_first);
    return 0;
}

int many_ids_namespace(const struct engine *engine) {
    return engine->launchers.guest_ids.has_namespace ? engine->launchers.guest_ids.user_namespace
                                                     : -EBADF;
}

const struct id_range *many_ids_range(const struct engine *engine) {
    return &engine->launchers.guest_ids.range;
}

uint32_t many_ids_next_account(struct engine *engine) {
    uint32_t *next = &engine->launchers.guest_ids.next_account;

    return *next = *next % (PLAN_MANY_IDS - 1) + 1;
}

void many_ids_finish(struct engine *engine) {
    if (engine->launchers.guest_ids.has_namespace)
        close_fd(&engine->launchers.guest_ids.user_namespace);
    engine->launchers.guest_ids.has_namespace = false;
}
