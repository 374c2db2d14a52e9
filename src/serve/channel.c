/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: WebSocket connections with the streams of one command, or with one port of a sandbox.
 *
 * A binary message is a stream's number (0 standard input, 1 output, 2 errors, 3 and up the
 * command's further descriptors) and bytes; without bytes it is the end of that stream. Text
 * messages are JSON. The client's first says what the channel is for: {"start": COMMAND},
 * {"attach": ...}, {"claim": ...} or {"connect": PORT}. "started" answers it, and "result" or
 * "error" tells the end of the command.
 *
 * Each side may send at most WINDOW bytes of a stream that the other has not taken; {"credit":
 * [STREAM, BYTES]} tells what has been taken. So a stream that nobody reads holds up no other
 * stream, and a channel needs bounded memory.
 *
 * On the path of a terminal (.../execs/E/tty) binary messages are keys and output as they are, as
 * terminal emulators in browsers send them, without numbers and credit. The connection is then read
 * only as fast as the terminal takes its keys.
 */
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
#include "serve/command.h"
#include "serve/late_call.h"
#include "serve/websocket.h"

#define WINDOW ((size_t)256 << 10)
#define CREDIT_STEP (WINDOW / 4) /* told at least so often */
#define PIECE_BYTES ((size_t)32 << 10)
#define PING_NS (INT64_C(20) * 1000000000)
#define WAYS_MAX ROLLBOX_CLAIM_FDS
#define EXTRA_MAX 8u
#define CLOSE_NORMAL 1000
#define CLOSE_POLICY 1008

/* One direction of one stream. */
struct way {
    struct channel *channel;
    struct loop_source source;
    int fd; /* -EBADF: it has ended */
    unsigned number;
    bool is_input; /* from the client to the sandbox */
    bool has_ended;
    struct buf pending; /* of an input */
    size_t credit; /* of an output: what may be sent; of an input: what was taken and not told */
    uint64_t moved;
};

struct channel {
    struct pool_job job; /* of a claim or connection */
    struct exchange *exchange;
    struct websocket *websocket;
    struct loop_timer timer;
    bool is_terminal, has_begun, has_run, has_ended, is_socket, is_stopped;
    bool is_working, was_left; /* a thread has it; the client is gone */
    json_t *result;            /* not sent yet */
    struct buf rest[2];        /* the result's output, for streams that brought none */
    struct way ways[WAYS_MAX + 1];
    size_t n_ways;
    struct rollbox_error error; /* of the job */
    char id[65];
    unsigned wanted, port;
    int fds[ROLLBOX_CLAIM_FDS], r;
};

static void on_ready(struct loop_source *source, uint32_t events);
static void end_when_done(struct channel *channel);

static struct loop *loop_of(const struct channel *channel) {
    return channel->exchange->server->loop;
}

static void end_way(struct way *way) {
    loop_remove(loop_of(way->channel), &way->source);
    close_fd(&way->fd);
    way->pending.length = 0;
}

static void free_channel(void *data) {
    struct channel *channel = data;

    loop_timer_clear(loop_of(channel), &channel->timer);
    for (size_t i = 0; i < channel->n_ways; i++) {
        end_way(&channel->ways[i]);
        buf_done(&channel->ways[i].pending);
    }
    json_decref(channel->result);
    buf_done(&channel->rest[0]);
    buf_done(&channel->rest[1]);
    websocket_free(channel->websocket);
    free(channel);
}

/* ---- messages to the client ---- */

static void send_json(struct channel *channel, json_t *take_message) {
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

/* Frees what finish has ended; the caller uses the channel no more. */
static void sweep(struct channel *channel) {
    if (channel->is_stopped && !channel->is_working)
        exchange_done(channel->exchange);
}

static void on_refused(struct exchange *exchange, json_t *take_problem) {
    struct channel *channel = exchange->data;

    send_json(channel, json_pack("{s:o}", "error", take_problem));
    finish(channel, CLOSE_NORMAL, "");
}

/* ---- streams ---- */

static struct way *add_way(struct channel *channel, unsigned number, bool is_input, int take_fd) {
    struct way *way = &channel->ways[channel->n_ways++];
    int flags = fcntl(take_fd, F_GETFL);

    /* The other end has flags of its own. */
    (void)fcntl(take_fd, F_SETFL, flags | O_NONBLOCK);
    *way = (struct way){ .channel = channel,
        .source.fd = -1,
        .fd = take_fd,
        .number = number,
        .is_input = is_input,
        .credit = is_input ? 0 : WINDOW };
    (void)loop_add(loop_of(channel), &way->source, take_fd, is_input ? 0 : EPOLLIN, on_ready);
    return way;
}

static struct way *way_of(struct channel *channel, unsigned number, bool is_input) {
    for (size_t i = 0; i < channel->n_ways; i++)
        if (channel->ways[i].number == number && channel->ways[i].is_input == is_input)
            return &channel->ways[i];
    return NULL;
}

static void send_piece(struct way *way, const char *data, size_t length) {
    char message[PIECE_BYTES + 1];
    bool is_plain = way->channel->is_terminal;

    message[0] = (char)way->number;
    memcpy(message + 1, data, length);
    way->moved += length;
    if (!is_plain)
        way->credit -= length;
    size_t unsent = is_plain ? websocket_send(way->channel->websocket, false, message + 1, length)
                             : websocket_send(way->channel->websocket, false, message, length + 1);
    if (unsent >= HTTP_UNSENT_MAX)
        for (size_t i = 0; i < way->channel->n_ways; i++)
            if (!way->channel->ways[i].is_input)
                loop_remove(loop_of(way->channel), &way->channel->ways[i].source);
}

static void listen_again(struct way *way) {
    if (!way->is_input && way->fd >= 0 && way->credit && way->source.fd < 0)
        (void)loop_add(loop_of(way->channel), &way->source, way->fd, EPOLLIN, on_ready);
}

/* Of a command that had ended before the attachment the result alone has the output. */
static void send_rest(struct way *way) {
    struct buf *rest = &way->channel->rest[way->number == 2];

    while (way->number <= 2 && way->moved < rest->length && way->credit) {
        size_t n = MIN(MIN(PIECE_BYTES, rest->length - (size_t)way->moved), way->credit);

        send_piece(way, rest->data + way->moved, n);
    }
}

static bool has_rest(const struct way *way) {
    return way->number <= 2 && way->moved < way->channel->rest[way->number == 2].length;
}

/* Tells the end of an output. If nothing came, the result may still bring it. */
static void tell_end(struct way *way) {
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
    char piece[PIECE_BYTES];
    ssize_t n = read(way->fd, piece, MIN(sizeof piece, way->credit));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        send_piece(way, piece, (size_t)n);
        if (!way->credit)
            loop_remove(loop_of(way->channel), &way->source);
        return;
    }
    end_way(way);
    tell_end(way);
    end_when_done(way->channel);
}

/* The sandbox takes no more input: the client learns it as a broken pipe. */
static void break_input(struct way *way) {
    end_way(way);
    if (!way->has_ended && !way->channel->is_terminal)
        send_json(way->channel, json_pack("{s:[i]}", "broken", (int)way->number));
    way->has_ended = true;
}

static void told_taken(struct way *way, size_t n) {
    way->credit += n;
    if (!way->channel->is_terminal && way->credit >= CREDIT_STEP) {
        send_json(way->channel,
            json_pack("{s:[i,I]}", "credit", (int)way->number, (json_int_t)way->credit));
        way->credit = 0;
    }
}

static void write_input(struct way *way) {
    struct channel *channel = way->channel;

    while (way->fd >= 0 && way->pending.length) {
        ssize_t n = channel->is_socket
                        ? send(way->fd, way->pending.data, way->pending.length, MSG_NOSIGNAL)
                        : write(way->fd, way->pending.data, way->pending.length);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            break_input(way);
            break;
        }
        if (n < 0)
            break;
        memmove(way->pending.data, way->pending.data + n, way->pending.length - (size_t)n);
        way->pending.length -= (size_t)n;
        way->moved += (size_t)n;
        told_taken(way, (size_t)n);
    }
    if (way->fd >= 0 && !way->pending.length && way->has_ended) {
        if (channel->is_socket)
            (void)shutdown(way->fd, SHUT_WR);
        end_way(way);
    }
    if (way->fd >= 0)
        (void)loop_modify(loop_of(channel), &way->source, way->pending.length ? EPOLLOUT : 0);
    if (channel->is_terminal && channel->exchange->connection)
        http_pause(channel->exchange->connection, way->pending.length > WINDOW);
    end_when_done(channel);
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
        end_when_done(channel);
    }
    sweep(channel);
}

/* A terminal's output comes before the result, after which its client closes. */
static void tell_result(struct channel *channel) {
    for (size_t i = 0; channel->is_terminal && i < channel->n_ways; i++)
        if (!channel->ways[i].is_input && !channel->ways[i].has_ended)
            return;
    if (channel->result)
        send_json(channel, json_pack("{s:o}", "result", TAKE_PTR(channel->result)));
}

static void end_when_done(struct channel *channel) {
    bool is_done = channel->has_begun && (!channel->has_run || channel->has_ended);

    tell_result(channel);
    for (size_t i = 0; i < channel->n_ways; i++) {
        const struct way *way = &channel->ways[i];

        /* What a command does not read any more holds nothing up. */
        if (way->is_input ? way->fd >= 0 && !channel->has_run : !way->has_ended)
            is_done = false;
    }
    if (is_done && channel->n_ways + channel->has_run)
        finish(channel, CLOSE_NORMAL, "");
}

/* ---- the command ---- */

static void on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct channel *channel = exchange->data;
    const struct rollbox_result *result;
    auto_free char *text = NULL;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    channel->has_ended = true;
    for (size_t i = 0; i < channel->n_ways; i++) {
        struct way *way = &channel->ways[i];
        bool is_error = way->number == 2;

        if (way->is_input || way->number > 2)
            continue;
        buf_add(&channel->rest[is_error], is_error ? result->stderr_data : result->stdout_data,
            is_error ? result->stderr_length : result->stdout_length);
        tell_end(way);
    }
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        exchange_result(exchange, result, NULL); /* to on_refused */
    else if (rollbox_result_json(result, NULL, &text) >= 0)
        channel->result = json_loads(text, JSON_ALLOW_NUL, NULL);
    end_when_done(channel);
    sweep(channel);
}

static void tell_started(struct channel *channel) {
    json_t *streams = json_object();

    for (size_t i = 0; i < channel->n_ways; i++) {
        char number[8];

        (void)snprintf(number, sizeof number, "%u", channel->ways[i].number);
        json_object_set_new(streams, number, json_string(channel->ways[i].is_input ? "in" : "out"));
    }
    send_json(
        channel, json_pack("{s:{s:s, s:o}}", "started", "id", channel->id, "streams", streams));
}

/* A pipe whose end for the client becomes a way, and the other *ret_fd. */
static bool add_pipe(struct channel *channel, unsigned number, bool is_input, int *ret_fd) {
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) < 0)
        return false;
    *ret_fd = pair[is_input ? 0 : 1];
    (void)add_way(channel, number, is_input, pair[is_input ? 1 : 0]);
    return true;
}

static bool wants(const json_t *streams, json_int_t number) {
    size_t i;
    const json_t *one;

    json_array_foreach((json_t *)streams, i, one) {
        if (json_is_integer(one) && json_integer_value(one) == number)
            return true;
    }
    return false;
}

static void no_room(struct exchange *exchange) {
    exchange_problem(exchange, 503, "resource_exhausted", "the server has no room for a stream");
}

/* The pipes of the streams 0 to 2. */
static bool add_streams(struct channel *channel, const json_t *streams, int *input, int output[2]) {
    return (!wants(streams, 0) || add_pipe(channel, 0, true, input)) &&
           (!wants(streams, 1) || add_pipe(channel, 1, false, &output[0])) &&
           (!wants(streams, 2) || add_pipe(channel, 2, false, &output[1]));
}

static bool add_descriptors(
    struct channel *channel, const json_t *list, int fds[EXTRA_MAX], size_t *ret_n) {
    struct exchange *exchange = channel->exchange;
    const json_t *one;
    size_t i;

    if (list && (!json_is_array(list) || json_array_size(list) > EXTRA_MAX)) {
        exchange_problem(exchange, 400, "invalid_argument",
            "descriptors must be a list of at most %u of \"in\" and \"out\"", EXTRA_MAX);
        return false;
    }
    json_array_foreach((json_t *)list, i, one) {
        const char *text = json_string_value(one);

        if (!text || (strcmp(text, "in") != 0 && strcmp(text, "out") != 0)) {
            exchange_problem(
                exchange, 400, "invalid_argument", "a descriptor is \"in\" or \"out\"");
            return false;
        }
        if (!add_pipe(channel, 3 + (unsigned)i, !strcmp(text, "in"), &fds[i])) {
            no_room(exchange);
            return false;
        }
        *ret_n = i + 1;
    }
    return true;
}

static bool take_id(struct channel *channel, const json_t *value, bool may_miss) {
    const char *id = json_string_value(value);

    if (!value && may_miss) {
        box_random_name(channel->id);
        return true;
    }
    if (!id || !*id || strlen(id) >= sizeof channel->id) {
        exchange_problem(
            channel->exchange, 400, "invalid_argument", "the id of a command has 1 to 64 bytes");
        return false;
    }
    memcpy(channel->id, id, strlen(id) + 1);
    return true;
}

static void start(struct channel *channel, json_t *body) {
    static const char *const more_keys[] = { "id", "tty", "streams", "descriptors", "detached",
        "no_trace", NULL };
    struct exchange *exchange = channel->exchange;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const json_t *tty = json_object_get(body, "tty");
    struct rollbox_terminal terminal;
    int fds[EXTRA_MAX], input = -1, output[2] = { -1, -1 };
    size_t n_fds = 0;
    const char *key;
    json_t *value;

    exchange->body = json_incref(body);
    json_object_foreach(body, key, value) {
        bool is_known = false;

        for (size_t i = 0; exec_keys[i]; i++)
            is_known = is_known || !strcmp(exec_keys[i], key);
        for (size_t i = 0; more_keys[i]; i++)
            is_known = is_known || !strcmp(more_keys[i], key);
        if (!is_known) {
            exchange_problem(exchange, 400, "request_invalid", "unknown member \"%.100s\"", key);
            return;
        }
    }
    if (exchange->server->draining) {
        exchange_problem(exchange, 503, "draining",
            "the server is shutting down; send the request to another one");
        return;
    }
    if (!take_id(channel, json_object_get(body, "id"), true) ||
        (tty && !command_terminal(exchange, tty, &terminal)) || !command_may_run(exchange))
        return;
    struct command *command = command_read(exchange);
    if (!command)
        return;
    struct rollbox_exec_options options = command_exec_options(command);
    bool is_right = add_descriptors(channel, json_object_get(body, "descriptors"), fds, &n_fds);
    if (is_right && !add_streams(channel, json_object_get(body, "streams"), &input, output)) {
        no_room(exchange);
        is_right = false;
    }
    if (is_right) {
        options.operation_id = channel->id;
        options.terminal = tty ? &terminal : NULL;
        options.input_fd = input;
        options.stream_fds[0] = output[0];
        options.stream_fds[1] = output[1];
        options.extra_fds = fds;
        options.n_extra_fds = n_fds;
        options.detached = json_is_true(json_object_get(body, "detached"));
        options.no_trace = json_is_true(json_object_get(body, "no_trace"));
        options.callback = on_end;
        options.userdata = exchange;
        if (rollbox_exec(exchange->box->handle, &options, &exchange->run, &error) < 0)
            exchange_fail(exchange, &error);
        else
            channel->has_run = true;
    }
    command_free(command);
    for (size_t i = 0; i < n_fds; i++)
        close_fd(&fds[i]);
    close_fd(&input);
    close_fd(&output[0]);
    close_fd(&output[1]);
    if (channel->has_run)
        tell_started(channel);
}

static void attach(struct channel *channel, const json_t *body) {
    struct exchange *exchange = channel->exchange;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int input = -1, output[2] = { -1, -1 };

    if (!take_id(channel, json_object_get(body, "id"), false))
        return;
    if (!add_streams(channel, json_object_get(body, "streams"), &input, output)) {
        no_room(exchange);
    } else {
        const struct rollbox_attach_options options = { .size = sizeof options,
            .operation_id = channel->id,
            .input_fd = input,
            .stream_fds = { output[0], output[1] },
            .callback = on_end,
            .userdata = exchange };

        if (rollbox_attach(exchange->box->handle, &options, &exchange->run, &error) < 0)
            exchange_fail(exchange, &error);
        else
            channel->has_run = true;
    }
    close_fd(&input);
    close_fd(&output[0]);
    close_fd(&output[1]);
    if (channel->has_run && !channel->is_terminal)
        tell_started(channel);
}

/* ---- claims and ports ---- */

static void work(struct pool_job *job) {
    struct channel *channel = container_of(job, struct channel, job);
    struct rollbox_sandbox *box = channel->exchange->box->handle;

    channel->r =
        channel->port
            ? rollbox_connect(box, channel->port, &channel->fds[0], &channel->error)
            : rollbox_claim(box, channel->id, channel->wanted, channel->fds, &channel->error);
}

static void take_socket(struct channel *channel) {
    int copy = fcntl(channel->fds[0], F_DUPFD_CLOEXEC, 0);

    channel->is_socket = true;
    (void)add_way(channel, 1, false, channel->fds[0]);
    channel->fds[0] = -1;
    if (copy >= 0)
        (void)add_way(channel, 0, true, copy);
}

static void work_done(struct pool_job *job) {
    struct channel *channel = container_of(job, struct channel, job);

    channel->is_working = false;
    if (channel->r >= 0 && channel->port) {
        take_socket(channel);
    } else if (channel->r >= 0) {
        for (unsigned i = 0; i < ROLLBOX_CLAIM_FDS; i++) {
            int mode = channel->fds[i] < 0 ? 0 : fcntl(channel->fds[i], F_GETFL) & O_ACCMODE;

            if (channel->fds[i] >= 0)
                (void)add_way(channel, i, mode != O_RDONLY, channel->fds[i]);
        }
    }
    if (channel->was_left) {
        exchange_done(channel->exchange);
        return;
    }
    if (channel->r < 0)
        exchange_fail(channel->exchange, &channel->error);
    else
        tell_started(channel);
    end_when_done(channel);
    sweep(channel);
}

static void submit(struct channel *channel) {
    channel->job = (struct pool_job){ .work = work, .done = work_done };
    channel->is_working = true;
    for (size_t i = 0; i < ROLLBOX_CLAIM_FDS; i++)
        channel->fds[i] = -1;
    pool_submit(channel->exchange->server->pool, &channel->job);
}

static void claim(struct channel *channel, const json_t *body) {
    const json_t *slots = json_object_get(body, "streams"), *one;
    size_t i;

    if (!take_id(channel, json_object_get(body, "id"), false))
        return;
    json_array_foreach((json_t *)slots, i, one) {
        json_int_t slot = json_integer_value(one);

        if (json_is_integer(one) && slot >= 0 && slot < ROLLBOX_CLAIM_FDS)
            channel->wanted |= 1u << slot;
    }
    submit(channel);
}

static void connect_port(struct channel *channel, const json_t *value) {
    json_int_t port = json_integer_value(value);

    if (port < 1 || port > UINT16_MAX) {
        exchange_problem(channel->exchange, 400, "invalid_argument", "a port is 1 to 65535");
        return;
    }
    channel->port = (unsigned)port;
    submit(channel);
}

/* ---- messages of the client ---- */

static void begin(struct channel *channel, const json_t *message) {
    json_t *body;

    channel->has_begun = true;
    if (json_is_object(body = json_object_get(message, "start")))
        start(channel, body);
    else if (json_is_object(body = json_object_get(message, "attach")))
        attach(channel, body);
    else if (json_is_object(body = json_object_get(message, "claim")))
        claim(channel, body);
    else if ((body = json_object_get(message, "connect")))
        connect_port(channel, body);
    else
        exchange_problem(channel->exchange, 400, "request_invalid",
            "the first message of a channel is start, attach, claim or connect");
}

static void take_credit(struct channel *channel, const json_t *credit) {
    json_int_t number = json_integer_value(json_array_get(credit, 0));
    json_int_t n = json_integer_value(json_array_get(credit, 1));
    struct way *way =
        number < 0 || number > WAYS_MAX ? NULL : way_of(channel, (unsigned)number, false);

    if (!way || n < 1 || n > (json_int_t)(WINDOW - way->credit))
        return;
    way->credit += (size_t)n;
    listen_again(way);
    tell_end(way);
    end_when_done(channel);
}

/* The client does not read a stream any more: what writes to it gets a broken pipe. */
static void close_output(struct channel *channel, const json_t *value) {
    json_int_t number = json_integer_value(value);
    struct way *way =
        number < 0 || number > WAYS_MAX ? NULL : way_of(channel, (unsigned)number, false);

    if (!way)
        return;
    if (channel->is_socket)
        (void)shutdown(way->fd, SHUT_RD);
    end_way(way);
    way->has_ended = true;
    end_when_done(channel);
}

static void resize(struct channel *channel, const json_t *value) {
    struct rollbox_terminal terminal;

    if (command_terminal(channel->exchange, value, &terminal))
        late_call_start(channel->exchange, channel->id,
            &(struct rollbox_call_options){ .call = ROLLBOX_CALL_RESIZE, .terminal = &terminal });
}

static void take_text(struct channel *channel, const char *data, size_t length) {
    json_t *message = json_loadb(data, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *value;

    if (!json_is_object(message))
        exchange_problem(
            channel->exchange, 400, "request_invalid", "a text message must be a JSON object");
    else if (!channel->has_begun)
        begin(channel, message);
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
            late_call_start(channel->exchange, channel->id, &options);
    } else
        exchange_problem(channel->exchange, 400, "request_invalid",
            "a message is credit, close, resize or signal after the first");
    json_decref(message);
}

static void take_bytes(struct channel *channel, const char *data, size_t length) {
    unsigned number = channel->is_terminal || !length ? 0 : (unsigned char)data[0];
    struct way *way = way_of(channel, number, true);
    size_t skip = channel->is_terminal ? 0 : 1;

    if (!channel->is_terminal && !length)
        return;
    if (!way || way->has_ended || way->fd < 0)
        return; /* it may have ended while the message was on its way */
    if (length == skip) {
        way->has_ended = true;
    } else if (!channel->is_terminal && way->pending.length + length - 1 > WINDOW) {
        finish(channel, CLOSE_POLICY, "more than the stream's window");
        return;
    } else {
        buf_add(&way->pending, data + skip, length - skip);
    }
    write_input(way);
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
    sweep(channel);
}

static void on_writable(struct exchange *exchange) {
    struct channel *channel = exchange->data;

    for (size_t i = 0; i < channel->n_ways; i++)
        listen_again(&channel->ways[i]);
}

static void on_gone(struct exchange *exchange) {
    struct channel *channel = exchange->data;

    channel->is_stopped = channel->was_left = true;
    sweep(channel);
}

static void on_ping(struct loop_timer *timer) {
    struct channel *channel = container_of(timer, struct channel, timer);

    websocket_ping(channel->websocket);
    (void)loop_timer_set(loop_of(channel), timer, clock_now_ns() + PING_NS, on_ping);
}

static struct channel *open_channel(struct exchange *exchange) {
    struct channel *channel = calloc(1, sizeof *channel);

    if (!channel) {
        no_room(exchange);
        return NULL;
    }
    channel->exchange = exchange;
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
    (void)loop_timer_set(loop_of(channel), &channel->timer, clock_now_ns() + PING_NS, on_ping);
    return channel;
}

void handle_channel(struct exchange *exchange) {
    (void)open_channel(exchange);
}

void handle_terminal(struct exchange *exchange) {
    struct channel *channel = open_channel(exchange);

    if (!channel)
        return;
    json_t *body = json_pack("{s:s, s:[i,i]}", "id", exchange->parameters[1], "streams", 0, 1);
    channel->is_terminal = channel->has_begun = true;
    attach(channel, body);
    json_decref(body);
    sweep(channel);
}
