/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/events: events as server-sent events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/events.h"

#define COMMENT_NS (INT64_C(10) * 1000000000)

struct subscriber {
    struct events_watcher watcher;
    struct exchange *exchange;
    struct loop_timer timer;
    uint64_t sent; /* the number of the latest */
    bool is_full;
};

static void on_comment(struct loop_timer *timer);

static bool write_text(struct subscriber *subscriber, const char *text) {
    struct exchange *exchange = subscriber->exchange;

    (void)loop_timer_set(
        exchange->server->loop, &subscriber->timer, clock_now_ns() + COMMENT_NS, on_comment);
    subscriber->is_full = http_write(exchange->connection, text, strlen(text)) >= HTTP_UNSENT_MAX;
    return !subscriber->is_full;
}

static void on_comment(struct loop_timer *timer) {
    (void)write_text(container_of(timer, struct subscriber, timer), ": \n\n");
}

/* A subscriber that does not read gets the rest later, or learns that some are gone. */
static void send_new(struct subscriber *subscriber) {
    const char *text;

    while (!subscriber->is_full &&
           (text = events_next(subscriber->exchange->tenant, &subscriber->sent)))
        (void)write_text(subscriber, text);
}

static void on_told(struct events_watcher *watcher) {
    send_new(container_of(watcher, struct subscriber, watcher));
}

static void free_subscriber(void *data) {
    struct subscriber *subscriber = data;

    loop_timer_clear(subscriber->exchange->server->loop, &subscriber->timer);
    list_remove(&subscriber->watcher.node);
    free(subscriber);
}

static void on_writable(struct exchange *exchange) {
    struct subscriber *subscriber = exchange->data;

    subscriber->is_full = false;
    send_new(subscriber);
}

void handle_events(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    const char *last = http_header(request, "last-event-id");
    struct subscriber *subscriber = calloc(1, sizeof *subscriber);
    auto_buf struct buf after = BUF_INIT;
    struct tenant *tenant = exchange->tenant;
    const unsigned long long latest = tenant->events.latest;
    unsigned long long number = latest;
    char rest;

    if (!subscriber) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    if (!last && http_query(request, "after", &after))
        last = after.data ? after.data : "";
    list_init(&subscriber->watcher.node);
    subscriber->watcher.told = on_told;
    subscriber->exchange = exchange;
    exchange->data = subscriber;
    exchange->free_data = free_subscriber;
    if (last && sscanf(last, "%llu%c", &number, &rest) != 1) {
        exchange_problem(exchange, 400, "invalid_argument", "after must be an event's number");
        return;
    }
    if (number > latest || number + 1 < events_first(tenant)) {
        exchange_problem(exchange, 410, "events_dropped",
            "the events after %llu are not kept any more; the latest is %llu", number, latest);
        return;
    }
    subscriber->sent = number;
    exchange->writable = on_writable;
    exchange->gone = exchange_done;
    events_watch(tenant, &subscriber->watcher);
    http_begin(exchange->connection, 200, "text/event-stream", "X-Accel-Buffering: no\r\n");
    send_new(subscriber);
    if (!subscriber->is_full)
        (void)write_text(subscriber, ": \n\n");
}
