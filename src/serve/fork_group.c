/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/forks: forks of several sandboxes at one moment, such as the members of a private
 * network. librollbox's call blocks, so a thread makes it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/admission.h"
#include "serve/engine_link.h"

#define GROUP_MAX 64u
#define FORKS_MAX 1000

const char *const fork_group_keys[] = { "sandboxes", "n", "processes", "same_seed", NULL };

struct group {
    struct pool_job job;
    struct exchange *exchange;
    struct rollbox_state_options state;
    unsigned n; /* of each */
    size_t n_boxes;
    struct box *boxes[GROUP_MAX]; /* referenced */
    struct rollbox_sandbox *handles[GROUP_MAX];
    struct rollbox_sandbox **forks;
    struct rollbox_error error;
    int r;
};

static void free_group(void *data) {
    struct group *group = data;

    for (size_t i = 0; i < group->n_boxes; i++) {
        group->boxes[i]->n_wakers--;
        box_unref(group->boxes[i]);
    }
    free(group->forks);
    free(group);
}

static void work(struct pool_job *job) {
    struct group *group = container_of(job, struct group, job);

    group->r = rollbox_fork_group(
        group->handles, group->n_boxes, group->n, &group->state, group->forks, &group->error);
}

static bool has_ended(const struct group *group) {
    for (size_t i = 0; i < group->n_boxes; i++)
        if (group->boxes[i]->is_gone)
            return true;
    return false;
}

static void close_all(const struct group *group, const json_t *lists) {
    struct exchange *exchange = group->exchange;
    const json_t *list, *name;
    size_t i, k;

    json_array_foreach(lists, i, list) {
        json_array_foreach(list, k, name) {
            struct box *box = box_find(exchange->server, exchange->tenant, json_string_value(name));

            if (box)
                box_close(exchange->server, box);
        }
    }
}

static void done(struct pool_job *job) {
    struct group *group = container_of(job, struct group, job);
    struct exchange *exchange = group->exchange;

    if (group->r < 0) {
        exchange_fail(exchange, &group->error);
        return;
    }
    json_t *lists = json_array();
    for (size_t i = 0; i < group->n_boxes; i++) {
        json_t *names = json_array();

        for (unsigned k = 0; k < group->n; k++) {
            /* What the sandbox takes over of what the request holds. */
            exchange->share = box_limits(group->boxes[i]);
            exchange->share.of[QUOTA_SANDBOXES] = 1;
            struct box *box =
                fork_enter(exchange, group->boxes[i], NULL, group->forks[i * (size_t)group->n + k]);
            if (box)
                json_array_append_new(names, json_string(box->name));
        }
        json_array_append_new(lists, names);
    }
    if (!has_ended(group)) {
        exchange_answer_json(exchange, 201, json_pack("{s:o}", "sandboxes", lists));
        return;
    }
    close_all(group, lists);
    json_decref(lists);
    exchange_problem(exchange, 404, "not_found", "one of the sandboxes has ended meanwhile");
}

static void start(struct exchange *exchange, struct rollbox_plan *no_plan) {
    struct group *group = exchange->data;

    (void)no_plan;
    group->job = (struct pool_job){ .work = work, .done = done };
    pool_submit(exchange->server->transfers, &group->job);
}

/* The sandboxes of the body's list. False: the answer is given. */
static bool take_boxes(struct exchange *exchange, struct group *group) {
    const json_t *names = json_object_get(exchange->body, "sandboxes"), *name;
    size_t i;

    if (json_array_size(names) < 1 || json_array_size(names) > GROUP_MAX) {
        exchange_problem(exchange, 400, "invalid_argument",
            "sandboxes must be a list of 1 to %u names", GROUP_MAX);
        return false;
    }
    json_array_foreach(names, i, name) {
        const char *text = json_string_value(name);
        struct box *box = text ? box_find(exchange->server, exchange->tenant, text) : NULL;

        if (!box) {
            exchange_problem(
                exchange, 404, "not_found", "there is no sandbox \"%.64s\"", text ? text : "");
            return false;
        }
        for (size_t k = 0; k < group->n_boxes; k++)
            if (group->boxes[k] == box || group->boxes[k]->link != box->link) {
                exchange_problem(exchange, 409, "conflict",
                    "\"%.64s\" is in the list twice, or has another engine than the others", text);
                return false;
            }
        box->references++;
        box->n_wakers++;
        group->handles[group->n_boxes] = box->handle;
        group->boxes[group->n_boxes++] = box;
    }
    return true;
}

void handle_fork_group(struct exchange *exchange) {
    struct group *group = calloc(1, sizeof *group);
    int64_t n = 1;

    if (!group) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    group->exchange = exchange;
    exchange->data = group;
    exchange->free_data = free_group;
    if (!take_boxes(exchange, group) || !call_processes(exchange, &group->state) ||
        !exchange_integer(exchange, "n", 1, FORKS_MAX, &n) ||
        !exchange_boolean(exchange, "same_seed", &group->state.same_seed))
        return;
    group->n = (unsigned)n;
    group->forks = calloc(group->n_boxes * group->n, sizeof(struct rollbox_sandbox *));
    if (!group->forks) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange->link = engine_link_ref(group->boxes[0]->link);
    exchange->prepared = start;
    if (admission_fork_group(exchange, group->boxes, group->n_boxes, group->n))
        admission_enter(exchange, NULL);
}
