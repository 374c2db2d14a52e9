/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The preforked box of a checkpoint, with its processes in it.
 *
 * It waits for the next fork or reset to the checkpoint, for a moment only: its clocks run on.
 */
#include "base/cleanup.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/pool/spares.h"

#define PREFORK_MS 1000

static void on_ready(void *owner, struct box *box) {
    (void)owner;
    box_expect(box, PREFORK_MS * 1000000ll);
}

static void forget_prefork(void *owner, struct box *box) {
    struct checkpoint *checkpoint = owner;

    list_remove(&box->in_profile);
    checkpoint->preforked = NULL;
}

static void on_failed(void *owner, struct box *box, const struct guest_record *record) {
    (void)record;
    forget_prefork(owner, box);
}

static const struct box_owner_ops prefork_ops = {
    .ready = on_ready, .failed = on_failed, .dead = forget_prefork
};

void preforked_set(struct checkpoint *checkpoint, struct box *box) {
    spares_enter(box);
    box_set_owner(box, &prefork_ops, checkpoint);
    checkpoint->preforked = box;
}

void preforked_drop(struct checkpoint *checkpoint) {
    struct box *box = TAKE_PTR(checkpoint->preforked);

    if (!box)
        return;
    list_remove(&box->in_profile);
    box_set_owner(box, NULL, NULL);
    box_kill(box);
}

struct box *preforked_take(struct checkpoint *checkpoint, const struct profile *profile) {
    struct box *box = checkpoint->preforked;

    if (!box || box->profile != profile)
        return NULL;
    if (box_is_dead(box)) {
        preforked_drop(checkpoint);
        return NULL;
    }
    checkpoint->preforked = NULL;
    spares_leave(box);
    box_set_owner(box, NULL, NULL);
    box->creation.origin = BOX_WAS_PREFORKED;
    return box;
}
