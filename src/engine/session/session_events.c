/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a session's observers of its events (session_events.h has the model). */
#include "engine/session/session_events.h"

#include "engine/command/command.h"
#include "engine/core/log.h"
#include "engine/session/op.h"
#include "engine/session/session.h"

#define MAX_RESTORERS 4u

static session_restorer restorers[MAX_RESTORERS];
static size_t n_restorers;

/* Calls a member of each observer that has it. */
#define TELL(session, member, ...)                                                                 \
    list_for_each(node, &(session)->observers) {                                                   \
        struct session_observer *observer = container_of(node, struct session_observer, node);     \
                                                                                                   \
        if (observer->ops->member)                                                                 \
            observer->ops->member(observer __VA_OPT__(, ) __VA_ARGS__);                            \
    }

void session_observe(struct session *session, struct session_observer *observer,
    const struct session_observer_ops *ops, bool first) {
    observer->ops = ops;
    list_init(&observer->node);
    list_add_tail(first ? session->observers.next : &session->observers, &observer->node);
}

void session_events_add_restorer(session_restorer restore) {
    if (n_restorers < MAX_RESTORERS)
        restorers[n_restorers++] = restore;
}

/* ---- commands ---- */

void session_events_command_started(struct run *run) {
    TELL(run->session, command_started, run);
}

void session_events_command_sent(struct run *run) {
    TELL(run->session, command_sent, run);
}

void session_events_command_ended(struct run *run) {
    TELL(run->session, command_ended, run);
}

void session_events_command_settled(struct session *session, bool has_run) {
    TELL(session, command_settled, session, has_run);
}

void session_events_signal(
    struct session *session, const struct run *run, unsigned number, unsigned scope) {
    TELL(session, signal, run, number, scope);
}

/* ---- operations ---- */

void session_events_op_started(struct op *op) {
    TELL(op->session, op_started, op);
}

void session_events_op_ended(struct op *op, const struct rollbox_error *error) {
    TELL(op->session, op_ended, op, error);
}

void session_events_forked(const struct op *op, struct session *child) {
    TELL(op->session, forked, op, child);
}

/* ---- questions ---- */

unsigned session_events_wants(const struct session *session) {
    unsigned wants = 0;

    list_for_each(node, &session->observers) {
        const struct session_observer *observer = container_of(node, struct session_observer, node);

        wants |= observer->ops->wants ? observer->ops->wants(observer) : 0;
    }
    return wants;
}

bool session_events_record_text(const struct session *session, struct buf *to) {
    list_for_each(node, &session->observers) {
        const struct session_observer *observer = container_of(node, struct session_observer, node);
        const size_t before = to->length;

        if (observer->ops->record_text)
            observer->ops->record_text(observer, to);
        if (to->length > before)
            return true;
    }
    return false;
}

const struct buf *session_events_saved(const struct session *session) {
    list_for_each(node, &session->observers) {
        const struct session_observer *observer = container_of(node, struct session_observer, node);

        if (observer->ops->saved)
            return observer->ops->saved(observer);
    }
    return NULL;
}

void session_events_restored(struct session *session, const struct buf *saved) {
    for (size_t i = 0; i < n_restorers; i++)
        restorers[i](session, saved);
}

/* ---- the end ---- */

enum observer_answer session_events_may_close(const struct session *session) {
    list_for_each(node, &session->observers) {
        struct session_observer *observer = container_of(node, struct session_observer, node);

        if (observer->ops->may_close && observer->ops->may_close(observer) == OBSERVER_WAIT)
            return OBSERVER_WAIT;
    }
    return OBSERVER_CONTINUE;
}

void session_events_closing(const struct session *session) {
    TELL(session, closing);
}

enum observer_answer session_events_closed(const struct session *session, bool is_waited_for) {
    enum observer_answer answer = OBSERVER_CONTINUE;

    /* All of them are asked: each may wait for something of its own. */
    list_for_each(node, &session->observers) {
        struct session_observer *observer = container_of(node, struct session_observer, node);

        if (observer->ops->closed &&
            observer->ops->closed(observer, is_waited_for) == OBSERVER_WAIT)
            answer = OBSERVER_WAIT;
    }
    return answer;
}

void session_events_release(struct session *session) {
    while (!list_empty(&session->observers)) {
        struct session_observer *observer =
            container_of(session->observers.next, struct session_observer, node);

        list_remove(&observer->node);
        if (observer->ops->release)
            observer->ops->release(observer);
    }
}
