/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/route.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"

int route_open(void) {
    const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    const struct timeval patience = { 1, 0 };
    auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0)
        return -errno;
    if (connect(fd, (const void *)&kernel, sizeof kernel) < 0)
        return -errno;
    /* The kernel answers within the call; the limit is for the case that memory is short. */
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0)
        return -errno;
    return TAKE_FD(fd);
}

bool route_is_own(int route, const struct address *address) {
    static uint32_t serial;
    struct {
        struct nlmsghdr header;
        struct rtmsg route;
        struct rtattr attribute;
        uint8_t bytes[16];
    } request = { 0 };
    bool is_v4 = address_is_v4(address);
    unsigned size = is_v4 ? 4 : 16;
    _Alignas(struct nlmsghdr) char answer[4096];

    request.header.nlmsg_len = (uint32_t)(sizeof request - 16 + size);
    request.header.nlmsg_type = RTM_GETROUTE;
    request.header.nlmsg_flags = NLM_F_REQUEST;
    request.header.nlmsg_seq = ++serial;
    request.route.rtm_family = is_v4 ? AF_INET : AF_INET6;
    request.route.rtm_dst_len = (uint8_t)(8 * size);
    request.attribute.rta_type = RTA_DST;
    request.attribute.rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(request.bytes, address->bytes + 16 - size, size);
    if (send(route, &request, request.header.nlmsg_len, 0) < 0)
        return true;
    for (;;) {
        ssize_t n = recv(route, answer, sizeof answer, 0);
        const struct nlmsghdr *header = (const void *)answer;

        if (n < (ssize_t)sizeof *header)
            return true;
        if (header->nlmsg_seq != serial)
            continue; /* an answer that came after its time */
        if (header->nlmsg_type == NLMSG_ERROR) {
            const struct nlmsgerr *problem = NLMSG_DATA(header);

            /* Without a route the address is nobody's here. */
            return problem->error != -ENETUNREACH && problem->error != -EHOSTUNREACH;
        }
        const struct rtmsg *found = NLMSG_DATA(header);
        return header->nlmsg_type != RTM_NEWROUTE || found->rtm_type != RTN_UNICAST;
    }
}
