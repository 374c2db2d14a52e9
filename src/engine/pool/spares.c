/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spare boxes, of one profile each: they save a run or a session the time of set-up.
 *
 * A spare belongs to its profile until a run or a session takes it. One that nobody takes for a
 * while ends, for it holds memory and descriptors.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "engine/box/box.h"
#include "engine/box/disk_upper.h"
#include "engine/box/profile.h"
#include "engine/core/log.h"
#include "engine/pool/spares.h"

#define SPARE_SECONDS 30

void spares_enter(struct box *box) {
    list_add_tail(&box->profile->spares, &box->in_profile);
}

void spares_leave(struct box *box) {
    list_remove(&box->in_profile);
    box_expect_nothing(box);
    if (box->state < BOX_READY)
        box_expect_start(box);
    disk_upper_watch(box);
}

static void on_ready(void *owner, struct box *box) {
    (void)owner;
    box_expect(box, SPARE_SECONDS * 1000000000ll);
}

static void forget_spare(void *owner, struct box *box) {
    struct profile *profile = owner;

    list_remove(&box->in_profile);
    profile->n_spares--;
}

static void on_failed(void *owner, struct box *box, const struct guest_record *record) {
    (void)record;
    forget_spare(owner, box);
}

const struct box_owner_ops spares_ops = {
    .ready = on_ready, .failed = on_failed, .dead = forget_spare
};

void spares_add(struct box *box) {
    spares_enter(box);
    box->profile->n_spares++;
    box_set_owner(box, &spares_ops, box->profile);
}

struct box *spares_take(struct profile *profile, bool layered) {
    struct box *best = NULL;

    list_for_each(node, &profile->spares) {
        struct box *box = container_of(node, struct box, in_profile);

        if (box->ops != &spares_ops || (layered && !box->lower.is_layered))
            continue;
        if (box->state == BOX_READY || (box->state == BOX_SETUP && !best)) {
            best = box;
            if (box->state == BOX_READY)
                break;
        }
    }
    if (!best)
        return NULL;
    profile->n_spares--;
    spares_leave(best);
    box_set_owner(best, NULL, NULL);
    best->creation.origin = BOX_WAS_SPARE;
    return best;
}

void spares_drop(struct profile *profile) {
    static const struct guest_record dropped = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ECANCELED
    };

    while (!list_empty(&profile->spares))
        box_fail(container_of(profile->spares.next, struct box, in_profile), &dropped);
}
