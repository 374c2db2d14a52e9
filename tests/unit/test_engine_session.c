/* SPDX-License-Identifier: Apache-2.0 */
/* How a session ends by itself: its creation fails, or the engine loses track of an operation. The
 * session is a real one without a box; the classes of its operations are fakes. */
#include "test.h"

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/core/context.h"
#include "engine/session/exec.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_files.h"

static struct engine engine;
static struct policy policy;
static char isolation[] = "{}";
static struct profile profile = {
    .engine = &engine, .number = 1, .policy = &policy, .isolation = isolation
};
static unsigned n_started;

static void fail_at_start(struct op *op) {
    n_started++;
    op_fail_with(op, ROLLBOX_ERR_INTERNAL, 0, "a failure");
}

static void lose_track_at_start(struct op *op) {
    n_started++;
    op_lose_track(op);
}

static const struct op_class create_class = { .verb = VERB_CREATE, .start = fail_at_start };
static const struct op_class pause_class = { .verb = VERB_PAUSE, .start = lose_track_at_start };

static struct session *begin(void) {
    struct list *lists[] = { &engine.server.clients, &engine.runs.all, &engine.sessions.all,
        &engine.copies, &engine.results.all, &engine.outputs.drains, &engine.outputs.streams,
        &engine.runs.turns };
    static const struct op_class *const classes[] = { &create_class, &pause_class };
    struct rollbox_error error;

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.sessions.by_name); i++)
        list_init(&engine.sessions.by_name[i]);
    ASSERT_OK(loop_new(&engine.loop));
    snapshot_set_sessions(&session_files_users);
    op_set_classes(classes, ARRAY_SIZE(classes));
    struct session *session = session_new(&engine, &profile, NULL, "one", NULL, NULL, &error);
    ASSERT_NOT_NULL(session);
    return session;
}

static void on_stop(struct loop_timer *timer) {
    (void)timer;
    loop_stop(engine.loop);
}

/* Runs the deferred calls, and those that they defer. */
static void run_deferred(void) {
    struct loop_timer stop = { 0 };

    ASSERT_OK(loop_timer_set(engine.loop, &stop, 0, on_stop));
    ASSERT_OK(loop_run(engine.loop));
}

/* The caller that failed the operation may use the session until it returns to the loop. */
TEST(failed_create_closes_the_session_from_the_loop) {
    struct session *session = begin();
    struct op *op = op_new(session, VERB_CREATE, NULL, 0);

    ASSERT_NOT_NULL(op);
    op_fail_with(op, ROLLBOX_ERR_INTERNAL, 0, "a failure");
    ASSERT_EQ(engine.sessions.n, 1u);
    ASSERT_TRUE(session->state != SESSION_CLOSING);
    run_deferred();
    ASSERT_EQ(engine.sessions.n, 0u);
}

TEST(name_of_a_failed_create_is_free_at_once) {
    struct session *session = begin();
    struct op *op = op_new(session, VERB_CREATE, NULL, 0);

    ASSERT_NOT_NULL(op);
    ASSERT_TRUE(session_find(&engine, "one") == session);
    op_fail_with(op, ROLLBOX_ERR_INTERNAL, 0, "a failure");
    ASSERT_NULL(session_find(&engine, "one"));
    run_deferred();
}

TEST(operation_after_a_failed_create_never_starts) {
    struct session *session = begin();

    ASSERT_NOT_NULL(op_new(session, VERB_CREATE, NULL, 0));
    ASSERT_NOT_NULL(op_new(session, VERB_PAUSE, NULL, 0));
    session_schedule(session);
    run_deferred();
    ASSERT_EQ(n_started, 1u);
    ASSERT_EQ(engine.sessions.n, 0u);
}

TEST(lost_operation_closes_the_session_from_the_loop) {
    struct session *session = begin();

    ASSERT_NOT_NULL(op_new(session, VERB_PAUSE, NULL, 0));
    session_schedule(session);
    run_deferred();
    ASSERT_EQ(n_started, 1u);
    ASSERT_EQ(engine.sessions.n, 0u);
}

TEST(commands_are_not_sent_while_an_operation_is_under_way) {
    struct session *session = begin();
    struct list waiting;

    list_init(&waiting);
    ASSERT_FALSE(exec_may_send(session));
    list_add_tail(&session->commands.waiting, &waiting);
    ASSERT_TRUE(exec_may_send(session));
    struct op *op = op_new(session, VERB_PAUSE, NULL, 0);
    ASSERT_NOT_NULL(op);
    ASSERT_FALSE(exec_may_send(session));
    op->wait = OP_WAIT_COMMANDS_SENT;
    ASSERT_TRUE(exec_may_send(session));
    list_remove(&waiting);
}
