/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernating and waking.
 *
 * To sleep: the present state is taken as for a snapshot, but what was captured is not let go. rollbox-store writes the layers and images to the disk, with the session's record; once that is whole and its lock is ours, the box dies, and with it
 * the states that only this session had. What is left here is a struct sleep. Should anything fail before, the processes go on as after a snapshot; should the engine die, the store has all of it or nothing.
 *
 * Awake: the launcher makes empty layers, rollbox-store checks every digest and fills them, the states are made again from the record, and the box is restored like any that has processes. Only then is it out of the store. A call that needs the
 * sandbox (a command, files, a work) puts a WAKE before itself; one that is answered at once is kept until then (struct work.deferred).
 *
 * What it was woken from stays in the store, as woken/ID, while a layer or image is held that came of it, or processes run that did: what has not changed since is not written when it sleeps again, it or another that has it (store/kept.h).
 *
 * A detached session of a shared engine survives that: the next engine on the same socket finds it in the store (sleep_adopt).
 */
#include "engine/sleep.h"

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
#include "store/asleep_check.h"
#include "store/fingerprint.h"

#define IMAGE_BESIDES (64ull << 20)     /* what an image has besides memory */
#define LOCK_WAIT_MS 200
#define LAYER_SLACK 16          /* as a part: files take up a little more or less in another tmpfs */
#define LAYERS_AT_ONCE 64       /* that a launcher is asked for: its socket has not room for any number */

/* A layer that is being made. */
struct filling {
    struct work *work;
    struct layer *layer;
};

/* What the store has of one that was woken. */
struct woken {
    struct engine *engine;
    unsigned references;
    char id[ASLEEP_ID_LENGTH + 1];
    int lock;                   /* of its record.json; -EBADF: it is not in woken/ (yet) */
};

struct waking {
    json_t *whole;              /* as the store has it */
    json_t *record;             /* what is ours of that; borrowed */
    struct filling *layers;
    size_t n_layers, n_asked, n_made, n_images;
    struct sleep *sleep;        /* while it is restored: back to that if it fails */
    struct woken *woken;        /* what the layers and images are said to come from; a reference */
    int *images;
    bool is_counted;            /* among the program's n_wakers */
    bool is_kept;               /* in woken/: its processes may go on */
};

static int store_of(struct engine *engine, int *ret_store, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int r = engine->store_path ? store_default_path(&path, error) : error_set(error, ROLLBOX_ERR_ENGINE_START, ENOENT, "run", "rollbox-store cannot be found beside the engine; is the installation complete?");

    return r < 0 ? r : store_open(path, ret_store, error);
}

static int no_memory(struct rollbox_error *error, const char *stage) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, stage, "out of memory");
}

static struct sleep *sleep_put(struct sleep *sleep) {
    if (sleep)
        close_fd(&sleep->lock);
    free(sleep);
    return NULL;
}

/* ---- what it was woken from ------------------------------------------------------------------------------------------- */

static struct woken *woken_put(struct woken *woken) {
    auto_close int store = -EBADF;

    if (!woken || --woken->references)
        return NULL;
    if (woken->lock >= 0) {
        if (store_of(woken->engine, &store, NULL) == 0 && asleep_remove(store, WOKEN_DIRECTORY, woken->id) == 0)
            errand_forget(woken->engine);
        close_fd(&woken->lock);
        woken->engine->files--;
    }
    free(woken);
    return NULL;
}

void origin_set(struct origin *origin, struct woken *woken, size_t index) {
    woken->references++;
    *origin = (struct origin){ woken, index };
}

struct origin origin_of(const struct origin *origin) {
    if (origin->woken)
        origin->woken->references++;
    return *origin;
}

void origin_put(struct origin *origin) {
    origin->woken = woken_put(origin->woken);
}

/* ---- to sleep --------------------------------------------------------------------------------------------------------- */

/* Nothing of its states is needed here any more. */
static void drop_states(struct session *session, struct family *family, struct node *beginning) {
    session_give_up_box(session);
    session->restores = live_put(session->restores);
    origin_put(&session->origin);
    node_put(session->base);
    node_put(session->at);
    session->committed = node_put(session->committed);
    family_put(session->family);
    session->family = family;
    session->base = beginning;
    session->at = node_get(beginning);
    session->dirty = false;
    session->state = SESSION_NEW;
}

static void leave_program(struct session *session) {
    struct program *program = session->program;

    program->n_sleepers++;
    program->n_sessions--;
    session->engine->files++;   /* the lock */
    program_rest(program);
}

static void enter_program(struct session *session) {
    session->program->n_sleepers--;
    session->program->n_sessions++;
    session->engine->files--;
}

static void fail_sleep(struct work *work, const struct rollbox_error *error) {
    sleep_put(TAKE_PTR(work->sleep));
    state_go_on(work);
    work_fail(work, error);
}

static int random_id(char ret_id[ASLEEP_ID_LENGTH + 1]) {
    uint8_t bytes[ASLEEP_ID_LENGTH / 2];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -EIO;
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret_id + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* Descriptors of layers' roots, then of images, in the order of the record. */
static int open_parts(const struct sleep_parts *parts, int *fds) {
    for (size_t i = 0; i < parts->n_layers; i++)
        if ((fds[i] = openat(parts->layers[i]->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            return -errno;
    for (size_t i = 0; i < parts->n_lives; i++)
        if ((fds[parts->n_layers + i] = fcntl(live_image(parts->lives[i]), F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
    return 0;
}

/* A descriptor of rollbox-store's, and what is known of what it leads to. */
static json_t *part(size_t number, const struct origin *origin, bool same) {
    int fd = (int)(ERRAND_FIRST_FD + number);

    return origin && origin->woken ? json_pack("{s:i, s:s, s:I, s:b}", "fd", fd, "kept", origin->woken->id, "index", (json_int_t)origin->index, "same", same) : json_pack("{s:i}", "fd", fd);
}

static json_t *layers_of(const struct sleep_parts *parts) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_layers; i++)
        json_array_append_new(list, part(i, &parts->layers[i]->origin, true));
    return list;
}

/* What was captured since it was woken has much of what it was woken with. */
static json_t *images_of(const struct sleep_parts *parts, const struct session *session) {
    json_t *list = json_array();

    for (size_t i = 0; i < parts->n_lives; i++) {
        bool same = parts->lives[i]->origin.woken;

        json_array_append_new(list, part(parts->n_layers + i, same ? &parts->lives[i]->origin : &session->origin, same));
    }
    return list;
}

/* `to`, of an export: where it is written; else -1. */
static int start_writing(struct work *work, const char *command, const char *id, json_t *record, const struct sleep_parts *parts, int to, struct rollbox_error *error) {
    struct session *session = work->session;
    size_t n = parts->n_layers + parts->n_lives;
    auto_free int *fds = n > ASLEEP_MAX_FILES ? NULL : calloc(n + 2, sizeof *fds);

    if (n > ASLEEP_MAX_FILES)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "hibernate", "the sandbox has %zu layers and images of processes, of its snapshots, too; %d can be put to sleep: drop snapshots", n, ASLEEP_MAX_FILES);
    for (size_t i = 0; fds && i < n; i++)
        fds[i] = -EBADF;
    int r = fds ? open_parts(parts, fds) : -ENOMEM;
    if (r == 0) {
        json_t *job = json_pack("{s:s, s:o, s:o, s:O}", "id", id, "layers", layers_of(parts), "images", images_of(parts, session), "record", record);
        if (to >= 0)
            json_object_set_new(job, "to", json_integer((json_int_t)(ERRAND_FIRST_FD + n)));
        fds[n] = to;
        r = errand_sleep(work, command, job, fds, n + (to >= 0), error);
        json_decref(job);
    } else {
        error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "hibernate", "the sandbox cannot be handed to rollbox-store: %s", strerror(-r));
    }
    for (size_t i = 0; fds && i < n; i++)
        close_fd(&fds[i]);
    return r;
}

static bool lets_sleep(const struct work *work) {
    return work->verb == VERB_WAKE || work->verb == VERB_HIBERNATE || work->verb == VERB_PAUSE || work->verb == VERB_CLOSE || work->verb == VERB_SHOW || work->verb == VERB_VERIFY ||
           (work->verb == VERB_EXPORT && work->takes_live && !work->from);
}

/* Nobody asked for its sleep, and somebody wants something of it. */
static bool is_called(const struct work *work) {
    const struct session *session = work->session;
    const struct list *next = work->node.next;

    return !work->client && (!list_empty(&session->waiting) || (next != &session->works && !lets_sleep(container_of(next, struct work, node))));
}

static void stay_awake(struct work *work) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "hibernate", "the sandbox was called before it slept");
    fail_sleep(work, &error);
}

void sleep_give_up(struct session *session) {
    struct work *work = session_first_work(session);

    if (!work || work->verb != VERB_HIBERNATE || work->client || !work->errand)
        return;
    session_touch(session);     /* its timer is over: not every call is noted as one */
    errand_give_up(work);
    stay_awake(work);
}

/* work->to is what is to sleep, and nothing moves. */
static void write_state(struct work *work) {
    struct session *session = work->session;
    struct rollbox_error error;
    struct sleep_parts parts = { 0 };
    struct live *live = work->drops ? NULL : work->to->live;

    if (is_called(work)) {
        stay_awake(work);
        return;
    }
    /* What nobody asked for is not written, either. */
    family_tidy(session->family);
    work->sleep = calloc(1, sizeof *work->sleep);
    json_t *record = work->sleep ? sleep_record(session, work->to, false, &parts) : NULL;
    int r = record ? 0 : no_memory(&error, "hibernate");
    if (work->sleep) {
        work->sleep->lock = -EBADF;
        work->sleep->processes = live ? live->processes : 0;
        work->sleep->memory_bytes = live ? live_memory(live) : 0;
        snprintf(work->sleep->snapshot, sizeof work->sleep->snapshot, "%s", node_shown(work->to)->id);
    }
    if (r == 0 && random_id(work->sleep->id) < 0)
        r = error_set(&error, ROLLBOX_ERR_INTERNAL, EIO, "hibernate", "no random numbers are to be had");
    if (r == 0)
        r = start_writing(work, "hibernate", work->sleep->id, record, &parts, -1, &error);
    sleep_parts_done(&parts);
    json_decref(record);
    if (r < 0)
        fail_sleep(work, &error);
}

static int export_asleep(struct work *work, struct rollbox_error *error) {
    json_t *job = json_pack("{s:s, s:[], s:[], s:b, s:i}", "id", work->session->sleep->id, "layers", "images", "asleep", true, "to", ERRAND_FIRST_FD);
    int r = errand_sleep(work, "export-live", job, &work->fd, 1, error);

    json_decref(job);
    return r;
}

static int export_live(struct work *work, struct rollbox_error *error) {
    struct sleep_parts parts = { 0 };
    char id[ASLEEP_ID_LENGTH + 1];
    json_t *record = sleep_record(work->session, work->to, true, &parts);
    int r = !record ? no_memory(error, "export") : random_id(id) < 0 ? error_set(error, ROLLBOX_ERR_INTERNAL, EIO, "export", "no random numbers are to be had") : start_writing(work, "export-live", id, record, &parts, work->fd, error);

    sleep_parts_done(&parts);
    json_decref(record);
    return r;
}

void sleep_export(struct work *work) {
    struct rollbox_error error;
    int r = work->fd < 0 ? error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments", "the request has no descriptor") : work->to ? export_live(work, &error) : export_asleep(work, &error);

    if (r < 0)
        work_fail(work, &error);
}

void sleep_start(struct work *work) {
    struct buf nothing = BUF_INIT;

    if (work->session->sleep)
        work_done(work, &nothing);
    else
        state_take(work, write_state);
}

/* Commands that were under way go on when it wakes, as copies that nobody waits for. */
static void end_runs(struct session *session) {
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_QUEUED)
            continue;           /* it came meanwhile, and wakes it */
        run->exec = 0;
        if (run->outcome == ROLLBOX_OUTCOME_ERROR || run->killed)
            run_finish(run);
        else
            run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the sandbox was put to sleep while the command ran, which goes on when it wakes: ask for it by its id then");
    }
}

static void fall_asleep(struct work *work) {
    struct session *session = work->session;
    struct node *beginning = NULL;
    struct family *family = family_new(session->engine, &beginning);
    struct buf nothing = BUF_INIT;

    /* It is dead: they can be let go of. */
    work->capturing = capturing_free(work->capturing);
    work->holds = false;
    if (!family) {
        /* It sleeps all the same, only that its states stay here, too. */
        family = session->family;
        family->references++;
        beginning = node_get(container_of(family->nodes.next, struct node, in_family));
    }
    node_put(work->to);
    work->to = NULL;
    work->live = live_put(work->live);
    drop_states(session, family, beginning);
    session->sleep = TAKE_PTR(work->sleep);
    leave_program(session);
    work_done(work, &nothing);
}

bool sleep_box_dead(struct session *session) {
    struct work *work = session_first_work(session);

    if (!work || !work->waits_for_death)
        return false;
    work->waits_for_death = false;
    fall_asleep(work);
    return true;
}

/* It is in the store, whole. */
static void written(struct work *work, const json_t *answer, int take_lock) {
    struct session *session = work->session;

    work->sleep->lock = take_lock;
    work->sleep->disk_bytes = (uint64_t)json_integer_value(json_object_get(answer, "bytes"));
    work->sleep->written_bytes = (uint64_t)json_integer_value(json_object_get(answer, "written"));
    end_runs(session);
    if (!session->box) {
        fall_asleep(work);
        return;
    }
    work->waits_for_death = true;
    if (work->capturing)
        capturing_kill(work->capturing);
    if (session->box->state != BOX_DYING)
        box_kill(session->box);
}

/* ---- awake ------------------------------------------------------------------------------------------------------------ */

/* The launcher that makes its layers has to be the one that restores it: another may not mount them. */
static void count_waker(struct work *work) {
    work->waking->is_counted = true;
    work->session->program->n_wakers++;
}

static void discount_waker(struct work *work) {
    if (work->waking && work->waking->is_counted)
        work->session->program->n_wakers--;
    if (work->waking)
        work->waking->is_counted = false;
}

void sleep_forget_work(struct work *work) {
    discount_waker(work);
    struct waking *waking = TAKE_PTR(work->waking);

    if (work->deferred)
        wire_message_done(work->deferred);
    free(work->deferred);
    work->sleep = sleep_put(work->sleep);
    if (!waking)
        return;
    for (size_t i = 0; i < waking->n_layers; i++) {
        copy_forget(work->session->engine, &waking->layers[i]);
        layer_put(waking->layers[i].layer);
    }
    for (size_t i = 0; i < waking->n_images; i++)
        close_fd(&waking->images[i]);
    woken_put(waking->woken);
    sleep_put(waking->sleep);
    json_decref(waking->whole);
    free(waking->layers);
    free(waking->images);
    free(waking);
}

/*
 * An engine that dies takes with it what is awake. If it could die after processes went on, and before
 * the store knew, the next engine would offer a state that has run on since.
 */
int sleep_consume(struct session *session, struct rollbox_error *error) {
    struct work *work = session_first_work(session);
    struct waking *waking = work ? work->waking : NULL;
    auto_close int store = -EBADF;

    if (!waking || !waking->sleep || waking->is_kept)
        return 0;
    int r = store_of(session->engine, &store, error);
    if (r < 0)
        return r;
    r = asleep_keep(store, waking->sleep->id);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake", "the store cannot note that the sandbox wakes: %s", strerror(-r));
    waking->is_kept = true;
    return 0;
}

static void consume_not(struct engine *engine, struct waking *waking) {
    auto_close int store = -EBADF;

    if (waking && waking->is_kept && waking->sleep && store_of(engine, &store, NULL) == 0 && asleep_keep_not(store, waking->sleep->id) == 0)
        waking->is_kept = false;
}

/* Whoever waits for it is told; it sleeps on. */
static void fail_wake(struct work *work, const struct rollbox_error *error) {
    struct session *session = work->session;

    discount_waker(work);
    consume_not(session->engine, work->waking);
    if (work->waking && work->waking->sleep) {
        struct node *beginning = NULL;
        struct family *family = family_new(session->engine, &beginning);

        if (family) {
            drop_states(session, family, beginning);
            session->sleep = TAKE_PTR(work->waking->sleep);
            leave_program(session);
        }
    }
    while (!list_empty(&session->waiting)) {
        struct run *run = container_of(session->waiting.next, struct run, in_queue);

        list_remove(&run->in_queue);
        run_fail(run, error->code, error->error_number, error->stage, error->message);
    }
    list_for_each(node, &session->works) {
        struct work *other = container_of(node, struct work, node);

        if (other != work && !other->started) {
            other->started = true;
            list_remove(&other->node);
            record_work_ended(other, error);
            if (other->client)
                client_fail(other->client, other->serial, error);
            work_free(other);
        }
    }
    if (work->deferred && work->deferred->header.type == PROTOCOL_ATTACH && work->client) {
        result_send_error(work->client, work->serial, error);
        work->client = NULL;
    }
    work_fail(work, error);
}

/* What was kept for it is asked for again. */
static void take_up(struct work *work) {
    struct wire_message *deferred = TAKE_PTR(work->deferred);
    struct client *client = work->client;

    if (!deferred)
        return;
    work->client = NULL;
    if (client)
        (void)server_handle(client, deferred);
    wire_message_done(deferred);
    free(deferred);
}

static void woken(struct work *work) {
    struct session *session = work->session;
    struct sleep *sleep = TAKE_PTR(work->waking->sleep);
    struct buf nothing = BUF_INIT;
    auto_close int store = -EBADF;

    /* Before anything is done in it that is not in the store. */
    if (work->waking->is_kept || (store_of(session->engine, &store, NULL) == 0 && asleep_keep(store, sleep->id) == 0)) {
        work->waking->woken->lock = TAKE_FD(sleep->lock);
        session->engine->files++;
    } else {
        sleep_abandoned(session->engine, sleep->id);
    }
    sleep_put(sleep);
    /* Nobody can name it, and what runs now is not that any more: its memory is not held twice. */
    if (!session->at->is_asked_for)
        session->at->live = live_put(session->at->live);
    session_touch(session);
    take_up(work);
    work_done(work, &nothing);
}

/* An image that is a difference is put together in memory. */
static int make_images(struct work *work, struct rollbox_error *error) {
    const json_t *rows = json_object_get(work->waking->whole, "images");
    struct waking *waking = work->waking;

    waking->images = calloc(json_array_size(rows) + 1, sizeof *waking->images);
    if (!waking->images)
        return no_memory(error, "wake");
    for (; waking->n_images < json_array_size(rows); waking->n_images++) {
        bool is_difference = json_object_get(json_array_get(rows, waking->n_images), "over");
        int fd = is_difference ? live_new_image(work->session->program) : -EBADF;

        if (is_difference && fd < 0)
            return error_set(error, error_code_of(-fd, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -fd, "wake", "there is no room for the image of the processes: %s", strerror(-fd));
        waking->images[waking->n_images] = fd;
    }
    return 0;
}

static int open_images(struct work *work, struct rollbox_error *error) {
    struct waking *waking = work->waking;
    auto_close int store = -EBADF;
    int r = store_of(work->session->engine, &store, error);

    for (size_t i = 0; r == 0 && i < waking->n_images; i++) {
        char path[sizeof ASLEEP_DIRECTORY + ASLEEP_ID_LENGTH + 32];

        snprintf(path, sizeof path, ASLEEP_DIRECTORY "/%s/image-%zu", work->session->sleep->id, i);
        /* A file of the store's nobody has open for writing, and never will. */
        if (waking->images[i] >= 0)
            r = live_seal_image(&waking->images[i]);
        else if ((waking->images[i] = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
            r = -errno;
        if (r < 0)
            return error_set(error, ROLLBOX_ERR_IO, -r, "wake", "the image of the processes cannot be opened: %s", strerror(-r));
    }
    return r;
}

/* What was made of it says so. */
static int name_origins(struct work *work, struct rollbox_error *error) {
    struct waking *waking = work->waking;

    waking->woken = calloc(1, sizeof *waking->woken);
    if (!waking->woken)
        return no_memory(error, "wake");
    *waking->woken = (struct woken){ .engine = work->session->engine, .references = 1, .lock = -EBADF };
    memcpy(waking->woken->id, work->session->sleep->id, sizeof waking->woken->id);
    for (size_t i = 0; i < waking->n_layers; i++)
        origin_set(&waking->layers[i].layer->origin, waking->woken, i);
    return 0;
}

/* Works that were asked for before it slept name states of that time, which have the same ids. */
static void rebind(struct session *session) {
    list_for_each(item, &session->works) {
        struct work *work = container_of(item, struct work, node);
        struct node **named[] = { &work->from, &work->to };

        for (size_t i = 0; i < ARRAY_SIZE(named); i++) {
            struct node *now = *named[i] ? node_find(session->family, (*named[i])->id) : NULL;

            if (!now)
                continue;
            node_get(now);
            node_put(*named[i]);
            *named[i] = now;
        }
        node_unpin(work->pinned);
        work->pinned = node_pin(work->from);
    }
}

/* What was captured under a policy has no more memory than that gives, but for tables, and what waits in pipes and sockets. */
static int check_images(const struct work *work, struct rollbox_error *error) {
    const uint64_t most = work->session->program->policy->max_memory_bytes;
    const struct waking *waking = work->waking;
    struct stat st;

    for (size_t i = 0; most && i < waking->n_images; i++)
        if (fstat(waking->images[i], &st) < 0 || ((uint64_t)st.st_size > most && (uint64_t)st.st_size - most > IMAGE_BESIDES))
            return error_set(error, ROLLBOX_ERR_DAMAGED, E2BIG, "wake", "the processes have more memory than the sandbox' policy gives (max_memory); --drop-processes wakes its files alone");
    return 0;
}

/* Files and images are there, and right. */
static void filled(struct work *work) {
    struct session *session = work->session;
    struct waking *waking = work->waking;
    struct rollbox_error error;
    struct family *family = NULL;
    struct node *at = NULL, *committed = NULL;
    auto_free struct layer **layers = calloc(waking->n_layers + 1, sizeof(struct layer *));
    int r = layers ? open_images(work, &error) : no_memory(&error, "wake");

    if (r == 0)
        r = check_images(work, &error);
    if (r == 0)
        r = name_origins(work, &error);
    for (size_t i = 0; layers && i < waking->n_layers; i++) {
        layer_look(waking->layers[i].layer);
        sleep_layer_size(waking->record, i, &waking->layers[i].layer->bytes, &waking->layers[i].layer->entries);
        layers[i] = waking->layers[i].layer;
    }
    if (r == 0)
        r = sleep_family(session->engine, waking->record, layers, waking->n_layers, waking->images, waking->n_images, waking->woken, &family, &at, &committed, &error);
    if (r < 0) {
        fail_wake(work, &error);
        return;
    }
    char *committed_path = TAKE_PTR(session->committed_path);
    drop_states(session, family, at);
    session->committed = committed;
    session->committed_path = committed_path;
    list_for_each(item, &session->family->nodes) {
        struct node *node = container_of(item, struct node, in_family);

        node->automatic = node->automatic ? session->number : 0;
    }
    waking->sleep = TAKE_PTR(session->sleep);
    enter_program(session);
    rebind(session);
    if (!at->live || work->drops) {
        woken(work);
        return;
    }
    session->restores = live_get(at->live);
    work->waits_for_restored = true;
    if (session_need_box(session, &error) < 0)
        state_session_ready(session, &error);
}

void sleep_restored(struct work *work, const struct rollbox_error *error) {
    work->waits_for_restored = false;
    if (error)
        fail_wake(work, error);
    else
        woken(work);
}

static void start_reading(struct work *work) {
    struct waking *waking = work->waking;
    struct rollbox_error error;
    auto_free int *fds = calloc(waking->n_layers + waking->n_images + 1, sizeof *fds);
    json_t *layers = json_array(), *images = json_array();
    int r = fds ? 0 : no_memory(&error, "wake");
    size_t n = 0;

    for (; r == 0 && n < waking->n_layers; n++) {
        fds[n] = openat(waking->layers[n].layer->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fds[n] < 0)
            r = error_set(&error, error_code_of(errno, ROLLBOX_ERR_INTERNAL), errno, "wake", "a layer cannot be opened: %s", strerror(errno));
        json_array_append_new(layers, part(n, NULL, false));
    }
    const size_t n_opened = n;
    for (size_t i = 0; r == 0 && i < waking->n_images; i++)
        if (waking->images[i] >= 0) {
            json_array_append_new(images, part(n, NULL, false));
            fds[n++] = waking->images[i];
        }
    json_t *job = json_pack("{s:s, s:o, s:o, s:b}", "id", work->session->sleep->id, "layers", layers, "images", images, "drops", work->drops);
    if (r == 0)
        r = errand_sleep(work, "wake", job, fds, n, &error);
    json_decref(job);
    for (size_t i = 0; fds && i < n_opened; i++)
        close_fd(&fds[i]);
    if (r < 0)
        fail_wake(work, &error);
}

static void on_empty(void *data, struct layer *take_layer, int error_number);

static int ask_for_layers(struct work *work, struct rollbox_error *error) {
    struct waking *waking = work->waking;
    struct program *program = work->session->program;
    const uint64_t most = program->policy->max_disk_bytes;

    while (waking->n_asked < waking->n_layers && waking->n_asked - waking->n_made < LAYERS_AT_ONCE) {
        struct filling *filling = &waking->layers[waking->n_asked];
        uint64_t bytes, entries;

        /* The record says what it likes: a layer had no more than the sandbox may have. */
        sleep_layer_size(waking->record, waking->n_asked, &bytes, &entries);
        bytes = most ? MIN(bytes, most + most / LAYER_SLACK) : bytes;
        entries = most ? MIN(entries, most / 8192 + 1024) : entries;
        filling->work = work;
        int r = copy_empty(program, bytes, entries, on_empty, filling);
        if (r < 0)
            return error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "wake", "the sandbox' files cannot be made again: %s", strerror(-r));
        waking->n_asked++;
    }
    return 0;
}

static void on_empty(void *data, struct layer *take_layer, int error_number) {
    struct filling *filling = data;
    struct work *work = filling->work;
    struct waking *waking = work->waking;
    struct rollbox_error error;

    filling->layer = take_layer;
    if (!take_layer) {
        error_set(&error, error_code_of(error_number, ROLLBOX_ERR_RESOURCE_EXHAUSTED), error_number, "wake", "there is no room for the sandbox' files: %s", strerror(error_number));
        fail_wake(work, &error);
        return;
    }
    if (++waking->n_made == waking->n_layers)
        start_reading(work);
    else if (ask_for_layers(work, &error) < 0)
        fail_wake(work, &error);
}

static int begin_waking(struct work *work, struct rollbox_error *error) {
    struct session *session = work->session;
    struct program *program = session->program;
    struct waking *waking = work->waking = calloc(1, sizeof *waking);
    int r = waking ? asleep_read(session->sleep->lock, &waking->whole, error) : no_memory(error, "wake");

    if (r < 0)
        return r;
    count_waker(work);
    waking->record = json_object_get(waking->whole, "record");
    if (strcmp(session->sleep->id, json_string_value(json_object_get(waking->whole, "id"))))
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake", "the record of the sleeping sandbox is that of another");
    r = sleep_check(waking->record, program, error);
    if (r == 0 && session->sleep->processes && !work->drops)
        r = fingerprint_check(json_object_get(waking->record, "fingerprint"), "wake", "rollbox wake --drop-processes wakes its files alone", error);
    if (r == 0 && !program->launcher)
        r = launcher_start(program, error);
    const size_t n = json_array_size(json_object_get(waking->whole, "layers"));
    waking->layers = r == 0 ? calloc(n + 1, sizeof *waking->layers) : NULL;
    if (r == 0 && !waking->layers)
        r = no_memory(error, "wake");
    waking->n_layers = r == 0 ? n : 0;
    if (r == 0)
        r = ask_for_layers(work, error);
    return r == 0 ? make_images(work, error) : r;
}

void sleep_wake(struct work *work) {
    struct session *session = work->session;
    struct rollbox_error error;
    struct buf nothing = BUF_INIT;

    if (!session->sleep) {
        (void)session_resume(session);
        take_up(work);
        work_done(work, &nothing);
        return;
    }
    if (begin_waking(work, &error) < 0)
        fail_wake(work, &error);
    else if (!work->waking->n_layers)
        start_reading(work);
}

void sleep_errand_over(struct work *work, const json_t *answer, int take_lock, const struct rollbox_error *error) {
    auto_close int lock = take_lock;
    struct rollbox_error without;

    if (work->verb == VERB_WAKE) {
        if (error)
            fail_wake(work, error);
        else
            filled(work);
    } else if (error) {
        fail_sleep(work, error);
    } else if (lock < 0) {
        error_set(&without, ROLLBOX_ERR_INTERNAL, EMFILE, "hibernate", "the lock on what was written could not be had");
        sleep_abandoned(work->session->engine, work->sleep->id);
        fail_sleep(work, &without);
    } else {
        written(work, answer, TAKE_FD(lock));
    }
}

/* What was written for nobody. */
void sleep_abandoned(struct engine *engine, const char *id) {
    auto_close int store = -EBADF;

    if (store_of(engine, &store, NULL) < 0)
        return;
    if (asleep_remove(store, ASLEEP_DIRECTORY, id) == -ENOENT)
        (void)asleep_remove(store, WOKEN_DIRECTORY, id);        /* closed while it woke */
    errand_forget(engine);      /* what was begun lies in tmp, perhaps, and may be as large as the sandbox */
}

/* ---- who wakes it ----------------------------------------------------------------------------------------------------- */

bool sleep_rouse(struct session *session) {
    struct work *first = session_first_work(session);

    if (!session->sleep || (first ? lets_sleep(first) : list_empty(&session->waiting)))
        return false;
    struct work *work = work_add(session, VERB_WAKE, true);
    if (!work) {
        struct rollbox_error error;

        no_memory(&error, "wake");
        while (!list_empty(&session->waiting)) {
            struct run *run = container_of(session->waiting.next, struct run, in_queue);

            list_remove(&run->in_queue);
            run_fail(run, error.code, error.error_number, error.stage, error.message);
        }
    }
    return work;
}

const struct sleep *sleep_of(const struct session *session) {
    const struct work *work = session_first_work(session);

    return session->sleep ? session->sleep : work && work->waking ? work->waking->sleep : NULL;
}

int sleep_defer(struct session *session, struct client *client, struct wire_message *message) {
    struct wire_message *copy = malloc(sizeof *copy);
    struct work *work = copy ? work_add(session, VERB_WAKE, false) : NULL;

    if (!work) {
        free(copy);
        return -ENOMEM;
    }
    memcpy(copy, message, sizeof *copy);
    if (!copy->mapping)
        copy->data = copy->bytes + ((const char *)message->data - message->bytes);
    message->mapping = NULL;
    message->n_fds = 0;
    work->client = client;
    work->serial = copy->header.serial;
    work->deferred = copy;
    session_schedule(session);
    return 0;
}

/* ---- the end of one that sleeps --------------------------------------------------------------------------------------- */

void sleep_close(struct session *session, bool keeps) {
    const struct work *work = session_first_work(session);
    const struct sleep *found = work && !work->waking && work->waits_for_death && !session->sleep ? work->sleep : sleep_of(session);
    struct sleep *sleep = TAKE_PTR(session->sleep);

    if (found && !keeps)
        sleep_abandoned(session->engine, found->id);
    if (sleep)
        enter_program(session);
    sleep_put(sleep);
    origin_put(&session->origin);
}

/* What cannot be read is found out when it is woken. */
void sleep_tree(const struct session *session, struct buf *to) {
    json_t *whole = NULL;

    (void)asleep_read(session->sleep->lock, &whole, NULL);
    sleep_tree_text(whole, session->name, to);
    json_decref(whole);
}

void sleep_execs(const struct session *session, struct buf *to, const char **between) {
    json_t *whole = NULL;

    (void)asleep_read(sleep_of(session)->lock, &whole, NULL);
    sleep_execs_text(json_object_get(whole, "record"), to, between);
    json_decref(whole);
}

/* ---- those of an engine that is gone ---------------------------------------------------------------------------------- */

struct search {
    struct engine *engine;
    int store;
    const char *name;           /* NULL: all */
    bool removes;               /* what cannot be had */
    struct rollbox_error *error;
    bool is_busy;               /* one that is looked for is locked by another process */
};

static bool is_of_this_socket(const struct engine *engine, const json_t *record) {
    const char *hex = json_string_value(json_object_get(record, "socket")), *path = engine->socket_path ? engine->socket_path : "";

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

static int adopt(struct engine *engine, const char *id, int *take_lock, const json_t *whole, struct rollbox_error *error) {
    const json_t *record = json_object_get(whole, "record"), *file;
    const char *name = json_string_value(json_object_get(record, "name")), *text;
    char **environment = NULL;
    struct program *program;
    char file_name[ASLEEP_FILE_NAME];
    size_t length;
    int r = sleep_policy(record, &text, &length, &environment);

    if (r < 0)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake", "the record of the sleeping sandbox has no policy");
    r = program_get(engine, text, length, (const char *const *)environment, &program, error);
    sleep_environment_free(environment);
    if (r == 0)
        r = program_of_before(&program, json_object_get(record, "grounds"), error);
    if (r < 0)
        return r;
    struct sleep *sleep = calloc(1, sizeof *sleep);
    struct session *session = sleep ? session_new(engine, program, NULL, name, NULL, NULL, error) : NULL;
    if (!session) {
        free(sleep);
        program_leave(program);
        return -ENOMEM;
    }
    sleep_settle(session, record);
    const json_t *node = json_array_get(json_object_get(record, "nodes"), (size_t)json_integer_value(json_object_get(record, "at")));
    const json_t *live = json_array_get(json_object_get(record, "lives"), (size_t)json_integer_value(json_object_get(node, "live")));
    live = json_is_integer(json_object_get(node, "live")) ? live : NULL;
    *sleep = (struct sleep){ .lock = TAKE_FD(*take_lock), .processes = (unsigned)json_integer_value(json_object_get(live, "processes")), .memory_bytes = (uint64_t)json_integer_value(json_object_get(live, "bytes")) };
    snprintf(sleep->id, sizeof sleep->id, "%s", id);
    snprintf(sleep->snapshot, sizeof sleep->snapshot, "%s", sleep_shown(record));
    for (size_t i = 0; (file = asleep_file(whole, i, file_name)); i++)
        sleep->disk_bytes += (uint64_t)json_integer_value(json_object_get(file, "bytes"));
    session->sleep = sleep;
    leave_program(session);
    session_arm(session);
    return 0;
}

/* Is it looked for? */
static bool is_wanted(const struct search *search, const json_t *record) {
    const char *name = json_string_value(json_object_get(record, "name"));

    return name && session_name_ok(name) && json_is_true(json_object_get(record, "detached")) && is_of_this_socket(search->engine, record) && (!search->name || !strcmp(search->name, name)) &&
           !session_find(search->engine, name);
}

static bool is_ours(const struct engine *engine, const char *id) {
    list_for_each(at, &engine->sessions) {
        const struct session *session = container_of(at, struct session, node);

        if (session->sleep && !strcmp(session->sleep->id, id))
            return true;
    }
    return false;
}

/* Forks of an engine that was killed have its locks until they run for the first time, and rollbox store gc has any for a moment. So one that is looked for by name is waited for, which holds everybody up, but not for long. */
static int wait_for_lock(struct search *search, const char *id, int *ret_lock) {
    const struct timespec moment = { 0, 1000000 };
    json_t *whole = NULL;
    int r = asleep_lock(search->store, ASLEEP_DIRECTORY, id, ret_lock);

    if (r != -EBUSY || is_ours(search->engine, id) || asleep_look(search->store, ASLEEP_DIRECTORY, id, &whole) < 0)
        return r;
    bool wanted = is_wanted(search, json_object_get(whole, "record"));
    for (int i = 0; r == -EBUSY && wanted && search->name && i < LOCK_WAIT_MS; i++) {
        (void)nanosleep(&moment, NULL);
        r = asleep_lock(search->store, ASLEEP_DIRECTORY, id, ret_lock);
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
        return 0;               /* somebody else's */
    if (asleep_read_unchecked(lock, &whole, NULL) < 0) {
        search->engine->n_unreadable++;         /* its name is not known; rollbox store fsck tells of it */
        return 0;
    }
    const json_t *record = json_object_get(whole, "record");
    int r = 0;

    if (is_wanted(search, record) && (r = asleep_check(whole, search->error)) == 0)
        r = adopt(search->engine, id, &lock, whole, search->error);
    if (r < 0 && search->removes && asleep_remove(search->store, ASLEEP_DIRECTORY, id) == 0)
        r = 1;
    /* Whatever was forked meanwhile may have the descriptor for a moment yet, and would pass for somebody who has it. */
    if (lock >= 0)
        (void)flock(lock, LOCK_UN);
    json_decref(whole);
    return search->name ? r : 0;
}

int sleep_adopt(struct engine *engine, const char *name, bool removes, struct rollbox_error *error) {
    auto_free char *path = NULL;
    auto_close int store = -EBADF;

    if (engine->is_private || !engine->store_path || store_default_path(&path, NULL) < 0 || store_open(path, &store, NULL) < 0)
        return 0;
    struct search search = { engine, store, name, removes, error, false };
    engine->n_unreadable = 0;
    int r = asleep_each(store, ASLEEP_DIRECTORY, adopt_one, &search);
    if (r == 0 && search.is_busy)
        return error_set(error, ROLLBOX_ERR_ENGINE_BUSY, EBUSY, "arguments", "%s sleeps, and another process has it, such as one of an engine that was killed", name ? name : "a sandbox");
    return r;
}
