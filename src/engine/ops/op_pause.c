/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PAUSE: the processes of a sandbox are paused, until it is resumed or called. For a walk over its
 * files on disk they are paused only until that is done (disk_upper.h).
 */
#include "engine/box/disk_upper.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "guest/guest.h"

static void walk_still(struct op *op, int error) {
    op_wait(op, OP_WAIT_WALK);
    if (!disk_upper_stands(op->session->box, error))
        (void)op_event(op, OP_EVENT_WALKED, NULL);
}

/* A paused session is asked, too: nobody waits for a pause for idleness, which may have failed. */
static void start_for_walk(struct op *op) {
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;

    if (session->box && (session->state == SESSION_LIVE || session->state == SESSION_PAUSED))
        op_freeze(op);
    else
        op_done(op, &nothing);
}

static void start_pause(struct op *op) {
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;

    if (op->pause.for_walk)
        start_for_walk(op);
    else if (session->state == SESSION_LIVE && session->box)
        op_freeze(op);
    else
        op_done(op, &nothing);
}

static void processes_frozen(struct op *op, const struct guest_record *record) {
    struct buf nothing = BUF_INIT;

    if (op->pause.for_walk) {
        walk_still(op, (int)record->error);
    } else if (record->error) {
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error,
            "a process of the sandbox could not be paused");
    } else {
        op->session->state = SESSION_PAUSED;
        op_done(op, &nothing);
    }
}

static void pause_event(struct op *op, enum op_event event, const struct op_message *message) {
    struct buf nothing = BUF_INIT;

    switch ((int)event) {
    case OP_EVENT_PROCESSES_FREE:
        op_freeze(op);
        break;
    case OP_EVENT_INIT_REPLY:
        processes_frozen(op, message->record);
        break;
    case OP_EVENT_WALKED:
        op_thaw(op);
        op_done(op, &nothing);
        break;
    default:
        op_lose_track(op);
        break;
    }
}

static void release_pause(struct op *op) {
    if (op->pause.for_walk && op->session->box)
        disk_upper_is_left(op->session->box);
}

const struct op_class op_pause_class = { .verb = VERB_PAUSE,
    .flags = OP_LEAVES_ASLEEP,
    .start = start_pause,
    .event = pause_event,
    .release = release_pause };
