/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers that a snapshot stands on, and references to them.
 *
 * These functions only read snapshots and count references, so that files below the snapshot tree
 * can use them: a sandbox on a snapshot is made from its chain of layers.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "engine/core/log.h"
#include "engine/files/layer_chain.h"

struct layer *layer_get(struct layer *layer) {
    layer->references++;
    return layer;
}

struct layer *layer_put(struct layer *layer) {
    if (layer && !--layer->references)
        layer->free(layer);
    return NULL;
}

int layer_hold(struct layer_hold *hold, struct layer *const *layers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!layers[i] || !layers[i]->upper)
            continue;
        struct layer **more = realloc(hold->layers, (hold->n + 1) * sizeof(struct layer *));
        if (!more)
            return -ENOMEM;
        hold->layers = more;
        hold->layers[hold->n++] = layer_get(layers[i]);
    }
    return 0;
}

int layer_hold_tree(struct layer_hold *hold, const struct snapshot_tree *tree) {
    int r = 0;

    /* Dropped states may lie below others. */
    list_for_each(at, &tree->snapshots)
        for (const struct snapshot *i = container_of(at, struct snapshot, in_tree); r == 0 && i;
             i = i->lower && !i->lower->tree ? i->lower : NULL)
            r = layer_hold(hold, (struct layer *const[]){ i->layer, i->compacted }, 2);
    return r;
}

void layer_hold_done(struct layer_hold *hold) {
    for (size_t i = 0; i < hold->n; i++)
        layer_put(hold->layers[i]);
    free(hold->layers);
    *hold = (struct layer_hold){ 0 };
}

static struct snapshot *beginning_of(const struct snapshot *snapshot) {
    while (snapshot->parent)
        snapshot = snapshot->parent;
    return (struct snapshot *)(uintptr_t)snapshot;
}

int64_t snapshot_since_ns(const struct snapshot *snapshot) {
    return beginning_of(snapshot)->made_ns;
}

void snapshot_has_since(struct snapshot *snapshot, int64_t since_ns) {
    struct snapshot *beginning = beginning_of(snapshot);

    beginning->made_ns = MIN(beginning->made_ns, since_ns);
}

size_t snapshot_chain(struct snapshot *snapshot, struct layer **layers, size_t most) {
    size_t n = 0, at = 0;

    for (struct snapshot *i = snapshot; i; i = i->compacted ? NULL : i->lower)
        n += i->compacted || i->layer;
    for (struct snapshot *i = snapshot; i; i = i->compacted ? NULL : i->lower)
        if (i->compacted || i->layer) {
            if (n - 1 - at < most)
                layers[n - 1 - at] = i->compacted ? i->compacted : i->layer;
            at++;
        }
    return n;
}

void snapshot_usage(struct snapshot *snapshot, uint64_t *ret_bytes, uint64_t *ret_entries) {
    *ret_bytes = *ret_entries = 0;
    for (struct snapshot *i = snapshot; i; i = i->compacted ? NULL : i->lower) {
        const struct layer *layer = i->compacted ? i->compacted : i->layer;

        *ret_bytes += layer ? layer->bytes : 0;
        *ret_entries += layer ? layer->entries : 0;
    }
}

static void release_hold(void *held) {
    layer_hold_done(held);
    free(held);
}

int snapshot_box_layers(struct snapshot *snapshot, struct box_layers *ret_layers) {
    struct layer *layers[GUEST_MAX_LAYERS];
    struct layer_hold hold = { 0 };
    const size_t n = snapshot_chain(snapshot, layers, GUEST_MAX_LAYERS);

    if (n > GUEST_MAX_LAYERS)
        return -E2BIG;
    *ret_layers = (struct box_layers){ .n = n,
        .since_ns = snapshot_since_ns(snapshot),
        .generation = snapshot->generation,
        .release = release_hold };
    snapshot_usage(snapshot, &ret_layers->bytes, &ret_layers->entries);
    for (size_t i = 0; i < n; i++) {
        ret_layers->fds[i] = layers[i]->fd;
        ret_layers->parts[i] = layers[i]->parts;
        ret_layers->uppers[i] = layers[i]->upper;
    }
    int r = layer_hold(&hold, layers, n);
    struct layer_hold *held = r == 0 && hold.n ? malloc(sizeof *held) : NULL;
    if (r < 0 || (hold.n && !held)) {
        layer_hold_done(&hold);
        return -ENOMEM;
    }
    if (held)
        *held = hold;
    ret_layers->held = held;
    return 0;
}

void box_layers_done(struct box_layers *layers) {
    if (layers->held)
        layers->release(TAKE_PTR(layers->held));
}
