/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the guest layer share. */
#ifndef ROLLBOX_GUEST_INTERNAL_H
#define ROLLBOX_GUEST_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "guest/guest.h"
#include "policy/plan.h"

#define GUEST_MAX_RULES 512

/* Of the stacks of children that share our memory. More than it takes: the linker puts what is
 * aligned little side by side, and this is large. */
#define GUEST_STACK_ALIGN 64

/* Where things went wrong; filled by whoever returns a negative errno. */
struct guest_fault {
    uint32_t stage;
    uint32_t operation;
};

static inline int guest_fault(
    struct guest_fault *fault, uint32_t stage, uint32_t operation, int negative_errno) {
    fault->stage = stage;
    fault->operation = operation;
    return negative_errno;
}

/* A sandbox being set up, in its init. */
struct box {
    const struct plan *plan;
    const int *static_rules; /* O_PATH descriptors of the template's Landlock rules, parallel to the
                                plan's; -1 for those that are the sandbox's own */
    int socket;
    int netns;         /* to enter; -1: make one */
    bool netns_is_new; /* the engine has not got it yet */
    uint32_t outer_id; /* the guest's uid and gid in U0 */
    int file_ids;      /* a user namespace: mounts of the sandbox's own files are idmapped by it
                          (idmap_for_files); -1: they need not be */
    int disk;          /* the private tmpfs, for the engine; -1 */
    bool layered;      /* and that as a layer: a detached mount of its own */
    int layer;         /* it; -1 */
    const int *layers; /* those that it is created on, bottom first */
    unsigned n_layers;
    uint64_t parts[GUEST_MAX_LAYERS]; /* which parts of each hold anything; as GUEST_PARTS */
    uint64_t bytes, entries;          /* the size of the private tmpfs; 0: the plan's */
    const char *upper; /* in its place: the directory of that name in PLAN_UPPERS; NULL */
    int template; /* with an image: the template's root, once the sandbox has entered its own; -1 */
    int root;     /* and that */
    int proc_sys; /* /proc/sys of its own, while it is set up; -1 */
    const int *tasks; /* of its cgroups v1: the files that take processes */
    size_t n_tasks;
    int ruleset;         /* Landlock; -1 */
    int image, progress; /* to be loaded (restore_load); -1: the launcher has, or there is none */
    bool keeps;          /* what is restored, for a while after it goes on: nobody counts it */
    bool notes;          /* what restored processes write to is noted */
    int home;            /* isolation process: the directory of its private files; -1 */
    int io;              /* init's own /proc/self/io, which nobody can open any more; -1 */
    uint64_t seed; /* in place of the plan's, if there is `uuid`: what the kernel's file of that
                      name says with it */
    const char *uuid;
    const void
        *numbers; /* of a copy: struct number, for files that keep theirs (base/inode_numbers.h) */
    size_t inode_numbers_length;
    const void *clocks; /* GUEST_CLOCKS; NULL */
    int64_t
        since_ns; /* CLOCK_REALTIME: since when its files have been a sandbox'; 0: its own birth */
    uint64_t generation; /* how many states its files have been through */
};

/* upper.c. Whether its own places lie over nothing of the host's, an image's or a stored
 * snapshot's: no file is copied, and no place is below a directory that a guest can rename. Layers
 * are not looked at. */
bool ops_begin_empty(const struct plan *plan);
/* The directory of that name in PLAN_UPPERS, as a detached mount; or -errno. */
int ops_open_upper(const char *name);

/* tmpfs.c: a new one, as a detached mount; texts are as mount options have them, NULL: the kernel's
 * own. Or -errno. */
struct guest_tmpfs {
    const char *size, *entries, *huge, *mode;
    unsigned attributes; /* MOUNT_ATTR_*, besides NOSUID and NODEV */
};
int guest_new_tmpfs(const struct guest_tmpfs *options);
/* The same with options as mount(2) takes them, "key=value,key=value". */
int guest_new_tmpfs_of(const char *options);

/* privileges.c. The calling process enters the sandbox's cgroups, unless it has. 0 or -errno. */
int box_enter_cgroups(struct box *box);

/* Puts the plan's filter on the calling process. */
int box_install_filter(const struct plan *plan);
/* The bounding set, which box_drop_privileges drops unless it is dropped already. 0 or -errno. */
int box_drop_bounds(void);
/* All capabilities, for good; the process is not dumpable after it and dies with its parent. */
int box_drop_privileges(void);

/* init itself enters the Landlock domain of its commands. 0 or -errno. */
int box_enter_domain(struct box *box);

/* exec.c: one command. */
struct exec_request {
    char *const *argv;
    char *const *envp;
    const char *cwd;    /* "": the directory of the private files, under isolation process */
    uint64_t processes; /* RLIMIT_NPROC instead of the plan's; 0: the plan's */
    const int *fds;     /* what become its descriptors 0, 1, 2, ... */
    size_t n_fds;
    bool terminal;      /* the first of them is its controlling terminal */
    bool keeps_orphans; /* what its tree orphans stays below it while it lives */
    bool no_trace;      /* it and its descendants trace nobody */
};

/* report.c: sends one record with descriptors. A lost peer is noticed where requests are read. 0 or
 * -errno (ETOOMANYREFS: the descriptors could not be sent, for a long time). */
int record_send(int socket, const struct guest_record *record, const int *fds, size_t n_fds);
void record_fault(int socket, uint32_t kind, uint64_t serial, const struct guest_fault *fault,
    int negative_errno);

/* Writes a small text to a file below a directory. 0 or -errno. */
int guest_write(int directory, const char *path, const char *text);

/* Writes a number in decimal, without a NUL. Returns where it ends. */
char *guest_put_number(char *at, uint64_t value);
/* Below a directory of procfs, the file of a process: its name has the slash before it. A
 * descriptor or -errno. */
int guest_open_process(int proc, pid_t pid, const char *name, int flags);

/* Maps one id to one: "inner outer 1" into uid_map and gid_map below a /proc/PID directory, with
 * setgroups denied. */
int guest_map_one(
    int proc_self, uint32_t inner_uid, uint32_t outer_uid, uint32_t inner_gid, uint32_t outer_gid);

#endif
