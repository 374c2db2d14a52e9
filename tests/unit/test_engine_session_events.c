/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a session calls its observers, and what they may delay. The session is a real
 * one without a box; the observers and the client are fakes. */
#include "test.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/sender.h"
#include "engine/run/run.h"
#include "engine/session/exec.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_files.h"
#include "engine/session/session_events.h"

#define MAX_TOLD 16

static struct engine engine;
static struct policy policy;
static char isolation[] = "{}";
static struct profile profile = {
    .engine = &engine, .number = 1, .policy = &policy, .isolation = isolation
};
static struct client client;
static int client_end = -EBADF;

/* The calls of the fakes, in their order. */
static struct {
    const char *observer, *event;
    bool has_reply; /* the client could read something by then */
} told[MAX_TOLD];
static unsigned n_told;

struct fake {
    struct session_observer observer;
    const char *name;
    enum observer_answer closed_answer;
};

static bool client_has_reply(void) {
    struct pollfd readable = { .fd = client_end, .events = POLLIN };

    return poll(&readable, 1, 0) == 1;
}

static void tell(struct session_observer *observer, const char *event) {
    ASSERT_LT(n_told, (unsigned)MAX_TOLD);
    told[n_told].observer = container_of(observer, struct fake, observer)->name;
    told[n_told].event = event;
    told[n_told++].has_reply = client_has_reply();
}

static void command_started(struct session_observer *observer, struct run *run) {
    (void)run;
    tell(observer, "command started");
}

static void command_ended(struct session_observer *observer, struct run *run) {
    (void)run;
    tell(observer, "command ended");
}

static void command_settled(
    struct session_observer *observer, struct session *session, bool has_run) {
    (void)session;
    tell(observer, has_run ? "command settled" : "command not run");
}

static void op_ended(
    struct session_observer *observer, struct op *op, const struct rollbox_error *error) {
    (void)op;
    tell(observer, error ? "operation failed" : "operation ended");
}

static void closing(struct session_observer *observer) {
    tell(observer, "closing");
}

static enum observer_answer closed(struct session_observer *observer, bool is_waited_for) {
    tell(observer, is_waited_for ? "closed, waited for" : "closed");
    return container_of(observer, struct fake, observer)->closed_answer;
}

static void release(struct session_observer *observer) {
    tell(observer, "release");
}

static const struct session_observer_ops fake_ops = {
    .command_started = command_started,
    .command_ended = command_ended,
    .command_settled = command_settled,
    .op_ended = op_ended,
    .closing = closing,
    .closed = closed,
    .release = release,
};

/* Wants nothing. */
static const struct session_observer_ops empty_ops;

static struct session *begin(void) {
    struct list *lists[] = { &engine.server.clients, &engine.runs.all, &engine.sessions.all,
        &engine.copies, &engine.results.all, &engine.outputs.drains, &engine.outputs.streams,
        &engine.runs.turns, &client.runs, &client.sessions, &client.queue, &client.in_turns };
    static const struct op_class *const classes[] = { &op_close_class, &op_pause_class };
    struct rollbox_error error;
    int ends[2];

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.sessions.by_name); i++)
        list_init(&engine.sessions.by_name[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.results.by_operation); i++)
        list_init(&engine.results.by_operation[i]);
    ASSERT_OK(loop_new(&engine.loop));
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    client.engine = &engine;
    client.fd = client.source.fd = ends[0];
    client_end = ends[1];
    sender_init(&client.sender, engine.loop, &client.source, NULL);
    snapshot_set_sessions(&session_files_users);
    op_set_classes(classes, ARRAY_SIZE(classes));
    struct session *session =
        session_new(&engine, &profile, &client, "observed", NULL, NULL, &error);
    ASSERT_NOT_NULL(session);
    return session;
}

static void expect(unsigned i, const char *observer, const char *event) {
    ASSERT_LT(i, n_told);
    ASSERT_STR_EQ(told[i].observer, observer);
    ASSERT_STR_EQ(told[i].event, event);
}

static void on_stop(struct loop_timer *timer) {
    (void)timer;
    loop_stop(engine.loop);
}

/* What is deferred now, and what that defers. */
static void run_deferred(void) {
    struct loop_timer stop = { 0 };

    ASSERT_OK(loop_timer_set(engine.loop, &stop, 0, on_stop));
    ASSERT_OK(loop_run(engine.loop));
}

static struct run *start_command(struct session *session) {
    struct run *run = run_new(&engine);

    ASSERT_NOT_NULL(run);
    run->session = session;
    run->profile = &profile;
    run->client = &client;
    list_add_tail(&client.runs, &run->of_client);
    exec_enter(run);
    return run;
}

TEST(observers_are_called_in_the_order_of_the_list) {
    struct session *session = begin();
    struct fake second = { .name = "second" }, third = { .name = "third" },
                first = { .name = "first" };
    struct session_observer nothing;

    session_observe(session, &second.observer, &fake_ops, false);
    session_observe(session, &nothing, &empty_ops, false);
    session_observe(session, &third.observer, &fake_ops, false);
    session_observe(session, &first.observer, &fake_ops, true);
    session_events_closing(session);
    ASSERT_EQ(n_told, 3u);
    expect(0, "first", "closing");
    expect(1, "second", "closing");
    expect(2, "third", "closing");
}

TEST(end_of_a_command_is_observed_before_its_result_is_sent) {
    struct session *session = begin();
    struct fake fake = { .name = "fake" };

    session_observe(session, &fake.observer, &fake_ops, false);
    struct run *run = start_command(session);
    expect(0, "fake", "command started");
    list_remove(&run->in_queue);
    run->end.outcome = ROLLBOX_OUTCOME_EXIT;
    run_finish(run);
    ASSERT_EQ(n_told, 3u);
    expect(1, "fake", "command ended");
    ASSERT_FALSE(told[1].has_reply);
    expect(2, "fake", "command settled");
    ASSERT_TRUE(told[2].has_reply);
}

TEST(command_that_failed_to_start_has_not_run) {
    struct session *session = begin();
    struct fake fake = { .name = "fake" };

    session_observe(session, &fake.observer, &fake_ops, false);
    run_fail(start_command(session), ROLLBOX_ERR_INTERNAL, EIO, "run", "a failure");
    ASSERT_EQ(n_told, 3u);
    expect(1, "fake", "command ended");
    expect(2, "fake", "command not run");
}

TEST(failure_of_an_operation_is_observed_before_its_reply) {
    struct session *session = begin();
    struct fake fake = { .name = "fake" };

    session_observe(session, &fake.observer, &fake_ops, false);
    struct op *op = op_new(session, VERB_PAUSE, &client, 1);
    ASSERT_NOT_NULL(op);
    op_fail_with(op, ROLLBOX_ERR_INTERNAL, EIO, "a failure");
    ASSERT_EQ(n_told, 1u);
    expect(0, "fake", "operation failed");
    ASSERT_FALSE(told[0].has_reply);
    ASSERT_TRUE(client_has_reply());
}

TEST(close_is_answered_once_no_observer_delays_it) {
    struct session *session = begin();
    struct fake slow = { .name = "slow", .closed_answer = OBSERVER_WAIT },
                fast = { .name = "fast" };

    session_observe(session, &slow.observer, &fake_ops, false);
    session_observe(session, &fast.observer, &fake_ops, false);
    ASSERT_NOT_NULL(op_new(session, VERB_CLOSE, &client, 1));
    session_close(session);
    run_deferred();
    ASSERT_EQ(n_told, 4u);
    expect(0, "slow", "closing");
    expect(1, "fast", "closing");
    expect(2, "slow", "closed, waited for");
    expect(3, "fast", "closed, waited for");
    ASSERT_FALSE(client_has_reply());
    ASSERT_EQ(engine.sessions.n, 1u);
    /* Nobody is to meet it meanwhile. */
    ASSERT_NULL(session_find(&engine, "observed"));

    slow.closed_answer = OBSERVER_CONTINUE;
    session_close_continue(session);
    run_deferred();
    ASSERT_EQ(n_told, 10u);
    expect(6, "slow", "operation ended");
    ASSERT_FALSE(told[7].has_reply);
    expect(8, "slow", "release");
    expect(9, "fast", "release");
    ASSERT_TRUE(client_has_reply());
    ASSERT_EQ(engine.sessions.n, 0u);
}

TEST(observer_is_asked_again_when_the_waiting_client_leaves) {
    struct session *session = begin();
    struct fake fake = { .name = "fake", .closed_answer = OBSERVER_WAIT };

    session_observe(session, &fake.observer, &fake_ops, false);
    ASSERT_NOT_NULL(op_new(session, VERB_CLOSE, &client, 1));
    session_close(session);
    run_deferred();
    expect(1, "fake", "closed, waited for");
    session_forget_client(&client);
    run_deferred();
    ASSERT_EQ(n_told, 3u);
    expect(2, "fake", "closed");
}
