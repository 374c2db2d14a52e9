/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers, as the engine sees them (src/guest/launcher/launcher.c is the process).
 *
 * A launcher has a plan's template and clones sandboxes from it. A zygote is a clone of a launcher
 * that also has an image of processes in its memory. A launcher has one owner: a profile, or for a
 * zygote the checkpoint that the image is of.
 *
 * A request to a launcher is a *job*. Each job that was sent ends with one call of `done`, unless
 * it is cancelled. The call comes from the loop, never from inside a function declared here. When a
 * launcher is lost or stopped, all its jobs end in a deferred task, and then it is freed.
 */
#ifndef ROLLBOX_ENGINE_BOX_LAUNCHER_H
#define ROLLBOX_ENGINE_BOX_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "policy/plan.h"

struct engine;
struct launcher;

/* The end of a job. The record is the launcher's answer, or GUEST_FAILED with the reason why no
 * answer will come. A job that keeps a descriptor sets it to -EBADF; the others are closed after
 * the job. */
struct launcher_result {
    const struct guest_record *record;
    int *fds;
    size_t n_fds;
};

/* Embedded in the object that waits for the answer. Zeroed and list_init(&job->node) before its
 * use. */
struct launcher_job {
    struct list node;          /* launcher->jobs, while it is under way */
    struct launcher *launcher; /* which has it, then */
    uint32_t type;             /* GUEST_CREATE and so on */
    uint64_t serial;
    void (*done)(void *data, const struct launcher_result *result);
    void *data;
};

struct launcher_owner_ops {
    /* Its template is complete. `fds` as in launcher_result. NULL: of no interest. */
    void (*ready)(void *owner, struct launcher *launcher, const struct guest_record *record,
        int *fds, size_t n_fds);
    /* It has ended, or is of no use. The owner lets go of it; the jobs end soon after. */
    void (*lost)(void *owner, struct launcher *launcher);
};

/* With isolation namespace, as root: the guest's id in the launcher's user namespace, and the user
 * namespace by which the mounts of its files show it as their owner. */
struct file_ids {
    uint32_t id;    /* with users many the first of PLAN_MANY_IDS; 0: the plan's, which others may
                       have, too */
    bool is_plans;  /* and this sandbox alone has that */
    int fd, mounts; /* -EBADF: none, or not kept */
    int waits;      /* a socket, on which init waits for `mounts` (own_mounts.c); -EBADF */
};

enum launcher_state { LAUNCHER_STARTING, LAUNCHER_READY, LAUNCHER_LOST };

struct launcher {
    struct engine *engine;
    const struct launcher_owner_ops *ops;
    void *owner;
    enum launcher_state state;
    bool is_zygote;
    bool fixed; /* its addresses are not random, as those of a command of such a plan: a restored
                   process finds room in the same places as one that is started */
    pid_t pid;  /* 0: not known */
    int socket;
    struct loop_source source;
    int sources; /* mounts of host directories with the guest as owner (own_mounts.c); -EBADF */
    uint32_t id_base;
    int mounts; /* of an idle one: tells of mounts made since */
    struct list jobs;
    struct loop_task end;    /* of a lost one: ends its jobs and frees it */
    struct guest_record why; /* with which they end */
    uint64_t next_serial;
    uint64_t number; /* of its user namespace; a zygote has that of the launcher it is a clone of */
    int free_netns[128]; /* of that namespace, so of no use to another's boxes */
    unsigned n_free_netns;
    bool plan_id_is_lent;               /* a sandbox may have the plan's own id */
    struct file_ids free_file_ids[128]; /* likewise */
    unsigned n_free_file_ids;
};

/* The user namespace of a profile's first launcher, which later ones enter: files of its sandboxes
 * can be mounted in that one alone. */
struct launcher_namespace {
    int fd; /* -EBADF: none yet */
    uint32_t id_base;
    uint64_t number;
};

/* Our half of a launcher, and the socket that its process is to serve. 0 or -errno. */
int launcher_new(
    struct engine *engine, uint64_t number, struct launcher **ret_launcher, int *ret_other);
/* From now on its messages are handled, and it belongs to `owner`. 0 or -errno. */
int launcher_own(struct launcher *launcher, const struct launcher_owner_ops *ops, void *owner);

/* An idle one, that waits for the first plan. */
void launcher_prestart(struct engine *engine, bool fixed);
void launcher_drop_idle(struct engine *engine);
/* `in`: to enter, if it has a descriptor. */
int launcher_start(struct engine *engine, const struct plan *plan,
    const struct launcher_namespace *in, const struct launcher_owner_ops *ops, void *owner,
    struct launcher **ret_launcher, struct rollbox_error *error);
/* A clone of `launcher`, which serves a socket of its own. It can be sent requests at once. `image`
 * and `progress` (-EBADF: the image is complete) are borrowed. 0 or -errno. */
int zygote_start(struct launcher *launcher, int image, int progress,
    const struct launcher_owner_ops *ops, void *owner, struct launcher **ret_zygote);

/* Begins a message; launcher_send sends it and adds the job. 0 or -errno: then there is no job. */
void launcher_begin(
    struct launcher *launcher, struct launcher_job *job, uint32_t type, struct buf *message);
int launcher_send(struct launcher *launcher, struct launcher_job *job, struct buf *message,
    const int *fds, size_t n_fds, void (*done)(void *, const struct launcher_result *), void *data);
/* Not while its socket is full: -EAGAIN. */
int launcher_try_send(struct launcher *launcher, struct launcher_job *job, struct buf *message,
    void (*done)(void *, const struct launcher_result *), void *data);
bool launcher_job_is_pending(const struct launcher_job *job);
void launcher_job_cancel(struct launcher_job *job);         /* its answer is not wanted any more */
bool launcher_is_creating(const struct launcher *launcher); /* a sandbox */

void launcher_stop(struct launcher *launcher); /* by its owner, which has let go of it */
void launcher_kill(struct launcher *launcher); /* it does not answer */
void launcher_drop(struct launcher *launcher); /* it is of no use: its jobs fail */

/* As root: an id for a sandbox, of those that `pool` has left over (NULL: a new one); and its end,
 * in `pool` if that may keep it. */
struct file_ids launcher_lend_ids(struct engine *engine, struct launcher *pool, bool many_users);
void launcher_take_ids(struct engine *engine, struct launcher *pool, struct file_ids ids);
/* Closes the descriptors that are kept for later boxes. */
void launcher_drop_free(struct launcher *launcher);

#endif
