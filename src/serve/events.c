/* SPDX-License-Identifier: Apache-2.0 */
/* Each tenant's latest events, and who watches for more; events.h has the model. */
#include "serve/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"

struct event {
    struct list node;
    uint64_t number;
    char *text; /* as it is sent */
};

void events_add(struct tenant *tenant, const char *type, json_t *take_data) {
    struct tenant_events *events = &tenant->events;
    struct event *event = calloc(1, sizeof *event);
    json_t *data = take_data ? take_data : json_object();
    struct buf text = BUF_INIT;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    json_object_set_new(data, "time", json_real((double)now.tv_sec + (double)now.tv_nsec / 1e9));
    auto_free char *json = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(data);
    if (!event || !json) {
        free(event);
        return;
    }
    event->number = ++events->latest;
    buf_printf(
        &text, "event: %s\nid: %llu\ndata: %s\n\n", type, (unsigned long long)event->number, json);
    event->text = buf_take(&text);
    if (!event->text) {
        free(event);
        return;
    }
    list_add_tail(&events->kept, &event->node);
    if (++events->n_kept > EVENTS_KEPT) {
        struct event *oldest = container_of(events->kept.next, struct event, node);

        list_remove(&oldest->node);
        free(oldest->text);
        free(oldest);
        events->n_kept--;
    }
    list_for_each(node, &events->watchers) {
        struct events_watcher *watcher = container_of(node, struct events_watcher, node);

        watcher->told(watcher);
    }
}

void events_of_box(const struct box *box, const char *type, json_t *take_more) {
    json_t *data = json_pack("{s:s, s:O?}", "sandbox", box->name, "labels", box->labels);

    if (take_more)
        json_object_update(data, take_more);
    json_decref(take_more);
    events_add(box->tenant, type, data);
}

void events_watch(struct tenant *tenant, struct events_watcher *watcher) {
    list_add_tail(&tenant->events.watchers, &watcher->node);
}

uint64_t events_first(const struct tenant *tenant) {
    const struct tenant_events *events = &tenant->events;

    return list_empty(&events->kept) ? events->latest + 1
                                     : container_of(events->kept.next, struct event, node)->number;
}

const char *events_next(const struct tenant *tenant, uint64_t *number) {
    list_for_each(node, &tenant->events.kept) {
        const struct event *event = container_of(node, struct event, node);

        if (event->number <= *number)
            continue;
        *number = event->number;
        return event->text;
    }
    return NULL;
}
