/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: their life, and what is asked of them (session.h has the model).
 *
 * A session ends with its client, by CLOSE, or by its own timers. Its box dies first; the session
 * is freed, and CLOSE answered, when the kernel says so: then nothing of it is left. Should a box
 * die without our asking for it, its files are still ours to hold, and the session goes on from
 * them, without its processes.
 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/core/log.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/network/gateway.h"
#include "engine/session/op.h"
#include "engine/session/restore.h"
#include "engine/pool/spares.h"
#include "engine/core/verb_names.h"

#define MAX_OPS 16384u /* requests that wait for one sandbox, commands not included */
#define WATCH_NS 50000000ll
#define WATCH_SHARE                                                                                \
    3 /* the part of our time that looking at all sandboxes takes at most: a third */
#define RELEASE_NS 10000000ll /* by when captured processes have been let go */

/* Set once, at the start. NULL: no session hibernates. */
static const struct hibernation_ops *hibernation;

void session_set_hibernation(const struct hibernation_ops *ops) {
    hibernation = ops;
}

/* ---- life ---- */

/* FNV-1a. */
static struct list *bucket_of(struct engine *engine, const char *name) {
    uint32_t hash = 2166136261u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return &engine->sessions_by[(hash ^ hash >> 16) % ARRAY_SIZE(engine->sessions_by)];
}

struct session *session_find(struct engine *engine, const char *name) {
    list_for_each(node, bucket_of(engine, name)) {
        struct session *session = container_of(node, struct session, by_name);

        if (session->state != SESSION_CLOSING && !session->is_dry_run &&
            !strcmp(session->name, name))
            return session;
    }
    return NULL;
}

static void on_idle(struct loop_timer *timer);
static void on_end(struct loop_timer *timer);

static void arm_timer(struct session *session, struct loop_timer *timer, int64_t after_ms,
    void (*callback)(struct loop_timer *)) {
    if (after_ms > 0)
        (void)loop_timer_set(
            session->engine->loop, timer, clock_now_ns() + after_ms * 1000000, callback);
}

/* Asleep once nobody has called it for so long, nobody waits for a command of its, and none of its
 * processes has done much. */
static void on_hibernate(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, timers.hibernate);
    int64_t left =
        session->timers.called_ns + session->timers.hibernate_ms * 1000000 - clock_now_ns();
    uint64_t memory, cpu = session->timers.hibernate_cpu_ns;
    uint32_t processes;
    bool is_waited_for = false;

    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        is_waited_for |= (run->client || !list_empty(&run->waiters)) && !run->is_detached;
    }
    if (session->box)
        (void)box_usage(session->box, &memory, &cpu, &processes);
    if (session->state == SESSION_CLOSING)
        return;
    bool is_busy =
        is_waited_for || !list_empty(&session->queue.ops) || session->queue.fork ||
        session->agents.n ||
        cpu - session->timers.hibernate_cpu_ns > (uint64_t)session->timers.hibernate_ms * 10000;
    session->timers.hibernate_cpu_ns = cpu;
    if (session->sleep)
        return; /* the next call sets it again */
    if (left <= 0 && !is_busy && op_add(session, VERB_HIBERNATE, false)) {
        session_schedule(
            session); /* what cannot be put to sleep is tried again after the next call */
        return;
    }
    (void)loop_timer_set(session->engine->loop, timer,
        clock_now_ns() + (left > 0 ? left : session->timers.hibernate_ms * 1000000), on_hibernate);
}

static void on_lifetime(struct loop_timer *timer) {
    session_close(container_of(timer, struct session, timers.lifetime));
}

void session_arm(struct session *session) {
    if (session->timers.lifetime_ms)
        arm_timer(session, &session->timers.lifetime,
            MAX(session->timers.lifetime_ms - (clock_real_ns() - session->origin.made_ns) / 1000000,
                (int64_t)1),
            on_lifetime);
    session_touch(session);
}

struct session *session_new(struct engine *engine, struct profile *profile, struct client *client,
    const char *name, struct snapshot_tree *tree, struct snapshot *base,
    struct rollbox_error *error) {
    struct session *session = calloc(1, sizeof *session);

    if (session && tree) {
        tree->references++;
        snapshot_get(base);
    } else if (session) {
        tree = snapshot_tree_new(engine, &base); /* its reference of the beginning is ours */
    }
    if (session && tree && !(session->checkpoint = session_checkpoint_new(profile))) {
        snapshot_put(base);
        tree = snapshot_tree_put(tree);
    }
    if (!session || !tree) {
        free(session);
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "out of memory");
        return NULL;
    }
    session->engine = engine;
    session->profile = profile;
    session->client = client;
    session->number = ++engine->next_session;
    session->origin.seed = profile->policy->random_seed;
    session->origin.clone_id = -1;
    session->files.tree = tree;
    session->files.base = base;
    session->files.at = snapshot_get(base);
    session->origin.made_ns = session->origin.since_ns = clock_real_ns();
    session->timers.called_ns = clock_now_ns();
    if (name)
        snprintf(session->name, sizeof session->name, "%s", name);
    else
        do
            snprintf(session->name, sizeof session->name, "box-%llu",
                (unsigned long long)++engine->next_name);
        while (session_find(engine, session->name));
    list_init(&session->of_client);
    list_init(&session->commands.runs);
    list_init(&session->commands.waiting);
    list_init(&session->queue.ops);
    list_init(&session->commands.ended);
    list_init(&session->observers);
    list_add_tail(&engine->sessions, &session->node);
    list_add_tail(bucket_of(engine, session->name), &session->by_name);
    if (client)
        list_add_tail(&client->sessions, &session->of_client);
    profile->n_sessions++;
    engine->n_sessions++;
    log_at(LOG_INFO, "session", ABOUT(.sandbox = session->name), "created");
    return session;
}

/* A look at one without a memory cgroup costs some fifty microseconds: at a thousand of them
 * nothing would be left for requests. */
static void note_watching(struct session *session, int64_t took_ns) {
    engine_account(&session->engine->memory_poll_cost_ns, &session->watch.cost_ns, took_ns);
}

static void stop_watching(struct session *session) {
    loop_timer_clear(session->engine->loop, &session->watch.timer);
    note_watching(session, 0);
}

static void close_reply(const struct session *session, struct buf *to) {
    auto_buf struct buf record = BUF_INIT;

    buf_add_text(to, "{");
    if (session_events_record_text(session, &record)) {
        buf_add_text(to, "\"record\": ");
        buf_add(to, record.data, record.length);
        to->failed |= record.failed;
    }
    buf_add_text(to, "}");
}

static void session_free(struct session *session) {
    struct engine *engine = session->engine;

    loop_timer_clear(engine->loop, &session->timers.idle);
    loop_timer_clear(engine->loop, &session->timers.end);
    loop_timer_clear(engine->loop, &session->timers.lifetime);
    loop_timer_clear(engine->loop, &session->timers.hibernate);
    stop_watching(session);
    loop_task_cancel(&session->schedule);
    list_for_each(node, &session->queue.ops) {
        struct op *op = container_of(node, struct op, node);
        struct buf reply = BUF_INIT;

        close_reply(session, &reply);
        op_done(op, &reply); /* only CLOSE is left */
    }
    session_events_release(session);
    list_for_each(node, &session->commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        free(ended->command);
        free(ended);
    }
    if (engine->forked_last == session)
        engine->forked_last = NULL;
    gateway_forget_log(session);
    session->checkpoint = session_checkpoint_free(session->checkpoint);
    free(session->commands.orphan_pipes);
    snapshot_put(session->files.base);
    snapshot_put(session->files.at);
    snapshot_put(session->files.committed);
    free(session->files.committed_path);
    snapshot_tree_put(session->files.tree);
    list_remove(&session->node);
    list_remove(&session->by_name);
    list_remove(&session->of_client);
    session->profile->n_sessions--;
    engine->n_sessions--;
    log_at(LOG_INFO, "session", ABOUT(.sandbox = session->name), "is gone");
    profile_leave(session->profile);
    free(session);
}

/* There is no init any more that would tell its end: it has failed, unless its outcome is known. */
static void end_run(struct run *run, const struct rollbox_error *error) {
    run->exec = 0;
    if (run->outcome == ROLLBOX_OUTCOME_ERROR || run->killed)
        run_finish(run);
    else
        run_fail(run, error->code, error->error_number, error->stage, error->message);
}

void session_close(struct session *session) {
    struct rollbox_error error;

    if (session->state == SESSION_CLOSING)
        return;
    /* Where one fork is given up, the next may be wanted. */
    struct session *forked = session->engine->forked_last,
                   *of = forked && forked != session && session->origin.parent == forked->number
                             ? forked
                             : NULL;
    log_at(LOG_DEBUG, "session", ABOUT(.sandbox = session->name),
        "closes; %u operations and %u commands end with it", session->queue.n_ops,
        session->commands.n_runs);
    session->state = SESSION_CLOSING;
    if (hibernation)
        hibernation->closing(session,
            session->engine->stopping && !session->client); /* a detached one outlives its engine */
    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the sandbox %s was closed",
        session->name);
    list_remove(&session->of_client);
    session->client = NULL;
    if (session->box)
        box_send_kill(session->box);
    op_session_ready(session, &error);
    list_for_each(node, &session->queue.ops)
        if (container_of(node, struct op, node)->verb != VERB_CLOSE)
            op_fail(container_of(node, struct op, node), &error);
    while (!list_empty(&session->commands.runs))
        end_run(container_of(session->commands.runs.next, struct run, of_session), &error);
    session_events_closing(session);
    if (session->box)
        box_kill(session->box); /* its death frees us */
    else
        session_schedule(session);
    if (of && of->state != SESSION_CLOSING)
        dirty_tracking_prefork(of->checkpoint, of->box, of->files.base, of->files.at);
}

void session_forget_client(struct client *client) {
    list_for_each(node, &client->engine->sessions)
        list_for_each(at, &container_of(node, struct session, node)->queue.ops) {
            struct op *op = container_of(at, struct op, node);

            if (op->client != client)
                continue;
            op->client = NULL;
            session_close_continue(op->session);
        }
    while (!list_empty(&client->sessions))
        session_close(container_of(client->sessions.next, struct session, of_client));
}

void session_close_continue(struct session *session) {
    if (session->state == SESSION_CLOSING)
        session_schedule(session);
}

void session_close_all(struct engine *engine) {
    struct session *next;

    /* Closing one may end others. */
    do {
        next = NULL;
        list_for_each(node, &engine->sessions)
            if (!next && container_of(node, struct session, node)->state != SESSION_CLOSING)
                next = container_of(node, struct session, node);
        if (next)
            session_close(next);
    } while (next);
}

/* A call, or its end. */
void session_touch(struct session *session) {
    session->timers.called_ns = clock_now_ns();
    if (session->timers.idle_ms && !session->timers.idle.position)
        arm_timer(session, &session->timers.idle, session->timers.idle_ms, on_idle);
    if (session->timers.hibernate_ms && !session->timers.hibernate.position)
        arm_timer(session, &session->timers.hibernate, session->timers.hibernate_ms, on_hibernate);
    if (session->timers.ttl_ms && !session->timers.end.position)
        arm_timer(session, &session->timers.end, session->timers.ttl_ms, on_end);
}

static int send_plain(struct session *session, uint32_t type, uint64_t serial) {
    auto_buf struct buf message = BUF_INIT;

    if (!session->box || session->box->state == BOX_DYING)
        return -ESRCH;
    wire_begin(&message, type, serial);
    return wire_send(session->box->socket, &message, NULL, 0);
}

int session_freeze(struct session *session, uint64_t serial) {
    return send_plain(session, GUEST_FREEZE, serial);
}

int session_ask(struct session *session, uint64_t serial) {
    return send_plain(session, GUEST_SIGNAL, serial);
}

int session_thaw(struct session *session) {
    return send_plain(session, GUEST_THAW, 0);
}

void session_thaw_soon(struct session *session) {
    session->commands.thaw_due = session_thaw(session) == -EAGAIN;
}

/* Its state is being taken: when that is done they all go on, unless it is paused then. */
static bool stands_for_op(const struct session *session) {
    const struct op *op = session_first_op(session);

    return op && (op_wait_holds_processes(op->wait) || op->take.dump_job || op->take.keeps_stopped);
}

int session_resume(struct session *session) {
    if (session->state != SESSION_PAUSED)
        return 0;
    int r = stands_for_op(session) ? 0 : session_thaw(session);
    if (r == -EAGAIN)
        return r;
    session->state = session->box ? SESSION_LIVE : SESSION_NEW;
    return 0;
}

static int64_t left_of(const struct session *session, int64_t after_ms) {
    int64_t left = session->timers.called_ns + after_ms * 1000000 - clock_now_ns();

    if (session->commands.n_runs || session->agents.n || !list_empty(&session->queue.ops))
        left = MAX(left, after_ms * 1000000);
    return left;
}

static void on_idle(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, timers.idle);
    int64_t left = left_of(session, session->timers.idle_ms);

    if (left > 0 || session->checkpoint->releasing)
        (void)loop_timer_set(
            session->engine->loop, timer, clock_now_ns() + MAX(left, RELEASE_NS), on_idle);
    else if (session->state == SESSION_LIVE && session_freeze(session, 0) == 0)
        session->state = SESSION_PAUSED;
}

static void on_end(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, timers.end);
    int64_t left = left_of(session, session->timers.ttl_ms);

    if (left > 0)
        (void)loop_timer_set(session->engine->loop, timer, clock_now_ns() + left, on_end);
    else if (!session->sleep)
        session_close(session);
}

/* ---- its box ---- */

static int announce_session(struct session *session, bool is_new, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, GUEST_SESSION, 0);
    int r = wire_send(session->box->socket, &message, NULL, 0);
    /* A new one that has ended already has said why: that is in its socket yet. */
    if (is_new && (r == -EPIPE || r == -ECONNRESET))
        r = 0;
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
                       "the sandbox cannot be spoken to: %s", strerror(-r))
                 : 0;
}

/* A box that is ready becomes the session's. */
static int enter_box(struct session *session, struct rollbox_error *error) {
    box_release_spare(session->box);
    if (!session->box->files_baseline)
        session->box->files_baseline = box_files_baseline(session->box);
    if (!session->checkpoint->pending_restore)
        return 0;
    int r = hibernation ? hibernation->before_restore(session, error) : 0;
    return r < 0 ? r : restore_start(session, exec_adopt, error);
}

static void handle_entered(struct session *session) {
    if (session->checkpoint->pending_restore)
        return; /* init answers when they go on */
    if (session->state == SESSION_NEW)
        session->state = SESSION_LIVE;
    log_at(LOG_DEBUG, "session", ABOUT(.sandbox = session->name),
        "its box is ready, init is process %d", (int)session->box->pid);
    op_session_ready(session, NULL);
    session_schedule(session);
}

static void leave_box(struct session *session, const struct rollbox_error *error) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state != RUN_QUEUED)
            end_run(run, error);
    }
    session_give_up_box(session);
}

/* A box that was made ahead waits for its use, and may be dying when that comes; one that is made
 * now has no such past, but who makes it may have been killed, and have begun nothing of it. */
static bool may_restore_again(struct session *session, const struct rollbox_error *why) {
    const bool was_lost = why->error_number == ECHILD && session->box->pid <= 0;

    if (!session->checkpoint->pending_restore ||
        !(session->box->origin == BOX_WAS_PREFORKED || was_lost) || session->box->oom ||
        session->checkpoint->restore_state == RESTORE_REPEATS)
        return false;
    session->checkpoint->restore_state = RESTORE_REPEATS;
    return true;
}

static const struct box_owner_ops box_ops;

static const char too_many_layers[] =
    "the layers of the sandbox could not be merged for want of memory; drop snapshots or close "
    "sandboxes";

/* A new one for it, on its base. A zygote of the checkpoint that is restored in it makes it, if
 * there is one. */
static int make_box(struct session *session, struct rollbox_error *error) {
    struct checkpoint *checkpoint = session->checkpoint->pending_restore;
    struct launcher *zygote = NULL;
    struct box_layers layers;
    int64_t ahead_ns[2];
    struct box_config config = { .is_layered = true,
        .layers = &layers,
        .seed = session->origin.has_own_seed ? &session->origin.seed : NULL };
    int r = checkpoint ? checkpoint_zygote(checkpoint, session->profile, &zygote, error) : 0;

    if (r < 0)
        return r;
    if (checkpoint) {
        checkpoint_zygote_config(checkpoint_backing_ref(checkpoint), session->profile, &config);
        config.tracks = checkpoint->notes && session->checkpoint->tracks_from_birth;
    }
    if (checkpoint && checkpoint_backing_ref(checkpoint) != checkpoint) {
        dirty_tracking_clocks(checkpoint, ahead_ns);
        config.ahead_ns = ahead_ns;
    }
    r = snapshot_box_layers(session->files.base, &layers);
    if (r == -E2BIG)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "setup", "%s", too_many_layers);
    if (r < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "setup", "out of memory");
    r = profile_new_box(session->profile, &config, &box_ops, session, &session->box, error);
    box_layers_done(&layers);
    if ((r == -EPIPE || r == -ECONNRESET) && zygote && !launcher_is_creating(zygote)) {
        launcher_drop(zygote); /* it was killed, and we have not heard yet */
        return make_box(session, error);
    }
    return r;
}

/* A spare or preforked box, if there is one that is right. */
static struct box *take_box(struct session *session) {
    struct checkpoint *checkpoint = session->checkpoint->pending_restore;

    if (session->origin.has_own_seed ||
        (checkpoint && session->checkpoint->restore_state == RESTORE_REPEATS))
        return NULL;
    if (checkpoint)
        return preforked_take(checkpoint, session->profile);
    return snapshot_chain(session->files.base, NULL, 0) ? NULL
                                                        : spares_take(session->profile, true);
}

int session_need_box(struct session *session, struct rollbox_error *error) {
    struct checkpoint *checkpoint = session->checkpoint->pending_restore;
    struct profile *profile = session->profile;

    if (session->box)
        return 0;
    if (gateway_prepare(profile, error) < 0)
        return -error->error_number;
    if (snapshot_chain(session->files.base, NULL, 0) > GUEST_MAX_LAYERS)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "setup", "%s", too_many_layers);
    struct box *box = take_box(session);
    const bool was_spare = box;
    if (was_spare) {
        session->box = box;
        box_set_owner(box, &box_ops, session);
    }
    if (was_spare && !checkpoint) /* it may be older than the session: what was made with it comes
                                     before its forks, too */
        snapshot_has_since(session->files.base, box->made_ns);
    int r = was_spare ? 0 : make_box(session, error);
    if (r < 0)
        return r;
    box = session->box;
    r = box->state == BOX_READY ? gateway_use(box, NULL, session, error) : 0;
    if (r == 0)
        r = checkpoint ? 0 : announce_session(session, !was_spare, error);
    if (r < 0) {
        session_give_up_box(session);
        return was_spare ? session_need_box(session, error)
                         : r; /* it has died and we have not heard yet; there are not many */
    }
    if (checkpoint && box->origin == BOX_WAS_PREFORKED && checkpoint_is_in_demand(checkpoint))
        checkpoint_prefork(checkpoint, profile, session->files.base);
    if (session->state == SESSION_NEW && box->state == BOX_READY) {
        r = enter_box(session, error);
        if (r < 0 && may_restore_again(session, error)) {
            leave_box(session, error);
            return session_need_box(session, error);
        }
        if (r < 0) {
            leave_box(session, error);
            return r; /* the caller has it, who may be looking at several */
        }
        handle_entered(session); /* one that was made for a work may be gone after this */
    }
    (void)profile_keep_spares(profile);
    return 0;
}

/* With what was known of its processes. */
static void forget_box(struct session *session) {
    session->box = NULL;
    dirty_tracking_forget(&session->checkpoint->tracking);
    session->commands.thaw_due = false;
    session->agents.n = 0;
    stop_watching(session);
}

void session_give_up_box(struct session *session) {
    struct box *box = session->box;

    if (!box)
        return;
    forget_box(session);
    session->commands.n_orphan_pipes = 0;
    if (session->state == SESSION_LIVE)
        session->state = SESSION_NEW;
    box_set_owner(box, NULL, NULL);
    box_send_kill(box);
    drain_forget(session->engine,
        session->number); /* its terminals have numbers that those of the next one have, too */
    box_kill(box);
}

/* What was to go on in its box does not. It stands on the files alone then. */
static void not_restored(struct session *session, const struct rollbox_error *error) {
    if (session->checkpoint->pending_restore)
        dirty_tracking_distrust(session->engine, session->checkpoint->pending_restore);
    leave_box(session, error);
    op_session_ready(session, error);
}

static void watch_restored(struct session *session, uint64_t image_bytes);

static void handle_restored(struct session *session, const struct guest_record *record) {
    struct rollbox_error error;

    if (!session->checkpoint->pending_restore)
        return;
    if (record->error) {
        guest_restore_error_to_text(record, &error);
        not_restored(session, &error);
        return;
    }
    if (session->is_dry_run) {
        op_session_ready(session, NULL);
        return;
    }
    struct profile *profile = session->profile;
    struct checkpoint *checkpoint = checkpoint_get(session->checkpoint->pending_restore);
    struct snapshot *base = snapshot_get(session->files.base);

    session->state = SESSION_LIVE;
    const uint64_t bytes = checkpoint_memory(checkpoint);
    restore_done(session);
    watch_restored(session, bytes);
    op_session_ready(session, NULL);
    session_schedule(session);
    checkpoint_prefork(checkpoint, profile, base);
    snapshot_put(base);
    checkpoint_put(checkpoint);
}

/* In another box, if the one that was made ahead has died or nobody made it: true. */
static bool restores_anew(struct session *session, const struct rollbox_error *why) {
    struct rollbox_error error;

    if (!may_restore_again(session, why))
        return false;
    leave_box(session, why);
    if (session_need_box(session, &error) < 0)
        op_session_ready(session, &error);
    return true;
}

static void on_box_ready(void *owner, struct box *box) {
    struct session *session = owner;
    struct rollbox_error error;

    if (gateway_use(box, NULL, session, NULL) < 0) {
        box_fail(box, &gateway_failure);
        return;
    }
    box_expect_nothing(box);
    if (enter_box(session, &error) == 0)
        handle_entered(session);
    else if (!restores_anew(session, &error))
        not_restored(session, &error);
}

/* Set-up failed: whoever waits for it is told, and the next call tries again. */
static void on_box_failed(void *owner, struct box *box, const struct guest_record *record) {
    struct session *session = owner;
    struct rollbox_error error;

    (void)box;
    if (session->state == SESSION_CLOSING) {
        session->box = NULL;
        session_schedule(session);
        return;
    }
    guest_error_to_text(session->profile, record, NULL, NULL, &error);
    if (restores_anew(session, &error))
        return;
    session->box = NULL;
    session->commands.thaw_due = false;
    session->agents.n = 0;
    if (session->state == SESSION_LIVE)
        session->state = SESSION_NEW;
    while (!list_empty(&session->commands.runs))
        end_run(container_of(session->commands.runs.next, struct run, of_session), &error);
    op_session_ready(session, &error);
}

static void keep_files(struct session *session, struct box *box) {
    struct snapshot *snapshot = op_seal_layer(session, box);

    if (snapshot)
        snapshot_put(snapshot);
}

static void on_box_dead(void *owner, struct box *box) {
    struct session *session = owner;
    struct rollbox_error error;

    if (session->state == SESSION_CLOSING) {
        session->box = NULL;
        session_schedule(session);
        return;
    }
    if (session->box != box)
        return;
    log_at(LOG_WARN, "session", ABOUT(.sandbox = session->name),
        "its init has ended, which nobody asked for");
    error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "setup",
        "the sandbox' init was killed from outside");
    if (restores_anew(session, &error))
        return;
    forget_box(session);
    session->state = SESSION_NEW;
    if (session_event(session, OP_EVENT_BOX_DEAD, NULL))
        return;
    keep_files(session, box);
    error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run",
        "the sandbox' init was killed from outside, or has not answered for too long; its files "
        "are kept, its processes are gone");
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_QUEUED && box->state != BOX_SETUP)
            continue; /* init never had it: the next one gets it, unless they die before they can
                         have any */
        end_run(run, &error);
    }
    op_box_lost(session);
}

/* That it could not be served is its end, too. */
static void agent_ended(struct session *session) {
    session->agents.n -= session->agents.n > 0;
    session_touch(session);
}

static void on_box_report(
    void *owner, struct box *box, const struct guest_record *record, int *fds, size_t n_fds) {
    struct session *session = owner;

    (void)box;
    switch (record->kind) {
    case GUEST_RESTORED:
        if (record->value & GUEST_CREATE_NOTES) {
            dirty_tracking_born(session->checkpoint, session->box, fds, n_fds);
            n_fds = 0;
        }
        if (!record->error && restore_take_terminals(session, fds, n_fds) < 0)
            handle_restored(
                session, &(struct guest_record){ .kind = GUEST_RESTORED, .error = ENOMEM });
        else
            handle_restored(session, record);
        return; /* it may be gone */
    case GUEST_SIGNALLED:
        exec_signalled(session, record->serial);
        op_init_reply(session, record);
        break;
    case GUEST_FROZEN:
        op_init_reply(session, record);
        break;
    case GUEST_FILES_SERVED:
        if (record->error)
            agent_ended(session);
        break; /* the agent's own socket says the rest */
    case GUEST_FILES_ENDED:
        agent_ended(session);
        break;
    default:
        exec_answer(session, record, fds, n_fds);
        break;
    }
    session_schedule(session);
}

/* ---- memory ---- */

/* All its processes go, as which of them is to blame nobody knows; the files stay. */
void session_out_of_memory(struct session *session, bool of_host) {
    list_for_each(node, &session->commands.runs)
        run_out_of_memory(container_of(node, struct run, of_session), of_host);
    session->watch.n_out_of_memory++;
    log_at(LOG_WARN, "session", ABOUT(.sandbox = session->name),
        "out of memory (%s): all its processes are ended",
        of_host ? "the host's" : "its own limit");
    session->agents.met_limit = session->agents.n > 0;
    exec_kill_all(session);
    if (session->box) {
        session->box->oom = false;
        box_rest(
            session->box); /* the answer was of the dead: the next command is not to end by it */
    }
}

/* The same; each ends as by a single file that is too large. */
static void end_over_disk(struct session *session, bool spares_agents) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && !run->killed && !run->exited) {
            run->status = SIGXFSZ;
            run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
        }
    }
    if (spares_agents) {
        exec_kill_guests(session);
    } else {
        session->agents.met_limit = session->agents.n > 0;
        exec_kill_all(session);
    }
}

bool session_is_broken(struct session *session) {
    return dump_job_has_broken(session->checkpoint);
}

void session_broken(struct session *session) {
    list_for_each(node, &session->commands.runs)
        run_broken(container_of(node, struct run, of_session));
    exec_kill_all(session);
}

enum oom_cause session_oom_cause(struct session *session) {
    struct cgroup_lease *slot = session->box ? session->box->slot : NULL;
    const enum oom_cause cause = slot ? cgroup_lease_oom_cause(slot) : OOM_NONE;

    if (cause != OOM_NONE)
        cgroup_lease_end_soon(slot);
    return cause;
}

void session_oom_forget(struct session *session) {
    if (session->box && session->box->slot)
        cgroup_lease_oom_forget(session->box->slot);
}

static void on_box_limit(void *owner, struct box *box, enum box_limit limit) {
    struct session *session = owner;

    (void)box;
    if (limit == BOX_LIMIT_MEMORY || limit == BOX_LIMIT_HOST_MEMORY)
        session_out_of_memory(session, limit == BOX_LIMIT_HOST_MEMORY);
    else
        end_over_disk(session, limit == BOX_LIMIT_DISK_GUESTS);
}

/* on_box_dead says that it has not answered. */
static void on_box_late(void *owner, struct box *box) {
    (void)owner;
    box_kill(box);
}

static bool hold_box(void *owner, struct box *box) {
    (void)box;
    return op_hold_frozen(owner);
}

static void release_box(void *owner, struct box *box) {
    (void)box;
    op_disk_walked(owner);
}

static void add_layer_usage(void *owner, uint64_t *ret_bytes, uint64_t *ret_entries) {
    snapshot_usage(((struct session *)owner)->files.base, ret_bytes, ret_entries);
}

static unsigned count_files(void *owner) {
    const struct session *session = owner;
    unsigned n = (unsigned)session->checkpoint->tracking.dirty_tracking.n_trackers;

    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
            n += run->outputs[i].fd >= 0;
        for (size_t i = 0; i < ARRAY_SIZE(run->pipes); i++)
            n += run->pipes[i].kept >= 0;
    }
    return n;
}

static const struct box_owner_ops box_ops = { .ready = on_box_ready,
    .report = on_box_report,
    .limit = on_box_limit,
    .failed = on_box_failed,
    .dead = on_box_dead,
    .late = on_box_late,
    .hold = hold_box,
    .release = release_box,
    .layer_usage = add_layer_usage,
    .count_files = count_files,
    .tolerates_lost_fds = true };

static void on_watch(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, watch.timer);
    const int64_t begun = clock_now_ns();
    uint64_t memory, cpu;
    uint32_t processes;
    int r = session->box ? box_usage(session->box, &memory, &cpu, &processes) : -ESRCH;
    const int64_t now = clock_now_ns();

    note_watching(session, r < 0 ? 0 : now - begun);
    if (r < 0)
        return;
    if (box_is_over(session->box, memory))
        session_out_of_memory(session, false);
    if (processes || session->commands.n_runs) {
        (void)loop_timer_set(session->engine->loop, timer,
            now + MAX(WATCH_NS, WATCH_SHARE * session->engine->memory_poll_cost_ns), on_watch);
        return;
    }
    note_watching(session, 0);
    box_rest(session->box);
}

static void watch_from(struct session *session, int64_t pause_ns) {
    if (session->box && box_needs_watch(session->box) && !session->watch.timer.position)
        (void)loop_timer_set(
            session->engine->loop, &session->watch.timer, clock_now_ns() + pause_ns, on_watch);
}

void session_watch(struct session *session) {
    watch_from(session, WATCH_NS / 10);
}

/* What they have is known: twice the image at most, where all its pages came with large ones. The
 * first look, the dearest of all, is not before they can have reached the limit. */
static void watch_restored(struct session *session, uint64_t image_bytes) {
    hoards_watch(session->engine);
    uint64_t limit = session->profile->policy->max_memory_bytes,
             most = image_bytes > limit / 2 ? limit : 2 * image_bytes;

    watch_from(session,
        MAX(WATCH_NS / 10, MIN(run_filling_ns(session->engine, limit - most), CHECKPOINT_REST_NS)));
}

/* Of an operation whose state is not known nothing can be expected, its end included. */
static void end_inconsistent(struct session *session) {
    struct op *op = session_first_op(session);
    struct rollbox_error error;

    session->queue.is_lost = false;
    error_set(&error, ROLLBOX_ERR_INTERNAL, 0, "run",
        "the engine lost track of an operation of sandbox %s, which is closed; please report this",
        session->name);
    if (op && op->verb != VERB_CLOSE)
        op_fail(op, &error);
    session_close(session);
}

/* Nothing of it runs. Its observers may have something to do before CLOSE is answered. */
static bool may_end(const struct session *session) {
    bool is_waited_for = false;

    list_for_each(node, &session->queue.ops)
        is_waited_for |= container_of(node, struct op, node)->client != NULL;
    return session_events_closed(session, is_waited_for) == OBSERVER_CONTINUE;
}

/* Something waits that a hibernated sandbox cannot do: a WAKE is its first operation now. */
static void wake_if_needed(struct session *session) {
    struct op *first = session_first_op(session);

    if (!session->sleep ||
        (first ? op_allows_hibernated(first) : list_empty(&session->commands.waiting)))
        return;
    if (op_add(session, VERB_WAKE, true))
        return;
    while (!list_empty(&session->commands.waiting)) {
        struct run *run = container_of(session->commands.waiting.next, struct run, in_queue);

        list_remove(&run->in_queue);
        run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "wake", "out of memory");
    }
}

/* The next operation, then the commands that wait. A session that is closed and has no box ends
 * here. */
static void on_schedule(struct loop_task *task) {
    struct session *session = container_of(task, struct session, schedule);

    if (session->queue.is_lost)
        end_inconsistent(session);
    while (session->state != SESSION_CLOSING) {
        wake_if_needed(session);
        /* What is asked of a session that a fork is still making waits until it has its box. */
        if (session->state == SESSION_CLOSING || session->queue.fork ||
            list_empty(&session->queue.ops))
            break;
        struct op *op = container_of(session->queue.ops.next, struct op, node);

        if (op->wait != OP_WAIT_QUEUED)
            break;
        log_at(LOG_DEBUG, "operation", ABOUT(.sandbox = session->name, .op = verb_name(op->verb)),
            "starts");
        (void)op_event(op, OP_EVENT_START, NULL);
    }
    if (session->state != SESSION_CLOSING)
        exec_send_waiting(session);
    else if (!session->box && may_end(session))
        session_free(session);
}

void session_schedule(struct session *session) {
    loop_defer(session->engine->loop, &session->schedule, on_schedule);
}

bool session_name_ok(const char *name) {
    size_t n = strlen(name);

    if (n < 1 || n > SESSION_NAME_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("_.-", name[i]))
            return false;
    return true;
}

bool session_has_user(const struct session *session, const char *user) {
    const char *own = session->profile->policy->user ? session->profile->policy->user : "box";
    char number[16];

    snprintf(number, sizeof number, "%u", session->profile->plan->inner_uid);
    return !strcmp(user, own) || !strcmp(user, number) ||
           (session->profile->plan->inner_uid == 0 && !strcmp(user, "root"));
}

void session_name_operation(
    const struct session *session, unsigned char *operation, size_t *length) {
    if (!*length)
        return;
    memmove(operation + sizeof session->number, operation, *length);
    memcpy(operation, &session->number, sizeof session->number);
    *length += sizeof session->number;
}

int session_may_wait(const struct session *session, struct rollbox_error *error) {
    return session->queue.n_ops < MAX_OPS
               ? 0
               : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
                     "the sandbox %s has %u requests that wait, as many as are kept for one; wait "
                     "for some of them",
                     session->name, session->queue.n_ops);
}

int session_not_found(const struct engine *engine, const char *name, struct rollbox_error *error) {
    const unsigned n = engine->n_unreadable;

    return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
        "there is no sandbox %.100s; `rollbox ps` lists those there are%s", name ? name : "?",
        n ? ". The store has records of sleeping sandboxes that cannot be read, and it may be one "
            "of those: `rollbox store fsck` lists them"
          : "");
}
