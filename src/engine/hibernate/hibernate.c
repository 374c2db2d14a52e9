/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernating and waking.
 *
 * Hibernating begins like a snapshot of the present state, but the dumped processes stay paused.
 * rollbox-store writes the layers and images to the disk, with the session's record. Once that is
 * complete and the engine holds its lock, the box is killed, and the snapshots that only this
 * session had are freed. A struct hibernated remains in the engine. If a step fails before that,
 * the processes resume as after a snapshot. If the engine dies, the store has all of it or nothing.
 *
 * Waking: the launcher makes empty layers, rollbox-store checks every digest and fills them, the
 * snapshots are made again from the record, and the box is restored like any other with processes.
 * Only then is the session removed from the store. A request that needs the sandbox (a command,
 * files, an operation) puts a WAKE before itself. One that is answered at once is kept until then
 * (struct op.deferred).
 *
 * The files of a woken session stay in the store, as woken/ID, while a layer or image of them is
 * held, or processes run that were restored from them: unchanged data need not be written when this
 * session, or another one that has them, hibernates again (store/dedup_write.h).
 *
 * A detached session of a shared engine survives the engine's end: the next engine on the same
 * socket finds it in the store (hibernate_reattach).
 */
#include "engine/hibernate/hibernate.h"
#include "engine/network/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/pool/profile.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/backing.h"
#include "engine/store_job/store_job.h"
#include "store/hibernated_check.h"

#define LOCK_WAIT_MS 200

int hibernate_no_memory(struct rollbox_error *error, const char *stage) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, stage, "out of memory");
}

struct hibernated *hibernate_put(struct hibernated *sleep) {
    if (sleep)
        close_fd(&sleep->lock);
    free(sleep);
    return NULL;
}

/* ---- between the states ---- */

/* Nothing of its states is needed here any more. */
void hibernate_drop_states(
    struct session *session, struct snapshot_tree *tree, struct snapshot *beginning) {
    session_give_up_box(session);
    session->checkpoint->pending_restore = checkpoint_put(session->checkpoint->pending_restore);
    backing_ref_put(&session->checkpoint->backing_ref);
    snapshot_put(session->files.base);
    snapshot_put(session->files.at);
    session->files.committed = snapshot_put(session->files.committed);
    snapshot_tree_put(session->files.tree);
    session->files.tree = tree;
    session->files.base = beginning;
    session->files.at = snapshot_get(beginning);
    session->files.dirty = false;
    session->state = SESSION_NEW;
}

void hibernate_leave_profile(struct session *session) {
    struct profile *profile = session->profile;

    profile->sessions.n_sleepers++;
    profile->sessions.n--;
    session->engine->files.used++; /* the lock */
    profile_rest(profile);
}

void hibernate_enter_profile(struct session *session) {
    session->profile->sessions.n_sleepers--;
    session->profile->sessions.n++;
    session->engine->files.used--;
}

/* A descriptor of rollbox-store's, and the known facts of its file. */
json_t *hibernate_describe_part(size_t number, const struct backing_ref *backing_ref, bool same) {
    int fd = (int)(STORE_JOB_FIRST_FD + number);

    return backing_ref && backing_ref->backing
               ? json_pack("{s:i, s:s, s:I, s:b}", "fd", fd, "kept", backing_ref->backing->id,
                     "index", (json_int_t)backing_ref->index, "same", same)
               : json_pack("{s:i}", "fd", fd);
}

/* ---- awake ---- */

/*
 * An engine that dies takes with it all sessions that are awake. If it could die after processes
 * had resumed, and before the store knew, the next engine would offer a state that is out of date.
 */
static int before_restore(struct session *session, struct rollbox_error *error) {
    struct op *op = session_first_op(session);
    struct wake_op *wake_op = op && op->verb == VERB_WAKE ? op->wake.progress : NULL;
    auto_close int store = -EBADF;

    if (!wake_op || !wake_op->sleep || wake_op->is_kept)
        return 0;
    int r = store_job_open_store(session->engine, &store, error);
    if (r < 0)
        return r;
    r = hibernated_keep(store, wake_op->sleep->id);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake",
            "the store cannot note that the sandbox wakes: %s", strerror(-r));
    wake_op->is_kept = true;
    return 0;
}

/* Removes files of a hibernation that was cancelled. */
void hibernate_abandoned(struct engine *engine, const char *id) {
    auto_close int store = -EBADF;

    if (store_job_open_store(engine, &store, NULL) < 0)
        return;
    if (hibernated_remove(store, HIBERNATED_DIRECTORY, id) == -ENOENT)
        (void)hibernated_remove(store, WOKEN_DIRECTORY, id); /* closed while it woke */
    store_job_forget(engine); /* an unfinished copy may be in tmp, and as large as the sandbox */
}

const struct hibernated *sleep_of(const struct session *session) {
    const struct op *op = session_first_op(session);

    return session->sleep                                     ? session->sleep
           : op && op->verb == VERB_WAKE && op->wake.progress ? op->wake.progress->sleep
                                                              : NULL;
}

int wake_then(struct session *session, struct client *client, struct wire_message *message) {
    struct op *op = op_add(session, VERB_WAKE, false);

    if (!op)
        return -ENOMEM;
    op->wake.deferred = client_keep_request(message);
    if (!op->wake.deferred) {
        op_free(op);
        return -ENOMEM;
    }
    op->reply.client = client;
    op->reply.serial = op->wake.deferred->header.serial;
    session_schedule(session);
    return 0;
}

/* ---- the end of one that sleeps ---- */

static void on_closing(struct session *session, bool keeps_stored) {
    const struct op *op = session_first_op(session);
    const struct hibernated *found = op && op->wait == OP_WAIT_BOX_DEATH && !session->sleep
                                         ? op->hibernate.becoming
                                         : sleep_of(session);
    struct hibernated *sleep = TAKE_PTR(session->sleep);

    if (found && !keeps_stored)
        hibernate_abandoned(session->engine, found->id);
    if (sleep)
        hibernate_enter_profile(session);
    hibernate_put(sleep);
    backing_ref_put(&session->checkpoint->backing_ref);
}

void hibernate_set_up(void) {
    static const struct hibernation_ops ops = { before_restore, on_closing, hibernate_on_timer };

    session_set_hibernation(&ops);
}

/* An unreadable record is reported when the sandbox is woken. */
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
               *path = engine->server.socket_path ? engine->server.socket_path : "";

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
    r = profile_get(
        engine, text, length, (const char *const *)environment, -EBADF, &profile, error);
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
    const char *rules = json_string_value(json_object_get(record, "net_rules"));
    if (gateway_inherit_rules(engine, session->number, rules) < 0) {
        session_close(session);
        free(sleep);
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
    hibernate_leave_profile(session);
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
    list_for_each(at, &engine->sessions.all) {
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
        return 0; /* another engine's */
    if (hibernated_read_unchecked(lock, &whole, NULL) < 0) {
        search->engine->stored
            .n_unreadable++; /* its name is not known; rollbox store fsck tells of it */
        return 0;
    }
    const json_t *record = json_object_get(whole, "record");
    int r = 0;

    if (is_wanted(search, record) && (r = hibernated_check(whole, search->error)) == 0)
        r = reattach_record(search->engine, id, &lock, whole, search->error);
    if (r < 0 && search->removes && hibernated_remove(search->store, HIBERNATED_DIRECTORY, id) == 0)
        r = 1;
    /* A process that was forked meanwhile may have the descriptor for a moment yet, and would look
     * like its owner. */
    if (lock >= 0)
        (void)flock(lock, LOCK_UN);
    json_decref(whole);
    return search->name ? r : 0;
}

int hibernate_reattach(
    struct engine *engine, const char *name, bool removes, struct rollbox_error *error) {
    auto_free char *path = NULL;
    auto_close int store = -EBADF;

    if (engine->is_private || !engine->programs.store || store_default_path(&path, NULL) < 0 ||
        store_open(path, &store, NULL) < 0)
        return 0;
    struct search search = { engine, store, name, removes, error, false };
    engine->stored.n_unreadable = 0;
    int r = hibernated_each(store, HIBERNATED_DIRECTORY, adopt_one, &search);
    if (r == 0 && search.is_busy)
        return error_set(error, ROLLBOX_ERR_ENGINE_BUSY, EBUSY, "arguments",
            "%s sleeps, and another process has it, such as one of an engine that was killed",
            name ? name : "a sandbox");
    return r;
}

int hibernate_find_session(struct engine *engine, const char *name, struct session **ret_session,
    struct rollbox_error *error) {
    struct session *session = name ? session_find(engine, name) : NULL;
    int r = session || !name || !session_name_ok(name)
                ? 0
                : hibernate_reattach(engine, name, false, error);

    if (r < 0)
        return r;
    if (!session && !(session = name ? session_find(engine, name) : NULL))
        return session_not_found(engine, name, error);
    *ret_session = session;
    return 0;
}
