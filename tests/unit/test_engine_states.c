/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of snapshots keeps only nodes that a client can name, that a session is based on, or
 * that have files. */
#include "test.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/core/context.h"
#include "engine/files/layer_chain.h"
#include "engine/snapshot/layer.h"

#define ROUNDS 1000

static struct engine engine;
static struct snapshot_tree *tree;
static struct snapshot *beginning;

static void begin(void) {
    list_init(&engine.sessions.all);
    tree = snapshot_tree_new(&engine, &beginning);
    ASSERT_TRUE(tree);
}

static void end(struct snapshot *base) {
    snapshot_put(base);
    snapshot_put(beginning);
    snapshot_tree_put(tree);
}

/* Of the nodes that one lies on, it included. */
static unsigned depth(const struct snapshot *snapshot) {
    unsigned n = 0;

    for (; snapshot; snapshot = snapshot->lower)
        n++;
    return n;
}

static struct snapshot *make(struct snapshot *lower, struct layer *take_layer) {
    struct snapshot *snapshot = snapshot_new(&engine, tree, lower, lower, take_layer);

    ASSERT_TRUE(snapshot);
    return snapshot;
}

static struct layer *empty_layer(void) {
    struct layer *layer =
        layer_new(open(test_directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0, 0);

    ASSERT_TRUE(layer);
    return layer;
}

/* A snapshot, a reset to it, and it is dropped. */
TEST(dropped_snapshots_in_use_stay) {
    begin();
    struct snapshot *base = snapshot_get(beginning);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct snapshot *next = make(base, NULL);

        snapshot_put(base);
        base = next;
        ASSERT_OK(snapshot_drop(base));
        ASSERT_TRUE(depth(base) <= 2);
    }
    end(base);
}

/* Each is dropped when there is one upon it. */
TEST(dropped_lower_snapshots_stay) {
    begin();
    struct snapshot *base = snapshot_get(beginning);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct snapshot *next = make(base, NULL);

        if (base != beginning)
            ASSERT_OK(snapshot_drop(base));
        snapshot_put(base);
        base = next;
        ASSERT_TRUE(depth(base) <= 2);
    }
    end(base);
}

TEST(files_of_dropped_snapshots_stay_below_others) {
    struct layer *layers[2] = { NULL, NULL }, *first = empty_layer(), *second = empty_layer();

    begin();
    struct snapshot *low = make(beginning, first), *none = make(low, NULL),
                    *high = make(none, second), *top = make(high, NULL);
    ASSERT_OK(snapshot_drop(low));
    ASSERT_OK(snapshot_drop(none));
    ASSERT_OK(snapshot_drop(high));
    ASSERT_TRUE(top->lower == high && high->lower == low);
    ASSERT_EQ(snapshot_chain(top, layers, 2), 2);
    ASSERT_TRUE(layers[0] == first && layers[1] == second);
    snapshot_put(low);
    snapshot_put(none);
    snapshot_put(high);
    ASSERT_EQ(snapshot_chain(top, layers, 2), 2);
    ASSERT_TRUE(layers[0] == first && layers[1] == second);
    end(top);
}

/* One that can be named can be compared with. */
TEST(named_snapshots_stay_in_the_tree) {
    begin();
    struct snapshot *named = make(beginning, NULL), *above = make(named, NULL);
    ASSERT_TRUE(above->lower == named);
    ASSERT_OK(snapshot_drop(named));
    ASSERT_TRUE(above->lower == beginning);
    snapshot_put(named);
    end(above);
}
