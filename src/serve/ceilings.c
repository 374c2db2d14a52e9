/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of an exchange's tenant; ceiling.c compares. */
#include "serve/ceilings.h"

#include "base/cleanup.h"
#include "serve/ceiling.h"

/* The engine keeps output in memory, and a policy's max_memory does not count it. So without a
 * ceiling of the tenant's own, only a token for the host's own resources may ask for more. */
#define OUTPUT_MAX "1G"

static const json_t *ceiling_of(struct exchange *exchange) {
    const struct tenant_rules *rules =
        tokens_tenant(&exchange->server->tokens, exchange->tenant->name);

    return rules ? rules->ceiling : NULL;
}

static void refuse(struct exchange *exchange, const char *why) {
    exchange_problem(exchange, 403, "policy_forbidden", "%s", why);
}

bool ceilings_apply(struct exchange *exchange) {
    const json_t *ceiling = ceiling_of(exchange);
    json_t *policy = json_object_get(exchange->body, "policy");
    char why[CEILING_TEXT];

    json_t *own = NULL;
    if (!json_object_get(ceiling, "max_output") && json_object_get(policy, "max_output") &&
        !(exchange->scopes & TOKEN_HOST)) {
        own = ceiling ? json_copy((json_t *)(uintptr_t)ceiling) : json_object();
        json_object_set_new(own, "max_output", json_string(OUTPUT_MAX));
        ceiling = own;
    }
    if (!ceiling)
        return true;
    if (!exchange->body)
        exchange->body = json_object();
    if (!policy)
        json_object_set_new(exchange->body, "policy", policy = json_object());
    bool allowed = ceiling_apply(ceiling, policy, why);
    json_decref(own);
    if (!allowed)
        refuse(exchange, why);
    return allowed;
}

bool ceilings_allow_fork(struct exchange *exchange) {
    const json_t *ceiling = ceiling_of(exchange);
    char why[CEILING_TEXT];

    if (!ceiling || ceiling_allows(ceiling, &exchange->box->held, why))
        return true;
    refuse(exchange, why);
    return false;
}

bool ceilings_allow_time(struct exchange *exchange, int64_t timeout_ms) {
    const json_t *ceiling = ceiling_of(exchange);
    char why[CEILING_TEXT];

    if (!ceiling || ceiling_allows_time(ceiling, timeout_ms, why))
        return true;
    refuse(exchange, why);
    return false;
}

int64_t ceilings_lower_output(struct exchange *exchange, int64_t bytes) {
    return (int64_t)MIN((uint64_t)bytes, ceiling_output(ceiling_of(exchange)));
}

int64_t ceilings_time(struct exchange *exchange) {
    return ceiling_time(ceiling_of(exchange));
}
