/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"

#define MAX_PATH_SHOWN 1024
/* rollbox-egress reads at once. With so many unread it is stuck, and the lost events are details of
 * requests; the ends of connections are always kept. */
#define MAX_QUEUED 10000

struct queued {
    struct list node;
    char *text;
};

void events_init(struct events *events, struct loop *loop, struct loop_source *source, int socket) {
    *events = (struct events){ .loop = loop, .source = source, .socket = socket };
    list_init(&events->queue);
}

static void queued_free(struct events *events, struct queued *queued) {
    list_remove(&queued->node);
    events->n_queued--;
    free(queued->text);
    free(queued);
}

void events_done(struct events *events) {
    while (!list_empty(&events->queue))
        queued_free(events, container_of(events->queue.next, struct queued, node));
}

int events_flush(struct events *events) {
    int result = 0;

    while (result == 0 && !list_empty(&events->queue)) {
        struct queued *queued = container_of(events->queue.next, struct queued, node);

        result = fd_send(events->socket, queued->text, strlen(queued->text), NULL, 0);
        if (result == 0)
            queued_free(events, queued);
    }
    if (result < 0 && result != -EAGAIN && result != -ENOBUFS)
        return result;
    (void)loop_modify(
        events->loop, events->source, list_empty(&events->queue) ? EPOLLIN : EPOLLIN | EPOLLOUT);
    return 0;
}

static void send_event(struct events *events, json_t *take_event) {
    struct queued *queued = calloc(1, sizeof *queued);

    if (queued != NULL) {
        list_init(&queued->node);
        queued->text = take_event != NULL ? json_dumps(take_event, JSON_COMPACT) : NULL;
    }
    json_decref(take_event);
    if (queued == NULL || queued->text == NULL) {
        free(queued);
        return;
    }
    list_add_tail(&events->queue, &queued->node);
    if (events->n_queued++ == 0)
        (void)events_flush(events); /* a peer that has gone shows as the socket's end */
}

static json_t *new_event(const struct event_place *place, const char *event) {
    return json_pack("{s:s, s:I, s:s, s:s, s:i}", "box", place->box, "connection",
        (json_int_t)place->connection, "event", event, "name", place->name, "port", place->port);
}

void events_add(struct events *events, const struct event_place *place, const char *event,
    const struct exchange *exchange, unsigned status, const char *why) {
    json_t *object = events->n_queued < MAX_QUEUED ? new_event(place, event) : NULL;

    if (object == NULL)
        return;
    if (exchange != NULL && exchange->method != NULL) {
        json_object_set_new(object, "method", json_string(exchange->method));
        json_object_set_new(object, "path", json_string(exchange->path));
        json_object_set_new(object, "rule", json_integer(exchange->rule));
        json_object_set_new(object, "up", json_integer((json_int_t)exchange->up));
        json_object_set_new(object, "down", json_integer((json_int_t)exchange->down));
    }
    if (status > 0)
        json_object_set_new(object, "status", json_integer(status));
    if (why != NULL)
        json_object_set_new(object, "why", json_string(why));
    send_event(events, object);
}

void events_add_close(
    struct events *events, const struct event_place *place, uint64_t up, uint64_t down) {
    json_t *object = new_event(place, "close");

    if (object == NULL)
        return;
    json_object_set_new(object, "up", json_integer((json_int_t)up));
    json_object_set_new(object, "down", json_integer((json_int_t)down));
    send_event(events, object);
}

void exchange_done(struct exchange *exchange) {
    free(exchange->method);
    free(exchange->path);
    *exchange = (struct exchange){ .rule = -1 };
}

void exchange_set(
    struct exchange *exchange, struct http_text method, struct http_text target, long rule) {
    exchange_done(exchange);
    exchange->method = text_copy(method.text, method.length);
    exchange->path = text_copy(target.text, MIN(target.length, (size_t)MAX_PATH_SHOWN));
    exchange->rule = rule;
    if (exchange->method == NULL || exchange->path == NULL)
        exchange_done(exchange);
}
