/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernating and waking.
 *
 * To sleep: the present state is taken as for a snapshot, but what was captured is not let go.
 * rollbox-store writes the layers and images to the disk, with the session's record; once that is
 * whole and its lock is ours, the box dies, and with it the states that only this session had. What
 * is left here is a struct hibernated. Should anything fail before, the processes go on as after a
 * snapshot; should the engine die, the store has all of it or nothing.
 *
 * Awake: the launcher makes empty layers, rollbox-store checks every digest and fills them, the
 * states are made again from the record, and the box is restored like any that has processes. Only
 * then is it out of the store. A call that needs the sandbox (a command, files, a work) puts a WAKE
 * before itself; one that is answered at once is kept until then (struct op.deferred).
 *
 * What it was woken from stays in the store, as woken/ID, while a layer or image is held that came
 * of it, or processes run that did: what has not changed since is not written when it sleeps again,
 * it or another that has it (store/dedup_write.h).
 *
 * A detached session of a shared engine survives that: the next engine on the same socket finds it
 * in the store (hibernate_reattach).
 */
#include "engine/hibernate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/op.h"
#include "store/hibernated_check.h"
#include "store/fingerprint.h"

#define IMAGE_BESIDES (64ull << 20) /* what an image has besides memory */
#define LOCK_WAIT_MS 200
#define LAYER_SLACK 16 /* as a part: files take up a little more or less in another tmpfs */
#define LAYERS_AT_ONCE                                                                             \
    64 /* that a launcher is asked for: its socket has not room for any number                     \
        */

/* A layer that is being made. */
struct filling {
    struct op *op;
    struct layer *layer;
};

/* What the store has of one that was woken. */
struct backing {
    struct engine *engine;
    unsigned references;
    char id[HIBERNATED_ID_LENGTH + 1];
    int lock; /* of its record.json; -EBADF: it is not in woken/ (yet) */
};

struct wake_op {
    json_t *whole;  /* as the store has it */
    json_t *record; /* what is ours of that; borrowed */
    struct filling *layers;
    size_t n_layers, n_asked, n_made, n_images;
    struct hibernated *sleep; /* while it is restored: back to that if it fails */
    struct backing *backing;  /* what the layers and images are said to come from; a reference */
    int *images;
    bool is_counted; /* among the program's n_wakers */
    bool is_kept;    /* in woken/: its processes may go on */
};

static int store_of(struct engine *engine, int *ret_store, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int r =
        engine->store_path
            ? store_default_path(&path, error)
            : error_set(error, ROLLBOX_ERR_ENGINE_START, ENOENT, "run",
                  "rollbox-store cannot be found beside the engine; is the installation complete?");

    return r < 0 ? r : store_open(path, ret_store, error);
}

static int no_memory(struct rollbox_error *error, const char *stage) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, stage, "out of memory");
}

static struct hibernated *hibernate_put(struct hibernated *sleep) {
    if (sleep)
        close_fd(&sleep->lock);
    free(sleep);
    return NULL;
}

/* ---- what it was woken from ---- */

static struct backing *backing_put(struct backing *backing) {
    auto_close int store = -EBADF;

    if (!backing || --backing->references)
        return NULL;
    if (backing->lock >= 0) {
        if (store_of(backing->engine, &store, NULL) == 0 &&
            hibernated_remove(store, WOKEN_DIRECTORY, backing->id) == 0)
            store_job_forget(backing->engine);
        close_fd(&backing->lock);
        backing->engine->files--;
    }
    free(backing);
    return NULL;
}

void backing_ref_set(struct backing_ref *backing_ref, struct backing *backing, size_t index) {
    backing->references++;
    *backing_ref = (struct backing_ref){ backing, index };
}

struct backing_ref backing_ref_of(const struct backing_ref *backing_ref) {
    if (backing_ref->backing)
        backing_ref->backing->references++;
    return *backing_ref;
}

void backing_ref_put(struct backing_ref *backing_ref) {
    backing_ref->backing = backing_put(backing_ref->backing);
}

/* ---- to sleep ---- */

/* Nothing of its states is needed here any more. */
static void drop_states(
    struct session *session, struct snapshot_tree *tree, struct snapshot *beginning) {
    session_give_up_box(session);
    session->pending_restore = checkpoint_put(session->pending_restore);
    backing_ref_put(&session->backing_ref);
    snapshot_put(session->base);
    snapshot_put(session->at);
    session->committed = snapshot_put(session->committed);
    snapshot_tree_put(session->tree);
    session->tree = tree;
    session->base = beginning;
    session->at = snapshot_get(beginning);
    session->dirty = false;
    session->state = SESSION_NEW;
}

static void leave_program(struct session *session) {
    struct profile *profile = session->profile;

    profile->n_sleepers++;
    profile->n_sessions--;
    session->engine->files++; /* the lock */
    profile_rest(profile);
}

static void enter_program(struct session *session) {
    session->profile->n_sleepers--;
    session->profile->n_sessions++;
    session->engine->files--;
}

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

/* A descriptor of rollbox-store's, and what is known of what it leads to. */
static json_t *describe_part(size_t number, const struct backing_ref *backing_ref, bool same) {
    int fd = (int)(ERRAND_FIRST_FD + number);

    return backing_ref && backing_ref->backing
               ? json_pack("{s:i, s:s, s:I, s:b}", "fd", fd, "kept", backing_ref->backing->id,
                     "index", (json_int_t)backing_ref->index, "same", same)
               : json_pack("{s:i}", "fd", fd);
}

static json_t *layers_of(const struct hibernate_parts *parts) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_layers; i++)
        json_array_append_new(list, describe_part(i, &parts->layers[i]->backing_ref, true));
    return list;
}

/* What was captured since it was woken has much of what it was woken with. */
static json_t *images_of(const struct hibernate_parts *parts, const struct session *session) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_checkpoints; i++) {
        bool same = parts->checkpoints[i]->backing_ref.backing;

        json_array_append_new(
            list, describe_part(parts->n_layers + i,
                      same ? &parts->checkpoints[i]->backing_ref : &session->backing_ref, same));
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
            "the sandbox has %zu layers and images of processes, of its snapshots, too; %d can be "
            "put to sleep: drop snapshots",
            n, HIBERNATED_MAX_FILES);
    for (size_t i = 0; fds && i < n; i++)
        fds[i] = -EBADF;
    int r = fds ? open_parts(parts, fds) : -ENOMEM;
    if (r == 0) {
        json_t *job = json_pack("{s:s, s:o, s:o, s:O}", "id", id, "layers", layers_of(parts),
            "images", images_of(parts, session), "record", record);
        if (to >= 0)
            json_object_set_new(job, "to", json_integer((json_int_t)(ERRAND_FIRST_FD + n)));
        fds[n] = to;
        r = store_job_hibernate(op, command, job, fds, n + (to >= 0), error);
        json_decref(job);
    } else {
        error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "hibernate",
            "the sandbox cannot be handed to rollbox-store: %s", strerror(-r));
    }
    for (size_t i = 0; fds && i < n; i++)
        close_fd(&fds[i]);
    return r;
}

static bool lets_sleep(const struct op *op) {
    return (op->class->flags & OP_LEAVES_ASLEEP) || (op_is_live_export(op) && !op->from);
}

/* Nobody asked for its sleep, and somebody wants something of it. */
static bool is_called(const struct op *op) {
    const struct session *session = op->session;
    const struct list *next = op->node.next;

    return !op->client &&
           (!list_empty(&session->waiting) ||
               (next != &session->ops && !lets_sleep(container_of(next, struct op, node))));
}

static void stay_awake(struct op *op) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "hibernate",
        "the sandbox was called before it slept");
    fail_sleep(op, &error);
}

void hibernate_cancel(struct session *session) {
    struct op *op = session_first_op(session);

    if (!op || op->verb != VERB_HIBERNATE || op->client || !op->store_job)
        return;
    session_touch(session); /* its timer is over: not every call is noted as one */
    (void)op_event(op, OP_EVENT_CANCEL, NULL);
}

/* work->to is what is to sleep, and nothing moves. */
static void write_state(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;
    struct hibernate_parts parts = { 0 };
    struct checkpoint *checkpoint = op->drops ? NULL : op->to->checkpoint;

    if (is_called(op)) {
        stay_awake(op);
        return;
    }
    /* What nobody asked for is not written, either. */
    snapshot_tree_gc(session->tree);
    op->hibernate.becoming = calloc(1, sizeof *op->hibernate.becoming);
    json_t *record =
        op->hibernate.becoming ? hibernate_record(session, op->to, false, &parts) : NULL;
    int r = record ? 0 : no_memory(&error, "hibernate");
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
        "images", "asleep", true, "to", ERRAND_FIRST_FD);
    int r = store_job_hibernate(op, "export-live", job, &op->export.fd, 1, error);

    json_decref(job);
    return r;
}

static int export_live(struct op *op, struct rollbox_error *error) {
    struct hibernate_parts parts = { 0 };
    char id[HIBERNATED_ID_LENGTH + 1];
    json_t *record = hibernate_record(op->session, op->to, true, &parts);
    int r = !record ? no_memory(error, "export")
            : random_id(id) < 0
                ? error_set(
                      error, ROLLBOX_ERR_INTERNAL, EIO, "export", "no random numbers are to be had")
                : start_writing(op, "export-live", id, record, &parts, op->export.fd, error);

    hibernate_parts_done(&parts);
    json_decref(record);
    return r;
}

void hibernate_export(struct op *op) {
    struct rollbox_error error;
    int r = op->export.fd < 0 ? error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
                                    "the request has no descriptor")
            : op->to          ? export_live(op, &error)
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

/* Commands that were under way go on when it wakes, as copies that nobody waits for. */
static void end_runs(struct session *session) {
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_QUEUED)
            continue; /* it came meanwhile, and wakes it */
        run->exec = 0;
        if (run->outcome == ROLLBOX_OUTCOME_ERROR || run->killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
                "the sandbox was put to sleep while the command ran, which goes on when it wakes: "
                "ask for it by its id then");
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
        tree = session->tree;
        tree->references++;
        beginning = snapshot_get(container_of(tree->snapshots.next, struct snapshot, in_tree));
    }
    snapshot_put(op->to);
    op->to = NULL;
    op->take.checkpoint = checkpoint_put(op->take.checkpoint);
    drop_states(session, tree, beginning);
    session->sleep = TAKE_PTR(op->hibernate.becoming);
    leave_program(session);
    op_done(op, &nothing);
}

bool hibernate_box_dead(struct session *session) {
    return session_event(session, OP_EVENT_BOX_DEAD, NULL);
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

/* ---- awake ---- */

/* The launcher that makes its layers has to be the one that restores it: another may not mount
 * them. */
static void count_waker(struct op *op) {
    op->wake.progress->is_counted = true;
    op->session->profile->n_wakers++;
}

static void discount_waker(struct op *op) {
    if (op->wake.progress && op->wake.progress->is_counted)
        op->session->profile->n_wakers--;
    if (op->wake.progress)
        op->wake.progress->is_counted = false;
}

static void release_wake(struct op *op) {
    discount_waker(op);
    struct wake_op *wake_op = TAKE_PTR(op->wake.progress);

    if (op->wake.deferred)
        wire_message_done(op->wake.deferred);
    free(op->wake.deferred);
    if (!wake_op)
        return;
    for (size_t i = 0; i < wake_op->n_layers; i++) {
        copy_forget(op->session->engine, &wake_op->layers[i]);
        layer_put(wake_op->layers[i].layer);
    }
    for (size_t i = 0; i < wake_op->n_images; i++)
        close_fd(&wake_op->images[i]);
    backing_put(wake_op->backing);
    hibernate_put(wake_op->sleep);
    json_decref(wake_op->whole);
    free(wake_op->layers);
    free(wake_op->images);
    free(wake_op);
}

/*
 * An engine that dies takes with it what is awake. If it could die after processes went on, and
 * before the store knew, the next engine would offer a state that has run on since.
 */
int sleep_consume(struct session *session, struct rollbox_error *error) {
    struct op *op = session_first_op(session);
    struct wake_op *wake_op = op && op->verb == VERB_WAKE ? op->wake.progress : NULL;
    auto_close int store = -EBADF;

    if (!wake_op || !wake_op->sleep || wake_op->is_kept)
        return 0;
    int r = store_of(session->engine, &store, error);
    if (r < 0)
        return r;
    r = hibernated_keep(store, wake_op->sleep->id);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake",
            "the store cannot note that the sandbox wakes: %s", strerror(-r));
    wake_op->is_kept = true;
    return 0;
}

static void consume_not(struct engine *engine, struct wake_op *wake_op) {
    auto_close int store = -EBADF;

    if (wake_op && wake_op->is_kept && wake_op->sleep && store_of(engine, &store, NULL) == 0 &&
        hibernated_forget_kept(store, wake_op->sleep->id) == 0)
        wake_op->is_kept = false;
}

/* Whoever waits for it is told; it sleeps on. */
static void fail_wake(struct op *op, const struct rollbox_error *error) {
    struct session *session = op->session;

    discount_waker(op);
    consume_not(session->engine, op->wake.progress);
    if (op->wake.progress && op->wake.progress->sleep) {
        struct snapshot *beginning = NULL;
        struct snapshot_tree *tree = snapshot_tree_new(session->engine, &beginning);

        if (tree) {
            drop_states(session, tree, beginning);
            session->sleep = TAKE_PTR(op->wake.progress->sleep);
            leave_program(session);
        }
    }
    while (!list_empty(&session->waiting)) {
        struct run *run = container_of(session->waiting.next, struct run, in_queue);

        list_remove(&run->in_queue);
        run_fail(run, error->code, error->error_number, error->stage, error->message);
    }
    list_for_each(node, &session->ops) {
        struct op *other = container_of(node, struct op, node);

        if (other != op && other->wait == OP_WAIT_QUEUED) {
            op_wait(other, OP_WAIT_DONE);
            list_remove(&other->node);
            record_op_ended(other, error);
            if (other->client)
                client_fail(other->client, other->serial, error);
            op_free(other);
        }
    }
    if (op->wake.deferred && op->wake.deferred->header.type == PROTOCOL_ATTACH && op->client) {
        result_send_error(op->client, op->serial, error);
        op->client = NULL;
    }
    op_fail(op, error);
}

/* What was kept for it is asked for again. */
static void take_up(struct op *op) {
    struct wire_message *deferred = TAKE_PTR(op->wake.deferred);
    struct client *client = op->client;

    if (!deferred)
        return;
    op->client = NULL;
    if (client)
        (void)client->engine->handle_request(client, deferred);
    wire_message_done(deferred);
    free(deferred);
}

static void handle_woken(struct op *op) {
    struct session *session = op->session;
    struct hibernated *sleep = TAKE_PTR(op->wake.progress->sleep);
    struct buf nothing = BUF_INIT;
    auto_close int store = -EBADF;

    /* Before anything is done in it that is not in the store. */
    if (op->wake.progress->is_kept ||
        (store_of(session->engine, &store, NULL) == 0 && hibernated_keep(store, sleep->id) == 0)) {
        op->wake.progress->backing->lock = TAKE_FD(sleep->lock);
        session->engine->files++;
    } else {
        hibernate_abandoned(session->engine, sleep->id);
    }
    hibernate_put(sleep);
    /* Nobody can name it, and what runs now is not that any more: its memory is not held twice. */
    if (!session->at->is_asked_for)
        session->at->checkpoint = checkpoint_put(session->at->checkpoint);
    session_touch(session);
    take_up(op);
    op_done(op, &nothing);
}

/* An image that is a difference is put together in memory. */
static int make_images(struct op *op, struct rollbox_error *error) {
    const json_t *rows = json_object_get(op->wake.progress->whole, "images");
    struct wake_op *wake_op = op->wake.progress;

    wake_op->images = calloc(json_array_size(rows) + 1, sizeof *wake_op->images);
    if (!wake_op->images)
        return no_memory(error, "wake");
    for (; wake_op->n_images < json_array_size(rows); wake_op->n_images++) {
        bool is_difference = json_object_get(json_array_get(rows, wake_op->n_images), "over");
        int fd = is_difference ? checkpoint_new_image(op->session->profile) : -EBADF;

        if (is_difference && fd < 0)
            return error_set(error, error_code_of(-fd, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -fd, "wake",
                "there is no room for the image of the processes: %s", strerror(-fd));
        wake_op->images[wake_op->n_images] = fd;
    }
    return 0;
}

static int open_images(struct op *op, struct rollbox_error *error) {
    struct wake_op *wake_op = op->wake.progress;
    auto_close int store = -EBADF;
    int r = store_of(op->session->engine, &store, error);

    for (size_t i = 0; r == 0 && i < wake_op->n_images; i++) {
        char path[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + 32];

        snprintf(
            path, sizeof path, HIBERNATED_DIRECTORY "/%s/image-%zu", op->session->sleep->id, i);
        /* A file of the store's nobody has open for writing, and never will. */
        if (wake_op->images[i] >= 0)
            r = checkpoint_seal_image(&wake_op->images[i]);
        else if ((wake_op->images[i] = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
            r = -errno;
        if (r < 0)
            return error_set(error, ROLLBOX_ERR_IO, -r, "wake",
                "the image of the processes cannot be opened: %s", strerror(-r));
    }
    return r;
}

/* What was made of it says so. */
static int name_origins(struct op *op, struct rollbox_error *error) {
    struct wake_op *wake_op = op->wake.progress;

    wake_op->backing = calloc(1, sizeof *wake_op->backing);
    if (!wake_op->backing)
        return no_memory(error, "wake");
    *wake_op->backing =
        (struct backing){ .engine = op->session->engine, .references = 1, .lock = -EBADF };
    memcpy(wake_op->backing->id, op->session->sleep->id, sizeof wake_op->backing->id);
    for (size_t i = 0; i < wake_op->n_layers; i++)
        backing_ref_set(&wake_op->layers[i].layer->backing_ref, wake_op->backing, i);
    return 0;
}

/* Works that were asked for before it slept name states of that time, which have the same ids. */
static void rebind_session(struct session *session) {
    list_for_each(item, &session->ops) {
        struct op *op = container_of(item, struct op, node);
        struct snapshot **named[] = { &op->from, &op->to };

        for (size_t i = 0; i < ARRAY_SIZE(named); i++) {
            struct snapshot *now = *named[i] ? snapshot_find(session->tree, (*named[i])->id) : NULL;

            if (!now)
                continue;
            snapshot_get(now);
            snapshot_put(*named[i]);
            *named[i] = now;
        }
        snapshot_unpin(op->pinned);
        op->pinned = snapshot_pin(op->from);
    }
}

/* What was captured under a policy has no more memory than that gives, but for tables, and what
 * waits in pipes and sockets. */
static int check_images(const struct op *op, struct rollbox_error *error) {
    const uint64_t most = op->session->profile->policy->max_memory_bytes;
    const struct wake_op *wake_op = op->wake.progress;
    struct stat st;

    for (size_t i = 0; most && i < wake_op->n_images; i++)
        if (fstat(wake_op->images[i], &st) < 0 ||
            ((uint64_t)st.st_size > most && (uint64_t)st.st_size - most > IMAGE_BESIDES))
            return error_set(error, ROLLBOX_ERR_DAMAGED, E2BIG, "wake",
                "the processes have more memory than the sandbox' policy gives (max_memory); "
                "--drop-processes wakes its files alone");
    return 0;
}

/* Files and images are there, and right. */
static void handle_filled(struct op *op) {
    struct session *session = op->session;
    struct wake_op *wake_op = op->wake.progress;
    struct rollbox_error error;
    struct snapshot_tree *tree = NULL;
    struct snapshot *at = NULL, *committed = NULL;
    auto_free struct layer **layers = calloc(wake_op->n_layers + 1, sizeof(struct layer *));
    int r = layers ? open_images(op, &error) : no_memory(&error, "wake");

    if (r == 0)
        r = check_images(op, &error);
    if (r == 0)
        r = name_origins(op, &error);
    for (size_t i = 0; layers && i < wake_op->n_layers; i++) {
        layer_look(wake_op->layers[i].layer);
        hibernate_layer_size(wake_op->record, i, &wake_op->layers[i].layer->bytes,
            &wake_op->layers[i].layer->entries);
        layers[i] = wake_op->layers[i].layer;
    }
    if (r == 0)
        r = hibernate_family(session->engine, wake_op->record, layers, wake_op->n_layers,
            wake_op->images, wake_op->n_images, wake_op->backing, &tree, &at, &committed, &error);
    if (r < 0) {
        fail_wake(op, &error);
        return;
    }
    char *committed_path = TAKE_PTR(session->committed_path);
    drop_states(session, tree, at);
    session->committed = committed;
    session->committed_path = committed_path;
    list_for_each(item, &session->tree->snapshots) {
        struct snapshot *snapshot = container_of(item, struct snapshot, in_tree);

        snapshot->automatic = snapshot->automatic ? session->number : 0;
    }
    wake_op->sleep = TAKE_PTR(session->sleep);
    enter_program(session);
    rebind_session(session);
    if (!at->checkpoint || op->drops) {
        handle_woken(op);
        return;
    }
    session->pending_restore = checkpoint_get(at->checkpoint);
    op_wait(op, OP_WAIT_RESTORE);
    if (session_need_box(session, &error) < 0)
        op_session_ready(session, &error);
}

static void wake_restored(struct op *op, const struct rollbox_error *error) {
    if (error)
        fail_wake(op, error);
    else
        handle_woken(op);
}

static void start_reading(struct op *op) {
    struct wake_op *wake_op = op->wake.progress;
    struct rollbox_error error;
    auto_free int *fds = calloc(wake_op->n_layers + wake_op->n_images + 1, sizeof *fds);
    json_t *layers = json_array(), *images = json_array();
    int r = fds ? 0 : no_memory(&error, "wake");
    size_t n = 0;

    for (; r == 0 && n < wake_op->n_layers; n++) {
        fds[n] = openat(wake_op->layers[n].layer->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fds[n] < 0)
            r = error_set(&error, error_code_of(errno, ROLLBOX_ERR_INTERNAL), errno, "wake",
                "a layer cannot be opened: %s", strerror(errno));
        json_array_append_new(layers, describe_part(n, NULL, false));
    }
    const size_t n_opened = n;
    for (size_t i = 0; r == 0 && i < wake_op->n_images; i++)
        if (wake_op->images[i] >= 0) {
            json_array_append_new(images, describe_part(n, NULL, false));
            fds[n++] = wake_op->images[i];
        }
    json_t *job = json_pack("{s:s, s:o, s:o, s:b}", "id", op->session->sleep->id, "layers", layers,
        "images", images, "drops", op->drops);
    if (r == 0)
        r = store_job_hibernate(op, "wake", job, fds, n, &error);
    json_decref(job);
    for (size_t i = 0; fds && i < n_opened; i++)
        close_fd(&fds[i]);
    if (r < 0)
        fail_wake(op, &error);
}

static void on_layer(void *data, struct layer *take_layer, int error_number);

static int ask_for_layers(struct op *op, struct rollbox_error *error) {
    struct wake_op *wake_op = op->wake.progress;
    struct profile *profile = op->session->profile;
    const uint64_t most = profile->policy->max_disk_bytes;

    while (wake_op->n_asked < wake_op->n_layers &&
           wake_op->n_asked - wake_op->n_made < LAYERS_AT_ONCE) {
        struct filling *filling = &wake_op->layers[wake_op->n_asked];
        uint64_t bytes, entries;

        /* The record says what it likes: a layer had no more than the sandbox may have. */
        hibernate_layer_size(wake_op->record, wake_op->n_asked, &bytes, &entries);
        bytes = most ? MIN(bytes, most + most / LAYER_SLACK) : bytes;
        entries = most ? MIN(entries, most / 8192 + 1024) : entries;
        filling->op = op;
        int r = copy_empty(profile, bytes, entries, on_layer, filling);
        if (r < 0)
            return error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "wake",
                "the sandbox' files cannot be made again: %s", strerror(-r));
        wake_op->n_asked++;
    }
    return 0;
}

static void on_layer(void *data, struct layer *take_layer, int error_number) {
    struct filling *filling = data;

    (void)op_event(filling->op, OP_EVENT_LAYER_MADE,
        &(struct op_message){
            .which = filling, .take_layer = take_layer, .error_number = error_number });
}

static void layer_made(
    struct op *op, struct filling *filling, struct layer *take_layer, int error_number) {
    struct wake_op *wake_op = op->wake.progress;
    struct rollbox_error error;

    filling->layer = take_layer;
    if (!take_layer) {
        error_set(&error, error_code_of(error_number, ROLLBOX_ERR_RESOURCE_EXHAUSTED), error_number,
            "wake", "there is no room for the sandbox' files: %s", strerror(error_number));
        fail_wake(op, &error);
        return;
    }
    if (++wake_op->n_made == wake_op->n_layers)
        start_reading(op);
    else if (ask_for_layers(op, &error) < 0)
        fail_wake(op, &error);
}

static int begin_waking(struct op *op, struct rollbox_error *error) {
    struct session *session = op->session;
    struct profile *profile = session->profile;
    struct wake_op *wake_op = op->wake.progress = calloc(1, sizeof *wake_op);
    int r = wake_op ? hibernated_read(session->sleep->lock, &wake_op->whole, error)
                    : no_memory(error, "wake");

    if (r < 0)
        return r;
    count_waker(op);
    wake_op->record = json_object_get(wake_op->whole, "record");
    if (strcmp(session->sleep->id, json_string_value(json_object_get(wake_op->whole, "id"))))
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the record of the sleeping sandbox is that of another");
    r = hibernate_check(wake_op->record, profile, error);
    if (r == 0 && session->sleep->processes && !op->drops)
        r = fingerprint_check(json_object_get(wake_op->record, "fingerprint"), "wake",
            "rollbox wake --drop-processes wakes its files alone", error);
    if (r == 0 && !profile->launcher)
        r = launcher_start(profile, error);
    const size_t n = json_array_size(json_object_get(wake_op->whole, "layers"));
    wake_op->layers = r == 0 ? calloc(n + 1, sizeof *wake_op->layers) : NULL;
    if (r == 0 && !wake_op->layers)
        r = no_memory(error, "wake");
    wake_op->n_layers = r == 0 ? n : 0;
    if (wake_op->n_layers)
        op_wait(op, OP_WAIT_LAYERS);
    if (r == 0)
        r = ask_for_layers(op, error);
    return r == 0 ? make_images(op, error) : r;
}

static void start_wake(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;
    struct buf nothing = BUF_INIT;

    if (!session->sleep) {
        (void)session_resume(session);
        take_up(op);
        op_done(op, &nothing);
        return;
    }
    if (begin_waking(op, &error) < 0)
        fail_wake(op, &error);
    else if (!op->wake.progress->n_layers)
        start_reading(op);
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
        store_job_give_up(op);
        stay_awake(op);
        break;
    default:
        take_snapshot_event(op, event, message);
        break;
    }
}

static void release_hibernate(struct op *op) {
    hibernate_put(op->hibernate.becoming);
    take_snapshot_release(op);
}

const struct op_class op_hibernate_class = { .verb = VERB_HIBERNATE,
    .flags = OP_LEAVES_ASLEEP,
    .start = start_hibernate,
    .have_snapshot = write_state,
    .event = hibernate_event,
    .release = release_hibernate };

static void wake_event(struct op *op, enum op_event event, const struct op_message *message) {
    switch ((int)event) {
    case OP_EVENT_LAYER_MADE:
        layer_made(op, message->which, message->take_layer, message->error_number);
        break;
    case OP_EVENT_STORE_JOB_DONE:
        if (message->error)
            fail_wake(op, message->error);
        else
            handle_filled(op);
        break;
    case OP_EVENT_BOX_READY:
        wake_restored(op, message->error);
        break;
    default:
        op_lose_track(op);
        break;
    }
}

const struct op_class op_wake_class = { .verb = VERB_WAKE,
    .flags = OP_LEAVES_ASLEEP,
    .start = start_wake,
    .event = wake_event,
    .release = release_wake };

/* What was written for nobody. */
void hibernate_abandoned(struct engine *engine, const char *id) {
    auto_close int store = -EBADF;

    if (store_of(engine, &store, NULL) < 0)
        return;
    if (hibernated_remove(store, HIBERNATED_DIRECTORY, id) == -ENOENT)
        (void)hibernated_remove(store, WOKEN_DIRECTORY, id); /* closed while it woke */
    store_job_forget(
        engine); /* what was begun lies in tmp, perhaps, and may be as large as the sandbox */
}

/* ---- who wakes it ---- */

bool wake_if_needed(struct session *session) {
    struct op *first = session_first_op(session);

    if (!session->sleep || (first ? lets_sleep(first) : list_empty(&session->waiting)))
        return false;
    struct op *op = op_add(session, VERB_WAKE, true);
    if (!op) {
        struct rollbox_error error;

        no_memory(&error, "wake");
        while (!list_empty(&session->waiting)) {
            struct run *run = container_of(session->waiting.next, struct run, in_queue);

            list_remove(&run->in_queue);
            run_fail(run, error.code, error.error_number, error.stage, error.message);
        }
    }
    return op;
}

const struct hibernated *sleep_of(const struct session *session) {
    const struct op *op = session_first_op(session);

    return session->sleep                                     ? session->sleep
           : op && op->verb == VERB_WAKE && op->wake.progress ? op->wake.progress->sleep
                                                              : NULL;
}

int wake_then(struct session *session, struct client *client, struct wire_message *message) {
    struct wire_message *copy = malloc(sizeof *copy);
    struct op *op = copy ? op_add(session, VERB_WAKE, false) : NULL;

    if (!op) {
        free(copy);
        return -ENOMEM;
    }
    memcpy(copy, message, sizeof *copy);
    if (!copy->mapping)
        copy->data = copy->bytes + ((const char *)message->data - message->bytes);
    message->mapping = NULL;
    message->n_fds = 0;
    op->client = client;
    op->serial = copy->header.serial;
    op->wake.deferred = copy;
    session_schedule(session);
    return 0;
}

/* ---- the end of one that sleeps ---- */

void hibernate_close(struct session *session, bool keeps) {
    const struct op *op = session_first_op(session);
    const struct hibernated *found = op && op->wait == OP_WAIT_BOX_DEATH && !session->sleep
                                         ? op->hibernate.becoming
                                         : sleep_of(session);
    struct hibernated *sleep = TAKE_PTR(session->sleep);

    if (found && !keeps)
        hibernate_abandoned(session->engine, found->id);
    if (sleep)
        enter_program(session);
    hibernate_put(sleep);
    backing_ref_put(&session->backing_ref);
}

/* What cannot be read is found out when it is woken. */
void hibernate_tree(const struct session *session, struct buf *to) {
    json_t *whole = NULL;

    (void)hibernated_read(session->sleep->lock, &whole, NULL);
    hibernate_tree_text(whole, session->name, to);
    json_decref(whole);
}

void hibernate_execs(const struct session *session, struct buf *to, const char **between) {
    json_t *whole = NULL;

    (void)hibernated_read(sleep_of(session)->lock, &whole, NULL);
    hibernate_execs_text(json_object_get(whole, "record"), to, between);
    json_decref(whole);
}

/* ---- those of an engine that is gone ---- */

struct search {
    struct engine *engine;
    int store;
    const char *name; /* NULL: all */
    bool removes;     /* what cannot be had */
    struct rollbox_error *error;
    bool is_busy; /* one that is looked for is locked by another process */
};

static bool is_of_this_socket(const struct engine *engine, const json_t *record) {
    const char *hex = json_string_value(json_object_get(record, "socket")),
               *path = engine->socket_path ? engine->socket_path : "";

    if (!hex || strlen(hex) != 2 * strlen(path))
        return false;
    for (size_t i = 0; path[i]; i++) {
        char pair[3];

        snprintf(pair, sizeof pair, "%02x", (unsigned char)path[i]);
        if (memcmp(pair, hex + 2 * i, 2))
            return false;
    }
    return true;
}

static int reattach_record(struct engine *engine, const char *id, int *take_lock,
    const json_t *whole, struct rollbox_error *error) {
    const json_t *record = json_object_get(whole, "record"), *file;
    const char *name = json_string_value(json_object_get(record, "name")), *text;
    char **environment = NULL;
    struct profile *profile;
    char file_name[HIBERNATED_FILE_NAME];
    size_t length;
    int r = hibernate_policy(record, &text, &length, &environment);

    if (r < 0)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the record of the sleeping sandbox has no policy");
    r = profile_get(engine, text, length, (const char *const *)environment, &profile, error);
    hibernate_environment_free(environment);
    if (r == 0)
        r = profile_of_before(&profile, json_object_get(record, "grounds"), error);
    if (r < 0)
        return r;
    struct hibernated *sleep = calloc(1, sizeof *sleep);
    struct session *session =
        sleep ? session_new(engine, profile, NULL, name, NULL, NULL, error) : NULL;
    if (!session) {
        free(sleep);
        profile_leave(profile);
        return -ENOMEM;
    }
    hibernate_settle(session, record);
    const json_t *node = json_array_get(json_object_get(record, "nodes"),
        (size_t)json_integer_value(json_object_get(record, "at")));
    const json_t *live = json_array_get(json_object_get(record, "lives"),
        (size_t)json_integer_value(json_object_get(node, "live")));
    live = json_is_integer(json_object_get(node, "live")) ? live : NULL;
    *sleep = (struct hibernated){ .lock = TAKE_FD(*take_lock),
        .processes = (unsigned)json_integer_value(json_object_get(live, "processes")),
        .memory_bytes = (uint64_t)json_integer_value(json_object_get(live, "bytes")) };
    snprintf(sleep->id, sizeof sleep->id, "%s", id);
    snprintf(sleep->snapshot, sizeof sleep->snapshot, "%s", hibernate_visible_snapshot(record));
    for (size_t i = 0; (file = hibernated_file(whole, i, file_name)); i++)
        sleep->disk_bytes += (uint64_t)json_integer_value(json_object_get(file, "bytes"));
    session->sleep = sleep;
    leave_program(session);
    session_arm(session);
    return 0;
}

/* Is it looked for? */
static bool is_wanted(const struct search *search, const json_t *record) {
    const char *name = json_string_value(json_object_get(record, "name"));

    return name && session_name_ok(name) && json_is_true(json_object_get(record, "detached")) &&
           is_of_this_socket(search->engine, record) &&
           (!search->name || !strcmp(search->name, name)) && !session_find(search->engine, name);
}

static bool is_ours(const struct engine *engine, const char *id) {
    list_for_each(at, &engine->sessions) {
        const struct session *session = container_of(at, struct session, node);

        if (session->sleep && !strcmp(session->sleep->id, id))
            return true;
    }
    return false;
}

/* Forks of an engine that was killed have its locks until they run for the first time, and rollbox
 * store gc has any for a moment. So one that is looked for by name is waited for, which holds
 * everybody up, but not for long. */
static int wait_for_lock(struct search *search, const char *id, int *ret_lock) {
    const struct timespec moment = { 0, 1000000 };
    json_t *whole = NULL;
    int r = hibernated_lock(search->store, HIBERNATED_DIRECTORY, id, ret_lock);

    if (r != -EBUSY || is_ours(search->engine, id) ||
        hibernated_scan(search->store, HIBERNATED_DIRECTORY, id, &whole) < 0)
        return r;
    bool wanted = is_wanted(search, json_object_get(whole, "record"));
    for (int i = 0; r == -EBUSY && wanted && search->name && i < LOCK_WAIT_MS; i++) {
        (void)nanosleep(&moment, NULL);
        r = hibernated_lock(search->store, HIBERNATED_DIRECTORY, id, ret_lock);
    }
    search->is_busy |= r == -EBUSY && wanted;
    json_decref(whole);
    return r;
}

static int adopt_one(void *context, const char *id) {
    struct search *search = context;
    json_t *whole = NULL;
    auto_close int lock = -EBADF;

    if (wait_for_lock(search, id, &lock) < 0)
        return 0; /* somebody else's */
    if (hibernated_read_unchecked(lock, &whole, NULL) < 0) {
        search->engine->n_unreadable++; /* its name is not known; rollbox store fsck tells of it */
        return 0;
    }
    const json_t *record = json_object_get(whole, "record");
    int r = 0;

    if (is_wanted(search, record) && (r = hibernated_check(whole, search->error)) == 0)
        r = reattach_record(search->engine, id, &lock, whole, search->error);
    if (r < 0 && search->removes && hibernated_remove(search->store, HIBERNATED_DIRECTORY, id) == 0)
        r = 1;
    /* Whatever was forked meanwhile may have the descriptor for a moment yet, and would pass for
     * somebody who has it. */
    if (lock >= 0)
        (void)flock(lock, LOCK_UN);
    json_decref(whole);
    return search->name ? r : 0;
}

int hibernate_reattach(
    struct engine *engine, const char *name, bool removes, struct rollbox_error *error) {
    auto_free char *path = NULL;
    auto_close int store = -EBADF;

    if (engine->is_private || !engine->store_path || store_default_path(&path, NULL) < 0 ||
        store_open(path, &store, NULL) < 0)
        return 0;
    struct search search = { engine, store, name, removes, error, false };
    engine->n_unreadable = 0;
    int r = hibernated_each(store, HIBERNATED_DIRECTORY, adopt_one, &search);
    if (r == 0 && search.is_busy)
        return error_set(error, ROLLBOX_ERR_ENGINE_BUSY, EBUSY, "arguments",
            "%s sleeps, and another process has it, such as one of an engine that was killed",
            name ? name : "a sandbox");
    return r;
}
