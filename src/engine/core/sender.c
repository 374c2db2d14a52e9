/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to receivers for which the engine does not wait.
 *
 * A message that cannot be sent now is kept, with descriptors of its own. It is sent in its turn:
 * when the socket has room again, or after a while if another resource was short.
 *
 * A client that does not read cannot make the memory grow without end. If `pauses_at` is set, the
 * engine stops reading from a client that has left so many bytes unread, so no new request can add
 * to them. A socket's own buffer counts a memory file only as the few bytes of its descriptor. So
 * this module counts memory files, and further ones wait while MAX_FLYING bytes of them are on
 * their way.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/sender.h"

#define MAX_FLYING (64u << 20)
#define PAUSES_AT_MESSAGES 1024u

bool sender_is_paused(const struct sender *sender) {
    return sender->pauses_at &&
           (sender->bytes > sender->pauses_at || sender->n > PAUSES_AT_MESSAGES);
}

static void listen_for(struct sender *sender, bool by_event) {
    sender->by_event = by_event;
    uint32_t events = sender_is_paused(sender) ? 0 : EPOLLIN;
    loop_modify(sender->loop, sender->source, by_event ? events | EPOLLOUT : events);
}

/* Of memory files, that of a long message included. */
static size_t files_bytes(const struct buf *message, const int *fds, size_t n_fds) {
    size_t bytes = message->length > WIRE_INLINE ? message->length : 0;
    struct stat st;

    for (size_t i = 0; i < n_fds; i++)
        if (fstat(fds[i], &st) == 0 && S_ISREG(st.st_mode))
            bytes += (size_t)st.st_blocks * 512;
    return bytes;
}

/* The kernel tells when all has been read, and of nothing between. */
static bool flies_too_much(struct sender *sender) {
    int unread = 0;

    if (!sender->pauses_at || sender->flying <= MAX_FLYING)
        return false;
    if (ioctl(sender->source->fd, SIOCOUTQ, &unread) == 0 && !unread)
        sender->flying = 0;
    return sender->flying > MAX_FLYING;
}

/* True if a later attempt to send the message may succeed. */
static bool is_short(int r, const struct buf *message) {
    switch (r) {
    case -EAGAIN:
    case -ETOOMANYREFS:
    case -EMFILE:
    case -ENFILE:
    case -ENOBUFS:
        return true;
    default:
        return r == -ENOMEM && !message->failed;
    }
}

static void on_retry(struct loop_timer *timer) {
    sender_flush(container_of(timer, struct sender, retry));
}

/* No event tells of other shortages than room in the socket. */
static void wait_for_room(struct sender *sender, int r, int64_t again_ns) {
    listen_for(sender, r == -EAGAIN || loop_timer_set(sender->loop, &sender->retry,
                                           clock_now_ns() + again_ns, on_retry) < 0);
}

/* As wire_send; -ENOBUFS also where the other end is to read first. */
static int try_send(struct sender *sender, struct buf *message, const int *fds, size_t n_fds) {
    const size_t bytes = sender->pauses_at && (n_fds || message->length > WIRE_INLINE)
                             ? files_bytes(message, fds, n_fds)
                             : 0;

    if (bytes && flies_too_much(sender)) {
        wait_for_room(sender, -ENOBUFS, AGAIN_NS);
        return -ENOBUFS;
    }
    int r = wire_send(sender->source->fd, message, fds, n_fds);
    if (is_short(r, message))
        wait_for_room(sender, r, FDS_AGAIN_MS * 1000000ll);
    else if (r == 0)
        sender->flying += bytes;
    return r;
}

void sender_init(struct sender *sender, struct loop *loop, struct loop_source *source,
    void (*over)(struct sender *, struct outgoing *, int)) {
    *sender = (struct sender){ .loop = loop, .source = source, .over = over };
    list_init(&sender->waiting);
}

int sender_send(struct sender *sender, struct buf *message, const int *fds, size_t n_fds) {
    if (!list_empty(&sender->waiting))
        return 1;
    int r = try_send(sender, message, fds, n_fds);
    return is_short(r, message) ? 1 : r;
}

int sender_keep(struct sender *sender, struct outgoing *outgoing, struct buf *message,
    const int *fds, size_t n_fds) {
    int r = fd_copy_all(outgoing->fds, fds, n_fds);

    list_init(&outgoing->node);
    if (r < 0) {
        outgoing_done(outgoing);
        return r;
    }
    outgoing->n_fds = n_fds;
    outgoing->bytes = message->length + files_bytes(&BUF_INIT, fds, n_fds);
    outgoing->message = *message;
    *message = BUF_INIT;
    list_add_tail(&sender->waiting, &outgoing->node);
    sender->bytes += outgoing->bytes;
    sender->n++;
    if (sender->pauses_at)
        listen_for(sender, sender->by_event);
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
        int r = try_send(sender, &outgoing->message, outgoing->fds, outgoing->n_fds);

        if (is_short(r, &outgoing->message))
            return;
        sender->bytes -= outgoing->bytes;
        sender->n--;
        sender->over(sender, outgoing, r);
    }
    listen_for(sender, false);
}
