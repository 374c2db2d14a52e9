/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/dirty_tracking.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/box_files.h"
#include "engine/files/layer_chain.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/spares.h"
#include "sys/proc.h"

#define MAX_NOTED 4u /* sandboxes of one fork: of many at once few are forked again */
#define HELD_PART 8  /* an unused zygote may take this part of the available memory */

static const clockid_t clocks[2] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME };

static void note_since(struct dirty_tracking *dirty_tracking, struct checkpoint *checkpoint) {
    dirty_tracking->since = checkpoint_get(checkpoint);
    checkpoint->tracking.n++;
}

static struct list sessions = LIST_INIT(sessions); /* struct session_checkpoint.node */

static struct session_tracking *tracking_at(struct list *node) {
    return &container_of(node, struct session_checkpoint, node)->tracking;
}

static void forget_since(struct dirty_tracking *dirty_tracking) {
    if (dirty_tracking->since)
        dirty_tracking->since->tracking.n--;
    dirty_tracking->since = checkpoint_put(dirty_tracking->since);
}

void dirty_tracking_end(struct dirty_tracking *dirty_tracking) {
    forget_since(dirty_tracking);
    while (dirty_tracking->n_trackers)
        close(dirty_tracking->trackers[--dirty_tracking->n_trackers].fd);
}

static struct dirty_tracking take_tracking(struct dirty_tracking *from) {
    struct dirty_tracking taken = *from;

    *from = (struct dirty_tracking){ 0 };
    return taken;
}

void dirty_tracking_forget(struct session_tracking *tracking) {
    dirty_tracking_end(&tracking->dirty_tracking);
    tracking->box = NULL;
}

static bool is_tracked(const struct dump_request *request) {
    return request->resumes_early && !request->drops && !request->of->was_thawed &&
           !(request->of->profile->plan->flags & (PLAN_SEED | PLAN_CLOCK | PLAN_PROCESS));
}

/* Each process has an open file for it while its sandbox exists: half of all are kept for more
 * sandboxes. */
static bool may_note(const struct engine *engine) {
    return engine->files.used + MAX_DIRTY_TRACKERS <= engine->files.most / 2 &&
           box_has_room(engine);
}

/* Its tables come last, in a place where a guest's pages are until then. */
void dirty_tracking_forget_unwritten(struct dirty_tracking *dirty_tracking) {
    if (!dirty_tracking->since || dirty_tracking->since->is_complete)
        return;
    forget_since(dirty_tracking);
    if (dirty_tracking->n_trackers && dirty_tracking->trackers[0].pid == TRACKER_PID_BY_INDEX)
        dirty_tracking_end(dirty_tracking); /* only that image names their processes */
}

bool dirty_tracking_take(const struct dump_request *request,
    struct dirty_tracking *ret_dirty_tracking, struct dump_options *options) {
    struct session_tracking *tracking = &request->of->tracking;
    const struct engine *engine = request->of->profile->engine;

    *ret_dirty_tracking = (struct dirty_tracking){ 0 };
    if (!is_tracked(request))
        return false;
    *ret_dirty_tracking = take_tracking(&tracking->dirty_tracking);
    tracking->was_dumped = true;
    dirty_tracking_forget_unwritten(ret_dirty_tracking);
    options->base = ret_dirty_tracking->since ? checkpoint_image(ret_dirty_tracking->since) : 0;
    options->tracks = ret_dirty_tracking->n_trackers ? box_has_room(engine) : may_note(engine);
    options->trackers = ret_dirty_tracking->trackers;
    options->n_trackers = ret_dirty_tracking->n_trackers;
    return true;
}

/* Reads the lead of the clocks of a sandbox's processes over ours. init itself stays outside of
 * their time namespace, which its children enter. Returns 0 or -errno. */
static int read_clocks(struct box *box, int64_t ret_ahead_ns[2]) {
    static const char *const names[2] = { "\nmonotonic", "\nboottime" };
    auto_buf struct buf text = BUF_INIT;
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/timens_offsets", (int)box->pid);
    buf_add(&text, "\n", 1);
    int r = fd_read_file(path, 256, &text);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *line = strstr(text.data, names[i]);
        long long seconds, ns;

        if (!line || sscanf(line + strlen(names[i]), "%lld %lld", &seconds, &ns) != 2)
            return -EBADMSG;
        ret_ahead_ns[i] = seconds * 1000000000 + ns;
    }
    return 0;
}

void dirty_tracking_begin_box(const struct dirty_tracking *dirty_tracking, struct box *box,
    struct snapshot *base, struct checkpoint *checkpoint) {
    struct profile *profile = box ? box->profile : NULL;
    struct box_config config = { 0 };
    struct box_layers layers;
    int64_t ahead_ns[2];
    struct box *made;

    if (!box || box->pid <= 0)
        return;
    /* Its zygote may have been given up for others, or no fork has wanted it yet. */
    if (dirty_tracking->since)
        dirty_tracking_start_zygote(dirty_tracking->since, profile);
    if (!dirty_tracking->since || !dirty_tracking->since->zygote || checkpoint->preforked)
        return;
    if (!box_has_room(profile->engine) || !op_files_are_pristine(box) ||
        read_clocks(box, ahead_ns) < 0)
        return;
    if (snapshot_box_layers(base, &layers) < 0)
        return;
    checkpoint_zygote_config(dirty_tracking->since, profile, &config);
    config.layers = &layers;
    config.tracks = checkpoint->tracking.is_from_birth;
    config.ahead_ns = ahead_ns;
    if (profile_new_box(profile, &config, NULL, NULL, &made, NULL) == 0)
        preforked_set(checkpoint, made);
    box_layers_done(&layers);
}

bool dirty_tracking_is_few(unsigned count) {
    return count <= MAX_NOTED;
}

/* Tracking pays if the processes are likely to be dumped again. They are, if a running sandbox has
 * few forks, or if a snapshot is not the first one or is one of a fork. */
void dirty_tracking_begin(const struct dump_request *request, struct checkpoint *checkpoint) {
    const struct session_checkpoint *of = request->of;
    const bool is_likely = request->n_forks ? dirty_tracking_is_few(request->n_forks)
                                            : of->tracking.was_dumped || of->is_fork;

    checkpoint->tracking.is_from_birth =
        is_tracked(request) && is_likely && may_note(of->profile->engine);
}

void dirty_tracking_born(struct session_checkpoint *of, struct box *box, int *take_fds, size_t n) {
    struct dirty_tracking *dirty_tracking = &of->tracking.dirty_tracking;
    struct checkpoint *checkpoint = of->pending_restore,
                      *since = checkpoint && checkpoint_is_incremental_on(checkpoint, box)
                                   ? checkpoint->parent
                                   : checkpoint;

    dirty_tracking_end(dirty_tracking);
    for (size_t i = 0; i < n; i++)
        if (since && n <= ARRAY_SIZE(dirty_tracking->trackers))
            dirty_tracking->trackers[dirty_tracking->n_trackers++] =
                (struct dirty_tracker){ TRACKER_PID_BY_INDEX, TAKE_FD(take_fds[i]) };
        else
            close_fd(&take_fds[i]);
    if (!dirty_tracking->n_trackers)
        return;
    of->tracking.box = box;
    box_count_files(box);
    note_since(dirty_tracking, since);
    dirty_tracking_start_zygote(since, of->profile);
}

void dirty_tracking_start_zygote(struct checkpoint *checkpoint, struct profile *profile) {
    struct launcher *zygote;
    struct rollbox_error error;
    uint64_t available;

    checkpoint->tracking.wants_zygote = !checkpoint->is_complete;
    /* It has all that once more. */
    if (checkpoint->is_complete && !checkpoint->zygote &&
        proc_memory_available(&available, NULL) == 0 &&
        checkpoint_memory(checkpoint) < available / HELD_PART)
        (void)checkpoint_zygote(checkpoint, profile, &zygote, &error);
}

void dirty_tracking_give_back(const struct dump_request *request,
    struct dirty_tracking *take_dirty_tracking, struct checkpoint *checkpoint, bool is_incremental,
    const struct dirty_tracker *trackers, const int *take_fds, size_t n) {
    struct session_tracking *tracking = &request->of->tracking;
    struct dirty_tracking *dirty_tracking = &tracking->dirty_tracking;

    if (is_incremental) {
        checkpoint->parent = checkpoint_get(take_dirty_tracking->since);
        *dirty_tracking = take_tracking(take_dirty_tracking);
        return;
    }
    checkpoint->tracking.is_from_birth &=
        !take_dirty_tracking->since; /* it changes too many pages for tracking to be of use */
    preforked_drop(checkpoint);      /* its box has the processes of the parent image */
    for (size_t i = 0; i < n; i++)
        dirty_tracking->trackers[i] = (struct dirty_tracker){ trackers[i].pid, take_fds[i] };
    dirty_tracking->n_trackers = n;
    tracking->box = request->box;
    if (n)
        note_since(dirty_tracking, checkpoint);
    box_count_files(request->box);
}

void dirty_tracking_add(struct session_checkpoint *of) {
    list_add_tail(&sessions, &of->node);
}

void dirty_tracking_remove(struct session_checkpoint *of) {
    list_remove(&of->node);
}

void dirty_tracking_distrust(const struct checkpoint *checkpoint) {
    list_for_each(at, &sessions) {
        struct session_tracking *tracking = tracking_at(at);

        if (checkpoint->parent && tracking->dirty_tracking.since == checkpoint->parent)
            dirty_tracking_forget(tracking);
    }
}

void dirty_tracking_forget_dropped(void) {
    list_for_each(at, &sessions) {
        struct session_tracking *tracking = tracking_at(at);
        const struct checkpoint *since = tracking->dirty_tracking.since;

        if (since && since->was_dropped && since->references == since->tracking.n)
            dirty_tracking_forget(tracking);
    }
}

bool tracking_make_room(struct engine *engine) {
    for (struct list *at = sessions.next; at != &sessions && !box_has_room(engine); at = at->next) {
        struct session_tracking *tracking = tracking_at(at);
        struct box *box = tracking->box;

        if (!tracking->dirty_tracking.n_trackers)
            continue;
        dirty_tracking_forget(tracking);
        if (box)
            box_count_files(box);
    }
    return box_has_room(engine);
}

void dirty_tracking_clocks(const struct checkpoint *checkpoint, int64_t ret_ahead_ns[2]) {
    for (size_t i = 0; i < ARRAY_SIZE(clocks); i++) {
        struct timespec now;

        clock_gettime(clocks[i], &now);
        ret_ahead_ns[i] = checkpoint->clocks[i] - (now.tv_sec * 1000000000ll + now.tv_nsec);
    }
}
