/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/datagram.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

ssize_t datagram_receive(int fd, void *data, size_t limit, struct datagram *ret_datagram) {
    _Alignas(struct cmsghdr) char control[256];
    struct iovec part = { data, limit };
    struct msghdr message = { .msg_name = &ret_datagram->from,
        .msg_namelen = sizeof ret_datagram->from,
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof control };
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
    bool has_address = false;

    if (n < 0)
        return -errno;
    if (message.msg_flags & MSG_TRUNC)
        return -EMSGSIZE;
    ret_datagram->from_length = message.msg_namelen;
    ret_datagram->is_v4_socket = ret_datagram->from.ss_family == AF_INET;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;

            memcpy(&info, CMSG_DATA(c), sizeof info);
            memcpy(ret_datagram->to.bytes, &info.ipi6_addr, sizeof ret_datagram->to.bytes);
            has_address = true;
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;

            memcpy(&info, CMSG_DATA(c), sizeof info);
            ret_datagram->to = address_of_v4(ntohl(info.ipi_addr.s_addr));
            has_address = true;
        }
    }
    return has_address ? n : -EDESTADDRREQ;
}

int datagram_reply(int fd, const void *data, size_t length, const struct datagram *datagram) {
    _Alignas(struct cmsghdr) char control[256] = { 0 };
    struct iovec part = { (void *)(uintptr_t)data, length };
    struct sockaddr_storage to = datagram->from;
    struct msghdr message = { .msg_name = &to,
        .msg_namelen = datagram->from_length,
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control };
    struct cmsghdr *c = (void *)control;

    if (address_is_v4(&datagram->to)) {
        struct in_pktinfo info = { .ipi_spec_dst.s_addr = htonl(address_v4(&datagram->to)) };

        message.msg_controllen = CMSG_SPACE(sizeof info);
        *c = (struct cmsghdr){ CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO };
        memcpy(CMSG_DATA(c), &info, sizeof info);
    } else {
        struct in6_pktinfo info = { 0 };

        memcpy(&info.ipi6_addr, datagram->to.bytes, sizeof info.ipi6_addr);
        message.msg_controllen = CMSG_SPACE(sizeof info);
        *c = (struct cmsghdr){ CMSG_LEN(sizeof info), IPPROTO_IPV6, IPV6_PKTINFO };
        memcpy(CMSG_DATA(c), &info, sizeof info);
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}
