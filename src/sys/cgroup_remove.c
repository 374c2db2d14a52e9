/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing an engine's control groups, with the processes in them: for the janitor of an engine
 * that was killed, and for an engine that finds the groups of a dead one.
 */
#include "sys/cgroup_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/proc.h"

/* Whether this process is in the group. A janitor is in the group that its engine has made. */
static bool has_self(int dir_fd) {
    char procs[4096], self[16];

    snprintf(self, sizeof(self), "%d", (int)getpid());
    return cgroup_read_at(dir_fd, "cgroup.procs", procs, sizeof(procs)) > 0 &&
           cgroup_has_word(procs, self, '\n', '\0');
}

int cgroup_kill_members(int dir_fd) {
    auto_close int fd = -EBADF;
    char text[4096 + 1];
    size_t kept = 0;
    int n_killed = 0;

    if (!has_self(dir_fd) && cgroup_write_at(dir_fd, "cgroup.kill", "1") == 0)
        return 0;
    fd = openat(dir_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (;;) {
        ssize_t n = read(fd, text + kept, sizeof(text) - 1 - kept);
        char *line = text, *end;

        if (n <= 0)
            break;
        text[kept + (size_t)n] = '\0';
        while ((end = strchr(line, '\n')) != NULL) {
            pid_t pid = (pid_t)strtol(line, NULL, 10);

            /* The kernel shows 0 for a process outside of our pid namespace. kill(0) would signal
             * our own process group. */
            if (pid > 1 && pid != getpid() && pid != getppid() && kill(pid, SIGKILL) == 0)
                n_killed++;
            line = end + 1;
        }
        kept = strlen(line);
        memmove(text, line, kept);
    }
    return n_killed;
}

/* Removes a group and its children and kills the members. -EBUSY until the dying processes are
 * gone. The depth is bounded: rollbox makes two levels, and a guest cannot make any. */
static int remove_tree(int parent_fd, const char *name, int depth) {
    auto_close int dir_fd = -EBADF;
    struct dirent *entry;
    DIR *dir;
    int copy;

    if (unlinkat(parent_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    dir_fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return errno == ENOENT ? 0 : -errno;
    (void)cgroup_kill_members(dir_fd);
    (void)cgroup_write_at(dir_fd, "freezer.state", "THAWED"); /* v1: frozen processes do not die */
    copy = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (dir == NULL) {
        close_fd(&copy);
        return -ENOMEM;
    }
    while (depth > 0 && (entry = readdir(dir)) != NULL)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            (void)remove_tree(dir_fd, entry->d_name, depth - 1);
    closedir(dir);
    /* A process cannot remove its own group. The manager of its systemd unit or a later sweep
     * removes it. */
    return unlinkat(parent_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT || has_self(dir_fd)
               ? 0
               : -errno;
}

static int remove_tree_within(int parent_fd, const char *name, int64_t deadline_ns) {
    for (long pause_ns = 200000;; pause_ns = MIN(pause_ns * 2, 20000000L)) {
        int r = remove_tree(parent_fd, name, 4);

        if (r != -EBUSY || clock_now_ns() >= deadline_ns)
            return r;
        cgroup_sleep_ns(pause_ns);
    }
}

int cgroup_paths_remove(const char *const *paths, int timeout_ms) {
    int64_t deadline = clock_now_ns() + (int64_t)timeout_ms * 1000000;
    int result = 0;

    /* Kill all first: the hierarchies contain the same processes. */
    for (size_t i = 0; paths[i] != NULL; i++)
        (void)remove_tree(AT_FDCWD, paths[i], 4);
    for (size_t i = 0; paths[i] != NULL; i++) {
        int r = remove_tree_within(AT_FDCWD, paths[i], deadline);

        if (r < 0 && result == 0)
            result = r;
    }
    return result;
}

/* Whether this is the directory of a dead engine of our pid namespace. Pids of other namespaces
 * mean nothing here. */
static bool is_leftover(const struct cgroup_root *root, const char *name) {
    uint64_t pid_namespace;
    int64_t start;
    int pid, n = 0;

    if (sscanf(name, "rollbox-%" SCNu64 "-%d-%" SCNd64 "%n", &pid_namespace, &pid, &start, &n) !=
            3 ||
        n == 0)
        return false;
    if (name[n] != '\0' && strcmp(name + n, "-engine") != 0)
        return false;
    return pid_namespace == root->pid_namespace && proc_start_time(pid) != start;
}

/* KILL kills and thaws each leftover in all hierarchies, before REMOVE waits for the first one. */
enum leftover_use { COUNT, KILL, REMOVE };

/* Counts the directories of dead engines. With REMOVE, counts those that were removed from
 * the first hierarchy. */
static int find_leftovers(const struct cgroup_root *root, enum leftover_use use) {
    int64_t deadline = use == REMOVE ? clock_now_ns() + INT64_C(2000000000) : 0;
    int n = 0;

    for (size_t i = 0; i < root->n_hierarchies; i++) {
        /* The directory is opened by path: the caller may be a fork without our descriptors. */
        auto_free char *path =
            strndup(root->paths[i], (size_t)(strrchr(root->paths[i], '/') - root->paths[i]));
        DIR *dir = path != NULL ? opendir(path) : NULL;
        struct dirent *entry;

        if (dir == NULL)
            return -errno;
        while ((entry = readdir(dir)) != NULL)
            if (entry->d_type == DT_DIR && strncmp(entry->d_name, "rollbox-", 8) == 0 &&
                is_leftover(root, entry->d_name) &&
                (use == COUNT ||
                    (remove_tree_within(dirfd(dir), entry->d_name, deadline) == 0 && i == 0)))
                n++;
        closedir(dir);
    }
    return n;
}

int cgroup_sweep(const struct cgroup_root *root) {
    int n_killed = find_leftovers(root, KILL);
    int n_removed = n_killed < 0 ? n_killed : find_leftovers(root, REMOVE);

    return n_removed < 0 ? n_removed : n_killed + n_removed;
}

bool cgroup_any_leftover(const struct cgroup_root *root) {
    return find_leftovers(root, COUNT) != 0;
}
