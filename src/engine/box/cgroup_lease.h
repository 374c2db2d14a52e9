/* SPDX-License-Identifier: Apache-2.0 */
/* The cgroup of one box at a time (cgroup_lease.c). */
#ifndef ROLLBOX_ENGINE_BOX_CGROUP_LEASE_H
#define ROLLBOX_ENGINE_BOX_CGROUP_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "loop/loop.h"
#include "sys/cgroup.h"

struct box;
struct engine;
struct profile;

/* Why the kernel's OOM killer ended a process of a sandbox. */
enum oom_cause {
    OOM_NONE,  /* it did not */
    OOM_LIMIT, /* the sandbox met its own limit */
    OOM_HOST,  /* memory was short for all: on the host, or in a group that the engine is in */
};

/* Which sandboxes use a group. */
enum lease_kind {
    LEASE_ONE_RUN, /* of one command each */
    LEASE_LIVING,  /* of sessions */
    LEASE_RESTING, /* the same; it has no more descriptors than it needs while init runs */
};

/* Since its use began: was it told of memory that was short? */
enum lease_pressure { LEASE_QUIET, LEASE_TOLD, LEASE_TOLD_OF_OWN };

struct cgroup_lease {
    struct list node; /* profile->slots, while it is free */
    struct engine *engine;
    struct box *box; /* that uses it; NULL: it is free */
    struct cgroup_slot *cgroup;
    int entries[CGROUP_MAX_ENTRIES];
    int n_entries;
    enum lease_kind kind;
    enum lease_pressure pressure;
    bool ends; /* a process was lost, and its command told: all the others are to end, too */
    uint64_t known_kills; /* of this use of it */
    struct loop_timer look;
    struct loop_source oom;
};

/* living: for a session. 0 or -errno. */
int cgroup_lease_get(struct profile *profile, bool living, struct cgroup_lease **ret_slot);
void cgroup_lease_put(struct profile *profile, struct cgroup_lease *slot);
void cgroup_lease_rest(struct cgroup_lease *slot);
bool cgroup_lease_oom_told(const struct cgroup_lease *slot); /* there may have been kills */
/* Of kills that are not known yet. They are known from then on. */
enum oom_cause cgroup_lease_oom_cause(struct cgroup_lease *slot);
/* The owner of the box meets the limit, soon: what tells of a kill has been heard, and may not tell
 * again. */
void cgroup_lease_end_soon(struct cgroup_lease *slot);
/* All kills are known, and all ends by them already. */
void cgroup_lease_oom_forget(struct cgroup_lease *slot);
struct cgroup_lease *cgroup_lease_free(struct cgroup_lease *slot);

#endif
