/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: the engine's protocol (protocol.h) over their connections.
 *
 * Nothing here blocks: what does not fit into a client's socket waits in a list of its own. A message that makes no sense ends the connection it came on, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/session.h"

/* An answer that cannot be given ends the connection: the client must not wait for it for ever. */
static void on_sent(struct sender *sender, struct outgoing *outgoing, int r) {
    if (r < 0)
        shutdown(sender->source->fd, SHUT_RDWR);
    outgoing_done(outgoing);
    free(outgoing);
}

void client_free(struct client *client) {
    struct engine *engine = client->engine;

    loop_remove(engine->loop, &client->source);
    loop_timer_clear(engine->loop, &client->sender.retry);
    close_fd(&client->fd);
    list_remove(&client->node);
    while (!list_empty(&client->sender.waiting))
        on_sent(&client->sender, container_of(client->sender.waiting.next, struct outgoing, node), 0);
    /* Ending one run may end others' waiting, never start anything for this client: it is off the list. */
    while (!list_empty(&client->runs))
        run_abandon(container_of(client->runs.next, struct run, of_client));
    run_forget_client(client);
    session_forget_client(client);
    free(client);
    if (engine->is_private)
        engine_stop(engine);
}

void client_send(struct client *client, struct buf *message, const int *fds, size_t n_fds) {
    int r = sender_send(&client->sender, message, fds, n_fds);

    if (r > 0) {
        struct outgoing *outgoing = calloc(1, sizeof *outgoing);

        r = outgoing ? sender_keep(&client->sender, outgoing, message, fds, n_fds) : -ENOMEM;
        if (r < 0)
            free(outgoing);
    }
    /* A closed connection is noticed by reading it. */
    if (r < 0 && r != -EPIPE && r != -ECONNRESET)
        shutdown(client->fd, SHUT_RDWR);
}

void client_fail(struct client *client, uint64_t serial, const struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_FAILED, serial);
    wire_add_u64(&message, TAG_ERROR_CODE, error->code);
    wire_add_u64(&message, TAG_ERROR_NUMBER, (uint64_t)error->error_number);
    wire_add_text(&message, TAG_ERROR_STAGE, error->stage);
    wire_add_text(&message, TAG_ERROR_MESSAGE, error->message);
    client_send(client, &message, NULL, 0);
}

static int handle_hello(struct client *client, struct wire_message *message) {
    auto_buf struct buf reply = BUF_INIT;
    struct wire_field field;
    size_t position = 0;
    uint64_t version = 0;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == TAG_VERSION)
            (void)wire_u64(&field, &version);
    if (version != PROTOCOL_VERSION) {
        struct rollbox_error error;

        error_set(&error, ROLLBOX_ERR_PROTOCOL, EPROTO, "connect", "the engine speaks protocol version %d, the library %llu; use both of one rollbox version", PROTOCOL_VERSION,
                  (unsigned long long)version);
        client_fail(client, message->header.serial, &error);
        return -EPROTO;
    }
    client->greeted = true;
    wire_begin(&reply, PROTOCOL_WELCOME, message->header.serial);
    wire_add_u64(&reply, TAG_VERSION, PROTOCOL_VERSION);
    wire_add_u64(&reply, TAG_PID, (uint64_t)getpid());
    client_send(client, &reply, NULL, 0);
    return 0;
}

/* The policy's text, and the caller's environment if it was sent; `ret_env` is for the caller to free. */
static const char *read_policy(struct wire_message *message, const char ***ret_env) {
    struct wire_field field;
    size_t position = 0, n = 0;
    const char *policy = NULL;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        n++;
    const char **env = calloc(n + 1, sizeof *env);
    if (!env)
        return NULL;
    position = n = 0;
    while (wire_next(message->data, message->length, &position, &field) > 0) {
        const char *text = wire_text(&field);

        if (field.tag == TAG_POLICY)
            policy = text;
        else if (field.tag == TAG_ENV && text)
            env[n++] = text;
    }
    *ret_env = env;
    return policy;
}

static void handle_prepare(struct client *client, struct wire_message *message) {
    auto_buf struct buf reply = BUF_INIT;
    auto_free const char **env = NULL;
    struct rollbox_error error;
    struct program *program;
    const char *policy = read_policy(message, &env);

    if (!policy)
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "policy", "the request has no policy");
    if (!policy || program_get(client->engine, policy, strlen(policy), env[0] ? env : NULL, &program, &error) < 0) {
        client_fail(client, message->header.serial, &error);
        return;
    }
    wire_begin(&reply, PROTOCOL_PREPARED, message->header.serial);
    wire_add_u64(&reply, TAG_PLAN, program->number);
    wire_add_text(&reply, TAG_ISOLATION, program->isolation);
    wire_add_u64(&reply, TAG_DEFAULT_TIMEOUT, (uint64_t)program->policy->timeout_ms);
    wire_add_u64(&reply, TAG_DEFAULT_OUTPUT, program->policy->max_output_bytes);
    client_send(client, &reply, NULL, 0);
}

static void reply_text(struct client *client, uint64_t serial, struct buf *text) {
    auto_buf struct buf reply = BUF_INIT;

    wire_begin(&reply, PROTOCOL_TEXT, serial);
    if (text->failed)
        reply.failed = true;
    else
        wire_add_text(&reply, TAG_TEXT_DATA, text->data);
    client_send(client, &reply, NULL, 0);
}

static void handle_explain(struct client *client, struct wire_message *message) {
    auto_buf struct buf text = BUF_INIT;
    auto_free const char **env = NULL;
    struct rollbox_error error;
    const char *policy = read_policy(message, &env);

    if (!policy)
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "policy", "the request has no policy");
    if (!policy || program_explain(client->engine, policy, strlen(policy), &text, &error) < 0)
        client_fail(client, message->header.serial, &error);
    else
        reply_text(client, message->header.serial, &text);
}

void server_status(struct engine *engine, struct buf *to) {
    unsigned plans = 0, spares = 0, clients = 0;

    list_for_each(node, &engine->programs) {
        plans++;
        spares += container_of(node, struct program, node)->n_spares;
    }
    list_for_each(node, &engine->clients)
        clients++;
    buf_printf(to, "{\"pid\": %d, \"version\": \"%s\", \"private\": %s, \"clients\": %u, \"sandboxes\": %u, \"sessions\": %u, \"running\": %u, \"queued\": %u, \"plans\": %u, \"spares\": %u, ", (int)getpid(),
               ROLLBOX_VERSION, engine->is_private ? "true" : "false", clients, engine->n_boxes, engine->n_sessions, engine->n_running, engine->n_queued, plans, spares);
    buf_printf(to, "\"memory_budget_bytes\": %llu, \"memory_reserved_bytes\": %llu, \"cgroup\": \"%s\", \"landlock_abi\": %d, ", (unsigned long long)engine->memory_budget,
               (unsigned long long)engine->memory_reserved, cgroup_backend_name(cgroup_root_backend(engine->cgroups)), engine->features.landlock_abi);
    interpreter_status(engine, to);
    buf_add_text(to, "}");
}

static void handle_kill(struct client *client, struct wire_message *message) {
    struct wire_field field;
    size_t position = 0;
    uint64_t target = 0, outcome = ROLLBOX_OUTCOME_ERROR;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == TAG_TARGET)
            (void)wire_u64(&field, &target);
        else if (field.tag == TAG_OUTCOME)
            (void)wire_u64(&field, &outcome);
    if (outcome != ROLLBOX_OUTCOME_TIMEOUT && outcome != ROLLBOX_OUTCOME_OUTPUT_LIMIT)
        outcome = ROLLBOX_OUTCOME_ERROR;
    run_cancel(client, target, (enum rollbox_outcome)outcome);
}

int server_handle(struct client *client, struct wire_message *message) {
    auto_buf struct buf text = BUF_INIT;

    struct wire_field field;
    size_t position = 0;
    int r;

    if (!client->greeted && message->header.type != PROTOCOL_HELLO)
        return -EPROTO;
    while ((r = wire_next(message->data, message->length, &position, &field)) > 0)
        ;
    if (r < 0)
        return r;
    switch (message->header.type) {
    case PROTOCOL_HELLO:
        return handle_hello(client, message);
    case PROTOCOL_PREPARE:
        handle_prepare(client, message);
        return 0;
    case PROTOCOL_EXPLAIN:
        handle_explain(client, message);
        return 0;
    case PROTOCOL_STATUS:
        server_status(client->engine, &text);
        reply_text(client, message->header.serial, &text);
        return 0;
    case PROTOCOL_RUN:
        run_request(client, message);
        return 0;
    case PROTOCOL_EXEC:
        run_request(client, message);
        return 0;
    case PROTOCOL_ATTACH:
        exec_attach(client, message);
        return 0;
    case PROTOCOL_SANDBOX:
        session_request(client, message);
        return 0;
    case PROTOCOL_KILL:
        handle_kill(client, message);
        return 0;
    default:
        return -EPROTO;
    }
}

/* Out of descriptors, the kernel drops those of a message. */
static void refuse_incomplete(struct client *client, uint64_t serial) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "request", "the engine has no descriptor left for what comes with the request; close sandboxes, or raise its limit of open files (ulimit -n)");
    client_fail(client, serial, &error);
}

static void on_client(struct loop_source *source, uint32_t events) {
    static struct wire_message message;
    struct client *client = container_of(source, struct client, source);

    if (events & EPOLLOUT)
        sender_flush(&client->sender);
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    memset(message.bytes, 0, sizeof message.header);
    int r = wire_receive(client->fd, &message);
    if (r == -EAGAIN)
        return;
    if (r == 1) {
        r = server_handle(client, &message) < 0 ? -EPROTO : 1;
        wire_message_done(&message);
    } else if (r == -EMFILE && client->greeted) {
        refuse_incomplete(client, message.header.serial);
        return;
    }
    if (r <= 0)
        client_free(client);
}

int client_new(struct engine *engine, int take_fd) {
    auto_close int fd = take_fd;
    struct client *client = calloc(1, sizeof *client);

    if (!client)
        return -ENOMEM;
    client->engine = engine;
    list_init(&client->node);
    list_init(&client->runs);
    list_init(&client->sessions);
    sender_init(&client->sender, engine->loop, &client->source, on_sent);
    int r = fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : loop_add(engine->loop, &client->source, fd, EPOLLIN, on_client);
    if (r < 0) {
        free(client);
        return r;
    }
    client->fd = TAKE_FD(fd);
    list_add_tail(&engine->clients, &client->node);
    return 0;
}
