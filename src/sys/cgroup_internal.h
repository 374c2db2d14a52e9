/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations that the files cgroup_*.c share: see cgroup.h for the model.
 *
 * A `hierarchy` is a mounted tree. v1 has one per controller (some share one: cpu,cpuacct); v2 has
 * one in all. All operations are relative to directory descriptors: `parent_fd` is the group that
 * was found, and `engine_fd` is the engine's directory in it.
 *
 * Documentation/admin-guide/cgroup-v1/{memory,pids,freezer-subsystem}.rst, cgroup-v2.rst.
 */
#ifndef ROLLBOX_SYS_CGROUP_INTERNAL_H
#define ROLLBOX_SYS_CGROUP_INTERNAL_H

#include "sys/cgroup.h"

#include "base/list.h"

#define CGROUP_MOUNT "/sys/fs/cgroup"
#define CGROUP_MAX_PATH 2112
#define CGROUP_MAX_HIERARCHIES 5

enum controller { MEMORY, PIDS, CPU, CPUACCT, FREEZER, CONTROLLERS };

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

struct hierarchy {
    int parent_fd;
    int engine_fd; /* -EBADF until the first slot is made */
    dev_t device;
};

struct cgroup_root {
    enum cgroup_backend backend;
    struct hierarchy hierarchies[CGROUP_MAX_HIERARCHIES];
    size_t n_hierarchies;
    int where[CONTROLLERS]; /* index of the controller's hierarchy, -1: not available */
    char name[80];
    uint64_t pid_namespace;
    char *paths[CGROUP_MAX_HIERARCHIES + 2];
    size_t n_paths;
    unsigned serial;  /* makes slots' names unique even while an old one is busy */
    bool clones_into; /* v2: clone3 is there, so processes start in their group */
    bool lends;       /* v2, run by root: launchers have other ids, see open_to_launchers */
    int oom_fd; /* v1: the eventfd of the engine's directory, for the groups above alone. Negative:
                   none */
    uint64_t n_oom_above; /* v1: how often a group above ran out of memory */
    struct list busy;     /* slots that could not be removed yet */
};

struct cgroup_slot {
    struct list node; /* in root->busy */
    struct cgroup_root *root;
    char name[32];
    unsigned members; /* bits: the hierarchies that it is in */
    int dir_fd;       /* v2 */
    int oom_fd;       /* v1: eventfd. v2: borrowed from files */
    int files[SLOT_FILES];
    uint64_t n_oom;       /* how often memory ran out: v2 in this group, v1 also above */
    uint64_t n_oom_above; /* v1: the root's n_oom_above when the slot was made */
    uint64_t n_own_oom;   /* how often this group ran out, as of cgroup_slot_hear_oom */
    bool peak_resets;
    bool resting; /* `files` are opened for each reading */
    uint64_t memory_limit;
    uint32_t cpu_milli;
    struct cgroup_usage base; /* the counts at the last reset */
};

/* ---- cgroup_files.c: small files, by 0 or a length or -errno ---- */

int cgroup_write_at(int dir_fd, const char *path, const char *text);
/* Reads the start of a file as a string. Returns its length. */
ssize_t cgroup_read_fd(int fd, char *text, size_t size);
ssize_t cgroup_read_at(int dir_fd, const char *path, char *text, size_t size);
int cgroup_read_u64(int fd, uint64_t *ret);
/* The value on the line "key value" of a flat-keyed file; 0 if there is no such line. */
uint64_t cgroup_keyed_value(const char *text, const char *key);
/* Whether a word is in a list that is separated by spaces (or `separator`) and ended by a newline,
 * NUL or `end`. */
bool cgroup_has_word(const char *list, const char *word, char separator, char end);
void cgroup_sleep_ns(long ns);

/* ---- cgroup_place.c ---- */

/* The path of this process's group in a hierarchy mounted at `mount`, or of the hierarchy's top if
 * a container sees another part of the tree. `cgroups` is the text of /proc/self/cgroup. Returns
 * the length of the top's path, or 0 if this process is in no group there. */
size_t cgroup_own_path(
    const char *cgroups, const char *controller, const char *mount, char *path, size_t size);
void cgroup_root_drop_hierarchies(struct cgroup_root *root);

/* ---- cgroup_remove.c ---- */

/* Sends SIGKILL to the members of the group at `dir_fd`, except for this process and its parent:
 * the parent of a janitor is the engine, which is dead or about to end. v1 has no single call for
 * this and members fork, so the caller repeats it until the group can be removed. Returns the
 * number of processes that were killed, or -errno. */
int cgroup_kill_members(int dir_fd);

/* ---- cgroup_usage.c ---- */

/* Opens the files of a new slot. 0 or -errno. */
int cgroup_slot_open_files(struct cgroup_slot *slot);

#endif
