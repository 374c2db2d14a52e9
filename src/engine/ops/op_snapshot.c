/* SPDX-License-Identifier: Apache-2.0 */
/* SNAPSHOT: the present state gets a name, or is kept as an automatic snapshot. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"

static void snapshot_text(struct snapshot *snapshot, struct buf *to) {
    struct snapshot_facts facts;

    snapshot_facts(snapshot, &facts);
    buf_add_text(to, "{");
    snapshot_facts_text(&facts, to);
}

/* A state that has a name already gets another node of nothing for another, so that both are found.
 */
static bool name_again(struct op *op) {
    struct session *session = op->session;
    struct snapshot *snapshot =
        snapshot_new(session->engine, session->files.tree, op->to, op->to, NULL);

    if (!snapshot)
        return false;
    snapshot->is_live = op->to->is_live;
    snapshot->checkpoint = op->to->checkpoint ? checkpoint_get(op->to->checkpoint) : NULL;
    if (session->files.base == op->to)
        snapshot_ref_assign(&session->files.base, snapshot);
    if (session->files.at == op->to)
        snapshot_ref_assign(&session->files.at, snapshot);
    snapshot_put(op->to);
    op->to = snapshot;
    return true;
}

static void name_snapshot(struct op *op) {
    struct buf json = BUF_INIT;

    if (op->request.name) {
        struct snapshot *other = snapshot_find(op->session->files.tree, op->request.name);

        if (other && other != op->to) {
            op_fail_with(op, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST,
                "there is a snapshot of that name already");
            return;
        }
        if (!other && op->to->name && !name_again(op)) {
            op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
            return;
        }
        free(op->to->name);
        op->to->name = TAKE_PTR(op->request.name);
    }
    op->to->purpose = SNAPSHOT_ASKED_FOR;
    op->to->automatic = 0;
    snapshot_text(op->to, &json);
    const bool wants_files = session_events_wants(op->session) & OBSERVER_WANTS_SNAPSHOT_FILES;
    buf_add_text(&json, wants_files ? ", \"recorded_files\": true}" : "}");
    op_done(op, &json);
}

static void start_snapshot(struct op *op) {
    if (tracking_make_room(op->session->engine))
        op_take_snapshot(op);
    else
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, 0,
            "more states than the engine's limit of open files bears; raise it (ulimit -n), "
            "drop snapshots, or close sandboxes");
}

static void have_snapshot(struct op *op) {
    if (op->snapshot.is_automatic)
        auto_snapshot_taken(op);
    else
        name_snapshot(op);
}

static void snapshot_failed(struct op *op, const struct rollbox_error *error) {
    if (op->snapshot.is_automatic)
        auto_snapshot_failed(op->session, error);
}

const struct op_class op_snapshot_class = { .verb = VERB_SNAPSHOT,
    .flags = OP_RESUMES_EARLY,
    .start = start_snapshot,
    .have_snapshot = have_snapshot,
    .event = take_snapshot_event,
    .failed = snapshot_failed,
    .release = take_snapshot_release };
