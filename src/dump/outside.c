/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that lead out of the sandbox.
 *
 * With net "allow" the addresses of the whole world lead to the gateway (guest/init/network.c), so
 * the other end of a connection to such an address is a socket of the gateway. A connection over
 * loopback has its other end outside where a process of the host has made it (GUEST_CONNECT).
 */
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"

#define MAX_DATAGRAMS 256u

/* The address in IPv6 notation, IPv4 as ::ffff:a.b.c.d. */
static bool read_address(const struct sockaddr *name, struct in6_addr *ret_address) {
    if (name->sa_family == AF_INET6) {
        memcpy(ret_address, &((const struct sockaddr_in6 *)(const void *)name)->sin6_addr,
            sizeof *ret_address);
        return true;
    }
    if (name->sa_family != AF_INET)
        return false;
    *ret_address = (struct in6_addr){ .s6_addr = { [10] = 0xff, [11] = 0xff } };
    memcpy(&ret_address->s6_addr[12], &((const struct sockaddr_in *)(const void *)name)->sin_addr,
        sizeof(struct in_addr));
    return true;
}

/* The two addresses of a sandbox's own are those of guest/init/network.c. */
bool outside_is_address(const struct sockaddr *name) {
    static const uint8_t own4[4] = { 10, 0, 2, 15 }, any4[4];
    static const struct in6_addr own6 = { .s6_addr = { 0xfd, [3] = 2, [15] = 0x15 } };
    struct in6_addr address;

    if (!read_address(name, &address))
        return false;
    if (IN6_IS_ADDR_V4MAPPED(&address))
        return address.s6_addr[12] != 127 && memcmp(&address.s6_addr[12], own4, sizeof own4) &&
               memcmp(&address.s6_addr[12], any4, sizeof any4);
    return !IN6_IS_ADDR_LOOPBACK(&address) && !IN6_IS_ADDR_UNSPECIFIED(&address) &&
           memcmp(&address, &own6, sizeof own6);
}

/* While a connection is being opened its remote address cannot be asked for. Its own is that of
 * the route to outside, unless it leads to loopback. */
bool outside_is_remote(int fd) {
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;
    struct in6_addr address;

    if (getpeername(fd, (void *)&name, &length) == 0)
        return outside_is_address((const void *)&name);
    length = sizeof name;
    if (errno != ENOTCONN || getsockname(fd, (void *)&name, &length) < 0 ||
        !read_address((const void *)&name, &address))
        return false;
    return IN6_IS_ADDR_V4MAPPED(&address) ? address.s6_addr[12] != 127
                                          : !IN6_IS_ADDR_LOOPBACK(&address);
}

/* ---- datagrams ---- */

/* They may be lost on the way as well, and a program asks again. */
bool outside_may_lose(int fd) {
    int before = -1, zero = 0;
    socklen_t length = sizeof before;
    bool is_outside = true;
    unsigned n = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, &length) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof zero) < 0)
        return false;
    for (; is_outside && n < MAX_DATAGRAMS; n++) {
        struct sockaddr_storage from = { 0 };
        char byte[65536];
        struct iovec part = { byte, sizeof byte };
        struct msghdr message = {
            .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1
        };
        ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);

        if (got < 0) {
            is_outside = n && (errno == EAGAIN || errno == EWOULDBLOCK);
            break;
        }
        is_outside = outside_is_address((const void *)&from);
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof before);
    return is_outside && n < MAX_DATAGRAMS;
}

/* ---- the other end ---- */

static int put_end(int fd, bool is_own, struct inet_diag_sockid *id, uint8_t *ret_family) {
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;
    int r =
        is_own ? getsockname(fd, (void *)&name, &length) : getpeername(fd, (void *)&name, &length);
    const struct sockaddr_in *v4 = (const void *)&name;
    const struct sockaddr_in6 *v6 = (const void *)&name;

    if (r < 0)
        return -errno;
    *ret_family = (uint8_t)name.ss_family;
    /* The own end of `fd` is the remote one of the socket that is looked for. */
    __be16 *port = is_own ? &id->idiag_dport : &id->idiag_sport;
    __be32 *address = is_own ? id->idiag_dst : id->idiag_src;
    *port = name.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port;
    if (name.ss_family == AF_INET6)
        memcpy(address, &v6->sin6_addr, sizeof v6->sin6_addr);
    else
        memcpy(address, &v4->sin_addr, sizeof v4->sin_addr);
    return 0;
}

/* Adds the kernel's description of the other end of `fd`. */
static int find_end(int fd, struct buf *to) {
    struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 request;
    } ask = {
        .header = { .nlmsg_len = sizeof ask,
            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
            .nlmsg_flags = NLM_F_REQUEST },
        .request = { .sdiag_protocol = IPPROTO_TCP,
            .idiag_states = ~0u,
            .id = { .idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } } },
    };
    _Alignas(struct nlmsghdr) char answer[4096];
    const struct nlmsghdr *header = (const void *)answer;
    auto_close int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    int r = put_end(fd, true, &ask.request.id, &ask.request.sdiag_family);

    if (r == 0)
        r = put_end(fd, false, &ask.request.id, &ask.request.sdiag_family);
    if (r < 0)
        return r;
    if (netlink < 0 || send(netlink, &ask, sizeof ask, 0) < 0)
        return -errno;
    ssize_t n = recv(netlink, answer, sizeof answer, 0);
    if (n < 0)
        return -errno;
    if ((size_t)n < NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return -ENOENT;
    buf_add(to, NLMSG_DATA(header), sizeof(struct inet_diag_msg));
    return buf_failed(to) ? -ENOMEM : 0;
}

bool outside_is_held(const struct dump_process *s, int fd) {
    auto_buf struct buf answer = BUF_INIT;
    struct inet_diag_msg end;

    if (!s || network_ask(s, find_end, fd, &answer) < 0 || answer.length != sizeof end)
        return false;
    memcpy(&end, answer.data, sizeof end);
    return end.idiag_state != TCP_LISTEN && end.idiag_inode;
}

/* ---- connections that wait to be accepted ---- */

struct tcp_end {
    struct in6_addr own, remote;
    uint16_t port, remote_port;
    uint32_t inode; /* 0: no file, so not accepted, or closed */
    uint8_t state;
};

static struct in6_addr to_v6(uint8_t family, const __be32 *address) {
    struct in6_addr v6 = { .s6_addr = { [10] = 0xff, [11] = 0xff } };

    if (family == AF_INET6)
        memcpy(&v6, address, sizeof v6);
    else
        memcpy(&v6.s6_addr[12], address, sizeof *address);
    return v6;
}

static void add_end(const struct nlmsghdr *header, struct buf *to) {
    const struct inet_diag_msg *m = NLMSG_DATA(header);
    const struct tcp_end end = { .own = to_v6(m->idiag_family, m->id.idiag_src),
        .remote = to_v6(m->idiag_family, m->id.idiag_dst),
        .port = m->id.idiag_sport,
        .remote_port = m->id.idiag_dport,
        .inode = m->idiag_inode,
        .state = m->idiag_state };

    buf_add(to, &end, sizeof end);
}

/* Adds all TCP sockets of the namespace of that family. */
static int list_family(int netlink, uint8_t family, struct buf *to) {
    const struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 request;
    } ask = {
        .header = { .nlmsg_len = sizeof ask,
            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
            .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
        .request = { .sdiag_family = family,
            .sdiag_protocol = IPPROTO_TCP,
            .idiag_states = 1u << TCP_ESTABLISHED | 1u << TCP_CLOSE_WAIT },
    };
    static _Alignas(struct nlmsghdr) char answer[65536];

    if (send(netlink, &ask, sizeof ask, 0) < 0)
        return -errno;
    for (;;) {
        ssize_t n = recv(netlink, answer, sizeof answer, 0);
        const struct nlmsghdr *header = (const void *)answer;

        if (n < 0)
            return -errno;
        for (size_t left = (size_t)n; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == NLMSG_DONE)
                return buf_failed(to) ? -ENOMEM : 0;
            if (header->nlmsg_type == NLMSG_ERROR)
                return ((const struct nlmsgerr *)NLMSG_DATA(header))->error;
            if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY)
                add_end(header, to);
        }
    }
}

static uint64_t other_of(const struct tcp_end *ends, size_t n, const struct tcp_end *end) {
    for (size_t i = 0; i < n; i++)
        if (ends[i].port == end->remote_port && ends[i].remote_port == end->port &&
            !memcmp(&ends[i].own, &end->remote, sizeof end->remote) &&
            !memcmp(&ends[i].remote, &end->own, sizeof end->own))
            return ends[i].inode;
    return 0;
}

static int list_waiting(int fd, struct buf *to) {
    auto_close int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    auto_buf struct buf list = BUF_INIT;
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;
    int r = 0;

    if (netlink < 0 || getsockname(fd, (void *)&name, &length) < 0)
        return -errno;
    const uint16_t port = ((const struct sockaddr_in *)(const void *)&name)->sin_port;
    r = list_family(netlink, AF_INET, &list);
    if (r == 0)
        r = list_family(netlink, AF_INET6, &list);
    const struct tcp_end *ends = (const void *)list.data;
    const size_t n = list.length / sizeof *ends;
    for (size_t i = 0; i < n && r == 0; i++)
        if (!ends[i].inode && ends[i].port == port) {
            const uint64_t inode = other_of(ends, n, &ends[i]);

            buf_add(to, &inode, sizeof inode);
        }
    return r == 0 && buf_failed(to) ? -ENOMEM : r;
}

int outside_waiting(const struct dump_process *s, int fd, struct buf *ret_inodes) {
    return s ? network_ask(s, list_waiting, fd, ret_inodes) : -ESRCH;
}
