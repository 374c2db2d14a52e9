/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works: what is asked of a session's files, in steps.
 *
 * Most begin by taking the present state as a node. If nothing was called since the last one, that
 * is it. Else every process is frozen, and if there is none, the box is given up and its private
 * tmpfs is the layer as it is; else it is copied while they stand still. Where the processes are
 * wanted as well, they stand still because they are captured (dump_job.c), which they cannot tell,
 * and go on when both are done. What comes then is a new box somewhere, or a job of rollbox-store
 * on the layers (store_job.c).
 */
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/seeded_random.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/log.h"
#include "engine/session.h"
#include "engine/disk_upper.h"
#include "engine/verb_names.h"
#include "sys/proc.h"

#define MAX_FORK 10000
#define MAX_DUMPS 20  /* again, of one that something is in the way of for the moment */
#define LONG_CHAIN 18 /* layers: from here on a state waits until its chain is merged */

struct op *op_free(struct op *op) {
    if (!op)
        return NULL;
    if (op->session && !list_empty(&op->node))
        op->session->n_ops--;
    list_remove(&op->node);
    if (op->session)
        copy_forget(op->session->engine, op);
    op->store_job = store_job_free(op->store_job);
    op->flatten_job = flatten_free(op->flatten_job);
    if (op->session)
        hibernate_forget_op(op);
    if (op->measures && op->session && op->session->box)
        disk_upper_is_left(op->session->box);
    if (op->dump_job)
        dump_job_release(op->dump_job);
    checkpoint_put(op->checkpoint);
    layer_put(op->layer);
    snapshot_unpin(op->pinned);
    snapshot_put(op->from);
    snapshot_put(op->to);
    close_fd(&op->fd);
    free(op->name);
    free(op->path);
    free(op->refusal);
    free(op->made);
    free(op);
    return NULL;
}

/* The operation, which may be in the middle of a step, goes on until the loop closes its sandbox.
 */
static void lose_track(struct op *op) {
    op->session->is_inconsistent = true;
    session_schedule(op->session);
}

static void close_made(struct op *op) {
    for (unsigned i = 0; i < op->n_made; i++) {
        op->made[i]->fork = NULL;
        session_close(op->made[i]);
    }
    op->n_made = 0;
}

void op_wait(struct op *op, enum op_wait wait) {
    if (!op_wait_may_follow(op->wait, wait))
        lose_track(op);
    op->wait = wait;
    op->since_ns = clock_now_ns();
    log_at(LOG_DEBUG, "operation",
        ABOUT(.sandbox = op->session->name, .op = verb_name(op->verb), .wait = op_wait_name(wait)),
        "waits");
}

/* The next one starts from the loop's point of view at once. */
static void retire_op(struct op *op) {
    struct session *session = op->session;

    if (op->verb == VERB_FORK && !op->from)
        session->engine->forked_last = session;
    op_free(op);
    snapshot_tree_gc(session->tree);
    session_schedule(session);
}

void op_fail(struct op *op, const struct rollbox_error *error) {
    bool is_create = op->verb == VERB_CREATE;
    struct session *session = op->session;

    verbs_count_failure(op->verb);
    log_at(LOG_WARN, "operation", ABOUT(.sandbox = session->name, .op = verb_name(op->verb)),
        "failed: %s", error->message);
    op_wait(op, OP_WAIT_DONE);
    record_op_ended(op, error);
    if (op->is_automatic)
        auto_snapshot_failed(session, error);
    close_made(op);
    if (op->client)
        client_fail(op->client, op->serial, error);
    if (session->state == SESSION_CLOSING) {
        op_free(op);
        return;
    }
    retire_op(op);
    if (is_create)
        session_close(session);
}

void op_done(struct op *op, struct buf *json) {
    log_at(LOG_INFO, "operation", ABOUT(.sandbox = op->session->name, .op = verb_name(op->verb)),
        "done");
    op_wait(op, OP_WAIT_DONE);
    record_op_ended(op, NULL);
    if (op->client)
        client_reply(op->client, op->serial, json);
    buf_done(json);
    if (op->session->state == SESSION_CLOSING)
        op_free(op);
    else
        retire_op(op);
}

static void fail_op(
    struct op *op, enum rollbox_error_code code, int error_number, const char *message) {
    struct rollbox_error error;

    error_set(&error, code, error_number, "run", "%s%s%s", message, error_number ? ": " : "",
        error_number ? strerror(error_number) : "");
    op_fail(op, &error);
}

/* ---- taking the state ---- */

static void snapshot_ref_assign(struct snapshot **at, struct snapshot *snapshot) {
    snapshot_get(snapshot);
    snapshot_put(*at);
    *at = snapshot;
}

/* How much a private tmpfs holds (on a disk nobody knows at once), and when the roots of its parts
 * were changed: what is written later moves one of these. */
struct files_baseline {
    uint64_t bytes, entries;
    bool holds; /* anything */
    unsigned n;
    struct timespec changed[];
};

static unsigned count_places(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    unsigned n = 0;

    for (uint32_t i = 0; i < plan->box_ops.n; i++)
        if (ops[i].kind == PLAN_OP_PLACE)
            n = MAX(n, plan_place_part(&ops[i]) + 1);
    return n;
}

/* A directory without entries. */
static bool is_empty_dir(int directory, const char *name) {
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    unsigned n = 0;

    if (!list) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (n <= 2 && readdir(list))
        n++;
    closedir(list);
    return n <= 2; /* "." and ".." */
}

struct files_baseline *box_files_baseline(struct box *box) {
    unsigned n = box->profile ? count_places(box->profile->plan) : 0;
    struct statfs disk;

    if (box->disk < 0 || !box->is_layered || (!box->upper && fstatfs(box->disk, &disk) < 0))
        return NULL;
    struct files_baseline *mark = calloc(1, sizeof *mark + n * sizeof mark->changed[0]);
    if (!mark)
        return NULL;
    mark->bytes =
        box->upper ? 0 : (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    mark->entries = box->upper ? 0 : (uint64_t)(disk.f_files - disk.f_ffree);
    /* Most often its root and the parts are all that a tmpfs has, and nobody needs to look into
     * them. */
    bool may_hold = mark->entries != n + 1;
    for (mark->n = 0; mark->n < n; mark->n++) {
        char part[16];
        struct stat st;

        snprintf(part, sizeof part, "p%u", mark->n);
        if (fstatat(box->disk, part, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            mark->holds |= !may_hold; /* something else was counted */
            continue;
        }
        mark->changed[mark->n] = st.st_ctim;
        mark->holds |= may_hold && !is_empty_dir(box->disk, part);
    }
    return mark;
}

/* Whatever runs: all that is written is an entry below a root that had none. A file that was there
 * already could have been changed in place: what processes of a state have open to be written to is
 * copied up for them as they are restored. */
bool op_files_are_pristine(struct box *box) {
    auto_free struct files_baseline *now =
        box->files_baseline && !box->served_early ? box_files_baseline(box) : NULL;

    return now && !box->files_baseline->holds && !now->holds &&
           now->bytes == box->files_baseline->bytes &&
           now->entries == box->files_baseline->entries && now->n == box->files_baseline->n &&
           !memcmp(now->changed, box->files_baseline->changed, now->n * sizeof now->changed[0]);
}

/* 1: nothing in it but perhaps agents; what takes itself for one is found out by init. 0, or
 * -errno: it cannot be told. */
static int seems_empty(const struct box *box) {
    static const char agent[] = "rollbox-files\n";
    pid_t pids[64];
    ssize_t n = box->state == BOX_READY && box->pid > 0
                    ? proc_children(box->pid, pids, ARRAY_SIZE(pids))
                    : 0;

    for (ssize_t i = 0; i < n; i++) {
        auto_buf struct buf name = BUF_INIT;
        char path[64];

        snprintf(path, sizeof path, "/proc/%d/comm", (int)pids[i]);
        int r = fd_read_file(path, 64, &name);
        if (r < 0 && r != -ENOENT && r != -ESRCH)
            return r;
        if (r == 0 && (name.length != sizeof agent - 1 || memcmp(name.data, agent, name.length)))
            return 0;
    }
    return n < 0 ? (int)n : n < (ssize_t)ARRAY_SIZE(pids);
}

bool box_is_pristine(struct box *box) {
    return op_files_are_pristine(box) && seems_empty(box) == 1;
}

/* The state of a session in which nothing of a node's processes is: that node, or one of its files
 * alone, also where it was dropped and has no name any more. A reference, or NULL. */
static struct snapshot *files_of(struct session *session, struct snapshot *snapshot) {
    return snapshot->checkpoint || !snapshot->tree
               ? snapshot_new(session->engine, session->tree, snapshot, snapshot, NULL)
               : snapshot_get(snapshot);
}

/* The present state, of which all is known, as nothing was called since, or what was has left
 * nothing. A reference, or NULL. */
static struct snapshot *unchanged_state(struct session *session) {
    struct snapshot *snapshot = files_of(session, session->at);

    if (snapshot && snapshot != session->at && session->base == session->at)
        snapshot_ref_assign(&session->base, snapshot);
    if (snapshot)
        snapshot_ref_assign(&session->at, snapshot);
    return snapshot;
}

/* What a box has in its places. Of one that ends the descriptor itself is taken where there is room
 * for no other: its files are lost with the last. */
static int layer_of(struct box *box, bool ends, struct layer **ret_layer) {
    auto_free struct files_baseline *now = box_files_baseline(box);

    if (!now)
        return -ENOMEM;
    auto_close int fd = fcntl(box->disk, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 && !ends)
        return -errno;
    if (fd < 0)
        fd = TAKE_FD(box->disk);
    *ret_layer = layer_new(TAKE_FD(fd), now->bytes,
        now->entries - MIN(now->entries, box->files_baseline ? box->files_baseline->entries : 0));
    return *ret_layer ? 0 : -ENOMEM;
}

struct snapshot *op_seal_layer(struct session *session, struct box *box) {
    struct layer *layer = NULL;

    if (layer_of(box, true, &layer) < 0)
        return NULL;
    if (box->upper)
        layer_take_upper(layer, disk_upper_get(box->upper));
    struct snapshot *snapshot =
        snapshot_new(session->engine, session->tree, session->at, session->base, layer);
    if (!snapshot)
        return NULL;
    snapshot_ref_assign(&session->base, snapshot);
    snapshot_ref_assign(&session->at, snapshot);
    session->dirty = false;
    return snapshot;
}

/* work->to is there. */
static void have_state(struct op *op) {
    struct layer *layers[1];

    /* How large it is, is told of every state, and counts for the limits of all that stand on it.
     */
    if (op->to->layer && !layer_is_measured(op->to->layer)) {
        op_wait(op, OP_WAIT_SIZE);
        return;
    }
    snapshot_compact_later(op->to, op->session->profile);
    if (snapshot_chain(op->to, layers, 0) >= LONG_CHAIN && op->to->compacting) {
        op_wait(op, OP_WAIT_COMPACTION);
        return;
    }
    op->then(op);
}

void op_measured(struct layer *layer) {
    struct engine *engine = layer->upper->engine;

    layer->bytes = layer->upper->bytes;
    layer->entries = layer->upper->entries;
    layer_get(layer);
    list_for_each(at, &engine->sessions) {
        struct session *session = container_of(at, struct session, node);
        struct op *op = session_first_op(session);

        if (op && op->wait == OP_WAIT_SIZE && op->to->layer == layer) {
            have_state(op);
            break; /* sessions may have come and gone; one state is taken by one work */
        }
    }
    layer_put(layer);
}

void op_compacted(struct engine *engine, struct snapshot *snapshot) {
    list_for_each(at, &engine->sessions) {
        struct session *session = container_of(at, struct session, node);
        struct op *op = session_first_op(session);

        if (op && op->wait == OP_WAIT_COMPACTION && op->to == snapshot) {
            op->then(op);
            return op_compacted(engine, snapshot);
        }
    }
}

/* Whatever was frozen for it goes on, unless the session is paused. */
static void thaw_op(struct op *op) {
    if (op->session->state != SESSION_PAUSED)
        session_thaw_soon(op->session);
}

/* Whatever was captured goes on, unless the session was paused before, and is. */
static void release_dump(struct op *op) {
    if (op->dump_job)
        dump_job_release(op->dump_job);
    op->dump_job = NULL;
    if (!op->session->releasing)
        op_dump_released(op->session);
}

static void resume(struct op *op) {
    if (op->dump_job)
        release_dump(op);
    else
        thaw_op(op);
}

void op_resume_processes(struct op *op) {
    if (!op->holds)
        return;
    op->holds = false;
    resume(op);
}

/* Init is gone, of which we have not heard yet: op_box_lost goes on. */
static bool is_dying(int r) {
    return r == -EPIPE || r == -ECONNRESET || r == -ESRCH;
}

static void after_init_send(struct op *op, int r, enum op_wait wait) {
    if (is_dying(r))
        op_wait(op, OP_WAIT_BOX_LOST);
    else if (r < 0)
        fail_op(op, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r,
            "the sandbox cannot be told now");
    else
        op_wait(op, wait);
}

static void freeze_op(struct op *op) {
    /* A signal that stops may be lost on one that is being let go. */
    if (op->session->releasing) {
        op_wait(op, OP_WAIT_FREEZE_SLOT);
        return;
    }
    op->frozen = ++op->session->engine->next_exec;
    after_init_send(op, session_freeze(op->session, op->frozen), OP_WAIT_FROZEN);
}

/* Once init has done what it was told before: what a command is to begin with is there then, and a
 * paused sandbox is none for the moment. */
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
    if (session->releasing) {
        op_wait(op, OP_WAIT_DUMP_SLOT);
        return;
    }
    op->frozen = ++session->engine->next_exec;
    session->was_thawed = session->state == SESSION_PAUSED;
    int r = session->was_thawed ? session_thaw(session) : 0;
    if (r == 0)
        r = session_ask(session, op->frozen);
    if (is_dying(r))
        op_wait(op, OP_WAIT_INIT_ACK); /* op_box_lost fails it */
    else
        after_init_send(op, r, OP_WAIT_INIT_ACK);
}

/* Each try costs them a millisecond or so of standing still, and one's end is where the next
 * begins. */
bool op_dump_again(struct op *op) {
    if (op->n_dumps++ == MAX_DUMPS)
        return false;
    dirty_tracking_forget_unwritten(&op->session->tracking.dirty_tracking);
    release_dump(op);
    op->checkpoint = checkpoint_put(op->checkpoint);
    layer_put(TAKE_PTR(op->layer));
    start_dump_of_op(op);
    return true;
}

void op_dump_released(struct session *session) {
    struct op *op = session_first_op(session);

    if (session->was_thawed && session->state == SESSION_PAUSED)
        (void)session_freeze(session, 0);
    session->was_thawed = false;
    if (op && op->wait == OP_WAIT_DUMP_SLOT)
        start_dump_of_op(op);
    else if (op && op->wait == OP_WAIT_FREEZE_SLOT)
        freeze_op(op);
}

/* Guests have ways to go on when they are stopped; what moves away under the copy is then theirs to
 * explain. */
static void fail_copy(struct op *op, int error_number) {
    bool moved = error_number == EEXIST || error_number == ENOENT || error_number == ESTALE ||
                 error_number == ENOTDIR || error_number == EISDIR || error_number == ENOTEMPTY ||
                 error_number == ELOOP;

    bool lost = error_number == ENOTCONN || error_number == EPIPE || error_number == ECONNRESET ||
                error_number == ECHILD;

    if (moved)
        fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EBUSY,
            "the files of the sandbox changed while its processes stood still: one of them goes on "
            "by itself");
    else if (lost)
        fail_op(op, ROLLBOX_ERR_SETUP_FAILED, error_number,
            "the launcher, which copies the files of the sandbox, was killed from outside; the "
            "sandbox goes on: try again");
    /* The engine had no descriptor left for the launcher's user namespace, so a new launcher has
     * another one. */
    else if (error_number == EPERM)
        fail_op(op, ROLLBOX_ERR_SETUP_FAILED, error_number,
            "the files of the sandbox cannot be copied any more, as its launcher was killed from "
            "outside; what runs in it goes on, and its files can be read");
    else
        fail_op(op, error_code_of(error_number, ROLLBOX_ERR_INTERNAL), error_number,
            "the files of the sandbox could not be copied");
}

/* It takes its time to load what was captured. What goes wrong is told when it is needed. Where the
 * one sandbox has loaded it itself, the next fork wants a holder, which is made when that one goes
 * on: before, it would take its processors. */
static void load_ahead(struct op *op) {
    struct checkpoint *checkpoint = op->checkpoint;
    struct launcher *zygote;

    if (op->verb != VERB_FORK || checkpoint->parent)
        return;
    if (!checkpoint->preforked)
        (void)checkpoint_zygote(checkpoint, op->session->profile, &zygote, NULL);
    else if (op->session->tracking.dirty_tracking.since == checkpoint)
        checkpoint->wants_zygote = true;
}

/* Its files, as they were while everything stood still; no layer: as those it stands on. */
static void snapshot_files_ready(struct op *op, struct layer *take_layer) {
    struct session *session = op->session;

    if (op->dump_job && dump_job_resume(op->dump_job)) {
        op_wait(op, OP_WAIT_IMAGE);
        op->layer = take_layer;
        /* A layer of its own would be a state's before there is one. */
        if (op->checkpoint->progress >= 0 && op->verb == VERB_FORK && op->count == 1 && !take_layer)
            checkpoint_load_box(op->checkpoint, session->profile, session->base);
        if (op->checkpoint->progress >= 0)
            load_ahead(op);
        return;
    }
    struct snapshot *snapshot =
        snapshot_new(session->engine, session->tree, session->at, session->base, take_layer);

    op->holds = snapshot && op->verb == VERB_HIBERNATE;
    if (!op->holds)
        resume(op);
    int r = !snapshot ? -ENOMEM
            : op->checkpoint && op->checkpoint->parent
                ? checkpoint_seal_image(&op->checkpoint->image)
                : 0; /* which takes as long as a dozen pages: they go on first */
    if (r < 0) {
        snapshot_put(snapshot);
        fail_copy(op, -r);
        return;
    }
    snapshot->is_live = true;
    snapshot->checkpoint = TAKE_PTR(op->checkpoint);
    snapshot_ref_assign(&session->at, snapshot);
    op->to = snapshot; /* its reference */
    have_state(op);
}

void op_image_written(struct op *op, const struct rollbox_error *error) {
    if (!error) {
        close_fd(&op->checkpoint->progress);
        load_ahead(op);
        snapshot_files_ready(op, TAKE_PTR(op->layer));
        return;
    }
    dirty_tracking_forget_unwritten(&op->session->tracking.dirty_tracking);
    release_dump(op);
    op_fail(op, error);
}

static void on_copied(void *data, struct layer *take_layer, int error_number) {
    struct op *op = data;

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
    int r = layer_of(box, false, &layer);

    if (r == 0)
        r = copy_start(
            op->session->profile, &layer, 1, dump_job_numbers(op->dump_job), on_copied, op);
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
    return !op->session->engine->features.overlay_layers && op->verb != VERB_DIFF &&
           op->verb != VERB_COMMIT && op->verb != VERB_EXPORT;
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
        fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error,
            "a process of the sandbox would not stand still");
        return;
    }
    if (record->value && !op->drops) {
        thaw_op(op);
        start_dump_of_op(op);
        return;
    }
    if (!record->value && op_files_are_pristine(box)) {
        thaw_op(op);
        session->dirty = false;
        op->to = unchanged_state(session);
        if (op->to)
            have_state(op);
        else
            fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                "the files of the sandbox cannot be kept");
        return;
    }
    if (lacks_layers(op)) {
        thaw_op(op);
        refuse_changed_files(op);
        return;
    }
    if (!record->value && session->engine->features.overlay_layers) {
        op->to = op_seal_layer(session, box);
        if (!op->to) {
            thaw_op(op);
            fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                "the files of the sandbox cannot be kept");
            return;
        }
        session_give_up_box(session);
        have_state(op);
        return;
    }
    copy_files(op);
}

/* They go on, and nothing has changed. */
static void not_dumped(struct op *op, const struct rollbox_error *error) {
    copy_forget(op->session->engine, op);
    release_dump(op);
    op_fail(op, error);
}

void op_dumped(
    struct op *op, struct checkpoint *take_checkpoint, const struct rollbox_error *error) {
    struct session *session = op->session;

    if (!take_checkpoint) {
        not_dumped(op, error);
        return;
    }
    if (!take_checkpoint->processes) {
        /* They ended meanwhile. */
        checkpoint_put(take_checkpoint);
        release_dump(op);
        freeze_op(op);
        return;
    }
    op->checkpoint = take_checkpoint;
    if (dump_job_is_complete(op->dump_job)) {
        close_fd(&op->checkpoint->progress);
        load_ahead(op); /* else they go on first */
    }
    if (dump_job_resumed(op->dump_job) || op_files_are_pristine(session->box)) {
        snapshot_files_ready(op, NULL);
        return;
    }
    if (op->checkpoint->preforked) /* it stands on other files */
        box_kill(op->checkpoint->preforked);
    copy_files(op);
}

/* ---- standing still for a walk ---- */

bool op_hold_frozen(struct session *session) {
    struct op *op = session->state == SESSION_CLOSING || session->sleep
                        ? NULL
                        : op_add(session, VERB_PAUSE, false);

    if (!op)
        return false;
    op->measures = true;
    session_schedule(session);
    return true;
}

static void walk_still(struct op *op, int error) {
    op_wait(op, OP_WAIT_WALK);
    if (!disk_upper_stands(op->session->box, error))
        op_disk_walked(op->session);
}

/* One that is paused is asked, too: a pause for idleness is not waited for, and may have failed. */
static void stand_for_walk(struct op *op) {
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;

    if (session->box && (session->state == SESSION_LIVE || session->state == SESSION_PAUSED))
        freeze_op(op);
    else
        op_done(op, &nothing);
}

void op_disk_walked(struct session *session) {
    struct op *op = session_first_op(session);
    struct buf nothing = BUF_INIT;

    if (!op || op->wait != OP_WAIT_WALK)
        return;
    thaw_op(op);
    op_done(op, &nothing);
}

/* ---- what init says ---- */

void op_init_reply(struct session *session, const struct guest_record *record) {
    struct op *op = session_first_op(session);
    struct buf nothing = BUF_INIT;

    if (op && op->wait == OP_WAIT_INIT_ACK && op->frozen == record->serial) {
        struct rollbox_error error;

        if (dump_job_start(op, &error) < 0)
            not_dumped(op, &error);
        return;
    }
    if (!record->serial && record->kind == GUEST_FROZEN && record->error &&
        session->state == SESSION_PAUSED)
        session->state =
            SESSION_LIVE; /* of an idle pause: some would not stand still, and all go on */
    if (!op || op->wait != OP_WAIT_FROZEN || op->frozen != record->serial)
        return; /* of a pause that nobody waits for, or a signal */
    if (op->measures) {
        walk_still(op, (int)record->error);
    } else if (op->verb != VERB_PAUSE) {
        handle_frozen(op, record);
    } else if (record->error) {
        fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error,
            "a process of the sandbox would not stand still");
    } else {
        session->state = SESSION_PAUSED;
        op_done(op, &nothing);
    }
}

/* A socket that an agent in the sandbox serves from now on. */
static void hand_socket(struct op *op) {
    auto_buf struct buf request = BUF_INIT;
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;

    if (session_need_box(session, &error) < 0) {
        op_fail(op, &error);
        return;
    }
    (void)session_resume(session);
    session->dirty = session->was_used = true;
    wire_begin(&request, GUEST_FILES, 0);
    int r = wire_send_patiently(session->box->socket, &request, &op->fd, 1);
    /* It may be served before we hear that the box is ready. */
    session->box->served_early |= !session->box->files_baseline;
    if (is_dying(r))
        op_wait(op, OP_WAIT_BOX_LOST);
    else if (r < 0)
        fail_op(op, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r,
            "the sandbox cannot be told now");
    else {
        session->n_agents++;
        /* Who asked knows what is done there; the record is to know, too. */
        buf_add_text(&nothing, session->record ? "{\"recorded\": true}" : "{}");
        op_done(op, &nothing);
    }
}

/* As far as we have heard; who captures nothing finds that out. */
static bool runs_something(const struct session *session) {
    list_for_each(node, &session->runs) {
        const struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && !run->killed && !run->exited)
            return true;
    }
    return false;
}

void op_take_snapshot(struct op *op, void (*then)(struct op *op)) {
    struct session *session = op->session;

    op->then = then;
    /* What was started before is part of it. */
    if (!op->drops && op->follows_commands && !list_empty(&session->waiting)) {
        op->follows_commands = false;
        op_wait(op, OP_WAIT_COMMANDS_SENT);
        return;
    }
    if (session->dirty && session->box && lacks_layers(op) &&
        !op_files_are_pristine(session->box)) {
        refuse_changed_files(op);
        return;
    }
    if (session->dirty && session->box) {
        if (op->drops || (!runs_something(session) && seems_empty(session->box) != 0))
            freeze_op(op); /* of which init tells whether anything stands */
        else
            start_dump_of_op(op);
        return;
    }
    op->to = unchanged_state(session);
    if (op->to)
        have_state(op);
    else
        fail_op(
            op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "the files of the sandbox cannot be kept");
}

/* ---- what is done with it ---- */

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
    struct snapshot *snapshot = snapshot_new(session->engine, session->tree, op->to, op->to, NULL);

    if (!snapshot)
        return false;
    snapshot->is_live = op->to->is_live;
    snapshot->checkpoint = op->to->checkpoint ? checkpoint_get(op->to->checkpoint) : NULL;
    if (session->base == op->to)
        snapshot_ref_assign(&session->base, snapshot);
    if (session->at == op->to)
        snapshot_ref_assign(&session->at, snapshot);
    snapshot_put(op->to);
    op->to = snapshot;
    return true;
}

static void name_snapshot(struct op *op) {
    struct buf json = BUF_INIT;

    if (op->name) {
        struct snapshot *other = snapshot_find(op->session->tree, op->name);

        if (other && other != op->to) {
            fail_op(op, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST,
                "there is a snapshot of that name already");
            return;
        }
        if (!other && op->to->name && !name_again(op)) {
            fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
            return;
        }
        free(op->to->name);
        op->to->name = TAKE_PTR(op->name);
    }
    op->to->is_asked_for = true;
    op->to->is_of_fork = false;
    op->to->automatic = 0;
    snapshot_text(op->to, &json);
    buf_add_text(&json, record_wants_files(op->session) ? ", \"recorded_files\": true}" : "}");
    op_done(op, &json);
}

/* As many as the launcher's socket has room for; each that is ready has made some. Each may fail,
 * and take all of them along. */
static void ask_for_boxes(struct op *op) {
    struct rollbox_error error;

    while (op->n_asked < op->n_made) {
        struct session *next = op->made[op->n_asked++];
        bool is_last = op->n_asked == op->n_made;
        int r = session_need_box(next, &error);

        if ((r == -EAGAIN || r == -ETOOMANYREFS) && op->n_asked - 1 > op->n_ready) {
            op->n_asked--;
            op_wait(op, OP_WAIT_LAUNCHER_ROOM);
            return;
        }
        if (r < 0)
            op_fail(op, &error);
        if (r < 0 || is_last)
            return; /* it may be over */
    }
}

static void made_one(struct op *op) {
    struct buf json = BUF_INIT;

    if (++op->n_ready < op->count) {
        if (op->wait != OP_WAIT_LAUNCHER_ROOM)
            return;
        op_wait(op, OP_WAIT_CHILDREN);
        ask_for_boxes(op);
        return;
    }
    buf_add_text(&json, "{\"sandboxes\": [");
    for (unsigned i = 0; i < op->n_made; i++) {
        buf_printf(&json, "%s\"%s\"", i ? ", " : "", op->made[i]->name);
        op->made[i]->fork = NULL;
    }
    buf_add_text(&json, "]}");
    record_op_ended(op, NULL); /* while it is known what was made */
    if (op->client || !op->session->client)
        op->n_made = 0; /* they are somebody's now */
    else
        close_made(op);
    op_done(op, &json);
}

/* What was to go on will not. */
static void go_without(struct session *session) {
    session->pending_restore = checkpoint_put(session->pending_restore);
    session->restores_again = false;
    struct snapshot *snapshot = unchanged_state(session);
    snapshot_put(snapshot);
}

void op_session_ready(struct session *session, const struct rollbox_error *error) {
    struct op *op = session->fork;
    struct op *own = session_first_op(session);
    struct buf json = BUF_INIT;

    if (op && op->verb == VERB_VERIFY) {
        describe_tried(op, error);
        return;
    }
    if (own && own->wait == OP_WAIT_BOX_READY) {
        if (error) {
            op_fail(own, error);
            return;
        }
        buf_printf(&json, "{\"name\": \"%s\"}", session->name);
        op_done(own, &json);
        return;
    }
    if (own && own->verb == VERB_WAKE && own->wait == OP_WAIT_RESTORE) {
        wake_restored(own, error);
        return;
    }
    if (error && session->pending_restore && !op && session->state != SESSION_CLOSING)
        go_without(session);
    if (own && own->wait == OP_WAIT_RESTORE) {
        if (error)
            op_fail(own, error);
        else
            op_done(own, &json);
        return;
    }
    /* One that is made by a fork goes with the fork, and its own works with it. */
    if (!op && own && error && (own->wait == OP_WAIT_FROZEN || own->wait == OP_WAIT_BOX_LOST))
        op_fail(own, error);
    if (!op)
        return;
    session->fork = NULL;
    if (!error) {
        made_one(op);
        return;
    }
    op_fail(op, error); /* all or none */
}

static void make_forks(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;

    struct checkpoint *checkpoint = op->drops ? NULL : op->to->checkpoint;
    struct snapshot *base = checkpoint ? snapshot_get(op->to) : files_of(session, op->to);
    if (base) {
        snapshot_put(op->to);
        op->to = base;
        if (!base->is_asked_for)
            base->is_asked_for = base->is_of_fork = true;
    }
    op->made = calloc(op->count, sizeof(struct session *));
    if (!op->made || !base) {
        fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    /* Without an owner they would be detached. */
    if (op->attached && !op->client) {
        fail_op(op, ROLLBOX_ERR_CANCELLED, ECANCELED, "who asked for the forks is gone");
        return;
    }
    const uint64_t before = session->n_forked;
    session->n_forked += op->count;
    if (checkpoint)
        checkpoint->n_uses++;
    for (unsigned i = 0; i < op->count; i++) {
        struct session *made = session_new(session->engine, session->profile,
            session->client || op->attached ? op->client : NULL, NULL, session->tree, op->to,
            &error);

        if (!made) {
            op_fail(op, &error);
            return;
        }
        made->since_ns = session->since_ns;
        made->parent = session->number;
        made->parent_step = session->record ? op->step : 0;
        made->recorded_ancestor = session->record ? session->number : session->recorded_ancestor;
        record_inherit(made, session);
        made->clone_id = i;
        made->seed = op->same_seed ? session->seed : seeded_random_fork(session->seed, before + i);
        made->has_own_seed =
            session->profile->policy->have_seed && (session->has_own_seed || !op->same_seed);
        snprintf(made->parent_snapshot, sizeof made->parent_snapshot, "%s", op->to->id);
        made->idle_ms = session->idle_ms;
        made->ttl_ms = session->ttl_ms;
        made->lifetime_ms = session->lifetime_ms;
        made->auto_snapshot.keep = session->auto_snapshot.keep;
        made->pending_restore = checkpoint ? checkpoint_get(checkpoint) : NULL;
        made->is_fork = true;
        made->track_from_birth = dirty_tracking_is_few(op->count);
        session_arm(made);
        op->made[op->n_made++] = made;
        made->fork = op;
    }
    op_wait(op, OP_WAIT_CHILDREN);
    ask_for_boxes(op);
}

static void reset_session(struct op *op) {
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;
    struct snapshot *target = op->from ? op->from : session->at;
    struct checkpoint *checkpoint = op->drops ? NULL : target->checkpoint;
    struct snapshot *base = checkpoint ? snapshot_get(target) : files_of(session, target);

    if (!base) {
        fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    if (session->box)
        box_send_kill(session->box);
    while (!list_empty(&session->runs)) {
        struct run *run = container_of(session->runs.next, struct run, of_session);

        run->exec = 0;
        list_remove(&run->in_queue);
        if (run->outcome == ROLLBOX_OUTCOME_ERROR || run->killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
                "the sandbox was reset while the command ran");
    }
    session->was_used = true;
    session_give_up_box(session);
    if (session->state == SESSION_PAUSED)
        session->state = SESSION_NEW;
    snapshot_ref_assign(&session->base, base);
    snapshot_ref_assign(&session->at, base);
    snapshot_put(base);
    session->dirty = false;
    if (!checkpoint) {
        op_done(op, &nothing);
        return;
    }
    session->pending_restore = checkpoint_get(checkpoint);
    session->track_from_birth = false;
    checkpoint->n_uses++;
    op_wait(op, OP_WAIT_RESTORE);
    if (session_need_box(session, &error) < 0)
        op_session_ready(session, &error);
}

static void run_job(struct op *op) {
    struct rollbox_error error;

    if (store_job_start(op, &error) < 0)
        op_fail(op, &error);
}

void op_start(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;

    op_wait(op, OP_WAIT_STARTED);
    if (flatten_begin(op))
        return;
    switch (op->verb) {
    case VERB_CREATE:
        op_wait(op, OP_WAIT_BOX_READY);
        if (session_need_box(session, &error) < 0)
            op_fail(op, &error);
        return; /* else done when it is ready, which it may be already */
    case VERB_PAUSE:
        if (op->measures) {
            stand_for_walk(op);
            return;
        }
        if (session->state == SESSION_LIVE && session->box) {
            freeze_op(op);
        } else {
            struct buf nothing = BUF_INIT;
            op_done(op, &nothing);
        }
        return;
    case VERB_SNAPSHOT:
        if (!tracking_make_room(session->engine)) {
            fail_op(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, 0,
                "more states than the engine's limit of open files bears; raise it (ulimit -n), "
                "drop snapshots, or close sandboxes");
            return;
        }
        op_take_snapshot(op, op->is_automatic ? auto_snapshot_taken : name_snapshot);
        return;
    case VERB_FORK:
        if (op->count < 1 || op->count > MAX_FORK) {
            fail_op(op, ROLLBOX_ERR_INVALID_ARGUMENT, 0,
                "fork: a number from 1 to 10000 must be given");
            return;
        }
        if (!op->from) {
            op_take_snapshot(op, make_forks);
            return;
        }
        op->to = snapshot_get(op->from);
        op->then = make_forks;
        have_state(op);
        return;
    case VERB_RESET:
        reset_session(op);
        return;
    case VERB_HIBERNATE:
        hibernate_start(op);
        return;
    case VERB_WAKE:
        wake_start(op);
        return;
    case VERB_FILES:
        hand_socket(op);
        return;
    case VERB_SHOW:
    case VERB_VERIFY:
        describe_start(op);
        return;
    case VERB_CLOSE:
        op_wait(op, OP_WAIT_CLOSE);
        session_close(session);
        return;
    case VERB_DIFF:
    case VERB_COMMIT:
    case VERB_EXPORT:
        if (op->verb == VERB_EXPORT && op->from) {
            op->to = op->from;
            op->from = NULL;
        }
        if (op->takes_live) {
            if (op->to || session->sleep)
                hibernate_export(op);
            else
                op_take_snapshot(op, hibernate_export);
            return;
        }
        op->drops = true; /* they are about files */
        if (op->is_recorded && !op->from)
            op->from = snapshot_get(session->at);
        if (op->to)
            run_job(op);
        else
            op_take_snapshot(op, run_job);
        return;
    case VERB_NONE:
    case VERB_END:
    case VERB_OPEN:
    case VERB_INSPECT:
    case VERB_EXECS:
    case VERB_STATS:
    case VERB_DEBUG:
    case VERB_PROCESSES:
    case VERB_TREE:
    case VERB_RESUME:
    case VERB_LIST:
    case VERB_SIGNAL:
    case VERB_RESIZE:
    case VERB_DROP:
    case VERB_RECORD:
    case VERB_NOTE:
    case VERB_CLAIM:
        break; /* answered at once */
    }
}

void op_commands_sent(struct session *session) {
    struct op *op = session_first_op(session);

    if (!op || op->wait != OP_WAIT_COMMANDS_SENT)
        return;
    op_take_snapshot(op, op->then);
}

/* Its box is dead, which nobody asked for. */
void op_box_lost(struct session *session) {
    struct op *op = session_first_op(session);
    struct rollbox_error error;

    if (session->fork || (op && op->wait == OP_WAIT_RESTORE)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "setup",
            "the sandbox' init was killed from outside");
        op_session_ready(session, &error);
        return; /* it goes with the fork */
    }
    if (op && (op->wait == OP_WAIT_DUMP_SLOT || op->wait == OP_WAIT_INIT_ACK || op->dump_job)) {
        fail_op(op, ROLLBOX_ERR_SETUP_FAILED, ECHILD,
            "the sandbox' init was killed from outside; its files are kept, its processes are "
            "gone");
        return;
    }
    if (op && (op->wait == OP_WAIT_BOX_LOST || op->wait == OP_WAIT_FREEZE_SLOT ||
                  (op->wait == OP_WAIT_FROZEN && op->verb != VERB_PAUSE)))
        op_start(op); /* on what was kept of its files */
    else if (op && (op->wait == OP_WAIT_BOX_READY || op->wait == OP_WAIT_FROZEN ||
                       op->wait == OP_WAIT_WALK))
        fail_op(op, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "the sandbox' init was killed from outside");
    else
        session_schedule(session);
}
