/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to somebody whom the engine does not wait for.
 *
 * What cannot be sent now is kept, with descriptors of its own, and goes in its turn: when the socket has room again, or, where it was something else that was short, after a while.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/engine.h"

/* What cannot be sent now, but may be later. */
static bool is_short(int r, const struct buf *message) {
    return r == -EAGAIN || r == -ETOOMANYREFS || r == -EMFILE || r == -ENFILE || r == -ENOBUFS || (r == -ENOMEM && !message->failed);
}

static void on_retry(struct loop_timer *timer) {
    sender_flush(container_of(timer, struct sender, retry));
}

/* Of what else is short than room in the socket no event tells. */
static void wait_for_room(struct sender *sender, int r) {
    bool by_event = r == -EAGAIN || loop_timer_set(sender->loop, &sender->retry, clock_now_ns() + FDS_AGAIN_MS * 1000000ll, on_retry) < 0;

    loop_modify(sender->loop, sender->source, by_event ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void sender_init(struct sender *sender, struct loop *loop, struct loop_source *source, void (*over)(struct sender *, struct outgoing *, int)) {
    *sender = (struct sender){ .loop = loop, .source = source, .over = over };
    list_init(&sender->waiting);
}

int sender_send(struct sender *sender, struct buf *message, const int *fds, size_t n_fds) {
    if (!list_empty(&sender->waiting))
        return 1;
    int r = wire_send(sender->source->fd, message, fds, n_fds);
    if (!is_short(r, message))
        return r;
    wait_for_room(sender, r);
    return 1;
}

int sender_keep(struct sender *sender, struct outgoing *outgoing, struct buf *message, const int *fds, size_t n_fds) {
    list_init(&outgoing->node);
    while (outgoing->n_fds < n_fds) {
        int fd = fcntl(fds[outgoing->n_fds], F_DUPFD_CLOEXEC, 3);

        if (fd < 0) {
            fd = -errno;
            outgoing_done(outgoing);
            return fd;
        }
        outgoing->fds[outgoing->n_fds++] = fd;
    }
    outgoing->message = *message;
    *message = BUF_INIT;
    list_add_tail(&sender->waiting, &outgoing->node);
    return 0;
}

void outgoing_done(struct outgoing *outgoing) {
    list_remove(&outgoing->node);
    while (outgoing->n_fds)
        close_fd(&outgoing->fds[--outgoing->n_fds]);
    buf_done(&outgoing->message);
}

void sender_flush(struct sender *sender) {
    while (!list_empty(&sender->waiting)) {
        struct outgoing *outgoing = container_of(sender->waiting.next, struct outgoing, node);
        int r = wire_send(sender->source->fd, &outgoing->message, outgoing->fds, outgoing->n_fds);

        if (is_short(r, &outgoing->message)) {
            wait_for_room(sender, r);
            return;
        }
        sender->over(sender, outgoing, r);
    }
    loop_modify(sender->loop, sender->source, EPOLLIN);
}
