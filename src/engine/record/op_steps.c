/* SPDX-License-Identifier: Apache-2.0 */
/* Operations as steps of a record. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/record/record.h"
#include "engine/session/op.h"
#include "engine/network/gateway.h"
#include "engine/record/recorder.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "record/record.h"
#include "engine/record/recording.h"

static const char *kind_of(const struct op *op) {
    switch ((int)op->verb) {
    case VERB_SNAPSHOT:
        return "snapshot";
    case VERB_FORK:
        return "fork";
    case VERB_RESET:
        return "reset";
    case VERB_COMMIT:
        return "commit";
    default:
        return NULL; /* changes nothing, or is recorded where its details are known */
    }
}

struct op_step *op_step_find(const struct recording *recording, const struct op *op) {
    list_for_each(node, &recording->ops)
        if (container_of(node, struct op_step, node)->op == op)
            return container_of(node, struct op_step, node);
    return NULL;
}

void op_step_free(struct op_step *step) {
    list_remove(&step->node);
    free(step);
}

struct op_step *op_step_number(struct recording *recording, const struct op *op) {
    struct record *record = recording->record;
    struct op_step *step = calloc(1, sizeof *step);

    if (!step) {
        recorder_fail(record, ENOMEM, "out of memory for a step");
        return NULL;
    }
    step->op = op;
    step->step = record->next_step++;
    step->begun_at = record->ended;
    list_add_tail(&recording->ops, &step->node);
    return step;
}

void op_step_started(struct session_observer *observer, struct op *op) {
    struct recording *recording = recording_of(observer);
    struct op_step *step = recording->record && kind_of(op) ? op_step_number(recording, op) : NULL;

    if (!step)
        return;
    if (op->verb == VERB_SNAPSHOT && op->snapshot.is_automatic)
        step->after = recording->after;
    /* Taking the state may make it, or drop it. */
    snprintf(step->asked, sizeof step->asked, "%s", op->from ? op->from->id : "");
    snprintf(step->name, sizeof step->name, "%s", op->request.name ? op->request.name : "");
}

static void add_op(const struct op *op, const struct op_step *step, struct buf *to) {
    step_open(to, "action", RECORD_OBJECT);
    step_add_word(to, "kind", kind_of(op));
    if (op->verb != VERB_SNAPSHOT && op->verb != VERB_COMMIT)
        step_add_word(to, "snapshot", step->asked[0] ? step->asked : NULL);
    if (op->verb == VERB_SNAPSHOT)
        step_add_text(to, "name", step->name[0] ? step->name : NULL);
    if (op->request.drops && op->verb != VERB_COMMIT)
        step_add_word(to, "processes", "drop");
    if (op->verb == VERB_FORK)
        step_add_value(to, "count", RECORD_NUMBER, op->fork.count);
    if (op->verb == VERB_FORK && op->session->profile->policy->have_seed)
        step_add_word(to, "seed", op->fork.same_seed ? "same" : "derived");
    if (op->verb == VERB_COMMIT) {
        step_add_text(to, "path", op->commit.path);
        step_add_value(to, "force", RECORD_FLAG, op->commit.force);
    }
    step_close(to);
}

/* The changes in the answer of a diff. */
static void add_changes(const struct op *op, struct buf *to) {
    json_t *answer = json_loadb(op->diff.answer->data ? op->diff.answer->data : "",
        op->diff.answer->length, JSON_ALLOW_NUL, NULL);
    auto_free char *changes = json_dumps(json_object_get(answer, "changes"), JSON_COMPACT);
    json_int_t omitted = json_integer_value(json_object_get(answer, "omitted"));

    json_decref(answer);
    to->failed |= !changes;
    wire_add_text(to, RECORD_KEY, "changes");
    wire_add_text(to, RECORD_DATA, changes ? changes : "null");
    if (omitted)
        step_add_value(to, "omitted", RECORD_NUMBER, (uint64_t)omitted);
    /* Of a box in which something runs there is only all that was written in it. */
    if (op->from != op->to &&
        snapshot_nearest_owned(op->to->lower) != snapshot_nearest_owned(op->from))
        step_add_value(to, "cumulative", RECORD_FLAG, 1);
}

static void add_changed_files(const struct op *op, const struct op_step *step,
    const struct rollbox_error *error, struct buf *to) {
    step_open(to, "action", RECORD_OBJECT);
    step_add_word(to, "kind", "files");
    step_add_word(to, "of", "exec");
    step_close(to);
    if (error) {
        step_add_done(to, error);
    } else {
        step_open(to, "observation", RECORD_OBJECT);
        step_add_word(to, "outcome", "done");
        add_changes(op, to);
        step_close(to);
    }
    step_add_status(to, "after", step->after != 0, (int)step->after);
}

void op_step_add_seed(const struct session *session, struct buf *to) {
    if (session->profile->policy->have_seed)
        step_add_seed_as(to, "random_seed", session->origin.seed);
    else
        step_add_none(to, "random_seed");
}

static void add_children(const struct op *op, struct buf *to) {
    char id[48];

    step_open(to, "children", RECORD_LIST);
    for (unsigned i = 0; i < op->fork.n_made; i++) {
        step_open(to, NULL, RECORD_OBJECT);
        record_name(op->fork.made[i]->engine, op->fork.made[i]->number, id, sizeof id);
        step_add_word(to, "id", id);
        step_add_word(to, "name", op->fork.made[i]->name);
        op_step_add_seed(op->fork.made[i], to);
        step_close(to);
    }
    step_close(to);
}

void op_step_tell(struct record *record, const struct op_step *step, const struct op *op,
    const struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    step_begin(record, &message, step->step, step->begun_at);
    if (op_is_recorded_diff(op)) {
        add_changed_files(op, step, error, &message);
        step_end(record, &message, NULL, 0, 0);
        return;
    }
    add_op(op, step, &message);
    if (!error && op->verb == VERB_SNAPSHOT && op->to) {
        step_open(&message, "observation", RECORD_OBJECT);
        step_add_word(&message, "outcome", "done");
        step_add_word(&message, "snapshot", op->to->id);
        step_close(&message);
    } else {
        step_add_done(&message, error);
    }
    if (!error && op->verb == VERB_FORK)
        add_children(op, &message);
    if (op->verb == VERB_SNAPSHOT && op->snapshot.is_automatic)
        step_add_status(&message, "after", step->after != 0, (int)step->after);
    step_end(record, &message, NULL, 0, 0);
}
