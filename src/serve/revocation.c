/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens that are revoked or expire while requests with them are open. The connections of these
 * requests end, so their clients see an end without a result, and what they wait for ends as if
 * they had left.
 */
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/server.h"

#define LOOK_NS (INT64_C(1000) * 1000000)

static struct loop_timer timer;
static struct server *the_server;
static unsigned generation; /* of the tokens at the last look */

static bool is_over(const struct exchange *exchange, bool has_changed) {
    return exchange->connection &&
           ((exchange->tokened.expires && exchange->tokened.expires <= time(NULL)) ||
               (has_changed && !tokens_holds(&the_server->tokens, exchange->tokened.id)));
}

/* The end of one may be the end of others: each time the list is looked at from its start. */
static struct exchange *find(bool has_changed) {
    list_for_each(node, &the_server->tokened) {
        struct exchange *exchange = container_of(node, struct exchange, tokened.of_server);

        if (is_over(exchange, has_changed))
            return exchange;
    }
    return NULL;
}

static void on_time(struct loop_timer *unused) {
    struct exchange *exchange;

    (void)unused;
    tokens_renew(&the_server->tokens);
    bool has_changed = generation != the_server->tokens.generation;
    generation = the_server->tokens.generation;
    while ((exchange = find(has_changed))) {
        list_remove(&exchange->tokened.of_server);
        http_revoke(exchange->connection);
    }
    (void)loop_timer_set(the_server->loop, &timer, clock_now_ns() + LOOK_NS, on_time);
}

void revocation_start(struct server *server) {
    the_server = server;
    on_time(NULL);
}
