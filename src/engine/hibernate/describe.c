/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a snapshot, and whether it is sound.
 *
 * The engine describes the part that it knows; rollbox-store reads the parts that guests have
 * chosen: the image of the processes, and the layers. To verify a snapshot, its processes are also
 * restored in a hidden sandbox of their own, up to the moment at which they would resume: every
 * check that would refuse them then does so now. A hibernated sandbox is examined in the store, and
 * not woken: the digests are computed again, and the files and the machine that the processes need
 * are compared.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/ops/files_job.h"
#include "engine/checkpoint/flatten.h"
#include "engine/hibernate/hibernate.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"
#include "store/fingerprint.h"

static json_t *check_of(const char *what, bool was_made, const char *why) {
    return json_pack("{s:s, s:o, s:s?}", "what", what, "ok",
        was_made ? json_boolean(why == NULL) : json_null(), "why", why);
}

static void fail_memory(struct op *op) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    op_fail(op, &error);
}

/* The engine's facts of op->to; NULL: out of memory. */
static json_t *describe_snapshot(const struct op *op) {
    const struct checkpoint *checkpoint = op->to->checkpoint;
    auto_buf struct buf text = BUF_INIT;
    const char *between = "";
    struct snapshot_facts facts;

    snapshot_facts(op->to, &facts);
    buf_add_text(&text, "{");
    snapshot_facts_text(&facts, &text);
    buf_add_text(&text, ", \"asleep\": false, \"commands\": [");
    for (size_t i = 0; checkpoint && i < checkpoint->n_commands; i++)
        checkpoint_command_text(&checkpoint->commands[i], &between, &text);
    buf_add_text(&text, "]}");
    json_t *state = buf_failed(&text) ? NULL : json_loadb(text.data, text.length, 0, NULL);
    /* The image says which there are. */
    json_object_set_new(state, "processes", json_array());
    if (op->verb == VERB_VERIFY)
        json_object_set_new(state, "checks",
            op->describe.was_tried
                ? json_pack("[o]", check_of("restoring", true, op->describe.refusal))
                : json_array());
    return state;
}

static void scan_snapshot(struct op *op) {
    struct rollbox_error error;

    if (files_job_start(op, describe_snapshot(op), &error) < 0)
        op_fail(op, &error);
}

/* ---- a trial ---- */

static void end_trial(struct op *op) {
    struct session *trial = TAKE_PTR(op->describe.trial);

    if (!trial)
        return;
    trial->queue.fork = NULL;
    session_close(trial);
}

static void processes_tried(struct op *op, const struct rollbox_error *error) {
    op->describe.was_tried = true;
    op->describe.refusal = error ? strdup(error->message) : NULL;
    end_trial(op);
    if (error && !op->describe.refusal)
        fail_memory(op);
    else
        scan_snapshot(op);
}

/* It has a name that no sandbox can have, and that none is found by. */
static void try_processes(struct op *op) {
    struct session *session = op->session, *made;
    struct rollbox_error error;
    char name[32];

    snprintf(name, sizeof name, ".%llu", (unsigned long long)session->engine->sessions.next_number);
    made = session_new(
        session->engine, session->profile, NULL, name, session->files.tree, op->to, &error);
    if (!made) {
        op_fail(op, &error);
        return;
    }
    made->is_dry_run = true;
    made->origin.seed = session->origin.seed;
    made->checkpoint->pending_restore = checkpoint_get(op->to->checkpoint);
    made->queue.fork = op;
    op->describe.trial = made;
    op_wait(op, OP_WAIT_TRIAL);
    if (session_need_box(made, &error) < 0)
        processes_tried(op, &error);
}

static json_t *paths_of(const struct policy_paths *paths, const struct policy_paths *more) {
    json_t *list = json_array();

    for (size_t i = 0; i < paths->n + more->n; i++)
        json_array_append_new(list,
            json_string(i < paths->n ? paths->items[i].path : more->items[i - paths->n].path));
    return list;
}

/* ---- what sleeps ---- */

static json_t *checks_of(const struct op *op, const json_t *record, bool has_processes) {
    json_t *checks = json_array();
    struct rollbox_error error;

    json_array_append_new(checks,
        check_of("writable places", true,
            hibernate_check(record, op->session->profile, &error) < 0 ? error.message : NULL));
    if (has_processes) {
        json_array_append_new(
            checks, check_of("kernel and processor", true,
                        fingerprint_check(json_object_get(record, "fingerprint"), "wake",
                            "rollbox wake --drop-processes wakes its files alone", &error) < 0
                            ? error.message
                            : NULL));
        json_array_append_new(
            checks, check_of("restoring", false, "not tried while the sandbox sleeps"));
    }
    return checks;
}

static void look_up_hibernated(struct op *op) {
    const struct session *session = op->session;
    json_t *whole = NULL, *image = NULL, *own = NULL;
    struct rollbox_error error;
    int r = hibernated_read(session->sleep->lock, &whole, &error);
    const json_t *record = json_object_get(whole, "record");
    json_t *state =
        r == 0 ? hibernate_state(session->engine, whole, op->request.name, &image, &own) : NULL;

    if (r == 0 && !state)
        r = error_set(&error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
            "there is no snapshot %.100s of the sandbox; `rollbox tree` lists those there are",
            op->request.name ? op->request.name : "");
    if (r == 0 && op->verb == VERB_VERIFY)
        json_object_set_new(state, "checks", checks_of(op, record, json_is_integer(image)));
    if (r == 0) {
        json_t *job =
            json_pack("{s:s, s:O, s:O}", "id", session->sleep->id, "state", state, "image", image);

        /* Under an image what a path means is another thing. */
        if (!session->profile->image)
            json_object_set_new(job, "places",
                json_pack("{s:O, s:o}", "own", own, "granted",
                    paths_of(&session->profile->policy->fs_readable,
                        &session->profile->policy->fs_shared)));
        r = hibernate_job_start(op, "describe-asleep", job, NULL, 0, &error);
        json_decref(job);
    }
    json_decref(state);
    json_decref(image);
    json_decref(own);
    json_decref(whole);
    if (r < 0)
        op_fail(op, &error);
}

static void start_describe(struct op *op) {
    struct snapshot *snapshot =
        op->from ? op->from : snapshot_nearest_visible(op->session->files.at);

    if (op->session->sleep) {
        look_up_hibernated(op);
        return;
    }
    op->to = snapshot_get(snapshot);
    if (op->verb == VERB_VERIFY && op->to->checkpoint)
        try_processes(op);
    else
        scan_snapshot(op);
}

static struct checkpoint *wants_full_image(const struct op *op) {
    const struct snapshot *snapshot =
        op->from ? op->from : snapshot_nearest_visible(op->session->files.at);

    return flatten_is_lacking(snapshot->checkpoint) ? snapshot->checkpoint : NULL;
}

static void describe_event(struct op *op, enum op_event event, const struct op_message *message) {
    if (event == OP_EVENT_TRIED) {
        processes_tried(op, message->error);
    } else if (event != OP_EVENT_STORE_JOB_DONE) {
        op_lose_track(op);
    } else if (message->error) {
        buf_done(message->take_text);
        op_fail(op, message->error);
    } else {
        op_done(op, message->take_text);
    }
}

static void verify_failed(struct op *op, const struct rollbox_error *error) {
    (void)error;
    end_trial(op);
}

static void release_describe(struct op *op) {
    free(op->describe.refusal);
}

const struct op_class op_show_class = { .verb = VERB_SHOW,
    .flags = OP_LEAVES_ASLEEP,
    .start = start_describe,
    .wants_full_image = wants_full_image,
    .event = describe_event,
    .release = release_describe };

const struct op_class op_verify_class = { .verb = VERB_VERIFY,
    .flags = OP_LEAVES_ASLEEP,
    .start = start_describe,
    .wants_full_image = wants_full_image,
    .event = describe_event,
    .failed = verify_failed,
    .release = release_describe };
