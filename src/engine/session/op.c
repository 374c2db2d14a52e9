/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common part of all operations (op.h has the model).
 *
 * op_event checks an event against the wait (op_state.h) and hands it to the class of the verb. An
 * operation that the engine has lost track of is ended with its sandbox, from the loop.
 */
#include "engine/session/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/disk_upper.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/flatten.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/layer_chain.h"
#include "engine/session/op_state.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/store_job.h"
#include "engine/core/verb_names.h"

/* Set once, at the start. */
static const struct op_class *const *classes;
static size_t n_classes;

void op_set_classes(const struct op_class *const *all, size_t n) {
    classes = all;
    n_classes = n;
}

/* NULL: a verb that is answered at once. */
static const struct op_class *class_of(enum protocol_verb verb) {
    for (size_t i = 0; i < n_classes; i++)
        if (classes[i]->verb == verb)
            return classes[i];
    return NULL;
}

/* ---- the beginning and the end ---- */

struct op *op_new(
    struct session *session, enum protocol_verb verb, struct client *client, uint64_t serial) {
    const struct op_class *class = class_of(verb);
    struct op *op = class ? calloc(1, sizeof *op) : NULL;

    if (!op)
        return NULL;
    op->session = session;
    op->reply.client = client;
    op->reply.serial = serial;
    op->class = class;
    op->verb = verb;
    op->since_ns = clock_now_ns();
    op->take.follows_commands = !list_empty(&session->commands.waiting);
    op->request.fd = -EBADF;
    list_add_tail(&session->queue.ops, &op->node);
    session->queue.n_ops++;
    return op;
}

struct op *op_add(struct session *session, enum protocol_verb verb, bool first) {
    struct op *op = op_new(session, verb, NULL, 0);

    if (op && first) {
        list_remove(&op->node);
        list_add_tail(session->queue.ops.next, &op->node);
    }
    return op;
}

struct op *op_free(struct op *op) {
    if (!op)
        return NULL;
    if (!list_empty(&op->node))
        op->session->queue.n_ops--;
    list_remove(&op->node);
    copy_forget(op->session->engine, op);
    op->store_job = store_job_free(op->store_job);
    op->flatten_job = flatten_free(op->flatten_job);
    if (op->class->release)
        op->class->release(op);
    close_fd(&op->request.fd);
    snapshot_unpin(op->pinned);
    snapshot_put(op->from);
    snapshot_put(op->to);
    free(op->request.name);
    free(op);
    return NULL;
}

/* The next one starts from the loop's point of view at once. */
static void retire_op(struct op *op) {
    struct session *session = op->session;

    op_free(op);
    snapshot_tree_gc(session->files.tree);
    session_schedule(session);
}

void op_fail(struct op *op, const struct rollbox_error *error) {
    bool is_create = op->verb == VERB_CREATE;
    struct session *session = op->session;

    verb_count_failure(op->verb);
    log_at(LOG_WARN, "operation", ABOUT(.sandbox = session->name, .op = verb_name(op->verb)),
        "failed: %s", error->message);
    op_wait(op, OP_WAIT_DONE);
    session_events_op_ended(op, error);
    if (op->class->failed)
        op->class->failed(op, error);
    if (op->reply.client)
        client_fail(op->reply.client, op->reply.serial, error);
    if (session->state == SESSION_CLOSING) {
        op_free(op);
        return;
    }
    if (is_create && session->queue.end == SESSION_GOES_ON)
        session->queue.end = SESSION_IS_UNMADE;
    retire_op(op);
}

void op_fail_with(
    struct op *op, enum rollbox_error_code code, int error_number, const char *message) {
    struct rollbox_error error;

    error_set(&error, code, error_number, "run", "%s%s%s", message, error_number ? ": " : "",
        error_number ? strerror(error_number) : "");
    op_fail(op, &error);
}

void op_done(struct op *op, struct buf *json) {
    log_at(LOG_INFO, "operation", ABOUT(.sandbox = op->session->name, .op = verb_name(op->verb)),
        "done");
    op_wait(op, OP_WAIT_DONE);
    session_events_op_ended(op, NULL);
    if (op->reply.client)
        client_reply(op->reply.client, op->reply.serial, json);
    buf_done(json);
    if (op->session->state == SESSION_CLOSING)
        op_free(op);
    else
        retire_op(op);
}

/* ---- waits and events ---- */

void op_lose_track(struct op *op) {
    op->session->queue.end = SESSION_IS_LOST;
    session_schedule(op->session);
}

void op_wait(struct op *op, enum op_wait wait) {
    const struct log_about about = {
        .sandbox = op->session->name, .op = verb_name(op->verb), .wait = op_wait_name(op->wait)
    };

    if (!op_wait_may_follow(op->wait, wait)) {
        log_at(LOG_ERROR, "operation", &about, "must not wait for %s now", op_wait_name(wait));
        op_lose_track(op);
    }
    op->wait = wait;
    op->since_ns = clock_now_ns();
    log_at(LOG_DEBUG, "operation",
        ABOUT(.sandbox = about.sandbox, .op = about.op, .wait = op_wait_name(wait)), "waits");
}

/* 0: the operation starts without the image. */
static int refuse_flatten(struct op *op, int r) {
    struct rollbox_error error;

    if (op->class->flags & OP_STARTS_UNFLATTENED) {
        op->take.flatten_failed = true;
        return 0;
    }
    if (r == -ECHILD)
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot",
            "the process that put the image of the processes together was killed from outside; try "
            "again");
    else
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot",
            "the image of the processes cannot be put together: %s", strerror(-r));
    op_fail(op, &error);
    return r;
}

static void on_flattened(void *data, int error_number) {
    struct op *op = data;

    op->flatten_job = NULL;
    if (error_number == 0 || refuse_flatten(op, error_number) == 0)
        (void)op_event(op, OP_EVENT_FLATTENED, NULL);
}

/* True: the operation starts when the image is complete, or has failed. */
static bool begin_flatten(struct op *op) {
    struct checkpoint *checkpoint =
        op->session->sleep || !op->class->wants_full_image ? NULL : op->class->wants_full_image(op);

    if (!checkpoint)
        return false;
    int r = flatten_start(checkpoint, op->session->profile, on_flattened, op, &op->flatten_job);
    if (r == 0)
        op_wait(op, OP_WAIT_FLATTEN);
    return r == 0 || refuse_flatten(op, r) < 0;
}

static void start_op(struct op *op) {
    op_wait(op, OP_WAIT_STARTED);
    if (!begin_flatten(op))
        op->class->start(op);
}

/* Its box is dead, which nobody asked for. */
static void op_lost_box(struct op *op) {
    if (op->wait == OP_WAIT_DUMP_SLOT || op->wait == OP_WAIT_INIT_ACK || op->take.dump_job)
        op_fail_with(op, ROLLBOX_ERR_SETUP_FAILED, ECHILD,
            "the sandbox's init was killed from outside; its files are kept, its processes are "
            "gone");
    else if (op->wait == OP_WAIT_BOX_LOST || op->wait == OP_WAIT_FREEZE_SLOT ||
             (op->wait == OP_WAIT_FROZEN && op->verb != VERB_PAUSE))
        start_op(op); /* on the files that were kept */
    else if (op->wait == OP_WAIT_BOX_READY || op->wait == OP_WAIT_FROZEN ||
             op->wait == OP_WAIT_WALK)
        op_fail_with(
            op, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "the sandbox's init was killed from outside");
    else
        session_schedule(op->session);
}

static void drop_message(const struct op_message *message) {
    if (!message)
        return;
    checkpoint_put(message->take_checkpoint);
    layer_put(message->take_layer);
    if (message->take_text)
        buf_done(message->take_text);
    if (message->take_lock > 0)
        close(message->take_lock);
}

bool op_event(struct op *op, enum op_event event, const struct op_message *message) {
    const struct log_about about = {
        .sandbox = op->session->name, .op = verb_name(op->verb), .wait = op_wait_name(op->wait)
    };
    enum op_answer answer = op_wait_takes(op->wait, event);

    if (answer != OP_EVENT_IS_TAKEN) {
        if (answer == OP_EVENT_IS_ILLEGAL) {
            log_at(LOG_ERROR, "operation", &about, "the event %s must not come now",
                op_event_name(event));
            op_lose_track(op);
        }
        drop_message(message);
        return false;
    }
    log_at(LOG_DEBUG, "operation", &about, "event %s", op_event_name(event));
    if (event == OP_EVENT_START || event == OP_EVENT_FLATTENED)
        start_op(op);
    else if (event == OP_EVENT_BOX_LOST)
        op_lost_box(op);
    else if (op->class->event)
        op->class->event(op, event, message);
    else
        op_lose_track(op);
    return true;
}

void op_store_job_done(struct op *op, struct buf *take_answer, const struct rollbox_error *error) {
    if (op)
        (void)op_event(op, OP_EVENT_STORE_JOB_DONE,
            &(struct op_message){ .error = error, .take_text = take_answer });
    else
        buf_done(take_answer);
}

bool session_event(struct session *session, enum op_event event, const struct op_message *message) {
    struct op *op = session_first_op(session);

    if (!op)
        drop_message(message);
    return op && op_event(op, event, message);
}

bool op_allows_hibernated(const struct op *op) {
    return (op->class->flags & OP_LEAVES_ASLEEP) || (op_is_live_export(op) && !op->from);
}

void op_session_called(struct session *session) {
    struct op *op = session_first_op(session);

    if (!op || !(op->class->flags & OP_YIELDS_TO_CALLS) || op->reply.client || !op->store_job)
        return;
    session_touch(session); /* its timer has run out, and not every call sets it */
    (void)op_event(op, OP_EVENT_CANCEL, NULL);
}

void op_init_reply(struct session *session, const struct guest_record *record) {
    struct op *op = session_first_op(session);
    bool is_awaited = op && op->take.init_serial == record->serial &&
                      op_wait_takes(op->wait, OP_EVENT_INIT_REPLY) == OP_EVENT_IS_TAKEN;

    /* Of an idle pause: some processes could not be frozen, and all resume. */
    if (!record->serial && record->kind == GUEST_FROZEN && record->error &&
        session->state == SESSION_PAUSED)
        session->state = SESSION_LIVE;
    /* Otherwise it is of a pause that nobody waits for, or a signal. */
    if (is_awaited)
        (void)op_event(op, OP_EVENT_INIT_REPLY, &(struct op_message){ .record = record });
}

/* The processes that were to be restored will not be. */
static void go_without(struct session *session) {
    session->checkpoint->pending_restore = checkpoint_put(session->checkpoint->pending_restore);
    session->checkpoint->restore_state = RESTORE_WAITS;
    snapshot_put(session_files_unchanged(session));
}

void op_session_ready(struct session *session, const struct rollbox_error *error) {
    const struct op_message message = { .error = error };
    struct op *op = session->queue.fork;
    struct op *own = session_first_op(session);

    if (op && op->verb == VERB_VERIFY) {
        (void)op_event(op, OP_EVENT_TRIED, &message);
        return;
    }
    /* A sandbox that wakes sleeps on if it fails. */
    const bool is_of_own = own && op_wait_takes(own->wait, OP_EVENT_BOX_READY) == OP_EVENT_IS_TAKEN;
    if (error && session->checkpoint->pending_restore && !op && session->state != SESSION_CLOSING &&
        !(is_of_own && own->verb != VERB_RESET))
        go_without(session);
    if (is_of_own) {
        (void)op_event(own, OP_EVENT_BOX_READY, &message);
        return;
    }
    /* One that is made by a fork goes with the fork, and its own operations with it. */
    if (!op && own && error && (own->wait == OP_WAIT_FROZEN || own->wait == OP_WAIT_BOX_LOST))
        op_fail(own, error);
    if (!op)
        return;
    session->queue.fork = NULL;
    (void)op_event(op, OP_EVENT_CHILD_READY, &message);
}

void op_box_lost(struct session *session) {
    struct op *op = session_first_op(session);
    struct rollbox_error error;

    if (session->queue.fork || (op && op->wait == OP_WAIT_RESTORE)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "setup",
            "the sandbox's init was killed from outside");
        op_session_ready(session, &error);
        return; /* it goes with the fork */
    }
    if (!session_event(session, OP_EVENT_BOX_LOST, NULL))
        session_schedule(session);
}

void op_measured(struct layer *layer) {
    struct engine *engine = layer->upper->engine;

    layer->bytes = layer->upper->bytes;
    layer->entries = layer->upper->entries;
    layer_get(layer);
    list_for_each(at, &engine->sessions.all) {
        struct session *session = container_of(at, struct session, node);
        struct op *op = session_first_op(session);

        if (op && op->to && op->to->layer == layer && op_event(op, OP_EVENT_SIZED, NULL))
            break; /* sessions may have come and gone; one operation takes a state */
    }
    layer_put(layer);
}

void op_compacted(struct engine *engine, struct snapshot *snapshot) {
    list_for_each(at, &engine->sessions.all) {
        struct session *session = container_of(at, struct session, node);
        struct op *op = session_first_op(session);

        if (op && op->to == snapshot && op_event(op, OP_EVENT_COMPACTED, NULL))
            return op_compacted(engine, snapshot);
    }
}

void op_dump_released(struct session *session) {
    if (session->checkpoint->was_thawed && session->state == SESSION_PAUSED)
        (void)session_freeze(session, 0);
    session->checkpoint->was_thawed = false;
    (void)session_event(session, OP_EVENT_PROCESSES_FREE, NULL);
}

bool op_hold_frozen(struct session *session) {
    struct op *op = session->state == SESSION_CLOSING || session->sleep
                        ? NULL
                        : op_add(session, VERB_PAUSE, false);

    if (!op)
        return false;
    op->pause.for_walk = true;
    session_schedule(session);
    return true;
}

void op_disk_walked(struct session *session) {
    (void)session_event(session, OP_EVENT_WALKED, NULL);
}
