/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams at a listener that has all addresses: an answer has to come from the address that the
 * guest sent to, which the kernel tells with each datagram. */
#ifndef ROLLBOX_EGRESS_DATAGRAM_H
#define ROLLBOX_EGRESS_DATAGRAM_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "net/address.h"

struct datagram {
    struct sockaddr_storage from; /* the guest's socket */
    socklen_t from_length;
    struct address to; /* the address that it sent to */
    bool is_v4_socket;
};

/* The length or -errno; -EMSGSIZE: longer than that. */
ssize_t datagram_receive(int fd, void *data, size_t limit, struct datagram *ret_datagram);
/* 0 or -errno. */
int datagram_reply(int fd, const void *data, size_t length, const struct datagram *datagram);

#endif
