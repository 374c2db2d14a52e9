/* SPDX-License-Identifier: Apache-2.0 */
/* WAKE: the state of a hibernated sandbox is read from the store, and restored. hibernate.c has the
 * model. */
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
#include "base/wire.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/command/result.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/layer_chain.h"
#include "engine/hibernate/hibernate.h"
#include "engine/pool/profile_launcher.h"
#include "engine/protocol.h"
#include "engine/run/run.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/backing.h"
#include "engine/store_job/store_job.h"
#include "store/fingerprint.h"
#include "store/hibernated_check.h"

#define IMAGE_BESIDES (64ull << 20) /* bytes of an image besides memory */
#define LAYER_SLACK 16    /* as a part: files take up a little more or less in another tmpfs */
#define LAYERS_AT_ONCE 64 /* that a launcher is asked for: the room in its socket is limited */

/* A layer that is being made. */
struct filling {
    struct op *op;
    struct layer *layer;
};

/* The launcher that makes its layers has to be the one that restores it: another may not mount
 * them. */
static void count_waker(struct op *op) {
    op->wake.progress->is_counted = true;
    op->session->profile->sessions.n_wakers++;
}

static void discount_waker(struct op *op) {
    if (op->wake.progress && op->wake.progress->is_counted)
        op->session->profile->sessions.n_wakers--;
    if (op->wake.progress)
        op->wake.progress->is_counted = false;
}

static void release_wake(struct op *op) {
    discount_waker(op);
    struct wake_op *wake_op = TAKE_PTR(op->wake.progress);

    client_free_request(op->wake.deferred);
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

static void consume_not(struct engine *engine, struct wake_op *wake_op) {
    auto_close int store = -EBADF;

    if (wake_op && wake_op->is_kept && wake_op->sleep &&
        store_job_open_store(engine, &store, NULL) == 0 &&
        hibernated_forget_kept(store, wake_op->sleep->id) == 0)
        wake_op->is_kept = false;
}

/* All requests that wait for it fail; the sandbox stays hibernated. */
static void fail_wake(struct op *op, const struct rollbox_error *error) {
    struct session *session = op->session;

    discount_waker(op);
    consume_not(session->engine, op->wake.progress);
    if (op->wake.progress && op->wake.progress->sleep) {
        struct snapshot *beginning = NULL;
        struct snapshot_tree *tree = snapshot_tree_new(session->engine, &beginning);

        if (tree) {
            hibernate_drop_states(session, tree, beginning);
            session->sleep = TAKE_PTR(op->wake.progress->sleep);
            hibernate_leave_profile(session);
        }
    }
    while (!list_empty(&session->commands.waiting)) {
        struct run *run = container_of(session->commands.waiting.next, struct run, in_queue);

        list_remove(&run->in_queue);
        run_fail(run, error->code, error->error_number, error->stage, error->message);
    }
    list_for_each(node, &session->queue.ops) {
        struct op *other = container_of(node, struct op, node);

        if (other != op && other->wait == OP_WAIT_QUEUED) {
            op_wait(other, OP_WAIT_DONE);
            list_remove(&other->node);
            session_events_op_ended(other, error);
            if (other->reply.client)
                client_fail(other->reply.client, other->reply.serial, error);
            op_free(other);
        }
    }
    if (op->wake.deferred && op->wake.deferred->header.type == PROTOCOL_ATTACH &&
        op->reply.client) {
        result_send_error(op->reply.client, op->reply.serial, error);
        op->reply.client = NULL;
    }
    op_fail(op, error);
}

/* Requests that were kept for it are handled now. */
static void take_up(struct op *op) {
    struct wire_message *deferred = TAKE_PTR(op->wake.deferred);
    struct client *client = op->reply.client;

    if (!deferred)
        return;
    op->reply.client = NULL;
    if (client)
        (void)client->engine->server.handle_request(client, deferred);
    client_free_request(deferred);
}

static void handle_woken(struct op *op) {
    struct session *session = op->session;
    struct hibernated *sleep = TAKE_PTR(op->wake.progress->sleep);
    struct buf nothing = BUF_INIT;
    auto_close int store = -EBADF;

    /* Before anything is done in it that is not in the store. */
    if (op->wake.progress->is_kept || (store_job_open_store(session->engine, &store, NULL) == 0 &&
                                          hibernated_keep(store, sleep->id) == 0)) {
        op->wake.progress->backing->lock = TAKE_FD(sleep->lock);
        session->engine->files.used++;
    } else {
        hibernate_abandoned(session->engine, sleep->id);
    }
    hibernate_put(sleep);
    /* Nobody can name it, and what runs now is not that any more: its memory is not held twice. */
    if (session->files.at->purpose == SNAPSHOT_INTERNAL)
        session->files.at->checkpoint = checkpoint_put(session->files.at->checkpoint);
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
        return hibernate_no_memory(error, "wake");
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
    int r = store_job_open_store(op->session->engine, &store, error);

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

/* The new layer or image remembers where it came from. */
static int name_origins(struct op *op, struct rollbox_error *error) {
    struct wake_op *wake_op = op->wake.progress;

    wake_op->backing = calloc(1, sizeof *wake_op->backing);
    if (!wake_op->backing)
        return hibernate_no_memory(error, "wake");
    *wake_op->backing =
        (struct backing){ .engine = op->session->engine, .references = 1, .lock = -EBADF };
    memcpy(wake_op->backing->id, op->session->sleep->id, sizeof wake_op->backing->id);
    for (size_t i = 0; i < wake_op->n_layers; i++)
        backing_ref_set(&wake_op->layers[i].layer->backing_ref, wake_op->backing, i);
    return 0;
}

/* Works that were asked for before it slept name states of that time, which have the same ids. */
static void rebind_session(struct session *session) {
    list_for_each(item, &session->queue.ops) {
        struct op *op = container_of(item, struct op, node);
        struct snapshot **named[] = { &op->from, &op->to };

        for (size_t i = 0; i < ARRAY_SIZE(named); i++) {
            struct snapshot *now =
                *named[i] ? snapshot_find(session->files.tree, (*named[i])->id) : NULL;

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

/* Processes that were captured under a policy have no more memory than it allows. Their image
 * contains tables and the content of pipes and sockets besides (IMAGE_BESIDES). */
static int check_images(const struct op *op, struct rollbox_error *error) {
    const uint64_t most = op->session->profile->policy->max_memory_bytes;
    const struct wake_op *wake_op = op->wake.progress;
    struct stat st;

    for (size_t i = 0; most && i < wake_op->n_images; i++)
        if (fstat(wake_op->images[i], &st) < 0 ||
            ((uint64_t)st.st_size > most && (uint64_t)st.st_size - most > IMAGE_BESIDES))
            return error_set(error, ROLLBOX_ERR_DAMAGED, E2BIG, "wake",
                "the processes have more memory than the sandbox's policy gives (max_memory); "
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
    int r = layers ? open_images(op, &error) : hibernate_no_memory(&error, "wake");

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
    char *committed_path = TAKE_PTR(session->files.committed_path);
    hibernate_drop_states(session, tree, at);
    session->files.committed = committed;
    session->files.committed_path = committed_path;
    list_for_each(item, &session->files.tree->snapshots) {
        struct snapshot *snapshot = container_of(item, struct snapshot, in_tree);

        snapshot->automatic = snapshot->automatic ? session->number : 0;
    }
    wake_op->sleep = TAKE_PTR(session->sleep);
    hibernate_enter_profile(session);
    rebind_session(session);
    if (!at->checkpoint || op->request.drops) {
        handle_woken(op);
        return;
    }
    session->checkpoint->pending_restore = checkpoint_get(at->checkpoint);
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
    int r = fds ? 0 : hibernate_no_memory(&error, "wake");
    size_t n = 0;

    for (; r == 0 && n < wake_op->n_layers; n++) {
        fds[n] = openat(wake_op->layers[n].layer->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fds[n] < 0)
            r = error_set(&error, error_code_of(errno, ROLLBOX_ERR_INTERNAL), errno, "wake",
                "a layer cannot be opened: %s", strerror(errno));
        json_array_append_new(layers, hibernate_describe_part(n, NULL, false));
    }
    const size_t n_opened = n;
    for (size_t i = 0; r == 0 && i < wake_op->n_images; i++)
        if (wake_op->images[i] >= 0) {
            json_array_append_new(images, hibernate_describe_part(n, NULL, false));
            fds[n++] = wake_op->images[i];
        }
    json_t *job = json_pack("{s:s, s:o, s:o, s:b}", "id", op->session->sleep->id, "layers", layers,
        "images", images, "drops", op->request.drops);
    if (r == 0)
        r = hibernate_job_start(op, "wake", job, fds, n, &error);
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
                "the sandbox's files cannot be made again: %s", strerror(-r));
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
            "wake", "there is no room for the sandbox's files: %s", strerror(error_number));
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
                    : hibernate_no_memory(error, "wake");

    if (r < 0)
        return r;
    count_waker(op);
    wake_op->record = json_object_get(wake_op->whole, "record");
    if (strcmp(session->sleep->id, json_string_value(json_object_get(wake_op->whole, "id"))))
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the record of the sleeping sandbox is that of another");
    r = hibernate_check(wake_op->record, profile, error);
    if (r == 0 && session->sleep->processes && !op->request.drops)
        r = fingerprint_check(json_object_get(wake_op->record, "fingerprint"), "wake",
            "rollbox wake --drop-processes wakes its files alone", error);
    if (r == 0)
        r = profile_start_launcher(profile, error);
    const size_t n = json_array_size(json_object_get(wake_op->whole, "layers"));
    wake_op->layers = r == 0 ? calloc(n + 1, sizeof *wake_op->layers) : NULL;
    if (r == 0 && !wake_op->layers)
        r = hibernate_no_memory(error, "wake");
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
