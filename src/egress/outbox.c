/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/fd.h"

struct waiting {
    struct list node;
    char *text;
};

static void free_waiting(struct waiting *waiting) {
    list_remove(&waiting->node);
    free(waiting->text);
    free(waiting);
}

static void send_waiting(struct loop_source *source, uint32_t events) {
    struct egress *egress =
        container_of(container_of(source, struct outbox, source), struct egress, outbox);

    (void)events;
    list_for_each(node, &egress->outbox.queue) {
        struct waiting *waiting = container_of(node, struct waiting, node);

        if (fd_send(egress->outbox.fd, waiting->text, strlen(waiting->text), NULL, 0) == -EAGAIN)
            return;
        free_waiting(waiting);
    }
    loop_remove(egress->loop, &egress->outbox.source);
}

void outbox_send(struct egress *egress, json_t *message) {
    auto_free char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;

    json_decref(message);
    if (!text) {
        loop_stop(egress->loop); /* an engine that misses an answer would wait for ever */
        return;
    }
    bool is_first = list_empty(&egress->outbox.queue);
    if (is_first && fd_send(egress->outbox.fd, text, strlen(text), NULL, 0) != -EAGAIN)
        return;
    struct waiting *waiting = malloc(sizeof *waiting);
    if (!waiting) {
        loop_stop(egress->loop);
        return;
    }
    waiting->text = TAKE_PTR(text);
    list_add_tail(&egress->outbox.queue, &waiting->node);
    if (is_first && loop_add(egress->loop, &egress->outbox.source, egress->outbox.fd, EPOLLOUT,
                        send_waiting) < 0)
        loop_stop(egress->loop);
}

void outbox_done(struct egress *egress) {
    list_for_each(node, &egress->outbox.queue)
        free_waiting(container_of(node, struct waiting, node));
}
