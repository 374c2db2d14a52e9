/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/inward.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "egress/outbox.h"
#include "egress/relay.h"

/* TCP does not tell a client that has gone from one that has only sent its last byte. So a
 * connection that one side has ended may be without a byte for so long. */
#define HALF_CLOSED_NS (600 * 1000000000ll)

struct inward_side {
    struct loop_source source;
    int fd;
    bool is_watched; /* in the loop */
    bool is_gone;    /* closed or reset by its other end, which the kernel reports all the time */
    bool is_full;    /* takes no bytes now */
    bool has_ended;  /* sent its last byte, and the other side knows */
};

struct inward {
    struct list node;
    struct inward_group *group;
    struct inward_side outside, inside;
    struct loop_timer timer; /* once one side has ended */
    int64_t active_ns;
};

struct inward_group {
    struct list node;
    struct egress *egress;
    uint64_t id;
    struct turn turn;
    struct list connections;
};

static void update(struct inward *inward);

static void tell(struct egress *egress, const char *event, uint64_t group, uint64_t serial) {
    outbox_send(egress, json_pack("{s:s, s:I, s:I}", "event", event, "group", (json_int_t)group,
                            "serial", (json_int_t)serial));
}

void inward_tell_taken(struct egress *egress, uint64_t group, uint64_t serial) {
    tell(egress, "taken", group, serial);
}

void inward_tell_end(struct egress *egress, uint64_t group, uint64_t serial) {
    tell(egress, "relayed", group, serial);
}

static struct inward_group *find_group(const struct egress *egress, uint64_t id) {
    list_for_each(node, &egress->inward) {
        struct inward_group *group = container_of(node, struct inward_group, node);

        if (group->id == id)
            return group;
    }
    return NULL;
}

static struct inward_group *get_group(struct egress *egress, uint64_t id) {
    struct inward_group *group = find_group(egress, id);

    if (group || !(group = calloc(1, sizeof *group)))
        return group;
    group->egress = egress;
    group->id = id;
    group->turn.loop = egress->loop;
    group->turn.epoll = -EBADF;
    list_init(&group->connections);
    list_add_tail(&egress->inward, &group->node);
    return group;
}

static void close_side(struct inward *inward, struct inward_side *side, bool reset) {
    const struct linger linger = { .l_onoff = reset, .l_linger = 0 };

    (void)setsockopt(side->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    if (side->is_watched)
        turn_remove(&inward->group->turn, &side->source);
    close_fd(&side->fd);
}

static void end(struct inward *inward, bool reset) {
    struct inward_group *group = inward->group;

    close_side(inward, &inward->outside, reset);
    close_side(inward, &inward->inside, reset);
    loop_timer_clear(group->egress->loop, &inward->timer);
    list_remove(&inward->node);
    free(inward);
    if (!list_empty(&group->connections))
        return;
    list_remove(&group->node);
    free(group);
}

static void end_and_tell(struct inward *inward, bool reset) {
    struct egress *egress = inward->group->egress;
    uint64_t group = inward->group->id;

    end(inward, reset);
    inward_tell_end(egress, group, 0);
}

static void on_timer(struct loop_timer *timer) {
    struct inward *inward = container_of(timer, struct inward, timer);
    int64_t until = inward->active_ns + HALF_CLOSED_NS;

    if (clock_now_ns() >= until)
        end_and_tell(inward, true);
    else
        (void)loop_timer_set(inward->group->egress->loop, timer, until, on_timer);
}

/* `from` sends no more, or nobody takes it. */
static void end_direction(struct inward *inward, struct inward_side *from) {
    from->has_ended = true;
    if (!inward->timer.position)
        (void)loop_timer_set(
            inward->group->egress->loop, &inward->timer, clock_now_ns() + HALF_CLOSED_NS, on_timer);
}

/* Passes bytes one way. False: the connection is freed. */
static bool pass(struct inward *inward, struct inward_side *from, struct inward_side *to) {
    enum relay next = RELAY_SOURCE;
    int failed = -EBADF;

    if (from->has_ended || to->is_full)
        return true;
    ssize_t n =
        relay_pass(from->fd, to->fd, inward->group->egress->scratch, EGRESS_CHUNK, &next, &failed);

    if (n < 0 && failed == to->fd) {
        end_direction(inward, from); /* bytes that it sent before may still be here */
    } else if (n < 0) {
        end_and_tell(inward, true);
        return false;
    } else if (next == RELAY_END) {
        end_direction(inward, from);
        (void)shutdown(to->fd, SHUT_WR);
    }
    if (n > 0)
        inward->active_ns = clock_now_ns();
    to->is_full = next == RELAY_TARGET;
    if (inward->outside.has_ended && inward->inside.has_ended) {
        end_and_tell(inward, false);
        return false;
    }
    return true;
}

static void step(struct inward *inward) {
    if (pass(inward, &inward->outside, &inward->inside) &&
        pass(inward, &inward->inside, &inward->outside))
        update(inward);
}

static void on_side(struct inward *inward, struct inward_side *side, uint32_t events) {
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        side->is_full = false;
    if (events & (EPOLLERR | EPOLLHUP))
        side->is_gone = true;
    step(inward);
}

static void on_outside(struct loop_source *source, uint32_t events) {
    struct inward *inward = container_of(source, struct inward, outside.source);

    on_side(inward, &inward->outside, events);
}

static void on_inside(struct loop_source *source, uint32_t events) {
    struct inward *inward = container_of(source, struct inward, inside.source);

    on_side(inward, &inward->inside, events);
}

/* A side that waits for nothing stays in the loop, so that its end is seen, until it is gone. */
static int watch(struct inward *inward, struct inward_side *side, const struct inward_side *other,
    void (*callback)(struct loop_source *, uint32_t)) {
    struct turn *turn = &inward->group->turn;
    const uint32_t events = (side->is_full ? (uint32_t)EPOLLOUT : 0) |
                            (!side->has_ended && !other->is_full ? (uint32_t)EPOLLIN : 0);
    const bool is_wanted = events || !side->is_gone;
    int r = 0;

    if (is_wanted && side->is_watched)
        r = turn_modify(turn, &side->source, events);
    else if (is_wanted)
        r = turn_add(turn, &side->source, side->fd, events, callback);
    else if (side->is_watched)
        turn_remove(turn, &side->source);
    side->is_watched = is_wanted && (r == 0 || side->is_watched);
    return r;
}

static void update(struct inward *inward) {
    if (watch(inward, &inward->outside, &inward->inside, on_outside) < 0 ||
        watch(inward, &inward->inside, &inward->outside, on_inside) < 0)
        end_and_tell(inward, true);
}

int inward_start(struct egress *egress, uint64_t group_id, int take_outside, int take_inside) {
    auto_close int outside = take_outside, inside = take_inside;
    struct inward *inward = calloc(1, sizeof *inward);
    struct inward_group *group = inward ? get_group(egress, group_id) : NULL;

    if (!group) {
        free(inward);
        inward_tell_end(egress, group_id, 0);
        return -ENOMEM;
    }
    inward->group = group;
    inward->outside.fd = TAKE_FD(outside);
    inward->inside.fd = TAKE_FD(inside);
    inward->active_ns = clock_now_ns();
    list_add_tail(&group->connections, &inward->node);
    update(inward);
    return 0;
}

void inward_end_group(struct egress *egress, uint64_t id) {
    struct inward_group *group = find_group(egress, id);
    bool is_last = !group;

    while (!is_last) { /* the last one frees the group */
        is_last = group->connections.next->next == &group->connections;
        end(container_of(group->connections.next, struct inward, node), true);
    }
}

void inward_end_all(struct egress *egress) {
    while (!list_empty(&egress->inward))
        inward_end_group(egress, container_of(egress->inward.next, struct inward_group, node)->id);
}
