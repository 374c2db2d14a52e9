/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of snapshots, copies of layers, and compaction. */
#ifndef ROLLBOX_ENGINE_SNAPSHOT_LAYER_H
#define ROLLBOX_ENGINE_SNAPSHOT_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/inode_numbers.h"
#include "engine/files/layer_chain.h"

struct layer *layer_new(int take_fd, uint64_t bytes, uint64_t entries);
void layer_take_upper(struct layer *layer,
    struct disk_upper *take_upper);                /* it is on disk, and immutable from now on */
bool layer_is_measured(const struct layer *layer); /* else it will be: op_measured */
struct snapshot_tree *snapshot_tree_new(struct engine *engine, struct snapshot **ret_beginning);
struct snapshot_tree *snapshot_tree_put(struct snapshot_tree *tree);
struct snapshot *snapshot_new(struct engine *engine, struct snapshot_tree *tree,
    struct snapshot *parent, struct snapshot *lower, struct layer *take_layer);
struct snapshot *snapshot_get(struct snapshot *snapshot);
struct snapshot *snapshot_put(struct snapshot *snapshot);
struct snapshot *snapshot_find(struct snapshot_tree *tree, const char *id);
int snapshot_drop(struct snapshot *snapshot);
struct snapshot *snapshot_pin(
    struct snapshot *snapshot); /* a reference, and what ran in it stays; of NULL NULL */
struct snapshot *snapshot_unpin(struct snapshot *snapshot); /* NULL */
struct snapshot *snapshot_nearest_owned(struct snapshot *
        snapshot); /* that one, or what it lies on if it is nobody's any more and has nothing of its
                      own: one more of those with each round of states would be kept for nothing */

/* What sessions tell of the snapshots that they use; they are a module above this one. */
struct snapshot_sessions {
    /* A session compares with that state: it is its last commit's. */
    bool (*is_committed)(const struct snapshot *snapshot);
    /* Marks the states of a tree that sessions stand on, or that their operations need. */
    void (*pin)(struct snapshot_tree *tree);
    /* Appends the names of the sessions that stand, for users, on that state, as JSON strings. */
    void (*list)(struct snapshot *snapshot, struct buf *to);
};

void snapshot_set_sessions(const struct snapshot_sessions *sessions); /* once, at the start */

/* Merges a long chain of layers in the background. `done` is called once if that begins. */
void snapshot_compact_later(struct snapshot *snapshot, struct profile *profile,
    void (*done)(struct engine *engine, struct snapshot *snapshot));
bool snapshot_is_compacting(const struct snapshot *snapshot);

/* The description of a snapshot for users. */
struct snapshot_facts {
    const char *id, *name, *parent; /* name, parent: or NULL */
    uint64_t bytes, files;          /* that its parent has not */
    int64_t made_ns;
    bool was_live, is_automatic;
    const char *kind; /* what becoming it takes: "files" alone; "live": its processes from their
                         image; "warm": they are held ready; "asleep": it is in the store */
    unsigned processes;
    uint64_t memory_bytes, disk_bytes; /* disk: of one that sleeps */
};

void snapshot_facts(struct snapshot *snapshot, struct snapshot_facts *ret_facts);
void snapshot_facts_text(
    const struct snapshot_facts *facts, struct buf *to); /* members of a JSON object */
struct snapshot *snapshot_nearest_visible(
    struct snapshot *snapshot); /* itself, or the nearest before it that users know of */
void snapshot_tree_gc(
    struct snapshot_tree *tree); /* forgets states that nobody asked for and nothing stands on */
void snapshot_tree_text(struct snapshot_tree *tree, struct buf *to);
typedef void (*copy_done)(void *data, struct layer *take_layer, int error_number);
int copy_start(struct profile *profile, struct layer *const *layers, size_t n,
    const struct inode_numbers *numbers, copy_done done, void *data);
void copy_forget(struct engine *engine, const void *data);
int copy_empty(struct profile *profile, uint64_t bytes, uint64_t entries, copy_done done,
    void *data);                      /* a new layer with nothing in it */
void layer_look(struct layer *layer); /* it was filled */

#endif
