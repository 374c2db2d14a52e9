/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the limits of control groups leave free.
 */
#include "sys/cgroup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The names of v1 and v2. Cached `files` can be reclaimed. */
static const struct memory_files {
    const char *controller, *mount, *limit, *usage, *files[2];
} memory_files[] = {
    { "memory", CGROUP_MOUNT "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        { "total_active_file", "total_inactive_file" } },
    { "", CGROUP_MOUNT, "memory.max", "memory.current", { "active_file", "inactive_file" } },
};

static uint64_t left_in(const struct memory_files *names, int group) {
    char text[8192];
    uint64_t limit, used;
    auto_close int limit_fd = openat(group, names->limit, O_RDONLY | O_CLOEXEC),
                   usage_fd = openat(group, names->usage, O_RDONLY | O_CLOEXEC);

    if (limit_fd < 0 || usage_fd < 0 || cgroup_read_u64(limit_fd, &limit) < 0 ||
        cgroup_read_u64(usage_fd, &used) < 0)
        return UINT64_MAX; /* "max", or the uppermost group of v2 */
    for (size_t i = 0; i < ARRAY_SIZE(names->files) &&
                       cgroup_read_at(group, "memory.stat", text, sizeof(text)) > 0;
         i++)
        used -= MIN(used, cgroup_keyed_value(text, names->files[i]));
    return limit > used ? limit - used : 0;
}

uint64_t cgroup_memory_left(void) {
    char cgroups[8192], path[CGROUP_MAX_PATH];
    uint64_t left = UINT64_MAX;

    if (cgroup_read_at(AT_FDCWD, "/proc/self/cgroup", cgroups, sizeof(cgroups)) < 0)
        return left;
    for (size_t i = 0; i < ARRAY_SIZE(memory_files); i++) {
        const struct memory_files *names = &memory_files[i];
        const size_t top =
            cgroup_own_path(cgroups, names->controller, names->mount, path, sizeof(path));

        for (; top; *strrchr(path, '/') = '\0') {
            auto_close int group = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

            if (group >= 0)
                left = MIN(left, left_in(names, group));
            if (strlen(path) <= top)
                break;
        }
    }
    return left;
}

bool cgroup_slot_is_full(const struct cgroup_slot *slot) {
    const struct cgroup_root *root = slot->root;
    auto_close int group = root->where[MEMORY] < 0
                               ? -EBADF
                               : openat(root->hierarchies[root->where[MEMORY]].engine_fd,
                                     slot->name, O_PATH | O_DIRECTORY | O_CLOEXEC);

    return group < 0 || left_in(&memory_files[0], group) <= slot->memory_limit / 16;
}
