/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the guest layer. */
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

struct network;
struct users_identity;

/* Alignment of stacks of children that share the parent's memory. It is more than needed: the
 * linker groups objects by alignment, and this one is large. */
#define GUEST_STACK_ALIGN 64

/* Where an error occurred; filled in by functions that return a negative errno. */
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
                                plan's; -1 for rules of the sandbox's own files */
    int socket;
    int netns;          /* namespace to enter; -1: make one */
    bool netns_is_new;  /* the engine has not received it yet */
    uint32_t outer_id;  /* the guest's uid and gid in U0 */
    uint32_t account;   /* with many users: the number, from outer_id on, of the id that their
                           counts are charged to */
    int file_ids;       /* a user namespace for idmapped mounts of the sandbox's own files
                           (idmap_for_files); -1: no idmapping */
    int sources_socket; /* the engine sends `sources` there; -1 */
    int sources;        /* the host's mounts as this sandbox's id sees them (own_mounts.c); -1 */
    int own_upper;      /* `upper`, likewise, and `layers` are of that kind; -1 */
    struct network *network; /* sockets for the engine; NULL: none */
    int disk;                /* the private tmpfs, for the engine; -1: not wanted */
    bool layered;            /* also as a layer: a detached mount of its own */
    int layer;               /* that mount; -1 */
    const int *layers;       /* the layers that it is created on, bottom first */
    unsigned n_layers;
    uint64_t parts[GUEST_MAX_LAYERS]; /* which parts of each have content; as GUEST_PARTS */
    uint64_t bytes, entries;          /* the size of the private tmpfs; 0: the plan's */
    const char *upper; /* in place of the tmpfs: the name of a directory in PLAN_UPPERS; or NULL */
    int template; /* with an image: the template's root, once the sandbox has entered its own; -1 */
    int root;     /* the image's root */
    int proc_sys; /* /proc/sys of its own, while it is set up; -1 */
    const int *tasks; /* of its cgroups v1: the `tasks` files */
    size_t n_tasks;
    int ruleset; /* Landlock; -1 */
    bool keeps;  /* memory of a restored process may stay in init for a while: it is not charged */
    bool notes;  /* dirty tracking of restored processes */
    int home;    /* isolation process: the directory of its private files; -1 */
    int io;      /* init's own /proc/self/io, which cannot be opened later; -1 */
    uint64_t seed; /* in place of the plan's, if `uuid` is set: the content of the kernel's file of
                      that name */
    const char *uuid;
    const void *numbers; /* for a copy: struct number of the files that keep theirs
                            (base/inode_numbers.h) */
    size_t inode_numbers_length;
    const void *clocks; /* GUEST_CLOCKS; NULL */
    int64_t since_ns;   /* CLOCK_REALTIME of the birth of the first sandbox in its line of forks; 0:
                           its own birth */
    uint64_t generation; /* number of snapshots in its history */
};

/* upper.c. Do the sandbox's places start empty, with no files of the host, of an image or of a
 * stored snapshot below them? Then no file is copied up, and no place is below a directory that a
 * guest can rename. Layers are not considered. */
bool ops_begin_empty(const struct plan *plan);
/* The directory of that name in PLAN_UPPERS, as a detached mount; or -errno. */
int ops_open_upper(const char *name);

/* tmpfs.c: a new tmpfs as a detached mount; texts as in mount options, NULL: the kernel's default.
 * Or -errno. */
struct guest_tmpfs {
    const char *size, *entries, *huge, *mode;
    unsigned attributes; /* MOUNT_ATTR_*, in addition to NOSUID and NODEV */
};
int guest_new_tmpfs(const struct guest_tmpfs *options);
/* The same with options as mount(2) takes them, "key=value,key=value". */
int guest_new_tmpfs_of(const char *options);

/* The number of ids that a sandbox has, in U0 from its `outer_id` on. */
static inline uint32_t guest_id_count(const struct plan *plan) {
    return plan->flags & PLAN_MANY_USERS ? PLAN_MANY_IDS : 1;
}

/* privileges.c. Moves the calling process to the sandbox's cgroups, once. 0 or -errno. */
int box_enter_cgroups(struct box *box);

/* Sets a resource limit of the calling process. The engine may have been started with a lower
 * limit, which nothing here can raise (ulimit -c 0, for example): then the process gets that one. 0
 * or -errno. */
int guest_set_limit(int resource, uint64_t soft, uint64_t hard);

/* Installs the plan's filter on the calling process. */
int box_install_filter(const struct plan *plan);
/* Drops the bounding set. Without this, box_drop_privileges() does so. 0 or -errno. */
int box_drop_bounds(const struct plan *plan);
/* Drops all capabilities for good; with many users, all but those of its root and CAP_SYS_ADMIN,
 * and in init those for answering calls. The process is not dumpable afterwards and dies with its
 * parent. */
int box_drop_privileges(const struct plan *plan, bool is_init);

/* In init, with many users: the effective user and group, and back. Capabilities that are effective
 * go with root and come back with it. 0 or -errno. */
int box_act_as(uint32_t uid, uint32_t gid);
int box_act_as_root(void);

/* Makes init itself enter the Landlock domain of its commands. 0 or -errno. */
int box_enter_domain(struct box *box);

/* exec.c: one command. */
struct exec_request {
    char *const *argv;
    char *const *envp;
    const char *cwd;    /* "": the directory of the private files, under isolation `process` */
    uint64_t processes; /* RLIMIT_NPROC instead of the plan's; 0: the plan's */
    const int *fds;     /* they become its descriptors 0, 1, 2, ... */
    size_t n_fds;
    bool terminal;      /* the first of them is its controlling terminal */
    bool keeps_orphans; /* it is a subreaper: its orphaned descendants stay below it */
    const struct users_identity *user; /* whom it runs as; NULL: the sandbox has one user */
    bool no_trace;                     /* it and its descendants may not trace */
};

/* report.c: sends a record with descriptors. A lost peer is noticed where requests are read. 0 or
 * -errno (ETOOMANYREFS: the descriptors could not be sent, for a long time). */
int record_send(int socket, const struct guest_record *record, const int *fds, size_t n_fds);
void record_fault(int socket, uint32_t kind, uint64_t serial, const struct guest_fault *fault,
    int negative_errno);

/* Writes a short text to a file below a directory. 0 or -errno. */
int guest_write(int directory, const char *path, const char *text);

/* Writes a number in decimal, without a NUL. Returns its end. */
char *guest_put_number(char *at, uint64_t value);
/* Opens a file of a process below a directory of procfs. The name includes its slash. A descriptor
 * or -errno. */
int guest_open_process(int proc, pid_t pid, const char *name, int flags);

/* Maps one id: writes "inner outer 1" to uid_map and gid_map below a /proc/PID directory, and
 * denies setgroups. */
int guest_map_one(
    int proc_self, uint32_t inner_uid, uint32_t outer_uid, uint32_t inner_gid, uint32_t outer_gid);

#endif
