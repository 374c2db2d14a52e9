/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: processes that are resumed in another box. */
#ifndef ROLLBOX_ENGINE_CHECKPOINT_CHECKPOINT_H
#define ROLLBOX_ENGINE_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/store_job/backing.h"

struct box_config;
struct checkpoint_command;
struct checkpoint_pipe;
struct dump_job;
struct flatten_handle;
struct launcher;

/* The demand for the checkpoint's processes; prefork.c uses it. */
struct checkpoint_demand {
    unsigned n_restored; /* in sandboxes */
    unsigned n_uses;     /* by operations, each of which may have made many */
    int64_t taken_ns;    /* when a prefork was taken, the last time */
};

/* Dirty tracking of its sandboxes: dirty_tracking.h. */
struct checkpoint_tracking {
    unsigned n;         /* of the references to it, those of dirty tracking since it */
    bool is_from_birth; /* from the start of its sandboxes */
    bool wants_zygote;  /* the next fork is to come from its zygote */
};

/* The full image of an incremental checkpoint: flatten.c. */
struct checkpoint_flat {
    int image; /* -EBADF: nobody has asked for it */
    uint64_t bytes;
    struct flatten_handle *job; /* that nobody waits for (flatten.h); NULL: none */
};

/* The processes of a snapshot: their image, and the commands and pipes that the engine makes again.
 */
struct checkpoint {
    struct engine *engine;
    unsigned references;
    struct list node;        /* engine->zygotes.all */
    struct launcher *zygote; /* NULL: none now */
    struct box *preforked;   /* a box with its processes, for the next fork or reset; NULL: none */
    struct checkpoint_demand demand;
    int image;        /* a sealed memory file */
    bool is_complete; /* it is, by now: a dump may fail while it is written, after the processes
                         resumed */
    struct checkpoint *parent; /* the parent of an incremental image (dirty_tracking.h); a
                                  reference. NULL: it is full */
    struct checkpoint_tracking tracking;
    bool was_dropped; /* a client has dropped its snapshot */
    struct checkpoint_flat flat;
    int64_t clocks[2]; /* of the processes, when they were captured: CLOCK_MONOTONIC,
                          CLOCK_BOOTTIME; nanoseconds */
    int progress; /* a socket that tells who loads it how far it is written, while it is; -EBADF */
    struct backing_ref backing_ref;
    unsigned processes;
    uint64_t bytes; /* of the image */
    struct checkpoint_command *commands;
    struct checkpoint_pipe *pipes; /* in the order that the image knows them in */
    int *terminals;                /* likewise: whose command's; -1: of one that had ended */
    size_t n_commands, n_pipes, n_terminals;
};

/* A command that was under way. */
struct checkpoint_command {
    unsigned char operation[64]; /* without the session's number */
    size_t operation_length;
    pid_t pid; /* of its main process, in the sandbox */
    char *description;
    int64_t timeout_ms; /* that was left; 0: none */
    uint64_t output_limit;
    bool has_terminal;
};

/* A pipe that leads out of the sandbox. */
struct checkpoint_pipe {
    uint64_t inode;
    int command;     /* the index of its command; -1: of a command that had ended */
    unsigned slot;   /* which of its descriptors it was at the start */
    bool is_written; /* in the sandbox */
};

/* Dumps and restores of a session's processes. */
struct session_checkpoint {
    struct list node;           /* of all sessions, the oldest first: dirty_tracking.c */
    struct profile *profile;    /* the session's */
    struct dump_job *dumping;   /* under way; NULL: none */
    struct dump_job *releasing; /* resumes the processes; until then no other dump may begin */
    bool was_thawed;            /* for that dump, and is paused */
    bool is_fork;
    bool tracks_from_birth; /* and was not made with many others at once (dirty_tracking.h) */
    struct session_tracking tracking;
    /* The checkpoint to resume in the session's box, until it is resumed; a reference, or NULL. */
    struct checkpoint *pending_restore;
    enum restore_state {
        RESTORE_WAITS,   /* or none is pending */
        RESTORE_REPEATS, /* in a box that is made for it, as a preforked one has died */
    } restore_state;
    struct backing_ref backing_ref; /* the image that the processes were restored from */
};

#define CHECKPOINT_REST_NS                                                                         \
    200000000ll /* the longest time until the first look at restored processes */
struct session_checkpoint *session_checkpoint_new(struct profile *profile);

/* Its dump ends, and its processes are resumed. Takes and returns NULL. */
struct session_checkpoint *session_checkpoint_free(struct session_checkpoint *of);
struct checkpoint *checkpoint_new(struct engine *engine); /* empty; NULL: out of memory */
int checkpoint_new_image(struct profile *profile);        /* a file for one, empty; or -errno */
int checkpoint_new_small_image(void);   /* one that a page of usual size is not too small for */
int checkpoint_open_to_read(int image); /* another descriptor of it: it may be written to by others
                                           yet, by this one it cannot be; or -errno */
int checkpoint_seal_image(int *fd); /* nobody writes to it any more, nor did anybody keep a way to:
                                       0 or -errno; the descriptor is another after it */
struct checkpoint *checkpoint_get(struct checkpoint *checkpoint);
struct checkpoint *checkpoint_put(struct checkpoint *checkpoint);
int checkpoint_zygote(struct checkpoint *checkpoint, struct profile *profile,
    struct launcher **ret_zygote, struct rollbox_error *error);
void checkpoint_prefork(struct checkpoint *checkpoint, struct profile *profile,
    struct snapshot *base); /* a box for the next one, if there is likely to be one */
bool checkpoint_is_in_demand(
    struct checkpoint *checkpoint); /* a prefork is taken: is the next one to be made at once? */

/* Of a box that the checkpoint's zygote, which there is, makes. */
void checkpoint_zygote_config(
    const struct checkpoint *checkpoint, const struct profile *profile, struct box_config *config);
void checkpoint_drop_zygotes(
    struct engine *engine); /* drops idle ones, because a resource has run out */
int checkpoint_image(
    const struct checkpoint *checkpoint); /* borrowed: a full image; -EBADF: there is none yet */
uint64_t checkpoint_memory(
    const struct checkpoint *checkpoint); /* bytes that its processes have, at most: the memory of
                                             its zygote, and of its sandboxes at their start */
bool checkpoint_is_incremental_on(const struct checkpoint *checkpoint,
    const struct box *box); /* is it an increment of the image that the box was prepared from? */
struct checkpoint *checkpoint_backing_ref(
    struct checkpoint *checkpoint); /* the checkpoint whose zygote makes its sandboxes: itself, or
                                       its parent, and they apply the increment */

/* In a list of JSON objects. */
void checkpoint_command_text(
    const struct checkpoint_command *command, const char **between, struct buf *to);

#endif
