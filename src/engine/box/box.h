/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes: sandboxes as the kernel knows them, and their owners.
 *
 * A box has one owner, or none while it dies: a run, a session, the spares of a profile, a
 * checkpoint (preforked boxes) or a Python zygote. The owner gives a table of functions, by which
 * the box and what belongs to it (cgroup lease, disk upper) tell of events. They are called from
 * the loop, never from inside a function of the owner's. All that the owner must give for a box to
 * be made comes as data, in struct box_config.
 */
#ifndef ROLLBOX_ENGINE_BOX_BOX_H
#define ROLLBOX_ENGINE_BOX_BOX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/launcher.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "sys/sockmem.h"

struct box;
struct disk_upper;
struct volume_leases;
struct engine;
struct profile;

enum box_limit {
    BOX_LIMIT_MEMORY,      /* its own: all that runs in it has to end */
    BOX_LIMIT_HOST_MEMORY, /* the host's */
    BOX_LIMIT_DISK,        /* disk_at store: its files are more than they may be */
    BOX_LIMIT_DISK_GUESTS, /* the same, and the engine's own file agents did not write them */
};

struct box_owner_ops {
    /* init and the launcher have both reported. */
    void (*ready)(void *owner, struct box *box);
    /* A record from init, except those of its set-up. Descriptors that the callee keeps become
     * -EBADF in fds. */
    void (*report)(
        void *owner, struct box *box, const struct guest_record *record, int *fds, size_t n_fds);
    /* NULL: nothing of a user's runs in it, so its use is not watched. */
    void (*limit)(void *owner, struct box *box, enum box_limit limit);
    /* It could not be set up, and ends after this. The box has no owner any more. */
    void (*failed)(void *owner, struct box *box, const struct guest_record *record);
    /* Its processes are gone, and it is freed after this. The box has no owner any more. */
    void (*dead)(void *owner, struct box *box);

    /* These may be NULL. */
    /* It was not ready, or no command began, in time. NULL: it has failed. */
    void (*late)(void *owner, struct box *box);
    /* disk_at store: its processes are to be paused for a walk over its files, and resumed after
     * it. disk_upper_stands is called between. NULL: the box requests it from init. */
    bool (*hold)(void *owner, struct box *box);
    void (*release)(void *owner, struct box *box);
    /* disk_at store: what the layers hold that it stands on. NULL: it stands on none. */
    void (*layer_usage)(void *owner, uint64_t *ret_bytes, uint64_t *ret_entries);
    unsigned (*count_files)(void *owner); /* open files that the owner has for it. NULL: none */
    bool tolerates_lost_fds; /* a record whose descriptors found no room is its own failure */
};

/* The layers that a box stands on, bottom first (layer_chain.c makes it from a snapshot). */
struct box_layers {
    size_t n;
    int fds[GUEST_MAX_LAYERS]; /* borrowed */
    uint64_t parts[GUEST_MAX_LAYERS];
    const struct disk_upper *uppers[GUEST_MAX_LAYERS]; /* of those on disk; else NULL */
    uint64_t bytes, entries;                           /* in all of them */
    int64_t since_ns;                                  /* no file in them is older */
    uint64_t generation;
    void *held; /* keeps layers on disk until it is released; NULL: there are none. box_new takes it
                 */
    void (*release)(void *held);
};

struct box_config {
    struct launcher *launcher;  /* that makes it; NULL: the profile's */
    bool is_layered;            /* its files are to become a layer */
    struct box_layers *layers;  /* NULL: it stands on the plan's own files */
    const uint64_t *seed;       /* NULL: the plan's */
    const int64_t *ahead_ns;    /* the lead of its CLOCK_MONOTONIC and CLOCK_BOOTTIME over ours;
                                   NULL: as the plan, or its image, says */
    const void *restored_image; /* the image of the processes it is prepared with: an identity,
                                   never followed. NULL: none */
    bool tracks;                /* writes of its processes are tracked from their start on */
    bool keeps_image;           /* init may keep the memory that its processes were forked from */
};

enum box_state {
    BOX_SETUP, /* neither init nor the launcher has reported, or only one of them */
    BOX_READY,
    BOX_FAILED, /* its owner learns of it */
    BOX_DYING,
};

enum box_origin { BOX_MADE_FOR_OWNER, BOX_WAS_SPARE, BOX_WAS_PREFORKED };

/* Questions to the kernel about sockets of the sandbox. */
struct box_sockets {
    struct sockmem sockmem;    /* not open until it is needed */
    struct loop_source asking; /* there is more to come of the answer */
    int64_t asked_ns;          /* time spent on this answer so far */
    uint64_t bytes;            /* the last answer */
    int64_t ask_again_ns;      /* not before */
    int64_t poll_cost_ns;      /* of the last answer; counted in engine->boxes.poll_cost_ns */
};

/* The creation of a box. */
struct box_creation {
    struct launcher_job job; /* CREATE */
    uint64_t launcher;       /* its number */
    enum box_origin origin;
    bool is_set_up;  /* init says so; it is ready once the launcher has told its pid, too */
    int64_t made_ns; /* CLOCK_REALTIME: none of its files is older */
};

/* The layers and leases below a box. */
struct box_lower {
    bool is_layered;            /* `disk` is to become a layer (layer.c) */
    const void *restored_image; /* see box_config */
    void *held;                 /* layers on disk; NULL: there are none */
    void (*release)(void *held);
    struct volume_leases *volumes; /* volume_lease.h; NULL: its policy has none */
};

/* The files of a box before its first command: box_files.c. */
struct box_baseline {
    struct files_baseline *files;
    bool was_missed; /* files were asked for before it was made */
};

/* Besides its processes': hoards.c. */
struct box_memory {
    bool met_limit;
    uint64_t kernel_bytes;   /* of its files and the like, as of the last look */
    int64_t suspected_bytes; /* kernel memory that it may have caused besides */
};

struct box_end {
    struct loop_source death;
    bool kill_sent;            /* it is dying of a SIGKILL */
    struct buf fds_until_dead; /* descriptors (int): ends of pipes that its processes are not to see
                                  closed */
};

struct box {
    struct engine *engine;
    struct profile *profile; /* NULL: it is gone, and the box dies */
    struct list node;        /* engine->boxes.all */
    const struct box_owner_ops *ops;
    void *owner;
    struct list in_profile; /* profile->spares, while it is a spare */
    struct box_creation creation;
    enum box_state state;
    pid_t pid;
    int pidfd, socket, netns, disk;
    struct file_ids file_ids;
    struct loop_source answers;
    struct loop_timer deadline; /* of set-up, or of the start of a command, or of a spare */
    struct cgroup_lease *slot;
    struct private_dir *private_dir; /* isolation process: its private files; else NULL */
    struct disk_upper *upper;        /* disk_at store: its private files; a reference; else NULL */
    unsigned files;                  /* open files, counted in engine->files.used */
    struct box_lower lower;
    struct box_baseline baseline;
    struct box_memory memory;
    struct box_sockets sockets;
    struct box_end end;
};

int box_new(struct profile *profile, const struct box_config *config,
    const struct box_owner_ops *ops, void *owner, struct box **ret_box,
    struct rollbox_error *error);
/* A spare is handed over; or, with NULL, its owner lets go of it. */
void box_set_owner(struct box *box, const struct box_owner_ops *ops, void *owner);
/* Tells its owner that it has failed, and ends it. */
void box_fail(struct box *box, const struct guest_record *record);
/* Ends every process. It is freed when the kernel says that they are dead. The owner's `dead`
 * is called then, unless it has let go of the box. */
void box_kill(struct box *box);
void box_send_kill(struct box *box); /* that alone: box_kill is to come */
/* Closes an end of a pipe to its processes; of one whose kill is on its way, when they are dead. */
void box_close(struct box *box, int *fd);
void box_orphan(struct box *box); /* box_kill, and its profile is going */
int box_usage(struct box *box, uint64_t *ret_memory, uint64_t *ret_cpu_ns, uint32_t *ret_processes);
bool box_needs_watch(const struct box *box);              /* while something runs in it */
bool box_is_over(const struct box *box, uint64_t memory); /* as box_usage said last */
bool box_is_dead(const struct box *box); /* killed from outside, which the loop has not told yet */
void box_rest(struct box *box);          /* nothing runs in it */
void box_expect(struct box *box, int64_t ns); /* its owner calls box_expect_nothing by then */
void box_expect_start(struct box *box);       /* the same, of a command's start */
void box_expect_nothing(struct box *box);
bool box_has_room(const struct engine *engine); /* for one more, in open files */
/* A session's: its open files, and those that its owner has for it, are counted again. */
void box_count_files(struct box *box);
/* A session's, which is ready, holds no more than it must. */
void box_release_spare(struct box *box);

/* Something of a user's runs in it. */
static inline bool box_is_in_use(const struct box *box) {
    return box->ops->limit;
}

static inline void box_meet_limit(struct box *box, enum box_limit limit) {
    if (box->ops->limit)
        box->ops->limit(box->owner, box, limit);
}

#endif
