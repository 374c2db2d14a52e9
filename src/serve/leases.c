/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: sandboxes that end with their client. A sandbox that is created with a lease, and its
 * forks, end when the lease is not renewed for its time to live, or is deleted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/digits.h"
#include "serve/usage.h"

#define TTL_MAX_S (INT64_C(7) * 86400)
#define TTL_DEFAULT_S 60
#define LEASES_MAX 4096u /* of a tenant */

const char *const lease_keys[] = { "ttl_s", "durable", NULL };

struct lease {
    struct list of_server;
    struct server *server;
    const struct tenant *tenant;
    struct loop_timer timer;
    int64_t ttl_s;
    bool is_durable; /* it and its sandboxes outlive the server */
    char id[SERVER_NAME_MAX + 1];
};

static struct lease *look_up(struct server *server, const struct tenant *tenant, const char *id) {
    list_for_each(node, &server->leases) {
        struct lease *lease = container_of(node, struct lease, of_server);

        if (lease->tenant == tenant && !strcmp(lease->id, id))
            return lease;
    }
    return NULL;
}

bool lease_exists(struct server *server, const struct tenant *tenant, const char *id) {
    return look_up(server, tenant, id) != NULL;
}

bool lease_is_durable(struct server *server, const struct tenant *tenant, const char *id) {
    const struct lease *lease = look_up(server, tenant, id);

    return lease && lease->is_durable;
}

static struct lease *find(struct exchange *exchange) {
    const char *id = exchange->parameters[0];
    struct lease *lease = look_up(exchange->server, exchange->tenant, id);

    if (lease)
        return lease;
    exchange_problem(exchange, 404, "lease_expired",
        "there is no lease \"%.64s\": it was not renewed in time, and its sandboxes have ended",
        id);
    return NULL;
}

static void close_box(struct server *server, struct box *box) {
    usage_measure(box);
    box_close(server, box);
}

/* Closes all that it has, without waiting. */
static void end(struct lease *lease) {
    struct server *server = lease->server;

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (box->tenant == lease->tenant && !strcmp(box->lease, lease->id))
                close_box(server, box);
        }
    if (lease->is_durable)
        state_forget_lease(server, lease->tenant, lease->id);
    loop_timer_clear(server->loop, &lease->timer);
    list_remove(&lease->of_server);
    free(lease);
}

static void on_expired(struct loop_timer *timer) {
    end(container_of(timer, struct lease, timer));
}

static int renew(struct lease *lease) {
    return loop_timer_set(
        lease->server->loop, &lease->timer, clock_now_ns() + lease->ttl_s * 1000000000, on_expired);
}

static json_t *describe(const struct lease *lease) {
    return json_pack("{s:s, s:I}", "id", lease->id, "ttl_s", (json_int_t)lease->ttl_s);
}

static struct lease *lease_new(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s) {
    struct lease *lease = calloc(1, sizeof *lease);

    if (!lease)
        return NULL;
    lease->server = server;
    lease->tenant = tenant;
    lease->ttl_s = ttl_s;
    (void)snprintf(lease->id, sizeof lease->id, "%s", id);
    list_add_tail(&server->leases, &lease->of_server);
    if (renew(lease) >= 0)
        return lease;
    end(lease);
    return NULL;
}

static bool has_room(struct server *server, const struct tenant *tenant) {
    unsigned n = 0;

    list_for_each(node, &server->leases) {
        n += container_of(node, struct lease, of_server)->tenant == tenant;
    }
    return n < LEASES_MAX;
}

int lease_open(struct server *server, const struct tenant *tenant, int64_t ttl_s,
    char id[SERVER_NAME_MAX + 1]) {
    if (!has_room(server, tenant))
        return -ENOSPC;
    memcpy(id, "ls-", 3);
    digits_random(10, id + 3);
    return lease_new(server, tenant, id, ttl_s) ? 0 : -ENOMEM;
}

bool lease_touch(struct server *server, const struct tenant *tenant, const char *id) {
    struct lease *lease = look_up(server, tenant, id);

    if (lease)
        (void)renew(lease);
    return lease != NULL;
}

bool lease_end(struct server *server, const struct tenant *tenant, const char *id) {
    struct lease *lease = look_up(server, tenant, id);

    if (lease)
        end(lease);
    return lease != NULL;
}

void handle_lease_create(struct exchange *exchange) {
    char id[SERVER_NAME_MAX + 1] = "ls-";
    int64_t ttl_s = TTL_DEFAULT_S;
    bool durable = false;

    if (!exchange_integer(exchange, "ttl_s", 1, TTL_MAX_S, &ttl_s) ||
        !exchange_boolean(exchange, "durable", &durable))
        return;
    if (durable && !exchange->server->journal) {
        exchange_problem(exchange, 501, "feature_missing",
            "nothing outlives this server: it was started without --state");
        return;
    }
    if (!has_room(exchange->server, exchange->tenant)) {
        exchange_problem(exchange, 429, "quota_exceeded",
            "a tenant has at most %u leases at once; end some, or try again later", LEASES_MAX);
        return;
    }
    digits_random(10, id + 3);
    struct lease *lease = lease_new(exchange->server, exchange->tenant, id, ttl_s);
    if (!lease) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    lease->is_durable = durable;
    if (durable && state_keep_lease(exchange->server, lease->tenant, lease->id, ttl_s) < 0) {
        end(lease);
        exchange_problem(exchange, 503, "resource_exhausted",
            "the server cannot write its journal, so the lease would not outlive it");
        return;
    }
    exchange_answer_json(exchange, 201, describe(lease));
}

bool lease_restore(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s) {
    struct lease *lease = lease_new(server, tenant, id, ttl_s);

    if (lease)
        lease->is_durable = true;
    return lease != NULL;
}

void leases_dump(
    struct server *server, void (*dump)(struct server *server, const struct tenant *tenant,
                               const char *id, int64_t ttl_s)) {
    list_for_each(node, &server->leases) {
        const struct lease *lease = container_of(node, struct lease, of_server);

        if (lease->is_durable)
            dump(server, lease->tenant, lease->id, lease->ttl_s);
    }
}

void handle_lease_renew(struct exchange *exchange) {
    struct lease *lease = find(exchange);

    if (!lease)
        return;
    (void)renew(lease);
    exchange_answer_json(exchange, 200, describe(lease));
}

void handle_lease_delete(struct exchange *exchange) {
    struct lease *lease = find(exchange);

    if (!lease)
        return;
    end(lease);
    exchange_answer(exchange, 204, "", NULL);
}
