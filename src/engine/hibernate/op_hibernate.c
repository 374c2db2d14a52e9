/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HIBERNATE: the present state is written to the store, and the box dies. An export with processes
 * writes the same to a descriptor. hibernate.c has the model.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/checkpoint/flatten.h"
#include "engine/command/command.h"
#include "engine/core/log.h"
#include "engine/hibernate/hibernate.h"
#include "engine/ops/take_snapshot.h"
#include "engine/run/run.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/store_job.h"
#include "store/fingerprint.h"
#include "store/hibernated_check.h"

static void fail_sleep(struct op *op, const struct rollbox_error *error) {
    hibernate_put(TAKE_PTR(op->hibernate.becoming));
    op_resume_processes(op);
    op_fail(op, error);
}

static int random_id(char ret_id[HIBERNATED_ID_LENGTH + 1]) {
    uint8_t bytes[HIBERNATED_ID_LENGTH / 2];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -EIO;
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret_id + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* Descriptors of layers' roots, then of images, in the order of the record. */
static int open_parts(const struct hibernate_parts *parts, int *fds) {
    for (size_t i = 0; i < parts->n_layers; i++)
        if ((fds[i] = openat(parts->layers[i]->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            return -errno;
    for (size_t i = 0; i < parts->n_checkpoints; i++)
        if ((fds[parts->n_layers + i] =
                    fcntl(checkpoint_image(parts->checkpoints[i]), F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
    return 0;
}

static json_t *layers_of(const struct hibernate_parts *parts) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_layers; i++)
        json_array_append_new(
            list, hibernate_describe_part(i, &parts->layers[i]->backing_ref, true));
    return list;
}

/* Images dumped since the sandbox was woken share many pages with the stored image. */
static json_t *images_of(const struct hibernate_parts *parts, const struct session *session) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_checkpoints; i++) {
        bool same = parts->checkpoints[i]->backing_ref.backing;

        json_array_append_new(list,
            hibernate_describe_part(parts->n_layers + i,
                same ? &parts->checkpoints[i]->backing_ref : &session->checkpoint->backing_ref,
                same));
    }
    return list;
}

/* `to`, of an export: where it is written; else -1. */
static int start_writing(struct op *op, const char *command, const char *id, json_t *record,
    const struct hibernate_parts *parts, int to, struct rollbox_error *error) {
    struct session *session = op->session;
    size_t n = parts->n_layers + parts->n_checkpoints;
    auto_free int *fds = n > HIBERNATED_MAX_FILES ? NULL : calloc(n + 2, sizeof *fds);

    if (n > HIBERNATED_MAX_FILES)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "hibernate",
            "the sandbox has %zu layers and images of processes, of its snapshots, too; at most %d "
            "can be hibernated: drop snapshots",
            n, HIBERNATED_MAX_FILES);
    for (size_t i = 0; fds && i < n; i++)
        fds[i] = -EBADF;
    int r = fds ? open_parts(parts, fds) : -ENOMEM;
    if (r == 0) {
        json_t *job = json_pack("{s:s, s:o, s:o, s:O}", "id", id, "layers", layers_of(parts),
            "images", images_of(parts, session), "record", record);
        if (to >= 0)
            json_object_set_new(job, "to", json_integer((json_int_t)(STORE_JOB_FIRST_FD + n)));
        fds[n] = to;
        r = hibernate_job_start(op, command, job, fds, n + (to >= 0), error);
        json_decref(job);
    } else {
        error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "hibernate",
            "the sandbox cannot be handed to rollbox-store: %s", strerror(-r));
    }
    for (size_t i = 0; fds && i < n; i++)
        close_fd(&fds[i]);
    return r;
}

/* The hibernation is automatic, and a request for the session has arrived. */
static bool is_called(const struct op *op) {
    const struct session *session = op->session;
    const struct list *next = op->node.next;

    return !op->reply.client &&
           (!list_empty(&session->commands.waiting) ||
               (next != &session->queue.ops &&
                   !op_allows_hibernated(container_of(next, struct op, node))));
}

static void stay_awake(struct op *op) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "hibernate",
        "the sandbox was called before it slept");
    fail_sleep(op, &error);
}

/* work->to is the state to hibernate, and no process runs. */
static void write_state(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;
    struct hibernate_parts parts = { 0 };
    struct checkpoint *checkpoint = op->request.drops ? NULL : op->to->checkpoint;

    if (is_called(op)) {
        stay_awake(op);
        return;
    }
    /* States that nobody asked for are dropped first, so they are not written. */
    snapshot_tree_gc(session->files.tree);
    op->hibernate.becoming = calloc(1, sizeof *op->hibernate.becoming);
    json_t *record =
        op->hibernate.becoming ? hibernate_record(session, op->to, false, &parts) : NULL;
    int r = record ? 0 : hibernate_no_memory(&error, "hibernate");
    if (op->hibernate.becoming) {
        op->hibernate.becoming->lock = -EBADF;
        op->hibernate.becoming->processes = checkpoint ? checkpoint->processes : 0;
        op->hibernate.becoming->memory_bytes = checkpoint ? checkpoint_memory(checkpoint) : 0;
        snprintf(op->hibernate.becoming->snapshot, sizeof op->hibernate.becoming->snapshot, "%s",
            snapshot_nearest_visible(op->to)->id);
    }
    if (r == 0 && random_id(op->hibernate.becoming->id) < 0)
        r = error_set(
            &error, ROLLBOX_ERR_INTERNAL, EIO, "hibernate", "no random numbers are to be had");
    if (r == 0)
        r = start_writing(op, "hibernate", op->hibernate.becoming->id, record, &parts, -1, &error);
    hibernate_parts_done(&parts);
    json_decref(record);
    if (r < 0)
        fail_sleep(op, &error);
}

static int export_hibernated(struct op *op, struct rollbox_error *error) {
    json_t *job = json_pack("{s:s, s:[], s:[], s:b, s:i}", "id", op->session->sleep->id, "layers",
        "images", "asleep", true, "to", STORE_JOB_FIRST_FD);
    int r = hibernate_job_start(op, "export-live", job, &op->request.fd, 1, error);

    json_decref(job);
    return r;
}

static int export_live(struct op *op, struct rollbox_error *error) {
    struct hibernate_parts parts = { 0 };
    char id[HIBERNATED_ID_LENGTH + 1];
    json_t *record = hibernate_record(op->session, op->to, true, &parts);
    int r = !record ? hibernate_no_memory(error, "export")
            : random_id(id) < 0
                ? error_set(
                      error, ROLLBOX_ERR_INTERNAL, EIO, "export", "no random numbers are to be had")
                : start_writing(op, "export-live", id, record, &parts, op->request.fd, error);

    hibernate_parts_done(&parts);
    json_decref(record);
    return r;
}

void hibernate_export(struct op *op) {
    struct rollbox_error error;
    int r = op->request.fd < 0 ? error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
                                     "the request has no descriptor")
            : op->to           ? export_live(op, &error)
                               : export_hibernated(op, &error);

    if (r < 0)
        op_fail(op, &error);
}

static void start_hibernate(struct op *op) {
    struct buf nothing = BUF_INIT;

    if (op->session->sleep)
        op_done(op, &nothing);
    else
        op_take_snapshot(op);
}

/* Commands that are under way continue when it wakes, as copies that nobody waits for. */
static void end_runs(struct session *session) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_QUEUED)
            continue; /* it came meanwhile, and wakes it */
        run->init.serial = 0;
        if (run->end.outcome == ROLLBOX_OUTCOME_ERROR || run->end.killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
                "the sandbox was hibernated while the command ran; the command resumes when the "
                "sandbox wakes: ask for it by its id then");
    }
}

static void fall_asleep(struct op *op) {
    struct session *session = op->session;
    struct snapshot *beginning = NULL;
    struct snapshot_tree *tree = snapshot_tree_new(session->engine, &beginning);
    struct buf nothing = BUF_INIT;

    /* It is dead: they can be let go of. */
    op->take.dump_job = dump_job_free(op->take.dump_job);
    op->take.keeps_stopped = false;
    if (!tree) {
        /* It sleeps all the same, only that its states stay here, too. */
        tree = session->files.tree;
        tree->references++;
        beginning = snapshot_get(container_of(tree->snapshots.next, struct snapshot, in_tree));
    }
    snapshot_put(op->to);
    op->to = NULL;
    op->take.checkpoint = checkpoint_put(op->take.checkpoint);
    hibernate_drop_states(session, tree, beginning);
    session->sleep = TAKE_PTR(op->hibernate.becoming);
    hibernate_leave_profile(session);
    op_done(op, &nothing);
}

/* It is in the store, whole. */
static void handle_written(struct op *op, const json_t *answer, int take_lock) {
    struct session *session = op->session;

    op->hibernate.becoming->lock = take_lock;
    op->hibernate.becoming->disk_bytes =
        (uint64_t)json_integer_value(json_object_get(answer, "bytes"));
    op->hibernate.becoming->written_bytes =
        (uint64_t)json_integer_value(json_object_get(answer, "written"));
    end_runs(session);
    if (!session->box) {
        fall_asleep(op);
        return;
    }
    op_wait(op, OP_WAIT_BOX_DEATH);
    if (op->take.dump_job)
        dump_job_kill(op->take.dump_job);
    if (session->box->state != BOX_DYING)
        box_kill(session->box);
}

static void store_has_written(struct op *op, const struct op_message *message) {
    auto_close int lock = message->take_lock;
    struct rollbox_error without;

    if (message->error) {
        fail_sleep(op, message->error);
    } else if (lock < 0) {
        error_set(&without, ROLLBOX_ERR_INTERNAL, EMFILE, "hibernate",
            "the lock on what was written could not be had");
        hibernate_abandoned(op->session->engine, op->hibernate.becoming->id);
        fail_sleep(op, &without);
    } else {
        handle_written(op, message->answer, TAKE_FD(lock));
    }
}

static void hibernate_event(struct op *op, enum op_event event, const struct op_message *message) {
    switch ((int)event) {
    case OP_EVENT_STORE_JOB_DONE:
        store_has_written(op, message);
        break;
    case OP_EVENT_BOX_DEAD:
        fall_asleep(op);
        break;
    case OP_EVENT_CANCEL:
        hibernate_job_give_up(op);
        stay_awake(op);
        break;
    default:
        take_snapshot_event(op, event, message);
        break;
    }
}

/* All snapshots that the session stands on and comes from are written, most often all there are. */
static struct checkpoint *wants_full_image(const struct op *op) {
    list_for_each(at, &op->session->files.tree->snapshots) {
        struct checkpoint *checkpoint = container_of(at, struct snapshot, in_tree)->checkpoint;

        if (flatten_is_lacking(checkpoint))
            return checkpoint;
    }
    return NULL;
}

static void release_hibernate(struct op *op) {
    hibernate_put(op->hibernate.becoming);
    take_snapshot_release(op);
}

const struct op_class op_hibernate_class = { .verb = VERB_HIBERNATE,
    .flags = OP_LEAVES_ASLEEP | OP_YIELDS_TO_CALLS,
    .start = start_hibernate,
    .wants_full_image = wants_full_image,
    .have_snapshot = write_state,
    .event = hibernate_event,
    .release = release_hibernate };
