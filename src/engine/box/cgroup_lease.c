/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cgroup slots: one for each live box, used again by the next box of the same policy.
 *
 * Making and removing a slot takes the kernel most of a millisecond, and some hundred KiB for a
 * while. The slot of a box that has ended is kept *resting*, without the descriptors that it has at
 * work. This is done only if next to nothing is charged to it any more: files that its sandbox left
 * behind, for example a layer of a snapshot, stay charged to it.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/box/box.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"

/* A session must be able to start commands and agents when its guests have used up their
 * processes: the limit of those is RLIMIT_NPROC, to which init is not held, and the group's a
 * little more. */
#define INIT_PROCESSES 32
#define LOOK_NS                                                                                    \
    20000000 /* after a group above was out of memory: the kernel has chosen by then               \
              */
#define MAX_KEPT                                                                                   \
    128 /* of sandboxes that lived, for a second (profile_tidy): each has a descriptor or two */
#define MAX_LEFT(limit) ((limit) / 64)

/* v1 tells of memory that is short, here or above, before it kills; v2 of the kill. */
static bool tells_early(const struct cgroup_lease *slot) {
    return cgroup_slot_oom_events(slot->cgroup) & EPOLLIN;
}

static bool receives_oom(const struct cgroup_lease *slot) {
    return cgroup_slot_oom_fd(slot->cgroup) >= 0;
}

static void hear_oom(struct cgroup_lease *slot) {
    if (cgroup_slot_hear_oom(slot->cgroup))
        slot->pressure = LEASE_TOLD_OF_OWN;
}

static enum oom_cause cause_of(struct cgroup_lease *slot, const struct cgroup_usage *usage) {
    hear_oom(slot);
    return slot->pressure == LEASE_TOLD_OF_OWN || (!receives_oom(slot) && usage->memory_limit_hits)
               ? OOM_LIMIT
               : OOM_HOST;
}

bool cgroup_lease_oom_told(const struct cgroup_lease *slot) {
    struct pollfd oom = { .fd = cgroup_slot_oom_fd(slot->cgroup),
        .events = tells_early(slot) ? POLLIN : POLLPRI };

    return slot->pressure != LEASE_QUIET || !receives_oom(slot) || poll(&oom, 1, 0) != 0;
}

/* The kernel kills one process; a rollout that lost one at random is no result, so all go. */
static void end_all(struct cgroup_lease *slot, enum oom_cause cause) {
    struct box *box = slot->box;

    box->memory.met_limit = cause == OOM_LIMIT;
    if (!box_is_in_use(box))
        return;
    slot->pressure = LEASE_QUIET;
    slot->ends = false;
    box_meet_limit(box, cause == OOM_LIMIT ? BOX_LIMIT_MEMORY : BOX_LIMIT_HOST_MEMORY);
}

static bool must_end(const struct cgroup_lease *slot, const struct cgroup_usage *usage) {
    return slot->ends || usage->oom_kills > slot->known_kills;
}

/* An OOM kill was reported, and was not its own: has it lost a process? */
static void on_look(struct loop_timer *timer) {
    struct cgroup_lease *slot = container_of(timer, struct cgroup_lease, look);
    struct cgroup_usage usage;

    if (slot->box && cgroup_slot_usage(slot->cgroup, &usage) == 0 && must_end(slot, &usage))
        end_all(slot, cause_of(slot, &usage));
}

enum oom_cause cgroup_lease_oom_cause(struct cgroup_lease *slot) {
    struct cgroup_usage usage;

    if (cgroup_slot_usage(slot->cgroup, &usage) < 0 || usage.oom_kills <= slot->known_kills)
        return OOM_NONE;
    slot->known_kills = usage.oom_kills;
    return cause_of(slot, &usage);
}

void cgroup_lease_end_soon(struct cgroup_lease *slot) {
    slot->ends = true;
    (void)loop_timer_set(slot->engine->loop, &slot->look, clock_now_ns(), on_look);
}

void cgroup_lease_oom_forget(struct cgroup_lease *slot) {
    struct cgroup_usage usage;

    if (cgroup_slot_usage(slot->cgroup, &usage) == 0)
        slot->known_kills = usage.oom_kills;
}

static void on_oom(struct loop_source *source, uint32_t events) {
    struct cgroup_lease *slot = container_of(source, struct cgroup_lease, oom);
    struct cgroup_usage usage;

    (void)events;
    if (slot->pressure == LEASE_QUIET)
        slot->pressure = LEASE_TOLD;
    hear_oom(slot);
    if (!slot->box || cgroup_slot_usage(slot->cgroup, &usage) < 0)
        return;
    if (must_end(slot, &usage) || (tells_early(slot) && slot->pressure == LEASE_TOLD_OF_OWN &&
                                      cgroup_slot_is_full(slot->cgroup)))
        end_all(slot, cause_of(slot, &usage));
    else if (tells_early(slot))
        (void)loop_timer_set(slot->engine->loop, &slot->look, clock_now_ns() + LOOK_NS, on_look);
}

static int cgroup_lease_new(struct profile *profile, bool living, struct cgroup_lease **ret_slot) {
    struct engine *engine = profile->engine;
    const struct policy *policy = profile->policy;
    /* init counts, and the moment between its fork and its exec. Without a cpu controller the plan
     * limits the sandbox to whole processors. */
    struct cgroup_limits limits = { policy->max_memory_bytes,
        policy->max_processes + 1 + (living ? INIT_PROCESSES : 0),
        cgroup_root_has_cpu(engine->cgroups) ? policy->max_cpu_milli : 0 };
    struct cgroup_lease *slot = calloc(1, sizeof *slot);
    int r;

    if (!slot)
        return -ENOMEM;
    slot->engine = engine;
    slot->kind = living ? LEASE_LIVING : LEASE_ONE_RUN;
    list_init(&slot->node);
    janitor_start_soon(engine);
    r = cgroup_slot_new(engine->cgroups, engine->boxes.next_slot++, &limits, living, &slot->cgroup);
    if (r == 0)
        r = slot->n_entries = cgroup_slot_open_entries(slot->cgroup, slot->entries);
    if (r >= 0 && cgroup_slot_oom_fd(slot->cgroup) >= 0)
        r = loop_add(engine->loop, &slot->oom, cgroup_slot_oom_fd(slot->cgroup),
            cgroup_slot_oom_events(slot->cgroup), on_oom);
    if (r < 0) {
        slot->n_entries = MAX(slot->n_entries, 0);
        cgroup_lease_free(slot);
        return r;
    }
    *ret_slot = slot;
    return 0;
}

/* One that was kept of a sandbox that lived goes to work again; or goes. */
static bool enable_memory_events(struct cgroup_lease *slot, uint64_t max_bytes) {
    int r = cgroup_slot_reset(slot->cgroup, max_bytes);

    if (r == 0)
        r = slot->n_entries = cgroup_slot_open_entries(slot->cgroup, slot->entries);
    if (r < 0) {
        slot->n_entries = 0;
        cgroup_lease_free(slot);
        return false;
    }
    slot->kind = LEASE_LIVING;
    return true;
}

int cgroup_lease_get(struct profile *profile, bool living, struct cgroup_lease **ret_slot) {
    list_for_each(node, &profile->slots) {
        struct cgroup_lease *slot = container_of(node, struct cgroup_lease, node);

        if ((slot->kind != LEASE_ONE_RUN) != living)
            continue;
        if (living) {
            if (!enable_memory_events(slot, MAX_LEFT(profile->policy->max_memory_bytes)))
                continue;
            list_remove(&slot->node);
            *ret_slot = slot;
            return 0;
        }
        /* The kernel gives the memory of a torn-down tmpfs back a moment after its last process: a
         * slot that still has it would count it against the next. */
        if (cgroup_slot_reset(slot->cgroup, profile->policy->max_memory_bytes / 8) == 0) {
            list_remove(&slot->node);
            *ret_slot = slot;
            return 0;
        }
    }
    return cgroup_lease_new(profile, living, ret_slot);
}

static bool has_room(const struct profile *profile) {
    unsigned n = 0;

    list_for_each(node, &profile->slots)
        n += container_of(node, struct cgroup_lease, node)->kind != LEASE_ONE_RUN;
    return n < MAX_KEPT;
}

void cgroup_lease_put(struct profile *profile, struct cgroup_lease *slot) {
    slot->box = NULL;
    slot->pressure = LEASE_QUIET;
    slot->ends = false;
    slot->known_kills = 0;
    loop_timer_clear(slot->engine->loop, &slot->look);
    (void)cgroup_slot_hear_oom(
        slot->cgroup); /* an OOM kill of the last user is not taken for the next one's */
    if (slot->kind != LEASE_ONE_RUN && profile && has_room(profile)) {
        cgroup_lease_rest(slot);
        list_add_tail(&profile->slots, &slot->node);
    } else if (slot->kind == LEASE_ONE_RUN && profile) {
        list_add_tail(&profile->slots, &slot->node);
    } else {
        cgroup_lease_free(slot);
    }
}

/* Of a long-lived box: its init has entered, and is looked at now and then. */
void cgroup_lease_rest(struct cgroup_lease *slot) {
    slot->kind = LEASE_RESTING;
    while (slot->n_entries)
        close(slot->entries[--slot->n_entries]);
    cgroup_slot_rest(slot->cgroup);
}

struct cgroup_lease *cgroup_lease_free(struct cgroup_lease *slot) {
    if (!slot)
        return NULL;
    list_remove(&slot->node);
    loop_remove(slot->engine->loop, &slot->oom);
    for (int i = 0; i < slot->n_entries; i++)
        close(slot->entries[i]);
    if (slot->cgroup)
        cgroup_slot_free(slot->cgroup);
    free(slot);
    return NULL;
}
