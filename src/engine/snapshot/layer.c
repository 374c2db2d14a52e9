/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers, and the tree of snapshots that they make.
 *
 * A layer is a detached mount that the engine holds by a descriptor: its files exist as long as
 * that is open. A node has at most one layer of its own and is based on another node. A chain from
 * a node down to the beginning would grow with every snapshot. So once it is long, all its layers
 * are copied into one, in the background, and the chain ends there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "base/wire.h"
#include "engine/box/launcher.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/context.h"
#include "engine/core/deferred_close.h"
#include "engine/core/log.h"
#include "engine/files/layer_chain.h"
#include "engine/box/disk_upper.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/backing.h"

#define EMPTY_BYTES 48   /* of getdents64: "." and "..", 24 bytes each */
#define MERGE_FROM 8     /* layers in a chain */
#define COPY_SECONDS 120 /* far more than any takes that fits into memory */
#define COPY_ON_DISK_SECONDS 3600

/* ---- layers ---- */

/* One that cannot be looked into may hold anything. */
static bool part_holds(int layer, unsigned number) {
    char part[16], entries[4096];

    snprintf(part, sizeof part, "p%u", number);
    auto_close int fd =
        openat(layer, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT;
    long n = syscall(SYS_getdents64, fd, entries, sizeof entries);
    return n < 0 || n > EMPTY_BYTES;
}

/* Without names that are not there, each of which would be a call. */
static uint64_t parts_of(int layer) {
    int fd = openat(layer, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    uint64_t parts = list ? 0 : UINT64_MAX;
    unsigned number;

    while (list && (entry = readdir(list)))
        if (sscanf(entry->d_name, "p%2u", &number) == 1 && number < 64 && part_holds(layer, number))
            parts |= 1ull << number;
    if (list)
        closedir(list);
    else
        close_fd(&fd);
    return parts;
}

static void layer_free(struct layer *layer) {
    if (layer->upper) {
        close(layer->fd); /* it frees nothing: that is the janitor's work */
        layer->upper->layer = NULL;
        disk_upper_put(layer->upper);
    } else if (layer->in_use_by_box) {
        close(layer->fd); /* nor does this */
    } else {
        deferred_close(layer->fd);
    }
    backing_ref_put(&layer->backing_ref);
    free(layer);
}

struct layer *layer_new(int take_fd, uint64_t bytes, uint64_t entries) {
    auto_close int fd = take_fd;
    struct layer *layer = calloc(1, sizeof *layer);

    if (!layer)
        return NULL;
    *layer = (struct layer){ .references = 1,
        .free = layer_free,
        .bytes = bytes,
        .entries = entries,
        .parts = parts_of(fd) };
    layer->fd = TAKE_FD(fd);
    return layer;
}

void layer_look(struct layer *layer) {
    layer->parts = parts_of(layer->fd);
    if (layer->upper) {
        layer->upper->is_measured = false;
        disk_upper_measure(layer->upper);
    }
}

static void on_measured(struct disk_upper *upper) {
    upper->engine->hooks.layer_measured(upper->layer);
}

void layer_take_upper(struct layer *layer, struct disk_upper *take_upper) {
    layer->upper = take_upper;
    take_upper->layer = layer;
    take_upper->measured = on_measured;
    take_upper->is_measured = false;
    disk_upper_measure(take_upper);
}

bool layer_is_measured(const struct layer *layer) {
    return !layer->upper || layer->upper->is_measured;
}

/* ---- nodes ---- */

struct snapshot_tree *snapshot_tree_new(struct engine *engine, struct snapshot **ret_beginning) {
    struct snapshot_tree *tree = calloc(1, sizeof *tree);

    if (!tree)
        return NULL;
    tree->references = 1;
    list_init(&tree->snapshots);
    *ret_beginning = snapshot_new(engine, tree, NULL, NULL, NULL);
    if (!*ret_beginning) {
        free(tree);
        return NULL;
    }
    return tree;
}

/* Out of the tree that users see. */
static void leave_tree(struct snapshot *snapshot) {
    list_remove(&snapshot->in_tree);
    if (!snapshot->n_pins)
        snapshot->checkpoint =
            checkpoint_put(snapshot->checkpoint); /* nobody can name it any more */
    if (snapshot->parent)
        snapshot->parent = snapshot_put(snapshot->parent);
    snapshot->tree = NULL;
    snapshot_put(snapshot);
}

struct snapshot *snapshot_pin(struct snapshot *snapshot) {
    if (!snapshot)
        return NULL;
    snapshot->n_pins++;
    return snapshot_get(snapshot);
}

struct snapshot *snapshot_unpin(struct snapshot *snapshot) {
    if (!snapshot)
        return NULL;
    if (!--snapshot->n_pins && !snapshot->tree)
        snapshot->checkpoint = checkpoint_put(snapshot->checkpoint);
    snapshot_put(snapshot);
    return NULL;
}

struct snapshot_tree *snapshot_tree_put(struct snapshot_tree *tree) {
    if (tree && !--tree->references) {
        while (!list_empty(&tree->snapshots))
            leave_tree(container_of(tree->snapshots.prev, struct snapshot, in_tree));
        free(tree);
    }
    return NULL;
}

struct snapshot *snapshot_nearest_owned(struct snapshot *snapshot) {
    while (snapshot && snapshot->lower && !snapshot->tree && !snapshot->layer &&
           !snapshot->compacted && !snapshot->compacted_hook)
        snapshot = snapshot->lower;
    return snapshot;
}

/* One that lies on a state which has just been dropped lies on what that has of its own, or is
 * over. */
static void settle_snapshot(struct snapshot *snapshot) {
    struct snapshot *lower = snapshot->lower, *ground = snapshot_nearest_owned(lower);

    if (ground == lower || snapshot->compacted_hook)
        return;
    snapshot->lower = snapshot_get(ground);
    snapshot_put(lower);
}

/* The family has one reference, the caller gets another. */
struct snapshot *snapshot_new(struct engine *engine, struct snapshot_tree *tree,
    struct snapshot *parent, struct snapshot *lower, struct layer *take_layer) {
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);

    if (!snapshot) {
        layer_put(take_layer);
        return NULL;
    }
    snapshot->engine = engine;
    snapshot->references = 2;
    snapshot->tree = tree;
    /* A child of a dropped snapshot is shown as a child of the first one: the parent of the dropped
     * snapshot is not known any more. */
    struct snapshot *shown = parent;
    if (parent && !parent->tree)
        shown = container_of(tree->snapshots.next, struct snapshot, in_tree);
    snapshot->parent = shown ? snapshot_get(shown) : NULL;
    snapshot->lower = lower ? snapshot_get(snapshot_nearest_owned(lower)) : NULL;
    snapshot->layer = take_layer;
    snapshot->net_names = parent ? json_incref(parent->net_names) : NULL;
    snapshot->generation = parent ? parent->generation + 1 : 0;
    snapshot->made_ns = clock_coarse_ns(); /* files that a sandbox makes from now on have stamps
                                              that are no earlier (stamps.c) */
    snprintf(snapshot->id, sizeof snapshot->id, "s%u", tree->next_name++);
    list_add_tail(&tree->snapshots, &snapshot->in_tree);
    return snapshot;
}

struct snapshot *snapshot_get(struct snapshot *snapshot) {
    snapshot->references++;
    return snapshot;
}

struct snapshot *snapshot_put(struct snapshot *snapshot) {
    /* A loop, for a chain may be long. */
    while (snapshot && !--snapshot->references) {
        struct snapshot *lower = snapshot->lower;

        layer_put(snapshot->layer);
        layer_put(snapshot->compacted);
        checkpoint_put(snapshot->checkpoint);
        json_decref(snapshot->net_names);
        free(snapshot->name);
        free(snapshot);
        snapshot = lower;
    }
    return NULL;
}

struct snapshot *snapshot_find(struct snapshot_tree *tree, const char *id) {
    list_for_each(at, &tree->snapshots) {
        struct snapshot *snapshot = container_of(at, struct snapshot, in_tree);

        if (!strcmp(snapshot->id, id) || (snapshot->name && !strcmp(snapshot->name, id)))
            return snapshot;
    }
    return NULL;
}

int snapshot_drop(struct snapshot *snapshot) {
    if (!snapshot->parent)
        return -EBUSY; /* the beginning is free of charge, and the root of the tree */
    list_for_each(at, &snapshot->tree->snapshots) {
        struct snapshot *child = container_of(at, struct snapshot, in_tree);

        /* Its children become children of its parent. */
        if (child->parent == snapshot) {
            child->parent = snapshot_get(snapshot->parent);
            snapshot_put(snapshot);
        }
    }
    struct snapshot_tree *tree = snapshot->tree;
    leave_tree(snapshot);
    list_for_each(at, &tree->snapshots)
        settle_snapshot(container_of(at, struct snapshot, in_tree));
    return 0;
}

static const struct snapshot_sessions *sessions;

void snapshot_set_sessions(const struct snapshot_sessions *given) {
    sessions = given;
}

/* A client may want to compare with it. */
static bool is_kept(const struct snapshot *snapshot) {
    if (!snapshot->lower || (snapshot->tree && snapshot->purpose == SNAPSHOT_ASKED_FOR))
        return true;
    return sessions->is_committed(snapshot);
}

/* The layers of a node and of the nodes below it that are not compared with, bottom first, and the
 * node below these. */
static size_t snapshot_run(
    struct snapshot *snapshot, struct layer **layers, struct snapshot **ret_onto) {
    struct layer *found[GUEST_MAX_LAYERS];
    struct snapshot *i = snapshot;
    size_t n = 0;

    for (; n < GUEST_MAX_LAYERS && i->lower && (i == snapshot || !is_kept(i)); i = i->lower)
        if (i->layer)
            found[n++] = i->layer;
    for (size_t at = 0; at < n; at++)
        layers[at] = found[n - 1 - at];
    *ret_onto = i;
    return n;
}

/* Removes the states between the two, with their layers, unless one of them is wanted by now. */
static void settle_on(struct snapshot *snapshot, struct layer *take_layer) {
    struct snapshot *compact_onto = snapshot->compact_onto, *lower = snapshot->lower, *i = lower;

    while (i != compact_onto && !is_kept(i))
        i = i->lower;
    snapshot->compact_onto = NULL;
    if (!take_layer || i != compact_onto) {
        layer_put(take_layer);
        snapshot_put(compact_onto);
        return;
    }
    layer_put(snapshot->layer);
    snapshot->layer = take_layer;
    snapshot->lower = compact_onto;
    snapshot_put(lower);
}

static void on_merged(void *data, struct layer *take_layer, int error_number) {
    struct snapshot *snapshot = data;

    (void)
        error_number; /* not merged: the chain serves as it is, and the next snapshot tries again */
    void (*done)(struct engine *, struct snapshot *) = TAKE_PTR(snapshot->compacted_hook);
    if (snapshot->compact_onto)
        settle_on(snapshot, take_layer);
    else if (!snapshot->compacted)
        snapshot->compacted = take_layer;
    else
        layer_put(take_layer);
    done(snapshot->engine, snapshot);
    snapshot_put(snapshot);
}

bool snapshot_is_compacting(const struct snapshot *snapshot) {
    return snapshot->compacted_hook;
}

void snapshot_compact_later(struct snapshot *snapshot, struct profile *profile,
    void (*done)(struct engine *engine, struct snapshot *snapshot)) {
    struct layer *layers[GUEST_MAX_LAYERS];
    size_t n = snapshot_chain(snapshot, layers, GUEST_MAX_LAYERS);

    if (n < MERGE_FROM || n > GUEST_MAX_LAYERS || snapshot->compacted_hook)
        return;
    for (struct snapshot *i = snapshot->lower; i && !i->compacted; i = i->lower)
        if (i->compacted_hook)
            return; /* will be short enough then */
    /* Best are layers that are not needed any more then; else all are merged, and kept. */
    struct layer *run[GUEST_MAX_LAYERS];
    struct snapshot *compact_onto;
    size_t n_run = snapshot_run(snapshot, run, &compact_onto);
    bool shortens = n_run >= MERGE_FROM / 2;
    snapshot->compacted_hook = done;
    snapshot->compact_onto = shortens ? snapshot_get(compact_onto) : NULL;
    struct layer **merged = shortens ? run : layers;
    if (copy_start(profile, merged, shortens ? n_run : n, NULL, on_merged, snapshot_get(snapshot)) <
        0) {
        snapshot->compacted_hook = NULL;
        snapshot->compact_onto = snapshot_put(snapshot->compact_onto);
        snapshot_put(snapshot);
    }
}

/* ---- in words ---- */

static bool is_shown(const struct snapshot *snapshot) {
    return !snapshot->parent || snapshot->purpose != SNAPSHOT_INTERNAL;
}

/* States that were taken on the way to something else (a diff, a commit) are nobody's: those who
 * stand on one stand, for users, on the one before. */
struct snapshot *snapshot_nearest_visible(struct snapshot *snapshot) {
    while (!is_shown(snapshot))
        snapshot = snapshot->parent;
    return snapshot;
}

/* A guest that rewrites its files from call to call must not fill the memory with old versions.
 * States under kept ones stay. */
void snapshot_tree_gc(struct snapshot_tree *tree) {
    struct list *next;

    list_for_each(at, &tree->snapshots)
        container_of(at, struct snapshot, in_tree)->pinned = false;
    sessions->pin(tree);
    for (struct list *at = tree->snapshots.prev; at != &tree->snapshots; at = next) {
        struct snapshot *snapshot = container_of(at, struct snapshot, in_tree);

        next = at->prev;
        if (!snapshot->pinned && snapshot->purpose != SNAPSHOT_ASKED_FOR)
            (void)snapshot_drop(snapshot);
    }
}

void snapshot_facts(struct snapshot *snapshot, struct snapshot_facts *ret_facts) {
    const struct snapshot *parent =
        snapshot->parent ? snapshot_nearest_visible(snapshot->parent) : NULL;

    *ret_facts = (struct snapshot_facts){
        .id = snapshot->id,
        .name = snapshot->name,
        .parent = parent ? parent->id : NULL,
        .bytes = snapshot->layer ? snapshot->layer->bytes : 0,
        .files = snapshot->layer ? snapshot->layer->entries : 0,
        .made_ns = snapshot->made_ns,
        .was_live = snapshot->is_live,
        .is_automatic = snapshot->automatic,
        .kind = !snapshot->checkpoint          ? "files"
                : snapshot->checkpoint->zygote ? "warm"
                                               : "live",
        .processes = snapshot->checkpoint ? snapshot->checkpoint->processes : 0,
        .memory_bytes = snapshot->checkpoint ? snapshot->checkpoint->bytes : 0,
    };
}

void snapshot_facts_text(const struct snapshot_facts *facts, struct buf *to) {
    buf_printf(to, "\"id\": \"%s\", \"name\": ", facts->id);
    json_add_string(to, facts->name, facts->name ? strlen(facts->name) : 0);
    buf_add_text(to, ", \"parent\": ");
    json_add_string(to, facts->parent, facts->parent ? strlen(facts->parent) : 0);
    buf_printf(to,
        ", \"bytes\": %llu, \"files\": %llu, \"created\": %.3f, \"automatic\": %s, \"live\": %s, "
        "\"kind\": \"%s\", \"processes\": %u, \"memory_bytes\": %llu, \"disk_bytes\": %llu",
        (unsigned long long)facts->bytes, (unsigned long long)facts->files,
        (double)facts->made_ns / 1e9, facts->is_automatic ? "true" : "false",
        facts->was_live ? "true" : "false", facts->kind, facts->processes,
        (unsigned long long)facts->memory_bytes, (unsigned long long)facts->disk_bytes);
}

void snapshot_tree_text(struct snapshot_tree *tree, struct buf *to) {
    const char *between = "";

    buf_add_text(to, "{\"snapshots\": [");
    list_for_each(at, &tree->snapshots) {
        struct snapshot *snapshot = container_of(at, struct snapshot, in_tree);
        struct snapshot_facts facts;

        if (!is_shown(snapshot))
            continue;
        snapshot_facts(snapshot, &facts);
        buf_printf(to, "%s{", between);
        snapshot_facts_text(&facts, to);
        buf_add_text(to, ", \"sandboxes\": [");
        sessions->list(snapshot, to);
        buf_add_text(to, "]}");
        between = ", ";
    }
    buf_add_text(to, "]}");
}

/* ---- copies ---- */

struct copy {
    struct engine *engine;
    struct list node; /* engine->copies */
    struct launcher_job job;
    struct loop_timer deadline; /* its child may be killed */
    struct disk_upper *upper;   /* into which it goes; NULL: a tmpfs */
    struct layer_hold from;
    copy_done done; /* NULL: nobody waits any more */
    void *data;
};

static void finish_copy(struct copy *copy, struct layer *take_layer, int error_number) {
    list_remove(&copy->node);
    launcher_job_cancel(&copy->job);
    loop_timer_clear(copy->engine->loop, &copy->deadline);
    if (take_layer && copy->upper)
        layer_take_upper(take_layer, TAKE_PTR(copy->upper));
    disk_upper_put(copy->upper);
    layer_hold_done(&copy->from);
    if (copy->done)
        copy->done(copy->data, take_layer, error_number);
    else
        layer_put(take_layer);
    free(copy);
}

static void on_copied(void *data, const struct launcher_result *result) {
    const struct guest_record *record = result->record;
    struct layer *layer = record->kind == GUEST_COPIED && !record->error && result->n_fds
                              ? layer_new(TAKE_FD(result->fds[0]), record->value, record->wall_ns)
                              : NULL;
    int error_number = record->kind != GUEST_COPIED ? ECHILD
                       : record->error              ? record->error
                                                    : ENOMEM;

    finish_copy(data, layer, layer ? 0 : error_number);
}

static void on_deadline(struct loop_timer *timer) {
    finish_copy(container_of(timer, struct copy, deadline), NULL, ETIMEDOUT);
}

static int start_copy(struct profile *profile, struct layer *const *layers, size_t n,
    uint64_t bytes, uint64_t entries, const struct inode_numbers *numbers, copy_done done,
    void *data) {
    auto_buf struct buf message = BUF_INIT;
    struct launcher *launcher = profile->launcher;
    struct copy *copy = launcher ? calloc(1, sizeof *copy) : NULL;
    int fds[GUEST_MAX_LAYERS];

    if (!copy)
        return launcher ? -ENOMEM : -ENOTCONN;
    list_init(&copy->node);
    list_init(&copy->job.node);
    copy->engine = profile->engine;
    copy->done = done;
    copy->data = data;
    launcher_begin(launcher, &copy->job, GUEST_COPY, &message);
    wire_add_u64(&message, GUEST_BYTES, bytes);
    wire_add_u64(&message, GUEST_ENTRIES, entries);
    if (numbers && numbers->n)
        wire_add(&message, GUEST_NUMBERS, numbers->list, numbers->n * sizeof numbers->list[0]);
    for (size_t i = 0; i < n; i++)
        fds[i] = layers[i]->fd;
    int r = layer_hold(&copy->from, layers, n);
    if (r == 0 && profile->plan->flags & PLAN_ON_DISK)
        r = disk_upper_new(copy->engine, launcher->id_base, &copy->upper);
    if (r == 0 && copy->upper)
        upper_field(copy->upper, &message);
    if (r == 0)
        r = buf_failed(&message)
                ? -ENOMEM
                : loop_timer_set(copy->engine->loop, &copy->deadline,
                      clock_now_ns() +
                          (copy->upper ? COPY_ON_DISK_SECONDS : COPY_SECONDS) * 1000000000ll,
                      on_deadline);
    if (r == 0)
        r = launcher_send(launcher, &copy->job, &message, fds, n, on_copied, copy);
    if (r < 0) {
        loop_timer_clear(copy->engine->loop, &copy->deadline);
        disk_upper_put(copy->upper);
        layer_hold_done(&copy->from);
        free(copy);
        return r;
    }
    list_add_tail(&copy->engine->copies, &copy->node);
    return 0;
}

/* With some room besides, as things are counted here and there in different ways. */
int copy_empty(
    struct profile *profile, uint64_t bytes, uint64_t entries, copy_done done, void *data) {
    return start_copy(
        profile, NULL, 0, (1 << 20) + bytes + bytes / 8, 1024 + 2 * entries, NULL, done, data);
}

int copy_start(struct profile *profile, struct layer *const *layers, size_t n,
    const struct inode_numbers *numbers, copy_done done, void *data) {
    uint64_t bytes = 1 << 20, entries = 1024;

    if (n > GUEST_MAX_LAYERS)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        bytes += layers[i]->bytes + layers[i]->bytes / 8;
        entries += layers[i]->entries;
    }
    return start_copy(profile, layers, n, bytes, entries, numbers, done, data);
}

void copy_forget(struct engine *engine, const void *data) {
    list_for_each(node, &engine->copies) {
        struct copy *copy = container_of(node, struct copy, node);

        if (copy->data == data)
            copy->done = NULL;
    }
}
