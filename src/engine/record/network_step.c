/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/record/network_step.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "record/record.h"

#define MAX_FDS 3

struct held_step {
    struct list node; /* held_steps */
    struct record *record;
    uint64_t tally; /* 0: nothing, or no more, to wait for */
    uint64_t bytes;
    struct buf message;
    size_t n_fds;
    int fds[MAX_FDS];
};

static struct list held_steps = { &held_steps, &held_steps };

static void held_free(struct held_step *held) {
    list_remove(&held->node);
    for (size_t i = 0; i < held->n_fds; i++)
        close_fd(&held->fds[i]);
    buf_done(&held->message);
    free(held);
}

bool network_step_hold(struct record *record, uint64_t tally, struct buf *message, const int *fds,
    size_t n_fds, uint64_t bytes) {
    struct held_step *held = n_fds <= MAX_FDS ? calloc(1, sizeof *held) : NULL;

    if (!held)
        return false;
    list_init(&held->node);
    if (fd_copy_all(held->fds, fds, n_fds) < 0) {
        held_free(held);
        return false;
    }
    held->n_fds = n_fds;
    held->record = record;
    held->tally = tally;
    held->bytes = bytes;
    held->message = *message;
    *message = BUF_INIT;
    list_add_tail(&held_steps, &held->node);
    return true;
}

static void post(struct held_step *held) {
    recorder_post(held->record, &held->message, held->fds, held->n_fds, held->bytes);
    held_free(held);
}

bool network_step_waits(const struct record *record) {
    list_for_each(node, &held_steps)
        if (container_of(node, struct held_step, node)->record == record)
            return true;
    return false;
}

/* Posts the record's steps up to one that waits for its counts. */
static void post_ready(const struct record *record) {
    list_for_each(node, &held_steps) {
        struct held_step *held = container_of(node, struct held_step, node);

        if (held->record != record)
            continue;
        if (held->tally)
            return;
        post(held);
    }
}

/* A command that did nothing in the network has no word about it. */
static bool has_events(const char *network) {
    static const char *const counts[] = { "connections", "refused", "incomplete" };
    json_t *object = json_loads(network, 0, NULL);
    bool found = false;

    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        const json_t *value = json_object_get(object, counts[i]);

        found |= json_is_true(value) || json_integer_value(value) > 0;
    }
    json_decref(object);
    return found;
}

void network_step_tally(uint64_t tally, const char *network) {
    list_for_each(node, &held_steps) {
        struct held_step *held = container_of(node, struct held_step, node);

        if (!tally || held->tally != tally)
            continue;
        if (has_events(network)) {
            wire_add_text(&held->message, RECORD_KEY, "network");
            wire_add_text(&held->message, RECORD_DATA, network);
        }
        held->tally = 0;
        post_ready(held->record);
        return;
    }
}

void network_step_flush(const struct record *record) {
    list_for_each(node, &held_steps) {
        struct held_step *held = container_of(node, struct held_step, node);

        if (!record || held->record == record)
            post(held);
    }
}
