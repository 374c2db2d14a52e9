/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: the order in which queued runs of several clients start, and the bounds of requests.
 * Clients, policies and runs are made here; no process is started. */
#include "test.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/run/admission.h"

#define MIB (UINT64_C(1) << 20)

static struct engine engine;
static struct client first, second;

static void begin_client(struct client *client) {
    client->engine = &engine;
    list_init(&client->queue);
    list_init(&client->in_turns);
}

static void begin(uint64_t budget) {
    list_init(&engine.runs.turns);
    engine.runs.memory_budget = budget;
    engine.is_private = true;
    engine.files.limit = 1024;
    begin_client(&first);
    begin_client(&second);
}

/* A run of a policy with this memory limit, in the queue of its client. */
struct queued {
    struct policy policy;
    struct profile profile;
    struct run run;
};

static struct run *make(struct queued *queued, struct client *client, uint64_t memory) {
    *queued = (struct queued){ .policy.max_memory_bytes = memory };
    queued->profile.policy = &queued->policy;
    queued->run.engine = &engine;
    queued->run.client = client;
    queued->run.profile = &queued->profile;
    queued->run.terminal.input = -EBADF;
    for (size_t i = 0; i < ARRAY_SIZE(queued->run.fds.stdio); i++)
        queued->run.fds.stdio[i] = -EBADF;
    list_init(&queued->run.in_queue);
    return &queued->run;
}

static struct run *join(struct queued *queued, struct client *client, uint64_t memory) {
    struct run *run = make(queued, client, memory);

    engine.runs.n_queued++;
    admission_join(run);
    return run;
}

/* The run that starts next, started; NULL: none. */
static struct run *start_next(void) {
    struct client *client = admission_next(&engine);
    struct run *run = client ? admission_first(client) : NULL;

    if (run)
        admission_start(run);
    return run;
}

TEST(runs_start_while_memory_is_left) {
    struct queued runs[3];

    begin(100 * MIB);
    struct run *one = join(&runs[0], &first, 60 * MIB), *two = join(&runs[1], &first, 40 * MIB),
               *three = join(&runs[2], &first, 40 * MIB);
    ASSERT_TRUE(start_next() == one);
    ASSERT_TRUE(start_next() == two);
    ASSERT_NULL(start_next());
    ASSERT_EQ(engine.runs.memory_reserved, 100 * MIB);
    admission_end(one);
    ASSERT_TRUE(start_next() == three);
    ASSERT_EQ(engine.runs.n_queued, 0u);
}

TEST(run_larger_than_the_budget_runs_alone) {
    struct queued runs[2];

    begin(100 * MIB);
    struct run *large = join(&runs[0], &first, 500 * MIB);
    ASSERT_TRUE(start_next() == large);
    join(&runs[1], &second, MIB);
    ASSERT_NULL(start_next());
    admission_end(large);
    ASSERT_TRUE(start_next() == &runs[1].run);
}

TEST(client_with_less_memory_is_next) {
    struct queued runs[4];

    begin(0);
    join(&runs[0], &first, 50 * MIB);
    join(&runs[1], &first, 50 * MIB);
    join(&runs[2], &second, 10 * MIB);
    join(&runs[3], &second, 10 * MIB);
    ASSERT_TRUE(start_next() == &runs[0].run); /* equals: the order of the requests */
    ASSERT_TRUE(start_next() == &runs[2].run);
    ASSERT_TRUE(start_next() == &runs[3].run); /* 10 MiB are less than 50 */
    ASSERT_TRUE(start_next() == &runs[1].run);
}

TEST(large_run_is_not_passed_for_ever) {
    struct queued large, small[40];
    unsigned n = 0;

    begin(100 * MIB);
    struct run *running = join(&small[0], &second, 20 * MIB);
    ASSERT_TRUE(start_next() == running);
    join(&large, &first, 90 * MIB);
    for (n = 1; n < ARRAY_SIZE(small); n++) {
        join(&small[n], &second, 20 * MIB);
        struct run *next = start_next();
        if (!next)
            break;
        admission_end(running);
        running = next;
    }
    /* Small runs are held back once others have had the whole budget meanwhile. */
    ASSERT_LT(n, ARRAY_SIZE(small));
    admission_end(running);
    ASSERT_TRUE(start_next() == &large.run);
}

/* In one queue: a client's own runs. */
TEST(large_run_does_not_block_small_ones_of_its_client) {
    struct queued large, small[40];
    unsigned n = 0;

    begin(100 * MIB);
    join(&small[0], &second, 20 * MIB);
    ASSERT_NOT_NULL(start_next());
    join(&large, &first, 90 * MIB);
    for (n = 1; n < ARRAY_SIZE(small); n++) {
        struct run *run = join(&small[n], &first, 20 * MIB);
        struct run *next = start_next();

        if (!next)
            break;
        ASSERT_TRUE(next == run);
        admission_end(run);
    }
    /* They had four times its memory: then it is next. */
    ASSERT_TRUE(n >= 4 && n <= 20);
    admission_end(&small[0].run);
    ASSERT_TRUE(start_next() == &large.run);
}

TEST(higher_priority_is_first_of_a_client) {
    static const int ranks[] = { -1, 0, 1, 0, 1 };
    static const size_t order[] = { 2, 4, 1, 3, 0 };
    struct queued runs[ARRAY_SIZE(ranks)];

    begin(0);
    for (size_t i = 0; i < ARRAY_SIZE(ranks); i++) {
        make(&runs[i], &first, MIB)->admission.rank = ranks[i];
        engine.runs.n_queued++;
        admission_join(&runs[i].run);
    }
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        ASSERT_TRUE(start_next() == &runs[order[i]].run);
}

TEST(low_priority_that_has_waited_keeps_its_place) {
    struct queued low, high;

    begin(0);
    make(&low, &first, MIB)->admission.rank = -1;
    low.run.admission.joined_ns = 1; /* long ago */
    engine.runs.n_queued++;
    admission_join(&low.run);
    make(&high, &first, MIB)->admission.rank = 1;
    engine.runs.n_queued++;
    admission_join(&high.run);
    ASSERT_TRUE(start_next() == &low.run);
}

TEST(sandboxes_with_commands_count_up_to_half_of_the_budget) {
    struct queued runs[4];
    uint64_t one = 0, two = 0;

    begin(100 * MIB);
    admission_session(&engine, &one, 40 * MIB);
    for (size_t i = 0; i < 4; i++)
        join(&runs[i], &first, 30 * MIB);
    ASSERT_TRUE(start_next() == &runs[0].run);
    ASSERT_TRUE(start_next() == &runs[1].run);
    ASSERT_NULL(start_next()); /* 40 and 60 */
    admission_session(&engine, &two, 400 * MIB);
    admission_end(&runs[0].run);
    ASSERT_NULL(start_next()); /* 50 and 30 */
    admission_session(&engine, &one, 0);
    admission_session(&engine, &two, 0);
    ASSERT_TRUE(start_next() == &runs[2].run);
    ASSERT_TRUE(start_next() == &runs[3].run);
    ASSERT_EQ(engine.sessions.memory_reserved, UINT64_C(0));
}

TEST(run_that_moves_keeps_its_reservation) {
    struct queued queued;

    begin(100 * MIB);
    struct run *run = join(&queued, &first, 30 * MIB);
    ASSERT_TRUE(start_next() == run);
    admission_move(run, &second);
    ASSERT_EQ(first.memory_reserved, UINT64_C(0));
    ASSERT_EQ(second.memory_reserved, 30 * MIB);
    admission_end(run);
    admission_end(run); /* nothing more */
    ASSERT_EQ(second.memory_reserved, UINT64_C(0));
    ASSERT_EQ(engine.runs.memory_reserved, UINT64_C(0));
}

TEST(client_that_leaves_the_queue_has_no_turn) {
    struct queued queued;

    begin(0);
    struct run *run = join(&queued, &first, MIB);
    admission_leave(run);
    ASSERT_NULL(admission_next(&engine));
    ASSERT_EQ(first.n_queued, 0u);
}

TEST(descriptors_of_waiting_requests_are_bounded) {
    struct rollbox_error error;
    struct queued held[200];
    size_t n = 0;

    begin(0);
    engine.is_private = false;
    for (; n < ARRAY_SIZE(held); n++) {
        struct run *run = make(&held[n], &first, MIB);

        for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
            run->fds.stdio[i] = (int)i; /* counted, and never used */
        if (admission_hold(run, &error) < 0)
            break;
    }
    ASSERT_EQ(n, (size_t)(1024 / 4 / 3));
    ASSERT_EQ(error.code, ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    admission_handed_over(&held[0].run);
    make(&held[n], &first, MIB)->fds.stdio[0] = 0;
    ASSERT_OK(admission_hold(&held[n].run, &error));
}
