/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes whose descriptors rest on a shelf (shelf.h), for want of room.
 *
 * Of a sandbox that lives, in which nothing is under way that anybody waits for, the engine keeps the socket to its init alone. All else, its own descriptors and those of its commands, goes to a shelf together and comes back together: when it is asked for
 * something, when init says something, when one of them stirs, when a timer wants something of it. So the rest of the engine, which gets at it in one of these ways, finds everything in its place. What ends without being needed again is dropped.
 */
#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/session.h"
#include "sys/syscalls.h"

#define AT_ONCE 16          /* boxes that make room for one */

/* A descriptor of a box, in the place where it belongs. */
struct resting {
    int *fd;
    uint32_t events;
};

static size_t list_of_run(struct run *run, struct resting *all, size_t n, size_t most) {
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs) && n < most; i++)
        all[n++] = (struct resting){ &run->outputs[i].fd, EPOLLIN };
    for (size_t i = 0; i < ARRAY_SIZE(run->pipes) && n < most; i++)
        all[n++] = (struct resting){ &run->pipes[i].kept, 0 };
    return n;
}

/* All places that may have one; always in the same order, as nothing changes while they are away. */
static size_t list_of(struct box *box, struct resting *all, size_t most) {
    size_t n = 0;
    uint32_t oom_events = 0;
    int *oom = box->slot ? slot_oom(box->slot, &oom_events) : NULL;

    all[n++] = (struct resting){ &box->disk, 0 };
    all[n++] = (struct resting){ &box->pidfd, EPOLLIN };
    all[n++] = (struct resting){ &box->sockets.fd, 0 };
    all[n++] = (struct resting){ &box->sockets.protocols, 0 };
    if (oom)
        all[n++] = (struct resting){ oom, oom_events };
    list_for_each(node, &box->session->runs)
        n = list_of_run(container_of(node, struct run, of_session), all, n, most);
    return n;
}

/* ---- on the shelf ------------------------------------------------------------------------------------------------------- */

static bool run_may_rest(const struct run *run) {
    return run->state == RUN_RUNNING && run->is_detached && !run->client && list_empty(&run->waiters) && !run->has_terminal &&
           !run->typing && run->input < 0 && !run->kill_due && !run->told_to_end && !run->killed && !run->exited && !run->n_extra &&
           list_empty(&run->outputs[0].streams) && list_empty(&run->outputs[1].streams);
}

static bool may_rest(const struct box *box) {
    const struct session *session = box->session;

    if (!session || session->box != box || box->state != BOX_READY || box->shelved.shelf || box->home || box->upper ||
        box->asking.callback || !box->death.callback || box->deadline.position || box->oom)
        return false;
    if ((session->state != SESSION_LIVE && session->state != SESSION_PAUSED) || !list_empty(&session->works) ||
        !list_empty(&session->waiting) || session->fork || session->restores || session->releasing || session->stepping ||
        session->pumping || session->sleep || session->n_agents || session->kill_due || session->thaw_due || session->is_trial)
        return false;
    list_for_each(node, &session->runs)
        if (!run_may_rest(container_of(node, struct run, of_session)))
            return false;
    return true;
}

static void on_stir(struct shelved *shelved) {
    (void)box_fetch_or_later(container_of(shelved, struct box, shelved));
}

/* Back in the loop, which tells of what has happened meanwhile. */
static int watch_again(struct box *box) {
    int r = box->slot ? slot_watch(box->slot) : 0;

    list_for_each(node, &box->session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        for (size_t i = 0; i < ARRAY_SIZE(run->outputs) && r == 0; i++)
            r = run->outputs[i].fd < 0 || run->outputs[i].source.callback ? 0 : output_wake(&run->outputs[i]);
    }
    if (r == 0)
        box_watch_death(box);
    return r;
}

static void unwatch(struct box *box) {
    loop_remove(box->engine->loop, &box->death);
    if (box->slot)
        slot_unwatch(box->slot);
    list_for_each(node, &box->session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
            output_rest(&run->outputs[i]);
    }
}

static void note_wakeful(struct box *box, bool is_wakeful) {
    box->engine->n_wakeful -= !list_empty(&box->in_wakeful);
    list_remove(&box->in_wakeful);
    if (is_wakeful)
        list_add_tail(&box->engine->wakeful, &box->in_wakeful);
    box->engine->n_wakeful += is_wakeful;
}

void box_begin_wakeful(struct box *box) {
    list_init(&box->in_wakeful);
    note_wakeful(box, true);
}

void box_end_wakeful(struct box *box) {
    note_wakeful(box, false);
}

/* Both watch for a moment, here and there: when there is no room for that, nothing has changed here, and nobody's sandbox is in danger. 0, -E2BIG: it has too many; or -errno: none can go there. */
static int rest(struct box *box) {
    struct resting all[64];
    int fds[SHELF_MOST_EACH];
    uint32_t events[SHELF_MOST_EACH];
    const size_t n_all = list_of(box, all, ARRAY_SIZE(all));
    uint64_t on_shelf = 0;
    size_t n = 0;

    for (size_t i = 0; i < n_all && n < ARRAY_SIZE(fds); i++)
        if (*all[i].fd >= 0) {
            on_shelf |= 1ull << i;
            events[n] = all[i].events;
            fds[n++] = *all[i].fd;
        }
    if (n_all == ARRAY_SIZE(all) || n == ARRAY_SIZE(fds))
        return -E2BIG;
    int r = shelf_put(box->engine, &box->shelved, fds, events, n, on_stir);
    if (r < 0)
        return r;
    unwatch(box);
    box->on_shelf = on_shelf;
    for (size_t i = 0; i < n_all; i++)
        if (on_shelf & 1ull << i)
            close_fd(all[i].fd);
    close_fd(&box->netns);
    close_fd(&box->file_ids.fd);
    tracking_forget(&box->session->tracking);   /* its next fork is captured whole */
    box_set_files(box, 1);
    note_wakeful(box, false);
    return 0;
}

/* What is noted of one that cannot rest only makes its next fork quicker. */
static bool is_forgotten(struct box *box) {
    struct session *session = box->session;

    if (!session || session->box != box || box->state != BOX_READY || !session->tracking.noting.n_trackers)
        return false;
    tracking_forget(&session->tracking);
    box_count_files(box);
    return true;
}

/* Those that were looked at go to the end of the list, so that each gets its turn. */
bool box_make_room(struct engine *engine) {
    unsigned made = 0;

    for (unsigned i = engine->n_wakeful; i && made < AT_ONCE && !box_has_room(engine); i--) {
        struct box *box = container_of(engine->wakeful.next, struct box, in_wakeful);

        note_wakeful(box, true);
        int r = may_rest(box) ? rest(box) : -EBUSY;
        if (r < 0 && r != -EBUSY && r != -E2BIG)
            break;
        made += r == 0 || is_forgotten(box);
    }
    return box_has_room(engine);
}

/* ---- and back ----------------------------------------------------------------------------------------------------------- */

int box_fetch(struct box *box) {
    struct resting all[64];
    int fds[SHELF_MOST_EACH];

    if (!box || !box->shelved.shelf)
        return 0;
    (void)box_make_room(box->engine);
    int r = shelf_take(&box->shelved, fds);
    if (r == -EMFILE)
        return r;
    if (r == 0) {
        const size_t n_all = list_of(box, all, ARRAY_SIZE(all));
        size_t n = 0;

        for (size_t i = 0; i < n_all; i++)
            if (box->on_shelf & 1ull << i)
                *all[i].fd = fds[n++];
        box_count_files(box);
        note_wakeful(box, true);
        r = watch_again(box) < 0 ? -EPIPE : 0;
    }
    if (r == 0)
        box->on_shelf = 0;
    else
        session_close(box->session); /* without its files it is none */
    return r;
}

int box_must_fetch(struct box *box, struct rollbox_error *error) {
    int r = box_fetch(box);

    if (r == -EMFILE)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "request",
            "the engine has no descriptors left for what the sandbox needs to go on");
    if (r < 0)
        return error_set(
            error, ROLLBOX_ERR_NOT_FOUND, -r, "request", "the sandbox is gone: the process that held its descriptors was killed");
    return 0;
}

static void on_again(struct loop_timer *timer) {
    struct box *box = container_of(timer, struct box, deadline);

    if (box_fetch_or_later(box) && box->state == BOX_READY && !box->answers.callback && box_listen(box) < 0)
        session_close(box->session);
}

bool box_fetch_or_later(struct box *box) {
    int r = box_fetch(box);

    if (r != -EMFILE)
        return r == 0;
    program_drop_spares(box->engine);
    loop_remove(box->engine->loop, &box->answers);
    (void)loop_timer_set(box->engine->loop, &box->deadline, clock_now_ns() + AGAIN_NS, on_again);
    return false;
}

void box_abandon(struct box *box) {
    shelf_drop(&box->shelved);
    box->on_shelf = 0;
    if (box->slot)
        box->slot->deaf = true;
    box_watch_death(box);
}
