/* SPDX-License-Identifier: Apache-2.0 */
/* The spare boxes of a profile (spares.c), and the preforked box of a checkpoint (preforked.c). */
#ifndef ROLLBOX_ENGINE_POOL_SPARES_H
#define ROLLBOX_ENGINE_POOL_SPARES_H

#include <stdbool.h>

struct box;
struct checkpoint;
struct profile;

struct box_owner_ops;
extern const struct box_owner_ops spares_ops; /* owner: the profile */

void spares_add(struct box *box); /* its profile owns it from now on */
/* One that is ready, else one that is on its way. The caller owns it. NULL: there is none. */
struct box *spares_take(struct profile *profile, bool layered);
/* Ends them, and those of checkpoints. */
void spares_drop(struct profile *profile);
/* For any owner that keeps a box among the spares of its profile. */
void spares_enter(struct box *box);
void spares_leave(struct box *box);

/* The checkpoint, which has none, owns the box from now on. */
void preforked_set(struct checkpoint *checkpoint, struct box *box);
/* The caller owns it. NULL: there is none for this profile. */
struct box *preforked_take(struct checkpoint *checkpoint, const struct profile *profile);
void preforked_drop(struct checkpoint *checkpoint);

#endif
