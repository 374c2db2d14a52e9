/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "egress_tls/ca.h"
#include "egress_tls/confine.h"
#include "egress_tls/connection.h"

#define MESSAGE_BYTES (256u << 10)
#define MAX_FILE (16u << 20)
#define MAX_POLICY (16u << 20)
#define MESSAGES_A_TURN 64

struct server {
    struct gateway gateway;
    int engine, egress;
    struct loop_source engine_source, egress_source;
    struct list boxes;
};

static char message_data[MESSAGE_BYTES];

/* A received message. Its descriptors are closed with it, but those that were taken. */
struct message {
    json_t *json;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds;
};

static void message_done(struct message *message) {
    for (size_t i = 0; i < message->n_fds; i++)
        close_fd(&message->fds[i]);
    json_decref(message->json);
}

/* 1: received; 0: the peer has gone; -EAGAIN; -EBADMSG: dropped. */
static int receive(int socket, struct message *ret) {
    ssize_t n;

    *ret = (struct message){ .json = NULL };
    n = fd_receive(socket, message_data, sizeof message_data, ret->fds, &ret->n_fds);
    if (n == -EAGAIN)
        return -EAGAIN;
    if (n == -EMSGSIZE || n == -EMFILE)
        return -EBADMSG;
    if (n <= 0)
        return 0;
    while (n > 0 && message_data[n - 1] == 0)
        n--;
    ret->json = json_loadb(message_data, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(ret->json))
        return 1;
    message_done(ret);
    return -EBADMSG;
}

static const char *text_of(const struct message *message, const char *key) {
    const char *text = json_string_value(json_object_get(message->json, key));

    return text != NULL ? text : "";
}

static void tell(struct server *server, const char *event, const char *box, const char *text) {
    json_t *object = json_pack("{s:s}", "event", event);
    char *line;

    if (object != NULL && box != NULL)
        json_object_set_new(object, "box", json_string(box));
    if (object != NULL && text != NULL)
        json_object_set_new(object, "message", json_string(text));
    line = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    /* An engine that does not read loses the text of an error. */
    if (line != NULL)
        (void)fd_send(server->engine, line, strlen(line), NULL, 0);
    free(line);
    json_decref(object);
}

static struct tls_box *find_box(struct server *server, const char *id) {
    list_for_each(node, &server->boxes) {
        struct tls_box *box = container_of(node, struct tls_box, node);

        if (strcmp(box->id, id) == 0)
            return box;
    }
    return NULL;
}

static void close_box(struct tls_box *box) {
    while (!list_empty(&box->connections))
        connection_free(container_of(box->connections.next, struct connection, node));
    box_free(box);
}

/* The next descriptor of the message, which keeps it; -EBADF. */
static int next_fd(const struct message *message, size_t *at) {
    return *at < message->n_fds ? message->fds[(*at)++] : -EBADF;
}

static int with_policy(struct message *message, size_t *at, void *context,
    int (*use)(void *context, const char *text, size_t length)) {
    const char *text = text_of(message, "policy");
    void *data = NULL;
    size_t length = 0;
    int result;

    if (!json_is_true(json_object_get(message->json, "policy_fd")))
        return use(context, text, strlen(text));
    result = fd_map_memory_file(next_fd(message, at), MAX_POLICY, &data, &length);
    if (result < 0)
        return result;
    result = use(context, data != NULL ? data : "", length);
    if (data != NULL)
        munmap(data, length);
    return result;
}

struct opened {
    const char *id;
    struct tls_box *box;
};

static int use_for_open(void *context, const char *text, size_t length) {
    struct opened *opened = context;

    return box_new(opened->id, text, length, &opened->box);
}

static int use_for_rules(void *context, const char *text, size_t length) {
    return box_set_rules(context, text, length);
}

/* A recording to write and one to answer from are the last descriptors. */
static int take_tapes(struct tls_box *box, struct message *message) {
    int result = 0;

    if (json_is_true(json_object_get(message->json, "replay")) && message->n_fds > 0) {
        auto_close int fd = message->fds[--message->n_fds];

        result = box_set_recording(box, fd);
    }
    if (json_is_true(json_object_get(message->json, "record")) && message->n_fds > 0)
        recorder_init(&box->recorder, message->fds[--message->n_fds]);
    return result;
}

static int open_box(struct server *server, struct message *message) {
    struct opened opened = { .id = text_of(message, "box") };
    struct tls_box *old = find_box(server, opened.id);
    size_t at = 0;
    int result = with_policy(message, &at, &opened, use_for_open);

    if (result < 0)
        return result;
    if (old != NULL)
        close_box(old);
    list_add_tail(&server->boxes, &opened.box->node);
    result = take_tapes(opened.box, message);
    /* The contract's flag, or simply a descriptor that is left. */
    if (result == 0 && at < message->n_fds)
        result = box_set_secrets(opened.box, message->fds[at]);
    if (result < 0) /* it would reach hosts unrecorded, or hosts in place of the recording */
        close_box(opened.box);
    return result;
}

static int change_rules(struct server *server, struct message *message) {
    struct tls_box *box = find_box(server, text_of(message, "box"));
    size_t at = 0;
    int result = box != NULL ? with_policy(message, &at, box, use_for_rules) : -ENOENT;

    if (result < 0)
        return result;
    if (at < message->n_fds)
        result = box_set_secrets(box, message->fds[at]);
    list_for_each(node, &box->connections)
        connection_check_rules(container_of(node, struct connection, node));
    return result;
}

static int obey(struct server *server, struct message *message) {
    const char *verb = text_of(message, "do");
    struct tls_box *box;

    if (strcmp(verb, "open") == 0)
        return open_box(server, message);
    if (strcmp(verb, "rules") == 0)
        return change_rules(server, message);
    if (strcmp(verb, "close") != 0)
        return -EINVAL;
    box = find_box(server, text_of(message, "box"));
    if (box != NULL)
        close_box(box);
    return 0;
}

static void on_engine(struct loop_source *source, uint32_t events) {
    struct server *server = container_of(source, struct server, engine_source);

    (void)events;
    for (unsigned i = 0; i < MESSAGES_A_TURN; i++) {
        struct message message;
        int result = receive(server->engine, &message);

        if (result == -EAGAIN)
            return;
        if (result == 0) {
            loop_stop(server->gateway.loop);
            return;
        }
        if (result < 0)
            continue;
        result = obey(server, &message);
        if (result < 0)
            tell(server, "error", text_of(&message, "box"), strerror(-result));
        message_done(&message);
    }
}

/* A connection from rollbox-egress. */
static void take_connection(struct server *server, struct message *message) {
    struct event_place place = { .box = (char *)(uintptr_t)text_of(message, "box"),
        .name = (char *)(uintptr_t)text_of(message, "name"),
        .connection = (uint64_t)json_integer_value(json_object_get(message->json, "connection")),
        .port = (uint16_t)json_integer_value(json_object_get(message->json, "port")),
        .rule = (size_t)json_integer_value(json_object_get(message->json, "rule")) };
    struct tls_box *box = find_box(server, place.box);

    /* The engine's message about a sandbox is sent before, but on another socket. */
    if (box == NULL) {
        on_engine(&server->engine_source, EPOLLIN);
        box = find_box(server, place.box);
    }
    if (box == NULL || message->n_fds != (box->recording != NULL ? 1u : 2u)) {
        /* The guest's socket resets when it is closed: egress has set that. */
        events_add_close(&server->gateway.events, &place, 0, 0);
        return;
    }
    (void)connection_new(&server->gateway, box, &place,
        json_is_true(json_object_get(message->json, "is_tls")),
        json_is_true(json_object_get(message->json, "to_is_plain")), TAKE_FD(message->fds[0]),
        box->recording != NULL ? -EBADF : TAKE_FD(message->fds[1]));
}

static void on_egress(struct loop_source *source, uint32_t events) {
    struct server *server = container_of(source, struct server, egress_source);

    if ((events & EPOLLOUT) != 0)
        (void)events_flush(&server->gateway.events);
    for (unsigned i = 0; i < MESSAGES_A_TURN; i++) {
        struct message message;
        int result = receive(server->egress, &message);

        if (result == -EAGAIN)
            return;
        if (result == 0) {
            /* Nothing can come any more. The engine starts both programs again. */
            loop_stop(server->gateway.loop);
            return;
        }
        if (result < 0)
            continue;
        take_connection(server, &message);
        message_done(&message);
    }
}

static int complain(const char *text, int error) {
    fprintf(stderr, "rollbox-egress-tls: %s: %s\n", text, strerror(error));
    return 1;
}

/* Reads the files of the first message. Returns NULL, or an error text. */
static const char *read_files(struct server *server, struct message *message) {
    auto_buf struct buf key = BUF_INIT, certificate = BUF_INIT, roots = BUF_INIT;
    const char *problem = NULL;

    if (strcmp(text_of(message, "do"), "begin") != 0 || message->n_fds != 4)
        return "the first message is not \"begin\" with four descriptors";
    server->egress = TAKE_FD(message->fds[0]);
    if (fd_read_again(message->fds[1], MAX_FILE, &key) < 0 ||
        fd_read_again(message->fds[2], MAX_FILE, &certificate) < 0 ||
        fd_read_again(message->fds[3], MAX_FILE, &roots) < 0)
        return "cannot read the certificate authority's files";
    server->gateway.ca = ca_new(&key, &certificate);
    server->gateway.client = connection_client_context(&roots);
    if (server->gateway.ca == NULL)
        problem = "the certificate authority's key and certificate do not fit";
    else if (server->gateway.client == NULL)
        problem = "cannot prepare TLS";
    if (key.data != NULL)
        explicit_bzero(key.data, key.length);
    return problem;
}

/* The engine's first message, for which the process waits. */
static const char *begin(struct server *server) {
    struct message message;
    const char *problem;

    if (receive(server->engine, &message) != 1)
        return "no first message from the engine";
    problem = read_files(server, &message);
    message_done(&message);
    return problem;
}

static int set_non_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

static int start(struct server *server) {
    struct loop *loop = NULL;
    int result = loop_new(&loop);

    server->gateway.loop = loop;
    if (result == 0)
        result = set_non_blocking(server->engine);
    if (result == 0)
        result = set_non_blocking(server->egress);
    if (result == 0)
        result = loop_add(loop, &server->engine_source, server->engine, EPOLLIN, on_engine);
    if (result == 0)
        result = loop_add(loop, &server->egress_source, server->egress, EPOLLIN, on_egress);
    events_init(&server->gateway.events, loop, &server->egress_source, server->egress);
    return result;
}

int serve(int engine) {
    static struct server server;
    const char *step = "start";
    int result;

    server = (struct server){ .engine = engine, .egress = -EBADF };
    list_init(&server.boxes);
    step = begin(&server);
    if (step != NULL)
        return complain(step, EINVAL);
    result = start(&server);
    if (result < 0)
        return complain("cannot start", -result);
    result = confine_self(&step);
    if (result < 0)
        return complain(step, -result);
    tell(&server, "ready", NULL, NULL);
    result = loop_run(server.gateway.loop);
    while (!list_empty(&server.boxes))
        close_box(container_of(server.boxes.next, struct tls_box, node));
    events_done(&server.gateway.events);
    return result < 0;
}
