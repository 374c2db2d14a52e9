/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections from outside to a server in the sandbox.
 *
 * The server listens in the sandbox's network namespace, where init makes the connection. The
 * connected socket goes straight to the client that asked for it, and works from there. No process
 * of the guest can reach it, and init keeps no copy.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/wire.h"
#include "guest/init/init.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

/* A non-blocking socket: a server that accepts nothing must not stop init. The client waits. A
 * refusal by the loopback interface comes at once, but after connect has returned. */
static int connect_to(const struct sockaddr *address, socklen_t length) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    int r = connect(fd, address, length) < 0 ? errno : 0;
    socklen_t size = sizeof r;
    if (r == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &size) < 0)
        r = errno;
    if (r == 0)
        return fd;
    close(fd);
    return -r;
}

static int connect_port(uint16_t port) {
    const struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) }
    };
    const struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = { .s6_addr = { [15] = 1 } }
    };
    int fd = connect_to((const void *)&v4, sizeof v4);

    if (fd != -ECONNREFUSED)
        return fd;
    int second = connect_to((const void *)&v6, sizeof v6);
    return second >= 0 ? second : fd;
}

void connect_serve(struct wire_message *message) {
    struct guest_record record = { .kind = GUEST_CONNECTED };
    struct wire_field field;
    size_t position = 0;
    uint64_t port = 0;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == GUEST_NUMBER && wire_u64(&field, &port) < 0)
            port = 0;
    if (message->n_fds != 1)
        return;
    int fd = port && port <= UINT16_MAX ? connect_port((uint16_t)port) : -EINVAL;
    record.error = fd < 0 ? -fd : 0;
    (void)record_send(message->fds[0], &record, &fd, fd >= 0);
    if (fd >= 0)
        close(fd);
}
