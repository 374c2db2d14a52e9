/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers, and the tree of states that they make.
 *
 * A layer is a detached mount that we hold by a descriptor: as long as it is open, the files are there, and no longer. A node has at most one layer of its own and lies on another node. A chain from a node down to
 * the beginning would grow with every snapshot; so once it is long, all its layers are copied into one, in the background, and the chain ends there.
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
#include "engine/session.h"
#include "engine/upper.h"

#define EMPTY_BYTES 48          /* of getdents64: "." and "..", 24 bytes each */
#define MERGE_FROM 8            /* layers in a chain */
#define COPY_SECONDS 120        /* far more than any takes that fits into memory */
#define COPY_ON_DISK_SECONDS 3600

/* ---- layers ----------------------------------------------------------------------------------------------------------- */

/* One that cannot be looked into may hold anything. */
static bool part_holds(int layer, unsigned number) {
    char part[16], entries[4096];

    snprintf(part, sizeof part, "p%u", number);
    auto_close int fd = openat(layer, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
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

struct layer *layer_new(int take_fd, uint64_t bytes, uint64_t entries) {
    auto_close int fd = take_fd;
    struct layer *layer = calloc(1, sizeof *layer);

    if (!layer)
        return NULL;
    *layer = (struct layer){ .references = 1, .bytes = bytes, .entries = entries, .parts = parts_of(fd) };
    layer->fd = TAKE_FD(fd);
    return layer;
}

void layer_look(struct layer *layer) {
    layer->parts = parts_of(layer->fd);
    if (layer->upper) {
        layer->upper->is_measured = false;
        upper_measure(layer->upper);
    }
}

void layer_take_upper(struct layer *layer, struct upper *take_upper) {
    layer->upper = take_upper;
    take_upper->layer = layer;
    take_upper->is_measured = false;
    upper_measure(take_upper);
}

bool layer_is_measured(const struct layer *layer) {
    return !layer->upper || layer->upper->is_measured;
}

int layer_hold(struct layer_hold *hold, struct layer *const *layers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!layers[i] || !layers[i]->upper)
            continue;
        struct layer **more = realloc(hold->layers, (hold->n + 1) * sizeof(struct layer *));
        if (!more)
            return -ENOMEM;
        hold->layers = more;
        hold->layers[hold->n++] = layer_get(layers[i]);
    }
    return 0;
}

int layer_hold_family(struct layer_hold *hold, const struct family *family) {
    int r = 0;

    /* What was dropped is there below others. */
    list_for_each(at, &family->nodes)
        for (const struct node *i = container_of(at, struct node, in_family); r == 0 && i; i = i->under && !i->under->family ? i->under : NULL)
            r = layer_hold(hold, (struct layer *const[]){ i->layer, i->merged }, 2);
    return r;
}

void layer_hold_done(struct layer_hold *hold) {
    for (size_t i = 0; i < hold->n; i++)
        layer_put(hold->layers[i]);
    free(hold->layers);
    *hold = (struct layer_hold){ 0 };
}

struct layer *layer_get(struct layer *layer) {
    layer->references++;
    return layer;
}

struct layer *layer_put(struct layer *layer) {
    if (layer && !--layer->references) {
        if (layer->upper) {
            close(layer->fd);   /* it frees nothing: that is the janitor's work */
            layer->upper->layer = NULL;
            upper_put(layer->upper);
        } else if (layer->is_lived_in) {
            close(layer->fd);   /* nor does this */
        } else {
            bury(layer->fd);
        }
        origin_put(&layer->origin);
        free(layer);
    }
    return NULL;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------ */

struct family *family_new(struct engine *engine, struct node **ret_beginning) {
    struct family *family = calloc(1, sizeof *family);

    if (!family)
        return NULL;
    family->references = 1;
    list_init(&family->nodes);
    *ret_beginning = node_new(engine, family, NULL, NULL, NULL);
    if (!*ret_beginning) {
        free(family);
        return NULL;
    }
    return family;
}

/* Out of the tree that users see. */
static void leave_family(struct node *node) {
    list_remove(&node->in_family);
    if (!node->n_pins)
        node->live = live_put(node->live);      /* nobody can name it any more */
    if (node->parent)
        node->parent = node_put(node->parent);
    node->family = NULL;
    node_put(node);
}

struct node *node_pin(struct node *node) {
    if (!node)
        return NULL;
    node->n_pins++;
    return node_get(node);
}

struct node *node_unpin(struct node *node) {
    if (!node)
        return NULL;
    if (!--node->n_pins && !node->family)
        node->live = live_put(node->live);
    node_put(node);
    return NULL;
}

struct family *family_put(struct family *family) {
    if (family && !--family->references) {
        while (!list_empty(&family->nodes))
            leave_family(container_of(family->nodes.prev, struct node, in_family));
        free(family);
    }
    return NULL;
}

struct node *node_ground(struct node *node) {
    while (node && node->under && !node->family && !node->layer && !node->merged && !node->merging)
        node = node->under;
    return node;
}

/* One that lies on a state which has just been dropped lies on what that has of its own, or is over. */
static void settle(struct node *node) {
    struct node *under = node->under, *ground = node_ground(under);

    if (ground == under || node->merging)
        return;
    node->under = node_get(ground);
    node_put(under);
}

/* The family has one reference, the caller gets another. */
struct node *node_new(struct engine *engine, struct family *family, struct node *parent, struct node *under, struct layer *take_layer) {
    struct node *node = calloc(1, sizeof *node);

    if (!node) {
        layer_put(take_layer);
        return NULL;
    }
    node->engine = engine;
    node->references = 2;
    node->family = family;
    /* What comes of one that was dropped comes, for users, of the beginning: nobody knows any more what that came of. */
    node->parent = parent ? node_get(parent->family ? parent : container_of(family->nodes.next, struct node, in_family)) : NULL;
    node->under = under ? node_get(node_ground(under)) : NULL;
    node->layer = take_layer;
    node->generation = parent ? parent->generation + 1 : 0;
    node->made_ns = clock_coarse_ns();      /* files that a sandbox makes from now on have stamps that are no earlier (stamps.c) */
    snprintf(node->id, sizeof node->id, "s%u", family->next_name++);
    list_add_tail(&family->nodes, &node->in_family);
    return node;
}

static struct node *beginning_of(const struct node *node) {
    while (node->parent)
        node = node->parent;
    return (struct node *)(uintptr_t)node;
}

int64_t node_since_ns(const struct node *node) {
    return beginning_of(node)->made_ns;
}

void node_has_since(struct node *node, int64_t since_ns) {
    struct node *beginning = beginning_of(node);

    beginning->made_ns = MIN(beginning->made_ns, since_ns);
}

struct node *node_get(struct node *node) {
    node->references++;
    return node;
}

struct node *node_put(struct node *node) {
    /* A loop, for a chain may be long. */
    while (node && !--node->references) {
        struct node *under = node->under;

        layer_put(node->layer);
        layer_put(node->merged);
        live_put(node->live);
        free(node->name);
        free(node);
        node = under;
    }
    return NULL;
}

struct node *node_find(struct family *family, const char *id) {
    list_for_each(at, &family->nodes) {
        struct node *node = container_of(at, struct node, in_family);

        if (!strcmp(node->id, id) || (node->name && !strcmp(node->name, id)))
            return node;
    }
    return NULL;
}

int node_drop(struct node *node) {
    if (!node->parent)
        return -EBUSY;          /* the beginning is free of charge, and the root of the tree */
    list_for_each(at, &node->family->nodes) {
        struct node *child = container_of(at, struct node, in_family);

        /* Those above hang on what is left. */
        if (child->parent == node) {
            child->parent = node_get(node->parent);
            node_put(node);
        }
    }
    struct family *family = node->family;
    leave_family(node);
    list_for_each(at, &family->nodes)
        settle(container_of(at, struct node, in_family));
    return 0;
}

size_t node_chain(struct node *node, struct layer **layers, size_t most) {
    size_t n = 0, at = 0;

    for (struct node *i = node; i; i = i->merged ? NULL : i->under)
        n += i->merged || i->layer;
    for (struct node *i = node; i; i = i->merged ? NULL : i->under)
        if (i->merged || i->layer) {
            if (n - 1 - at < most)
                layers[n - 1 - at] = i->merged ? i->merged : i->layer;
            at++;
        }
    return n;
}

void node_usage(struct node *node, uint64_t *ret_bytes, uint64_t *ret_entries) {
    *ret_bytes = *ret_entries = 0;
    for (struct node *i = node; i; i = i->merged ? NULL : i->under) {
        const struct layer *layer = i->merged ? i->merged : i->layer;

        *ret_bytes += layer ? layer->bytes : 0;
        *ret_entries += layer ? layer->entries : 0;
    }
}

/* Somebody may want to compare with it. */
static bool is_kept(const struct node *node) {
    if (!node->under || (node->family && node->is_asked_for && !node->is_of_fork))
        return true;
    list_for_each(at, &node->engine->sessions)
        if (container_of(at, struct session, node)->committed == node)
            return true;
    return false;
}

/* The layers of a node and of those under it that nobody compares with, bottom first, and what they lie on. */
static size_t node_run(struct node *node, struct layer **layers, struct node **ret_onto) {
    struct layer *found[GUEST_MAX_LAYERS];
    struct node *i = node;
    size_t n = 0;

    for (; n < GUEST_MAX_LAYERS && i->under && (i == node || !is_kept(i)); i = i->under)
        if (i->layer)
            found[n++] = i->layer;
    for (size_t at = 0; at < n; at++)
        layers[at] = found[n - 1 - at];
    *ret_onto = i;
    return n;
}

/* Those between the two go, with their layers, unless somebody has come to want one meanwhile. */
static void settle_on(struct node *node, struct layer *take_layer) {
    struct node *onto = node->onto, *under = node->under, *i = under;

    while (i != onto && !is_kept(i))
        i = i->under;
    node->onto = NULL;
    if (!take_layer || i != onto) {
        layer_put(take_layer);
        node_put(onto);
        return;
    }
    layer_put(node->layer);
    node->layer = take_layer;
    node->under = onto;
    node_put(under);
}

static void on_merged(void *data, struct layer *take_layer, int error_number) {
    struct node *node = data;

    (void)error_number;         /* not merged: the chain serves as it is, and the next snapshot tries again */
    node->merging = false;
    if (node->onto)
        settle_on(node, take_layer);
    else if (!node->merged)
        node->merged = take_layer;
    else
        layer_put(take_layer);
    state_merged(node->engine, node);
    node_put(node);
}

void node_merge_soon(struct node *node, struct program *program) {
    struct layer *layers[GUEST_MAX_LAYERS];
    size_t n = node_chain(node, layers, GUEST_MAX_LAYERS);

    if (n < MERGE_FROM || n > GUEST_MAX_LAYERS || node->merging)
        return;
    for (struct node *i = node->under; i && !i->merged; i = i->under)
        if (i->merging)
            return;             /* will be short enough then */
    /* Best are layers that are not needed any more then; else all are merged, and kept. */
    struct layer *run[GUEST_MAX_LAYERS];
    struct node *onto;
    size_t n_run = node_run(node, run, &onto);
    bool shortens = n_run >= MERGE_FROM / 2;
    node->merging = true;
    node->onto = shortens ? node_get(onto) : NULL;
    if (copy_start(program, shortens ? run : layers, shortens ? n_run : n, NULL, on_merged, node_get(node)) < 0) {
        node->merging = false;
        node->onto = node_put(node->onto);
        node_put(node);
    }
}

/* ---- in words --------------------------------------------------------------------------------------------------------- */

static bool is_shown(const struct node *node) {
    return !node->parent || node->is_asked_for;
}

/* States that were taken on the way to something else (a diff, a commit) are nobody's: those who stand on one stand, for users, on the one before. */
struct node *node_shown(struct node *node) {
    while (!is_shown(node))
        node = node->parent;
    return node;
}

/* A guest that writes anew from call to call must not fill the memory with what it wrote before. What others lie on stays with them. */
void family_tidy(struct family *family) {
    struct list *next;

    list_for_each(at, &family->nodes)
        container_of(at, struct node, in_family)->pinned = false;
    struct engine *engine = container_of(family->nodes.next, struct node, in_family)->engine;
    list_for_each(s, &engine->sessions) {
        const struct session *session = container_of(s, struct session, node);

        if (session->family != family)
            continue;
        session->at->pinned = true;
        list_for_each(w, &session->works) {
            const struct work *work = container_of(w, struct work, node);

            if (work->from)
                work->from->pinned = true;
            if (work->to)
                work->to->pinned = true;
        }
    }
    for (struct list *at = family->nodes.prev; at != &family->nodes; at = next) {
        struct node *node = container_of(at, struct node, in_family);

        next = at->prev;
        if (!node->pinned && (!node->is_asked_for || node->is_of_fork))
            (void)node_drop(node);
    }
}

void node_facts(struct node *node, struct node_facts *ret_facts) {
    const struct node *parent = node->parent ? node_shown(node->parent) : NULL;

    *ret_facts = (struct node_facts){
        .id = node->id, .name = node->name, .parent = parent ? parent->id : NULL, .bytes = node->layer ? node->layer->bytes : 0, .files = node->layer ? node->layer->entries : 0, .made_ns = node->made_ns,
        .was_live = node->is_live, .is_automatic = node->automatic, .kind = !node->live ? "files" : node->live->holder ? "warm" : "live", .processes = node->live ? node->live->processes : 0, .memory_bytes = node->live ? node->live->bytes : 0,
    };
}

void node_facts_text(const struct node_facts *facts, struct buf *to) {
    buf_printf(to, "\"id\": \"%s\", \"name\": ", facts->id);
    text_json(to, facts->name, facts->name ? strlen(facts->name) : 0);
    buf_add_text(to, ", \"parent\": ");
    text_json(to, facts->parent, facts->parent ? strlen(facts->parent) : 0);
    buf_printf(to, ", \"bytes\": %llu, \"files\": %llu, \"created\": %.3f, \"automatic\": %s, \"live\": %s, \"kind\": \"%s\", \"processes\": %u, \"memory_bytes\": %llu, \"disk_bytes\": %llu", (unsigned long long)facts->bytes, (unsigned long long)facts->files,
               (double)facts->made_ns / 1e9, facts->is_automatic ? "true" : "false", facts->was_live ? "true" : "false", facts->kind, facts->processes, (unsigned long long)facts->memory_bytes, (unsigned long long)facts->disk_bytes);
}

void family_text(struct family *family, struct buf *to) {
    const char *between = "";

    buf_add_text(to, "{\"snapshots\": [");
    list_for_each(at, &family->nodes) {
        struct node *node = container_of(at, struct node, in_family);
        const char *comma = "";
        struct node_facts facts;

        if (!is_shown(node))
            continue;
        node_facts(node, &facts);
        buf_printf(to, "%s{", between);
        node_facts_text(&facts, to);
        buf_add_text(to, ", \"sandboxes\": [");
        list_for_each(s, &node->engine->sessions) {
            struct session *session = container_of(s, struct session, node);

            if (session->family != family || node_shown(session->at) != node || session->state == SESSION_CLOSING || session->is_trial)
                continue;
            buf_printf(to, "%s\"%s\"", comma, session->name);
            comma = ", ";
        }
        buf_add_text(to, "]}");
        between = ", ";
    }
    buf_add_text(to, "]}");
}

/* ---- copies ----------------------------------------------------------------------------------------------------------- */

struct copy {
    struct engine *engine;
    struct list node;           /* engine->copies */
    struct launcher *launcher;  /* NULL: it is gone */
    struct loop_task lost;      /* then */
    struct loop_timer deadline; /* its child may be killed */
    uint64_t serial;
    struct upper *upper;        /* into which it goes; NULL: a tmpfs */
    struct layer_hold from;
    copy_done done;             /* NULL: nobody waits any more */
    void *data;
};

static void finish(struct copy *copy, struct layer *take_layer, int error_number);

static void on_deadline(struct loop_timer *timer) {
    finish(container_of(timer, struct copy, deadline), NULL, ETIMEDOUT);
}

static int start(struct program *program, struct layer *const *layers, size_t n, uint64_t bytes, uint64_t entries,
    const struct numbers *numbers, copy_done done, void *data) {
    auto_buf struct buf message = BUF_INIT;
    struct launcher *launcher = program->launcher;
    struct copy *copy = launcher ? calloc(1, sizeof *copy) : NULL;
    int fds[GUEST_MAX_LAYERS];

    if (!copy)
        return launcher ? -ENOMEM : -ENOTCONN;
    list_init(&copy->node);
    copy->launcher = launcher;
    copy->serial = ++launcher->next_serial;
    copy->engine = program->engine;
    copy->done = done;
    copy->data = data;
    wire_begin(&message, GUEST_COPY, copy->serial);
    wire_add_u64(&message, GUEST_BYTES, bytes);
    wire_add_u64(&message, GUEST_ENTRIES, entries);
    if (numbers && numbers->n)
        wire_add(&message, GUEST_NUMBERS, numbers->list, numbers->n * sizeof numbers->list[0]);
    for (size_t i = 0; i < n; i++)
        fds[i] = layers[i]->fd;
    int r = layer_hold(&copy->from, layers, n);
    if (r == 0 && program->plan->flags & PLAN_ON_DISK)
        r = upper_new(copy->engine, launcher->id_base, &copy->upper);
    if (r == 0 && copy->upper)
        upper_field(copy->upper, &message);
    if (r == 0)
        r = buf_failed(&message) ? -ENOMEM : loop_timer_set(copy->engine->loop, &copy->deadline, clock_now_ns() + (copy->upper ? COPY_ON_DISK_SECONDS : COPY_SECONDS) * 1000000000ll, on_deadline);
    if (r == 0)
        r = wire_send_patiently(launcher->socket, &message, fds, n);
    if (r < 0) {
        loop_timer_clear(copy->engine->loop, &copy->deadline);
        upper_put(copy->upper);
        layer_hold_done(&copy->from);
        free(copy);
        return r;
    }
    list_add_tail(&copy->engine->copies, &copy->node);
    return 0;
}

/* With some room besides, as things are counted here and there in different ways. */
int copy_empty(struct program *program, uint64_t bytes, uint64_t entries, copy_done done, void *data) {
    return start(program, NULL, 0, (1 << 20) + bytes + bytes / 8, 1024 + 2 * entries, NULL, done, data);
}

int copy_start(struct program *program, struct layer *const *layers, size_t n, const struct numbers *numbers, copy_done done, void *data) {
    uint64_t bytes = 1 << 20, entries = 1024;

    if (n > GUEST_MAX_LAYERS)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        bytes += layers[i]->bytes + layers[i]->bytes / 8;
        entries += layers[i]->entries;
    }
    return start(program, layers, n, bytes, entries, numbers, done, data);
}

void copy_forget(struct engine *engine, const void *data) {
    list_for_each(node, &engine->copies) {
        struct copy *copy = container_of(node, struct copy, node);

        if (copy->data == data)
            copy->done = NULL;
    }
}

static void finish(struct copy *copy, struct layer *take_layer, int error_number) {
    list_remove(&copy->node);
    loop_task_cancel(&copy->lost);
    loop_timer_clear(copy->engine->loop, &copy->deadline);
    if (take_layer && copy->upper)
        layer_take_upper(take_layer, TAKE_PTR(copy->upper));
    upper_put(copy->upper);
    layer_hold_done(&copy->from);
    if (copy->done)
        copy->done(copy->data, take_layer, error_number);
    else
        layer_put(take_layer);
    free(copy);
}

void copy_answer(struct launcher *launcher, const struct guest_record *record, int *fds, size_t n_fds) {
    list_for_each(node, &launcher->program->engine->copies) {
        struct copy *copy = container_of(node, struct copy, node);

        if (copy->launcher != launcher || copy->serial != record->serial)
            continue;
        struct layer *layer = !record->error && n_fds ? layer_new(TAKE_FD(fds[0]), record->value, record->wall_ns) : NULL;
        finish(copy, layer, layer ? 0 : record->error ? record->error : ENOMEM);
        return;
    }
}

static void on_lost(struct loop_task *task) {
    finish(container_of(task, struct copy, lost), NULL, ECHILD);
}

void copy_lost(struct launcher *launcher) {
    struct engine *engine = launcher->program->engine;

    list_for_each(node, &engine->copies) {
        struct copy *copy = container_of(node, struct copy, node);

        if (copy->launcher != launcher)
            continue;
        copy->launcher = NULL;
        loop_defer(engine->loop, &copy->lost, on_lost);
    }
}
