/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DIFF, COMMIT, EXPORT: jobs of rollbox-store on the layers of a state (files_job.c).
 *
 * They concern files; only an export with processes (op_hibernate.c) takes these, too.
 */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/ops/files_job.h"
#include "engine/checkpoint/flatten.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"

static void run_job(struct op *op) {
    struct rollbox_error error;

    if (files_job_start(op, NULL, &error) < 0)
        op_fail(op, &error);
}

static void start_on_files(struct op *op) {
    op->request.drops = true;
    if (op->to)
        run_job(op);
    else
        op_take_snapshot(op);
}

static void start_diff(struct op *op) {
    if (op->diff.is_recorded && !op->from)
        op->from = snapshot_get(op->session->files.at);
    start_on_files(op);
}

static void have_export_snapshot(struct op *op) {
    if (op->export.takes_live)
        hibernate_export(op);
    else
        run_job(op);
}

static void start_export(struct op *op) {
    if (op->from) {
        op->to = op->from;
        op->from = NULL;
    }
    if (!op->export.takes_live)
        start_on_files(op);
    else if (op->to || op->session->sleep)
        hibernate_export(op);
    else
        op_take_snapshot(op);
}

static void store_event(struct op *op, enum op_event event, const struct op_message *message) {
    if (event != OP_EVENT_STORE_JOB_DONE) {
        take_snapshot_event(op, event, message);
    } else if (message->error) {
        buf_done(message->take_text);
        op_fail(op, message->error);
    } else {
        if (op->verb == VERB_DIFF)
            op->diff.answer = message->take_text;
        op_done(op, message->take_text);
    }
}

static void release_commit(struct op *op) {
    free(op->commit.path);
    take_snapshot_release(op);
}

static struct checkpoint *wants_full_image(const struct op *op) {
    const struct snapshot *snapshot = op->from ? op->from : op->session->files.at;

    return op->export.takes_live && flatten_is_lacking(snapshot->checkpoint) ? snapshot->checkpoint
                                                                             : NULL;
}

const struct op_class op_diff_class = { .verb = VERB_DIFF,
    .flags = OP_NEEDS_NO_LAYER,
    .start = start_diff,
    .have_snapshot = run_job,
    .event = store_event,
    .release = take_snapshot_release };

const struct op_class op_commit_class = { .verb = VERB_COMMIT,
    .flags = OP_NEEDS_NO_LAYER,
    .start = start_on_files,
    .have_snapshot = run_job,
    .event = store_event,
    .release = release_commit };

const struct op_class op_export_class = { .verb = VERB_EXPORT,
    .flags = OP_NEEDS_NO_LAYER,
    .start = start_export,
    .wants_full_image = wants_full_image,
    .have_snapshot = have_export_snapshot,
    .event = store_event,
    .release = take_snapshot_release };
