/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of tenants: levels, starts of a day, the token bucket. The clock is the test's. */
#include "test.h"

#include "serve/quota.h"

#define SECOND INT64_C(1000000000)
#define DAY INT64_C(86400)

static struct amounts quotas;
static struct quota_use use;
static struct quota_verdict verdict;

static void begin(void) {
    quotas = quota_unlimited();
}

static struct amounts boxes(uint64_t n, uint64_t memory) {
    struct amounts more = quota_nothing();

    more.of[QUOTA_SANDBOXES] = n;
    more.of[QUOTA_MEMORY] = n * memory;
    more.of[QUOTA_STARTS] = n;
    return more;
}

static bool take(struct amounts more, int64_t now_ns, int64_t day_s) {
    return quota_take(&quotas, &use, &more, now_ns, day_s, false, &verdict);
}

TEST(levels_are_taken_and_given_back) {
    begin();
    quotas.of[QUOTA_SANDBOXES] = 64;
    quotas.of[QUOTA_MEMORY] = 100;
    ASSERT_TRUE(take(boxes(2, 50), 0, 0));
    ASSERT_FALSE(take(boxes(1, 1), 0, 0));
    ASSERT_EQ(verdict.quota, QUOTA_MEMORY);
    ASSERT_EQ(verdict.current, UINT64_C(100));
    ASSERT_EQ(verdict.maximum, UINT64_C(100));
    ASSERT_EQ(verdict.retry_s, INT64_C(1));
    ASSERT_EQ(use.now.of[QUOTA_SANDBOXES], UINT64_C(2)); /* the refused one took nothing */
    struct amounts one = boxes(1, 50);
    quota_give_back(&use, &one);
    ASSERT_TRUE(take(boxes(1, 50), 0, 0));
    ASSERT_EQ(use.refused.of[QUOTA_MEMORY], UINT64_C(1));
}

TEST(fork_counts_all_of_its_clones) {
    begin();
    quotas.of[QUOTA_SANDBOXES] = 64;
    ASSERT_TRUE(take(boxes(1, 0), 0, 0));
    ASSERT_FALSE(take(boxes(64, 0), 0, 0));
    ASSERT_EQ(verdict.retry_s, INT64_C(1));
    ASSERT_TRUE(take(boxes(63, 0), 0, 0));
    ASSERT_FALSE(take(boxes(65, 0), 0, 0)); /* never, however long it waits */
    ASSERT_EQ(verdict.retry_s, INT64_C(-1));
}

TEST(sums_that_overflow_are_refused) {
    struct amounts one = quota_nothing();

    begin();
    quotas.of[QUOTA_MEMORY] = UINT64_MAX - 1;
    one.of[QUOTA_MEMORY] = UINT64_MAX / 2;
    struct amounts many = quota_times(&one, 1000);
    ASSERT_EQ(many.of[QUOTA_MEMORY], UINT64_MAX);
    ASSERT_FALSE(take(many, 0, 0));
}

TEST(starts_are_of_one_day) {
    begin();
    quotas.of[QUOTA_STARTS] = 3;
    ASSERT_TRUE(take(boxes(3, 0), 0, 10 * DAY + 5));
    ASSERT_FALSE(take(boxes(1, 0), 0, 10 * DAY + 100));
    ASSERT_EQ(verdict.quota, QUOTA_STARTS);
    ASSERT_EQ(verdict.retry_s, DAY - 100);
    ASSERT_TRUE(take(boxes(1, 0), 0, 11 * DAY));
}

TEST(rate_fills_a_bucket) {
    begin();
    quotas.of[QUOTA_RATE] = 2000; /* 2 a second */
    quotas.of[QUOTA_BURST] = 4;
    for (int i = 0; i < 4; i++)
        ASSERT_TRUE(take(boxes(1, 0), 0, 0));
    ASSERT_FALSE(take(boxes(1, 0), 0, 0));
    ASSERT_EQ(verdict.quota, QUOTA_RATE);
    ASSERT_EQ(verdict.retry_s, INT64_C(1));
    ASSERT_TRUE(take(boxes(1, 0), SECOND / 2, 0));
    ASSERT_FALSE(take(boxes(1, 0), SECOND / 2, 0));
    /* It never has more than the burst. */
    for (int i = 0; i < 4; i++)
        ASSERT_TRUE(take(boxes(1, 0), 1000 * SECOND, 0));
    ASSERT_FALSE(take(boxes(1, 0), 1000 * SECOND, 0));
}

TEST(rate_tells_how_long_to_wait) {
    begin();
    ASSERT_EQ(quota_rate_wait_ns(&quotas, &use, 0), INT64_C(0));
    quotas.of[QUOTA_RATE] = 2000;
    quotas.of[QUOTA_BURST] = 1;
    ASSERT_EQ(quota_rate_wait_ns(&quotas, &use, 0), INT64_C(0));
    ASSERT_TRUE(take(boxes(1, 0), 0, 0));
    ASSERT_EQ(quota_rate_wait_ns(&quotas, &use, 0), SECOND / 2);
    ASSERT_EQ(quota_rate_wait_ns(&quotas, &use, SECOND / 2), INT64_C(0));
    ASSERT_TRUE(take(boxes(1, 0), SECOND / 2, 0));
}

TEST(rate_is_filled_by_frequent_looks) {
    begin();
    quotas.of[QUOTA_RATE] = 1000;
    quotas.of[QUOTA_BURST] = 1;
    ASSERT_TRUE(take(boxes(1, 0), 0, 0));
    for (int64_t now = 0; now < SECOND; now += 100000) /* 0.1 thousandths each */
        ASSERT_FALSE(take(boxes(1, 0), now, 0));
    ASSERT_TRUE(take(boxes(1, 0), SECOND + 1000000, 0));
}

TEST(fork_larger_than_the_burst_is_paid_for_afterwards) {
    begin();
    quotas.of[QUOTA_RATE] = 10000;
    quotas.of[QUOTA_BURST] = 4;
    ASSERT_TRUE(take(boxes(64, 0), 0, 0));
    ASSERT_FALSE(take(boxes(1, 0), 5 * SECOND, 0)); /* 60 owed at 10 a second */
    ASSERT_TRUE(take(boxes(1, 0), 7 * SECOND, 0));
}

TEST(request_that_waits_takes_its_levels_later) {
    struct amounts more = boxes(1, 60);

    begin();
    quotas.of[QUOTA_MEMORY] = 100;
    ASSERT_TRUE(take(boxes(1, 60), 0, 0));
    ASSERT_TRUE(quota_take(&quotas, &use, &more, 0, 0, true, &verdict));
    ASSERT_EQ(use.now.of[QUOTA_MEMORY], UINT64_C(60));
    ASSERT_FALSE(quota_has_room(&quotas, &use, &more));
    quota_give_back(&use, &more);
    ASSERT_TRUE(quota_has_room(&quotas, &use, &more));
}

TEST(values_are_read_as_users_write_them) {
    uint64_t value = 0;

    ASSERT_OK(quota_parse(QUOTA_MEMORY, "64G", &value));
    ASSERT_EQ(value, UINT64_C(64) << 30);
    ASSERT_OK(quota_parse(QUOTA_CPUS, "8.5", &value));
    ASSERT_EQ(value, UINT64_C(8500));
    ASSERT_OK(quota_parse(QUOTA_SANDBOXES, "none", &value));
    ASSERT_EQ(value, QUOTA_NONE);
    ASSERT_TRUE(quota_parse(QUOTA_SANDBOXES, "-1", &value) < 0);
    ASSERT_TRUE(quota_parse(QUOTA_SANDBOXES, "1x", &value) < 0);
    ASSERT_TRUE(quota_parse(QUOTA_SANDBOXES, "", &value) < 0);
    ASSERT_TRUE(quota_parse(QUOTA_CPUS, "nan", &value) < 0);
    ASSERT_EQ(quota_of_name("memory"), QUOTA_MEMORY);
    ASSERT_EQ(quota_of_name("mem"), QUOTA_N);
}
