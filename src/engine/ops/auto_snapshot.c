/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Automatic snapshots: one after each command that has changed something.
 *
 * Most commands change nothing, and checking that must be nearly free. The changes of a command are
 * in the box's private files (the uppers of its overlays) or in running processes. If nothing runs,
 * and the files are as they were when the box was made, there is nothing to save, and no process is
 * asked or stopped to find that out. Otherwise a snapshot is taken like any other, between the same
 * operations. The files of a box that has changed before cannot be recognised as unchanged, nor can
 * memory: while something runs, each command's end leads to a new snapshot.
 *
 * The latest ones are kept, up to the requested number. A snapshot with a name, one that a client
 * has requested, used or branched from, stays.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/core/context.h"
#include "engine/files/box_files.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"

/* Commands that end with these have not ended by themselves, and what they left goes, or is kept
 * otherwise. */
static bool is_being_put_elsewhere(const struct session *session) {
    const struct op *op = session_first_op(session);

    return op && op->wait != OP_WAIT_QUEUED &&
           (op->verb == VERB_RESET || op->verb == VERB_HIBERNATE || op->verb == VERB_WAKE);
}

bool auto_snapshot_is_due(const struct session *session) {
    return session->state != SESSION_CLOSING && !session->sleep && !session->queue.fork &&
           session->box && session->files.dirty && !is_being_put_elsewhere(session);
}

static void command_settled(
    struct session_observer *observer, struct session *session, bool has_run) {
    struct auto_snapshot *auto_snapshot = &session->auto_snapshot;

    (void)observer;
    if (!has_run || !auto_snapshot->keep || !auto_snapshot_is_due(session))
        return;
    /* That nothing runs any more is a change, too; and what the box stands on may be a state that
     * nobody knows of. */
    if (!session->files.at->checkpoint &&
        snapshot_nearest_visible(session->files.at) == session->files.at &&
        box_is_pristine(session->box)) {
        auto_snapshot->n_unchanged++;
        return;
    }
    struct op *op = op_add(session, VERB_SNAPSHOT, false);
    if (!op)
        return;
    op->snapshot.is_automatic = true;
    session_events_op_started(
        op); /* before any command that comes later: a replay takes it here, too */
}

static void forked(struct session_observer *observer, const struct op *op, struct session *child) {
    (void)op;
    auto_snapshot_set(child, container_of(observer, struct auto_snapshot, observer)->keep);
}

static void release(struct session_observer *observer) {
    free(container_of(observer, struct auto_snapshot, observer)->refusal);
}

static const struct session_observer_ops observer_ops = {
    .command_settled = command_settled, .forked = forked, .release = release
};

void auto_snapshot_set(struct session *session, unsigned keep) {
    session->auto_snapshot.keep = keep;
    if (keep && !session->auto_snapshot.observer.ops)
        session_observe(session, &session->auto_snapshot.observer, &observer_ops, false);
}

static void restore(struct session *session, const struct buf *saved) {
    (void)saved;
    auto_snapshot_set(session, session->auto_snapshot.keep);
}

void auto_snapshot_init(void) {
    session_events_add_restorer(restore);
}

static bool is_branched(const struct session *session, const struct snapshot *snapshot) {
    unsigned children = 0;

    list_for_each(at, &snapshot->tree->snapshots) {
        const struct snapshot *child = container_of(at, struct snapshot, in_tree);

        if (child->parent == snapshot && (child->automatic != session->number || ++children > 1))
            return true;
    }
    list_for_each(at, &session->engine->sessions.all) {
        const struct session *other = container_of(at, struct session, node);

        if (other->files.at == snapshot || other->files.base == snapshot)
            return true;
    }
    return false;
}

static void retain_snapshots(const struct session *session) {
    unsigned n = 0;
    struct list *before;

    /* The latest first. */
    for (struct list *at = session->files.tree->snapshots.prev;
         at != &session->files.tree->snapshots; at = before) {
        struct snapshot *snapshot = container_of(at, struct snapshot, in_tree);

        before = at->prev;
        if (snapshot->automatic != session->number || snapshot->name ||
            snapshot->purpose == SNAPSHOT_OF_FORK || ++n <= session->auto_snapshot.keep ||
            is_branched(session, snapshot))
            continue;
        (void)snapshot_drop(snapshot);
    }
}

void auto_snapshot_taken(struct op *op) {
    struct session *session = op->session;
    struct snapshot *snapshot = op->to;
    struct buf nothing = BUF_INIT;

    free(session->auto_snapshot.refusal);
    session->auto_snapshot.refusal = NULL;
    if (snapshot->purpose != SNAPSHOT_INTERNAL || !snapshot->parent) {
        session->auto_snapshot.n_unchanged++;
        op_done(op, &nothing);
        return;
    }
    snapshot->purpose = SNAPSHOT_ASKED_FOR;
    snapshot->automatic = session->number;
    session->auto_snapshot.n_taken++;
    memcpy(session->auto_snapshot.last, snapshot->id, sizeof snapshot->id);
    retain_snapshots(session);
    op_done(op, &nothing);
}

/* The command succeeded, and nobody waits: INSPECT reports it. */
void auto_snapshot_failed(struct session *session, const struct rollbox_error *error) {
    free(session->auto_snapshot.refusal);
    session->auto_snapshot.refusal = strdup(error->message);
}

void auto_snapshot_text(const struct session *session, struct buf *to) {
    const struct auto_snapshot *auto_snapshot = &session->auto_snapshot;

    if (!auto_snapshot->keep) {
        buf_add_text(to, "null");
        return;
    }
    buf_printf(to,
        "{\"when\": \"changed\", \"keep\": %u, \"taken\": %llu, \"unchanged\": %llu, \"last\": ",
        auto_snapshot->keep, (unsigned long long)auto_snapshot->n_taken,
        (unsigned long long)auto_snapshot->n_unchanged);
    json_add_string(
        to, auto_snapshot->last[0] ? auto_snapshot->last : NULL, strlen(auto_snapshot->last));
    buf_add_text(to, ", \"error\": ");
    json_add_string(
        to, auto_snapshot->refusal, auto_snapshot->refusal ? strlen(auto_snapshot->refusal) : 0);
    buf_add_text(to, "}");
}
