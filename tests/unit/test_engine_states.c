/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept of states that come and go: as many nodes as somebody can name, stands on, or has files in. */
#include "test.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/session.h"

#define ROUNDS 1000

static struct engine engine;
static struct family *family;
static struct node *beginning;

static void begin(void) {
    list_init(&engine.sessions);
    family = family_new(&engine, &beginning);
    ASSERT_TRUE(family);
}

static void end(struct node *base) {
    node_put(base);
    node_put(beginning);
    family_put(family);
}

/* Of the nodes that one lies on, it included. */
static unsigned depth(const struct node *node) {
    unsigned n = 0;

    for (; node; node = node->under)
        n++;
    return n;
}

static struct node *make(struct node *under, struct layer *take_layer) {
    struct node *node = node_new(&engine, family, under, under, take_layer);

    ASSERT_TRUE(node);
    return node;
}

static struct layer *empty_layer(void) {
    struct layer *layer = layer_new(open(test_directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0, 0);

    ASSERT_TRUE(layer);
    return layer;
}

/* A snapshot, a reset to it, and it is dropped. */
TEST(states_that_are_dropped_while_somebody_stands_on_them) {
    begin();
    struct node *base = node_get(beginning);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct node *next = make(base, NULL);

        node_put(base);
        base = next;
        ASSERT_OK(node_drop(base));
        ASSERT_TRUE(depth(base) <= 2);
    }
    end(base);
}

/* Each is dropped when there is one upon it. */
TEST(states_that_are_dropped_under_others) {
    begin();
    struct node *base = node_get(beginning);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct node *next = make(base, NULL);

        if (base != beginning)
            ASSERT_OK(node_drop(base));
        node_put(base);
        base = next;
        ASSERT_TRUE(depth(base) <= 2);
    }
    end(base);
}

TEST(files_of_dropped_states_stay_under_those_that_lie_on_them) {
    struct layer *layers[2] = { NULL, NULL }, *first = empty_layer(), *second = empty_layer();

    begin();
    struct node *low = make(beginning, first), *none = make(low, NULL), *high = make(none, second), *top = make(high, NULL);
    ASSERT_OK(node_drop(low));
    ASSERT_OK(node_drop(none));
    ASSERT_OK(node_drop(high));
    ASSERT_TRUE(top->under == high && high->under == low);
    ASSERT_EQ(node_chain(top, layers, 2), 2);
    ASSERT_TRUE(layers[0] == first && layers[1] == second);
    node_put(low);
    node_put(none);
    node_put(high);
    ASSERT_EQ(node_chain(top, layers, 2), 2);
    ASSERT_TRUE(layers[0] == first && layers[1] == second);
    end(top);
}

/* One that can be named can be compared with. */
TEST(states_that_somebody_may_name_stay_where_they_are) {
    begin();
    struct node *named = make(beginning, NULL), *above = make(named, NULL);
    ASSERT_TRUE(above->under == named);
    ASSERT_OK(node_drop(named));
    ASSERT_TRUE(above->under == beginning);
    node_put(named);
    end(above);
}
