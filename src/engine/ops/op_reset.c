/* SPDX-License-Identifier: Apache-2.0 */
/* RESET: a new box on an earlier state; with its processes, if it has any. */
#include <errno.h>

#include "base/error.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/log.h"
#include "engine/run/run.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"

static void reset_session(struct op *op) {
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;
    struct snapshot *target = op->from ? op->from : session->files.at;
    struct checkpoint *checkpoint = op->request.drops ? NULL : target->checkpoint;
    struct snapshot *base = checkpoint ? snapshot_get(target) : session_files_of(session, target);

    if (!base) {
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    if (session->box)
        box_send_kill(session->box);
    while (!list_empty(&session->commands.runs)) {
        struct run *run = container_of(session->commands.runs.next, struct run, of_session);

        run->init.serial = 0;
        list_remove(&run->in_queue);
        if (run->end.outcome == ROLLBOX_OUTCOME_ERROR || run->end.killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
                "the sandbox was reset while the command ran");
    }
    session->origin.was_used = true;
    session_give_up_box(session);
    if (session->state == SESSION_PAUSED)
        session->state = SESSION_NEW;
    snapshot_ref_assign(&session->files.base, base);
    snapshot_ref_assign(&session->files.at, base);
    snapshot_put(base);
    session->files.dirty = false;
    if (!checkpoint) {
        op_done(op, &nothing);
        return;
    }
    session->checkpoint->pending_restore = checkpoint_get(checkpoint);
    session->checkpoint->tracks_from_birth = false;
    checkpoint->demand.n_uses++;
    op_wait(op, OP_WAIT_RESTORE);
    if (session_need_box(session, &error) < 0)
        op_session_ready(session, &error);
}

/* The box is ready, with the processes, or never will be. */
static void reset_event(struct op *op, enum op_event event, const struct op_message *message) {
    struct buf nothing = BUF_INIT;

    if (event != OP_EVENT_BOX_READY)
        op_lose_track(op);
    else if (message->error)
        op_fail(op, message->error);
    else
        op_done(op, &nothing);
}

const struct op_class op_reset_class = {
    .verb = VERB_RESET, .start = reset_session, .event = reset_event
};
