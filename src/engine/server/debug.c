/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's unfinished work, for `rollbox debug dump` of a stuck engine.
 *
 * Each sandbox that has operations, commands or a box under way is listed with what it waits for
 * and since when. Nothing is asked of the kernel and nothing is changed.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/command/command.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/server/debug.h"
#include "engine/session/op.h"
#include "engine/core/verb_names.h"
#include "engine/session/op_state.h"
#include "engine/session/session.h"

#define MAX_RUNS 1000 /* one-off runs that are listed */

static const char *state_name(enum session_state state) {
    static const char *const names[] = {
        [SESSION_NEW] = "no-box",
        [SESSION_LIVE] = "live",
        [SESSION_PAUSED] = "paused",
        [SESSION_CLOSING] = "closing",
    };

    return names[state];
}

static const char *box_state_name(const struct box *box) {
    static const char *const names[] = {
        [BOX_SETUP] = "setup",
        [BOX_READY] = "ready",
        [BOX_DYING] = "dying",
    };

    return box ? names[box->state] : "none";
}

static const char *run_state_name(enum run_state state) {
    static const char *const names[] = {
        [RUN_QUEUED] = "queued",
        [RUN_STARTING] = "starting",
        [RUN_RUNNING] = "running",
        [RUN_ENDED] = "ended",
    };

    return names[state];
}

static const char *truth(bool value) {
    return value ? "true" : "false";
}

static void add_client(const struct client *client, struct buf *to) {
    if (client)
        buf_printf(to, "%d", (int)client->pid);
    else
        buf_add_text(to, "null");
}

static void add_op(const struct op *op, struct buf *to) {
    buf_printf(to, "{\"op\": \"%s\", \"wait\": \"%s\", \"since_ms\": %lld, \"client_pid\": ",
        verb_name(op->verb), op_wait_name(op->wait),
        (long long)(clock_now_ns() - op->since_ns) / 1000000);
    add_client(op->reply.client, to);
    buf_add_text(to, "}");
}

static void add_run(const struct run *run, struct buf *to) {
    buf_printf(to, "{\"run\": %llu, \"state\": \"%s\", \"main_pid\": %d, \"since_ms\": ",
        (unsigned long long)run->init.serial, run_state_name(run->state), (int)run->init.main_pid);
    if (run->limits.started_ns)
        buf_printf(to, "%lld", (long long)(clock_now_ns() - run->limits.started_ns) / 1000000);
    else
        buf_add_text(to, "null");
    buf_add_text(to, ", \"client_pid\": ");
    add_client(run->client, to);
    buf_add_text(to, "}");
}

static void add_session(struct session *session, struct buf *to) {
    const char *between = "";

    buf_printf(to,
        "{\"sandbox\": \"%s\", \"state\": \"%s\", \"box\": \"%s\", \"init_pid\": %d, "
        "\"hibernated\": %s, \"waits_for_fork\": %s, \"restores\": %s, \"ops\": [",
        session->name, state_name(session->state), box_state_name(session->box),
        session->box ? (int)session->box->pid : 0, truth(session->sleep != NULL),
        truth(session->queue.fork != NULL), truth(session->checkpoint->pending_restore != NULL));
    list_for_each(node, &session->queue.ops) {
        buf_add_text(to, between);
        add_op(container_of(node, struct op, node), to);
        between = ", ";
    }
    buf_add_text(to, "], \"commands\": [");
    between = "";
    list_for_each(node, &session->commands.runs) {
        buf_add_text(to, between);
        add_run(container_of(node, struct run, of_session), to);
        between = ", ";
    }
    buf_add_text(to, "]}");
}

void debug_dump(struct engine *engine, struct buf *to) {
    const char *between = "";
    unsigned n = 0;

    buf_printf(to,
        "{\"pid\": %d, \"boxes\": %u, \"queued\": %u, \"running\": %u, \"stopping\": %s, "
        "\"memory_reserved_bytes\": %llu, \"memory_budget_bytes\": %llu, \"files\": %u, "
        "\"max_files\": %u, \"sandboxes\": [",
        (int)getpid(), engine->boxes.n, engine->runs.n_queued, engine->runs.n_running,
        truth(engine->stopping),
        (unsigned long long)(engine->runs.memory_reserved + engine->sessions.memory_reserved),
        (unsigned long long)engine->runs.memory_budget, engine->files.used, engine->files.most);
    list_for_each(node, &engine->sessions.all) {
        buf_add_text(to, between);
        add_session(container_of(node, struct session, node), to);
        between = ", ";
    }
    buf_add_text(to, "], \"runs\": [");
    between = "";
    list_for_each(node, &engine->runs.all) {
        const struct run *run = container_of(node, struct run, of_engine);

        if (run->session || n++ >= MAX_RUNS)
            continue;
        buf_add_text(to, between);
        add_run(run, to);
        between = ", ";
    }
    buf_add_text(to, "]}");
}
