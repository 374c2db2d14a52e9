/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works: what is asked of a session's files, in steps.
 *
 * Most begin by taking the present state as a node. If nothing was called since the last one, that is it. Else every process is frozen, and if there is none, the box is given up and its private tmpfs is the layer as it is; else
 * it is copied while they stand still. Where the processes are wanted as well, they stand still because they are captured (capturing.c), which they cannot tell, and go on when both are done. What comes then is a new box
 * somewhere, or a job of rollbox-store on the layers (errand.c).
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

#include "base/chance.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/session.h"
#include "engine/upper.h"
#include "sys/proc.h"

#define MAX_FORK 10000
#define CAPTURES_MOST 20         /* again, of one that something is in the way of for the moment */
#define LONG_CHAIN 18           /* layers: from here on a state waits until its chain is merged */

struct work *work_free(struct work *work) {
    if (!work)
        return NULL;
    if (work->session && !list_empty(&work->node))
        work->session->n_works--;
    list_remove(&work->node);
    if (work->session)
        copy_forget(work->session->engine, work);
    work->errand = errand_free(work->errand);
    work->whole = whole_free(work->whole);
    if (work->session)
        sleep_forget_work(work);
    if (work->measures && work->session && work->session->box)
        upper_is_left(work->session->box);
    if (work->capturing)
        capturing_release(work->capturing);
    live_put(work->live);
    layer_put(work->layer);
    node_unpin(work->pinned);
    node_put(work->from);
    node_put(work->to);
    close_fd(&work->fd);
    free(work->name);
    free(work->path);
    free(work->refusal);
    free(work->made);
    free(work);
    return NULL;
}

static void close_made(struct work *work) {
    for (unsigned i = 0; i < work->n_made; i++) {
        work->made[i]->fork = NULL;
        session_close(work->made[i]);
    }
    work->n_made = 0;
}

/* The next one starts from the loop's point of view at once. */
static void leave(struct work *work) {
    struct session *session = work->session;

    if (work->verb == VERB_FORK && !work->from)
        session->engine->forked_last = session;
    work_free(work);
    family_tidy(session->family);
    session_schedule(session);
}

void work_fail(struct work *work, const struct rollbox_error *error) {
    bool is_create = work->verb == VERB_CREATE;
    struct session *session = work->session;

    record_work_ended(work, error);
    if (work->is_automatic)
        checkpoint_failed(session, error);
    close_made(work);
    if (work->client)
        client_fail(work->client, work->serial, error);
    if (session->state == SESSION_CLOSING) {
        work_free(work);
        return;
    }
    leave(work);
    if (is_create)
        session_close(session);
}

void work_done(struct work *work, struct buf *json) {
    record_work_ended(work, NULL);
    if (work->client)
        session_reply(work->client, work->serial, json);
    buf_done(json);
    if (work->session->state == SESSION_CLOSING)
        work_free(work);
    else
        leave(work);
}

static void fail(struct work *work, enum rollbox_error_code code, int error_number, const char *message) {
    struct rollbox_error error;

    error_set(&error, code, error_number, "run", "%s%s%s", message, error_number ? ": " : "", error_number ? strerror(error_number) : "");
    work_fail(work, &error);
}

/* ---- taking the state --------------------------------------------------------------------------------------------------- */

static void set(struct node **at, struct node *node) {
    node_get(node);
    node_put(*at);
    *at = node;
}

/* How much a private tmpfs holds (on a disk nobody knows at once), and when the roots of its parts were changed: what is written later moves one of these. */
struct disk_mark {
    uint64_t bytes, entries;
    bool holds;                 /* anything */
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
static bool is_hollow(int directory, const char *name) {
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
    return n <= 2;              /* "." and ".." */
}

struct disk_mark *state_mark(struct box *box) {
    unsigned n = box->program ? count_places(box->program->plan) : 0;
    struct statfs disk;

    if (box->disk < 0 || !box->is_layered || (!box->upper && fstatfs(box->disk, &disk) < 0))
        return NULL;
    struct disk_mark *mark = calloc(1, sizeof *mark + n * sizeof mark->changed[0]);
    if (!mark)
        return NULL;
    mark->bytes = box->upper ? 0 : (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    mark->entries = box->upper ? 0 : (uint64_t)(disk.f_files - disk.f_ffree);
    /* Most often its root and the parts are all that a tmpfs has, and nobody needs to look into them. */
    bool may_hold = mark->entries != n + 1;
    for (mark->n = 0; mark->n < n; mark->n++) {
        char part[16];
        struct stat st;

        snprintf(part, sizeof part, "p%u", mark->n);
        if (fstatat(box->disk, part, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            mark->holds |= !may_hold;   /* something else was counted */
            continue;
        }
        mark->changed[mark->n] = st.st_ctim;
        mark->holds |= may_hold && !is_hollow(box->disk, part);
    }
    return mark;
}

/* Whatever runs: all that is written is an entry below a root that had none. A file that was there already could have been changed in place: what processes of a state have open to be written to is copied up for them as they are restored. */
bool state_files_are_as_made(struct box *box) {
    auto_free struct disk_mark *now = box->fresh && !box->served_early ? state_mark(box) : NULL;

    return now && !box->fresh->holds && !now->holds && now->bytes == box->fresh->bytes && now->entries == box->fresh->entries && now->n == box->fresh->n &&
           !memcmp(now->changed, box->fresh->changed, now->n * sizeof now->changed[0]);
}

/* 1: nothing in it but perhaps agents; what takes itself for one is found out by init. 0, or -errno: it cannot be told. */
static int seems_empty(const struct box *box) {
    static const char agent[] = "rollbox-files\n";
    pid_t pids[64];
    ssize_t n = box->state == BOX_READY && box->pid > 0 ? proc_children(box->pid, pids, ARRAY_SIZE(pids)) : 0;

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

bool state_is_as_made(struct box *box) {
    return state_files_are_as_made(box) && seems_empty(box) == 1;
}

/* The state of a session in which nothing of a node's processes is: that node, or one of its files alone, also where it was dropped and has no name any more. A reference, or NULL. */
static struct node *files_of(struct session *session, struct node *node) {
    return node->live || !node->family ? node_new(session->engine, session->family, node, node, NULL) : node_get(node);
}

/* The present state, of which all is known, as nothing was called since, or what was has left nothing. A reference, or NULL. */
static struct node *unchanged_state(struct session *session) {
    struct node *node = files_of(session, session->at);

    if (node && node != session->at && session->base == session->at)
        set(&session->base, node);
    if (node)
        set(&session->at, node);
    return node;
}

/* What a box has in its places. Of one that ends the descriptor itself is taken where there is room for no other: its files are lost with the last. */
static int layer_of(struct box *box, bool ends, struct layer **ret_layer) {
    auto_free struct disk_mark *now = state_mark(box);

    if (!now)
        return -ENOMEM;
    auto_close int fd = fcntl(box->disk, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 && !ends)
        return -errno;
    if (fd < 0)
        fd = TAKE_FD(box->disk);
    *ret_layer = layer_new(TAKE_FD(fd), now->bytes, now->entries - MIN(now->entries, box->fresh ? box->fresh->entries : 0));
    return *ret_layer ? 0 : -ENOMEM;
}

struct node *state_seal(struct session *session, struct box *box) {
    struct layer *layer = NULL;

    if (layer_of(box, true, &layer) < 0)
        return NULL;
    if (box->upper)
        layer_take_upper(layer, upper_get(box->upper));
    struct node *node = node_new(session->engine, session->family, session->at, session->base, layer);
    if (!node)
        return NULL;
    set(&session->base, node);
    set(&session->at, node);
    session->dirty = false;
    return node;
}

/* work->to is there. */
static void have_state(struct work *work) {
    struct layer *layers[1];

    /* How large it is, is told of every state, and counts for the limits of all that stand on it. */
    if (work->to->layer && !layer_is_measured(work->to->layer)) {
        work->waits_for_measure = true;
        return;
    }
    node_merge_soon(work->to, work->session->program);
    if (node_chain(work->to, layers, 0) >= LONG_CHAIN && work->to->merging) {
        work->waits_for_merge = true;
        return;
    }
    work->then(work);
}

void state_measured(struct layer *layer) {
    struct engine *engine = layer->upper->engine;

    layer->bytes = layer->upper->bytes;
    layer->entries = layer->upper->entries;
    layer_get(layer);
    list_for_each(at, &engine->sessions) {
        struct session *session = container_of(at, struct session, node);
        struct work *work = session_first_work(session);

        if (work && work->waits_for_measure && work->to->layer == layer) {
            work->waits_for_measure = false;
            have_state(work);
            break;              /* sessions may have come and gone; one state is taken by one work */
        }
    }
    layer_put(layer);
}

void state_merged(struct engine *engine, struct node *node) {
    list_for_each(at, &engine->sessions) {
        struct session *session = container_of(at, struct session, node);
        struct work *work = session_first_work(session);

        if (work && work->waits_for_merge && work->to == node) {
            work->waits_for_merge = false;
            work->then(work);
            return state_merged(engine, node);
        }
    }
}

/* Whatever was frozen for it goes on, unless the session is paused. */
static void thaw(struct work *work) {
    if (work->session->state != SESSION_PAUSED)
        session_thaw_soon(work->session);
}

/* Whatever was captured goes on, unless the session was paused before, and is. */
static void release(struct work *work) {
    if (work->capturing)
        capturing_release(work->capturing);
    work->capturing = NULL;
    if (!work->session->releasing)
        state_released(work->session);
}

static void go_on(struct work *work) {
    if (work->capturing)
        release(work);
    else
        thaw(work);
}

void state_go_on(struct work *work) {
    if (!work->holds)
        return;
    work->holds = false;
    go_on(work);
}

/* Init is gone, of which we have not heard yet: state_box_lost goes on. */
static bool is_dying(int r) {
    return r == -EPIPE || r == -ECONNRESET || r == -ESRCH;
}

static void told(struct work *work, int r, bool *waits) {
    if (is_dying(r))
        work->waits_for_box = true;
    else if (r < 0)
        fail(work, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "the sandbox cannot be told now");
    else
        *waits = true;
}

static void freeze(struct work *work) {
    /* A signal that stops may be lost on one that is being let go. */
    if (work->session->releasing) {
        work->waits_to_freeze = true;
        return;
    }
    work->frozen = ++work->session->engine->next_exec;
    told(work, session_freeze(work->session, work->frozen), &work->waits_for_frozen);
}

/* Once init has done what it was told before: what a command is to begin with is there then, and a paused sandbox is none for the moment. */
static void capture(struct work *work) {
    struct session *session = work->session;
    struct rollbox_error error;

    if (session->program->plan->flags & PLAN_SERIAL) {
        error_set(&error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot",
                  "a sandbox with serial cannot be captured with its processes: whose turn it is cannot be taken along; processes=\"drop\" (--drop-processes) takes the files alone");
        work_fail(work, &error);
        return;
    }
    if (session->releasing) {
        work->waits_to_capture = true;
        return;
    }
    work->frozen = ++session->engine->next_exec;
    session->was_thawed = session->state == SESSION_PAUSED;
    int r = session->was_thawed ? session_thaw(session) : 0;
    if (r == 0)
        r = session_ask(session, work->frozen);
    if (is_dying(r))
        work->waits_for_init = true;    /* state_box_lost fails it */
    else
        told(work, r, &work->waits_for_init);
}

/* Each try costs them a millisecond or so of standing still, and one's end is where the next begins. */
bool state_capture_again(struct work *work) {
    if (work->n_captures++ == CAPTURES_MOST)
        return false;
    noting_forget_unwritten(&work->session->tracking.noting);
    release(work);
    work->live = live_put(work->live);
    layer_put(TAKE_PTR(work->layer));
    capture(work);
    return true;
}

void state_released(struct session *session) {
    struct work *work = session_first_work(session);

    if (session->was_thawed && session->state == SESSION_PAUSED)
        (void)session_freeze(session, 0);
    session->was_thawed = false;
    if (work && work->waits_to_capture) {
        work->waits_to_capture = false;
        capture(work);
    } else if (work && work->waits_to_freeze) {
        work->waits_to_freeze = false;
        freeze(work);
    }
}

/* Guests have ways to go on when they are stopped; what moves away under the copy is then theirs to explain. */
static void fail_copy(struct work *work, int error_number) {
    bool moved = error_number == EEXIST || error_number == ENOENT || error_number == ESTALE || error_number == ENOTDIR || error_number == EISDIR || error_number == ENOTEMPTY || error_number == ELOOP;

    bool lost = error_number == ENOTCONN || error_number == EPIPE || error_number == ECONNRESET || error_number == ECHILD;

    if (moved)
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EBUSY, "the files of the sandbox changed while its processes stood still: one of them goes on by itself");
    else if (lost)
        fail(work, ROLLBOX_ERR_SETUP_FAILED, error_number, "the launcher, which copies the files of the sandbox, was killed from outside; the sandbox goes on: try again");
    /* The engine had no descriptor left for the launcher's user namespace, so a new launcher has another one. */
    else if (error_number == EPERM)
        fail(work, ROLLBOX_ERR_SETUP_FAILED, error_number, "the files of the sandbox cannot be copied any more, as its launcher was killed from outside; what runs in it goes on, and its files can be read");
    else
        fail(work, error_code_of(error_number, ROLLBOX_ERR_INTERNAL), error_number, "the files of the sandbox could not be copied");
}

/* It takes its time to load what was captured. What goes wrong is told when it is needed. Where the one sandbox has loaded it itself, the next fork wants a holder, which is made when that one goes on: before, it would take its processors. */
static void load_ahead(struct work *work) {
    struct live *live = work->live;
    struct launcher *holder;

    if (work->verb != VERB_FORK || live->base)
        return;
    if (!live->ahead)
        (void)live_holder(live, work->session->program, &holder, NULL);
    else if (work->session->tracking.noting.since == live)
        live->wants_holder = true;
}

/* Its files, as they were while everything stood still; no layer: as those it stands on. */
static void taken(struct work *work, struct layer *take_layer) {
    struct session *session = work->session;

    if (work->capturing && capturing_go_on(work->capturing)) {
        work->layer = take_layer;
        /* A layer of its own would be a state's before there is one. */
        if (work->live->progress >= 0 && work->verb == VERB_FORK && work->count == 1 && !take_layer)
            live_load_box(work->live, session->program, session->base);
        if (work->live->progress >= 0)
            load_ahead(work);
        return;
    }
    struct node *node = node_new(session->engine, session->family, session->at, session->base, take_layer);

    work->holds = node && work->verb == VERB_HIBERNATE;
    if (!work->holds)
        go_on(work);
    int r = !node ? -ENOMEM : work->live && work->live->base ? live_seal_image(&work->live->image) : 0;  /* which takes as long as a dozen pages: they go on first */
    if (r < 0) {
        node_put(node);
        fail_copy(work, -r);
        return;
    }
    node->is_live = true;
    node->live = TAKE_PTR(work->live);
    set(&session->at, node);
    work->to = node;            /* its reference */
    have_state(work);
}

void state_imaged(struct work *work, const struct rollbox_error *error) {
    if (!error) {
        close_fd(&work->live->progress);
        load_ahead(work);
        taken(work, TAKE_PTR(work->layer));
        return;
    }
    noting_forget_unwritten(&work->session->tracking.noting);
    release(work);
    work_fail(work, error);
}

static void on_copied(void *data, struct layer *take_layer, int error_number) {
    struct work *work = data;

    work->waits_for_copy = false;
    if (take_layer) {
        taken(work, take_layer);
        return;
    }
    go_on(work);
    fail_copy(work, error_number ? error_number : ENOMEM);
}

static void copy_files(struct work *work) {
    struct box *box = work->session->box;
    struct layer *layer = NULL;
    int r = layer_of(box, false, &layer);

    if (r == 0)
        r = copy_start(work->session->program, &layer, 1, capturing_numbers(work->capturing), on_copied, work);
    if (layer)
        layer->is_lived_in = true;
    layer_put(layer);
    work->waits_for_copy = r == 0;
    if (r < 0) {
        go_on(work);
        fail_copy(work, -r);
    }
}

/* Without overlays of detached mounts a snapshot of changed files could be taken, and never be used. A copy of them can be read. */
static bool lacks_layers(const struct work *work) {
    return !work->session->engine->features.overlay_layers && work->verb != VERB_DIFF && work->verb != VERB_COMMIT && work->verb != VERB_EXPORT;
}

static void refuse_changed_files(struct work *work) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "snapshot", "overlay_layers is missing (needed for %s): %s",
              feature_needed_for(FEATURE_OVERLAY_LAYERS), feature_hint(FEATURE_OVERLAY_LAYERS));
    work_fail(work, &error);
}

static void frozen(struct work *work, const struct guest_record *record) {
    struct session *session = work->session;
    struct box *box = session->box;

    if (record->error) {
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error, "a process of the sandbox would not stand still");
        return;
    }
    if (record->value && !work->drops) {
        thaw(work);
        capture(work);
        return;
    }
    if (!record->value && state_files_are_as_made(box)) {
        thaw(work);
        session->dirty = false;
        work->to = unchanged_state(session);
        if (work->to)
            have_state(work);
        else
            fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "the files of the sandbox cannot be kept");
        return;
    }
    if (lacks_layers(work)) {
        thaw(work);
        refuse_changed_files(work);
        return;
    }
    if (!record->value && session->engine->features.overlay_layers) {
        work->to = state_seal(session, box);
        if (!work->to) {
            thaw(work);
            fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "the files of the sandbox cannot be kept");
            return;
        }
        session_give_up_box(session);
        have_state(work);
        return;
    }
    copy_files(work);
}

/* They go on, and nothing has changed. */
static void not_captured(struct work *work, const struct rollbox_error *error) {
    work->waits_for_copy = false;
    copy_forget(work->session->engine, work);
    release(work);
    work_fail(work, error);
}

void state_captured(struct work *work, struct live *take_live, const struct rollbox_error *error) {
    struct session *session = work->session;

    if (!take_live) {
        not_captured(work, error);
        return;
    }
    if (!take_live->processes) {
        /* They ended meanwhile. */
        live_put(take_live);
        release(work);
        freeze(work);
        return;
    }
    work->live = take_live;
    if (capturing_is_complete(work->capturing)) {
        close_fd(&work->live->progress);
        load_ahead(work);       /* else they go on first */
    }
    if (capturing_went_on(work->capturing) || state_files_are_as_made(session->box)) {
        taken(work, NULL);
        return;
    }
    if (work->live->ahead)      /* it stands on other files */
        box_kill(work->live->ahead);
    copy_files(work);
}

/* ---- standing still for a walk ------------------------------------------------------------------------------------------ */

bool state_hold_still(struct session *session) {
    struct work *work = session->state == SESSION_CLOSING || session->sleep ? NULL : work_add(session, VERB_PAUSE, false);

    if (!work)
        return false;
    work->measures = true;
    session_schedule(session);
    return true;
}

static void walk_still(struct work *work, int error) {
    work->waits_for_walk = true;
    if (!upper_stands(work->session->box, error))
        state_walked(work->session);
}

/* One that is paused is asked, too: a pause for idleness is not waited for, and may have failed. */
static void stand_for_walk(struct work *work) {
    struct session *session = work->session;
    struct buf nothing = BUF_INIT;

    if (session->box && (session->state == SESSION_LIVE || session->state == SESSION_PAUSED))
        freeze(work);
    else
        work_done(work, &nothing);
}

void state_walked(struct session *session) {
    struct work *work = session_first_work(session);
    struct buf nothing = BUF_INIT;

    if (!work || !work->waits_for_walk)
        return;
    work->waits_for_walk = false;
    thaw(work);
    work_done(work, &nothing);
}

/* ---- what init says ------------------------------------------------------------------------------------------------------ */

void state_answer(struct session *session, const struct guest_record *record) {
    struct work *work = session_first_work(session);
    struct buf nothing = BUF_INIT;

    if (work && work->waits_for_init && work->frozen == record->serial) {
        struct rollbox_error error;

        work->waits_for_init = false;
        if (capturing_start(work, &error) < 0)
            not_captured(work, &error);
        return;
    }
    if (!record->serial && record->kind == GUEST_FROZEN && record->error && session->state == SESSION_PAUSED)
        session->state = SESSION_LIVE;  /* of an idle pause: some would not stand still, and all go on */
    if (!work || !work->waits_for_frozen || work->frozen != record->serial)
        return;                 /* of a pause that nobody waits for, or a signal */
    work->waits_for_frozen = false;
    if (work->measures) {
        walk_still(work, (int)record->error);
    } else if (work->verb != VERB_PAUSE) {
        frozen(work, record);
    } else if (record->error) {
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error, "a process of the sandbox would not stand still");
    } else {
        session->state = SESSION_PAUSED;
        work_done(work, &nothing);
    }
}

/* A socket that an agent in the sandbox serves from now on. */
static void hand_socket(struct work *work) {
    auto_buf struct buf request = BUF_INIT;
    struct session *session = work->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;

    if (session_need_box(session, &error) < 0) {
        work_fail(work, &error);
        return;
    }
    (void)session_resume(session);
    session->dirty = session->was_used = true;
    wire_begin(&request, GUEST_FILES, 0);
    int r = wire_send_patiently(session->box->socket, &request, &work->fd, 1);
    /* It may be served before we hear that the box is ready. */
    session->box->served_early |= !session->box->fresh;
    if (is_dying(r))
        work->waits_for_box = true;
    else if (r < 0)
        fail(work, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "the sandbox cannot be told now");
    else {
        session->n_agents++;
        /* Who asked knows what is done there; the record is to know, too. */
        buf_add_text(&nothing, session->record ? "{\"recorded\": true}" : "{}");
        work_done(work, &nothing);
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

void state_take(struct work *work, void (*then)(struct work *work)) {
    struct session *session = work->session;

    work->then = then;
    /* What was started before is part of it. */
    if (!work->drops && work->follows_commands && !list_empty(&session->waiting)) {
        work->follows_commands = false;
        work->waits_for_commands = true;
        return;
    }
    if (session->dirty && session->box && lacks_layers(work) && !state_files_are_as_made(session->box)) {
        refuse_changed_files(work);
        return;
    }
    if (session->dirty && session->box) {
        if (work->drops || (!runs_something(session) && seems_empty(session->box) != 0))
            freeze(work);       /* of which init tells whether anything stands */
        else
            capture(work);
        return;
    }
    work->to = unchanged_state(session);
    if (work->to)
        have_state(work);
    else
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "the files of the sandbox cannot be kept");
}

/* ---- what is done with it ----------------------------------------------------------------------------------------------- */

static void node_text(struct node *node, struct buf *to) {
    struct node_facts facts;

    node_facts(node, &facts);
    buf_add_text(to, "{");
    node_facts_text(&facts, to);
}

/* A state that has a name already gets another node of nothing for another, so that both are found. */
static bool name_again(struct work *work) {
    struct session *session = work->session;
    struct node *node = node_new(session->engine, session->family, work->to, work->to, NULL);

    if (!node)
        return false;
    node->is_live = work->to->is_live;
    node->live = work->to->live ? live_get(work->to->live) : NULL;
    if (session->base == work->to)
        set(&session->base, node);
    if (session->at == work->to)
        set(&session->at, node);
    node_put(work->to);
    work->to = node;
    return true;
}

static void name_snapshot(struct work *work) {
    struct buf json = BUF_INIT;

    if (work->name) {
        struct node *other = node_find(work->session->family, work->name);

        if (other && other != work->to) {
            fail(work, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "there is a snapshot of that name already");
            return;
        }
        if (!other && work->to->name && !name_again(work)) {
            fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
            return;
        }
        free(work->to->name);
        work->to->name = TAKE_PTR(work->name);
    }
    work->to->is_asked_for = true;
    work->to->is_of_fork = false;
    work->to->automatic = 0;
    node_text(work->to, &json);
    buf_add_text(&json, record_wants_files(work->session) ? ", \"recorded_files\": true}" : "}");
    work_done(work, &json);
}

/* As many as the launcher's socket has room for; each that is ready has made some. Each may fail, and take all of them along. */
static void ask_for_boxes(struct work *work) {
    struct rollbox_error error;

    while (work->n_asked < work->n_made) {
        struct session *next = work->made[work->n_asked++];
        bool is_last = work->n_asked == work->n_made;
        int r = session_need_box(next, &error);

        if ((r == -EAGAIN || r == -ETOOMANYREFS) && work->n_asked - 1 > work->n_ready) {
            work->n_asked--;
            work->waits_for_room = true;
            return;
        }
        if (r < 0)
            work_fail(work, &error);
        if (r < 0 || is_last)
            return;             /* it may be over */
    }
}

static void made_one(struct work *work) {
    struct buf json = BUF_INIT;

    if (++work->n_ready < work->count) {
        if (!work->waits_for_room)
            return;
        work->waits_for_room = false;
        ask_for_boxes(work);
        return;
    }
    buf_add_text(&json, "{\"sandboxes\": [");
    for (unsigned i = 0; i < work->n_made; i++) {
        buf_printf(&json, "%s\"%s\"", i ? ", " : "", work->made[i]->name);
        work->made[i]->fork = NULL;
    }
    buf_add_text(&json, "]}");
    record_work_ended(work, NULL);      /* while it is known what was made */
    if (work->client || !work->session->client)
        work->n_made = 0;       /* they are somebody's now */
    else
        close_made(work);
    work_done(work, &json);
}

/* What was to go on will not. */
static void go_without(struct session *session) {
    session->restores = live_put(session->restores);
    session->restores_again = false;
    struct node *node = unchanged_state(session);
    node_put(node);
}

void state_session_ready(struct session *session, const struct rollbox_error *error) {
    struct work *work = session->fork;
    struct work *own = session_first_work(session);
    struct buf json = BUF_INIT;

    if (work && work->verb == VERB_VERIFY) {
        show_tried(work, error);
        return;
    }
    if (own && own->verb == VERB_CREATE && own->started) {
        if (error) {
            work_fail(own, error);
            return;
        }
        buf_printf(&json, "{\"name\": \"%s\"}", session->name);
        work_done(own, &json);
        return;
    }
    if (own && own->verb == VERB_WAKE && own->waits_for_restored) {
        sleep_restored(own, error);
        return;
    }
    if (error && session->restores && !work && session->state != SESSION_CLOSING)
        go_without(session);
    if (own && own->waits_for_restored) {
        if (error)
            work_fail(own, error);
        else
            work_done(own, &json);
        return;
    }
    /* One that is made by a fork goes with the fork, and its own works with it. */
    if (!work && own && error && (own->waits_for_frozen || own->waits_for_box))
        work_fail(own, error);
    if (!work)
        return;
    session->fork = NULL;
    if (!error) {
        made_one(work);
        return;
    }
    work_fail(work, error);     /* all or none */
}

static void make_forks(struct work *work) {
    struct session *session = work->session;
    struct rollbox_error error;

    struct live *live = work->drops ? NULL : work->to->live;
    struct node *base = live ? node_get(work->to) : files_of(session, work->to);
    if (base) {
        node_put(work->to);
        work->to = base;
        if (!base->is_asked_for)
            base->is_asked_for = base->is_of_fork = true;
    }
    work->made = calloc(work->count, sizeof(struct session *));
    if (!work->made || !base) {
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    /* Without an owner they would be detached. */
    if (work->attached && !work->client) {
        fail(work, ROLLBOX_ERR_CANCELLED, ECANCELED, "who asked for the forks is gone");
        return;
    }
    const uint64_t before = session->n_forked;
    session->n_forked += work->count;
    if (live)
        live->n_uses++;
    for (unsigned i = 0; i < work->count; i++) {
        struct session *made = session_new(session->engine, session->program, session->client || work->attached ? work->client : NULL, NULL, session->family, work->to, &error);

        if (!made) {
            work_fail(work, &error);
            return;
        }
        made->since_ns = session->since_ns;
        made->parent = session->number;
        made->parent_step = session->record ? work->step : 0;
        made->recorded_kin = session->record ? session->number : session->recorded_kin;
        record_inherit(made, session);
        made->clone_id = i;
        made->seed = work->same_seed ? session->seed : chance_fork(session->seed, before + i);
        made->has_own_seed = session->program->policy->have_seed && (session->has_own_seed || !work->same_seed);
        snprintf(made->parent_snapshot, sizeof made->parent_snapshot, "%s", work->to->id);
        made->idle_ms = session->idle_ms;
        made->ttl_ms = session->ttl_ms;
        made->lifetime_ms = session->lifetime_ms;
        made->checkpoints.keep = session->checkpoints.keep;
        made->restores = live ? live_get(live) : NULL;
        made->comes_of_fork = true;
        made->is_one_of_few = tracking_is_few(work->count);
        session_arm(made);
        work->made[work->n_made++] = made;
        made->fork = work;
    }
    ask_for_boxes(work);
}

static void reset(struct work *work) {
    struct session *session = work->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;
    struct node *target = work->from ? work->from : session->at;
    struct live *live = work->drops ? NULL : target->live;
    struct node *base = live ? node_get(target) : files_of(session, target);

    if (!base) {
        fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    if (session->box)
        box_strike(session->box);
    while (!list_empty(&session->runs)) {
        struct run *run = container_of(session->runs.next, struct run, of_session);

        run->exec = 0;
        list_remove(&run->in_queue);
        if (run->outcome == ROLLBOX_OUTCOME_ERROR || run->killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the sandbox was reset while the command ran");
    }
    session->was_used = true;
    session_give_up_box(session);
    if (session->state == SESSION_PAUSED)
        session->state = SESSION_NEW;
    set(&session->base, base);
    set(&session->at, base);
    node_put(base);
    session->dirty = false;
    if (!live) {
        work_done(work, &nothing);
        return;
    }
    session->restores = live_get(live);
    session->is_one_of_few = false;
    live->n_uses++;
    work->waits_for_restored = true;
    if (session_need_box(session, &error) < 0)
        state_session_ready(session, &error);
}

static void run_job(struct work *work) {
    struct rollbox_error error;

    if (errand_start(work, &error) < 0)
        work_fail(work, &error);
}

void state_start(struct work *work) {
    struct session *session = work->session;
    struct rollbox_error error;

    if (whole_begin(work))
        return;
    switch (work->verb) {
    case VERB_CREATE:
        if (session_need_box(session, &error) < 0)
            work_fail(work, &error);
        return;                 /* else done when it is ready, which it may be already */
    case VERB_PAUSE:
        if (work->measures) {
            stand_for_walk(work);
            return;
        }
        if (session->state == SESSION_LIVE && session->box) {
            freeze(work);
        } else {
            struct buf nothing = BUF_INIT;
            work_done(work, &nothing);
        }
        return;
    case VERB_SNAPSHOT:
        if (!tracking_make_room(session->engine)) {
            fail(work, ROLLBOX_ERR_RESOURCE_EXHAUSTED, 0, "more states than the engine's limit of open files bears; raise it (ulimit -n), drop snapshots, or close sandboxes");
            return;
        }
        state_take(work, work->is_automatic ? checkpoint_taken : name_snapshot);
        return;
    case VERB_FORK:
        if (work->count < 1 || work->count > MAX_FORK) {
            fail(work, ROLLBOX_ERR_INVALID_ARGUMENT, 0, "fork: a number from 1 to 10000 must be given");
            return;
        }
        if (!work->from) {
            state_take(work, make_forks);
            return;
        }
        work->to = node_get(work->from);
        work->then = make_forks;
        have_state(work);
        return;
    case VERB_RESET:
        reset(work);
        return;
    case VERB_HIBERNATE:
        sleep_start(work);
        return;
    case VERB_WAKE:
        sleep_wake(work);
        return;
    case VERB_FILES:
        hand_socket(work);
        return;
    case VERB_SHOW:
    case VERB_VERIFY:
        show_start(work);
        return;
    case VERB_CLOSE:
        session_close(session);
        return;
    case VERB_DIFF:
    case VERB_COMMIT:
    case VERB_EXPORT:
        if (work->verb == VERB_EXPORT && work->from) {
            work->to = work->from;
            work->from = NULL;
        }
        if (work->takes_live) {
            if (work->to || session->sleep)
                sleep_export(work);
            else
                state_take(work, sleep_export);
            return;
        }
        work->drops = true;     /* they are about files */
        if (work->is_recorded && !work->from)
            work->from = node_get(session->at);
        if (work->to)
            run_job(work);
        else
            state_take(work, run_job);
        return;
    case VERB_OPEN:
    case VERB_INSPECT:
    case VERB_EXECS:
    case VERB_STATS:
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
        break;                  /* answered at once */
    }
}

void state_commands_sent(struct session *session) {
    struct work *work = session_first_work(session);

    if (!work || !work->waits_for_commands)
        return;
    work->waits_for_commands = false;
    state_take(work, work->then);
}

/* Its box is dead, which nobody asked for. */
void state_box_lost(struct session *session) {
    struct work *work = session_first_work(session);
    struct rollbox_error error;

    if (session->fork || (work && work->waits_for_restored)) {
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "setup", "the sandbox' init was killed from outside");
        state_session_ready(session, &error);
        return;                 /* it goes with the fork */
    }
    if (work && (work->waits_to_capture || work->waits_for_init || work->capturing)) {
        work->waits_to_capture = work->waits_for_init = false;
        fail(work, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "the sandbox' init was killed from outside; its files are kept, its processes are gone");
        return;
    }
    if (work && (work->waits_for_box || work->waits_to_freeze || (work->waits_for_frozen && work->verb != VERB_PAUSE))) {
        work->waits_for_box = work->waits_to_freeze = work->waits_for_frozen = false;
        state_start(work);      /* on what was kept of its files */
    } else if (work && (work->verb == VERB_CREATE || work->waits_for_frozen || work->waits_for_walk))
        fail(work, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "the sandbox' init was killed from outside");
    else
        session_schedule(session);
}
