/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: the engine's protocol (protocol.h) over their connections.
 *
 * Nothing here blocks: data that does not fit into a client's socket waits in the client's list. A
 * message that makes no sense ends the connection it came on, and nothing else.
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
#include "base/error.h"
#include "engine/box/box.h"
#include "engine/command/result.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/sender.h"
#include "engine/pool/owned_image.h"
#include "engine/pool/profile.h"
#include "engine/pool/python_zygote.h"
#include "engine/protocol.h"
#include "engine/run/run.h"
#include "engine/server/attach.h"
#include "engine/core/log.h"
#include "engine/core/verb_names.h"
#include "engine/server/connection.h"
#include "engine/server/run_request.h"
#include "engine/server/verbs.h"
#include "engine/session/session.h"

#define PAUSES_AT (8u << 20) /* bytes of unread answers with which a client is not read from */
#define MAX_REQUESTS 65536u  /* that are not answered yet */
#define MAX_OTHER_REQUEST (16u << 20) /* bytes, of any other request than a command */
#define CLIENTS_SHARE 8u /* of the limit of open files, the part that connections may be */
#define CLIENTS_LEAST 64u

/* An answer that cannot be given ends the connection: the client must not wait for it for ever. */
static void on_sent(struct sender *sender, struct outgoing *outgoing, int r) {
    if (r < 0)
        shutdown(sender->source->fd, SHUT_RDWR);
    outgoing_done(outgoing);
    free(outgoing);
    if (!sender_is_paused(sender))
        run_schedule(container_of(sender, struct client, sender)
                         ->engine); /* its runs may have waited for this */
}

void engine_stop(struct engine *engine) {
    if (engine->stopping)
        return;
    engine->stopping = true;
    loop_remove(engine->loop, &engine->server.listen);
    while (!list_empty(&engine->server.clients))
        client_free(container_of(engine->server.clients.next, struct client, node));
    session_close_all(engine);
    list_for_each(node, &engine->boxes.all)
        box_kill(container_of(node, struct box, node));
    if (!engine->boxes.n)
        loop_stop(engine->loop);
}

void client_free(struct client *client) {
    struct engine *engine = client->engine;

    loop_remove(engine->loop, &client->source);
    loop_timer_clear(engine->loop, &client->sender.retry);
    close_fd(&client->fd);
    engine->server.n_clients--;
    list_remove(&client->node);
    while (!list_empty(&client->sender.waiting))
        on_sent(
            &client->sender, container_of(client->sender.waiting.next, struct outgoing, node), 0);
    /* Ending one run may end others' waiting, never start anything for this client: it is off the
     * list. */
    while (!list_empty(&client->runs))
        run_abandon(container_of(client->runs.next, struct run, of_client));
    run_forget_client(client);
    result_forget_client(client);
    session_forget_client(client);
    owned_image_forget_client(client);
    free(client);
    if (engine->is_private)
        engine_stop(engine);
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

        error_set(&error, ROLLBOX_ERR_PROTOCOL, EPROTO, "connect",
            "the engine speaks protocol version %d, the library %llu; use both of one rollbox "
            "version",
            PROTOCOL_VERSION, (unsigned long long)version);
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

/* The policy's text, and the caller's environment if it was sent; `ret_env` is for the caller to
 * free. */
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

/* The memory file with the values of the policy's secrets, which is not the body's. */
static int secrets_of(const struct wire_message *message) {
    for (size_t i = 0; i < message->n_fds; i++)
        if (message->fds[i] >= 0)
            return message->fds[i];
    return -EBADF;
}

static void handle_prepare(struct client *client, struct wire_message *message) {
    auto_buf struct buf reply = BUF_INIT;
    auto_free const char **env = NULL;
    struct rollbox_error error;
    struct profile *profile;
    const char *policy = read_policy(message, &env);

    if (!policy)
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "policy", "the request has no policy");
    const char *const *environment = env && env[0] ? env : NULL;
    int r = policy ? profile_get(client->engine, policy, strlen(policy), environment,
                         secrets_of(message), &profile, &error)
                   : -EBADMSG;
    if (r == -EINPROGRESS && owned_image_defer(client, message))
        return;
    if (r < 0) {
        client_fail(client, message->header.serial, &error);
        return;
    }
    wire_begin(&reply, PROTOCOL_PREPARED, message->header.serial);
    wire_add_u64(&reply, TAG_PLAN, profile->number);
    wire_add_text(&reply, TAG_ISOLATION, profile->isolation);
    wire_add_u64(&reply, TAG_DEFAULT_TIMEOUT, (uint64_t)policy_run_timeout_ms(profile->policy));
    wire_add_u64(&reply, TAG_DEFAULT_OUTPUT, profile->policy->max_output_bytes);
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
    int r =
        policy ? profile_explain(client->engine, policy, strlen(policy), &text, &error) : -EBADMSG;
    if (r == -EINPROGRESS && owned_image_defer(client, message))
        return;
    if (r < 0)
        client_fail(client, message->header.serial, &error);
    else
        reply_text(client, message->header.serial, &text);
}

void server_status(struct engine *engine, struct buf *to) {
    unsigned plans = 0, spares = 0;

    list_for_each(node, &engine->profiles.all) {
        plans++;
        spares += container_of(node, struct profile, node)->n_spares;
    }
    buf_printf(to,
        "{\"pid\": %d, \"version\": \"%s\", \"private\": %s, \"clients\": %u, \"sandboxes\": %u, "
        "\"sessions\": %u, \"running\": %u, \"queued\": %u, \"plans\": %u, \"spares\": %u, ",
        (int)getpid(), ROLLBOX_VERSION, engine->is_private ? "true" : "false",
        engine->server.n_clients, engine->boxes.n, engine->sessions.n, engine->runs.n_running,
        engine->runs.n_queued, plans, spares);
    buf_printf(to,
        "\"memory_budget_bytes\": %llu, \"memory_reserved_bytes\": %llu, \"cgroup\": \"%s\", "
        "\"landlock_abi\": %d, ",
        (unsigned long long)engine->runs.memory_budget,
        (unsigned long long)(engine->runs.memory_reserved + engine->sessions.memory_reserved),
        cgroup_backend_name(cgroup_root_backend(engine->cgroups)), engine->features.landlock_abi);
    interpreter_status(engine, to);
    buf_add_text(to, ", ");
    verbs_status(to);
    buf_add_text(to, ", ");
    log_status(to);
    buf_add_text(to, ", \"connections\": [");
    list_for_each(node, &engine->server.clients) {
        const struct client *client = container_of(node, struct client, node);

        buf_printf(to,
            "%s{\"pid\": %d, \"uid\": %u, \"requests\": %u, \"queued\": %u, \"running\": %u, "
            "\"memory_reserved_bytes\": %llu, \"unread_bytes\": %zu}",
            node == engine->server.clients.next ? "" : ", ", (int)client->pid,
            (unsigned)client->uid, client->n_requests, client->n_queued, client->n_running,
            (unsigned long long)client->memory_reserved, client->sender.bytes);
    }
    buf_add_text(to, "]}");
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
    if (!owned_image_cancel(client, target))
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
        attach_client(client, message);
        return 0;
    case PROTOCOL_SANDBOX:
        verbs_request(client, message);
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

    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "request",
        "the engine has no descriptor left for what comes with the request; close sandboxes, or "
        "raise its limit of open files (ulimit -n)");
    client_fail(client, serial, &error);
}

/* Refuses a request of a client with too many pending requests, and a request that is too large. */
static bool admit_request(struct client *client, const struct wire_message *message) {
    bool is_command = message->header.type == PROTOCOL_RUN || message->header.type == PROTOCOL_EXEC;
    struct rollbox_error error;

    if (message->header.type == PROTOCOL_KILL || !client->greeted)
        return true; /* it has no answer; or it is HELLO, or the connection's end */
    if (client->n_requests >= MAX_REQUESTS)
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "this connection has %u requests that are not answered yet, as many as the engine "
            "keeps of one; wait for some of their results",
            client->n_requests);
    else if (!is_command && message->length > MAX_OTHER_REQUEST)
        error_set(&error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "request",
            "the request has %zu bytes; a policy, or a request that is no command, may have %u",
            message->length, MAX_OTHER_REQUEST);
    else {
        client->n_requests++;
        return true;
    }
    client->n_requests++;
    client_fail(client, message->header.serial, &error);
    return false;
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
        if (admit_request(client, &message) && server_handle(client, &message) < 0)
            r = -EPROTO;
        wire_message_done(&message);
    } else if (r == -EMFILE && client->greeted) {
        client->n_requests++;
        refuse_incomplete(client, message.header.serial);
        return;
    }
    if (r <= 0)
        client_free(client);
}

/* In answer to its HELLO, which is the first of its requests. */
static void refuse_connection(int fd) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_FAILED, 1);
    wire_add_u64(&message, TAG_ERROR_CODE, ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    wire_add_u64(&message, TAG_ERROR_NUMBER, ENOBUFS);
    wire_add_text(&message, TAG_ERROR_STAGE, "connect");
    wire_add_text(&message, TAG_ERROR_MESSAGE,
        "the engine has as many connections as it keeps (a share of its limit of open files); "
        "close some, or raise the limit (ulimit -n)");
    (void)wire_send(fd, &message, NULL, 0);
}

int client_new(struct engine *engine, int take_fd) {
    auto_close int fd = take_fd;
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (!engine->is_private &&
        engine->server.n_clients >= MAX(engine->files.limit / CLIENTS_SHARE, CLIENTS_LEAST)) {
        refuse_connection(fd);
        return -ENOBUFS;
    }
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        return -ENOMEM;
    client->engine = engine;
    engine->server.handle_request = server_handle;
    list_init(&client->node);
    list_init(&client->runs);
    list_init(&client->sessions);
    list_init(&client->queue);
    list_init(&client->in_turns);
    sender_init(&client->sender, engine->loop, &client->source, on_sent);
    client->sender.pauses_at = PAUSES_AT;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        client->pid = peer.pid;
        client->uid = peer.uid;
    }
    int r = fcntl(fd, F_SETFL, O_NONBLOCK) < 0
                ? -errno
                : loop_add(engine->loop, &client->source, fd, EPOLLIN, on_client);
    if (r < 0) {
        free(client);
        return r;
    }
    client->fd = TAKE_FD(fd);
    engine->server.n_clients++;
    list_add_tail(&engine->server.clients, &client->node);
    return 0;
}
