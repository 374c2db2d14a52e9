/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usage of a slot, and whether it ran out of memory.
 *
 * The files of a slot stay open, since a command reads them when it begins and when it ends. A slot
 * that rests opens them for each reading.
 */
#include "sys/cgroup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"

static const struct slot_file_row {
    enum controller controller;
    const char *v1, *v2; /* NULL: not there; on v2 memory.events serves for two */
    int flags;
    bool required;
} slot_files[SLOT_FILES] = {
    [FILE_MEMORY_NOW] = { MEMORY, "memory.usage_in_bytes", "memory.current", O_RDONLY, true },
    [FILE_MEMORY_PEAK] = { MEMORY, "memory.max_usage_in_bytes", "memory.peak", O_RDWR,
        false }, /* v2: 5.19, writable from 6.12 */
    [FILE_MEMORY_HITS] = { MEMORY, "memory.failcnt", NULL, O_RDONLY, false },
    [FILE_OOM] = { MEMORY, "memory.oom_control", "memory.events", O_RDONLY, true },
    [FILE_CPU] = { CPUACCT, "cpuacct.usage", "cpu.stat", O_RDONLY, false },
    [FILE_PIDS_NOW] = { PIDS, "pids.current", "pids.current", O_RDONLY, true },
};

/* ---- out of memory ---- */

/*
 * Registers an eventfd that the kernel signals when the group is out of memory: "<eventfd>
 * <memory.oom_control>" to cgroup.event_control. When a group is out of memory, the kernel signals
 * all groups below it before it kills. Our own directory is never charged. So the signals that a
 * slot received beyond those of its parent directory concern the slot itself.
 */
static int arm_oom_eventfd(int engine_fd, const char *group, int control, int *ret_fd) {
    auto_close int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    char path[96], text[32];
    int r;

    if (fd < 0)
        return -errno;
    snprintf(path, sizeof(path), "%s/cgroup.event_control", group);
    snprintf(text, sizeof(text), "%d %d", fd, control);
    r = cgroup_write_at(engine_fd, path, text);
    if (r == -ENOENT)
        return 0; /* a later kernel without the interface: oom_kills still counts */
    if (r < 0)
        return r;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static uint64_t read_count(int eventfd) {
    uint64_t count;

    return eventfd >= 0 && read(eventfd, &count, sizeof(count)) == (ssize_t)sizeof(count) ? count
                                                                                          : 0;
}

static uint64_t count_above(struct cgroup_root *root) {
    return root->n_oom_above += read_count(root->oom_fd);
}

static int arm_root(struct cgroup_root *root, int engine_fd) {
    auto_close int control = openat(engine_fd, "memory.oom_control", O_RDONLY | O_CLOEXEC);

    return control < 0 ? -errno : arm_oom_eventfd(engine_fd, ".", control, &root->oom_fd);
}

static int arm_slot(struct cgroup_slot *slot) {
    struct cgroup_root *root = slot->root;
    const int engine_fd = root->hierarchies[root->where[MEMORY]].engine_fd;
    int r = root->oom_fd < 0 ? arm_root(root, engine_fd) : 0;

    slot->n_oom_above = count_above(root);
    return r < 0 ? r : arm_oom_eventfd(engine_fd, slot->name, slot->files[FILE_OOM], &slot->oom_fd);
}

int cgroup_slot_oom_fd(const struct cgroup_slot *slot) {
    return slot->oom_fd >= 0 ? slot->oom_fd : -1;
}

uint32_t cgroup_slot_oom_events(const struct cgroup_slot *slot) {
    return slot->root->backend == CGROUP_V2 ? EPOLLPRI : EPOLLIN;
}

bool cgroup_slot_hear_oom(struct cgroup_slot *slot) {
    uint64_t n = slot->n_own_oom;
    char text[1024];

    if (slot->root->backend == CGROUP_V1) {
        slot->n_oom += read_count(slot->oom_fd);
        const uint64_t above = count_above(slot->root) - slot->n_oom_above;
        n = slot->n_oom > above ? slot->n_oom - above : 0;
    } else if (cgroup_read_fd(slot->files[FILE_OOM], text, sizeof(text)) > 0) {
        n = slot->n_oom = cgroup_keyed_value(text, "oom");
    }
    const bool is_new = n > slot->n_own_oom;
    slot->n_own_oom = MAX(slot->n_own_oom, n);
    return is_new;
}

/* ---- open files ---- */

static int open_readings(struct cgroup_slot *slot, size_t first, size_t last) {
    struct cgroup_root *root = slot->root;

    for (size_t i = first; i <= last; i++) {
        const struct slot_file_row *row = &slot_files[i];
        const char *name = root->backend == CGROUP_V1 ? row->v1 : row->v2;
        char path[96];
        int at;

        if (name == NULL || slot->files[i] >= 0 || root->where[row->controller] < 0 ||
            !(slot->members & 1u << root->where[row->controller]))
            continue;
        at = root->hierarchies[root->where[row->controller]].engine_fd;
        snprintf(path, sizeof(path), "%s/%s", slot->name, name);
        slot->files[i] = openat(at, path, row->flags | O_CLOEXEC);
        if (slot->files[i] >= 0 && i == FILE_MEMORY_PEAK)
            slot->peak_resets = true;
        else if (slot->files[i] < 0 && errno == EACCES && i == FILE_MEMORY_PEAK)
            slot->files[i] = openat(at, path, O_RDONLY | O_CLOEXEC);
        if (slot->files[i] < 0 && (errno != ENOENT || row->required))
            return -errno;
    }
    return 0;
}

static int open_all_readings(struct cgroup_slot *slot) {
    return open_readings(slot, 0, SLOT_FILES - 1);
}

int cgroup_slot_open_files(struct cgroup_slot *slot) {
    struct cgroup_root *root = slot->root;
    int r = slot->resting ? open_readings(slot, FILE_OOM, FILE_OOM) : open_all_readings(slot);

    if (r < 0 || root->backend == CGROUP_V1)
        return r < 0 ? r : arm_slot(slot);
    slot->dir_fd =
        openat(root->hierarchies[0].engine_fd, slot->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slot->dir_fd < 0)
        return -errno;
    slot->oom_fd = slot->files[FILE_OOM];
    return 0;
}

void cgroup_slot_rest(struct cgroup_slot *slot) {
    slot->resting = true;
    for (size_t i = 0; i < SLOT_FILES; i++)
        if (slot->root->backend == CGROUP_V1 || i != FILE_OOM) /* v2: oom_fd is that */
            close_fd(&slot->files[i]);
}

/* ---- usage ---- */

/* How often the memory limit was met, and the kernel killed for it, since the making of the group.
 */
static int read_hits(struct cgroup_slot *slot, struct cgroup_usage *u, bool kills) {
    bool v2 = slot->root->backend == CGROUP_V2;
    uint64_t value = 0;
    char text[1024];
    int r;

    if (kills || v2) {
        r = (int)cgroup_read_fd(slot->files[FILE_OOM], text, sizeof(text));
        if (r < 0)
            return r;
        u->oom_kills = (uint32_t)cgroup_keyed_value(text, "oom_kill");
    }
    if (v2)
        u->memory_limit_hits = (uint32_t)cgroup_keyed_value(text, "max");
    else if (slot->files[FILE_MEMORY_HITS] >= 0 &&
             cgroup_read_u64(slot->files[FILE_MEMORY_HITS], &value) == 0)
        u->memory_limit_hits = (uint32_t)value;
    return 0;
}

/* Reads the counts that a reset of the kernel's files does not clear. */
static int read_counts(struct cgroup_slot *slot, struct cgroup_usage *u) {
    char text[1024];
    int r;

    *u = (struct cgroup_usage){ 0 };
    r = cgroup_read_u64(slot->files[FILE_MEMORY_NOW], &u->memory_now);
    if (r == 0)
        r = read_hits(slot, u, true);
    if (r < 0)
        return r;
    if (slot->files[FILE_CPU] >= 0) {
        if (slot->root->backend != CGROUP_V2)
            (void)cgroup_read_u64(slot->files[FILE_CPU], &u->cpu_ns);
        else if (cgroup_read_fd(slot->files[FILE_CPU], text, sizeof(text)) > 0)
            u->cpu_ns = cgroup_keyed_value(text, "usage_usec") * 1000;
    }
    return 0;
}

/* The peak in bytes, and at least the present use. */
static uint64_t read_peak(struct cgroup_slot *slot, uint64_t now) {
    uint64_t value = 0;

    return slot->files[FILE_MEMORY_PEAK] >= 0 &&
                   cgroup_read_u64(slot->files[FILE_MEMORY_PEAK], &value) == 0
               ? MAX(value, now)
               : now;
}

/* Memory that the previous user left charged is not this user's. But once the limit was reached,
 * the kernel has reclaimed it, and the whole peak is this user's. */
static uint64_t own_peak(const struct cgroup_slot *slot, uint64_t peak, uint32_t limit_hits) {
    if (limit_hits > 0)
        return peak;
    return peak > slot->base.memory_now ? peak - slot->base.memory_now : 0;
}

int cgroup_slot_usage(struct cgroup_slot *slot, struct cgroup_usage *ret_usage) {
    struct cgroup_usage u;
    uint64_t processes = 0;
    int r = slot->resting ? open_all_readings(slot) : 0;

    if (r == 0)
        r = read_counts(slot, &u);
    if (r == 0)
        r = cgroup_read_u64(slot->files[FILE_PIDS_NOW], &processes);
    if (r == 0)
        u.memory_peak = read_peak(slot, u.memory_now);
    if (slot->resting)
        cgroup_slot_rest(slot);
    if (r < 0)
        return r;
    u.processes_now = (uint32_t)processes;
    u.cpu_ns -= slot->base.cpu_ns;
    u.oom_kills -= slot->base.oom_kills;
    u.memory_limit_hits -= slot->base.memory_limit_hits;
    /* A peak that cannot be reset (v2 before 6.12) is the predecessor's until it is passed. */
    if (!slot->peak_resets && slot->base.memory_peak > 0 && u.memory_peak <= slot->base.memory_peak)
        u.memory_peak = u.memory_now;
    u.memory_peak = own_peak(slot, u.memory_peak, u.memory_limit_hits);
    *ret_usage = u;
    return 0;
}

int cgroup_slot_peak(struct cgroup_slot *slot, uint64_t *ret_bytes) {
    struct cgroup_usage u = { 0 };
    uint64_t peak;
    int r;

    if (!slot->peak_resets || slot->resting) {
        r = cgroup_slot_usage(slot, &u);
        if (r == 0)
            *ret_bytes = u.memory_peak;
        return r;
    }
    r = cgroup_read_u64(slot->files[FILE_MEMORY_PEAK], &peak);
    if (r == 0)
        r = read_hits(slot, &u, false);
    if (r == 0)
        *ret_bytes = own_peak(slot, peak, u.memory_limit_hits - slot->base.memory_limit_hits);
    return r;
}

int cgroup_slot_memory_now(struct cgroup_slot *slot, uint64_t *ret_bytes) {
    int r = slot->resting ? open_readings(slot, FILE_MEMORY_NOW, FILE_MEMORY_NOW) : 0;

    if (r == 0)
        r = cgroup_read_u64(slot->files[FILE_MEMORY_NOW], ret_bytes);
    if (slot->resting)
        cgroup_slot_rest(slot);
    return r;
}

int cgroup_slot_reset(struct cgroup_slot *slot, uint64_t max_bytes) {
    int r = slot->resting ? open_all_readings(slot) : 0;

    if (r < 0)
        return r;
    slot->resting = false;
    if (slot->peak_resets && pwrite(slot->files[FILE_MEMORY_PEAK], "0\n", 2, 0) < 0)
        slot->peak_resets = false;
    (void)cgroup_slot_hear_oom(slot);
    r = read_counts(slot, &slot->base);
    if (r == 0 && !slot->peak_resets)
        slot->base.memory_peak = read_peak(slot, slot->base.memory_now);
    return r == 0 && slot->base.memory_now > max_bytes ? -EBUSY : r;
}
