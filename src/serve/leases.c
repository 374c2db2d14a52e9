/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: sandboxes that end with their client. A sandbox that is created with a lease, and its
 * forks, end when the lease is not renewed for its time to live, or is deleted.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/digits.h"
#include "serve/server.h"

#define TTL_MAX_S (INT64_C(7) * 86400)
#define TTL_DEFAULT_S 60

const char *const lease_keys[] = { "ttl_s", NULL };

struct lease {
    struct list of_server;
    struct server *server;
    const struct tenant *tenant;
    struct loop_timer timer;
    int64_t ttl_s;
    char id[SERVER_NAME_MAX + 1];
};

bool lease_exists(struct server *server, const struct tenant *tenant, const char *id) {
    list_for_each(node, &server->leases) {
        const struct lease *lease = container_of(node, struct lease, of_server);

        if (lease->tenant == tenant && !strcmp(lease->id, id))
            return true;
    }
    return false;
}

static struct lease *find(struct exchange *exchange) {
    const char *id = exchange->parameters[0];

    list_for_each(node, &exchange->server->leases) {
        struct lease *lease = container_of(node, struct lease, of_server);

        if (lease->tenant == exchange->tenant && !strcmp(lease->id, id))
            return lease;
    }
    exchange_problem(exchange, 404, "lease_expired",
        "there is no lease \"%.64s\": it was not renewed in time, and its sandboxes have ended",
        id);
    return NULL;
}

/* Closes all that it has, without waiting. */
static void end(struct lease *lease) {
    struct server *server = lease->server;

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (box->tenant == lease->tenant && !strcmp(box->lease, lease->id))
                box_close(server, box);
        }
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

void handle_lease_create(struct exchange *exchange) {
    struct lease *lease;
    int64_t ttl_s = TTL_DEFAULT_S;

    if (!exchange_integer(exchange, "ttl_s", 1, TTL_MAX_S, &ttl_s))
        return;
    lease = calloc(1, sizeof *lease);
    if (!lease) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    lease->server = exchange->server;
    lease->tenant = exchange->tenant;
    lease->ttl_s = ttl_s;
    memcpy(lease->id, "ls-", 3);
    digits_random(10, lease->id + 3);
    list_add_tail(&exchange->server->leases, &lease->of_server);
    if (renew(lease) < 0) {
        end(lease);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange_answer_json(exchange, 201, describe(lease));
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
