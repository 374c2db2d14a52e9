/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits for whole sandboxes through control groups. One interface serves cgroup v1 and v2.
 *
 * A `cgroup_root` is the place in which this process may create groups: its own position in the
 * hierarchy, else an ancestor, else the top. It contains one directory per engine, "rollbox-<pid
 * namespace>-<pid>-<start time>", created with the first slot. The name tells a later engine
 * whether that engine is dead, so that its groups can be removed. A `cgroup_slot` is one group in
 * each hierarchy, with limits and open files.
 *
 * v1: moving a process takes the kernel up to 15 ms, because it waits for an RCU grace period,
 * unless another move came just before. So slots are created in batches, a launcher is moved into
 * each with cgroup_slot_attach, and slots are reused (cgroup_slot_reset). A process forked by that
 * launcher is in the group at once.
 *
 * v2: a child is cloned into cgroup_slot_fd with CLONE_INTO_CGROUP. Where a container's seccomp
 * profile forbids clone3, the child moves itself as on v1, which takes milliseconds there.
 *
 * Only cgroup_root_open and cgroup_slot_new allocate memory. All functions return 0 or -errno. Not
 * thread-safe: each root is used by one thread.
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
    uint32_t processes;    /* tasks: threads and an attached launcher count; 0: no limit */
    uint32_t cpu_milli;    /* thousandths of a CPU; 0: no limit */
};

struct cgroup_usage {
    uint64_t memory_now; /* bytes, with kernel memory and page cache; the kernel counts in batches
                            of 64 pages per CPU */
    uint64_t memory_peak;
    uint64_t cpu_ns;        /* 0 on v1 without CPU time */
    uint32_t processes_now; /* tasks, attached launcher included */
    uint32_t oom_kills; /* processes of this group that the OOM killer ended, for the group's limit
                           or for the host's */
    uint32_t memory_limit_hits; /* how often the group reached its limit, also if page cache was
                                   reclaimed in time */
};

/* The controllers that a root is for. Each v1 hierarchy costs every group about 0.1 ms, so
 * controllers that no policy needs are left out. On v2 all controllers come together. If there is a
 * cpu controller, every group uses it with the kernel's normal weight. Without it, a sandbox would
 * get more CPU time by having more processes or sessions. */
enum cgroup_use { CGROUP_LIMITS, CGROUP_LIMITS_CPU_TIME_AND_FREEZER };

/* The memory, in bytes, that the limits of our own groups and their ancestors leave free.
 * Reclaimable page cache counts as free. UINT64_MAX: no limit. */
uint64_t cgroup_memory_left(void);

/* Finds a place for groups. Creates no group, with one exception: on v2, if this process is alone
 * in a cgroup delegated to it, it moves itself into a child group. A v2 group that has members
 * cannot have children with controllers. If there is no place, or `features` masks cgroup_v1 and
 * cgroup_v2, the call succeeds with a root of CGROUP_NONE, whose slots fail with -EOPNOTSUPP.
 * Errors: -ENOMEM, or the errno of opening a file. The caller frees *ret_root. */
int cgroup_root_open(
    const struct features *features, enum cgroup_use use, struct cgroup_root **ret_root);

/* Removes the engine's directories (free the slots first). 0, or -errno if one is not empty yet. */
int cgroup_root_remove(struct cgroup_root *root);

/* Removes the engine's directories where possible and frees the root. Takes and returns NULL. */
struct cgroup_root *cgroup_root_free(struct cgroup_root *root);

enum cgroup_backend cgroup_root_backend(const struct cgroup_root *root);
const char *cgroup_backend_name(enum cgroup_backend backend); /* "none", "v1", "v2" */
bool cgroup_root_has_cpu(const struct cgroup_root *root); /* whether cpu_milli can be enforced */
bool cgroup_root_has_freezer(const struct cgroup_root *root);

/* Tries again to remove groups that were busy when their slots were freed. Returns how many remain.
 * Costs almost nothing if there are none. */
int cgroup_root_tidy(struct cgroup_root *root);

/* The absolute paths of this engine's directories, for a janitor that removes them if the engine is
 * killed. They are known from cgroup_root_open on, before the directories exist. NULL-terminated,
 * owned by the root. */
const char *const *cgroup_paths(const struct cgroup_root *root);

/* Kills all processes in those directories and removes the directories with all groups below. For
 * the janitor that outlives the engine. Blocks for up to `timeout_ms` until the members have ended.
 * Returns 0 or -EBUSY. Needs no cgroup_root. */
int cgroup_paths_remove(const char *const *paths, int timeout_ms);

/* Does the same for directories of dead engines, whose pid and start time match no process. Returns
 * the number of engines whose directories were removed. */
int cgroup_sweep(const struct cgroup_root *root);

/* Whether a dead engine left directories for cgroup_sweep. */
bool cgroup_any_leftover(const struct cgroup_root *root);

/* A new group with limits (NULL: none). `id` is unique among the slots of this root. With `rests`
 * the slot holds few descriptors, as after cgroup_slot_rest. Errors: -EOPNOTSUPP, -ENOSPC, -EMFILE,
 * -EEXIST, ... The caller frees the slot before the root. */
int cgroup_slot_new(struct cgroup_root *root, unsigned id, const struct cgroup_limits *limits,
    bool rests, struct cgroup_slot **ret_slot);

/* Removes the group if it is empty, else leaves it on the root's list for cgroup_root_tidy. Kills
 * nothing. Takes and returns NULL. */
struct cgroup_slot *cgroup_slot_free(struct cgroup_slot *slot);

/* Changes the limits. -EBUSY if more memory is in use than the new limit and the kernel cannot
 * reclaim it. */
int cgroup_slot_limit(struct cgroup_slot *slot, const struct cgroup_limits *limits);

/* Moves a process with all its threads into the group. -ESRCH if it has ended. */
int cgroup_slot_attach(struct cgroup_slot *slot, pid_t pid);

/* v2 as root: moves a launcher to a group from which it may clone processes into slots. Otherwise,
 * and for a launcher that has ended, does nothing. */
int cgroup_launcher_attach(struct cgroup_root *root, pid_t pid);

/* Opens the files through which a single-threaded process moves itself into the group, by writing
 * "0". v1: `tasks`; only such a move takes no global lock and waits for no grace period (10 us per
 * hierarchy). v2 without clone3: `cgroup.procs`. Returns the number of descriptors, which the
 * caller closes; 0 if cgroup_slot_fd is to be used; or -errno. */
#define CGROUP_MAX_ENTRIES 5
int cgroup_slot_open_entries(const struct cgroup_slot *slot, int fds[CGROUP_MAX_ENTRIES]);

/* v2: the group's directory, for CLONE_INTO_CGROUP. The slot owns it. -1 on v1, and without
 * clone3. */
int cgroup_slot_fd(const struct cgroup_slot *slot);

/* A descriptor, owned by the slot, that signals activity of the OOM killer. v1: an eventfd
 * (EPOLLIN, to be read). v2: memory.events (EPOLLPRI, reset by cgroup_slot_usage); other memory
 * events raise it, too, so check oom_kills. -1 if there is none. The counts outlive the processes:
 * cgroup_slot_usage is right after the processes have been reaped. */
int cgroup_slot_oom_fd(const struct cgroup_slot *slot);
uint32_t cgroup_slot_oom_events(
    const struct cgroup_slot *slot); /* the EPOLL* events to wait for on that descriptor */

/* Reads that descriptor. Returns whether the group itself reached its limit with nothing
 * reclaimable since the last call. False means that an ancestor's limit was reached, or (v2) that
 * nothing happened. The kernel signals before it kills, so a call made after a process was killed
 * for the limit always sees it. */
bool cgroup_slot_hear_oom(struct cgroup_slot *slot);

/* Usage since the last reset. Takes some microseconds, one read per file. */
/* Keeps as few descriptors open as possible until the next reset, for a group that is rarely
 * read. */
void cgroup_slot_rest(struct cgroup_slot *slot);
int cgroup_slot_usage(struct cgroup_slot *slot, struct cgroup_usage *ret_usage);

/* Single numbers of the usage. */
int cgroup_slot_peak(struct cgroup_slot *slot, uint64_t *ret_bytes);
/* v1: whether the group is close to its limit even if all its page cache were reclaimed. */
bool cgroup_slot_is_full(const struct cgroup_slot *slot);
int cgroup_slot_memory_now(struct cgroup_slot *slot, uint64_t *ret_bytes);

/* Prepares a slot for its next user: peaks and counts start again. The processes of the last user
 * have ended; a launcher may stay. Page cache that they left stays charged until it is reclaimed,
 * and the new peak excludes it. On v2 before Linux 6.12 a peak cannot be reset, and memory_peak is
 * the present use; creating a new slot is better there, and cheap. -EBUSY if more than max_bytes
 * stay charged; the slot must not be used then. */
int cgroup_slot_reset(struct cgroup_slot *slot, uint64_t max_bytes);

/* cgroup_slot_freeze stops all members and waits up to a second until they are stopped. -ETIMEDOUT
 * (the members continue), -EOPNOTSUPP (no freezer). An attached launcher is frozen, too. */
int cgroup_slot_freeze(struct cgroup_slot *slot);
int cgroup_slot_thaw(struct cgroup_slot *slot);

/* Sends SIGKILL to all members, including processes that are forked meanwhile. Does not wait for
 * their end. */
int cgroup_slot_kill(struct cgroup_slot *slot);

#endif
