/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that are dumped repeatedly while they run.
 *
 * The first snapshot or fork of a session enables dirty tracking (dump/dirty_pages.c): the kernel
 * records which pages are written to from then on. The dumped state is kept as the *base*. The next
 * dump is incremental: it has only the pages that changed since the base (image/process_image.h).
 * Its boxes are clones of the base's zygote. For a fork they are begun while the processes are
 * being dumped, and apply the increment when the dump is done. If one operation after the other
 * wants an incremental image, or one wants many boxes of it, it is flattened (flatten.c) and has a
 * zygote of its own.
 *
 * Dirty tracking counts from the last time that it was restarted. So a base is valid for its owner
 * only until another dump may have restarted it: a dump takes the base out of its session, and puts
 * back what is known to be valid after it.
 */
#ifndef ROLLBOX_ENGINE_CHECKPOINT_DIRTY_TRACKING_H
#define ROLLBOX_ENGINE_CHECKPOINT_DIRTY_TRACKING_H

#include <stdbool.h>
#include <stddef.h>

#include "dump/dump.h"

struct box;
struct engine;
struct checkpoint;
struct snapshot;
struct profile;
struct dump_request;
struct session_checkpoint;

/* Dirty tracking of the processes of a sandbox. One owner at a time: the session, or a dump of it.
 */
struct dirty_tracking {
    struct checkpoint *since; /* since this state, the base; a reference. NULL: it is not noted, or
                                 not known since when */
    struct dirty_tracker trackers[MAX_DIRTY_TRACKERS];
    size_t n_trackers;
};

struct session_tracking {
    bool was_dumped; /* a session, as it ran */
    struct box *box; /* whose open files the trackers are; NULL: there are none */
    struct dirty_tracking dirty_tracking;
};

/* A session begins, or ends. */
void dirty_tracking_add(struct session_checkpoint *of);
void dirty_tracking_remove(struct session_checkpoint *of);
void dirty_tracking_end(struct dirty_tracking *dirty_tracking);
/* An image that was not written to its end has no increments. */
void dirty_tracking_forget_unwritten(struct dirty_tracking *dirty_tracking);
void dirty_tracking_forget(struct session_tracking *tracking);
/*
 * Room in the engine's open files for one more box. If there is none, sandboxes lose their dirty
 * tracking, the oldest first, until there is: their next fork is a full one. False: there is still
 * no room.
 */
bool tracking_make_room(struct engine *engine);
/* Snapshots were dropped: tracking since a base without any other use ends. */
void dirty_tracking_forget_dropped(void);
/* For a capture, of what this session has. False: it is none for a snapshot or a fork, and the
 * session keeps it. */
bool dirty_tracking_take(const struct dump_request *request,
    struct dirty_tracking *ret_dirty_tracking, struct dump_options *options);
/* Starts a box for an increment of that, which is being dumped, if there is none: the checkpoint
 * has it as its prefork. The operation that needs the box meets and reports any error. */
void dirty_tracking_begin_box(const struct dirty_tracking *dirty_tracking, struct box *box,
    struct snapshot *base, struct checkpoint *checkpoint);
/* Before that, of the state that is to be dumped for it: whether its sandboxes have dirty tracking
 * from their start. Their first dump is then incremental to the image that they were restored from.
 */
void dirty_tracking_begin(const struct dump_request *request, struct checkpoint *checkpoint);
/* So many made at once, of which each is likely to be captured. */
bool dirty_tracking_is_few(unsigned count);
/* Such a box resumes: a userfaultfd of each of its processes. */
void dirty_tracking_born(struct session_checkpoint *of, struct box *box, int *take_fds, size_t n);
/* Starts the zygote that its fork will want, as soon as possible. */
void dirty_tracking_start_zygote(struct checkpoint *checkpoint, struct profile *profile);
/* The processes are dumped: an incremental image, or a new base that is tracked by `fds`, which are
 * taken; 0: no tracking. */
void dirty_tracking_give_back(const struct dump_request *request,
    struct dirty_tracking *take_dirty_tracking, struct checkpoint *checkpoint, bool is_incremental,
    const struct dirty_tracker *trackers, const int *take_fds, size_t n);
/* A sandbox that was to resume from this state did not: if its image is incremental, no more
 * increments of the same base are made. */
void dirty_tracking_distrust(const struct checkpoint *checkpoint);
/* By how much the clocks of a sandbox that resumes from this state now are ahead of ours:
 * CLOCK_MONOTONIC, CLOCK_BOOTTIME; nanoseconds. */
void dirty_tracking_clocks(const struct checkpoint *checkpoint, int64_t ret_ahead_ns[2]);

#endif
