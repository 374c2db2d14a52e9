/* SPDX-License-Identifier: Apache-2.0 */
/* The fair queue between tenants. Tenants, requests, room and time are the test's. */
#include "test.h"

#include "base/cleanup.h"
#include "serve/fair_queue.h"

static struct fair_queue queue;
static struct fair_tenant one, two;
static uint64_t room;
static int64_t now;

static bool fits(const struct fair_item *item, void *data) {
    (void)data;
    return item->size <= room;
}

static void begin(void) {
    fair_queue_init(&queue);
    fair_tenant_init(&one);
    fair_tenant_init(&two);
    room = 100;
}

static struct fair_item *add(struct fair_tenant *tenant, struct fair_item *item, uint64_t size) {
    fair_item_init(item);
    item->size = size;
    item->since_ns = now;
    fair_queue_add(&queue, tenant, item);
    return item;
}

static struct fair_item *next(void) {
    return fair_queue_next(&queue, now, fits, NULL);
}

/* How many of the next n starts are of the tenant. */
static unsigned share(const struct fair_tenant *tenant, unsigned n) {
    unsigned found = 0;

    while (n--)
        found += next()->tenant == tenant;
    return found;
}

TEST(tenant_that_floods_delays_the_other_by_one_start) {
    struct fair_item many[1000], single;

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        add(&one, &many[i], 1);
    for (int i = 0; i < 500; i++)
        ASSERT_TRUE(next()->tenant == &one);
    add(&two, &single, 1);
    struct fair_item *first = next();
    ASSERT_TRUE(first == &single || next() == &single);
}

TEST(tenants_get_equal_turns) {
    struct fair_item a[200], b[100];

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(a); i++)
        add(&one, &a[i], 1);
    for (size_t i = 0; i < ARRAY_SIZE(b); i++)
        add(&two, &b[i], 1);
    ASSERT_EQ(share(&two, 100), 50u);
}

TEST(weights_are_shares) {
    struct fair_item a[200], b[200];

    begin();
    two.weight = 3;
    for (size_t i = 0; i < ARRAY_SIZE(a); i++) {
        add(&one, &a[i], 1);
        add(&two, &b[i], 1);
    }
    ASSERT_EQ(share(&two, 100), 75u);
}

TEST(costly_requests_get_fewer_turns) {
    struct fair_item a[200], b[200];

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(a); i++) {
        add(&one, &a[i], 1)->cost = 4;
        add(&two, &b[i], 1);
    }
    ASSERT_EQ(share(&two, 100), 80u);
}

TEST(absence_gives_no_credit) {
    struct fair_item a[300], b[100];

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(a); i++)
        add(&one, &a[i], 1);
    ASSERT_EQ(share(&one, 200), 200u);
    for (size_t i = 0; i < ARRAY_SIZE(b); i++)
        add(&two, &b[i], 1);
    unsigned n = share(&two, 20);
    ASSERT_TRUE(n >= 10 && n <= 11);
}

TEST(higher_priority_is_first_and_equals_keep_their_order) {
    struct fair_item items[4];
    static const enum fair_priority order[] = { FAIR_LOW, FAIR_NORMAL, FAIR_HIGH, FAIR_NORMAL };

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(items); i++) {
        fair_item_init(&items[i]);
        items[i].priority = order[i];
        fair_queue_add(&queue, &one, &items[i]);
    }
    ASSERT_TRUE(next() == &items[2]);
    ASSERT_TRUE(next() == &items[1]);
    ASSERT_TRUE(next() == &items[3]);
    ASSERT_TRUE(next() == &items[0]);
    ASSERT_NULL(next());
}

TEST(low_priority_is_started_some_time) {
    struct fair_item low, high[50];
    bool started = false;

    begin();
    fair_item_init(&low);
    low.priority = FAIR_LOW;
    fair_queue_add(&queue, &one, &low);
    for (size_t i = 0; i < ARRAY_SIZE(high) && !started; i++) {
        now += 1000000000;
        fair_item_init(&high[i]);
        high[i].priority = FAIR_HIGH;
        high[i].since_ns = now;
        fair_queue_add(&queue, &one, &high[i]);
        started = next() == &low;
    }
    ASSERT_TRUE(started);
}

TEST(priority_is_of_one_tenant) {
    struct fair_item high[10], low;

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(high); i++) {
        fair_item_init(&high[i]);
        high[i].priority = FAIR_HIGH;
        fair_queue_add(&queue, &one, &high[i]);
    }
    fair_item_init(&low);
    low.priority = FAIR_LOW;
    fair_queue_add(&queue, &two, &low);
    ASSERT_TRUE(next() == &low || next() == &low);
}

TEST(large_request_does_not_block_small_ones) {
    struct fair_item large, small, other;

    begin();
    room = 50;
    add(&one, &large, 90);
    add(&one, &small, 10);
    add(&two, &other, 10);
    ASSERT_TRUE(next() != &large);
    ASSERT_TRUE(next() != &large);
    ASSERT_NULL(next());
    room = 90;
    ASSERT_TRUE(next() == &large);
}

TEST(large_request_is_not_passed_for_ever) {
    struct fair_item large, small[100];
    size_t n = 0;

    begin();
    add(&one, &large, 90);
    for (room = 20; n < ARRAY_SIZE(small); n++) {
        add(n % 2 ? &one : &two, &small[n], 20);
        if (!next())
            break;
    }
    /* 4 times 90 of room were given to others, and nothing more. */
    ASSERT_TRUE(n >= 18 && n <= 19);
    room = 90;
    ASSERT_TRUE(next() == &large);
    ASSERT_NOT_NULL(next());
}

TEST(request_that_leaves_is_not_started) {
    struct fair_item a, b;

    begin();
    add(&one, &a, 1);
    add(&one, &b, 1);
    fair_queue_leave(&queue, &a);
    fair_queue_leave(&queue, &a); /* nothing more */
    ASSERT_TRUE(next() == &b);
    ASSERT_NULL(next());
    ASSERT_EQ(queue.n, 0u);
}
