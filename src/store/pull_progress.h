/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of an image while they are fetched: what has arrived, what a person sees of it, and
 * what is kept for the next attempt.
 *
 * skopeo writes a layer to a file of a temporary name, and renames it when it is complete. A
 * complete one gets a second name in the store's downloads/ at once. So a pull that is killed loses
 * at the most the layers that were on their way.
 */
#ifndef ROLLBOX_STORE_PULL_PROGRESS_H
#define ROLLBOX_STORE_PULL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

enum pull_state {
    PULL_MISSING,
    PULL_KNOWN,   /* the store has the layer */
    PULL_KEPT,    /* fetched by an earlier attempt */
    PULL_FETCHED, /* by this one */
};

struct pull_layer {
    const char *hex; /* of the layer as it is sent */
    uint64_t bytes;  /* as the manifest says */
    enum pull_state state;
};

struct pull_progress {
    int layout, blobs, downloads; /* borrowed directories */
    struct pull_layer *layers;
    size_t n_layers;
    bool on_terminal; /* a line for each layer on standard error */
    bool as_events;   /* a JSON object a line on standard output */
    size_t drawn_lines;
    int64_t drawn_ns;
    uint64_t drawn_bytes;
};

/* A skopeo_watcher. Ends skopeo if it sends much more than the manifest says. */
int64_t pull_progress_watch(void *context, struct rollbox_error *error);

/* Shows the state of all layers, and leaves a terminal clean after `last`. */
void pull_progress_show(struct pull_progress *progress, bool last);

/* Layers whose state is PULL_FETCHED, and their bytes. */
size_t pull_progress_fetched(const struct pull_progress *progress, uint64_t *ret_bytes);

#endif
