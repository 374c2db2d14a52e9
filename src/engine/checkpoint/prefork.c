/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes with restored processes, made before a fork or a reset asks for them. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/flatten.h"
#include "engine/core/context.h"
#include "engine/files/layer_chain.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/spares.h"

#define DEMAND_NS 10000000 /* less than this apart is one after the other */

/* Errors are reported by the next fork, which meets them again. */
static void make_preforked(struct checkpoint *checkpoint, struct profile *profile,
    struct snapshot *base, struct box_config *config) {
    struct box_layers layers;
    struct box *box;

    if (profile->policy->volumes.n || snapshot_box_layers(base, &layers) < 0)
        return;
    config->layers = &layers;
    config->tracks = checkpoint->tracking.is_from_birth;
    if (profile_new_box(profile, config, NULL, NULL, &box, NULL) == 0)
        preforked_set(checkpoint, box);
    box_layers_done(&layers);
}

/* From the second one on: what is done once is often not done again. With a seed or clocks of its
 * own nothing is to depend on when a box was made. An incremental image is flattened first, if one
 * operation after the other wants it. */
void checkpoint_prefork(
    struct checkpoint *checkpoint, struct profile *profile, struct snapshot *base) {
    struct engine *engine = checkpoint->engine;
    struct box_config config = { 0 };
    struct launcher *zygote;

    if (++checkpoint->demand.n_restored < 2 || checkpoint->preforked ||
        checkpoint->references < 2 || engine->stopping || engine->runs.n_queued ||
        profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) || !box_has_room(engine))
        return;
    if (checkpoint_backing_ref(checkpoint) != checkpoint) {
        if (checkpoint->demand.n_uses >= 2)
            flatten_later(checkpoint, profile);
        return;
    }
    if (checkpoint_zygote(checkpoint, profile, &zygote, NULL) < 0)
        return;
    checkpoint_zygote_config(checkpoint, profile, &config);
    make_preforked(checkpoint, profile, base, &config);
}

/* Of what is taken one after the other, a box that is taken is most likely not ready yet, and the
 * next begins while it gets there; else that would only take its processors. */
bool checkpoint_is_in_demand(struct checkpoint *checkpoint) {
    const int64_t before_ns = checkpoint->demand.taken_ns;

    checkpoint->demand.taken_ns = clock_now_ns();
    return checkpoint->demand.taken_ns - before_ns < DEMAND_NS;
}
