/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/turn.h"

#include <errno.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define MAX_EVENTS 16
#define MAX_NS 50000 /* after which no further event is taken in this turn */

static void close_if_unused(struct turn *turn) {
    if (turn->n_sources)
        return;
    loop_remove(turn->loop, &turn->source);
    close_fd(&turn->epoll);
}

/* Events are fetched one by one, so that none is left of a source that another one removes. */
static void on_turn(struct loop_source *loop_source, uint32_t events) {
    struct turn *turn = container_of(loop_source, struct turn, source);
    int64_t until = clock_now_ns() + MAX_NS;

    (void)events;
    for (int i = 0; i < MAX_EVENTS && turn->n_sources; i++) {
        struct epoll_event event;

        if (epoll_wait(turn->epoll, &event, 1, 0) <= 0)
            return;
        struct loop_source *source = event.data.ptr;
        source->callback(source, event.events);
        if (clock_now_ns() >= until)
            return;
    }
}

static int open_turn(struct turn *turn) {
    auto_close int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (epoll < 0)
        return -errno;
    int r = loop_add(turn->loop, &turn->source, epoll, EPOLLIN, on_turn);
    if (r == 0)
        turn->epoll = TAKE_FD(epoll);
    return r;
}

int turn_add(struct turn *turn, struct loop_source *source, int fd, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t)) {
    struct epoll_event event = { .events = events, .data.ptr = source };
    int r = turn->n_sources ? 0 : open_turn(turn);

    if (r < 0)
        return r;
    if (epoll_ctl(turn->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        r = -errno;
        close_if_unused(turn);
        return r;
    }
    turn->n_sources++;
    source->fd = fd;
    source->callback = callback;
    return 0;
}

int turn_modify(struct turn *turn, struct loop_source *source, uint32_t events) {
    struct epoll_event event = { .events = events, .data.ptr = source };

    return epoll_ctl(turn->epoll, EPOLL_CTL_MOD, source->fd, &event) < 0 ? -errno : 0;
}

void turn_remove(struct turn *turn, struct loop_source *source) {
    if (!source->callback)
        return;
    epoll_ctl(turn->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    source->fd = -1;
    source->callback = NULL;
    turn->n_sources--;
    close_if_unused(turn);
}
