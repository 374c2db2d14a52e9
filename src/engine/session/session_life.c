/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a session: its beginning, its turn in the loop, its end.
 *
 * A session ends with its client, by CLOSE, or by its own timers. Its box dies first; the session
 * is freed, and CLOSE answered, when the kernel says so: then nothing of it is left.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/verb_names.h"
#include "engine/network/gateway.h"
#include "engine/pool/profile.h"
#include "engine/run/run.h"
#include "engine/session/exec.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"

#define RELEASE_NS 10000000ll /* by when captured processes have been let go */

/* ---- timers ---- */

static int64_t left_of(const struct session *session, int64_t after_ms) {
    int64_t left = session->timers.called_ns + after_ms * 1000000 - clock_now_ns();

    if (session->commands.n_runs || session->agents.n || !list_empty(&session->queue.ops))
        left = MAX(left, after_ms * 1000000);
    return left;
}

static void on_idle(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, timers.idle);
    int64_t left = left_of(session, session->timers.idle_ms);

    if (left > 0 || session->checkpoint->releasing)
        (void)loop_timer_set(
            session->engine->loop, timer, clock_now_ns() + MAX(left, RELEASE_NS), on_idle);
    else if (session->state == SESSION_LIVE && session_freeze(session, 0) == 0)
        session->state = SESSION_PAUSED;
}

static void on_end(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, timers.end);
    int64_t left = left_of(session, session->timers.ttl_ms);

    if (left > 0)
        (void)loop_timer_set(session->engine->loop, timer, clock_now_ns() + left, on_end);
    else if (!session->sleep)
        session_close(session);
}

static void on_lifetime(struct loop_timer *timer) {
    session_close(container_of(timer, struct session, timers.lifetime));
}

void session_arm(struct session *session) {
    struct session_timers *timers = &session->timers;

    if (timers->lifetime_ms) {
        int64_t age_ms = (clock_real_ns() - session->origin.made_ns) / 1000000;
        int64_t left_ms = MAX(timers->lifetime_ms - age_ms, (int64_t)1);

        (void)loop_timer_set(session->engine->loop, &timers->lifetime,
            clock_now_ns() + left_ms * 1000000, on_lifetime);
    }
    session_touch(session);
}

/* ---- the beginning and the end ---- */

static void on_schedule(struct loop_task *task);

struct session *session_new(struct engine *engine, struct profile *profile, struct client *client,
    const char *name, struct snapshot_tree *tree, struct snapshot *base,
    struct rollbox_error *error) {
    struct session *session = calloc(1, sizeof *session);

    if (session && tree) {
        tree->references++;
        snapshot_get(base);
    } else if (session) {
        tree = snapshot_tree_new(engine, &base); /* its reference of the beginning is ours */
    }
    if (session && tree && !(session->checkpoint = session_checkpoint_new(profile))) {
        snapshot_put(base);
        tree = snapshot_tree_put(tree);
    }
    if (!session || !tree) {
        free(session);
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "out of memory");
        return NULL;
    }
    session->engine = engine;
    session->profile = profile;
    session->client = client;
    session->number = ++engine->sessions.next_number;
    session->origin.seed = profile->policy->random_seed;
    session->origin.clone_id = -1;
    session->files.tree = tree;
    session->files.base = base;
    session->files.at = snapshot_get(base);
    session->origin.made_ns = session->origin.since_ns = clock_real_ns();
    session->timers.called_ns = clock_now_ns();
    if (name)
        snprintf(session->name, sizeof session->name, "%s", name);
    else
        do
            snprintf(session->name, sizeof session->name, "box-%llu",
                (unsigned long long)++engine->sessions.next_name);
        while (session_find(engine, session->name));
    session->schedule.run = on_schedule;
    session->timers.idle.callback = on_idle;
    session->timers.end.callback = on_end;
    list_init(&session->of_client);
    list_init(&session->commands.runs);
    list_init(&session->commands.waiting);
    list_init(&session->queue.ops);
    list_init(&session->commands.ended);
    list_init(&session->observers);
    list_add_tail(&engine->sessions.all, &session->node);
    list_add_tail(session_bucket(engine, session->name), &session->by_name);
    if (client)
        list_add_tail(&client->sessions, &session->of_client);
    profile->sessions.n_created++;
    profile->sessions.n++;
    engine->sessions.n++;
    log_at(LOG_INFO, "session", ABOUT(.sandbox = session->name), "created");
    return session;
}

static void close_reply(const struct session *session, struct buf *to) {
    auto_buf struct buf record = BUF_INIT;

    buf_add_text(to, "{");
    if (session_events_record_text(session, &record)) {
        buf_add_text(to, "\"record\": ");
        buf_add(to, record.data, record.length);
        to->failed |= record.failed;
    }
    buf_add_text(to, "}");
}

static void session_free(struct session *session) {
    struct engine *engine = session->engine;

    loop_timer_clear(engine->loop, &session->timers.idle);
    loop_timer_clear(engine->loop, &session->timers.end);
    loop_timer_clear(engine->loop, &session->timers.lifetime);
    loop_timer_clear(engine->loop, &session->hibernation.timer);
    session_stop_watching(session);
    loop_task_cancel(&session->schedule);
    list_for_each(node, &session->queue.ops) {
        struct op *op = container_of(node, struct op, node);
        struct buf reply = BUF_INIT;

        close_reply(session, &reply);
        op_done(op, &reply); /* only CLOSE is left */
    }
    session_events_release(session);
    list_for_each(node, &session->commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        free(ended->command);
        free(ended);
    }
    gateway_forget_session(session->number);
    session->checkpoint = session_checkpoint_free(session->checkpoint);
    free(session->commands.orphan_pipes);
    snapshot_put(session->files.base);
    snapshot_put(session->files.at);
    snapshot_put(session->files.committed);
    free(session->files.committed_path);
    snapshot_tree_put(session->files.tree);
    list_remove(&session->node);
    list_remove(&session->by_name);
    list_remove(&session->of_client);
    session->profile->sessions.n--;
    engine->sessions.n--;
    log_at(LOG_INFO, "session", ABOUT(.sandbox = session->name), "is gone");
    profile_leave(session->profile);
    free(session);
}

void session_close(struct session *session) {
    struct rollbox_error error;

    if (session->state == SESSION_CLOSING)
        return;
    log_at(LOG_DEBUG, "session", ABOUT(.sandbox = session->name),
        "closes; %u operations and %u commands end with it", session->queue.n_ops,
        session->commands.n_runs);
    session->state = SESSION_CLOSING;
    if (session_hibernation())
        session_hibernation()->closing(session,
            session->engine->stopping && !session->client); /* a detached one outlives its engine */
    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the sandbox %s was closed",
        session->name);
    list_remove(&session->of_client);
    session->client = NULL;
    if (session->box)
        box_send_kill(session->box);
    op_session_ready(session, &error);
    list_for_each(node, &session->queue.ops)
        if (container_of(node, struct op, node)->verb != VERB_CLOSE)
            op_fail(container_of(node, struct op, node), &error);
    while (!list_empty(&session->commands.runs))
        exec_end(container_of(session->commands.runs.next, struct run, of_session), &error);
    session_events_closing(session);
    if (session->box)
        box_kill(session->box); /* its death frees us */
    else
        session_schedule(session);
}

void session_forget_client(struct client *client) {
    list_for_each(node, &client->engine->sessions.all)
        list_for_each(at, &container_of(node, struct session, node)->queue.ops) {
            struct op *op = container_of(at, struct op, node);

            if (op->reply.client != client)
                continue;
            op->reply.client = NULL;
            session_close_continue(op->session);
        }
    while (!list_empty(&client->sessions))
        session_close(container_of(client->sessions.next, struct session, of_client));
}

void session_close_all(struct engine *engine) {
    struct session *next;

    /* Closing one may end others. */
    do {
        next = NULL;
        list_for_each(node, &engine->sessions.all)
            if (!next && container_of(node, struct session, node)->state != SESSION_CLOSING)
                next = container_of(node, struct session, node);
        if (next)
            session_close(next);
    } while (next);
}

/* ---- its turn ---- */

/* Of an operation whose state is not known nothing can be expected, its end included. */
static void end_inconsistent(struct session *session) {
    struct op *op = session_first_op(session);
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_INTERNAL, 0, "run",
        "the engine lost track of an operation of sandbox %s, which is closed; please report this",
        session->name);
    if (op && op->verb != VERB_CLOSE)
        op_fail(op, &error);
    session_close(session);
}

/* Ends the session for an operation that could not do so under its caller. */
static void end_if_due(struct session *session) {
    const enum session_end end = session->queue.end;

    session->queue.end = SESSION_GOES_ON;
    if (end == SESSION_IS_LOST)
        end_inconsistent(session);
    else if (end == SESSION_IS_UNMADE)
        session_close(session);
}

/* Nothing of it runs. Its observers may have something to do before CLOSE is answered. */
static bool may_end(const struct session *session) {
    bool is_waited_for = false;

    list_for_each(node, &session->queue.ops)
        is_waited_for |= container_of(node, struct op, node)->reply.client != NULL;
    return session_events_closed(session, is_waited_for) == OBSERVER_CONTINUE;
}

/* Something waits that a hibernated sandbox cannot do: a WAKE is its first operation now. */
static void wake_if_needed(struct session *session) {
    struct op *first = session_first_op(session);

    if (!session->sleep ||
        (first ? op_allows_hibernated(first) : list_empty(&session->commands.waiting)))
        return;
    if (op_add(session, VERB_WAKE, true))
        return;
    while (!list_empty(&session->commands.waiting)) {
        struct run *run = container_of(session->commands.waiting.next, struct run, in_queue);

        list_remove(&run->in_queue);
        run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "wake", "out of memory");
    }
}

/* Sends the commands that wait, in a box that is made for them if there is none. */
static void send_commands(struct session *session) {
    struct rollbox_error error;

    if (session->sleep)
        return; /* wake_if_needed comes first */
    exec_tell_again(session);
    if (exec_may_send(session)) {
        int r = session_need_box(session, &error);

        if (exec_send_waiting(session, r, &error))
            session_watch(session);
    }
    if (list_empty(&session->commands.waiting) && session->state != SESSION_CLOSING)
        (void)session_event(session, OP_EVENT_COMMANDS_SENT, NULL);
}

/* The next operation, then the commands that wait. A session that is closed and has no box ends
 * here. */
static void on_schedule(struct loop_task *task) {
    struct session *session = container_of(task, struct session, schedule);

    for (;;) {
        end_if_due(session);
        if (session->state == SESSION_CLOSING)
            break;
        wake_if_needed(session);
        /* Requests on a session that a fork is still making wait until it has its box. */
        if (session->state == SESSION_CLOSING || session->queue.fork ||
            list_empty(&session->queue.ops))
            break;
        struct op *op = container_of(session->queue.ops.next, struct op, node);

        if (op->wait != OP_WAIT_QUEUED)
            break;
        log_at(LOG_DEBUG, "operation", ABOUT(.sandbox = session->name, .op = verb_name(op->verb)),
            "starts");
        (void)op_event(op, OP_EVENT_START, NULL);
    }
    if (session->state != SESSION_CLOSING)
        send_commands(session);
    else if (!session->box && may_end(session))
        session_free(session);
}
