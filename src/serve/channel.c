/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: their streams and messages; channel.h has the model. */
#include "serve/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/late_call.h"

#define WINDOW ((size_t)256 << 10)
/* Credit for so many bytes is sent to the client at once. */
#define CREDIT_STEP (WINDOW / 4)
#define PIECE_BYTES ((size_t)32 << 10)
#define PING_NS (INT64_C(20) * 1000000000)
#define CLOSE_NORMAL 1000
#define CLOSE_POLICY 1008

static void on_ready(struct loop_source *source, uint32_t events);

void channel_no_room(struct exchange *exchange) {
    exchange_problem(exchange, 503, "resource_exhausted", "the server has no room for a stream");
}

struct loop *channel_loop(const struct channel *channel) {
    return channel->exchange->server->loop;
}

static void end_way(struct way *way) {
    loop_remove(channel_loop(way->channel), &way->source);
    close_fd(&way->fd);
    way->pending.length = 0;
}

static void free_channel(void *data) {
    struct channel *channel = data;

    loop_timer_clear(channel_loop(channel), &channel->timer);
    for (size_t i = 0; i < channel->n_ways; i++) {
        end_way(&channel->ways[i]);
        buf_done(&channel->ways[i].pending);
    }
    loop_task_cancel(&channel->more);
    json_decref(channel->result);
    json_decref(channel->answer);
    close_fd(&channel->theirs);
    websocket_free(channel->websocket);
    free(channel);
}

/* ---- messages to the client ---- */

void channel_send_json(struct channel *channel, json_t *take_message) {
    auto_free char *text = json_dumps(take_message, JSON_COMPACT | JSON_REAL_PRECISION(15));

    json_decref(take_message);
    if (text)
        (void)websocket_send(channel->websocket, true, text, strlen(text));
}

static void finish(struct channel *channel, unsigned code, const char *reason) {
    struct exchange *exchange = channel->exchange;

    if (channel->is_stopped)
        return;
    channel->is_stopped = true;
    websocket_close(channel->websocket, code, reason);
    if (exchange->connection)
        *http_data(exchange->connection) = NULL;
    exchange->connection = NULL;
    channel->was_left = true;
}

/* Frees a channel that finish() has ended. The caller must not use it afterwards. */
void channel_sweep(struct channel *channel) {
    if (channel->is_stopped && !channel->is_working)
        exchange_done(channel->exchange);
}

static void on_refused(struct exchange *exchange, json_t *take_problem) {
    struct channel *channel = exchange->data;

    channel_send_json(channel, json_pack("{s:o}", "error", take_problem));
    finish(channel, CLOSE_NORMAL, "");
}

/* ---- streams ---- */

struct way *channel_add_way(struct channel *channel, unsigned number, bool is_input, int take_fd) {
    struct way *way = &channel->ways[channel->n_ways++];
    int flags = fcntl(take_fd, F_GETFL);

    /* This does not concern the other end, which has its own flags. */
    (void)fcntl(take_fd, F_SETFL, flags | O_NONBLOCK);
    *way = (struct way){ .channel = channel,
        .source.fd = -1,
        .fd = take_fd,
        .number = number,
        .is_input = is_input,
        .credit = is_input ? 0 : WINDOW };
    (void)loop_add(channel_loop(channel), &way->source, take_fd, is_input ? 0 : EPOLLIN, on_ready);
    return way;
}

static struct way *way_of(struct channel *channel, unsigned number, bool is_input) {
    for (size_t i = 0; i < channel->n_ways; i++)
        if (channel->ways[i].number == number && channel->ways[i].is_input == is_input)
            return &channel->ways[i];
    return NULL;
}

static void send_piece(struct way *way, const char *data, size_t length) {
    char message[CHANNEL_PACKET_MAX + 1];
    bool is_plain = way->channel->is_terminal;

    message[0] = (char)way->number;
    memcpy(message + 1, data, length);
    way->moved += length;
    if (!is_plain)
        way->credit -= length;
    size_t unsent = is_plain ? websocket_send(way->channel->websocket, false, message + 1, length)
                             : websocket_send(way->channel->websocket, false, message, length + 1);
    way->channel->is_full = unsent >= HTTP_UNSENT_MAX;
    if (way->channel->is_full)
        for (size_t i = 0; i < way->channel->n_ways; i++)
            if (!way->channel->ways[i].is_input)
                loop_remove(channel_loop(way->channel), &way->channel->ways[i].source);
}

/* Packets are sent whole, so the credit must suffice for the largest one. Credit alone does not
 * suffice: a client may give it and read nothing. */
static bool may_send(const struct way *way) {
    return !way->channel->is_full &&
           way->credit >= (way->channel->has_packets ? CHANNEL_PACKET_MAX : 1);
}

static void listen_again(struct way *way) {
    if (!way->is_input && way->fd >= 0 && may_send(way) && way->source.fd < 0)
        (void)loop_add(channel_loop(way->channel), &way->source, way->fd, EPOLLIN, on_ready);
}

/* If the command ended before the client attached, only the command's result has its output. */
static bool has_rest(const struct way *way) {
    return way->number <= 2 && way->moved < way->channel->rest_length[way->number == 2];
}

static void send_rest(struct way *way) {
    const struct channel *channel = way->channel;
    const bool is_error = way->number == 2;

    while (has_rest(way) && may_send(way)) {
        size_t n = MIN(PIECE_BYTES, channel->rest_length[is_error] - (size_t)way->moved);

        send_piece(way, channel->rest[is_error] + way->moved, MIN(n, way->credit));
    }
}

/* Tells the client that an output has ended. If the stream brought no bytes, the result may still
 * contain them. */
void channel_tell_end(struct way *way) {
    struct channel *channel = way->channel;
    const char number = (char)way->number;

    if (way->has_ended || way->fd >= 0 || (channel->has_run && !channel->has_ended && !way->moved))
        return;
    send_rest(way);
    if (has_rest(way))
        return;
    way->has_ended = true;
    if (!channel->is_terminal)
        (void)websocket_send(channel->websocket, false, &number, 1);
}

static void read_output(struct way *way) {
    char piece[CHANNEL_PACKET_MAX];
    size_t max_bytes = way->channel->has_packets ? sizeof piece : MIN(PIECE_BYTES, way->credit);
    ssize_t n = read(way->fd, piece, max_bytes);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        send_piece(way, piece, (size_t)n);
        if (!may_send(way))
            loop_remove(channel_loop(way->channel), &way->source);
        return;
    }
    end_way(way);
    channel_tell_end(way);
    channel_end_when_done(way->channel);
}

/* The sandbox accepts no more input on this stream. The client gets a "broken" message. */
static void break_input(struct way *way) {
    end_way(way);
    if (!way->has_ended && !way->channel->is_terminal)
        channel_send_json(way->channel, json_pack("{s:[i]}", "broken", (int)way->number));
    way->has_ended = true;
}

static void add_input_credit(struct way *way, size_t n) {
    way->credit += n;
    if (!way->channel->is_terminal && way->credit >= CREDIT_STEP) {
        channel_send_json(way->channel,
            json_pack("{s:[i,I]}", "credit", (int)way->number, (json_int_t)way->credit));
        way->credit = 0;
    }
}

static void write_input(struct way *way) {
    struct channel *channel = way->channel;

    while (way->fd >= 0 && way->pending.length) {
        const char *data = way->pending.data;
        uint32_t head = 0;
        size_t length = way->pending.length;

        if (channel->has_packets) {
            memcpy(&head, data, sizeof head);
            data += sizeof head;
            length = head;
        }
        ssize_t n = channel->is_socket ? send(way->fd, data, length, MSG_NOSIGNAL)
                                       : write(way->fd, data, length);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            break_input(way);
            break;
        }
        if (n < 0)
            break;
        size_t written = (size_t)n + (channel->has_packets ? sizeof head : 0);
        memmove(way->pending.data, way->pending.data + written, way->pending.length - written);
        way->pending.length -= written;
        way->moved += (size_t)n;
        add_input_credit(way, (size_t)n);
    }
    if (way->fd >= 0 && !way->pending.length && way->has_ended) {
        if (channel->is_socket)
            (void)shutdown(way->fd, SHUT_WR);
        end_way(way);
    }
    if (way->fd >= 0)
        (void)loop_modify(channel_loop(channel), &way->source, way->pending.length ? EPOLLOUT : 0);
    if (channel->is_terminal && channel->exchange->connection)
        http_pause(channel->exchange->connection, way->pending.length > WINDOW);
    channel_end_when_done(channel);
}

static void on_ready(struct loop_source *source, uint32_t events) {
    struct way *way = container_of(source, struct way, source);
    struct channel *channel = way->channel;

    if (!way->is_input)
        read_output(way);
    else if (events & EPOLLOUT)
        write_input(way);
    else if (events & (EPOLLERR | EPOLLHUP)) {
        break_input(way);
        channel_end_when_done(channel);
    }
    channel_sweep(channel);
}

/* A terminal's client closes the channel after the result, so the output is sent first. */
static void tell_result(struct channel *channel) {
    for (size_t i = 0; channel->is_terminal && i < channel->n_ways; i++)
        if (!channel->ways[i].is_input && !channel->ways[i].has_ended)
            return;
    if (channel->result)
        channel_send_json(channel, json_pack("{s:o}", "result", TAKE_PTR(channel->result)));
}

void channel_end_when_done(struct channel *channel) {
    bool is_done = channel->has_begun && (!channel->has_run || channel->has_ended);

    tell_result(channel);
    for (size_t i = 0; i < channel->n_ways; i++) {
        const struct way *way = &channel->ways[i];

        /* Input that the command no longer reads does not keep the channel open. */
        if (way->is_input ? way->fd >= 0 && !channel->has_run : !way->has_ended)
            is_done = false;
    }
    if (is_done && channel->n_ways + channel->has_run)
        finish(channel, CLOSE_NORMAL, "");
}

/* ---- messages of the client ---- */

static void take_credit(struct channel *channel, const json_t *credit) {
    json_int_t number = json_integer_value(json_array_get(credit, 0));
    json_int_t n = json_integer_value(json_array_get(credit, 1));
    struct way *way =
        number < 0 || number > ROLLBOX_CLAIM_FDS ? NULL : way_of(channel, (unsigned)number, false);

    if (!way || n < 1 || n > (json_int_t)(WINDOW - way->credit))
        return;
    way->credit += (size_t)n;
    listen_again(way);
    channel_tell_end(way);
    channel_end_when_done(channel);
}

/* The client no longer reads this stream. Its writer in the sandbox gets a broken pipe. */
static void close_output(struct channel *channel, const json_t *value) {
    json_int_t number = json_integer_value(value);
    struct way *way =
        number < 0 || number > ROLLBOX_CLAIM_FDS ? NULL : way_of(channel, (unsigned)number, false);

    if (!way)
        return;
    if (channel->is_socket)
        (void)shutdown(way->fd, SHUT_RD);
    end_way(way);
    way->has_ended = true;
    channel_end_when_done(channel);
}

static void call_late(struct channel *channel, const struct rollbox_call_options *options) {
    if (admission_awake(channel->exchange) &&
        !late_call_start(channel->exchange, channel->id, options))
        finish(channel, CLOSE_POLICY, "more signals and sizes than the sandbox takes");
}

static void resize(struct channel *channel, const json_t *value) {
    struct rollbox_terminal terminal;

    if (command_terminal(channel->exchange, value, &terminal))
        call_late(channel,
            &(struct rollbox_call_options){ .call = ROLLBOX_CALL_RESIZE, .terminal = &terminal });
}

static void take_text(struct channel *channel, const char *data, size_t length) {
    json_t *message = json_loadb(data, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *value;

    if (!json_is_object(message))
        exchange_problem(
            channel->exchange, 400, "request_invalid", "a text message must be a JSON object");
    else if (!channel->has_begun && admission_awake(channel->exchange))
        channel->kind->begin(channel, message);
    else if (!channel->has_begun)
        ; /* the answer is given */
    else if ((value = json_object_get(message, "credit")))
        take_credit(channel, value);
    else if ((value = json_object_get(message, "close")))
        close_output(channel, value);
    else if ((value = json_object_get(message, "resize")))
        resize(channel, value);
    else if (json_object_get(message, "signal")) {
        struct rollbox_call_options options = { .call = ROLLBOX_CALL_SIGNAL };

        json_decref(channel->exchange->body);
        channel->exchange->body = json_incref(message);
        if (call_signal(channel->exchange, &options))
            call_late(channel, &options);
    } else
        exchange_problem(channel->exchange, 400, "request_invalid",
            "after the first message, a message must be credit, close, resize or signal");
    json_decref(message);
}

static void take_bytes(struct channel *channel, const char *data, size_t length) {
    unsigned number = channel->is_terminal || !length ? 0 : (unsigned char)data[0];
    struct way *way = way_of(channel, number, true);
    size_t skip = channel->is_terminal ? 0 : 1;

    if (!channel->is_terminal && !length)
        return;
    if (!way || way->has_ended || way->fd < 0)
        return; /* the stream may have ended while the message was on its way */
    if (length == skip) {
        way->has_ended = true;
    } else if (!channel->is_terminal && way->pending.length + length - 1 > WINDOW) {
        finish(channel, CLOSE_POLICY, "the input exceeds the stream's window");
        return;
    } else {
        const uint32_t head = (uint32_t)(length - skip);

        if (channel->has_packets)
            buf_add(&way->pending, &head, sizeof head);
        buf_add(&way->pending, data + skip, length - skip);
    }
    write_input(way);
    if (channel->has_packets && channel->theirs >= 0 && !channel->is_working)
        channel->kind->start_agent(channel);
}

static void on_message(struct exchange *exchange, bool is_text, const char *data, size_t length) {
    struct channel *channel = exchange->data;

    if (channel->is_stopped)
        return;
    if (is_text)
        take_text(channel, data, length);
    else
        take_bytes(channel, data, length);
}

static void on_input(struct exchange *exchange, const char *data, size_t length, bool is_end) {
    struct channel *channel = exchange->data;

    (void)is_end;
    if (!websocket_input(channel->websocket, data, length))
        finish(channel, CLOSE_NORMAL, "");
    channel_sweep(channel);
}

static void run_more(struct loop_task *task) {
    struct channel *channel = container_of(task, struct channel, more);

    if (channel->is_stopped)
        return;
    for (size_t i = 0; i < channel->n_ways; i++) {
        listen_again(&channel->ways[i]);
        if (has_rest(&channel->ways[i]))
            channel_tell_end(&channel->ways[i]);
    }
    channel_end_when_done(channel);
    channel_sweep(channel);
}

/* It may come from within the write of a message. */
static void on_writable(struct exchange *exchange) {
    struct channel *channel = exchange->data;

    channel->is_full = false;
    loop_defer(channel_loop(channel), &channel->more, run_more);
}

static void on_gone(struct exchange *exchange) {
    struct channel *channel = exchange->data;

    channel->is_stopped = channel->was_left = true;
    channel_sweep(channel);
}

static void on_ping(struct loop_timer *timer) {
    struct channel *channel = container_of(timer, struct channel, timer);

    websocket_ping(channel->websocket);
    (void)loop_timer_set(channel_loop(channel), timer, clock_now_ns() + PING_NS, on_ping);
}

struct channel *channel_open(struct exchange *exchange, const struct channel_kind *kind) {
    struct channel *channel = calloc(1, sizeof *channel);

    if (!channel) {
        channel_no_room(exchange);
        return NULL;
    }
    channel->exchange = exchange;
    channel->kind = kind;
    channel->theirs = -EBADF;
    exchange->data = channel;
    exchange->free_data = free_channel;
    exchange->input = on_input;
    exchange->writable = on_writable;
    exchange->gone = on_gone;
    struct websocket *websocket = websocket_accept(exchange, on_message);
    if (!websocket)
        return NULL;
    channel->websocket = websocket;
    exchange->refused = on_refused;
    (void)loop_timer_set(channel_loop(channel), &channel->timer, clock_now_ns() + PING_NS, on_ping);
    return channel;
}
