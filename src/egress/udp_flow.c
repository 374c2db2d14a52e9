/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/udp_flow.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "egress/activity.h"
#include "egress/datagram.h"
#include "egress/log.h"
#include "egress/resolve.h"
#include "egress/route.h"
#include "egress/tally.h"
#include "egress/turn.h"

#define DATAGRAMS_PER_TURN 32
#define IDLE_S 60
#define SECOND 1000000000ll
#define MAX_DATAGRAM 65536u

struct udp_flow {
    struct list node; /* of box->flows */
    struct listener *listener;
    struct box *box;
    struct loop_source source;
    struct loop_timer timer;
    struct lookup_waiter waiter;
    struct datagram guest; /* the two ends that the guest sees */
    const char *name;      /* NULL: a literal */
    char literal[ADDRESS_TEXT];
    size_t rule;
    int fd; /* -EBADF: not connected yet */
    void *first;
    size_t first_length;
    int64_t active_ns;
    uint64_t up, down, tallied_up, tallied_down;
};

static const char *host_of(const struct udp_flow *flow) {
    return flow->name ? flow->name : flow->literal;
}

static void tally_flow(struct udp_flow *flow) {
    tally_bytes(flow->box, host_of(flow), flow->listener->port, flow->up - flow->tallied_up,
        flow->down - flow->tallied_down);
    flow->tallied_up = flow->up;
    flow->tallied_down = flow->down;
}

static void flow_end(struct udp_flow *flow) {
    struct loop *loop = flow->box->egress->loop;

    tally_flow(flow);
    turn_remove(&flow->box->turn, &flow->source);
    loop_timer_clear(loop, &flow->timer);
    resolve_cancel(&flow->waiter);
    close_fd(&flow->fd);
    list_remove(&flow->node);
    activity_count(flow->box, false);
    free(flow->first);
    free(flow);
}

static void flow_refuse(struct udp_flow *flow, enum net_why why) {
    tally_refusal(flow->box, host_of(flow), flow->listener->port, why);
    log_event(flow->box, "refused", "{s:s, s:i, s:s, s:s}", "host", host_of(flow), "port",
        (int)flow->listener->port, "protocol", "udp", "why", match_why_text(why));
    flow_end(flow);
}

/* The limit that so many more bytes would pass. */
static enum net_why count(struct udp_flow *flow, uint64_t up, uint64_t down) {
    struct box *box = flow->box;
    const struct net_rules *rules = &box->rules->policy->network;

    if (rules->max_upload_bytes && box->up_bytes + up > rules->max_upload_bytes)
        return NET_WHY_LIMIT_BYTES;
    if (rules->max_download_bytes && box->down_bytes + down > rules->max_download_bytes)
        return NET_WHY_LIMIT_BYTES;
    flow->active_ns = clock_now_ns();
    box->up_bytes += up;
    box->down_bytes += down;
    flow->up += up;
    flow->down += down;
    return NET_WHY_NONE;
}

/* False: the flow is freed. */
static bool send_up(struct udp_flow *flow, const void *data, size_t length) {
    enum net_why why = count(flow, length, 0);

    if (why) {
        flow_refuse(flow, why);
        return false;
    }
    (void)send(flow->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return true;
}

static void on_server(struct loop_source *source, uint32_t events) {
    struct udp_flow *flow = container_of(source, struct udp_flow, source);
    char *scratch = flow->box->egress->scratch;

    (void)events;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        ssize_t n = recv(flow->fd, scratch, MAX_DATAGRAM, MSG_DONTWAIT);

        if (n < 0)
            return; /* nothing, or "port unreachable", which reading has cleared */
        enum net_why why = count(flow, 0, (uint64_t)n);
        if (why) {
            flow_refuse(flow, why);
            return;
        }
        (void)datagram_reply(flow->listener->fd, scratch, (size_t)n, &flow->guest);
    }
}

static void on_timer(struct loop_timer *timer) {
    struct udp_flow *flow = container_of(timer, struct udp_flow, timer);
    int64_t until = flow->active_ns + IDLE_S * SECOND;

    if (until <= clock_now_ns() ||
        loop_timer_set(flow->box->egress->loop, timer, until, on_timer) < 0)
        flow_end(flow);
}

static void connect_flow(struct udp_flow *flow, const struct address *addresses, size_t n) {
    const struct net_rule *rule = &flow->box->rules->policy->network.items[flow->rule];
    bool allows_private = rule->allows_private || rule->to;
    struct egress *egress = flow->box->egress;
    struct sockaddr_storage to;
    size_t i = 0;

    while (
        i < n && !allows_private &&
        (!address_is_public(&addresses[i], NULL, 0) || route_is_own(egress->route, &addresses[i])))
        i++;
    if (i == n) {
        flow_refuse(flow, n ? NET_WHY_PRIVATE_ADDRESS : NET_WHY_RESOLVE);
        return;
    }
    socklen_t length =
        address_to_socket(&addresses[i], rule->to ? rule->to->port : flow->listener->port, &to);
    flow->fd = socket(to.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
    if (flow->fd < 0 || connect(flow->fd, (const void *)&to, length) < 0 ||
        turn_add(&flow->box->turn, &flow->source, flow->fd, EPOLLIN, on_server) < 0) {
        flow_refuse(flow, NET_WHY_UPSTREAM_REFUSED);
        return;
    }
    tally_connection(flow->box, host_of(flow), flow->listener->port);
    char text[ADDRESS_TEXT];
    log_event(flow->box, "connect", "{s:s, s:i, s:s, s:s, s:I}", "host", host_of(flow), "port",
        (int)flow->listener->port, "protocol", "udp", "address", address_text(&addresses[i], text),
        "rule", (json_int_t)flow->rule);
    void *first = TAKE_PTR(flow->first);
    if (first)
        (void)send_up(flow, first, flow->first_length);
    free(first);
}

static void resolved(struct lookup_waiter *waiter, const struct address *addresses, size_t n) {
    connect_flow(container_of(waiter, struct udp_flow, waiter), addresses, n);
}

static enum net_why find_rule(struct udp_flow *flow) {
    const struct net_rules *rules = &flow->box->rules->policy->network;
    const struct address *to = &flow->guest.to;
    enum net_why why;
    long rule;

    if (flow->name)
        rule = match_connection(rules, flow->name, flow->listener->port, true, &why);
    else if (address_is_v4(to) && names_is_fake(address_v4(to)))
        return NET_WHY_NAME;
    else
        rule = match_literal(rules, to, flow->listener->port, true, &why);
    if (rule >= 0)
        flow->rule = (size_t)rule;
    return rule < 0 ? why : NET_WHY_NONE;
}

static struct udp_flow *find(struct listener *listener, const struct datagram *datagram) {
    list_for_each(node, &listener->box->flows) {
        struct udp_flow *flow = container_of(node, struct udp_flow, node);

        if (flow->listener == listener && address_equal(&flow->guest.to, &datagram->to) &&
            flow->guest.from_length == datagram->from_length &&
            memcmp(&flow->guest.from, &datagram->from, datagram->from_length) == 0)
            return flow;
    }
    return NULL;
}

static void flow_start(
    struct listener *listener, const struct datagram *datagram, const void *data, size_t length) {
    struct box *box = listener->box;
    const struct net_rules *rules = &box->rules->policy->network;
    struct udp_flow *flow = calloc(1, sizeof *flow);
    void *first = malloc(length + 1);

    if (!flow || !first) {
        free(flow);
        free(first);
        return;
    }
    memcpy(first, data, length);
    *flow = (struct udp_flow){ .listener = listener,
        .box = box,
        .guest = *datagram,
        .fd = -EBADF,
        .first = first,
        .first_length = length,
        .active_ns = clock_now_ns() };
    if (address_is_v4(&datagram->to))
        flow->name = names_name(&box->names, address_v4(&datagram->to));
    if (!flow->name)
        address_text(&datagram->to, flow->literal);
    list_add_tail(&box->flows, &flow->node);
    activity_count(box, true);
    enum net_why why = find_rule(flow);
    if (!why && box->n_connections > rules->max_connections)
        why = NET_WHY_LIMIT_CONNECTIONS;
    if (!why && loop_timer_set(box->egress->loop, &flow->timer, flow->active_ns + IDLE_S * SECOND,
                    on_timer) < 0)
        why = NET_WHY_GATEWAY;
    if (why) {
        flow_refuse(flow, why);
        return;
    }
    const struct net_target *to = rules->items[flow->rule].to;
    if (to || !flow->name) {
        const struct address address = to ? address_of_rule(&to->address) : datagram->to;

        connect_flow(flow, &address, 1);
    } else if (resolve(box->egress->resolver, box, flow->name, &flow->waiter, resolved) < 0) {
        flow_refuse(flow, NET_WHY_RESOLVE);
    }
}

void udp_flow_read(struct listener *listener) {
    char *scratch = listener->box->egress->scratch;

    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        struct datagram datagram = { 0 };
        ssize_t n = datagram_receive(listener->fd, scratch, MAX_DATAGRAM, &datagram);

        if (n == -EAGAIN)
            return;
        if (n < 0)
            continue;
        struct udp_flow *flow = find(listener, &datagram);
        if (!flow)
            flow_start(listener, &datagram, scratch, (size_t)n);
        else if (flow->fd >= 0)
            (void)send_up(flow, scratch, (size_t)n);
    }
}

void udp_flow_check_rules(struct box *box, const struct net_rules *before) {
    const struct net_rules *rules = &box->rules->policy->network;

    list_for_each(node, &box->flows) {
        struct udp_flow *flow = container_of(node, struct udp_flow, node);
        const struct net_rule *was = &before->items[flow->rule];
        enum net_why why = find_rule(flow);

        if (!why && !net_target_is_same(was->to, rules->items[flow->rule].to))
            why = NET_WHY_NAME;
        if (!why && was->allows_private && !rules->items[flow->rule].allows_private && !was->to)
            why = NET_WHY_PRIVATE_ADDRESS; /* the next datagram begins another flow */
        if (why)
            flow_refuse(flow, why);
    }
}

void udp_flow_tally(struct box *box) {
    list_for_each(node, &box->flows)
        tally_flow(container_of(node, struct udp_flow, node));
}

void udp_flow_end_all(struct box *box) {
    while (!list_empty(&box->flows))
        flow_end(container_of(box->flows.next, struct udp_flow, node));
}
