/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tracking.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/session.h"
#include "sys/proc.h"

#define MOST_NOTED 4u           /* sandboxes of one fork: of many at once few are forked again */
#define HELD_PART 8             /* of the memory that is left: what is held ahead of need may take no more */

static const clockid_t clocks[2] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME };

static void note_since(struct noting *noting, struct live *live) {
    noting->since = live_get(live);
    live->n_notings++;
}

static void forget_since(struct noting *noting) {
    if (noting->since)
        noting->since->n_notings--;
    noting->since = live_put(noting->since);
}

void noting_end(struct noting *noting) {
    forget_since(noting);
    while (noting->n_trackers)
        close(noting->trackers[--noting->n_trackers].fd);
}

static struct noting take(struct noting *from) {
    struct noting taken = *from;

    *from = (struct noting){ 0 };
    return taken;
}

void tracking_forget(struct tracking *tracking) {
    noting_end(&tracking->noting);
    tracking->next = live_put(tracking->next);
}

static bool is_noted(const struct work *work) {
    return (work->verb == VERB_SNAPSHOT || work->verb == VERB_FORK) && !work->drops && !work->session->was_thawed && !(work->session->program->plan->flags & (PLAN_SEED | PLAN_CLOCK | PLAN_PROCESS));
}

/* Each process' is an open file, for as long as its sandbox is there: half of all are for more sandboxes. */
static bool may_note(const struct engine *engine) {
    return engine->files + CAPTURE_MAX_TRACKERS <= engine->max_files / 2 && box_has_room(engine);
}

/* Its tables come last, in a place where a guest's pages are until then. */
void noting_forget_unwritten(struct noting *noting) {
    if (!noting->since || noting->since->is_complete)
        return;
    forget_since(noting);
    if (noting->n_trackers && noting->trackers[0].pid == CAPTURE_BY_ORDER)
        noting_end(noting);     /* whose they are only that image says */
}

bool tracking_take(struct work *work, struct noting *ret_noting, struct capture_options *options) {
    struct session *session = work->session;

    *ret_noting = (struct noting){ 0 };
    if (!is_noted(work))
        return false;
    *ret_noting = take(&session->tracking.noting);
    session->tracking.was_captured = true;
    noting_forget_unwritten(ret_noting);
    options->base = ret_noting->since ? live_image(ret_noting->since) : 0;
    options->tracks = ret_noting->n_trackers ? box_has_room(session->engine) : may_note(session->engine);
    options->trackers = ret_noting->trackers;
    options->n_trackers = ret_noting->n_trackers;
    return true;
}

/* What the clocks of a sandbox' processes are ahead of ours. init itself stays outside of their namespace, and has it for its children. 0 or -errno. */
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

void tracking_begin_box(const struct noting *noting, struct session *session, struct live *live) {
    int64_t ahead_ns[2];
    struct box *box;

    if (noting->since)
        tracking_hold(noting->since, session->program);         /* it may have been given up, for others', or nobody has wanted it yet */
    if (!noting->since || !noting->since->holder || live->ahead || !session->box || session->box->pid <= 0 || !box_has_room(session->engine) || !state_files_are_as_made(session->box) || read_clocks(session->box, ahead_ns) < 0)
        return;
    if (box_new(session->program, &(struct box_options){ .base = session->base, .holder = noting->since->holder, .notes = live->notes, .ahead_ns = ahead_ns }, &box, NULL) == 0)
        box_make_ahead(box, live);
}

bool tracking_is_few(unsigned count) {
    return count <= MOST_NOTED;
}

/* What is forked as it runs is likely to be forked on; a snapshot is, where it is one of several, or of a fork. */
void tracking_begin(const struct work *work, struct live *live) {
    const struct session *session = work->session;
    const bool is_likely = work->verb == VERB_FORK ? tracking_is_few(work->count) : session->tracking.was_captured || session->comes_of_fork;

    live->notes = is_noted(work) && is_likely && may_note(session->engine);
}

void tracking_born(struct session *session, int *take_fds, size_t n) {
    struct noting *noting = &session->tracking.noting;
    struct live *live = session->restores, *since = live && live_amends(live, session->box) ? live->base : live;

    noting_end(noting);
    for (size_t i = 0; i < n; i++)
        if (since && n <= ARRAY_SIZE(noting->trackers))
            noting->trackers[noting->n_trackers++] = (struct capture_tracker){ CAPTURE_BY_ORDER, TAKE_FD(take_fds[i]) };
        else
            close_fd(&take_fds[i]);
    if (!noting->n_trackers)
        return;
    box_count_files(session->box);
    note_since(noting, since);
    tracking_hold(since, session->program);
}

void tracking_hold(struct live *live, struct program *program) {
    struct launcher *holder;
    struct rollbox_error error;
    uint64_t available;

    live->wants_holder = !live->is_complete;
    /* It has all that once more. */
    if (live->is_complete && !live->holder && proc_memory_available(&available, NULL) == 0 && live_memory(live) < available / HELD_PART)
        (void)live_holder(live, program, &holder, &error);
}

struct live *tracking_next(const struct work *work) {
    struct session *session = work->session;

    /* What is captured by itself amends nobody: the sandbox has the processes of the base in it. */
    if (!is_noted(work) || work->verb != VERB_FORK)
        return live_new(session->engine);
    struct live *live = TAKE_PTR(session->tracking.next);

    /* With the processes of another state in it, or on other files. */
    if (live && live->ahead && (session->tracking.next_stands_on != session->base || live->ahead->prepared_from != session->tracking.noting.since))
        box_kill(live->ahead);
    return live ? live : live_new(session->engine);
}

void tracking_make_ahead(struct session *session) {
    struct tracking *tracking = &session->tracking;
    const struct live *since = tracking->noting.since;
    struct engine *engine = session->engine;

    if (!since || !since->holder || session->at == NULL || !session->at->live || session->at->live->base != since || tracking->next || engine->stopping || engine->n_queued || session->state == SESSION_CLOSING)
        return;
    tracking->next = live_new(engine);
    tracking->next_stands_on = session->base;
    if (tracking->next) {
        tracking->next->notes = may_note(engine);
        tracking_begin_box(&tracking->noting, session, tracking->next);
    }
}

void tracking_give_back(struct session *session, struct noting *take_noting, struct live *live, bool is_addition, const struct capture_tracker *trackers, const int *take_fds, size_t n) {
    struct noting *noting = &session->tracking.noting;

    if (is_addition) {
        live->base = live_get(take_noting->since);
        *noting = take(take_noting);
        return;
    }
    live->notes &= !take_noting->since; /* what it does is more than noting is of use for */
    if (live->ahead)            /* it has what was */
        box_kill(live->ahead);
    session->tracking.next = live_put(session->tracking.next);  /* and so has this one */
    for (size_t i = 0; i < n; i++)
        noting->trackers[i] = (struct capture_tracker){ trackers[i].pid, take_fds[i] };
    noting->n_trackers = n;
    if (n)
        note_since(noting, live);
    if (session->box)
        box_count_files(session->box);
}

void tracking_distrust(struct engine *engine, const struct live *live) {
    list_for_each(at, &engine->sessions) {
        struct tracking *tracking = &container_of(at, struct session, node)->tracking;

        if (live->base && tracking->noting.since == live->base)
            tracking_forget(tracking);
    }
}

void tracking_forget_dropped(struct engine *engine) {
    list_for_each(at, &engine->sessions) {
        struct tracking *tracking = &container_of(at, struct session, node)->tracking;
        const struct live *since = tracking->noting.since;

        if (since && since->was_dropped && since->references == since->n_notings)
            tracking_forget(tracking);
    }
}

bool tracking_make_room(struct engine *engine) {
    for (struct list *at = engine->sessions.next; at != &engine->sessions && !box_has_room(engine); at = at->next) {
        struct session *session = container_of(at, struct session, node);

        if (!session->tracking.noting.n_trackers)
            continue;
        tracking_forget(&session->tracking);
        if (session->box)
            box_count_files(session->box);
    }
    return box_has_room(engine);
}

void tracking_clocks(const struct live *live, int64_t ret_ahead_ns[2]) {
    for (size_t i = 0; i < ARRAY_SIZE(clocks); i++) {
        struct timespec now;

        clock_gettime(clocks[i], &now);
        ret_ahead_ns[i] = live->clocks[i] - (now.tv_sec * 1000000000ll + now.tv_nsec);
    }
}
