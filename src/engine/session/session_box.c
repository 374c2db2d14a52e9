/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box of a session: its creation, init's reports, its limits, its end.
 *
 * A box is made for the first command or operation that needs one, and whenever the session stands
 * on other files. If init is killed from outside, the engine still holds the files of its box, and
 * the next box has them; the processes are lost.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/box/box.h"
#include "engine/box/guest_error.h"
#include "engine/box/launcher.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/command/command.h"
#include "engine/command/stream.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/box_files.h"
#include "engine/files/layer_chain.h"
#include "engine/network/gateway.h"
#include "engine/pool/profile.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/spares.h"
#include "engine/run/hoards.h"
#include "engine/run/run.h"
#include "engine/session/exec.h"
#include "engine/session/op.h"
#include "engine/session/restore.h"
#include "engine/session/session.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"

#define WATCH_NS 50000000ll
#define WATCH_SHARE                                                                                \
    3 /* the part of our time that looking at all sandboxes takes at most: a third */

static const struct box_owner_ops box_ops;

/* A look at one without a memory cgroup costs some fifty microseconds: at a thousand of them
 * nothing would be left for requests. */
static void note_watching(struct session *session, int64_t took_ns) {
    engine_account(&session->engine->sessions.poll_cost_ns, &session->watch.cost_ns, took_ns);
}

void session_stop_watching(struct session *session) {
    loop_timer_clear(session->engine->loop, &session->watch.timer);
    note_watching(session, 0);
}

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
    if (!session->box->baseline.files)
        session->box->baseline.files = box_files_baseline(session->box);
    if (!session->checkpoint->pending_restore)
        return 0;
    int r = session_hibernation() ? session_hibernation()->before_restore(session, error) : 0;
    return r < 0 ? r : restore_start(session, exec_adopt, error);
}

static void handle_entered(struct session *session) {
    if (session->checkpoint->pending_restore)
        return; /* init answers when they are resumed */
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
            exec_end(run, error);
    }
    session_give_up_box(session);
}

/* A preforked box waits for its use, and may be dying when that comes; one that is made
 * now has no such past, but who makes it may have been killed, and have begun nothing of it. */
static bool may_restore_again(struct session *session, const struct rollbox_error *why) {
    const bool was_lost = why->error_number == ECHILD && session->box->pid <= 0;

    if (!session->checkpoint->pending_restore ||
        !(session->box->creation.origin == BOX_WAS_PREFORKED || was_lost) ||
        session->box->memory.met_limit || session->checkpoint->restore_state == RESTORE_REPEATS)
        return false;
    session->checkpoint->restore_state = RESTORE_REPEATS;
    return true;
}

static const char too_many_layers[] = "the layers of the sandbox could not be merged, because "
                                      "memory is short; drop snapshots or close "
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
        config.tracks =
            checkpoint->tracking.is_from_birth && session->checkpoint->tracks_from_birth;
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

/* Makes the sandbox of its box, which is ready, known to the network gateway. */
static int use_gateway(struct session *session, struct rollbox_error *error) {
    const struct snapshot *at = session->files.at;
    const struct gateway_user user = {
        .session = session->number, .name = session->name, .names = at ? at->net_names : NULL
    };
    int r = gateway_use(session->box, &user, error);

    if (r <= 0)
        return r;
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->box == session->box)
            gateway_tally_begin(run, run->box);
    }
    return 0;
}

int session_need_box(struct session *session, struct rollbox_error *error) {
    struct checkpoint *checkpoint = session->checkpoint->pending_restore;
    struct profile *profile = session->profile;

    if (session->box)
        return 0;
    if (gateway_prepare(profile->engine, profile->policy, error) < 0)
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
        snapshot_has_since(session->files.base, box->creation.made_ns);
    int r = was_spare ? 0 : make_box(session, error);
    if (r < 0)
        return r;
    box = session->box;
    r = box->state == BOX_READY ? use_gateway(session, error) : 0;
    if (r == 0)
        r = checkpoint ? 0 : announce_session(session, !was_spare, error);
    if (r < 0) {
        session_give_up_box(session);
        return was_spare ? session_need_box(session, error)
                         : r; /* it has died and we have not heard yet; there are not many */
    }
    if (checkpoint && box->creation.origin == BOX_WAS_PREFORKED &&
        checkpoint_is_in_demand(checkpoint))
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
        handle_entered(session); /* the operation that wanted the box may have ended */
    }
    (void)profile_keep_spares(profile);
    return 0;
}

/* Forgets the box, and the knowledge of its processes with it. */
static void forget_box(struct session *session) {
    session->box = NULL;
    dirty_tracking_forget(&session->checkpoint->tracking);
    session->commands.thaw_due = false;
    session->agents.n = 0;
    session_stop_watching(session);
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

/* The processes cannot be restored: the session has its files alone. */
static void not_restored(struct session *session, const struct rollbox_error *error) {
    if (session->checkpoint->pending_restore)
        dirty_tracking_distrust(session->checkpoint->pending_restore);
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

/* Restores in another box, if the preforked one has died or none was made. */
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

    if (use_gateway(session, NULL) < 0) {
        box_fail(box, &gateway_failure);
        return;
    }
    box_expect_nothing(box);
    if (enter_box(session, &error) == 0)
        handle_entered(session);
    else if (!restores_anew(session, &error))
        not_restored(session, &error);
}

/* Set-up failed: those that wait get the error, and the next call tries again. */
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
        exec_end(container_of(session->commands.runs.next, struct run, of_session), &error);
    op_session_ready(session, &error);
}

static void keep_files(struct session *session, struct box *box) {
    struct snapshot *snapshot = session_files_seal(session, box);

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
        "the sandbox's init was killed from outside");
    if (restores_anew(session, &error))
        return;
    forget_box(session);
    session->state = SESSION_NEW;
    if (session_event(session, OP_EVENT_BOX_DEAD, NULL))
        return;
    keep_files(session, box);
    error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run",
        "the sandbox's init was killed from outside, or has not answered for too long; its files "
        "are kept, its processes are gone");
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_QUEUED && box->state != BOX_SETUP)
            continue; /* init never had it: the next one gets it, unless they die before they can
                         have any */
        exec_end(run, &error);
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
        session->box->memory.met_limit = false;
        box_rest(
            session->box); /* the answer was of the dead: the next command is not to end by it */
    }
}

/* The same; each ends as by a single file that is too large. */
static void end_over_disk(struct session *session, bool spares_agents) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_RUNNING && !run->end.killed && !run->end.exited) {
            run->end.status = SIGXFSZ;
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

void session_broken(struct session *session) {
    list_for_each(node, &session->commands.runs)
        run_broken(container_of(node, struct run, of_session));
    exec_kill_all(session);
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
        for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes); i++)
            n += run->fds.pipes[i].kept >= 0;
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
            now + MAX(WATCH_NS, WATCH_SHARE * session->engine->sessions.poll_cost_ns), on_watch);
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

/* Restored processes have at most twice the memory of their image, in case huge pages were used for
 * it. The first look is the most expensive one, so it waits until they can reach the limit. */
static void watch_restored(struct session *session, uint64_t image_bytes) {
    hoards_watch(session->engine);
    uint64_t limit = session->profile->policy->max_memory_bytes,
             most = image_bytes > limit / 2 ? limit : 2 * image_bytes;

    watch_from(session,
        MAX(WATCH_NS / 10, MIN(run_filling_ns(session->engine, limit - most), CHECKPOINT_REST_NS)));
}
