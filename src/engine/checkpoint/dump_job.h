/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping the processes of a box.
 *
 * A dump is made by a child of the engine, the dump worker. It pauses the processes, reads their
 * state, reports, and holds them until the job is released. The image may be complete only later,
 * where copy-on-write forks have the memory. The user of a job gets each step by a callback.
 */
#ifndef ROLLBOX_ENGINE_CHECKPOINT_DUMP_JOB_H
#define ROLLBOX_ENGINE_CHECKPOINT_DUMP_JOB_H

#include <stdbool.h>

#include "base/fd.h"
#include "base/inode_numbers.h"

struct box;
struct checkpoint;
struct dump_job;
struct rollbox_error;
struct session_checkpoint;
struct snapshot;

#define DUMP_JOB_MAX_PIPES (FD_MESSAGE_MAX_FDS - 1) /* one message brings them all */

enum dump_failure {
    DUMP_FAILED,   /* the worker was killed, or the engine lacks something */
    DUMP_REFUSED,  /* the worker has reported the error */
    DUMP_MAY_PASS, /* the same, and a moment later nothing may be in the way */
};

/* Until the job is released, `data` is the user's operation. */
struct dump_job_user {
    /* The commands, pipes and terminals of the session. 0 or -errno. */
    int (*note_commands)(void *data, struct checkpoint *checkpoint, int *masters);
    /* The processes are paused, and may have been resumed again (dump_job_resumed). */
    void (*dumped)(void *data, struct checkpoint *take_checkpoint);
    void (*image_written)(void *data);
    void (*failed)(void *data, const struct rollbox_error *error, enum dump_failure failure);
    /* After dump_job_release: all processes are resumed. `is_broken`: the dump worker was killed,
     * and one of them does not continue as it was. */
    void (*released)(void *owner, bool is_broken);
};

struct dump_request {
    struct session_checkpoint *of;
    struct box *box;
    struct snapshot *base; /* the snapshot that the box stands on */
    bool resumes_early;    /* the dump worker may resume the processes before it reports, and what
                              they write to from then on may be tracked */
    bool drops;            /* only the files are wanted in the end */
    bool stays_paused;     /* the processes are not to run on after the dump */
    unsigned n_forks;      /* made of it; 0: it is for no fork */
    const struct dump_job_user *user;
    void *data, *owner;
};

/* The processes are paused soon. 0, or the error. */
int dump_job_start(
    const struct dump_request *request, struct dump_job **ret_job, struct rollbox_error *error);
/* The processes are resumed: user->released follows. */
void dump_job_release(struct dump_job *take_job);
/* Ends the job in any state; the processes are resumed. Takes and returns NULL. */
struct dump_job *dump_job_free(struct dump_job *job);
/* With the box's init all of them end, and none is resumed before. */
void dump_job_kill(struct dump_job *job);
/* The processes are resumed, and image_written follows. False: the image is complete. */
bool dump_job_resume(struct dump_job *job);
bool dump_job_is_complete(const struct dump_job *job); /* the image is written */
/* The worker has resumed them, as there were no files to copy. NULL: false. */
bool dump_job_resumed(const struct dump_job *job);
/* Of the files that are open; NULL of NULL. */
const struct inode_numbers *dump_job_numbers(const struct dump_job *job);
/* The worker was killed, and a process does not continue as it was: `released` comes. */
bool dump_job_has_broken(const struct session_checkpoint *of);

#endif
