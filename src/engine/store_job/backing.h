/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The origin of layers and images of a sandbox that was woken.
 *
 * A sandbox that hibernates again writes only what has changed since it was woken. Therefore the
 * store keeps the files that it was woken from, as woken/ID, while a layer or an image of them is
 * held, or processes run that were restored from them. Each of these has a reference.
 */
#ifndef ROLLBOX_ENGINE_STORE_JOB_BACKING_H
#define ROLLBOX_ENGINE_STORE_JOB_BACKING_H

#include <stddef.h>

#include "store/hibernated_read.h"

struct engine;

struct backing {
    struct engine *engine;
    unsigned references;
    char id[HIBERNATED_ID_LENGTH + 1];
    int lock; /* of its record.json; -EBADF: it is not in woken/ (yet) */
};

/* Layer or image `index` of it. */
struct backing_ref {
    struct backing *backing; /* a reference; NULL: no origin */
    size_t index;
};

struct backing *backing_put(struct backing *backing); /* takes and returns NULL */
void backing_ref_set(struct backing_ref *backing_ref, struct backing *backing, size_t index);
struct backing_ref backing_ref_of(const struct backing_ref *backing_ref); /* another reference */
void backing_ref_put(struct backing_ref *backing_ref);                    /* which is none then */

#endif
