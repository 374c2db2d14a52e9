/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dump worker: a fork of the engine that dumps one sandbox's processes (dump_job.c has the
 * other side). It knows nothing of the engine.
 */
#ifndef ROLLBOX_ENGINE_CHECKPOINT_DUMP_WORKER_H
#define ROLLBOX_ENGINE_CHECKPOINT_DUMP_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/inode_numbers.h"
#include "dump/dump.h"

#define DUMP_WORKER_MAX_MAINS 512
#define DUMP_WORKER_MAX_TERMINALS 64

/* Its report: one message, or two. */
struct dump_report {
    struct rollbox_error error; /* code 0: the processes are dumped and paused */
    int result;                 /* 0 or -errno; -EAGAIN: a later try may succeed */
    bool is_complete; /* and the image is written; else there is a second message when that is so */
    bool is_incremental; /* to the base that was given */
    bool resumes;        /* they do not stand any more */
    uint32_t n_trackers; /* with the first message come as many descriptors */
    struct dirty_tracker trackers[MAX_DIRTY_TRACKERS]; /* without these */
    int64_t clocks[2]; /* of the processes: CLOCK_MONOTONIC, CLOCK_BOOTTIME; nanoseconds */
    uint64_t bytes;    /* of the image, then */
    uint32_t processes;
    struct inode_numbers numbers;                   /* of the files that are open */
    uint32_t n_mains, mains[DUMP_WORKER_MAX_MAINS]; /* pids, inside, of init's children */
};

/* The command that it gets after the first message: a byte. */
enum dump_command {
    DUMP_COMMAND_END = 1, /* all of them end, and none resumes before */
    DUMP_COMMAND_RESUME,  /* they resume; if the image is not complete */
};

/* Dumps to the empty memory file `image`, reports the result, and resumes all processes when the
 * other end of `socket` is closed; or before the report, if `may_resume` allows it when all are
 * dumped and paused (NULL: it does not). */
_Noreturn void dump_worker_run(const struct dump_options *options, bool (*may_resume)(void *data),
    void *data, int image, int socket);

#endif
