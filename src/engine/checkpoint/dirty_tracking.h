/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes that are captured again and again as they run.
 *
 * At the first snapshot or fork of one the kernel is told to note which of its pages are written to
 * (dump/dirty_pages.c), since the state that was captured then: that state, its *base*, is kept.
 * The next capture is of what has changed since, which is an addition to the base
 * (image/process_image.h). Sandboxes of it are those of the base's holder, for a fork begun while
 * the processes are being captured, and amended when that is done. Where one work after the other
 * wants an addition, or one wants many of it, it is put together (flatten.c) and has a holder of
 * its own.
 *
 * What the kernel notes is since the last time that it was told to, so a base is good for who has
 * it until somebody may have told again: a capture takes it out of its session, and puts back what
 * is known to be good after it.
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

/* What the processes of a sandbox write to is noted. One owner at a time: the session, or a capture
 * of it. */
struct dirty_tracking {
    struct checkpoint *since; /* since this state, the base; a reference. NULL: it is not noted, or
                                 not known since when */
    struct dirty_tracker trackers[MAX_DIRTY_TRACKERS];
    size_t n_trackers;
};

struct session_tracking {
    bool was_dumped; /* a session, as it ran */
    struct dirty_tracking dirty_tracking;
    struct checkpoint *next; /* what the next capture is to fill, with the sandbox that it is for,
                                ahead of need; NULL; a reference */
    const struct snapshot *next_stands_on; /* that sandbox: the session's base, then */
};

void dirty_tracking_end(struct dirty_tracking *dirty_tracking);
/* To an image that was not written to its end nothing is an addition. */
void dirty_tracking_forget_unwritten(struct dirty_tracking *dirty_tracking);
void dirty_tracking_forget(struct session_tracking *tracking);
/*
 * Room in the engine's open files for one more box. If there is none, sandboxes lose their dirty
 * tracking, the oldest first, until there is: their next fork is a full one. False: there is still
 * no room.
 */
bool tracking_make_room(struct engine *engine);
/* States were dropped: what is noted since one that is of no other use any more is forgotten. */
void dirty_tracking_forget_dropped(struct engine *engine);
/* For a capture, of what this session has. False: it is none for a snapshot or a fork, and the
 * session keeps it. */
bool dirty_tracking_take(const struct dump_request *request,
    struct dirty_tracking *ret_dirty_tracking, struct dump_options *options);
/* A sandbox for an addition to that, which is on its way, if there is none: `live` has it as the
 * one that was made ahead. What goes wrong who needs one will meet and tell. */
void dirty_tracking_begin_box(const struct dirty_tracking *dirty_tracking, struct box *box,
    struct snapshot *base, struct checkpoint *checkpoint);
/* Before that, of the state that is to be captured for it: whether what its sandboxes write to is
 * noted from their start on. The first capture of them is an addition then, to what they were
 * prepared from. */
void dirty_tracking_begin(const struct dump_request *request, struct checkpoint *checkpoint);
/* So many made at once, of which each is likely to be captured. */
bool dirty_tracking_is_few(unsigned count);
/* Such a one goes on: a userfaultfd of each of its processes. */
void dirty_tracking_born(struct session_checkpoint *of, struct box *box, int *take_fds, size_t n);
/* The holder that its fork will want, as soon as that can be. */
void dirty_tracking_start_zygote(struct checkpoint *checkpoint, struct profile *profile);
/* The state to be captured: for a fork with such a sandbox, if there is one that is right yet.
 * NULL: out of memory. */
struct checkpoint *dirty_tracking_next(const struct dump_request *request);
/* The next fork, where there is likely to be one, finds its sandbox, which waits for a second. Not
 * while the last one is on its way: it would take its processors. */
void dirty_tracking_prefork(struct session_checkpoint *of, struct box *box, struct snapshot *base,
    const struct snapshot *at);
/* The processes are captured: an addition, or a state that is noted from by `fds`, which are taken;
 * 0: nothing is. */
void dirty_tracking_give_back(const struct dump_request *request,
    struct dirty_tracking *take_dirty_tracking, struct checkpoint *checkpoint, bool is_incremental,
    const struct dirty_tracker *trackers, const int *take_fds, size_t n);
/* A sandbox that was to go on from this state did not: where that is an addition, none is made to
 * the same base any more. */
void dirty_tracking_distrust(struct engine *engine, const struct checkpoint *checkpoint);
/* What the clocks of a sandbox are ahead of ours that goes on from this state now: CLOCK_MONOTONIC,
 * CLOCK_BOOTTIME; nanoseconds. */
void dirty_tracking_clocks(const struct checkpoint *checkpoint, int64_t ret_ahead_ns[2]);

#endif
