/* SPDX-License-Identifier: Apache-2.0 */
/* The fair queue; fair_queue.h has the model. */
#include "serve/fair_queue.h"

#include <stddef.h>

#include "base/cleanup.h"

void fair_queue_init(struct fair_queue *queue) {
    *queue = (struct fair_queue){ .n = 0 };
    list_init(&queue->turns);
}

void fair_tenant_init(struct fair_tenant *tenant) {
    *tenant = (struct fair_tenant){ .weight = 1 };
    list_init(&tenant->in_turns);
    for (size_t i = 0; i < FAIR_PRIORITIES; i++)
        list_init(&tenant->items[i]);
}

void fair_item_init(struct fair_item *item) {
    *item = (struct fair_item){ .priority = FAIR_NORMAL, .cost = 1 };
    list_init(&item->node);
}

void fair_queue_add(struct fair_queue *queue, struct fair_tenant *tenant, struct fair_item *item) {
    item->tenant = tenant;
    item->passed = 0;
    list_add_tail(&tenant->items[item->priority], &item->node);
    queue->n++;
    if (tenant->n++ == 0) {
        tenant->time = MAX(tenant->time, queue->time);
        list_add_tail(&queue->turns, &tenant->in_turns);
    }
}

void fair_queue_leave(struct fair_queue *queue, struct fair_item *item) {
    if (list_empty(&item->node))
        return;
    list_remove(&item->node);
    queue->n--;
    if (--item->tenant->n == 0)
        list_remove(&item->tenant->in_turns);
}

/* Whether nothing else may be started before it. */
static bool is_due(const struct fair_item *item) {
    return item->size && item->passed / item->size >= FAIR_PASSES;
}

struct search {
    int64_t now_ns;
    bool (*fits)(const struct fair_item *item, void *data);
    void *data;
    struct fair_item *due; /* it must be next, and has no room */
};

/* The first of one priority that has room. */
static struct fair_item *first_of(const struct list *items, struct search *search) {
    unsigned n = 0;

    list_for_each(node, items) {
        struct fair_item *item = container_of(node, struct fair_item, node);

        if (search->fits(item, search->data))
            return item;
        if (is_due(item)) {
            search->due = item;
            return NULL;
        }
        if (++n == FAIR_LOOK_MAX)
            return NULL;
    }
    return NULL;
}

/* Its priority, and a higher one for each FAIR_AGE_NS of waiting. */
static double urgency(const struct fair_item *item, int64_t now_ns) {
    return (double)item->priority - (double)((now_ns - item->since_ns) / FAIR_AGE_NS);
}

static struct fair_item *first_of_tenant(const struct fair_tenant *tenant, struct search *search) {
    struct fair_item *best = NULL;

    for (size_t i = 0; i < FAIR_PRIORITIES && !search->due; i++) {
        struct fair_item *item = first_of(&tenant->items[i], search);

        if (item && (!best || urgency(item, search->now_ns) < urgency(best, search->now_ns)))
            best = item;
    }
    return best;
}

/* Those that had to wait for room while this one was given some. */
static void note_passed(
    struct fair_queue *queue, const struct fair_item *started, const struct search *search) {
    list_for_each(turn, &queue->turns) {
        struct fair_tenant *tenant = container_of(turn, struct fair_tenant, in_turns);

        for (size_t i = 0; i < FAIR_PRIORITIES; i++) {
            struct fair_item *first = container_of(tenant->items[i].next, struct fair_item, node);

            if (!list_empty(&tenant->items[i]) && first != started &&
                !search->fits(first, search->data))
                first->passed += started->size;
        }
    }
}

struct fair_item *fair_queue_next(struct fair_queue *queue, int64_t now_ns,
    bool (*fits)(const struct fair_item *item, void *data), void *data) {
    struct search search = { .now_ns = now_ns, .fits = fits, .data = data };
    struct fair_item *best = NULL;

    list_for_each(node, &queue->turns) {
        const struct fair_tenant *tenant = container_of(node, struct fair_tenant, in_turns);
        struct fair_item *item = first_of_tenant(tenant, &search);

        if (search.due)
            return NULL;
        if (item && (!best || tenant->time < best->tenant->time))
            best = item;
    }
    if (!best)
        return NULL;
    struct fair_tenant *tenant = best->tenant;
    note_passed(queue, best, &search);
    fair_queue_leave(queue, best);
    queue->time = MAX(queue->time, tenant->time);
    tenant->time += (double)MAX(best->cost, UINT64_C(1)) / MAX(tenant->weight, 1u);
    if (tenant->n) {
        /* Among tenants of the same time, the one that was served longest ago is first. */
        list_remove(&tenant->in_turns);
        list_add_tail(&queue->turns, &tenant->in_turns);
    }
    return best;
}
