/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "egress/relay.h"

#define PIECES 8 /* in one turn of the loop, so that others have theirs */

struct replay *replay_new(struct connection *connection) {
    struct replay *replay = calloc(1, sizeof *replay);

    if (replay)
        replay_init(
            replay, connection->box->tape.recording, connection_host(connection), connection->port);
    return replay;
}

/* 1: something has moved; 0: the guest takes no more now, or it is its turn; or -errno. */
static int answer(struct connection *connection) {
    struct replay *replay = connection->replay;
    struct side *guest = &connection->guest;
    const char *data;
    size_t length = replay_server(replay, &data);

    guest->is_full = false;
    if (!length) {
        if (!replay_server_ends(replay))
            return 0;
        shutdown(guest->fd, SHUT_WR);
        connection->upstream.has_ended = true;
        return 1;
    }
    ssize_t n =
        send(guest->fd, data, MIN(length, (size_t)EGRESS_CHUNK), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        guest->is_full = true;
        return 0;
    }
    if (n < 0)
        return -errno;
    replay_sent(replay, (size_t)n);
    connection->down += (uint64_t)n;
    return 1;
}

/* The same with bytes of the guest. -ENOENT: they are not in the recording. */
static int listen_to(struct connection *connection) {
    struct side *guest = &connection->guest;
    char *scratch = connection->box->egress->scratch;
    ssize_t n = relay_peek(guest->fd, scratch, EGRESS_CHUNK);

    if (n == -EAGAIN || n == -EINTR)
        return 0;
    if (n < 0)
        return (int)n;
    if (n == 0) {
        guest->has_ended = true;
        return replay_guest_ends(connection->replay) ? 1 : -ENOENT;
    }
    long taken = replay_guest(connection->replay, scratch, (size_t)n);
    if (taken <= 0)
        return (int)taken;
    connection->up += (uint64_t)taken;
    int r = relay_drop(guest->fd, (size_t)taken);
    return r < 0 ? r : 1;
}

/* As `answer`, for both sides. */
static int move(struct connection *connection) {
    const struct side *guest = &connection->guest;
    int r = answer(connection);

    if (r != 0 || guest->is_full || !connection->is_checked || guest->has_ended)
        return r;
    return listen_to(connection);
}

enum replay_step replay_step(struct connection *connection) {
    struct side *guest = &connection->guest;
    int r = 1;

    for (int i = 0; i < PIECES && r > 0; i++)
        r = move(connection);
    if (r < 0)
        return r == -ENOENT ? REPLAY_STEP_MISS : REPLAY_STEP_RESET;
    if (r > 0)
        guest->is_full = true; /* for the next turn: it is writable at once, if it is */
    else if (guest->has_ended &&
             (connection->upstream.has_ended || replay_is_over(connection->replay)))
        return REPLAY_STEP_END;
    return REPLAY_STEP_WAIT;
}
