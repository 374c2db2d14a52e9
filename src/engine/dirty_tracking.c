/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/dirty_tracking.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/op.h"
#include "sys/proc.h"

#define MAX_NOTED 4u /* sandboxes of one fork: of many at once few are forked again */
#define HELD_PART 8  /* of the memory that is left: what is held ahead of need may take no more */

static const clockid_t clocks[2] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME };

static void note_since(struct dirty_tracking *dirty_tracking, struct checkpoint *checkpoint) {
    dirty_tracking->since = checkpoint_get(checkpoint);
    checkpoint->n_trackings++;
}

static void forget_since(struct dirty_tracking *dirty_tracking) {
    if (dirty_tracking->since)
        dirty_tracking->since->n_trackings--;
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
    tracking->next = checkpoint_put(tracking->next);
}

static bool is_noted(const struct op *op) {
    return (op->class->flags & OP_RESUMES_EARLY) && !op->drops && !op->session->was_thawed &&
           !(op->session->profile->plan->flags & (PLAN_SEED | PLAN_CLOCK | PLAN_PROCESS));
}

/* Each process' is an open file, for as long as its sandbox is there: half of all are for more
 * sandboxes. */
static bool may_note(const struct engine *engine) {
    return engine->files + MAX_DIRTY_TRACKERS <= engine->max_files / 2 && box_has_room(engine);
}

/* Its tables come last, in a place where a guest's pages are until then. */
void dirty_tracking_forget_unwritten(struct dirty_tracking *dirty_tracking) {
    if (!dirty_tracking->since || dirty_tracking->since->is_complete)
        return;
    forget_since(dirty_tracking);
    if (dirty_tracking->n_trackers && dirty_tracking->trackers[0].pid == TRACKER_PID_BY_INDEX)
        dirty_tracking_end(dirty_tracking); /* whose they are only that image says */
}

bool dirty_tracking_take(
    struct op *op, struct dirty_tracking *ret_dirty_tracking, struct dump_options *options) {
    struct session *session = op->session;

    *ret_dirty_tracking = (struct dirty_tracking){ 0 };
    if (!is_noted(op))
        return false;
    *ret_dirty_tracking = take_tracking(&session->tracking.dirty_tracking);
    session->tracking.was_dumped = true;
    dirty_tracking_forget_unwritten(ret_dirty_tracking);
    options->base = ret_dirty_tracking->since ? checkpoint_image(ret_dirty_tracking->since) : 0;
    options->tracks =
        ret_dirty_tracking->n_trackers ? box_has_room(session->engine) : may_note(session->engine);
    options->trackers = ret_dirty_tracking->trackers;
    options->n_trackers = ret_dirty_tracking->n_trackers;
    return true;
}

/* What the clocks of a sandbox's processes are ahead of ours. init itself stays outside of their
 * namespace, and has it for its children. 0 or -errno. */
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

void dirty_tracking_begin_box(const struct dirty_tracking *dirty_tracking, struct session *session,
    struct checkpoint *checkpoint) {
    int64_t ahead_ns[2];
    struct box *box;

    if (dirty_tracking->since)
        dirty_tracking_start_zygote(
            dirty_tracking->since, session->profile); /* it may have been given up, for others', or
                                                         nobody has wanted it yet */
    if (!dirty_tracking->since || !dirty_tracking->since->zygote || checkpoint->preforked ||
        !session->box || session->box->pid <= 0 || !box_has_room(session->engine) ||
        !op_files_are_pristine(session->box) || read_clocks(session->box, ahead_ns) < 0)
        return;
    if (box_new(session->profile,
            &(struct box_options){ .base = session->base,
                .zygote = dirty_tracking->since->zygote,
                .notes = checkpoint->notes,
                .ahead_ns = ahead_ns },
            &box, NULL) == 0)
        box_set_preforked(box, checkpoint);
}

bool dirty_tracking_is_few(unsigned count) {
    return count <= MAX_NOTED;
}

/* What is forked as it runs is likely to be forked on; a snapshot is, where it is one of several,
 * or of a fork. */
void dirty_tracking_begin(const struct op *op, struct checkpoint *checkpoint) {
    const struct session *session = op->session;
    const bool is_likely = op->verb == VERB_FORK ? dirty_tracking_is_few(op->fork.count)
                                                 : session->tracking.was_dumped || session->is_fork;

    checkpoint->notes = is_noted(op) && is_likely && may_note(session->engine);
}

void dirty_tracking_born(struct session *session, int *take_fds, size_t n) {
    struct dirty_tracking *dirty_tracking = &session->tracking.dirty_tracking;
    struct checkpoint *checkpoint = session->pending_restore,
                      *since = checkpoint && checkpoint_is_incremental_on(checkpoint, session->box)
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
    box_count_files(session->box);
    note_since(dirty_tracking, since);
    dirty_tracking_start_zygote(since, session->profile);
}

void dirty_tracking_start_zygote(struct checkpoint *checkpoint, struct profile *profile) {
    struct launcher *zygote;
    struct rollbox_error error;
    uint64_t available;

    checkpoint->wants_zygote = !checkpoint->is_complete;
    /* It has all that once more. */
    if (checkpoint->is_complete && !checkpoint->zygote &&
        proc_memory_available(&available, NULL) == 0 &&
        checkpoint_memory(checkpoint) < available / HELD_PART)
        (void)checkpoint_zygote(checkpoint, profile, &zygote, &error);
}

struct checkpoint *dirty_tracking_next(const struct op *op) {
    struct session *session = op->session;

    /* What is captured by itself amends nobody: the sandbox has the processes of the base in it. */
    if (!is_noted(op) || op->verb != VERB_FORK)
        return checkpoint_new(session->engine);
    struct checkpoint *checkpoint = TAKE_PTR(session->tracking.next);

    /* With the processes of another state in it, or on other files. */
    if (checkpoint && checkpoint->preforked &&
        (session->tracking.next_stands_on != session->base ||
            checkpoint->preforked->restored_image != session->tracking.dirty_tracking.since))
        box_kill(checkpoint->preforked);
    return checkpoint ? checkpoint : checkpoint_new(session->engine);
}

void dirty_tracking_prefork(struct session *session) {
    struct session_tracking *tracking = &session->tracking;
    const struct checkpoint *since = tracking->dirty_tracking.since;
    struct engine *engine = session->engine;

    if (!since || !since->zygote || session->at == NULL || !session->at->checkpoint ||
        session->at->checkpoint->parent != since || tracking->next || engine->stopping ||
        engine->n_queued || session->state == SESSION_CLOSING)
        return;
    tracking->next = checkpoint_new(engine);
    tracking->next_stands_on = session->base;
    if (tracking->next) {
        tracking->next->notes = may_note(engine);
        dirty_tracking_begin_box(&tracking->dirty_tracking, session, tracking->next);
    }
}

void dirty_tracking_give_back(struct session *session, struct dirty_tracking *take_dirty_tracking,
    struct checkpoint *checkpoint, bool is_incremental, const struct dirty_tracker *trackers,
    const int *take_fds, size_t n) {
    struct dirty_tracking *dirty_tracking = &session->tracking.dirty_tracking;

    if (is_incremental) {
        checkpoint->parent = checkpoint_get(take_dirty_tracking->since);
        *dirty_tracking = take_tracking(take_dirty_tracking);
        return;
    }
    checkpoint->notes &=
        !take_dirty_tracking->since; /* what it does is more than noting is of use for */
    if (checkpoint->preforked)       /* it has what was */
        box_kill(checkpoint->preforked);
    session->tracking.next = checkpoint_put(session->tracking.next); /* and so has this one */
    for (size_t i = 0; i < n; i++)
        dirty_tracking->trackers[i] = (struct dirty_tracker){ trackers[i].pid, take_fds[i] };
    dirty_tracking->n_trackers = n;
    if (n)
        note_since(dirty_tracking, checkpoint);
    if (session->box)
        box_count_files(session->box);
}

void dirty_tracking_distrust(struct engine *engine, const struct checkpoint *checkpoint) {
    list_for_each(at, &engine->sessions) {
        struct session_tracking *tracking = &container_of(at, struct session, node)->tracking;

        if (checkpoint->parent && tracking->dirty_tracking.since == checkpoint->parent)
            dirty_tracking_forget(tracking);
    }
}

void dirty_tracking_forget_dropped(struct engine *engine) {
    list_for_each(at, &engine->sessions) {
        struct session_tracking *tracking = &container_of(at, struct session, node)->tracking;
        const struct checkpoint *since = tracking->dirty_tracking.since;

        if (since && since->was_dropped && since->references == since->n_trackings)
            dirty_tracking_forget(tracking);
    }
}

bool tracking_make_room(struct engine *engine) {
    for (struct list *at = engine->sessions.next; at != &engine->sessions && !box_has_room(engine);
         at = at->next) {
        struct session *session = container_of(at, struct session, node);

        if (!session->tracking.dirty_tracking.n_trackers)
            continue;
        dirty_tracking_forget(&session->tracking);
        if (session->box)
            box_count_files(session->box);
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
