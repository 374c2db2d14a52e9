/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: groups with limits, made in the engine's directories; the processes in them.
 *
 * A directory is made with the first slot. A group that cannot be removed yet, because a dying
 * process is still in it, stays on the root's list of busy slots.
 */
#include "sys/cgroup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define LAUNCHERS "launchers" /* v2, run by root: the group that launchers are in */
#define NO_LIMIT (UINT64_C(0x7ffffffffffff000)) /* of a v1 group without a memory limit */
#define FREEZE_TIMEOUT_NS INT64_C(1000000000)

/* The weight of one program of normal weight per CPU: the share of all sandboxes of an engine
 * against the host's programs, for any number of sandboxes. */
static int set_weights(const struct cgroup_root *root, int engine_fd) {
    const uint64_t normal = root->backend == CGROUP_V2 ? 100 : 1024,
                   most = root->backend == CGROUP_V2 ? 10000 : 262144;
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64,
        MIN(normal * (uint64_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1l), most));
    return cgroup_write_at(
        engine_fd, root->backend == CGROUP_V2 ? "cpu.weight" : "cpu.shares", text);
}

/*
 * v2: CLONE_INTO_CGROUP requires write access to cgroup.procs of the new group and of the nearest
 * common ancestor of the old and the new group. A launcher of root's engine has given up root's ids
 * by then. So these files are writable by everyone, in a directory that only root may enter. A
 * process with a descriptor of the group, such as the launcher, gets in.
 */
static int open_to_launchers(const struct cgroup_root *root, int dir_fd, const char *path) {
    return root->lends && fchmodat(dir_fd, path, 0666, 0) < 0 ? -errno : 0;
}

static int make_engine_dirs(struct cgroup_root *root) {
    for (size_t i = 0; i < root->n_hierarchies; i++) {
        struct hierarchy *h = &root->hierarchies[i];
        auto_close int fd = -EBADF;

        if (h->engine_fd >= 0)
            continue;
        if (mkdirat(h->parent_fd, root->name, root->lends ? 0700 : 0755) < 0 && errno != EEXIST)
            return -errno;
        fd = openat(h->parent_fd, root->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        if (root->backend == CGROUP_V2) {
            int r = cgroup_write_at(fd, "cgroup.subtree_control",
                root->where[CPU] >= 0 ? "+memory +pids +cpu" : "+memory +pids");

            if (r == 0)
                r = open_to_launchers(root, fd, "cgroup.procs");
            if (r < 0)
                return r;
        }
        if (root->where[CPU] == (int)i) {
            int r = set_weights(root, fd);

            if (r < 0)
                return r;
        }
        h->engine_fd = TAKE_FD(fd);
    }
    return 0;
}

/* A file of the slot that is not kept open, in the hierarchy of a controller. */
static int write_slot(const struct cgroup_slot *slot, enum controller controller, const char *file,
    const char *text) {
    const struct cgroup_root *root = slot->root;
    char path[96];

    if (root->where[controller] < 0)
        return -EOPNOTSUPP;
    snprintf(path, sizeof(path), "%s/%s", slot->name, file);
    return cgroup_write_at(root->hierarchies[root->where[controller]].engine_fd, path, text);
}

static int write_slot_u64(
    const struct cgroup_slot *slot, enum controller controller, const char *file, uint64_t value) {
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    return write_slot(slot, controller, file, text);
}

/* Swap is not added to the limit: v2 gives the group none. v1 limits memory + swap in a file of its
 * own, which must not be below the limit of memory; hence the order. Here it is a huge page more.
 * If the two were equal, the limit of memory + swap would be reached first, and some kernels do not
 * count these failures (6.18: memory.memsw.failcnt stays 0). Swappiness 0 keeps the rest out of
 * swap, and is the only means on kernels that do not account swap. */
static int limit_memory(struct cgroup_slot *slot, uint64_t bytes) {
    const uint64_t room = UINT64_C(2) << 20;
    uint64_t limit = bytes == 0 ? NO_LIMIT : MIN(bytes, NO_LIMIT);
    bool raised = limit > slot->memory_limit;
    int r = 0, r_swap = 0;

    if (limit == slot->memory_limit)
        return 0;
    if (slot->root->backend == CGROUP_V2) {
        r = bytes == 0 ? write_slot(slot, MEMORY, "memory.max", "max")
                       : write_slot_u64(slot, MEMORY, "memory.max", limit);
        if (r == 0)
            r_swap = write_slot(slot, MEMORY, "memory.swap.max", bytes == 0 ? "max" : "0");
    } else {
        uint64_t with_swap = limit > NO_LIMIT - room ? NO_LIMIT : limit + room;

        if (raised)
            r_swap = write_slot_u64(slot, MEMORY, "memory.memsw.limit_in_bytes", with_swap);
        if (r_swap == 0 || r_swap == -ENOENT)
            r = write_slot_u64(slot, MEMORY, "memory.limit_in_bytes", limit);
        if (r == 0 && !raised)
            r_swap = write_slot_u64(slot, MEMORY, "memory.memsw.limit_in_bytes", with_swap);
        if (r == 0)
            r = write_slot(slot, MEMORY, "memory.swappiness", bytes == 0 ? "60" : "0");
    }
    if (r == 0 && r_swap < 0 && r_swap != -ENOENT)
        r = r_swap;
    if (r == 0)
        slot->memory_limit = limit;
    return r;
}

static int limit_processes(struct cgroup_slot *slot, uint32_t processes) {
    return processes == 0 ? write_slot(slot, PIDS, "pids.max", "max")
                          : write_slot_u64(slot, PIDS, "pids.max", processes);
}

/* A short period keeps a throttled guest from stalling for a tenth of a second; below a millisecond
 * of quota, the least the kernel takes, it must be longer. */
static int limit_cpu(struct cgroup_slot *slot, uint32_t milli) {
    unsigned period_us = milli >= 50 ? 20000 : 1000000;
    uint64_t quota_us = (uint64_t)milli * period_us / 1000;
    char text[64];
    int r;

    if (milli == slot->cpu_milli)
        return 0;
    if (slot->root->where[CPU] < 0)
        return -EOPNOTSUPP;
    slot->cpu_milli = milli;
    if (slot->root->backend == CGROUP_V2) {
        if (milli == 0)
            return write_slot(slot, CPU, "cpu.max", "max");
        snprintf(text, sizeof(text), "%" PRIu64 " %u", quota_us, period_us);
        return write_slot(slot, CPU, "cpu.max", text);
    }
    if (milli == 0)
        return write_slot(slot, CPU, "cpu.cfs_quota_us", "-1");
    r = write_slot_u64(slot, CPU, "cpu.cfs_period_us", period_us);
    return r < 0 ? r : write_slot_u64(slot, CPU, "cpu.cfs_quota_us", quota_us);
}

int cgroup_slot_limit(struct cgroup_slot *slot, const struct cgroup_limits *limits) {
    int r = limit_memory(slot, limits->memory_bytes);

    if (r == 0)
        r = limit_processes(slot, limits->processes);
    return r < 0 ? r : limit_cpu(slot, limits->cpu_milli);
}

int cgroup_slot_new(struct cgroup_root *root, unsigned id, const struct cgroup_limits *limits,
    bool rests, struct cgroup_slot **ret_slot) {
    struct cgroup_slot *slot;
    int r;

    if (root->backend == CGROUP_NONE)
        return -EOPNOTSUPP;
    r = make_engine_dirs(root);
    if (r < 0)
        return r;
    slot = calloc(1, sizeof(*slot));
    if (slot == NULL)
        return -ENOMEM;
    list_init(&slot->node);
    slot->root = root;
    slot->dir_fd = slot->oom_fd = -EBADF;
    slot->memory_limit = NO_LIMIT;
    slot->resting = rests;
    for (size_t i = 0; i < SLOT_FILES; i++)
        slot->files[i] = -EBADF;
    snprintf(slot->name, sizeof(slot->name), "%u-%u", id, root->serial++);
    for (size_t i = 0; i < root->n_hierarchies && r == 0; i++) {
        r = mkdirat(root->hierarchies[i].engine_fd, slot->name, 0755) < 0 ? -errno : 0;
        if (r == 0)
            slot->members |= 1u << i;
    }
    if (r == 0 && root->lends) {
        char procs[64];

        snprintf(procs, sizeof(procs), "%s/cgroup.procs", slot->name);
        r = open_to_launchers(root, root->hierarchies[0].engine_fd, procs);
    }
    if (r == 0)
        r = cgroup_slot_open_files(slot);
    if (r == 0 && limits != NULL)
        r = cgroup_slot_limit(slot, limits);
    if (r == 0 && rests)
        cgroup_slot_rest(slot);
    if (r < 0) {
        cgroup_slot_free(slot);
        return r;
    }
    *ret_slot = slot;
    return 0;
}

/* True if the group is gone from all hierarchies. */
static bool remove_slot(struct cgroup_slot *slot) {
    bool gone = true;

    for (size_t i = 0; i < slot->root->n_hierarchies; i++)
        if (slot->members & 1u << i &&
            unlinkat(slot->root->hierarchies[i].engine_fd, slot->name, AT_REMOVEDIR) < 0 &&
            errno != ENOENT)
            gone = false;
    return gone;
}

struct cgroup_slot *cgroup_slot_free(struct cgroup_slot *slot) {
    if (slot == NULL)
        return NULL;
    if (slot->root->backend == CGROUP_V1)
        close_fd(&slot->oom_fd);
    for (size_t i = 0; i < SLOT_FILES; i++)
        close_fd(&slot->files[i]);
    close_fd(&slot->dir_fd);
    if (remove_slot(slot))
        free(slot);
    else
        list_add_tail(&slot->root->busy, &slot->node);
    return NULL;
}

int cgroup_root_tidy(struct cgroup_root *root) {
    int left = 0;

    list_for_each(node, &root->busy) {
        struct cgroup_slot *slot = container_of(node, struct cgroup_slot, node);

        if (remove_slot(slot)) {
            list_remove(&slot->node);
            free(slot);
        } else
            left++;
    }
    return left;
}

int cgroup_root_remove(struct cgroup_root *root) {
    int r = cgroup_root_tidy(root) > 0 ? -EBUSY : 0;

    if (root->lends && root->hierarchies[0].engine_fd >= 0)
        (void)unlinkat(root->hierarchies[0].engine_fd, LAUNCHERS, AT_REMOVEDIR);
    for (size_t i = 0; i < root->n_hierarchies && r == 0; i++)
        if (root->hierarchies[i].engine_fd >= 0 &&
            unlinkat(root->hierarchies[i].parent_fd, root->name, AT_REMOVEDIR) < 0 &&
            errno != ENOENT)
            r = -errno;
    return r;
}

struct cgroup_root *cgroup_root_free(struct cgroup_root *root) {
    if (root == NULL)
        return NULL;
    (void)cgroup_root_remove(root);
    list_for_each(node, &root->busy) {
        list_remove(node);
        free(container_of(node, struct cgroup_slot, node));
    }
    close_fd(&root->oom_fd);
    cgroup_root_drop_hierarchies(root);
    free(root);
    return NULL;
}

int cgroup_slot_attach(struct cgroup_slot *slot, pid_t pid) {
    struct cgroup_root *root = slot->root;
    char path[96], text[16];

    snprintf(path, sizeof(path), "%s/cgroup.procs", slot->name);
    snprintf(text, sizeof(text), "%d", (int)pid);
    for (size_t i = 0; i < root->n_hierarchies; i++) {
        int r = slot->members & 1u << i
                    ? cgroup_write_at(root->hierarchies[i].engine_fd, path, text)
                    : 0;

        if (r < 0)
            return r;
    }
    return 0;
}

int cgroup_launcher_attach(struct cgroup_root *root, pid_t pid) {
    char text[16];
    int r;

    if (!root->lends || !root->clones_into)
        return 0;
    r = make_engine_dirs(root);
    if (r < 0)
        return r;
    if (mkdirat(root->hierarchies[0].engine_fd, LAUNCHERS, 0755) < 0 && errno != EEXIST)
        return -errno;
    snprintf(text, sizeof(text), "%d", (int)pid);
    r = cgroup_write_at(root->hierarchies[0].engine_fd, LAUNCHERS "/cgroup.procs", text);
    return r == -ESRCH ? 0 : r;
}

int cgroup_slot_open_entries(const struct cgroup_slot *slot, int fds[CGROUP_MAX_ENTRIES]) {
    const struct cgroup_root *root = slot->root;
    char path[96];
    int n = 0;

    if (cgroup_slot_fd(slot) >= 0)
        return 0;
    snprintf(path, sizeof(path), "%s/%s", slot->name,
        root->backend == CGROUP_V1 ? "tasks" : "cgroup.procs");
    for (size_t i = 0; i < root->n_hierarchies; i++) {
        if (!(slot->members & 1u << i))
            continue;
        fds[n] = openat(root->hierarchies[i].engine_fd, path, O_WRONLY | O_CLOEXEC);
        if (fds[n] < 0) {
            int r = -errno;
            while (n--)
                close(fds[n]);
            return r;
        }
        n++;
    }
    return n;
}

int cgroup_slot_fd(const struct cgroup_slot *slot) {
    return slot->root->backend == CGROUP_V2 && slot->root->clones_into ? slot->dir_fd : -1;
}

/* ---- freezing and killing ---- */

static bool is_frozen(const struct cgroup_slot *slot) {
    const struct cgroup_root *root = slot->root;
    bool v2 = root->backend == CGROUP_V2;
    char path[96], text[256];

    snprintf(path, sizeof(path), "%s/%s", slot->name, v2 ? "cgroup.events" : "freezer.state");
    if (cgroup_read_at(
            root->hierarchies[root->where[FREEZER]].engine_fd, path, text, sizeof(text)) < 0)
        return false;
    return v2 ? cgroup_keyed_value(text, "frozen") == 1 : strcmp(text, "FROZEN\n") == 0;
}

int cgroup_slot_freeze(struct cgroup_slot *slot) {
    int64_t deadline = clock_now_ns() + FREEZE_TIMEOUT_NS;
    bool v2 = slot->root->backend == CGROUP_V2;
    int r = v2 ? write_slot(slot, FREEZER, "cgroup.freeze", "1")
               : write_slot(slot, FREEZER, "freezer.state", "FROZEN");

    if (r < 0)
        return r;
    for (long pause_ns = 20000; !is_frozen(slot); pause_ns = MIN(pause_ns * 2, 5000000L)) {
        if (clock_now_ns() >= deadline) {
            (void)cgroup_slot_thaw(slot);
            return -ETIMEDOUT;
        }
        cgroup_sleep_ns(pause_ns);
    }
    return 0;
}

int cgroup_slot_thaw(struct cgroup_slot *slot) {
    return slot->root->backend == CGROUP_V2 ? write_slot(slot, FREEZER, "cgroup.freeze", "0")
                                            : write_slot(slot, FREEZER, "freezer.state", "THAWED");
}

/* v1: with pids.max 0 no member can fork. A child that was being forked when its parent was killed
 * is found in the next round. A killed process that is frozen dies when it is thawed. */
int cgroup_slot_kill(struct cgroup_slot *slot) {
    struct cgroup_root *root = slot->root;
    auto_close int fd = -EBADF;
    char limit[32];
    int r = 0;

    if (root->backend == CGROUP_V2 && cgroup_write_at(slot->dir_fd, "cgroup.kill", "1") == 0)
        return 0;
    fd = openat(root->hierarchies[root->where[PIDS]].engine_fd, slot->name,
        O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = (int)cgroup_read_at(fd, "pids.max", limit, sizeof(limit));
    if (r > 0)
        r = cgroup_write_at(fd, "pids.max", "0");
    if (r < 0)
        return r;
    for (int round = 0; round < 3 && r >= 0; round++)
        r = cgroup_kill_members(fd);
    (void)cgroup_write_at(fd, "pids.max", limit);
    if (root->where[FREEZER] >= 0)
        (void)cgroup_slot_thaw(slot);
    return r < 0 ? r : 0;
}
