/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place for an engine's control groups: cgroup_root_open.
 *
 * v1: the groups of the memory, pids, cpu, cpuacct and freezer controllers at their usual mount
 * points. v2: the nearest group, from our own upwards, that delegates memory and pids.
 */
#include "sys/cgroup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/proc.h"
#include "sys/uapi.h"

static const char *const controller_names[CONTROLLERS] = {
    [MEMORY] = "memory",
    [PIDS] = "pids",
    [CPU] = "cpu",
    [CPUACCT] = "cpuacct",
    [FREEZER] = "freezer",
};

static bool is_type(int fd, long magic) {
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && fs.f_type == magic;
}

/* Our position in the hierarchy of a controller ("" for v2's) as a string inside `cgroups`, the
 * text of /proc/self/cgroup; lines are "number:controllers:path". NULL if there is none. `copy`
 * takes it. */
static bool own_position(const char *cgroups, const char *controller, char *copy, size_t size) {
    for (const char *line = cgroups; *line != '\0';) {
        const char *end = strchrnul(line, '\n');
        const char *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list != NULL ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;

        if (path != NULL && cgroup_has_word(list + 1, controller, ',', ':')) {
            size_t length = (size_t)(end - path - 1);

            if (length >= size || length == 0 || path[1] != '/')
                return false;
            memcpy(copy, path + 1, length);
            copy[length] = '\0';
            return true;
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return false;
}

size_t cgroup_own_path(
    const char *cgroups, const char *controller, const char *mount, char *path, size_t size) {
    char position[2048];
    const size_t top = strlen(mount);

    if (!own_position(cgroups, controller, position, sizeof(position)))
        return 0;
    snprintf(path, size, "%s%s", mount, strcmp(position, "/") == 0 ? "" : position);
    if (access(path, F_OK) < 0)
        path[top] = '\0';
    return top;
}

static bool may_write(int dir_fd, const char *path) {
    return faccessat(dir_fd, path, W_OK, AT_EACCESS) == 0;
}

static int add_path(struct cgroup_root *root, const char *parent, const char *suffix) {
    if (asprintf(&root->paths[root->n_paths], "%s%s%s%s", parent,
            strcmp(parent, "/") == 0 ? "" : "/", root->name, suffix) < 0) {
        root->paths[root->n_paths] = NULL;
        return -ENOMEM;
    }
    root->n_paths++;
    return 0;
}

static int add_hierarchy(
    struct cgroup_root *root, int take_fd, const char *path, const struct stat *st) {
    auto_close int fd = take_fd;
    int r = add_path(root, path, "");

    if (r < 0)
        return r;
    root->hierarchies[root->n_hierarchies++] =
        (struct hierarchy){ .parent_fd = TAKE_FD(fd), .engine_fd = -EBADF, .device = st->st_dev };
    return 0;
}

void cgroup_root_drop_hierarchies(struct cgroup_root *root) {
    for (size_t i = 0; i < root->n_hierarchies; i++) {
        close_fd(&root->hierarchies[i].parent_fd);
        close_fd(&root->hierarchies[i].engine_fd);
    }
    for (size_t i = 0; i < root->n_paths; i++) {
        free(root->paths[i]);
        root->paths[i] = NULL;
    }
    for (size_t i = 0; i < CONTROLLERS; i++)
        root->where[i] = -1;
    root->n_hierarchies = root->n_paths = 0;
}

/* Finds one v1 controller at its usual mount point: at our own position, or at the top if a
 * container sees another part of the tree. A missing controller is not an error. */
static int find_v1_controller(
    struct cgroup_root *root, const char *cgroups, enum controller controller) {
    char mount[64], path[CGROUP_MAX_PATH];
    auto_close int fd = -EBADF;
    struct stat st;
    int r;

    snprintf(mount, sizeof(mount), CGROUP_MOUNT "/%s", controller_names[controller]);
    if (cgroup_own_path(cgroups, controller_names[controller], mount, path, sizeof(path)) == 0)
        return 0;
    fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    for (size_t i = 0; i < root->n_hierarchies; i++)
        if (root->hierarchies[i].device == st.st_dev) { /* mounted together with one that we have */
            root->where[controller] = (int)i;
            return 0;
        }
    if (!is_type(fd, CGROUP_SUPER_MAGIC) || !may_write(fd, "."))
        return 0;
    r = add_hierarchy(root, TAKE_FD(fd), path, &st);
    if (r < 0)
        return r;
    root->where[controller] = (int)root->n_hierarchies - 1;
    return 0;
}

static bool controller_masked(const struct features *features, enum controller controller) {
    return (controller == MEMORY && !features->cgroup_memory) ||
           (controller == PIDS && !features->cgroup_pids) ||
           (controller == CPU && !features->cgroup_cpu);
}

static int find_v1(struct cgroup_root *root, const struct features *features, const char *cgroups,
    enum cgroup_use use) {
    for (enum controller c = 0; c < (use == CGROUP_LIMITS ? CPUACCT : CONTROLLERS); c++) {
        int r = controller_masked(features, c) ? 0 : find_v1_controller(root, cgroups, c);

        if (r < 0)
            return r;
        /* The other backend would have to supply the missing one of the memory and process limits.
         * It is simpler to use one backend for both. */
        if (c <= PIDS && root->where[c] < 0) {
            cgroup_root_drop_hierarchies(root);
            return 0;
        }
    }
    root->backend = CGROUP_V1;
    return 0;
}

/* The controllers, as "+memory +pids +cpu", that are both in `available` and in `features`. */
static void v2_wanted(
    const struct features *features, const char *available, char *text, size_t size) {
    text[0] = '\0';
    for (enum controller c = 0; c <= CPU; c++)
        if (!controller_masked(features, c) &&
            cgroup_has_word(available, controller_names[c], ' ', '\n'))
            snprintf(text + strlen(text), size - strlen(text), "%s+%s", text[0] != '\0' ? " " : "",
                controller_names[c]);
}

/* Whether a list has only this process and its descendants. The engine has few when it starts.
 * A process that has ended meanwhile does not count, and a pid that we cannot see is 0. */
static bool all_ours(const char *procs) {
    const char *end;

    for (const char *line = procs; *line; line = end + 1) {
        pid_t pid = (pid_t)strtol(line, NULL, 10);

        end = strchr(line, '\n');
        if (!end)
            return false; /* a list that does not fit */
        for (int generations = 0; pid != getpid(); generations++) {
            if (pid <= 1 || generations == 4)
                return false;
            pid = proc_parent(pid);
            if (pid == -ESRCH)
                break;
        }
    }
    return true;
}

/* Moves the processes of a list into the group whose cgroup.procs is `file`. */
static int move_listed(int dir_fd, const char *file, const char *procs) {
    int r = 0;

    for (const char *line = procs; r == 0 && line && *line; line = strchr(line, '\n')) {
        char text[16];

        line += *line == '\n';
        if (!*line)
            break;
        snprintf(text, sizeof(text), "%ld", strtol(line, NULL, 10));
        r = cgroup_write_at(dir_fd, file, text);
        r = r == -ESRCH ? 0 : r;
    }
    return r;
}

/* Whether groups with limits can be made in this directory: memory and pids are delegated already,
 * or no other process prevents that. */
static bool v2_usable(const struct features *features, int dir_fd, bool own, bool *ret_need_leaf,
    char *controllers, size_t size) {
    char available[512], wanted[64], procs[512];
    bool alone = false, need_leaf = false;
    int r;

    if (!may_write(dir_fd, ".") || !may_write(dir_fd, "cgroup.procs"))
        return false;
    if (cgroup_read_at(dir_fd, "cgroup.subtree_control", controllers, size) < 0)
        return false;
    if (cgroup_has_word(controllers, "memory", ' ', '\n') &&
        cgroup_has_word(controllers, "pids", ' ', '\n')) {
        *ret_need_leaf = false;
        return true;
    }
    if (cgroup_read_at(dir_fd, "cgroup.controllers", available, sizeof(available)) < 0 ||
        !may_write(dir_fd, "cgroup.subtree_control"))
        return false;
    if (!cgroup_has_word(available, "memory", ' ', '\n') ||
        !cgroup_has_word(available, "pids", ' ', '\n'))
        return false;
    v2_wanted(features, available, wanted, sizeof(wanted));
    r = cgroup_write_at(dir_fd, "cgroup.subtree_control", wanted);
    if (r == -EBUSY && own) {
        /* "No internal processes": move only our own processes. */
        alone = cgroup_read_at(dir_fd, "cgroup.procs", procs, sizeof(procs)) > 0 && all_ours(procs);
        need_leaf = alone;
    }
    if (r < 0 && !need_leaf)
        return false;
    snprintf(controllers, size, "%s", available);
    *ret_need_leaf = need_leaf;
    return true;
}

/* Moves this process and its descendants into a child of its own cgroup, so that the
 * controllers can be delegated. A process that starts meanwhile is moved by the next try. */
static int v2_make_leaf(struct cgroup_root *root, const struct features *features, int dir_fd,
    const char *path, const char *available) {
    char leaf[sizeof(root->name) + 16], file[sizeof(leaf) + 16], wanted[64], procs[512];
    int r = -EBUSY;

    snprintf(leaf, sizeof(leaf), "%s-engine", root->name);
    snprintf(file, sizeof(file), "%s/cgroup.procs", leaf);
    if (mkdirat(dir_fd, leaf, 0755) < 0)
        return -errno;
    v2_wanted(features, available, wanted, sizeof(wanted));
    for (int tries = 0; r == -EBUSY && tries < 20; tries++) {
        r = (int)cgroup_read_at(dir_fd, "cgroup.procs", procs, sizeof(procs));
        if (r < 0 || !all_ours(procs))
            break;
        r = move_listed(dir_fd, file, procs);
        if (r == 0)
            r = cgroup_write_at(dir_fd, "cgroup.subtree_control", wanted);
    }
    if (r == 0)
        return add_path(root, path, "-engine");
    if (cgroup_read_at(dir_fd, file, procs, sizeof(procs)) >= 0)
        (void)move_listed(dir_fd, "cgroup.procs", procs);
    (void)unlinkat(dir_fd, leaf, AT_REMOVEDIR);
    return r < 0 ? r : -EBUSY;
}

/* Tries our own cgroup first, then its ancestors. Takes the nearest that delegates memory and pids
 * to its children and lets us move processes there. */
static int find_v2(struct cgroup_root *root, const struct features *features, const char *cgroups) {
    char path[CGROUP_MAX_PATH], controllers[512];
    bool own = true;
    int r;

    if (!features->cgroup_memory || !features->cgroup_pids ||
        cgroup_own_path(cgroups, "", CGROUP_MOUNT, path, sizeof(path)) == 0)
        return 0;
    for (;; own = false) {
        auto_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        bool need_leaf = false;
        struct stat st;

        if (fd >= 0 && is_type(fd, CGROUP2_SUPER_MAGIC) &&
            v2_usable(features, fd, own, &need_leaf, controllers, sizeof(controllers))) {
            if (fstat(fd, &st) < 0)
                return -errno;
            if (!need_leaf || v2_make_leaf(root, features, fd, path, controllers) == 0) {
                r = add_hierarchy(root, TAKE_FD(fd), path, &st);
                if (r < 0)
                    return r;
                break;
            }
        }
        if (strlen(path) <= strlen(CGROUP_MOUNT))
            return 0;
        *strrchr(path, '/') = '\0';
    }
    root->where[MEMORY] = root->where[PIDS] = root->where[CPUACCT] = root->where[FREEZER] =
        0; /* the last two are part of every group */
    if (features->cgroup_cpu && cgroup_has_word(controllers, "cpu", ' ', '\n'))
        root->where[CPU] = 0;
    root->backend = CGROUP_V2;
    root->clones_into = features->clone3;
    root->lends = geteuid() == 0;
    return 0;
}

int cgroup_root_open(
    const struct features *features, enum cgroup_use use, struct cgroup_root **ret_root) {
    struct cgroup_root *root = calloc(1, sizeof(*root));
    int64_t start = proc_start_time(getpid());
    char cgroups[8192];
    struct stat st;
    int r = 0;

    if (root == NULL)
        return -ENOMEM;
    root->backend = CGROUP_NONE;
    list_init(&root->busy);
    cgroup_root_drop_hierarchies(root);
    root->oom_fd = -EBADF;
    if (start >= 0 && stat("/proc/self/ns/pid", &st) == 0 &&
        cgroup_read_at(AT_FDCWD, "/proc/self/cgroup", cgroups, sizeof(cgroups)) > 0) {
        root->pid_namespace = st.st_ino;
        snprintf(root->name, sizeof(root->name), "rollbox-%" PRIu64 "-%d-%" PRId64,
            root->pid_namespace, (int)getpid(), start);
        if (features->cgroup_v2)
            r = find_v2(root, features, cgroups);
        if (r == 0 && root->backend == CGROUP_NONE && features->cgroup_v1)
            r = find_v1(root, features, cgroups, use);
    }
    if (r < 0) {
        cgroup_root_drop_hierarchies(root);
        free(root);
        return r;
    }
    *ret_root = root;
    return 0;
}

enum cgroup_backend cgroup_root_backend(const struct cgroup_root *root) {
    return root->backend;
}

const char *cgroup_backend_name(enum cgroup_backend backend) {
    static const char *const names[] = {
        [CGROUP_NONE] = "none", [CGROUP_V1] = "v1", [CGROUP_V2] = "v2"
    };

    return names[backend];
}

bool cgroup_root_has_cpu(const struct cgroup_root *root) {
    return root->where[CPU] >= 0;
}

bool cgroup_root_has_freezer(const struct cgroup_root *root) {
    return root->where[FREEZER] >= 0;
}

const char *const *cgroup_paths(const struct cgroup_root *root) {
    return (const char *const *)root->paths;
}
