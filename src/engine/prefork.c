/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes with restored processes, made before a fork or a reset asks for them. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/flatten.h"
#include "engine/session.h"

#define DEMAND_NS 10000000 /* less than this apart is one after the other */

/* From the second one on: what is done once is often not done again. With a seed or clocks of its
 * own nothing is to depend on when a box was made. An addition is put together first, where one
 * work after the other wants it. */
void checkpoint_prefork(
    struct checkpoint *checkpoint, struct profile *profile, struct snapshot *base) {
    struct engine *engine = checkpoint->engine;
    struct launcher *zygote;
    struct rollbox_error error;
    struct box *box;

    if (++checkpoint->n_restored < 2 || checkpoint->preforked || checkpoint->references < 2 ||
        engine->stopping || engine->n_queued || profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) ||
        !box_has_room(engine))
        return;
    if (checkpoint_backing_ref(checkpoint) != checkpoint) {
        if (checkpoint->n_uses >= 2)
            flatten_later(checkpoint, profile);
        return;
    }
    /* What goes wrong the next one will meet and tell. */
    if (checkpoint_zygote(checkpoint, profile, &zygote, &error) == 0 &&
        box_new(profile,
            &(struct box_options){ .base = base, .zygote = zygote, .notes = checkpoint->notes },
            &box, &error) == 0)
        box_set_preforked(box, checkpoint);
}

/* Of what is taken one after the other, a box that is taken is most likely not ready yet, and the
 * next begins while it gets there; else that would only take its processors. */
bool checkpoint_is_in_demand(struct checkpoint *checkpoint) {
    const int64_t before_ns = checkpoint->taken_ns;

    checkpoint->taken_ns = clock_now_ns();
    return checkpoint->taken_ns - before_ns < DEMAND_NS;
}

void checkpoint_load_box(
    struct checkpoint *checkpoint, struct profile *profile, struct snapshot *base) {
    struct box *box;

    /* What goes wrong a holder will meet and tell. */
    if (checkpoint->preforked || !box_has_room(checkpoint->engine) ||
        box_new(profile,
            &(struct box_options){ .base = base, .loads = checkpoint, .notes = checkpoint->notes },
            &box, NULL) < 0)
        return;
    close_fd(&checkpoint->progress); /* it has the other copy */
    box_set_preforked(box, checkpoint);
}
