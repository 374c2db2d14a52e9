/* SPDX-License-Identifier: Apache-2.0 */
/* Layers, and the snapshots that lie on each other. */
#ifndef ROLLBOX_ENGINE_FILES_LAYER_CHAIN_H
#define ROLLBOX_ENGINE_FILES_LAYER_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/list.h"
#include "engine/box/box.h"
#include "engine/store_job/backing.h"

struct checkpoint;
struct snapshot;

/* Immutable files: see GUEST_MAX_LAYERS. */
struct layer {
    unsigned references;
    void (*free)(struct layer *layer); /* called with the last reference */
    struct backing_ref backing_ref;
    struct disk_upper *upper; /* on disk: where; a reference. NULL: it is a tmpfs, or a box's yet */
    int fd;
    uint64_t bytes, entries;
    uint64_t parts;     /* GUEST_PARTS */
    bool in_use_by_box; /* a box has it, too, and keeps it */
};

/* References to layers on disk: a descriptor keeps a tmpfs, but not a directory, from going. */
struct layer_hold {
    struct layer **layers;
    size_t n;
};

/* All nodes of a session and its forks. */
struct snapshot_tree {
    unsigned references;   /* sessions */
    struct list snapshots; /* struct snapshot.in_tree; the first is the beginning, without files of
                              its own */
    unsigned next_name;
};

enum snapshot_purpose {
    SNAPSHOT_INTERNAL, /* on the way to something else, as a diff: users do not see it */
    SNAPSHOT_OF_FORK,  /* kept as long as somebody stands on it */
    SNAPSHOT_ASKED_FOR,
};

struct snapshot {
    struct engine *engine;
    unsigned references; /* of nodes below in `under`, sessions, works; not of the family's list */
    struct list in_tree;
    struct snapshot_tree *tree; /* NULL: dropped, and here only for those above */
    struct snapshot *parent;    /* in the tree that users see; a reference */
    struct snapshot *lower;     /* the state below the layer; a reference; NULL: the plan's files */
    struct layer *layer;        /* NULL: none */
    struct checkpoint *checkpoint; /* NULL: nothing ran, or its files alone are kept; a reference */
    struct layer *compacted;       /* of this node and all under it; NULL: not merged (yet) */
    /* Called when the merge of the chain is over; NULL: none is under way. */
    void (*compacted_hook)(struct engine *engine, struct snapshot *snapshot);
    struct snapshot *compact_onto; /* while merging: what the merged layer is to lie on, a
                                      reference; NULL: it is `merged` */
    bool pinned;                   /* snapshot_tree_gc: somebody stands on it */
    char id[32];
    char *name;          /* or NULL */
    int64_t made_ns;     /* CLOCK_REALTIME */
    uint64_t generation; /* the number of states before it, with dropped ones */
    bool is_live;        /* taken while something ran */
    json_t *net_names;   /* gateway_name_snapshot; NULL: none */
    unsigned n_pins;     /* works that name it: what ran in it stays for them when it is dropped */
    enum snapshot_purpose purpose;
    uint64_t automatic; /* the number of the session whose command's end it was taken at; 0:
                           somebody asked for it */
};

int layer_hold(struct layer_hold *hold, struct layer *const *layers,
    size_t n); /* those of them that are on disk, besides what it holds. 0 or -ENOMEM */
int layer_hold_tree(struct layer_hold *hold, const struct snapshot_tree *tree);
void layer_hold_done(struct layer_hold *hold);
struct layer *layer_put(struct layer *layer);
struct layer *layer_get(struct layer *layer);

/* No file of its family's sandboxes is older: CLOCK_REALTIME. */
int64_t snapshot_since_ns(const struct snapshot *snapshot);
void snapshot_has_since(struct snapshot *snapshot, int64_t since_ns); /* for a prefork, say */
size_t snapshot_chain(struct snapshot *snapshot, struct layer **layers,
    size_t most); /* bottom first; how many there are, perhaps more than most */
void snapshot_usage(
    struct snapshot *snapshot, uint64_t *ret_bytes, uint64_t *ret_entries); /* of its chain */

/* The layers for a box on a snapshot. 0, -E2BIG or -ENOMEM. */
int snapshot_box_layers(struct snapshot *snapshot, struct box_layers *ret_layers);
void box_layers_done(struct box_layers *layers); /* frees layers that no box has taken */

#endif
