/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standard input of commands by plain requests. A command that was started with "stdin_open" has a
 * pipe, whose end stays here until `eof`, or until the command reads no more. POST
 * .../stdin?offset=N writes bytes; what lies before N plus what was accepted already is skipped, so
 * a retry writes nothing twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "serve/server.h"

struct input {
    struct list of_server;
    struct server *server;
    struct box *box;
    char id[65];
    int fd; /* -EBADF: ended */
    struct loop_source source;
    uint64_t accepted;
    struct exchange *writer; /* the request that is being written */
    struct buf pending;
    bool ends;
};

static void on_ready(struct loop_source *source, uint32_t events);

static void free_input(struct input *input) {
    loop_remove(input->server->loop, &input->source);
    close_fd(&input->fd);
    list_remove(&input->of_server);
    box_unref(input->box);
    buf_done(&input->pending);
    free(input);
}

int input_open(struct exchange *exchange, const char *id, int *ret_fd) {
    struct input *input = calloc(1, sizeof *input);
    int pair[2];

    if (!input || pipe2(pair, O_CLOEXEC) < 0) {
        free(input);
        return -ENOMEM;
    }
    input->server = exchange->server;
    input->box = exchange->box;
    input->box->references++;
    (void)snprintf(input->id, sizeof input->id, "%s", id);
    input->fd = pair[1];
    (void)fcntl(pair[1], F_SETFL, O_WRONLY | O_NONBLOCK);
    (void)loop_add(input->server->loop, &input->source, pair[1], 0, on_ready);
    list_add_tail(&exchange->server->inputs, &input->of_server);
    *ret_fd = pair[0];
    return 0;
}

static void answer(struct input *input) {
    struct exchange *exchange = TAKE_PTR(input->writer);

    if (!exchange)
        return;
    exchange->data = NULL;
    exchange_answer_json(
        exchange, 200, json_pack("{s:I}", "accepted", (json_int_t)input->accepted));
}

static void write_pending(struct input *input) {
    while (input->pending.length) {
        ssize_t n = write(input->fd, input->pending.data, input->pending.length);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            struct exchange *exchange = TAKE_PTR(input->writer);

            if (exchange) {
                exchange->data = NULL;
                exchange_problem(exchange, 404, "not_found",
                    "the command does not read its standard input any more");
            }
            free_input(input);
            return;
        }
        input->accepted += (uint64_t)n;
        memmove(input->pending.data, input->pending.data + n, input->pending.length - (size_t)n);
        input->pending.length -= (size_t)n;
    }
    (void)loop_modify(input->server->loop, &input->source, input->pending.length ? EPOLLOUT : 0);
    if (input->pending.length)
        return;
    bool ends = input->ends;
    answer(input);
    if (ends)
        free_input(input);
}

static void on_ready(struct loop_source *source, uint32_t events) {
    struct input *input = container_of(source, struct input, source);

    if (events & EPOLLOUT || input->writer)
        write_pending(input);
    else
        free_input(input);
}

/* The writer's connection has ended. The bytes that it has sent are still written. */
static void on_gone(struct exchange *exchange) {
    struct input *input = exchange->data;

    input->writer = NULL;
    exchange->data = NULL;
    exchange_done(exchange);
}

static struct input *find(struct exchange *exchange) {
    list_for_each(node, &exchange->server->inputs) {
        struct input *input = container_of(node, struct input, of_server);

        if (input->box == exchange->box && !strcmp(input->id, exchange->parameters[1]))
            return input;
    }
    return NULL;
}

void handle_stdin(struct exchange *exchange) {
    struct http_request *request = http_request_of(exchange->connection);
    struct input *input = find(exchange);
    auto_buf struct buf offset = BUF_INIT, eof = BUF_INIT;
    unsigned long long at = input ? input->accepted : 0;
    char rest;

    if (!input) {
        exchange_problem(exchange, 404, "not_found",
            "the command has no open standard input: start it with \"stdin_open\": true");
        return;
    }
    if (http_query(request, "offset", &offset) &&
        (!offset.data || sscanf(offset.data, "%llu%c", &at, &rest) != 1)) {
        exchange_problem(exchange, 400, "invalid_argument", "offset must be a number");
        return;
    }
    if (input->writer || input->pending.length) {
        exchange_problem(
            exchange, 409, "conflict", "another request writes to this standard input");
        return;
    }
    if (at > input->accepted) {
        exchange_problem(exchange, 416, "request_invalid",
            "the standard input has taken %llu bytes, and offset is %llu",
            (unsigned long long)input->accepted, at);
        return;
    }
    size_t skip = (size_t)MIN(input->accepted - at, (uint64_t)request->body.length);
    buf_add(&input->pending, request->body.data + skip, request->body.length - skip);
    input->ends = http_query(request, "eof", &eof);
    input->writer = exchange;
    exchange->data = input;
    exchange->gone = on_gone;
    write_pending(input);
}
