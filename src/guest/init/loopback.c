/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loopback interface of a sandbox's own network namespace.
 *
 * Under virtual time its routes carry `quickack`, so that sockets acknowledge at once. A delayed
 * acknowledgement can take 40 ms of real time, during which Nagle's algorithm holds back data.
 * Virtual time cannot see that wait, because no process waits in a system call for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/init/init.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

#define LOOPBACK_INDEX 1 /* the first interface of its namespace */

struct route {
    struct nlmsghdr header;
    struct rtmsg route;
    struct rtattr target;
    uint8_t address[16];
    struct rtattr device;
    uint32_t index;
    struct rtattr metrics, metric;
    uint32_t quickack;
};

struct route4 {
    struct nlmsghdr header;
    struct rtmsg route;
    struct rtattr target;
    uint8_t address[4];
    struct rtattr source;
    uint8_t from[4];
    struct rtattr device;
    uint32_t index;
    struct rtattr metrics, metric;
    uint32_t quickack;
};

#define NUMBER_LENGTH (sizeof(struct rtattr) + sizeof(uint32_t))
#define QUICKACK                                                                                   \
    .device = { NUMBER_LENGTH, RTA_OIF }, .index = LOOPBACK_INDEX,                                 \
    .metrics = { sizeof(struct rtattr) + NUMBER_LENGTH, RTA_METRICS },                             \
    .metric = { NUMBER_LENGTH, RTAX_QUICKACK }, .quickack = 1

static void send_route(int socket, const void *message, uint32_t length) {
    (void)sys_call6(__NR_sendto, socket, SYS_ARG(message), length, 0, 0, 0);
}

static void replace_route4(int socket, uint8_t last, uint8_t prefix) {
    const struct route4 message = {
        .header = { sizeof message, RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE, 1,
            0 },
        .route = { AF_INET, prefix, 0, 0, RT_TABLE_LOCAL, RTPROT_KERNEL, RT_SCOPE_HOST, RTN_LOCAL,
            0 },
        .target = { NUMBER_LENGTH, RTA_DST },
        .address = { 127, 0, 0, last },
        .source = { NUMBER_LENGTH, RTA_PREFSRC },
        .from = { 127, 0, 0, 1 },
        QUICKACK,
    };

    send_route(socket, &message, sizeof message);
}

/* The kernel's route has a metric that no other route can have, so it cannot be replaced. It is
 * removed once the new route exists. */
static void replace_route6(int socket) {
    struct route message = {
        .header = { sizeof message, RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE, 1, 0 },
        .route = { AF_INET6, 128, 0, 0, RT_TABLE_LOCAL, RTPROT_KERNEL, RT_SCOPE_UNIVERSE, RTN_LOCAL,
            0 },
        .target = { sizeof(struct rtattr) + sizeof message.address, RTA_DST },
        .address = { [15] = 1 },
        QUICKACK,
    };

    send_route(socket, &message, sizeof message);
    message.header.nlmsg_type = RTM_DELROUTE;
    message.header.nlmsg_flags = NLM_F_REQUEST;
    message.header.nlmsg_len = offsetof(struct route, metrics);
    send_route(socket, &message, message.header.nlmsg_len);
}

/* If a kernel refuses this, virtual time waits for delayed acknowledgements (vtime_kernel.c). */
static void acknowledge_at_once(void) {
    int fd = (int)sys_call3(__NR_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0)
        return;
    replace_route4(fd, 1, 32);
    replace_route4(fd, 0, 8);
    replace_route6(fd);
    close(fd);
}

static void write_setting(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)!write(fd, text, strlen(text));
    close(fd);
}

/* The network belongs to U0, so no capability of the sandbox's root has an effect on it. Its users
 * may listen at any port and ping all the same: there is nobody else here to impersonate. */
static void serve_many_users(uint32_t outer_id) {
    char range[32], *at = guest_put_number(range, outer_id);

    *at++ = ' ';
    at = guest_put_number(at, outer_id + PLAN_MANY_IDS - 1);
    *at = '\0';
    write_setting("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    write_setting("/proc/sys/net/ipv4/ping_group_range", range);
}

/* A multicast membership is kernel memory that no control group is charged for. A socket may have
 * 20 by default; programs need one. Where the limit cannot be set, the 20 remain. */
static void bound_groups(void) {
    write_setting("/proc/sys/net/ipv4/igmp_max_memberships", "2");
}

int loopback_up(const struct plan *plan, uint32_t outer_id) {
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    int r = ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
    close(fd);
    bound_groups();
    if (plan->flags & PLAN_MANY_USERS)
        serve_many_users(outer_id);
    if (r == 0 && plan->flags & PLAN_VIRTUAL)
        acknowledge_at_once();
    return r;
}
