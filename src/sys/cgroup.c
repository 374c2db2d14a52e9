/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups: see cgroup.h for the model.
 *
 * A `hierarchy` is a mounted tree. v1 has one per controller (some share one: cpu,cpuacct); v2 has
 * one in all. All operations are relative to directory descriptors: `parent_fd` is the group that
 * was found, and `engine_fd` is our directory in it. The differences between v1 and v2 are in the
 * `files` table and in the few functions that check the backend.
 *
 * Documentation/admin-guide/cgroup-v1/{memory,pids,freezer-subsystem}.rst, cgroup-v2.rst.
 */
#include "sys/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"
#include "sys/proc.h"
#include "sys/uapi.h"

#define MOUNT "/sys/fs/cgroup"
#define LAUNCHERS "launchers" /* v2, run by root: the group that launchers are in */
#define MAX_PATH 2112
#define MAX_HIERARCHIES 5
#define MEMORY_MAX (UINT64_C(0x7ffffffffffff000)) /* what v1 has for "no limit" */
#define FREEZE_TIMEOUT_NS INT64_C(1000000000)

enum controller { MEMORY, PIDS, CPU, CPUACCT, FREEZER, CONTROLLERS };

static const char *const controller_names[CONTROLLERS] = {
    [MEMORY] = "memory",
    [PIDS] = "pids",
    [CPU] = "cpu",
    [CPUACCT] = "cpuacct",
    [FREEZER] = "freezer",
};

/* The files of a slot that stay open. */
enum slot_file {
    FILE_MEMORY_NOW,
    FILE_MEMORY_PEAK,
    FILE_MEMORY_HITS,
    FILE_OOM,
    FILE_CPU,
    FILE_PIDS_NOW,
    SLOT_FILES
};

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

struct hierarchy {
    int parent_fd;
    int engine_fd; /* -EBADF until the first slot is made */
    dev_t device;
};

struct cgroup_root {
    enum cgroup_backend backend;
    struct hierarchy hierarchies[MAX_HIERARCHIES];
    size_t n_hierarchies;
    int where[CONTROLLERS]; /* index of the controller's hierarchy, -1: not available */
    char name[80];
    uint64_t pid_namespace;
    char *paths[MAX_HIERARCHIES + 2];
    size_t n_paths;
    unsigned serial;  /* makes slots' names unique even while an old one is busy */
    bool clones_into; /* v2: clone3 is there, so processes start in their group */
    bool lends;       /* v2, run by root: launchers have other ids, see open_to_launchers */
    int oom_fd; /* v1: the eventfd of our own directory, which is told of the groups above alone. -1
                   or -EBADF: none */
    uint64_t n_above; /* how often it was */
    struct list busy; /* slots that could not be removed yet */
};

struct cgroup_slot {
    struct list node; /* in root->busy */
    struct cgroup_root *root;
    char name[32];
    unsigned members; /* bits: the hierarchies that it is in */
    int dir_fd;       /* v2 */
    int oom_fd;       /* v1: eventfd. v2: borrowed from files */
    int files[SLOT_FILES];
    uint64_t n_told;  /* how often memory was short, here (v2) or above too (v1) */
    uint64_t n_above; /* v1: of the root's count, what was before */
    uint64_t n_own;   /* of n_told: here; as of the last look */
    bool peak_resets;
    bool resting; /* `files` are opened for each look */
    uint64_t memory_limit;
    uint32_t cpu_milli;
    struct cgroup_usage base; /* what was counted before the last reset */
};

/* ---- small files ---- */

static int write_fd(int fd, const char *text) {
    ssize_t n = write(fd, text, strlen(text));

    return n < 0 ? -errno : 0;
}

static int write_at(int dir_fd, const char *path, const char *text) {
    auto_close int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? -errno : write_fd(fd, text);
}

/* A file of the slot that is not kept open, in the hierarchy of a controller. */
static int write_slot(const struct cgroup_slot *slot, enum controller controller, const char *file,
    const char *text) {
    const struct cgroup_root *root = slot->root;
    char path[96];

    if (root->where[controller] < 0)
        return -EOPNOTSUPP;
    snprintf(path, sizeof(path), "%s/%s", slot->name, file);
    return write_at(root->hierarchies[root->where[controller]].engine_fd, path, text);
}

static int write_slot_u64(
    const struct cgroup_slot *slot, enum controller controller, const char *file, uint64_t value) {
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    return write_slot(slot, controller, file, text);
}

/* The start of a small file as a string. */
static ssize_t read_fd(int fd, char *text, size_t size) {
    ssize_t n = pread(fd, text, size - 1, 0);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    return n;
}

static ssize_t read_at(int dir_fd, const char *path, char *text, size_t size) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);

    return fd < 0 ? -errno : read_fd(fd, text, size);
}

static int read_u64(int fd, uint64_t *ret) {
    char text[32], *end;
    ssize_t n = read_fd(fd, text, sizeof(text));
    uint64_t value;

    if (n < 0)
        return (int)n;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || end == text)
        return -EBADMSG;
    *ret = value;
    return 0;
}

/* The value on the line "key value" of a flat-keyed file; 0 if there is no such line. */
static uint64_t keyed_value(const char *text, const char *key) {
    size_t length = strlen(key);

    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return 0;
}

/* Is the word in a list separated by spaces (or `separator`), ended by a newline, NUL or `end`? */
static bool has_word(const char *list, const char *word, char separator, char end) {
    size_t length = strlen(word);

    for (const char *p = list;;) {
        size_t n = 0;

        while (p[n] != '\0' && p[n] != '\n' && p[n] != separator && p[n] != end)
            n++;
        if (n == length && memcmp(p, word, n) == 0)
            return true;
        if (p[n] != separator)
            return false;
        p += n + 1;
    }
}

static bool is_type(int fd, long magic) {
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && fs.f_type == magic;
}

static void sleep_ns(long ns) {
    nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* ---- finding the place ---- */

/* Our position in the hierarchy of a controller ("" for v2's) as a string inside `cgroups`, the
 * text of /proc/self/cgroup; lines are "number:controllers:path". NULL if there is none. `copy`
 * takes it. */
static bool own_position(const char *cgroups, const char *controller, char *copy, size_t size) {
    for (const char *line = cgroups; *line != '\0';) {
        const char *end = strchrnul(line, '\n');
        const char *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list != NULL ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;

        if (path != NULL && has_word(list + 1, controller, ',', ':')) {
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

/* The path of our group in a hierarchy mounted at `mount`, or of its top if a container sees
 * another part of the tree. Returns the length of the top's path, or 0 if we are in no group
 * there. */
static size_t own_path(
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

/* Names of v1 and v2. Files in memory can be had back. */
static const struct memory_files {
    const char *controller, *mount, *limit, *usage, *files[2];
} memory_files[] = {
    { "memory", MOUNT "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        { "total_active_file", "total_inactive_file" } },
    { "", MOUNT, "memory.max", "memory.current", { "active_file", "inactive_file" } },
};

static uint64_t left_in(const struct memory_files *names, int group) {
    char text[8192];
    uint64_t limit, used;
    auto_close int limit_fd = openat(group, names->limit, O_RDONLY | O_CLOEXEC),
                   usage_fd = openat(group, names->usage, O_RDONLY | O_CLOEXEC);

    if (limit_fd < 0 || usage_fd < 0 || read_u64(limit_fd, &limit) < 0 ||
        read_u64(usage_fd, &used) < 0)
        return UINT64_MAX; /* "max", or the uppermost group of v2 */
    for (size_t i = 0;
         i < ARRAY_SIZE(names->files) && read_at(group, "memory.stat", text, sizeof(text)) > 0; i++)
        used -= MIN(used, keyed_value(text, names->files[i]));
    return limit > used ? limit - used : 0;
}

uint64_t cgroup_memory_left(void) {
    char cgroups[8192], path[MAX_PATH];
    uint64_t left = UINT64_MAX;

    if (read_at(AT_FDCWD, "/proc/self/cgroup", cgroups, sizeof(cgroups)) < 0)
        return left;
    for (size_t i = 0; i < ARRAY_SIZE(memory_files); i++) {
        const struct memory_files *names = &memory_files[i];
        const size_t top = own_path(cgroups, names->controller, names->mount, path, sizeof(path));

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

static void drop_hierarchies(struct cgroup_root *root) {
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
    char mount[64], path[MAX_PATH];
    auto_close int fd = -EBADF;
    struct stat st;
    int r;

    snprintf(mount, sizeof(mount), MOUNT "/%s", controller_names[controller]);
    if (own_path(cgroups, controller_names[controller], mount, path, sizeof(path)) == 0)
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
            drop_hierarchies(root);
            return 0;
        }
    }
    root->backend = CGROUP_V1;
    return 0;
}

/* "+memory +pids +cpu" of what both `available` and `features` have. */
static void v2_wanted(
    const struct features *features, const char *available, char *text, size_t size) {
    text[0] = '\0';
    for (enum controller c = 0; c <= CPU; c++)
        if (!controller_masked(features, c) && has_word(available, controller_names[c], ' ', '\n'))
            snprintf(text + strlen(text), size - strlen(text), "%s+%s", text[0] != '\0' ? " " : "",
                controller_names[c]);
}

/* Only this process and what it has started? Those are few when the engine looks for its cgroups.
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
        r = write_at(dir_fd, file, text);
        r = r == -ESRCH ? 0 : r;
    }
    return r;
}

/* Can groups with limits be made in this directory? Yes if memory and pids are handed down already,
 * or if nobody is in the way of enabling that. */
static bool v2_usable(const struct features *features, int dir_fd, bool own, bool *ret_need_leaf,
    char *controllers, size_t size) {
    char available[512], wanted[64], procs[512];
    bool alone = false, need_leaf = false;
    int r;

    if (!may_write(dir_fd, ".") || !may_write(dir_fd, "cgroup.procs"))
        return false;
    if (read_at(dir_fd, "cgroup.subtree_control", controllers, size) < 0)
        return false;
    if (has_word(controllers, "memory", ' ', '\n') && has_word(controllers, "pids", ' ', '\n')) {
        *ret_need_leaf = false;
        return true;
    }
    if (read_at(dir_fd, "cgroup.controllers", available, sizeof(available)) < 0 ||
        !may_write(dir_fd, "cgroup.subtree_control"))
        return false;
    if (!has_word(available, "memory", ' ', '\n') || !has_word(available, "pids", ' ', '\n'))
        return false;
    v2_wanted(features, available, wanted, sizeof(wanted));
    r = write_at(dir_fd, "cgroup.subtree_control", wanted);
    if (r == -EBUSY && own) {
        /* "No internal processes": they must be all ours, nobody else is moved about. */
        alone = read_at(dir_fd, "cgroup.procs", procs, sizeof(procs)) > 0 && all_ours(procs);
        need_leaf = alone;
    }
    if (r < 0 && !need_leaf)
        return false;
    snprintf(controllers, size, "%s", available);
    *ret_need_leaf = need_leaf;
    return true;
}

/* Moves this process and those that it has started into a child of its own cgroup, so that the
 * controllers can be handed down. One that is started meanwhile is moved in the next try. */
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
        r = (int)read_at(dir_fd, "cgroup.procs", procs, sizeof(procs));
        if (r < 0 || !all_ours(procs))
            break;
        r = move_listed(dir_fd, file, procs);
        if (r == 0)
            r = write_at(dir_fd, "cgroup.subtree_control", wanted);
    }
    if (r == 0)
        return add_path(root, path, "-engine");
    if (read_at(dir_fd, file, procs, sizeof(procs)) >= 0)
        (void)move_listed(dir_fd, "cgroup.procs", procs);
    (void)unlinkat(dir_fd, leaf, AT_REMOVEDIR);
    return r < 0 ? r : -EBUSY;
}

/* Tries our own cgroup first, then its ancestors. Takes the nearest that delegates memory and pids
 * to its children and lets us move processes there. */
static int find_v2(struct cgroup_root *root, const struct features *features, const char *cgroups) {
    char path[MAX_PATH], controllers[512];
    bool own = true;
    int r;

    if (!features->cgroup_memory || !features->cgroup_pids ||
        own_path(cgroups, "", MOUNT, path, sizeof(path)) == 0)
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
        if (strlen(path) <= strlen(MOUNT))
            return 0;
        *strrchr(path, '/') = '\0';
    }
    root->where[MEMORY] = root->where[PIDS] = root->where[CPUACCT] = root->where[FREEZER] =
        0; /* the last two are part of every group */
    if (features->cgroup_cpu && has_word(controllers, "cpu", ' ', '\n'))
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
    drop_hierarchies(root);
    root->oom_fd = -EBADF;
    if (start >= 0 && stat("/proc/self/ns/pid", &st) == 0 &&
        read_at(AT_FDCWD, "/proc/self/cgroup", cgroups, sizeof(cgroups)) > 0) {
        root->pid_namespace = st.st_ino;
        snprintf(root->name, sizeof(root->name), "rollbox-%" PRIu64 "-%d-%" PRId64,
            root->pid_namespace, (int)getpid(), start);
        if (features->cgroup_v2)
            r = find_v2(root, features, cgroups);
        if (r == 0 && root->backend == CGROUP_NONE && features->cgroup_v1)
            r = find_v1(root, features, cgroups, use);
    }
    if (r < 0) {
        drop_hierarchies(root);
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

/* ---- removing ---- */

/* Is this process in the group? The janitor is in the engine's, where the engine made one. */
static bool has_self(int dir_fd) {
    char procs[4096], self[16];

    snprintf(self, sizeof(self), "%d", (int)getpid());
    return read_at(dir_fd, "cgroup.procs", procs, sizeof(procs)) > 0 &&
           has_word(procs, self, '\n', '\0');
}

/* SIGKILL to what is in the group at `dir_fd`, but to this process and its parent: a janitor's
 * parent is the engine, which is about to end if it is not dead. v1 has no call for that, and
 * members fork: the caller asks again until the group can be removed. Returns how many were
 * there. */
static int kill_members(int dir_fd) {
    auto_close int fd = -EBADF;
    char text[4096 + 1];
    size_t kept = 0;
    int n_killed = 0;

    if (!has_self(dir_fd) && write_at(dir_fd, "cgroup.kill", "1") == 0)
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

            /* 0 is a process of a pid namespace that we cannot see: kill(0) would be ourselves. */
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
    (void)kill_members(dir_fd);
    (void)write_at(dir_fd, "freezer.state", "THAWED"); /* v1: frozen processes do not die */
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
    /* A group cannot be removed by its last member: the unit's manager does it, or a later sweep.
     */
    return unlinkat(parent_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT || has_self(dir_fd)
               ? 0
               : -errno;
}

static int remove_tree_within(int parent_fd, const char *name, int64_t deadline_ns) {
    for (long pause_ns = 200000;; pause_ns = MIN(pause_ns * 2, 20000000L)) {
        int r = remove_tree(parent_fd, name, 4);

        if (r != -EBUSY || clock_now_ns() >= deadline_ns)
            return r;
        sleep_ns(pause_ns);
    }
}

int cgroup_paths_remove(const char *const *paths, int timeout_ms) {
    int64_t deadline = clock_now_ns() + (int64_t)timeout_ms * 1000000;
    int result = 0;

    /* All are killed before any is waited for: the same processes are in each. */
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

/* The steps for each leftover: it is killed and thawed in all hierarchies before any removal
 * waits. */
enum leftover_use { COUNT, KILL, REMOVE };

/* The directories of engines that are dead: how many; if they are to be removed, how many were in
 * the first hierarchy. */
static int find_leftovers(const struct cgroup_root *root, enum leftover_use use) {
    int64_t deadline = use == REMOVE ? clock_now_ns() + INT64_C(2000000000) : 0;
    int n = 0;

    for (size_t i = 0; i < root->n_hierarchies; i++) {
        /* By its path: the caller may be a fork without our descriptors. */
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

/* ---- slots ---- */

/* The weight of one program of normal weight per CPU: the share of all sandboxes of an engine
 * against the host's programs, for any number of sandboxes. */
static int set_weights(const struct cgroup_root *root, int engine_fd) {
    const uint64_t normal = root->backend == CGROUP_V2 ? 100 : 1024,
                   most = root->backend == CGROUP_V2 ? 10000 : 262144;
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64,
        MIN(normal * (uint64_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1l), most));
    return write_at(engine_fd, root->backend == CGROUP_V2 ? "cpu.weight" : "cpu.shares", text);
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
            int r = write_at(fd, "cgroup.subtree_control",
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

/*
 * Swap is not added to the limit: v2 gives the group none. v1 limits memory + swap, in a file of
 * its own, never to less than memory (hence the order), here to a huge page more: were the two
 * equal, that one would be met first, whose failures some kernels do not count (6.18:
 * memory.memsw.failcnt stays 0). Swappiness 0 keeps the rest out of swap, and is all there is on
 * kernels that do not account it.
 */
static int limit_memory(struct cgroup_slot *slot, uint64_t bytes) {
    const uint64_t room = UINT64_C(2) << 20;
    uint64_t limit = bytes == 0 ? MEMORY_MAX : MIN(bytes, MEMORY_MAX);
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
        uint64_t with_swap = limit > MEMORY_MAX - room ? MEMORY_MAX : limit + room;

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
    r = write_at(engine_fd, path, text);
    if (r == -ENOENT)
        return 0; /* a later kernel without the interface: oom_kills still counts */
    if (r < 0)
        return r;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static uint64_t take_count(int eventfd) {
    uint64_t count;

    return eventfd >= 0 && read(eventfd, &count, sizeof(count)) == (ssize_t)sizeof(count) ? count
                                                                                          : 0;
}

static uint64_t told_above(struct cgroup_root *root) {
    return root->n_above += take_count(root->oom_fd);
}

static int arm_root(struct cgroup_root *root, int engine_fd) {
    auto_close int control = openat(engine_fd, "memory.oom_control", O_RDONLY | O_CLOEXEC);

    return control < 0 ? -errno : arm_oom_eventfd(engine_fd, ".", control, &root->oom_fd);
}

static int arm_slot(struct cgroup_slot *slot) {
    struct cgroup_root *root = slot->root;
    const int engine_fd = root->hierarchies[root->where[MEMORY]].engine_fd;
    int r = root->oom_fd < 0 ? arm_root(root, engine_fd) : 0;

    slot->n_above = told_above(root);
    return r < 0 ? r : arm_oom_eventfd(engine_fd, slot->name, slot->files[FILE_OOM], &slot->oom_fd);
}

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

static int open_files(struct cgroup_slot *slot) {
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
    slot->memory_limit = MEMORY_MAX;
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
        r = open_files(slot);
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
    drop_hierarchies(root);
    free(root);
    return NULL;
}

int cgroup_slot_attach(struct cgroup_slot *slot, pid_t pid) {
    struct cgroup_root *root = slot->root;
    char path[96], text[16];

    snprintf(path, sizeof(path), "%s/cgroup.procs", slot->name);
    snprintf(text, sizeof(text), "%d", (int)pid);
    for (size_t i = 0; i < root->n_hierarchies; i++) {
        int r = slot->members & 1u << i ? write_at(root->hierarchies[i].engine_fd, path, text) : 0;

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
    r = write_at(root->hierarchies[0].engine_fd, LAUNCHERS "/cgroup.procs", text);
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

int cgroup_slot_oom_fd(const struct cgroup_slot *slot) {
    return slot->oom_fd >= 0 ? slot->oom_fd : -1;
}

uint32_t cgroup_slot_oom_events(const struct cgroup_slot *slot) {
    return slot->root->backend == CGROUP_V2 ? EPOLLPRI : EPOLLIN;
}

bool cgroup_slot_hear_oom(struct cgroup_slot *slot) {
    uint64_t n = slot->n_own;
    char text[1024];

    if (slot->root->backend == CGROUP_V1) {
        slot->n_told += take_count(slot->oom_fd);
        const uint64_t above = told_above(slot->root) - slot->n_above;
        n = slot->n_told > above ? slot->n_told - above : 0;
    } else if (read_fd(slot->files[FILE_OOM], text, sizeof(text)) > 0) {
        n = slot->n_told = keyed_value(text, "oom");
    }
    const bool is_new = n > slot->n_own;
    slot->n_own = MAX(slot->n_own, n);
    return is_new;
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
        r = (int)read_fd(slot->files[FILE_OOM], text, sizeof(text));
        if (r < 0)
            return r;
        u->oom_kills = (uint32_t)keyed_value(text, "oom_kill");
    }
    if (v2)
        u->memory_limit_hits = (uint32_t)keyed_value(text, "max");
    else if (slot->files[FILE_MEMORY_HITS] >= 0 &&
             read_u64(slot->files[FILE_MEMORY_HITS], &value) == 0)
        u->memory_limit_hits = (uint32_t)value;
    return 0;
}

/* What the files say that a reset does not set back. */
static int read_counts(struct cgroup_slot *slot, struct cgroup_usage *u) {
    char text[1024];
    int r;

    *u = (struct cgroup_usage){ 0 };
    r = read_u64(slot->files[FILE_MEMORY_NOW], &u->memory_now);
    if (r == 0)
        r = read_hits(slot, u, true);
    if (r < 0)
        return r;
    if (slot->files[FILE_CPU] >= 0) {
        if (slot->root->backend != CGROUP_V2)
            (void)read_u64(slot->files[FILE_CPU], &u->cpu_ns);
        else if (read_fd(slot->files[FILE_CPU], text, sizeof(text)) > 0)
            u->cpu_ns = keyed_value(text, "usage_usec") * 1000;
    }
    return 0;
}

void cgroup_slot_rest(struct cgroup_slot *slot) {
    slot->resting = true;
    for (size_t i = 0; i < SLOT_FILES; i++)
        if (slot->root->backend == CGROUP_V1 || i != FILE_OOM) /* v2: oom_fd is that */
            close_fd(&slot->files[i]);
}

/* At least what is used now. */
static uint64_t read_peak(struct cgroup_slot *slot, uint64_t now) {
    uint64_t value = 0;

    return slot->files[FILE_MEMORY_PEAK] >= 0 &&
                   read_u64(slot->files[FILE_MEMORY_PEAK], &value) == 0
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
        r = read_u64(slot->files[FILE_PIDS_NOW], &processes);
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
    r = read_u64(slot->files[FILE_MEMORY_PEAK], &peak);
    if (r == 0)
        r = read_hits(slot, &u, false);
    if (r == 0)
        *ret_bytes = own_peak(slot, peak, u.memory_limit_hits - slot->base.memory_limit_hits);
    return r;
}

bool cgroup_slot_is_full(const struct cgroup_slot *slot) {
    const struct cgroup_root *root = slot->root;
    auto_close int group = root->where[MEMORY] < 0
                               ? -EBADF
                               : openat(root->hierarchies[root->where[MEMORY]].engine_fd,
                                     slot->name, O_PATH | O_DIRECTORY | O_CLOEXEC);

    return group < 0 || left_in(&memory_files[0], group) <= slot->memory_limit / 16;
}

int cgroup_slot_memory_now(struct cgroup_slot *slot, uint64_t *ret_bytes) {
    int r = slot->resting ? open_readings(slot, FILE_MEMORY_NOW, FILE_MEMORY_NOW) : 0;

    if (r == 0)
        r = read_u64(slot->files[FILE_MEMORY_NOW], ret_bytes);
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

/* ---- freezing and killing ---- */

static bool is_frozen(const struct cgroup_slot *slot) {
    const struct cgroup_root *root = slot->root;
    bool v2 = root->backend == CGROUP_V2;
    char path[96], text[256];

    snprintf(path, sizeof(path), "%s/%s", slot->name, v2 ? "cgroup.events" : "freezer.state");
    if (read_at(root->hierarchies[root->where[FREEZER]].engine_fd, path, text, sizeof(text)) < 0)
        return false;
    return v2 ? keyed_value(text, "frozen") == 1 : strcmp(text, "FROZEN\n") == 0;
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
        sleep_ns(pause_ns);
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

    if (root->backend == CGROUP_V2 && write_at(slot->dir_fd, "cgroup.kill", "1") == 0)
        return 0;
    fd = openat(root->hierarchies[root->where[PIDS]].engine_fd, slot->name,
        O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = (int)read_at(fd, "pids.max", limit, sizeof(limit));
    if (r > 0)
        r = write_at(fd, "pids.max", "0");
    if (r < 0)
        return r;
    for (int round = 0; round < 3 && r >= 0; round++)
        r = kill_members(fd);
    (void)write_at(fd, "pids.max", limit);
    if (root->where[FREEZER] >= 0)
        (void)cgroup_slot_thaw(slot);
    return r < 0 ? r : 0;
}
