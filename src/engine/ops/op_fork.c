/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FORK: new sandboxes on the present state or an earlier one; all of them, or none.
 *
 * A group forks several sandboxes at one moment, also all or none. Each has its own operation.
 * Its processes stay stopped when its state is taken, until the states of all are. So there is a
 * moment at which all stood, in exactly these states: no copy can know of something that another
 * copy has not done. Operations of a group are queued together, so two groups cannot wait for each
 * other.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/seeded_random.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/checkpoint/flatten.h"
#include "engine/core/log.h"
#include "engine/network/gateway.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/ops/peers.h"
#include "engine/ops/publish.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"

#define MAX_FORK 10000
/* Of one incremental image: from here on it costs less to put a full image together than to apply
 * the incremental one in each child. */
#define MANY_FORKS 16u

static void close_made(struct op *op) {
    for (unsigned i = 0; i < op->fork.n_owned; i++) {
        op->fork.made[i]->queue.fork = NULL;
        session_close(op->fork.made[i]);
    }
    op->fork.n_made = op->fork.n_owned = 0;
}

/* As many as the launcher's socket has room for; each that is ready has made some. Each may fail,
 * and take all of them along. */
static void ask_for_boxes(struct op *op) {
    struct rollbox_error error;

    while (op->fork.n_asked < op->fork.n_made) {
        struct session *next = op->fork.made[op->fork.n_asked++];
        bool is_last = op->fork.n_asked == op->fork.n_made;
        int r = session_need_box(next, &error);

        if ((r == -EAGAIN || r == -ETOOMANYREFS) && op->fork.n_asked - 1 > op->fork.n_ready) {
            op->fork.n_asked--;
            op_wait(op, OP_WAIT_LAUNCHER_ROOM);
            return;
        }
        if (r < 0)
            op_fail(op, &error);
        if (r < 0 || is_last)
            return; /* it may be over */
    }
}

static void group_end(struct fork_group *group) {
    group->is_over = true;
    if (!group->is_busy)
        free(group);
}

/* One has failed, and answers: the others fail as well. */
static void break_group(struct op *op, const struct rollbox_error *error) {
    struct fork_group *group = op->fork.group;

    if (!group)
        return;
    for (unsigned i = 0; i < group->n; i++)
        group->ops[i]->fork.group = NULL;
    for (unsigned i = 0; i < group->n; i++) {
        if (group->ops[i] == op)
            continue;
        group->ops[i]->reply.client = NULL;
        op_fail(group->ops[i], error);
    }
    group_end(group);
}

static void add_names(const struct op *op, struct buf *json) {
    for (unsigned i = 0; i < op->fork.n_made; i++)
        buf_printf(json, "%s\"%s\"", i ? ", " : "", op->fork.made[i]->name);
}

static void hand_over(struct op *op, struct buf *reply) {
    for (unsigned i = 0; i < op->fork.n_made; i++)
        op->fork.made[i]->queue.fork = NULL;
    if (op->reply.client || !op->session->client)
        op->fork.n_owned = 0; /* they are somebody's now */
    if (!reply)
        op->reply.client = NULL; /* another one answers */
    op_done(op, reply ? reply : &(struct buf)BUF_INIT);
}

static void finish_group(struct fork_group *group) {
    struct buf json = BUF_INIT;

    buf_add_text(&json, "{\"sandboxes\": [");
    for (unsigned i = 0; i < group->n; i++) {
        buf_add_text(&json, i ? ", [" : "[");
        add_names(group->ops[i], &json);
        buf_add_text(&json, "]");
        group->ops[i]->fork.group = NULL;
    }
    buf_add_text(&json, "]}");
    for (unsigned i = 0; i < group->n; i++)
        hand_over(group->ops[i], i + 1 < group->n ? NULL : &json);
    group_end(group);
}

static void child_ready(struct op *op) {
    struct buf json = BUF_INIT;

    if (++op->fork.n_ready < op->fork.count) {
        if (op->wait != OP_WAIT_LAUNCHER_ROOM)
            return;
        op_wait(op, OP_WAIT_CHILDREN);
        ask_for_boxes(op);
        return;
    }
    if (op->fork.group) {
        if (++op->fork.group->n_ready == op->fork.group->n)
            finish_group(op->fork.group);
        return;
    }
    buf_add_text(&json, "{\"sandboxes\": [");
    add_names(op, &json);
    buf_add_text(&json, "]}");
    hand_over(op, &json);
}

static void make_forks(struct op *op) {
    struct session *session = op->session;
    struct rollbox_error error;

    struct checkpoint *checkpoint = op->request.drops ? NULL : op->to->checkpoint;
    struct snapshot *base = checkpoint ? snapshot_get(op->to) : session_files_of(session, op->to);
    if (base) {
        snapshot_put(op->to);
        op->to = base;
        if (base->purpose == SNAPSHOT_INTERNAL)
            base->purpose = SNAPSHOT_OF_FORK;
    }
    op->fork.made = calloc(op->fork.count, sizeof(struct session *));
    if (!op->fork.made || !base) {
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
        return;
    }
    /* Without an owner they would be detached. */
    if (op->fork.attached && !op->reply.client) {
        op_fail_with(
            op, ROLLBOX_ERR_CANCELLED, ECANCELED, "the client that asked for the forks is gone");
        return;
    }
    const uint64_t before = session->origin.n_forked;
    session->origin.n_forked += op->fork.count;
    if (checkpoint)
        checkpoint->demand.n_uses++;
    for (unsigned i = 0; i < op->fork.count; i++) {
        struct session *made = session_new(session->engine, session->profile,
            session->client || op->fork.attached ? op->reply.client : NULL, NULL,
            session->files.tree, op->to, &error);

        if (!made) {
            op_fail(op, &error);
            return;
        }
        made->origin.since_ns = session->origin.since_ns;
        made->origin.parent = session->number;
        session_events_forked(op, made);
        made->origin.clone_id = i;
        made->origin.seed = op->fork.same_seed
                                ? session->origin.seed
                                : seeded_random_fork(session->origin.seed, before + i);
        made->origin.has_own_seed = session->profile->policy->have_seed &&
                                    (session->origin.has_own_seed || !op->fork.same_seed);
        snprintf(made->origin.snapshot, sizeof made->origin.snapshot, "%s", op->to->id);
        made->timers.idle_ms = session->timers.idle_ms;
        made->timers.ttl_ms = session->timers.ttl_ms;
        made->timers.lifetime_ms = session->timers.lifetime_ms;
        made->checkpoint->pending_restore = checkpoint ? checkpoint_get(checkpoint) : NULL;
        made->checkpoint->is_fork = true;
        made->checkpoint->tracks_from_birth = dirty_tracking_is_few(op->fork.count);
        session_arm(made);
        op->fork.made[op->fork.n_made++] = made;
        op->fork.n_owned++;
        made->queue.fork = op;
        if (gateway_inherit_rules(made->engine, made->number, gateway_rules(session->number)) < 0) {
            op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
            return;
        }
        if (publish_fork(session, made, &error) < 0 ||
            peers_fork(session, made, op->fork.group ? op->fork.group->number : 0, i, &error) < 0) {
            op_fail(op, &error);
            return;
        }
    }
    if (op->wait != OP_WAIT_CHILDREN)
        op_wait(op, OP_WAIT_CHILDREN);
    ask_for_boxes(op);
}

/* Each step may fail one of them, and with it all. */
static void make_forks_of_group(struct fork_group *group) {
    group->is_busy = true;
    for (unsigned i = 0; i < group->n; i++)
        op_resume_processes(group->ops[i]);
    for (unsigned i = 0; i < group->n && !group->is_over; i++)
        make_forks(group->ops[i]);
    group->is_busy = false;
    if (group->is_over)
        free(group);
}

static void have_state(struct op *op) {
    struct fork_group *group = op->fork.group;

    if (!group) {
        make_forks(op);
        return;
    }
    op_wait(op, OP_WAIT_CHILDREN);
    if (++group->n_taken == group->n)
        make_forks_of_group(group);
}

static void start_fork(struct op *op) {
    if (op->fork.count < 1 || op->fork.count > MAX_FORK) {
        op_fail_with(
            op, ROLLBOX_ERR_INVALID_ARGUMENT, 0, "fork: a number from 1 to 10000 must be given");
    } else if (!op->from) {
        op_take_snapshot(op);
    } else {
        op->to = snapshot_get(op->from);
        op_have_snapshot(op);
    }
}

static void fork_event(struct op *op, enum op_event event, const struct op_message *message) {
    if (event != OP_EVENT_CHILD_READY)
        take_snapshot_event(op, event, message);
    else if (message->error)
        op_fail(op, message->error); /* all or none */
    else
        child_ready(op);
}

static void fork_failed(struct op *op, const struct rollbox_error *error) {
    op_resume_processes(op);
    close_made(op);
    break_group(op, error);
}

static void release_fork(struct op *op) {
    struct rollbox_error error;

    close_made(op);
    error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
        "another sandbox of the group could not be forked");
    break_group(op, &error);
    free(op->fork.made);
    take_snapshot_release(op);
}

static struct checkpoint *wants_full_image(const struct op *op) {
    const bool is_for_many =
        op->from && !op->request.drops && op->fork.count >= MANY_FORKS && !op->take.flatten_failed;

    return is_for_many && flatten_is_lacking(op->from->checkpoint) ? op->from->checkpoint : NULL;
}

int op_fork_group(struct op *const *ops, unsigned n) {
    static uint64_t last_number;
    struct fork_group *group = calloc(1, sizeof *group + n * sizeof ops[0]);

    if (!group)
        return -ENOMEM;
    group->number = ++last_number;
    group->n = n;
    for (unsigned i = 0; i < n; i++) {
        group->ops[i] = ops[i];
        ops[i]->fork.group = group;
    }
    return 0;
}

const struct op_class op_fork_class = { .verb = VERB_FORK,
    .flags = OP_RESUMES_EARLY | OP_STARTS_UNFLATTENED,
    .start = start_fork,
    .wants_full_image = wants_full_image,
    .have_snapshot = have_state,
    .event = fork_event,
    .failed = fork_failed,
    .release = release_fork };
