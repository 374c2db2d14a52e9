/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network namespace of a sandbox with net "allow".
 *
 * The namespace has no interface but loopback, so no packet can leave it. Routes make every address
 * of the world a local one (AnyIP). The sockets that receive what the guest sends to such addresses
 * are opened here and handed to the engine, and from there to rollbox-egress. The guest never has a
 * descriptor of them.
 *
 * In *transparent* mode, nftables passes each TCP connection to one listener. The address that the
 * guest connected to is the local address of the accepted socket. All other packets are refused at
 * once, except UDP and packets to the sandbox's own addresses. In *ports* mode, for kernels without
 * nf_tables or tproxy, there is a listener for each port of the policy, and the kernel refuses
 * connections to other ports.
 *
 * The absence of an interface confines the guest. The rules only direct packets.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/init/network.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

#define LOOPBACK_INDEX 1 /* the first interface of its namespace */
#define LISTENER_PORT 1  /* needs a right to bind that no guest has */
#define DNS_PORT 53
#define BACKLOG 128

static const uint8_t own4[4] = { 10, 0, 2, 15 };
static const uint8_t own6[16] = { 0xfd, 0, 0, 2, [15] = 0x15 };
static const uint8_t loopback6[16] = { [15] = 1 };

/* ---- messages of netlink, put together in a buffer of the caller's ---- */

struct message {
    _Alignas(4) uint8_t data[4096];
    uint32_t length;
    bool overflowed;
};

static void *add(struct message *m, const void *data, uint32_t length) {
    uint8_t *at = m->data + m->length;

    if (m->length + NLMSG_ALIGN(length) > sizeof m->data) {
        m->overflowed = true;
        return m->data; /* it is never sent */
    }
    memset(at, 0, NLMSG_ALIGN(length));
    if (data)
        memcpy(at, data, length);
    m->length += NLMSG_ALIGN(length);
    return at;
}

static struct nlmsghdr *begin(struct message *m, unsigned type, unsigned flags) {
    const struct nlmsghdr header = { .nlmsg_type = (uint16_t)type,
        .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags) };

    return add(m, &header, sizeof header);
}

static void end(struct message *m, struct nlmsghdr *header) {
    header->nlmsg_len = (uint32_t)(m->data + m->length - (uint8_t *)header);
}

static void attribute(struct message *m, unsigned type, const void *data, uint32_t length) {
    const struct rtattr header = { (uint16_t)(sizeof header + length), (uint16_t)type };

    add(m, &header, sizeof header);
    add(m, data, length);
}

static void text(struct message *m, unsigned type, const char *value) {
    uint32_t length = 1;

    while (value[length - 1])
        length++;
    attribute(m, type, value, length);
}

static void number(struct message *m, unsigned type, uint32_t value) {
    value = __builtin_bswap32(value);
    attribute(m, type, &value, sizeof value);
}

static struct rtattr *nest(struct message *m, unsigned type) {
    const struct rtattr header = { sizeof header, (uint16_t)(type | NLA_F_NESTED) };

    return add(m, &header, sizeof header);
}

static void unnest(struct message *m, struct rtattr *outer) {
    outer->rta_len = (uint16_t)(m->data + m->length - (uint8_t *)outer);
}

/* The kernel carries a request out before sendto() returns, and answers failures alone: these have
 * no NLM_F_ACK. 0, or the first error. */
static int transact(int protocol, const struct message *m) {
    int fd = (int)sys_call3(__NR_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        uint8_t rest[512];
    } answer;

    if (fd < 0)
        return fd;
    if (m->overflowed) {
        close(fd);
        return -E2BIG;
    }
    long n = sys_call6(__NR_sendto, fd, SYS_ARG(m->data), m->length, 0, 0, 0);
    int r = n < 0 ? (int)n : 0;
    if (r == 0) {
        n = sys_call6(__NR_recvfrom, fd, SYS_ARG(&answer), sizeof answer, MSG_DONTWAIT, 0, 0);
        if (n >= (long)(sizeof answer.header + sizeof answer.error.error) &&
            answer.header.nlmsg_type == NLMSG_ERROR)
            r = answer.error.error;
        else if (n != -EAGAIN)
            r = n < 0 ? (int)n : -EBADMSG;
    }
    close(fd);
    return r;
}

/* ---- routes ---- */

/* Without IFA_F_NODAD an IPv6 address is tentative until a worker of the kernel has looked at it,
 * and no route can name it before. */
static void add_address(struct message *m, int family, const uint8_t *address, uint32_t length) {
    const struct ifaddrmsg body = { .ifa_family = (uint8_t)family,
        .ifa_prefixlen = (uint8_t)(length * 8),
        .ifa_flags = IFA_F_NODAD,
        .ifa_scope = RT_SCOPE_UNIVERSE,
        .ifa_index = LOOPBACK_INDEX };
    struct nlmsghdr *header = begin(m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);

    add(m, &body, sizeof body);
    attribute(m, IFA_LOCAL, address, length);
    attribute(m, IFA_ADDRESS, address, length);
    end(m, header);
}

/* The preferred source matters: without it the source of a connection would be its destination, and
 * a socket could be connected to itself. */
static void add_any_route(struct message *m, int family, const uint8_t *from, uint32_t length) {
    const struct rtmsg body = { .rtm_family = (uint8_t)family,
        .rtm_table = RT_TABLE_LOCAL,
        .rtm_protocol = RTPROT_STATIC,
        .rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE,
        .rtm_type = RTN_LOCAL };
    const uint32_t device = LOOPBACK_INDEX;
    struct nlmsghdr *header = begin(m, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);

    add(m, &body, sizeof body);
    attribute(m, RTA_OIF, &device, sizeof device);
    attribute(m, RTA_PREFSRC, from, length);
    end(m, header);
}

static int add_routes(int family, const uint8_t *own, uint32_t length) {
    struct message m = { .length = 0 };

    add_address(&m, family, own, length);
    add_any_route(&m, family, own, length);
    return transact(NETLINK_ROUTE, &m);
}

/* ---- the table of transparent mode ---- */

static const char table_name[] = "rollbox", chain_name[] = "outward";

static struct nlmsghdr *begin_nft(
    struct message *m, unsigned type, unsigned flags, uint8_t family, uint16_t resource) {
    const struct nfgenmsg body = {
        .nfgen_family = family, .version = NFNETLINK_V0, .res_id = __builtin_bswap16(resource)
    };
    struct nlmsghdr *header = begin(m, type, flags);

    add(m, &body, sizeof body);
    return header;
}

#define NFT_TYPE(message) (NFNL_SUBSYS_NFTABLES << 8 | (message))

struct rule {
    struct nlmsghdr *header;
    struct rtattr *expressions, *element, *data;
};

static void begin_rule(struct message *m, struct rule *rule) {
    rule->header =
        begin_nft(m, NFT_TYPE(NFT_MSG_NEWRULE), NLM_F_CREATE | NLM_F_APPEND, NFPROTO_INET, 0);
    text(m, NFTA_RULE_TABLE, table_name);
    text(m, NFTA_RULE_CHAIN, chain_name);
    rule->expressions = nest(m, NFTA_RULE_EXPRESSIONS);
}

static void end_rule(struct message *m, const struct rule *rule) {
    unnest(m, rule->expressions);
    end(m, rule->header);
}

static void begin_expression(struct message *m, struct rule *rule, const char *name) {
    rule->element = nest(m, NFTA_LIST_ELEM);
    text(m, NFTA_EXPR_NAME, name);
    rule->data = nest(m, NFTA_EXPR_DATA);
}

static void end_expression(struct message *m, const struct rule *rule) {
    unnest(m, rule->data);
    unnest(m, rule->element);
}

static void compare(struct message *m, struct rule *rule, const void *value, uint32_t length) {
    begin_expression(m, rule, "cmp");
    number(m, NFTA_CMP_SREG, NFT_REG_1);
    number(m, NFTA_CMP_OP, NFT_CMP_EQ);
    struct rtattr *data = nest(m, NFTA_CMP_DATA);
    attribute(m, NFTA_DATA_VALUE, value, length);
    unnest(m, data);
    end_expression(m, rule);
}

static void match_meta(struct message *m, struct rule *rule, unsigned key, uint8_t value) {
    begin_expression(m, rule, "meta");
    number(m, NFTA_META_DREG, NFT_REG_1);
    number(m, NFTA_META_KEY, key);
    end_expression(m, rule);
    compare(m, rule, &value, sizeof value);
}

static void load(
    struct message *m, struct rule *rule, unsigned base, uint32_t offset, uint32_t length) {
    begin_expression(m, rule, "payload");
    number(m, NFTA_PAYLOAD_DREG, NFT_REG_1);
    number(m, NFTA_PAYLOAD_BASE, base);
    number(m, NFTA_PAYLOAD_OFFSET, offset);
    number(m, NFTA_PAYLOAD_LEN, length);
    end_expression(m, rule);
}

static void accept_packet(struct message *m, struct rule *rule) {
    begin_expression(m, rule, "immediate");
    number(m, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    struct rtattr *data = nest(m, NFTA_IMMEDIATE_DATA), *verdict = nest(m, NFTA_DATA_VERDICT);
    number(m, NFTA_VERDICT_CODE, NF_ACCEPT);
    unnest(m, verdict);
    unnest(m, data);
    end_expression(m, rule);
}

static void reject(struct message *m, struct rule *rule, unsigned type, uint8_t code) {
    begin_expression(m, rule, "reject");
    number(m, NFTA_REJECT_TYPE, type);
    attribute(m, NFTA_REJECT_ICMP_CODE, &code, sizeof code);
    end_expression(m, rule);
}

/* To an address of the sandbox itself: it stays inside. */
static void accept_destination(
    struct message *m, uint8_t family, uint32_t offset, const uint8_t *address, uint32_t length) {
    struct rule rule;

    begin_rule(m, &rule);
    match_meta(m, &rule, NFT_META_NFPROTO, family);
    load(m, &rule, NFT_PAYLOAD_NETWORK_HEADER, offset, length);
    compare(m, &rule, address, length);
    accept_packet(m, &rule);
    end_rule(m, &rule);
}

/* The listener gets connections by tproxy alone; nobody connects to its own port. */
static void refuse_listener_port(struct message *m) {
    const uint16_t port = __builtin_bswap16(LISTENER_PORT);
    struct rule rule;

    begin_rule(m, &rule);
    match_meta(m, &rule, NFT_META_L4PROTO, IPPROTO_TCP);
    load(m, &rule, NFT_PAYLOAD_TRANSPORT_HEADER, 2, sizeof port);
    compare(m, &rule, &port, sizeof port);
    reject(m, &rule, NFT_REJECT_TCP_RST, 0);
    end_rule(m, &rule);
}

/* `tproxy` gives no verdict, so that is a statement of its own. */
static void capture_tcp(struct message *m) {
    const uint16_t port = __builtin_bswap16(LISTENER_PORT);
    struct rule rule;

    begin_rule(m, &rule);
    match_meta(m, &rule, NFT_META_L4PROTO, IPPROTO_TCP);
    begin_expression(m, &rule, "immediate");
    number(m, NFTA_IMMEDIATE_DREG, NFT_REG_1);
    struct rtattr *data = nest(m, NFTA_IMMEDIATE_DATA);
    attribute(m, NFTA_DATA_VALUE, &port, sizeof port);
    unnest(m, data);
    end_expression(m, &rule);
    begin_expression(m, &rule, "tproxy");
    number(m, NFTA_TPROXY_FAMILY, NFPROTO_UNSPEC);
    number(m, NFTA_TPROXY_REG_PORT, NFT_REG_1);
    end_expression(m, &rule);
    accept_packet(m, &rule);
    end_rule(m, &rule);
}

/* A datagram needs no tproxy, and must not have it: its answer has to come from that port. Where no
 * socket of ours is bound, the kernel answers that the port is unreachable. */
static void accept_udp(struct message *m) {
    struct rule rule;

    begin_rule(m, &rule);
    match_meta(m, &rule, NFT_META_L4PROTO, IPPROTO_UDP);
    accept_packet(m, &rule);
    end_rule(m, &rule);
}

static void add_chain(struct message *m) {
    struct nlmsghdr *header =
        begin_nft(m, NFT_TYPE(NFT_MSG_NEWTABLE), NLM_F_CREATE, NFPROTO_INET, 0);

    text(m, NFTA_TABLE_NAME, table_name);
    end(m, header);
    header = begin_nft(m, NFT_TYPE(NFT_MSG_NEWCHAIN), NLM_F_CREATE, NFPROTO_INET, 0);
    text(m, NFTA_CHAIN_TABLE, table_name);
    text(m, NFTA_CHAIN_NAME, chain_name);
    struct rtattr *hook = nest(m, NFTA_CHAIN_HOOK);
    number(m, NFTA_HOOK_HOOKNUM, NF_INET_PRE_ROUTING);
    number(m, NFTA_HOOK_PRIORITY, (uint32_t)-150); /* mangle: before the routing decision */
    unnest(m, hook);
    number(m, NFTA_CHAIN_POLICY, NF_ACCEPT);
    text(m, NFTA_CHAIN_TYPE, "filter");
    end(m, header);
}

static int add_table(void) {
    struct message m = { .length = 0 };
    struct nlmsghdr *header =
        begin_nft(&m, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    struct rule rest;

    end(&m, header);
    add_chain(&m);
    refuse_listener_port(&m);
    accept_destination(&m, NFPROTO_IPV4, 16, &(const uint8_t){ 127 }, 1);
    accept_destination(&m, NFPROTO_IPV4, 16, own4, sizeof own4);
    accept_destination(&m, NFPROTO_IPV6, 24, loopback6, sizeof loopback6);
    accept_destination(&m, NFPROTO_IPV6, 24, own6, sizeof own6);
    capture_tcp(&m);
    accept_udp(&m);
    begin_rule(&m, &rest);
    reject(&m, &rest, NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_PORT_UNREACH);
    end_rule(&m, &rest);
    header = begin_nft(&m, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    end(&m, header);
    return transact(NETLINK_NETFILTER, &m);
}

/* ---- sockets ---- */

static int set(int fd, int level, int option) {
    const int one = 1;

    return (int)sys_call5(
        __NR_setsockopt, (long)fd, (long)level, (long)option, SYS_ARG(&one), sizeof one);
}

static int bind_any(int fd, bool has_v6, uint16_t port) {
    const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6,
        .sin6_port = __builtin_bswap16(port) };
    const struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = __builtin_bswap16(port) };

    return (int)(has_v6 ? sys_call3(__NR_bind, (long)fd, SYS_ARG(&any6), sizeof any6)
                        : sys_call3(__NR_bind, (long)fd, SYS_ARG(&any4), sizeof any4));
}

/* SO_REUSEADDR lets servers of the guest bind the ports of connections to outside, which inherit
 * it. While this socket listens, nobody else can listen on its port all the same. */
static int listen_tcp(bool has_v6, uint16_t port) {
    int fd = (int)sys_call3(
        __NR_socket, has_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r = fd < 0 ? fd : set(fd, SOL_SOCKET, SO_REUSEADDR);

    if (r == 0)
        r = set(fd, IPPROTO_IP, IP_TRANSPARENT);
    if (r == 0 && has_v6)
        r = set(fd, IPPROTO_IPV6, IPV6_TRANSPARENT);
    if (r == 0)
        r = bind_any(fd, has_v6, port);
    if (r == 0)
        r = (int)sys_call2(__NR_listen, (long)fd, BACKLOG);
    if (r < 0 && fd >= 0)
        close(fd);
    return r < 0 ? r : fd;
}

/* Without SO_REUSEADDR, which would let a guest bind the same port and get its datagrams. An answer
 * comes from the address that was asked, which of IPv6 is local by a route alone: that takes
 * IPV6_TRANSPARENT. */
static int open_udp(bool has_v6, uint16_t port) {
    int fd = (int)sys_call3(
        __NR_socket, has_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r = fd < 0 ? fd : set(fd, IPPROTO_IP, IP_PKTINFO);

    if (r == 0)
        r = set(fd, IPPROTO_IP, IP_TRANSPARENT);
    if (r == 0 && has_v6)
        r = set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO);
    if (r == 0 && has_v6)
        r = set(fd, IPPROTO_IPV6, IPV6_TRANSPARENT);
    if (r == 0)
        r = bind_any(fd, has_v6, port);
    if (r < 0 && fd >= 0)
        close(fd);
    return r < 0 ? r : fd;
}

static int keep(struct network *network, int fd) {
    if (fd < 0)
        return fd;
    network->fds[network->n++] = fd;
    return 0;
}

static int open_ports(
    const struct plan *plan, bool has_v6, bool only_udp, struct network *network) {
    const struct plan_net_ports *ports = plan_items(plan, net_ports, struct plan_net_ports);

    for (uint32_t i = 0; i < plan->net_ports.n; i++)
        for (uint32_t port = ports[i].first;
             port <= ports[i].last && (ports[i].is_udp || !only_udp); port++) {
            if (network->n == NETWORK_MAX_SOCKETS)
                return -E2BIG;
            int r = keep(network, ports[i].is_udp ? open_udp(has_v6, (uint16_t)port)
                                                  : listen_tcp(has_v6, (uint16_t)port));
            if (r < 0)
                return r;
        }
    return 0;
}

/* IPv6 may be missing from the kernel, or switched off. */
static bool add_routes6(void) {
    int fd = (int)sys_call3(__NR_socket, AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return false;
    close(fd);
    return add_routes(AF_INET6, own6, sizeof own6) == 0;
}

int network_open(const struct plan *plan, struct network *network) {
    int r = add_routes(AF_INET, own4, sizeof own4);
    const bool has_v6 = r == 0 && add_routes6();

    network->n = 0;
    if (r < 0)
        return r;
    network->is_transparent = plan->flags & PLAN_NET_TPROXY && add_table() == 0;
    if (network->is_transparent)
        r = keep(network, listen_tcp(has_v6, LISTENER_PORT));
    if (r == 0)
        r = keep(network, open_udp(has_v6, DNS_PORT));
    if (r == 0 && !network->is_transparent)
        r = keep(network, listen_tcp(has_v6, DNS_PORT)); /* DNS over TCP */
    if (r == 0)
        r = open_ports(plan, has_v6, network->is_transparent, network);
    if (r < 0)
        network_close(network);
    return r;
}

void network_close(struct network *network) {
    while (network->n)
        close(network->fds[--network->n]);
}
