/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "egress/activity.h"
#include "egress/box.h"
#include "egress/bucket.h"
#include "egress/first_bytes.h"
#include "egress/http_flow.h"
#include "egress/log.h"
#include "egress/outbox.h"
#include "egress/peers.h"
#include "egress/relay.h"
#include "egress/replay.h"
#include "egress/resolve.h"
#include "egress/route.h"
#include "egress/tally.h"
#include "egress/tls.h"
#include "egress/turn.h"

#define SECOND 1000000000ll
#define LINGER_S 2
#define PASSES 1        /* chunks in one turn of the loop, so that others have theirs */
#define PEER_S 120      /* for another sandbox to wake */
#define RATE_TURN_MS 20 /* a sandbox past its rate rests this long */

static void on_guest(struct loop_source *source, uint32_t events);
static void on_upstream(struct loop_source *source, uint32_t events);
static void on_timer(struct loop_timer *timer);
static void step(struct connection *connection);

static const struct net_rules *rules_of(const struct connection *connection) {
    return &connection->box->rules->policy->network;
}

static const struct net_rule *rule_of(const struct connection *connection) {
    return &rules_of(connection)->items[connection->rule];
}

static int set_timer(struct connection *connection, int64_t seconds) {
    return loop_timer_set(connection->box->egress->loop, &connection->timer,
        clock_now_ns() + seconds * SECOND, on_timer);
}

static void close_side(struct connection *connection, struct side *side) {
    if (side->events)
        turn_remove(&connection->box->turn, &side->source);
    side->events = 0;
    close_fd(&side->fd);
}

static void set_reset(int fd, bool reset) {
    const struct linger linger = { .l_onoff = reset, .l_linger = 0 };

    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

void connection_tally(struct connection *connection) {
    tally_bytes(connection->box, connection_host(connection), connection->port,
        connection->up - connection->tallied_up, connection->down - connection->tallied_down);
    connection->tallied_up = connection->up;
    connection->tallied_down = connection->down;
}

void connection_end(struct connection *connection, bool reset) {
    struct box *box = connection->box;

    connection_tally(connection);
    if (connection->state == UPSTREAM_CONNECTED || connection->is_handed)
        log_event(box, "close", "{s:s, s:i, s:I, s:I, s:f}", "host", connection_host(connection),
            "port", (int)connection->port, "up", (json_int_t)connection->up, "down",
            (json_int_t)connection->down, "seconds",
            (double)(clock_now_ns() - connection->started_ns) / 1e9);
    set_reset(connection->guest.fd, reset);
    set_reset(connection->upstream.fd, reset);
    close_side(connection, &connection->guest);
    close_side(connection, &connection->upstream);
    resolve_cancel(&connection->waiter);
    loop_timer_clear(box->egress->loop, &connection->timer);
    connection->http = http_flow_free(connection->http);
    recorder_end(&connection->recorded);
    if (recorder_has_lost(&box->tape.recorder))
        log_event(box, "unrecorded", "{s:s, s:i}", "host", connection_host(connection), "port",
            (int)connection->port);
    free(connection->replay);
    if (connection->handed_node.next)
        list_remove(&connection->handed_node);
    list_remove(&connection->node);
    activity_count(box, false);
    free(connection);
}

void connection_refuse(struct connection *connection, enum net_why why) {
    tally_refusal(connection->box, connection_host(connection), connection->port, why);
    log_event(connection->box, "refused", "{s:s, s:i, s:s}", "host", connection_host(connection),
        "port", (int)connection->port, "why", match_why_text(why));
    connection_end(connection, true);
}

/* A server cannot be reached: said by an answer where the guest speaks plain HTTP. */
static void refuse_upstream(struct connection *connection, enum net_why why) {
    struct http_flow *flow = connection->http;

    if (!flow) {
        connection_refuse(connection, why);
        return;
    }
    connection->state = UPSTREAM_NONE;
    buf_done(&flow->to_upstream);
    http_flow_refuse(flow, 502, why, "rollbox: the host cannot be reached");
    step(connection);
}

static void set_events(struct connection *connection, struct side *side, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t)) {
    struct box *box = connection->box;

    if (events == side->events || side->fd < 0)
        return;
    /* A side that waits for nothing leaves the loop: the kernel would report its hang-up again and
     * again. */
    if (!events)
        turn_remove(&box->turn, &side->source);
    else if (side->events)
        (void)turn_modify(&box->turn, &side->source, events);
    else if (turn_add(&box->turn, &side->source, side->fd, events, callback) < 0)
        events = 0; /* ends by its time limit */
    side->events = events;
}

static uint32_t raw_events(
    const struct connection *connection, const struct side *side, const struct side *other) {
    uint32_t events = side->is_full ? EPOLLOUT : 0u;

    if (connection->replay && connection->is_checked && side == &connection->guest)
        return side->is_full || side->has_ended ? events : EPOLLIN;
    if (connection->state != UPSTREAM_CONNECTED || side->has_ended || other->is_full)
        return events;
    return connection->box->is_paused ? events : events | EPOLLIN;
}

void connection_update(struct connection *connection) {
    struct side *guest = &connection->guest, *upstream = &connection->upstream;
    uint32_t from_guest, from_upstream;

    if (connection->is_handed)
        return;
    if (connection->http) {
        from_guest = http_flow_guest_events(connection->http);
        from_upstream = http_flow_upstream_events(connection->http);
        if (connection->box->is_paused) {
            from_guest &= EPOLLOUT;
            from_upstream &= EPOLLOUT;
        }
    } else {
        from_guest = raw_events(connection, guest, upstream);
        from_upstream = raw_events(connection, upstream, guest);
        if (!connection->is_checked)
            from_guest |= EPOLLIN;
    }
    if (connection->state == UPSTREAM_CONNECTING)
        from_upstream = EPOLLOUT;
    set_events(connection, guest, from_guest, on_guest);
    set_events(connection, upstream, from_upstream, on_upstream);
}

static void end_pause(struct loop_timer *timer) {
    struct box *box = container_of(timer, struct box, rate_timer);

    box->is_paused = false;
    list_for_each(node, &box->connections)
        connection_update(container_of(node, struct connection, node));
}

static bool is_used_up(const struct box *box, const struct net_rules *rules) {
    if (rules->max_upload_bytes && box->up_bytes > rules->max_upload_bytes)
        return true;
    return rules->max_download_bytes && box->down_bytes > rules->max_download_bytes;
}

/* Counts bytes that were passed. Returns the limit that is reached. */
static enum net_why account(struct connection *connection, uint64_t up, uint64_t down) {
    const struct net_rules *rules = rules_of(connection);
    struct box *box = connection->box;
    uint64_t rate = rules->max_bytes_per_s;

    if (!up && !down)
        return NET_WHY_NONE;
    connection->active_ns = clock_now_ns();
    box->up_bytes += up;
    box->down_bytes += down;
    if (is_used_up(box, rules))
        return NET_WHY_LIMIT_BYTES;
    if (rate) {
        uint64_t burst = MAX(rate / 10, (uint64_t)(64u << 10));

        (void)bucket_take(&box->bytes, rate, burst, 0);
        box->bytes.tokens_milli -= (int64_t)(up + down) * 1000;
        if (box->bytes.tokens_milli >= 0 || box->is_paused)
            return NET_WHY_NONE;
        int64_t rest_ns = (int64_t)((unsigned __int128)-box->bytes.tokens_milli * 1000000 / rate);
        box->is_paused =
            loop_timer_set(box->egress->loop, &box->rate_timer,
                clock_now_ns() + MAX(rest_ns, RATE_TURN_MS * 1000000ll), end_pause) == 0;
        if (box->is_paused)
            list_for_each(node, &box->connections)
                connection_update(container_of(node, struct connection, node));
    }
    return NET_WHY_NONE;
}

static uint64_t left_of(uint64_t limit, uint64_t used) {
    if (!limit)
        return EGRESS_CHUNK;
    /* One more byte: the limit is reached when this byte passes. */
    return MIN(limit - MIN(used, limit) + 1, (uint64_t)EGRESS_CHUNK);
}

/* Some servers take a request whose first line the gateway did not see as one of HTTP: its method
 * may have any letters. Its line end is not passed then. Returns the bytes that may be passed, or
 * -EBADMSG. */
static ssize_t look_at_line(const struct connection *connection, size_t limit) {
    struct first_line line = connection->first_line;
    char *scratch = connection->box->egress->scratch;
    ssize_t n = line.is_watched ? relay_peek(connection->guest.fd, scratch, limit) : 0;

    if (n <= 0)
        return (ssize_t)limit;
    return first_line_is_http(&line, scratch, (size_t)n) ? -EBADMSG : n;
}

/* The bytes that were passed are in `scratch` still. */
static void record_piece(struct connection *connection, bool is_up, size_t length, bool is_end) {
    struct box *box = connection->box;

    if (!recorder_is_on(&box->tape.recorder))
        return;
    recorder_begin(&connection->recorded, &box->tape.recorder, connection_host(connection),
        connection->port, NULL, NULL);
    recorder_bytes(&connection->recorded, is_up, box->egress->scratch, length);
    if (is_end)
        recorder_side_end(&connection->recorded, is_up);
}

/* Passes bytes one way. False: the connection is freed. */
static bool pass(struct connection *connection, bool is_up) {
    const struct net_rules *rules = rules_of(connection);
    struct box *box = connection->box;
    struct side *from = is_up ? &connection->guest : &connection->upstream;
    struct side *to = is_up ? &connection->upstream : &connection->guest;
    const uint64_t *max_bytes = is_up ? &rules->max_upload_bytes : &rules->max_download_bytes;
    const uint64_t *used = is_up ? &box->up_bytes : &box->down_bytes;
    uint64_t *count = is_up ? &connection->up : &connection->down;

    for (int i = 0; i < PASSES && !from->has_ended && !box->is_paused; i++) {
        uint64_t limit = left_of(*max_bytes, *used);
        enum relay next = RELAY_SOURCE;
        int failed;

        if (is_up) {
            ssize_t allowed = look_at_line(connection, limit);

            if (allowed < 0) {
                connection_refuse(connection, NET_WHY_BAD_REQUEST);
                return false;
            }
            limit = (uint64_t)allowed;
        }
        ssize_t n = relay_pass(from->fd, to->fd, box->egress->scratch, limit, &next, &failed);

        if (n < 0 && is_up && failed == to->fd) {
            /* The server has closed before it read all: its answer may still be here. */
            from->has_ended = true;
            break;
        }
        if (n < 0) {
            connection_end(connection, true);
            return false;
        }
        if (is_up)
            (void)first_line_is_http(&connection->first_line, box->egress->scratch, (size_t)n);
        *count += (uint64_t)n;
        record_piece(connection, is_up, (size_t)n, next == RELAY_END);
        uint64_t up = is_up ? (uint64_t)n : 0;
        enum net_why why = account(connection, up, (uint64_t)n - up);
        if (why) {
            connection_refuse(connection, why);
            return false;
        }
        if (next == RELAY_END) {
            from->has_ended = true;
            shutdown(to->fd, SHUT_WR);
        }
        to->is_full = next == RELAY_TARGET;
        if (next != RELAY_MORE)
            break;
    }
    if (connection->guest.has_ended && connection->upstream.has_ended) {
        connection_end(connection, false);
        return false;
    }
    return true;
}

static void start_upstream(struct connection *connection);

static void step_http(struct connection *connection) {
    uint64_t up = connection->up, down = connection->down;
    enum http_step next = http_flow_step(connection->http);
    enum net_why why = account(connection, connection->up - up, connection->down - down);

    if (why) {
        connection_refuse(connection, why);
        return;
    }
    switch (next) {
    case HTTP_STEP_END:
        connection_end(connection, false);
        return;
    case HTTP_STEP_RESET:
        connection_end(connection, true);
        return;
    case HTTP_STEP_CONNECT:
        start_upstream(connection);
        return;
    case HTTP_STEP_LINGER:
        (void)set_timer(connection, LINGER_S);
        connection_update(connection);
        return;
    case HTTP_STEP_WAIT:
        connection_update(connection);
        return;
    }
}

/* Both sockets go to rollbox-egress-tls, which reports the rest. */
static void hand_over(struct connection *connection) {
    struct loop *loop = connection->box->egress->loop;

    first_bytes_done(connection);
    if (tls_hand_over(connection) < 0) {
        connection_refuse(connection, NET_WHY_GATEWAY);
        return;
    }
    connection->is_handed = true;
    loop_timer_clear(loop, &connection->timer);
    /* Closing does not reset what another process has as well. */
    close_side(connection, &connection->guest);
    close_side(connection, &connection->upstream);
    list_add_tail(&connection->box->egress->handed, &connection->handed_node);
}

static void connected(struct connection *connection) {
    const int on = 1;

    connection->state = UPSTREAM_CONNECTED;
    setsockopt(connection->upstream.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    tally_connection(connection->box, connection_host(connection), connection->port);
    char text[ADDRESS_TEXT];
    log_event(connection->box, "connect", "{s:s, s:i, s:s, s:I}", "host",
        connection_host(connection), "port", (int)connection->port, "address",
        address_text(&connection->addresses[connection->next_address - 1], text), "rule",
        (json_int_t)connection->rule);
    if (connection->tls == NET_TLS_TERMINATE) {
        hand_over(connection);
        return;
    }
    (void)set_timer(connection, rules_of(connection)->idle_s);
    step(connection);
}

/* A recording answers: neither a resolver nor a server is asked. */
static void start_replay(struct connection *connection) {
    tally_connection(connection->box, connection_host(connection), connection->port);
    log_event(connection->box, "connect", "{s:s, s:i, s:b, s:I}", "host",
        connection_host(connection), "port", (int)connection->port, "replay", 1, "rule",
        (json_int_t)connection->rule);
    connection->state = UPSTREAM_CONNECTED;
    if (connection->tls == NET_TLS_TERMINATE) {
        hand_over(connection);
        return;
    }
    connection->replay = replay_new(connection);
    if (!connection->replay) {
        connection_refuse(connection, NET_WHY_GATEWAY);
        return;
    }
    (void)set_timer(connection, rules_of(connection)->idle_s);
    step(connection);
}

/* Connects to the next address that is left. */
static void connect_next(struct connection *connection) {
    const struct net_target *to = rule_of(connection)->to;
    struct sockaddr_storage socket_address;

    close_side(connection, &connection->upstream);
    while (connection->next_address < connection->n_addresses) {
        const struct address *address = &connection->addresses[connection->next_address++];
        socklen_t length =
            address_to_socket(address, to ? to->port : connection->port, &socket_address);
        auto_close int fd = socket(
            socket_address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

        if (fd < 0) {
            connection_refuse(connection, NET_WHY_GATEWAY);
            return;
        }
        if (connect(fd, (const void *)&socket_address, length) < 0 && errno != EINPROGRESS)
            continue;
        connection->upstream.fd = TAKE_FD(fd);
        connection->state = UPSTREAM_CONNECTING;
        (void)set_timer(connection, MAX(2, EGRESS_CONNECT_S / (int64_t)connection->n_addresses));
        connection_update(connection);
        return;
    }
    refuse_upstream(connection, NET_WHY_UPSTREAM_REFUSED);
}

static bool may_connect(const struct connection *connection, const struct address *address) {
    const struct net_rule *rule = rule_of(connection);

    if (rule->allows_private || rule->to)
        return true;
    return address_is_public(address, NULL, 0) &&
           !route_is_own(connection->box->egress->route, address);
}

/* Keeps the addresses that may be connected to; those very values are connected to later. */
static void check_addresses(
    struct connection *connection, const struct address *addresses, size_t n) {
    connection->n_addresses = 0;
    for (size_t i = 0; i < n && i < EGRESS_ADDRESSES; i++)
        if (may_connect(connection, &addresses[i]))
            connection->addresses[connection->n_addresses++] = addresses[i];
    connection->next_address = 0;
    if (connection->n_addresses)
        connect_next(connection);
    else
        refuse_upstream(connection, n ? NET_WHY_PRIVATE_ADDRESS : NET_WHY_RESOLVE);
}

static void resolved(struct lookup_waiter *waiter, const struct address *addresses, size_t n) {
    check_addresses(container_of(waiter, struct connection, waiter), addresses, n);
}

static void start_upstream(struct connection *connection) {
    const struct net_rule *rule = rule_of(connection);

    if (connection->box->tape.recording) {
        start_replay(connection);
        return;
    }
    if (rule->to || !connection->name) {
        const struct address address =
            rule->to ? address_of_rule(&rule->to->address) : connection->address;

        check_addresses(connection, &address, 1);
        return;
    }
    connection->state = UPSTREAM_RESOLVING;
    (void)set_timer(connection, EGRESS_CONNECT_S);
    if (resolve(connection->box->egress->resolver, connection->box, connection->name,
            &connection->waiter, resolved) < 0)
        refuse_upstream(connection, NET_WHY_RESOLVE);
    else
        connection_update(connection);
}

/* Encrypted bytes, and requests whose headers have dates, are not the same another time. So those
 * of a sandbox with a recording are read by rollbox-egress-tls, on any port. */
static void choose_tape(struct connection *connection) {
    if (box_is_taped(connection->box) && !connection->up && !connection->down)
        connection->tls = NET_TLS_TERMINATE;
}

static void check_first_bytes(struct connection *connection) {
    enum net_why why = NET_WHY_NONE;

    switch (first_bytes_read(connection, &why)) {
    case FIRST_BYTES_MORE:
        connection_update(connection);
        return;
    case FIRST_BYTES_END:
        connection_end(connection, true);
        return;
    case FIRST_BYTES_REFUSED:
        connection_refuse(connection, why);
        return;
    case FIRST_BYTES_TLS:
        connection->is_tls = true;
        choose_tape(connection);
        break;
    case FIRST_BYTES_HTTP:
        choose_tape(connection);
        if (connection->tls == NET_TLS_TERMINATE)
            break;
        if (http_flow_new(connection) < 0) {
            connection_refuse(connection, NET_WHY_GATEWAY);
            return;
        }
        break;
    case FIRST_BYTES_OTHER:
        connection->first_line.is_watched = true;
        break;
    }
    connection->is_checked = true;
    first_bytes_done(connection);
    if (connection->tls == NET_TLS_TERMINATE && connection->state == UPSTREAM_CONNECTED)
        hand_over(connection);
    else if (connection->http || connection->state == UPSTREAM_CONNECTED)
        step(connection);
    else if (connection->state == UPSTREAM_NONE)
        start_upstream(connection);
    else
        connection_update(connection);
}

static void step_replay(struct connection *connection) {
    uint64_t up = connection->up, down = connection->down;
    enum replay_step next = replay_step(connection);
    enum net_why why = account(connection, connection->up - up, connection->down - down);

    if (!why && next == REPLAY_STEP_MISS)
        why = NET_WHY_REPLAY_MISS;
    if (why)
        connection_refuse(connection, why);
    else if (next == REPLAY_STEP_END)
        connection_end(connection, false);
    else if (next == REPLAY_STEP_RESET)
        connection_end(connection, true);
    else
        connection_update(connection);
}

/* Moves all that can be moved. */
static void step(struct connection *connection) {
    if (connection->http) {
        step_http(connection);
        return;
    }
    if (connection->replay) {
        step_replay(connection);
        return;
    }
    if (connection->state == UPSTREAM_CONNECTED) {
        if (connection->is_checked && !connection->upstream.is_full && !pass(connection, true))
            return;
        if (!connection->guest.is_full && !pass(connection, false))
            return;
    }
    connection_update(connection);
}

static void on_guest(struct loop_source *source, uint32_t events) {
    struct connection *connection = container_of(source, struct connection, guest.source);

    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        connection->guest.is_full = false;
    if (!connection->is_checked && events & ~(uint32_t)EPOLLOUT)
        check_first_bytes(connection);
    else
        step(connection);
}

static void on_upstream(struct loop_source *source, uint32_t events) {
    struct connection *connection = container_of(source, struct connection, upstream.source);
    int error = 0;
    socklen_t length = sizeof error;

    if (connection->state == UPSTREAM_CONNECTING && !connection->is_peer) {
        if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0 || error)
            connect_next(connection);
        else
            connected(connection);
        return;
    }
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        connection->upstream.is_full = false;
    step(connection);
}

static void on_timer(struct loop_timer *timer) {
    struct connection *connection = container_of(timer, struct connection, timer);
    int64_t idle_ns = (int64_t)rules_of(connection)->idle_s * SECOND;

    switch (connection->state) {
    case UPSTREAM_NONE:
        if (connection->http)
            connection_end(connection, false);
        else
            connection_refuse(connection, NET_WHY_LIMIT_IDLE);
        return;
    case UPSTREAM_RESOLVING:
        resolve_cancel(&connection->waiter);
        refuse_upstream(connection, NET_WHY_RESOLVE);
        return;
    case UPSTREAM_CONNECTING:
        connect_next(connection);
        return;
    case UPSTREAM_CONNECTED:
        if (connection->is_peer) /* clients of databases keep connections that they do not use */
            return;
        break;
    }
    if (connection->http && connection->http->is_lingering)
        connection_end(connection, false);
    else if (clock_now_ns() - connection->active_ns >= idle_ns)
        connection_refuse(connection, NET_WHY_LIMIT_IDLE);
    else if (loop_timer_set(connection->box->egress->loop, timer, connection->active_ns + idle_ns,
                 on_timer) < 0)
        connection_refuse(connection, NET_WHY_GATEWAY);
}

/* Finds the rule that allows the connection, or the reason why none does. */
static enum net_why find_rule(struct connection *connection) {
    const struct net_rules *rules = rules_of(connection);
    enum net_why why;
    long rule;

    if (connection->is_peer)
        return peers_find(connection->box, connection->name) ? NET_WHY_NONE : NET_WHY_NAME;
    if (connection->name)
        rule = match_connection(rules, connection->name, connection->port, false, &why);
    else if (address_is_v4(&connection->address) && names_is_fake(address_v4(&connection->address)))
        return NET_WHY_NAME;
    else
        rule = match_literal(rules, &connection->address, connection->port, false, &why);
    if (rule < 0)
        return why;
    connection->rule = (size_t)rule;
    return NET_WHY_NONE;
}

static enum net_why admit(struct connection *connection) {
    const struct net_rules *rules = rules_of(connection);
    enum net_why why = find_rule(connection);

    if (why)
        return why;
    if (connection->box->n_connections > rules->max_connections)
        return NET_WHY_LIMIT_CONNECTIONS;
    /* Connections that were handed over report their bytes at their end. */
    if (is_used_up(connection->box, rules))
        return NET_WHY_LIMIT_BYTES;
    if (connection->is_peer) {
        connection->tls = NET_TLS_RAW;
        connection->is_checked = true;
        return NET_WHY_NONE;
    }
    connection->tls = match_tls(rules, connection->rule, connection->port, false);
    connection->is_checked = connection->tls == NET_TLS_RAW;
    /* Without a name there is nothing to compare. */
    if (!connection->name && connection->tls == NET_TLS_CHECK)
        connection->is_checked = true;
    return NET_WHY_NONE;
}

static bool guest_speaks_first(const struct connection *connection) {
    return connection->tls == NET_TLS_TERMINATE || connection->port == 443 ||
           connection->port == 80;
}

/* The engine connects inside of the other sandbox, which may have to wake for it. */
static void ask_peer(struct connection *connection) {
    struct box *box = connection->box;

    connection->state = UPSTREAM_RESOLVING;
    (void)set_timer(connection, PEER_S);
    outbox_send(box->egress,
        json_pack("{s:s, s:s, s:I, s:s, s:i}", "event", "peer", "box", box->id, "connection",
            (json_int_t)connection->id, "name", connection->name, "port", (int)connection->port));
    connection_update(connection);
}

void connection_start(struct box *box, int take_fd) {
    struct connection *connection = calloc(1, sizeof *connection);
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    const int on = 1;

    set_reset(take_fd, true);
    setsockopt(take_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!connection || getsockname(take_fd, (void *)&own, &length) < 0 ||
        address_of_socket(&own, &connection->address, &connection->port) < 0) {
        close(take_fd);
        free(connection);
        return;
    }
    connection->box = box;
    connection->id = ++box->egress->n_connections;
    connection->guest.fd = take_fd;
    connection->upstream.fd = -EBADF;
    connection->started_ns = connection->active_ns = clock_now_ns();
    list_add_tail(&box->connections, &connection->node);
    activity_count(box, true);
    if (address_is_v4(&connection->address))
        connection->name = names_name(&box->names, address_v4(&connection->address));
    if (!connection->name)
        address_text(&connection->address, connection->literal);
    else
        connection->is_peer = peers_find(box, connection->name);
    /* From now on the timer can be set again without memory. */
    enum net_why why = NET_WHY_GATEWAY;
    if (set_timer(connection, EGRESS_FIRST_BYTES_S) == 0)
        why = admit(connection);
    if (why) {
        connection_refuse(connection, why);
        return;
    }
    if (connection->is_peer)
        ask_peer(connection);
    else if (connection->is_checked || !guest_speaks_first(connection))
        start_upstream(connection);
    else
        connection_update(connection);
}

void connection_join_peer(struct box *box, uint64_t id, int take_fd) {
    auto_close int fd = take_fd;
    const int on = 1;

    list_for_each(node, &box->connections) {
        struct connection *connection = container_of(node, struct connection, node);

        if (connection->id != id || !connection->is_peer || connection->state != UPSTREAM_RESOLVING)
            continue;
        if (fd < 0) {
            connection_refuse(connection, NET_WHY_UPSTREAM_REFUSED);
            return;
        }
        connection->upstream.fd = TAKE_FD(fd);
        connection->state = UPSTREAM_CONNECTED;
        loop_timer_clear(box->egress->loop, &connection->timer);
        setsockopt(connection->upstream.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        tally_connection(box, connection->name, connection->port);
        log_event(box, "connect", "{s:s, s:i, s:s}", "host", connection->name, "port",
            (int)connection->port, "to", "sandbox");
        step(connection);
        return;
    }
}

void connection_look(struct connection *connection) {
    if (!connection->is_checked)
        check_first_bytes(connection);
}

void connection_check_peers(struct box *box) {
    list_for_each(node, &box->connections) {
        struct connection *connection = container_of(node, struct connection, node);

        if (connection->is_peer && find_rule(connection))
            connection_refuse(connection, NET_WHY_NAME);
    }
}

void connection_check_rules(struct connection *connection, const struct net_rules *before) {
    if (connection->is_peer) /* there may be no rule at all */
        return;
    const struct net_rule *was = &before->items[connection->rule];
    enum net_why why = find_rule(connection);
    enum net_tls tls = match_tls(rules_of(connection), connection->rule, connection->port, false);

    if (!why && tls != connection->tls && !(box_is_taped(connection->box) && tls == NET_TLS_CHECK))
        why = NET_WHY_NAME; /* it is allowed, but not as it is now */
    if (!why && !connection->is_handed && !net_target_is_same(was->to, rule_of(connection)->to))
        why = NET_WHY_NAME;
    for (size_t i = 0; !why && !connection->is_handed && i < connection->n_addresses; i++)
        if (!may_connect(connection, &connection->addresses[i]))
            why = NET_WHY_PRIVATE_ADDRESS;
    if (why)
        connection_refuse(connection, why);
}

void connection_end_all(struct box *box) {
    while (!list_empty(&box->connections))
        connection_end(container_of(box->connections.next, struct connection, node), true);
}
