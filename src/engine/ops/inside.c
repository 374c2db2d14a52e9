/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/inside.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "guest/guest.h"

/* Init's answer. The socket or -errno. */
static int take_socket(int answer) {
    struct guest_record record = { 0 };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n = 0;
    ssize_t length = fd_receive(answer, &record, sizeof record, fds, &n);
    int fd = -ECONNRESET;

    if (length == sizeof record && record.kind == GUEST_CONNECTED && !record.error && n == 1)
        fd = TAKE_FD(fds[0]);
    else if (length == sizeof record && record.error)
        fd = -(int)record.error;
    while (n)
        close_fd(&fds[--n]);
    return fd;
}

/* If the server or the gateway is killed, the other end must not take a part for the whole. */
static void set_options(int fd) {
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    const int on = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void on_answer(struct loop_source *source, uint32_t events) {
    struct inside *inside = container_of(source, struct inside, source);
    auto_close int fd = take_socket(inside->answer);

    (void)events;
    if (fd >= 0)
        set_options(fd);
    inside_cancel(inside);
    inside->done(inside, fd);
}

void inside_cancel(struct inside *inside) {
    if (!inside->loop)
        return;
    loop_remove(inside->loop, &inside->source);
    close_fd(&inside->answer);
    inside->loop = NULL;
}

int inside_ask(struct inside *inside, struct session *session, uint16_t port,
    void (*done)(struct inside *inside, int fd)) {
    struct rollbox_error error;
    int pair[2];

    if (session_may_wait(session, &error) < 0)
        return -ENOBUFS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    auto_close int theirs = pair[1];
    *inside = (struct inside){
        .loop = session->engine->loop, .answer = pair[0], .done = done, .source.fd = -1
    };
    int r = loop_add(inside->loop, &inside->source, pair[0], EPOLLIN, on_answer);
    if (r == 0) {
        session_touch(session);
        op_session_called(session);
    }
    struct op *op = r == 0 ? op_new(session, VERB_CONNECT, NULL, 0) : NULL;
    if (!op) {
        inside_cancel(inside);
        return r < 0 ? r : -ENOMEM;
    }
    op->port = port;
    op->request.fd = TAKE_FD(theirs);
    session_schedule(session);
    return 0;
}
