/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots that are taken by themselves: after each command, if it has changed anything.
 *
 * Most commands change nothing, and that has to be nearly free. What a command has changed is in the box' private files (the uppers of its overlays) or runs: if nothing does, and the files are as they were when the box was made, there is
 * nothing to take, and nobody is asked or stopped to find that out. Otherwise it is a snapshot like any other, at the barrier that any has. Files of a box that has changed before cannot be told to be unchanged, nor can memory: while something runs,
 * each command's end is a state of its own.
 *
 * As many are kept as were asked for, the latest. One that has a name, that somebody asked for, stands on or has branched from, stays.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

/* Commands that end with these have not ended by themselves, and what they left goes, or is kept otherwise. */
static bool is_being_put_elsewhere(const struct session *session) {
    const struct work *work = session_first_work(session);

    return work && work->started && (work->verb == VERB_RESET || work->verb == VERB_HIBERNATE || work->verb == VERB_WAKE);
}

bool checkpoint_is_due(const struct session *session) {
    return session->state != SESSION_CLOSING && !session->sleep && !session->fork && session->box && session->dirty && !is_being_put_elsewhere(session);
}

void checkpoint_after(struct session *session, uint64_t step) {
    struct checkpoints *checkpoints = &session->checkpoints;

    if (!checkpoints->keep || !checkpoint_is_due(session))
        return;
    /* That nothing runs any more is a change, too; and what the box stands on may be a state that nobody knows of. */
    if (!session->at->live && node_shown(session->at) == session->at && state_is_as_made(session->box)) {
        checkpoints->n_unchanged++;
        return;
    }
    struct work *work = work_add(session, VERB_SNAPSHOT, false);
    if (!work)
        return;
    work->is_automatic = true;
    work->after = step;
    record_work_begun(work);    /* before any command that comes later: a replay takes it here, too */
}

static bool is_branched(const struct session *session, const struct node *node) {
    unsigned children = 0;

    list_for_each(at, &node->family->nodes) {
        const struct node *child = container_of(at, struct node, in_family);

        if (child->parent == node && (child->automatic != session->number || ++children > 1))
            return true;
    }
    list_for_each(at, &session->engine->sessions) {
        const struct session *other = container_of(at, struct session, node);

        if (other->at == node || other->base == node)
            return true;
    }
    return false;
}

static void retain(const struct session *session) {
    unsigned n = 0;
    struct list *before;

    /* The latest first. */
    for (struct list *at = session->family->nodes.prev; at != &session->family->nodes; at = before) {
        struct node *node = container_of(at, struct node, in_family);

        before = at->prev;
        if (node->automatic != session->number || node->name || node->is_of_fork || ++n <= session->checkpoints.keep || is_branched(session, node))
            continue;
        (void)node_drop(node);
    }
}

void checkpoint_taken(struct work *work) {
    struct session *session = work->session;
    struct node *node = work->to;
    struct buf nothing = BUF_INIT;

    free(session->checkpoints.refusal);
    session->checkpoints.refusal = NULL;
    if (node->is_asked_for || !node->parent) {
        session->checkpoints.n_unchanged++;
        work_done(work, &nothing);
        return;
    }
    node->is_asked_for = true;
    node->automatic = session->number;
    session->checkpoints.n_taken++;
    memcpy(session->checkpoints.last, node->id, sizeof node->id);
    retain(session);
    work_done(work, &nothing);
}

/* The command went well, and nobody waits: it is told by INSPECT. */
void checkpoint_failed(struct session *session, const struct rollbox_error *error) {
    free(session->checkpoints.refusal);
    session->checkpoints.refusal = strdup(error->message);
}

void checkpoint_text(const struct session *session, struct buf *to) {
    const struct checkpoints *checkpoints = &session->checkpoints;

    if (!checkpoints->keep) {
        buf_add_text(to, "null");
        return;
    }
    buf_printf(to, "{\"when\": \"changed\", \"keep\": %u, \"taken\": %llu, \"unchanged\": %llu, \"last\": ", checkpoints->keep, (unsigned long long)checkpoints->n_taken, (unsigned long long)checkpoints->n_unchanged);
    text_json(to, checkpoints->last[0] ? checkpoints->last : NULL, strlen(checkpoints->last));
    buf_add_text(to, ", \"error\": ");
    text_json(to, checkpoints->refusal, checkpoints->refusal ? strlen(checkpoints->refusal) : 0);
    buf_add_text(to, "}");
}
