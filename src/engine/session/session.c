/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: names, messages to init, and facts that the other files of this module share
 * (session.h has the model). session_life.c has the beginning and the end of a session,
 * session_box.c its box.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/session/op.h"
#include "engine/session/op_state.h"
#include "engine/session/session.h"

#define MAX_OPS 16384u /* requests that wait for one sandbox, commands not included */

/* Set once, at the start. NULL: no session hibernates. */
static const struct hibernation_ops *hibernation;

void session_set_hibernation(const struct hibernation_ops *ops) {
    hibernation = ops;
}

const struct hibernation_ops *session_hibernation(void) {
    return hibernation;
}

/* ---- names ---- */

/* FNV-1a. */
struct list *session_bucket(struct engine *engine, const char *name) {
    uint32_t hash = 2166136261u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return &engine->sessions.by_name[(hash ^ hash >> 16) % ARRAY_SIZE(engine->sessions.by_name)];
}

struct session *session_find(struct engine *engine, const char *name) {
    list_for_each(node, session_bucket(engine, name)) {
        struct session *session = container_of(node, struct session, by_name);

        if (session->state != SESSION_CLOSING && !session->is_dry_run &&
            session->queue.end != SESSION_IS_UNMADE && !strcmp(session->name, name))
            return session;
    }
    return NULL;
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

int session_not_found(const struct engine *engine, const char *name, struct rollbox_error *error) {
    const unsigned n = engine->stored.n_unreadable;

    return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
        "there is no sandbox %.100s; `rollbox ps` lists those there are%s", name ? name : "?",
        n ? ". The store has records of sleeping sandboxes that cannot be read, and it may be one "
            "of those: `rollbox store fsck` lists them"
          : "");
}

int session_may_wait(const struct session *session, struct rollbox_error *error) {
    return session->queue.n_ops < MAX_OPS
               ? 0
               : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
                     "the sandbox %s has %u requests that wait, as many as are kept for one; wait "
                     "for some of them",
                     session->name, session->queue.n_ops);
}

/* ---- timers ---- */

static void arm_timer(struct session *session, struct loop_timer *timer, int64_t after_ms) {
    if (after_ms > 0 && !timer->position)
        (void)loop_timer_set(
            session->engine->loop, timer, clock_now_ns() + after_ms * 1000000, timer->callback);
}

/* A call, or its end. */
void session_touch(struct session *session) {
    session->timers.called_ns = clock_now_ns();
    arm_timer(session, &session->timers.idle, session->timers.idle_ms);
    if (hibernation) {
        session->hibernation.timer.callback = hibernation->due;
        arm_timer(session, &session->hibernation.timer, session->hibernation.after_ms);
    }
    arm_timer(session, &session->timers.end, session->timers.ttl_ms);
}

void session_schedule(struct session *session) {
    loop_defer(session->engine->loop, &session->schedule, session->schedule.run);
}

void session_close_continue(struct session *session) {
    if (session->state == SESSION_CLOSING)
        session_schedule(session);
}

/* ---- messages to init ---- */

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

/* Its state is being dumped: then all processes resume, unless it is paused by then. */
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

/* ---- kills at the memory limit ---- */

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
