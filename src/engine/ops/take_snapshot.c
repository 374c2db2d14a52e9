/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a snapshot: the steps that most operations begin with.
 *
 * If nothing was called since the last snapshot, that is the present state. Otherwise every process
 * is frozen. If there is none, the box is given up, and its private tmpfs is the new layer; else
 * the files are copied while the processes are paused. Where the processes are wanted as well, a
 * dump pauses them (dump_job.c), which they do not notice; they are resumed when the dump and the
 * copy of the files are done.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/disk_upper.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/command/command.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/box_files.h"
#include "engine/files/layer_chain.h"
#include "engine/network/gateway.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/dump_commands.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/session/op.h"
#include "engine/pool/spares.h"
#include "engine/session/session.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"

#define LONG_CHAIN 18 /* layers: from here on a state waits until its chain is merged */

/* The processes stay stopped after their dump. */
static bool stays_stopped(const struct op *op) {
    return op->verb == VERB_HIBERNATE || (op->verb == VERB_FORK && op->fork.group);
}

/* ---- steps ---- */

void op_have_snapshot(struct op *op) {
    struct layer *layers[1];

    /* Users see the size of every snapshot, and it counts for the limits of all sandboxes on it. */
    if (op->to->layer && !layer_is_measured(op->to->layer)) {
        op_wait(op, OP_WAIT_SIZE);
        return;
    }
    snapshot_compact_later(op->to, op->session->profile, op_compacted);
    if (snapshot_chain(op->to, layers, 0) >= LONG_CHAIN && snapshot_is_compacting(op->to)) {
        op_wait(op, OP_WAIT_COMPACTION);
        return;
    }
    op->class->have_snapshot(op);
}

void op_thaw(struct op *op) {
    if (op->session->state != SESSION_PAUSED)
        session_thaw_soon(op->session);
}

/* The dumped processes are resumed, unless the session was paused before the dump. */
static void release_dump(struct op *op) {
    if (op->take.dump_job)
        dump_job_release(op->take.dump_job);
    op->take.dump_job = NULL;
    if (!op->session->checkpoint->releasing)
        op_dump_released(op->session);
}

static void resume(struct op *op) {
    if (op->take.dump_job)
        release_dump(op);
    else
        op_thaw(op);
}

void op_resume_processes(struct op *op) {
    if (!op->take.keeps_stopped)
        return;
    op->take.keeps_stopped = false;
    resume(op);
}

bool op_is_dying(int r) {
    return r == -EPIPE || r == -ECONNRESET || r == -ESRCH;
}

static void after_init_send(struct op *op, int r, enum op_wait wait) {
    if (op_is_dying(r))
        op_wait(op, OP_WAIT_BOX_LOST);
    else if (r < 0)
        op_fail_with(op, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r,
            "the sandbox cannot receive requests now");
    else
        op_wait(op, wait);
}

void op_freeze(struct op *op) {
    /* A signal that stops may be lost on one that is being let go. */
    if (op->session->checkpoint->releasing) {
        op_wait(op, OP_WAIT_FREEZE_SLOT);
        return;
    }
    op->take.init_serial = ++op->session->engine->sessions.next_exec;
    after_init_send(op, session_freeze(op->session, op->take.init_serial), OP_WAIT_FROZEN);
}

/* Not before init has done all earlier requests: the processes of commands that were started exist
 * then, and a paused sandbox is thawed for the dump. */
static void start_dump_of_op(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;

    if (session->profile->plan->flags & PLAN_SERIAL) {
        error_set(&error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot",
            "a sandbox with serial cannot be captured with its processes: whose turn it is cannot "
            "be taken along; processes=\"drop\" (--drop-processes) takes the files alone");
        op_fail(op, &error);
        return;
    }
    if (session->checkpoint->releasing) {
        op_wait(op, OP_WAIT_DUMP_SLOT);
        return;
    }
    op->take.init_serial = ++session->engine->sessions.next_exec;
    session->checkpoint->was_thawed = session->state == SESSION_PAUSED;
    /* Processes that are frozen for an agent (GUEST_FILES_ALONE) would be captured as stopped. */
    int r = session->checkpoint->was_thawed || session->agents.n ? session_thaw(session) : 0;
    if (r == 0)
        r = session_ask(session, op->take.init_serial);
    if (op_is_dying(r))
        op_wait(op, OP_WAIT_INIT_ACK); /* BOX_LOST fails it */
    else
        after_init_send(op, r, OP_WAIT_INIT_ACK);
}

/* Each try pauses the processes for about a millisecond, and the next begins where it ends. */
static void dump_again(struct op *op) {
    op->take.n_dumps++;
    dirty_tracking_forget_unwritten(&op->session->checkpoint->tracking.dirty_tracking);
    release_dump(op);
    op->take.checkpoint = checkpoint_put(op->take.checkpoint);
    layer_put(TAKE_PTR(op->take.layer));
    start_dump_of_op(op);
}

/* Guests have ways to run while they are stopped. Files that move during the copy are their fault.
 */
static void fail_copy(struct op *op, int error_number) {
    bool moved = error_number == EEXIST || error_number == ENOENT || error_number == ESTALE ||
                 error_number == ENOTDIR || error_number == EISDIR || error_number == ENOTEMPTY ||
                 error_number == ELOOP;

    bool lost = error_number == ENOTCONN || error_number == EPIPE || error_number == ECONNRESET ||
                error_number == ECHILD;

    if (moved)
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EBUSY,
            "the files of the sandbox changed while its processes were paused: one of them resumes "
            "by itself");
    else if (lost)
        op_fail_with(op, ROLLBOX_ERR_SETUP_FAILED, error_number,
            "the launcher, which copies the files of the sandbox, was killed from outside; the "
            "sandbox still runs: try again");
    /* The engine had no descriptor left for the launcher's user namespace, so a new launcher has
     * another one. */
    else if (error_number == EPERM)
        op_fail_with(op, ROLLBOX_ERR_SETUP_FAILED, error_number,
            "the files of the sandbox cannot be copied any more, as its launcher was killed from "
            "outside; its processes still run, and its files can be read");
    else
        op_fail_with(op, error_code_of(error_number, ROLLBOX_ERR_INTERNAL), error_number,
            "the files of the sandbox could not be copied");
}

/* Loading an image takes time, so it begins early. An error is reported when the image is used. */
static void load_ahead(struct op *op) {
    struct checkpoint *checkpoint = op->take.checkpoint;
    struct launcher *zygote;

    if (op->verb != VERB_FORK || checkpoint->parent)
        return;
    (void)checkpoint_zygote(checkpoint, op->session->profile, &zygote, NULL);
}

/* The files are there, as they were during the pause. No layer: they are those of the base. */
static void snapshot_files_ready(struct op *op, struct layer *take_layer) {
    struct session *session = op->session;

    if (op->take.dump_job && dump_job_resume(op->take.dump_job)) {
        op_wait(op, OP_WAIT_IMAGE);
        op->take.layer = take_layer;
        if (op->take.checkpoint->progress >= 0)
            load_ahead(op);
        return;
    }
    struct snapshot *snapshot = snapshot_new(
        session->engine, session->files.tree, session->files.at, session->files.base, take_layer);

    op->take.keeps_stopped = snapshot && stays_stopped(op);
    if (!op->take.keeps_stopped)
        resume(op);
    int r = !snapshot ? -ENOMEM
            : op->take.checkpoint && op->take.checkpoint->parent
                ? checkpoint_seal_image(&op->take.checkpoint->image)
                : 0; /* which takes as long as a dozen pages: the processes are resumed first */
    if (r < 0) {
        snapshot_put(snapshot);
        fail_copy(op, -r);
        return;
    }
    snapshot->is_live = true;
    session_files_note_names(snapshot, session->box);
    snapshot->checkpoint = TAKE_PTR(op->take.checkpoint);
    snapshot_ref_assign(&session->files.at, snapshot);
    op->to = snapshot; /* its reference */
    op_have_snapshot(op);
}

static void image_written(struct op *op) {
    close_fd(&op->take.checkpoint->progress);
    load_ahead(op);
    snapshot_files_ready(op, TAKE_PTR(op->take.layer));
}

static void image_failed(struct op *op, const struct rollbox_error *error) {
    dirty_tracking_forget_unwritten(&op->session->checkpoint->tracking.dirty_tracking);
    release_dump(op);
    op_fail(op, error);
}

static void on_copied(void *data, struct layer *take_layer, int error_number) {
    (void)op_event(data, OP_EVENT_COPIED,
        &(struct op_message){ .take_layer = take_layer, .error_number = error_number });
}

static void files_copied(struct op *op, struct layer *take_layer, int error_number) {
    if (take_layer) {
        snapshot_files_ready(op, take_layer);
        return;
    }
    resume(op);
    fail_copy(op, error_number ? error_number : ENOMEM);
}

static void copy_files(struct op *op) {
    struct box *box = op->session->box;
    struct layer *layer = NULL;
    int r = session_files_layer(box, false, &layer);

    if (r == 0)
        r = copy_start(
            op->session->profile, &layer, 1, dump_job_numbers(op->take.dump_job), on_copied, op);
    if (layer)
        layer->in_use_by_box = true;
    layer_put(layer);
    if (r < 0) {
        resume(op);
        fail_copy(op, -r);
        return;
    }
    op_wait(op, OP_WAIT_COPY);
}

/* Without overlays of detached mounts a snapshot of changed files could be taken, and never be
 * used. A copy of them can be read. */
static bool lacks_layers(const struct op *op) {
    return !op->session->engine->features.overlay_layers && !(op->class->flags & OP_NEEDS_NO_LAYER);
}

static void refuse_changed_files(struct op *op) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot",
        "overlay_layers is missing (needed for %s): %s", feature_needed_for(FEATURE_OVERLAY_LAYERS),
        feature_hint(FEATURE_OVERLAY_LAYERS));
    op_fail(op, &error);
}

static void handle_frozen(struct op *op, const struct guest_record *record) {
    struct session *session = op->session;
    struct box *box = session->box;

    if (record->error) {
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error,
            "a process of the sandbox could not be paused");
        return;
    }
    if (record->value && !op->request.drops) {
        op_thaw(op);
        start_dump_of_op(op);
        return;
    }
    if (!record->value && op_files_are_pristine(box)) {
        op_thaw(op);
        session->files.dirty = false;
        op->to = session_files_unchanged(session);
        if (op->to)
            op_have_snapshot(op);
        else
            op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                "the files of the sandbox cannot be kept");
        return;
    }
    if (lacks_layers(op)) {
        op_thaw(op);
        refuse_changed_files(op);
        return;
    }
    if (!record->value && session->engine->features.overlay_layers) {
        op->to = session_files_seal(session, box);
        if (!op->to) {
            op_thaw(op);
            op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                "the files of the sandbox cannot be kept");
            return;
        }
        session_give_up_box(session);
        op_have_snapshot(op);
        return;
    }
    copy_files(op);
}

/* The processes are resumed, and nothing has changed. */
static void not_dumped(struct op *op, const struct rollbox_error *error) {
    copy_forget(op->session->engine, op);
    release_dump(op);
    op_fail(op, error);
}

static void processes_dumped(struct op *op, struct checkpoint *take_checkpoint) {
    struct session *session = op->session;

    if (!take_checkpoint->processes) {
        /* They ended meanwhile. */
        checkpoint_put(take_checkpoint);
        release_dump(op);
        op_freeze(op);
        return;
    }
    op->take.checkpoint = take_checkpoint;
    if (dump_job_is_complete(op->take.dump_job)) {
        close_fd(&op->take.checkpoint->progress);
        load_ahead(op); /* else the processes are resumed first */
    }
    if (dump_job_resumed(op->take.dump_job) || op_files_are_pristine(session->box)) {
        snapshot_files_ready(op, NULL);
        return;
    }
    preforked_drop(op->take.checkpoint); /* its box stands on other files */
    copy_files(op);
}

/* As far as the engine knows; a dump worker that finds no process reports it. */
static bool runs_something(const struct session *session) {
    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && !run->end.killed && !run->end.exited)
            return true;
    }
    return false;
}

void op_take_snapshot(struct op *op) {
    struct session *session = op->session;

    /* Commands that were started before are part of it. */
    if (!op->request.drops && op->take.follows_commands &&
        !list_empty(&session->commands.waiting)) {
        op->take.follows_commands = false;
        op_wait(op, OP_WAIT_COMMANDS_SENT);
        return;
    }
    if (session->files.dirty && session->box && lacks_layers(op) &&
        !op_files_are_pristine(session->box)) {
        refuse_changed_files(op);
        return;
    }
    if (session->files.dirty && session->box) {
        if (op->request.drops || (!runs_something(session) && box_seems_empty(session->box) != 0))
            op_freeze(op); /* of which init tells whether anything stands */
        else
            start_dump_of_op(op);
        return;
    }
    op->to = session_files_unchanged(session);
    if (op->to)
        op_have_snapshot(op);
    else
        op_fail_with(
            op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "the files of the sandbox cannot be kept");
}

/* ---- the dump ---- */

static int note_commands(void *data, struct checkpoint *checkpoint, int *masters) {
    const struct op *op = data;

    return dump_commands_note(op->session, checkpoint, masters);
}

static void on_dumped(void *data, struct checkpoint *take_checkpoint) {
    (void)op_event(
        data, OP_EVENT_DUMPED, &(struct op_message){ .take_checkpoint = take_checkpoint });
}

static void on_image_written(void *data) {
    (void)op_event(data, OP_EVENT_IMAGE_WRITTEN, NULL);
}

/* All processes were killed at the memory limit meanwhile, so the worker has nothing to dump: a
 * snapshot of the rest is taken. */
static bool ran_out_of_memory(const struct op *op) {
    struct session *session = op->session;
    enum oom_cause cause = session_oom_cause(session); /* the event may be on its way yet */

    if (cause != OOM_NONE)
        session_out_of_memory(session, cause == OOM_HOST);
    return session->watch.n_out_of_memory != op->take.n_out_of_memory;
}

static void on_dump_failed(
    void *data, const struct rollbox_error *error, enum dump_failure failure) {
    struct op *op = data;
    const bool waits = op->wait == OP_WAIT_DUMP || op->wait == OP_WAIT_IMAGE,
               may_pass = failure == DUMP_MAY_PASS ||
                          (failure == DUMP_REFUSED && waits && ran_out_of_memory(op));

    if (may_pass && op->take.n_dumps < TAKE_SNAPSHOT_MAX_DUMPS)
        (void)op_event(op, OP_EVENT_DUMP_AGAIN, NULL);
    else
        (void)op_event(op, OP_EVENT_DUMP_FAILED, &(struct op_message){ .error = error });
}

static void on_released(void *owner, bool is_broken) {
    struct session *session = owner;

    if (is_broken)
        session_broken(session);
    op_dump_released(session);
}

static int start_dump_job(struct op *op, struct rollbox_error *error) {
    static const struct dump_job_user user = { note_commands, on_dumped, on_image_written,
        on_dump_failed, on_released };
    struct session *session = op->session;

    op->take.n_out_of_memory = session->watch.n_out_of_memory;
    int r = dump_job_start(
        &(struct dump_request){ .of = session->checkpoint,
            .box = session->box,
            .base = session->files.base,
            .resumes_early = op->class->flags & OP_RESUMES_EARLY && !stays_stopped(op),
            .drops = op->request.drops,
            .stays_paused = stays_stopped(op),
            .n_forks = op->verb == VERB_FORK ? MAX(op->fork.count, 1u) : 0,
            .user = &user,
            .data = op,
            .owner = session },
        &op->take.dump_job, error);
    if (r == 0)
        op_wait(op, OP_WAIT_DUMP);
    return r;
}

/* Init has done all earlier requests, or every process is frozen. */
static void init_replied(struct op *op, const struct guest_record *record) {
    struct rollbox_error error;

    if (op->wait == OP_WAIT_FROZEN)
        handle_frozen(op, record);
    else if (start_dump_job(op, &error) < 0)
        not_dumped(op, &error);
}

void take_snapshot_event(struct op *op, enum op_event event, const struct op_message *message) {
    switch ((int)event) {
    case OP_EVENT_COMMANDS_SENT:
        op_take_snapshot(op);
        break;
    case OP_EVENT_INIT_REPLY:
        init_replied(op, message->record);
        break;
    case OP_EVENT_PROCESSES_FREE:
        if (op->wait == OP_WAIT_DUMP_SLOT)
            start_dump_of_op(op);
        else
            op_freeze(op);
        break;
    case OP_EVENT_DUMPED:
        processes_dumped(op, message->take_checkpoint);
        break;
    case OP_EVENT_DUMP_FAILED:
        if (op->wait == OP_WAIT_IMAGE)
            image_failed(op, message->error);
        else
            not_dumped(op, message->error);
        break;
    case OP_EVENT_DUMP_AGAIN:
        dump_again(op);
        break;
    case OP_EVENT_IMAGE_WRITTEN:
        image_written(op);
        break;
    case OP_EVENT_COPIED:
        files_copied(op, message->take_layer, message->error_number);
        break;
    case OP_EVENT_SIZED:
        op_have_snapshot(op);
        break;
    case OP_EVENT_COMPACTED:
        op->class->have_snapshot(op);
        break;
    default:
        op_lose_track(op);
        break;
    }
}

void take_snapshot_release(struct op *op) {
    struct take_snapshot *take = &op->take;

    if (take->dump_job)
        dump_job_release(take->dump_job);
    checkpoint_put(take->checkpoint);
    layer_put(take->layer);
}
