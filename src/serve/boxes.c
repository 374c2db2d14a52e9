/* SPDX-License-Identifier: Apache-2.0 */
/* The table of sandboxes: each tenant's names for the engine's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/digits.h"
#include "serve/engine_link.h"
#include "serve/events.h"
#include "serve/family.h"

static struct list *bucket_of(
    struct server *server, const struct tenant *tenant, const char *name) {
    unsigned hash = 2166136261u;

    for (const char *p = tenant->name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    for (const char *p = name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return &server->boxes[(hash ^ hash >> 16) % SERVER_BUCKETS];
}

bool box_name_ok(const char *name) {
    size_t length = strlen(name);

    return length >= 1 && length <= SERVER_NAME_MAX && name[0] != '.' && name[0] != '-' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
               length;
}

void box_random_name(char name[SERVER_NAME_MAX + 1]) {
    memcpy(name, "sb-", 3);
    digits_random(10, name + 3);
}

struct box *box_find(struct server *server, const struct tenant *tenant, const char *name) {
    list_for_each(node, bucket_of(server, tenant, name)) {
        struct box *box = container_of(node, struct box, of_names);

        if (box->tenant == tenant && !strcmp(box->name, name))
            return box;
    }
    return NULL;
}

bool box_take_name(struct server *server, struct box *box, const char *name) {
    if (box->is_gone || !box_name_ok(name) || box_find(server, box->tenant, name))
        return false;
    list_remove(&box->of_names);
    (void)snprintf(box->name, sizeof box->name, "%s", name);
    list_add_tail(bucket_of(server, box->tenant, name), &box->of_names);
    return true;
}

static struct box *enter(struct server *server, struct tenant *tenant, const char *name,
    struct engine_link *link, struct rollbox_sandbox *take_handle) {
    struct box *box = calloc(1, sizeof *box);
    char digits[17];

    if (!box) {
        rollbox_sandbox_free(take_handle);
        return NULL;
    }
    box->references = 1;
    box->measure.at_ns = clock_now_ns();
    digits_random(8, digits);
    box->number = strtoull(digits, NULL, 16);
    box->link = engine_link_ref(link);
    box->tenant = tenant;
    box->handle = take_handle;
    (void)snprintf(box->name, sizeof box->name, "%s", name);
    list_add_tail(bucket_of(server, tenant, name), &box->of_names);
    return box;
}

/* The sandbox takes over what its exchange holds for it. */
static void take_share(struct box *box, struct exchange *exchange) {
    box->held = exchange->share;
    for (enum quota i = 0; i < QUOTA_LEVELS; i++)
        exchange->held.of[i] -= MIN(exchange->held.of[i], exchange->share.of[i]);
}

struct box *box_new(
    struct exchange *exchange, const char *name, struct rollbox_sandbox *take_handle) {
    struct box *box = enter(exchange->server, exchange->tenant, name, exchange->link, take_handle);

    if (box)
        take_share(box, exchange);
    return box;
}

struct box *box_restore(struct server *server, struct tenant *tenant, const char *name,
    struct engine_link *link, struct rollbox_sandbox *take_handle, const struct amounts *held) {
    struct box *box = enter(server, tenant, name, link, take_handle);

    if (box) {
        box->held = *held;
        quota_take_levels(&tenant->use, held);
    }
    return box;
}

struct box *box_unref(struct box *box) {
    if (box && --box->references == 0) {
        if (box->freed)
            box->freed(box);
        rollbox_sandbox_free(box->handle);
        for (size_t i = 0; i < box->n_old_handles; i++)
            rollbox_sandbox_free(box->old_handles[i]);
        free(box->old_handles);
        engine_link_unref(box->link);
        json_decref(box->labels);
        json_decref(box->policy);
        free(box);
    }
    return NULL;
}

void box_move(struct box *box, struct engine_link *link, struct rollbox_sandbox *take_handle) {
    struct rollbox_sandbox **more =
        realloc(box->old_handles, (box->n_old_handles + 1) * sizeof *more);

    if (!more) {
        rollbox_sandbox_free(take_handle);
        return;
    }
    box->old_handles = more;
    box->old_handles[box->n_old_handles++] = box->handle;
    box->handle = take_handle;
    engine_link_unref(box->link);
    box->link = engine_link_ref(link);
}

void box_forget(struct server *server, struct box *box) {
    if (box->is_gone)
        return;
    state_forget_box(server, box);
    box->is_gone = true;
    if (box->forgotten)
        box->forgotten(box);
    events_of_box(box, "sandbox.ended", NULL);
    family_leave(box);
    list_remove(&box->of_names);
    quota_give_back(&box->tenant->use, &box->held);
    box_unref(box);
}

void box_rest(struct box *box) {
    static const enum quota given_back[] = { QUOTA_MEMORY, QUOTA_CPUS };
    struct amounts less = quota_nothing();

    if (box->is_gone)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(given_back); i++) {
        enum quota quota = given_back[i];

        less.of[quota] = box->held.of[quota];
        box->resting.of[quota] += box->held.of[quota];
        box->held.of[quota] = 0;
    }
    quota_give_back(&box->tenant->use, &less);
    box->roused_ns = 0;
}

void box_rouse(struct box *box) {
    if (box->is_gone)
        return;
    box->held = box_limits(box);
    quota_take_levels(&box->tenant->use, &box->resting);
    box->resting = quota_nothing();
    box->roused_ns = clock_now_ns();
}

void box_close(struct server *server, struct box *box) {
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_CLOSE,
        .sandbox = rollbox_sandbox_name(box->handle) };
    struct rollbox_run *run;

    /* The engine finishes the call, although no client waits for its answer. */
    if (rollbox_call_start(box->link->engine, &call, &run, NULL) >= 0)
        rollbox_run_free(run);
    box_forget(server, box);
}

static const char *public_name(
    struct server *server, const struct tenant *tenant, const char *engine_name) {
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (box->tenant == tenant && !strcmp(rollbox_sandbox_name(box->handle), engine_name))
                return box->name;
        }
    return NULL;
}

/* The engine's name with the tenant's before it, as policies_prepare's users make it. */
static json_t *renamed(struct server *server, const struct tenant *tenant, const json_t *value) {
    const char *name = json_string_value(value), *found;
    size_t length = strlen(tenant->name);

    if (!name)
        return NULL;
    if (!strncmp(name, tenant->name, length) && name[length] == '.')
        return json_string(name + length + 1);
    found = public_name(server, tenant, name);
    return found ? json_string(found) : NULL;
}

void box_rename(struct server *server, const struct tenant *tenant, json_t *value) {
    const char *key;
    json_t *member;
    size_t i;

    if (json_is_array(value)) {
        json_array_foreach(value, i, member) {
            json_t *name = json_is_string(member) ? renamed(server, tenant, member) : NULL;

            if (name)
                json_array_set_new(value, i, name);
            else
                box_rename(server, tenant, member);
        }
        return;
    }
    json_object_foreach(value, key, member) {
        bool is_name = !strcmp(key, "name") || !strcmp(key, "sandbox") || !strcmp(key, "origin");
        bool is_list = !strcmp(key, "sandboxes") || !strcmp(key, "snapshots");
        json_t *name = is_name && json_is_string(member) ? renamed(server, tenant, member) : NULL;

        if (name)
            json_object_set_new(value, key, name);
        else if (is_list)
            box_rename(server, tenant, member);
    }
}
