/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of an exchange's tenant; ceiling.c compares. */
#include "serve/ceilings.h"

#include "serve/ceiling.h"

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

    if (!ceiling)
        return true;
    if (!exchange->body)
        exchange->body = json_object();
    if (!policy)
        json_object_set_new(exchange->body, "policy", policy = json_object());
    if (ceiling_apply(ceiling, policy, why))
        return true;
    refuse(exchange, why);
    return false;
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
