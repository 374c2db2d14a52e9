/* SPDX-License-Identifier: Apache-2.0 */
/* The purposes of channels: a command, its claimed pipes, a port, a record, a files agent. */
#include "serve/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/files.h"
#include "serve/admission.h"
#include "serve/events.h"

#define EXTRA_MAX 8u

/* ---- the command ---- */

static void on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct channel *channel = exchange->data;
    const struct rollbox_result *result;
    auto_free char *text = NULL;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    struct rollbox_result told = *result;
    channel->has_ended = true;
    if (exchange->counts_running)
        command_ended(exchange, channel->id, result);
    for (size_t i = 0; i < channel->n_ways; i++) {
        struct way *way = &channel->ways[i];
        bool is_error = way->number == 2;

        if (way->is_input || way->number > 2)
            continue;
        channel->rest[is_error] = is_error ? result->stderr_data : result->stdout_data;
        channel->rest_length[is_error] = is_error ? result->stderr_length : result->stdout_length;
        /* The result, one message, does not have it again. */
        *(is_error ? &told.stderr_length : &told.stdout_length) = 0;
        channel_tell_end(way);
    }
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        exchange_result(exchange, &told, NULL); /* to on_refused */
    else if (rollbox_result_json(&told, NULL, &text) >= 0)
        channel->result = json_loads(text, JSON_ALLOW_NUL, NULL);
    channel_end_when_done(channel);
    channel_sweep(channel);
}

static void channel_tell_started(struct channel *channel) {
    json_t *streams = json_object();

    for (size_t i = 0; i < channel->n_ways; i++) {
        char number[8];

        (void)snprintf(number, sizeof number, "%u", channel->ways[i].number);
        json_object_set_new(streams, number, json_string(channel->ways[i].is_input ? "in" : "out"));
    }
    json_t *started = json_pack("{s:s, s:o}", "id", channel->id, "streams", streams);
    if (channel->answer)
        json_object_update(started, channel->answer);
    channel_send_json(channel, json_pack("{s:o}", "started", started));
}

/* A pipe whose end for the client becomes a way, and the other *ret_fd. */
static bool add_pipe(struct channel *channel, unsigned number, bool is_input, int *ret_fd) {
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) < 0)
        return false;
    *ret_fd = pair[is_input ? 0 : 1];
    (void)channel_add_way(channel, number, is_input, pair[is_input ? 1 : 0]);
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
            channel_no_room(exchange);
            return false;
        }
        *ret_n = i + 1;
    }
    return true;
}

static bool channel_take_id(struct channel *channel, const json_t *value, bool may_miss) {
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

    exchange->body = json_incref(body);
    if (!exchange_knows(exchange, exec_keys, more_keys))
        return;
    if (exchange->server->draining) {
        exchange_problem(exchange, 503, "draining",
            "the server is shutting down; send the request to another one");
        return;
    }
    if (!channel_take_id(channel, json_object_get(body, "id"), true) ||
        (tty && !command_terminal(exchange, tty, &terminal)) || !admission_command(exchange))
        return;
    struct command *command = command_read(exchange);
    if (!command)
        return;
    struct rollbox_exec_options options = command_exec_options(command);
    bool is_right = add_descriptors(channel, json_object_get(body, "descriptors"), fds, &n_fds);
    if (is_right && !add_streams(channel, json_object_get(body, "streams"), &input, output)) {
        channel_no_room(exchange);
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
    if (channel->has_run) {
        events_of_box(exchange->box, "exec.started", json_pack("{s:s}", "exec", channel->id));
        channel_tell_started(channel);
    }
}

static void attach(struct channel *channel, const json_t *body) {
    struct exchange *exchange = channel->exchange;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int input = -1, output[2] = { -1, -1 };

    if (!channel_take_id(channel, json_object_get(body, "id"), false))
        return;
    if (!add_streams(channel, json_object_get(body, "streams"), &input, output)) {
        channel_no_room(exchange);
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
        channel_tell_started(channel);
}

/* ---- what a thread does: claims, ports, records, agents ---- */

static void work(struct pool_job *job) {
    struct channel *channel = container_of(job, struct channel, job);

    channel->work(channel);
}

static void work_done(struct pool_job *job) {
    struct channel *channel = container_of(job, struct channel, job);

    channel->is_working = false;
    if (channel->port && channel->r >= 0) {
        int copy = fcntl(channel->fds[0], F_DUPFD_CLOEXEC, 0);

        (void)channel_add_way(channel, 1, false, channel->fds[0]);
        if (copy >= 0)
            (void)channel_add_way(channel, 0, true, copy);
    } else if (channel->r >= 0) {
        for (unsigned i = 0; i < ROLLBOX_CLAIM_FDS; i++) {
            int mode = channel->fds[i] < 0 ? 0 : fcntl(channel->fds[i], F_GETFL) & O_ACCMODE;

            if (channel->fds[i] >= 0)
                (void)channel_add_way(channel, i, mode != O_RDONLY, channel->fds[i]);
        }
    }
    close_fd(&channel->theirs);
    if (channel->was_left) {
        exchange_done(channel->exchange);
        return;
    }
    if (channel->r < 0)
        exchange_fail(channel->exchange, &channel->error);
    else if (!channel->has_packets)
        channel_tell_started(channel);
    channel_end_when_done(channel);
    channel_sweep(channel);
}

static void submit(struct channel *channel, void (*what)(struct channel *)) {
    channel->job = (struct pool_job){ .work = work, .done = work_done };
    channel->work = what;
    channel->is_working = true;
    for (size_t i = 0; i < ROLLBOX_CLAIM_FDS; i++)
        channel->fds[i] = -1;
    pool_submit(channel->exchange->server->pool, &channel->job);
}

static void claim(struct channel *channel) {
    channel->r = rollbox_claim(channel->exchange->box->handle, channel->id, channel->wanted,
        channel->fds, &channel->error);
}

static void begin_claim(struct channel *channel, const json_t *body) {
    const json_t *slots = json_object_get(body, "streams"), *one;
    size_t i;

    if (!channel_take_id(channel, json_object_get(body, "id"), false))
        return;
    json_array_foreach((json_t *)slots, i, one) {
        json_int_t slot = json_integer_value(one);

        if (json_is_integer(one) && slot >= 0 && slot < ROLLBOX_CLAIM_FDS)
            channel->wanted |= 1u << slot;
    }
    submit(channel, claim);
}

static void connect_port(struct channel *channel) {
    channel->r = rollbox_connect(
        channel->exchange->box->handle, channel->port, &channel->fds[0], &channel->error);
}

static void begin_port(struct channel *channel, const json_t *value) {
    json_int_t port = json_integer_value(value);

    if (port < 1 || port > UINT16_MAX) {
        exchange_problem(channel->exchange, 400, "invalid_argument", "a port is 1 to 65535");
        return;
    }
    channel->port = (unsigned)port;
    channel->is_socket = true;
    submit(channel, connect_port);
}

/* ---- records ---- */

static const char **texts_of(const json_t *list) {
    const char **texts = calloc(json_array_size(list) + 1, sizeof *texts);
    size_t i, n = 0;
    const json_t *one;

    json_array_foreach((json_t *)list, i, one) {
        if (texts && json_is_string(one))
            texts[n++] = json_string_value(one);
    }
    return texts;
}

static uint64_t number_of(const json_t *body, const char *key) {
    json_int_t value = json_integer_value(json_object_get(body, key));

    return value > 0 ? (uint64_t)value : 0;
}

static void record(struct channel *channel) {
    const json_t *body = channel->exchange->body;
    const char **names = texts_of(json_object_get(body, "redact_names"));
    const char **patterns = texts_of(json_object_get(body, "redact_patterns"));
    const struct rollbox_record_options options = { .size = sizeof options,
        .fd = channel->theirs,
        .stream_bytes = number_of(body, "stream_bytes"),
        .file_bytes = number_of(body, "file_bytes"),
        .redact_names = names,
        .redact_patterns = patterns,
        .env_values = json_is_true(json_object_get(body, "env_values")),
        .files = json_is_true(json_object_get(body, "files")),
        .changes = json_is_true(json_object_get(body, "changes")),
        .as_parent = json_is_true(json_object_get(body, "as_parent")) };
    auto_free char *json = NULL;

    channel->r = rollbox_record(channel->exchange->box->handle, &options, &json, &channel->error);
    channel->answer = json ? json_loads(json, 0, NULL) : NULL;
    free(names);
    free(patterns);
}

static void begin_record(struct channel *channel, json_t *body) {
    channel->exchange->body = json_incref(body);
    if (add_pipe(channel, 1, false, &channel->theirs))
        submit(channel, record);
    else
        channel_no_room(channel->exchange);
}

/* ---- files agents ---- */

static void serve_files(struct channel *channel) {
    channel->r = files_start_agent(
        channel->exchange->box->handle, channel->theirs, channel->is_alone, NULL, &channel->error);
}

static void start_agent(struct channel *channel) {
    submit(channel, serve_files);
}

static void begin_agent(struct channel *channel, const json_t *body) {
    int pair[2];

    channel->is_alone = json_is_true(json_object_get(body, "alone"));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        channel_no_room(channel->exchange);
        return;
    }
    int copy = fcntl(pair[0], F_DUPFD_CLOEXEC, 0);
    channel->theirs = pair[1];
    channel->has_packets = channel->is_socket = true;
    (void)channel_add_way(channel, 1, false, pair[0]);
    if (copy >= 0)
        (void)channel_add_way(channel, 0, true, copy);
    channel_tell_started(channel);
}

static void begin(struct channel *channel, const json_t *message) {
    json_t *body;

    channel->has_begun = true;
    if (json_is_object(body = json_object_get(message, "start")))
        start(channel, body);
    else if (json_is_object(body = json_object_get(message, "attach")))
        attach(channel, body);
    else if (json_is_object(body = json_object_get(message, "claim")))
        begin_claim(channel, body);
    else if ((body = json_object_get(message, "connect")))
        begin_port(channel, body);
    else if (json_is_object(body = json_object_get(message, "record")))
        begin_record(channel, body);
    else if (json_is_object(body = json_object_get(message, "agent")))
        begin_agent(channel, body);
    else
        exchange_problem(channel->exchange, 400, "request_invalid",
            "the first message of a channel is start, attach, claim, connect, record or agent");
}

static const struct channel_kind kind = { .begin = begin, .start_agent = start_agent };

void handle_channel(struct exchange *exchange) {
    /* The first message says what it does. */
    if (channel_open(exchange, &kind))
        admission_rest(exchange);
}

void handle_terminal(struct exchange *exchange) {
    struct channel *channel = channel_open(exchange, &kind);

    if (!channel)
        return;
    json_t *body = json_pack("{s:s, s:[i,i]}", "id", exchange->parameters[1], "streams", 0, 1);
    channel->is_terminal = channel->has_begun = true;
    attach(channel, body);
    json_decref(body);
    channel_sweep(channel);
}
