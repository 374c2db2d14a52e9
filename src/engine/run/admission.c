/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: limits for the requests of a client, and the choice of the next run.
 *
 * Each client has a queue, in the order of its requests. Among the clients whose first run fits
 * into the free memory, the next one is that with the least memory reserved by its running runs;
 * among equals, the one that was served longest ago. So a long queue delays no other client, and
 * shares are shares of memory and not of runs.
 *
 * A large run would wait for ever if small runs of others took all memory that becomes free. Once
 * others have been given as much as the whole budget while it waited, nothing else is started
 * before it.
 *
 * Within a client, runs of a higher priority are before others, except those that have waited for
 * AGE_NS. One that finds no room lets later ones pass, until these had PASSES times its memory.
 *
 * Sandboxes count while they run commands, with their memory limits, but at most as half of the
 * budget: most sandboxes use much less than they may, and runs must continue beside them.
 */
#include "engine/run/admission.h"

#include <errno.h>
#include <limits.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/sender.h"

#define MAX_HELD_BYTES (256u << 20) /* of one client's requests */
#define HELD_FDS_SHARE                                                                             \
    4u /* of the limit of open files, the part that descriptors of one client's requests may be */
#define HELD_FDS_LEAST 64u
#define AGE_NS (INT64_C(10) * 1000000000)
#define PASSES 4u
#define LOOK_MAX 32u /* runs of a queue that are looked at for a start */
#define KEPT_FOR_OTHERS                                                                            \
    (UINT64_C(512) << 20) /* of a shared engine's budget, one run of the default policy */

static void hold(struct run *run) {
    run->admission.held_by = run->client;
    run->admission.held_by->held_bytes += run->admission.held_bytes;
    run->admission.held_by->held_fds += run->admission.held_fds;
}

void admission_handed_over(struct run *run) {
    if (run->admission.held_by)
        run->admission.held_by->held_fds -= run->admission.held_fds;
    run->admission.held_fds = 0;
}

void admission_unhold(struct run *run) {
    struct client *client = TAKE_PTR(run->admission.held_by);

    if (!client)
        return;
    client->held_bytes -= run->admission.held_bytes;
    client->held_fds -= run->admission.held_fds;
}

static void charge(struct run *run) {
    run->admission.charged_to = run->client;
    run->admission.charged_to->memory_reserved += run->profile->policy->max_memory_bytes;
    run->admission.charged_to->n_running++;
}

static void uncharge(struct run *run) {
    struct client *client = TAKE_PTR(run->admission.charged_to);

    if (!client)
        return;
    client->memory_reserved -= run->profile->policy->max_memory_bytes;
    client->n_running--;
}

/* Before it: runs of at least its priority, and those that have waited for long. */
static struct list *place_of(struct client *client, const struct run *run) {
    struct list *place = client->queue.prev;

    while (place != &client->queue) {
        const struct run *before = container_of(place, struct run, in_queue);

        if (before->admission.rank >= run->admission.rank ||
            run->admission.joined_ns - before->admission.joined_ns > AGE_NS)
            break;
        place = place->prev;
    }
    return place->next;
}

void admission_join(struct run *run) {
    struct client *client = run->admission.queued_at = run->client;

    if (list_empty(&client->queue))
        list_add_tail(&run->engine->runs.turns, &client->in_turns);
    if (!run->admission.joined_ns)
        run->admission.joined_ns = clock_now_ns();
    list_add_tail(place_of(client, run), &run->in_queue); /* before that one */
    client->n_queued++;
}

/* Also of one that waits elsewhere. */
void admission_leave(struct run *run) {
    struct client *client = TAKE_PTR(run->admission.queued_at);

    list_remove(&run->in_queue);
    if (!client)
        return;
    client->n_queued--;
    if (list_empty(&client->queue)) {
        list_remove(&client->in_turns);
        client->passed = 0;
    }
}

/* 0, or it is more than one client may have the engine keep. A single request may be larger than
 * that. */
int admission_hold(struct run *run, struct rollbox_error *error) {
    const struct client *client = run->client;
    const struct engine *engine = run->engine;
    const unsigned max_fds =
        engine->is_private ? UINT_MAX : MAX(engine->files.limit / HELD_FDS_SHARE, HELD_FDS_LEAST);

    run->admission.held_bytes = run->given.message.length;
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        run->admission.held_fds += run->fds.stdio[i] >= 0;
    run->admission.held_fds += (run->terminal.input >= 0) + run->fds.n_extra;
    if (client->held_bytes && client->held_bytes + run->admission.held_bytes > MAX_HELD_BYTES)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "requests of this connection that wait in the engine have %zu MiB, and it keeps %u MiB "
            "of one connection; wait for some of their results, or give "
            "large data as stdin",
            client->held_bytes >> 20, MAX_HELD_BYTES >> 20);
    if (client->held_fds + run->admission.held_fds > max_fds)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "requests of this connection that wait in the engine have %zu descriptors, and it "
            "keeps %u of one connection (a share of its limit of open files); wait "
            "for some of their results",
            client->held_fds, max_fds);
    hold(run);
    return 0;
}

/* Part of a shared engine's budget is for clients for which nothing runs yet: a client that comes
 * while one client's long runs have all the rest need not wait for the end of one. */
static bool fits(const struct client *client, const struct run *run) {
    const struct engine *engine = client->engine;
    const uint64_t budget = engine->runs.memory_budget,
                   memory = run->profile->policy->max_memory_bytes,
                   sessions = MIN(engine->sessions.memory_reserved, budget / 2);
    const uint64_t kept =
        engine->is_private || !client->n_running ? 0 : MIN(budget / 8, KEPT_FOR_OTHERS);

    return !engine->runs.n_running || !budget ||
           engine->runs.memory_reserved + sessions + memory <= budget - kept;
}

/* Nothing of its client is started before it. */
static bool is_due(const struct run *run) {
    return run->admission.passed / PASSES >= run->profile->policy->max_memory_bytes;
}

/* The first that has room; if none has, the first. */
struct run *admission_first(const struct client *client) {
    struct run *first = container_of(client->queue.next, struct run, in_queue);
    unsigned n = 0;

    list_for_each(node, &client->queue) {
        struct run *run = container_of(node, struct run, in_queue);

        if (fits(client, run))
            return run;
        if (is_due(run) || ++n == LOOK_MAX)
            break;
    }
    return first;
}

static bool has_room(const struct client *client) {
    return fits(client, admission_first(client));
}

/* Its results wait: nothing of its is started that would add to them. */
static bool is_behind(const struct client *client) {
    return sender_is_paused(&client->sender);
}

struct client *admission_next(struct engine *engine) {
    struct client *best = NULL;

    list_for_each(node, &engine->runs.turns) {
        struct client *client = container_of(node, struct client, in_turns);

        if (is_behind(client))
            continue;
        if (engine->runs.memory_budget && client->passed >= engine->runs.memory_budget)
            return has_room(client) ? client : NULL;
        if (has_room(client) && (!best || client->memory_reserved < best->memory_reserved))
            best = client;
    }
    return best;
}

/* It has been given that much memory: clients that had less, and found no room, were passed over.
 */
static void note_passed(struct engine *engine, const struct client *served, uint64_t memory) {
    list_for_each(node, &engine->runs.turns) {
        struct client *client = container_of(node, struct client, in_turns);

        if (client != served && client->memory_reserved <= served->memory_reserved &&
            !is_behind(client) && !has_room(client))
            client->passed += memory;
    }
}

/* Those before it in its queue had no room. */
static void note_passed_before(struct run *run, uint64_t memory) {
    struct client *client = run->admission.queued_at;

    list_for_each(node, &client->queue) {
        if (node == &run->in_queue)
            return;
        container_of(node, struct run, in_queue)->admission.passed += memory;
    }
}

void admission_start(struct run *run) {
    struct engine *engine = run->engine;
    struct client *client = run->client;
    const uint64_t memory = run->profile->policy->max_memory_bytes;

    note_passed_before(run, memory);
    note_passed(engine, client, memory);
    client->passed = 0;
    admission_leave(run);
    engine->runs.n_queued--;
    engine->runs.memory_reserved += memory;
    engine->runs.n_running++;
    run->admission.reserved = true;
    charge(run);
    if (!list_empty(&client->queue)) {
        list_remove(&client->in_turns);
        list_add_tail(&engine->runs.turns, &client->in_turns);
    }
}

void admission_end(struct run *run) {
    struct engine *engine = run->engine;

    if (!run->admission.reserved)
        return;
    run->admission.reserved = false;
    uncharge(run);
    engine->runs.memory_reserved -= run->profile->policy->max_memory_bytes;
    engine->runs.n_running--;
}

void admission_move(struct run *run, struct client *to) {
    const bool is_queued = run->admission.queued_at, is_charged = run->admission.charged_to;

    if (to && is_queued)
        admission_leave(run);
    admission_unhold(run);
    uncharge(run);
    run->client = to;
    if (!to)
        return; /* run_fail takes it from its queue */
    hold(run);
    if (is_charged)
        charge(run);
    if (is_queued)
        admission_join(run);
}

void admission_session(struct engine *engine, uint64_t *own, uint64_t memory) {
    engine->sessions.memory_reserved += memory - *own;
    *own = memory;
}
