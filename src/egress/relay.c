/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/relay.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

ssize_t relay_peek(int source, void *data, size_t limit) {
    ssize_t n = recv(source, data, limit, MSG_PEEK | MSG_DONTWAIT);

    return n < 0 ? -errno : n;
}

/* On TCP, MSG_TRUNC drops bytes without copying them (tcp(7)). A Unix socket copies them. */
static int drop(int source, size_t length, char *scratch) {
    while (length > 0) {
        ssize_t n = recv(source, scratch, length, MSG_TRUNC | MSG_DONTWAIT);

        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        length -= (size_t)n;
    }
    return 0;
}

int relay_drop(int source, size_t length) {
    return drop(source, length, NULL);
}

void relay_wake_for(int source, size_t *looked_at, size_t bytes) {
    int more = (int)bytes + 1;

    if (*looked_at == bytes)
        return;
    *looked_at = bytes;
    setsockopt(source, SOL_SOCKET, SO_RCVLOWAT, &more, sizeof more);
}

bool relay_has_ended(int source) {
    struct tcp_info info;
    socklen_t length = sizeof info;

    if (getsockopt(source, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return true;
    return info.tcpi_state != TCP_ESTABLISHED && info.tcpi_state != TCP_FIN_WAIT1 &&
           info.tcpi_state != TCP_FIN_WAIT2;
}

ssize_t relay_pass(
    int source, int target, char *scratch, size_t limit, enum relay *ret_next, int *ret_failed) {
    ssize_t n = relay_peek(source, scratch, limit);

    *ret_failed = source;
    if (n == -EAGAIN || n == -EINTR) {
        *ret_next = RELAY_SOURCE;
        return 0;
    }
    if (n < 0)
        return n;
    if (n == 0) {
        *ret_next = RELAY_END;
        return 0;
    }
    ssize_t sent = send(target, scratch, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        *ret_next = RELAY_TARGET;
        return 0;
    }
    *ret_failed = target;
    if (sent < 0)
        return -errno;
    *ret_failed = source;
    int r = drop(source, (size_t)sent, scratch);
    if (r < 0)
        return r;
    *ret_next = sent < n ? RELAY_TARGET : RELAY_MORE;
    return sent;
}
