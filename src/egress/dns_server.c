/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/dns_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "egress/activity.h"
#include "egress/bucket.h"
#include "egress/datagram.h"
#include "egress/log.h"
#include "egress/outbox.h"
#include "egress/peers.h"
#include "egress/tally.h"
#include "egress/turn.h"
#include "net/dns.h"

#define QUERIES_PER_SECOND 200
#define QUERIES_BURST 200
#define QUERIES_PER_TURN 16
#define PAUSE_MS 10
#define MS 1000000ll
#define MAX_QUERY 1500u
#define MAX_STREAMS 16u
#define STREAM_IDLE_S 10

static size_t answer_pointer(
    const struct box *box, const struct dns_query *query, uint8_t *ret_answer) {
    const char *name = NULL;
    uint32_t address;

    if (dns_reversed_address(query->name, &address) == 0)
        name = names_name(&box->names, address);
    return name ? dns_answer_name(query, name, ret_answer)
                : dns_answer_code(query, DNS_NO_NAME, ret_answer);
}

static void tell_engine(struct box *box, const char *name, uint32_t v4) {
    const struct address address = address_of_v4(v4);
    char text[ADDRESS_TEXT];

    outbox_send(box->egress, json_pack("{s:s, s:s, s:s, s:s}", "event", "name", "box", box->id,
                                 "name", name, "address", address_text(&address, text)));
}

/* Returns the answer's length, or 0 for a message that gets no answer. */
static size_t answer(struct box *box, const void *data, size_t length, uint8_t *ret_answer) {
    struct dns_query query;
    uint32_t address;
    bool is_new;
    int r = dns_read(data, length, &query);

    if (r == -EBADMSG)
        return 0;
    if (r == -EOPNOTSUPP)
        return dns_answer_code(&query, DNS_UNKNOWN_OPERATION, ret_answer);
    if (r < 0)
        return dns_answer_code(&query, DNS_MALFORMED, ret_answer);
    if (query.type == DNS_PTR)
        return answer_pointer(box, &query, ret_answer);
    bool is_allowed =
        (match_name(&box->rules->policy->network, query.name) || peers_find(box, query.name)) &&
        names_valid(query.name);
    if (!is_allowed) {
        log_event(box, "dns", "{s:s, s:i, s:s}", "host", query.name, "type", (int)query.type, "why",
            match_why_text(NET_WHY_NAME));
        if (query.type == DNS_A) /* clients also ask for the AAAA record: count the name once */
            tally_name(box, query.name);
        return dns_answer_code(&query, DNS_NO_NAME, ret_answer);
    }
    if (query.type != DNS_A && query.type != DNS_ANY)
        return dns_answer_code(&query, DNS_OK, ret_answer);
    r = names_address(&box->names, query.name, true, &address, &is_new);
    if (r < 0)
        return dns_answer_code(&query, DNS_FAILED, ret_answer);
    if (is_new)
        tell_engine(box, query.name, address);
    return dns_answer_address(&query, address, ret_answer);
}

static bool take_query(struct box *box) {
    return bucket_take(&box->queries, QUERIES_PER_SECOND, QUERIES_BURST, 1);
}

static void set_listening(struct box *box, bool on) {
    for (size_t i = 0; i < box->n_listeners; i++) {
        struct listener *listener = &box->listeners[i];

        if (listener->is_udp && listener->port == DNS_PORT)
            (void)loop_modify(box->egress->loop, &listener->source, on ? EPOLLIN : 0u);
    }
}

static void resume_listening(struct loop_timer *timer) {
    set_listening(container_of(timer, struct box, query_timer), true);
}

void dns_server_read(struct listener *listener) {
    struct box *box = listener->box;
    uint8_t bytes[DNS_ANSWER];

    for (int i = 0; i < QUERIES_PER_TURN; i++) {
        struct datagram datagram;

        if (!take_query(box)) {
            /* The kernel drops datagrams for which the unread socket's buffer has no room. */
            if (loop_timer_set(box->egress->loop, &box->query_timer, clock_now_ns() + PAUSE_MS * MS,
                    resume_listening) == 0)
                set_listening(box, false);
            return;
        }
        ssize_t n = datagram_receive(listener->fd, box->egress->scratch, MAX_QUERY, &datagram);
        if (n == -EAGAIN)
            return;
        if (n < 0)
            continue;
        size_t length = answer(box, box->egress->scratch, (size_t)n, bytes);
        if (length)
            (void)datagram_reply(listener->fd, bytes, length, &datagram);
    }
}

/* --- DNS over TCP: a message follows its length --- */

struct dns_stream {
    struct list node;
    struct box *box;
    struct loop_source source;
    struct loop_timer timer;
    int fd;
    size_t n;
    uint8_t bytes[2 + MAX_QUERY];
};

static void stream_end(struct dns_stream *stream) {
    struct loop *loop = stream->box->egress->loop;

    turn_remove(&stream->box->turn, &stream->source);
    loop_timer_clear(loop, &stream->timer);
    close_fd(&stream->fd);
    list_remove(&stream->node);
    activity_count(stream->box, false);
    free(stream);
}

static void on_stream_timer(struct loop_timer *timer) {
    stream_end(container_of(timer, struct dns_stream, timer));
}

/* Answers the first message. Returns 1, or 0 if the message is incomplete, or -errno. */
static int answer_first(struct dns_stream *stream) {
    uint8_t bytes[2 + DNS_ANSWER];
    size_t length = stream->n < 2 ? 0 : (size_t)stream->bytes[0] << 8 | stream->bytes[1];

    if (length > MAX_QUERY)
        return -EMSGSIZE;
    if (stream->n < 2 || stream->n < 2 + length)
        return 0;
    if (!take_query(stream->box))
        return -EAGAIN;
    size_t n = answer(stream->box, stream->bytes + 2, length, bytes + 2);
    if (!n)
        return -EBADMSG;
    bytes[0] = (uint8_t)(n >> 8);
    bytes[1] = (uint8_t)n;
    /* The stream of a guest that does not read its answers is closed. */
    if (send(stream->fd, bytes, n + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)n + 2)
        return -EPIPE;
    stream->n -= 2 + length;
    memmove(stream->bytes, stream->bytes + 2 + length, stream->n);
    return 1;
}

static void on_stream(struct loop_source *source, uint32_t events) {
    struct dns_stream *stream = container_of(source, struct dns_stream, source);
    const struct linger orderly = { 0, 0 };
    int r;

    (void)events;
    ssize_t n =
        recv(stream->fd, stream->bytes + stream->n, sizeof stream->bytes - stream->n, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 0)
        setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &orderly, sizeof orderly);
    if (n <= 0) {
        stream_end(stream);
        return;
    }
    stream->n += (size_t)n;
    while ((r = answer_first(stream)) > 0)
        ;
    if (r < 0 || loop_timer_set(stream->box->egress->loop, &stream->timer,
                     clock_now_ns() + STREAM_IDLE_S * 1000 * MS, on_stream_timer) < 0)
        stream_end(stream);
}

void dns_stream_start(struct box *box, int take_fd) {
    const struct linger reset = { 1, 0 };
    struct loop *loop = box->egress->loop;
    unsigned streams = 0;

    list_for_each(node, &box->dns_streams)
        streams++;
    setsockopt(take_fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    struct dns_stream *stream = streams < MAX_STREAMS ? calloc(1, sizeof *stream) : NULL;
    if (!stream) {
        close(take_fd);
        return;
    }
    stream->box = box;
    stream->fd = take_fd;
    list_add_tail(&box->dns_streams, &stream->node);
    activity_count(box, true);
    if (turn_add(&box->turn, &stream->source, take_fd, EPOLLIN, on_stream) < 0 ||
        loop_timer_set(
            loop, &stream->timer, clock_now_ns() + STREAM_IDLE_S * 1000 * MS, on_stream_timer) < 0)
        stream_end(stream);
}

void dns_stream_end_all(struct box *box) {
    while (!list_empty(&box->dns_streams))
        stream_end(container_of(box->dns_streams.next, struct dns_stream, node));
}
