/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits for whole sandboxes by cgroup, v1 or v2 behind one interface.
 *
 * A `cgroup_root` is the place where this process may create groups: its own position in the
 * hierarchy, else an ancestor or the top. Below it lies one directory for the engine, "rollbox-<pid
 * namespace>-<pid>-<start time>", made when the first slot is; the name tells a later engine that
 * its maker is dead, so the leftovers can be swept. A `cgroup_slot` is one group in each hierarchy,
 * with limits, all its files open.
 *
 * v1: moving a process costs the kernel up to 15 ms (it waits for an RCU grace period) unless
 * another move came just before, so slots are made in batches, given a launcher process by
 * cgroup_slot_attach, and reused (cgroup_slot_reset): sandboxes enter by being forked there. v2: a
 * child is cloned into cgroup_slot_fd with CLONE_INTO_CGROUP, or, where a container's profile
 * forbids clone3, moves itself as on v1, which takes milliseconds there.
 *
 * Nothing here allocates memory except cgroup_root_open and cgroup_slot_new. All functions return 0
 * or -errno. Not thread-safe: one root, one thread.
 */
#ifndef ROLLBOX_SYS_CGROUP_H
#define ROLLBOX_SYS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sys/features.h"

enum cgroup_backend { CGROUP_NONE, CGROUP_V1, CGROUP_V2 };

struct cgroup_root;
struct cgroup_slot;

struct cgroup_limits {
    uint64_t memory_bytes; /* 0: no limit. Swap is never added to it */
    uint32_t processes; /* tasks: threads count too, and so does a launcher that is attached; 0: no
                           limit */
    uint32_t cpu_milli; /* thousandths of a CPU; 0: no limit */
};

struct cgroup_usage {
    uint64_t memory_now; /* bytes, kernel memory and page cache included; the kernel counts in
                            batches of 64 pages a CPU */
    uint64_t memory_peak;
    uint64_t cpu_ns;        /* 0 on v1 without CPU time */
    uint32_t processes_now; /* tasks, attached launcher included */
    uint32_t oom_kills; /* processes that the OOM killer ended in this group, be it for the group's
                           limit or the host's need */
    uint32_t memory_limit_hits; /* times that the group's limit was reached, also where files in
                                   memory made room */
};

/* Which controllers a root is for. Each hierarchy of v1 costs every group about 0.1 ms, so those
 * that nobody asks are left out; on v2 all come together. Every group is in that of the CPUs where
 * there is one, with the kernel's normal weight, so that no sandbox gets more by having more
 * processes or sessions. */
enum cgroup_use { CGROUP_LIMITS, CGROUP_LIMITS_CPU_TIME_AND_FREEZER };

/* What the limits of memory of the groups that we are in leave of it, bytes: files that can be had
 * back are not counted as used. UINT64_MAX: there is no limit. */
uint64_t cgroup_memory_left(void);

/* Finds where groups can be made. Creates none, with one exception: on v2, if this process is alone
 * in a cgroup that is delegated to it, it moves itself into a child, since a group with members can
 * have no children with controllers. With no such place (or cgroup_v1 and cgroup_v2 both masked in
 * `features`) it succeeds with a root of CGROUP_NONE, whose slots fail with -EOPNOTSUPP. -ENOMEM,
 * or what opening failed with. The caller frees *ret_root. */
int cgroup_root_open(
    const struct features *features, enum cgroup_use use, struct cgroup_root **ret_root);

/* Removes the engine's directories (free the slots first). 0, or -errno if one is not empty yet. */
int cgroup_root_remove(struct cgroup_root *root);

/* Removes what it can, too, and frees. Takes and returns NULL. */
struct cgroup_root *cgroup_root_free(struct cgroup_root *root);

enum cgroup_backend cgroup_root_backend(const struct cgroup_root *root);
const char *cgroup_backend_name(enum cgroup_backend backend); /* "none", "v1", "v2" */
bool cgroup_root_has_cpu(const struct cgroup_root *root);     /* can cpu_milli be held? */
bool cgroup_root_has_freezer(const struct cgroup_root *root);

/* Retries to remove groups that were busy when freed. Cheap if there are none. Returns how many are
 * left. */
int cgroup_root_tidy(struct cgroup_root *root);

/* The directories (absolute) of this engine, to be removed with all below them if it is killed:
 * known from cgroup_root_open on, also before they exist. NULL-terminated, the root's. */
const char *const *cgroup_paths(const struct cgroup_root *root);

/* Kills what is in those directories and removes them, with all groups below; for the janitor that
 * outlives the engine. Blocks for up to `timeout_ms` until members are gone. 0, or -EBUSY.
 * Allocates nothing that the caller sees; needs no cgroup_root. */
int cgroup_paths_remove(const char *const *paths, int timeout_ms);

/* The same for directories of engines that are dead (pid and start time match no process). Returns
 * how many engines were swept away. */
int cgroup_sweep(const struct cgroup_root *root);

/* Is there anything to sweep away? */
bool cgroup_any_leftover(const struct cgroup_root *root);

/* A new group with limits (NULL: none). `id` is unique among the live slots of this root; `rests`:
 * as after cgroup_slot_rest. -EOPNOTSUPP, -ENOSPC, -EMFILE, -EEXIST, ... The caller frees it before
 * the root. */
int cgroup_slot_new(struct cgroup_root *root, unsigned id, const struct cgroup_limits *limits,
    bool rests, struct cgroup_slot **ret_slot);

/* Kills nothing: removes the group if it is empty; else keeps it on the root's list for
 * cgroup_root_tidy. Takes and returns NULL. */
struct cgroup_slot *cgroup_slot_free(struct cgroup_slot *slot);

/* Changes the limits. -EBUSY if more memory is in use than the new limit and cannot be reclaimed.
 */
int cgroup_slot_limit(struct cgroup_slot *slot, const struct cgroup_limits *limits);

/* Moves a process in, all its threads. -ESRCH if it is gone. */
int cgroup_slot_attach(struct cgroup_slot *slot, pid_t pid);

/* v2, run by root: moves a launcher, which is to clone processes into slots, to where it has the
 * right to. Else does nothing, as for one that has ended. */
int cgroup_launcher_attach(struct cgroup_root *root, pid_t pid);

/* Files of the slot for a single-threaded process to move itself by writing "0". v1: `tasks`; that
 * move alone takes no global lock and waits for no grace period (10 us a hierarchy). v2 without
 * clone3: `cgroup.procs`. Returns how many, the caller's to close; 0 where cgroup_slot_fd is for
 * that; -errno. */
#define CGROUP_MAX_ENTRIES 5
int cgroup_slot_open_entries(const struct cgroup_slot *slot, int fds[CGROUP_MAX_ENTRIES]);

/* v2: the directory, for CLONE_INTO_CGROUP; the slot's. -1 on v1, and without clone3. */
int cgroup_slot_fd(const struct cgroup_slot *slot);

/* A descriptor, the slot's, that tells of a use of the OOM killer: on v1 an eventfd, EPOLLIN (to be
 * read); on v2 memory.events, EPOLLPRI (read cgroup_slot_usage to re-arm). On v2 it is also raised
 * for other memory events: look at oom_kills. -1 if there is none. Counts survive the processes:
 * usage tells the truth after they are reaped. */
int cgroup_slot_oom_fd(const struct cgroup_slot *slot);
uint32_t cgroup_slot_oom_events(const struct cgroup_slot *slot); /* the EPOLL* to wait for on it */

/* Takes what that descriptor tells: has the group met its limit with nothing to be had back, since
 * the last time? Otherwise it was a group above, or (v2) there was none. The kernel says so before
 * it ends anybody, so whoever was ended for the limit is found by it whenever one asks. */
bool cgroup_slot_hear_oom(struct cgroup_slot *slot);

/* Since the last reset. A few microseconds: a read for each file. */
/* Holds as few descriptors as it can from now on, for a group that is looked at now and then only,
 * until it is reset. */
void cgroup_slot_rest(struct cgroup_slot *slot);
int cgroup_slot_usage(struct cgroup_slot *slot, struct cgroup_usage *ret_usage);

/* The same of a single number. */
int cgroup_slot_peak(struct cgroup_slot *slot, uint64_t *ret_bytes);
/* v1: next to nothing is left of its limit, even if all files in memory were forgotten. */
bool cgroup_slot_is_full(const struct cgroup_slot *slot);
int cgroup_slot_memory_now(struct cgroup_slot *slot, uint64_t *ret_bytes);

/* Between two users of a slot: peaks and counts start afresh. The last user's processes are gone (a
 * launcher may stay). Memory that they left behind (page cache) stays charged until it is
 * reclaimed, and is not counted in the new peak. On v2 before Linux 6.12 a peak below the last
 * user's is not known then, and memory_peak is the present use: make a new slot instead, which is
 * cheap there. -EBUSY, and not for use, if more than max_bytes are left charged. */
int cgroup_slot_reset(struct cgroup_slot *slot, uint64_t max_bytes);

/* Stops all members, and waits (up to a second) until they are stopped; -ETIMEDOUT (they run on),
 * -EOPNOTSUPP without a freezer. A slot with a launcher in it freezes that too. */
int cgroup_slot_freeze(struct cgroup_slot *slot);
int cgroup_slot_thaw(struct cgroup_slot *slot);

/* SIGKILL to all members, also those that fork meanwhile. Does not wait for their end. */
int cgroup_slot_kill(struct cgroup_slot *slot);

#endif
