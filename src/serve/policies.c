/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies of clients: the limits of a token's scopes, and compiled plans.
 *
 * A policy speaks about the server's machine. Without the scope "host" it may set limits, seeds,
 * users, the environment and an image, but name no path, device or network of the host, not take
 * over the server's own environment, and not choose a weaker isolation. The list has the allowed
 * keys, so that a key which a later version adds is refused until it is put here.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/policy.h"
#include "serve/admission.h"
#include "serve/ceilings.h"
#include "serve/engines.h"

/* Found without a thread of the pool. */
#define PLANS_MAX 512u

static const char *const free_keys[] = { "cwd", "env", "image", "user", "users", "hostname",
    "max_memory", "max_processes", "max_cpu", "max_disk", "max_open_files", "max_output", "timeout",
    "random_seed", "time_start", "time_mode", "serial", "tmpfs", "shm_size", "ulimits" };

struct preparation {
    struct pool_job job;
    struct exchange *exchange;
    struct engine_link *link;
    char *text;
    struct rollbox_plan *plan;
    struct rollbox_error error;
    bool failed;
};

/* Do rules lead to the server's own machine or its private network? */
static bool leads_inward(const json_t *rules) {
    size_t i;
    json_t *rule;

    json_array_foreach((json_t *)rules, i, rule) {
        if (json_object_get(rule, "to") || json_object_get(rule, "private"))
            return true;
    }
    return false;
}

/* The member that needs a scope which the token has not; NULL: none does. */
static const char *forbidden(const json_t *policy, unsigned scopes, const char **ret_scope) {
    const char *key;
    json_t *value;

    *ret_scope = "host";
    json_object_foreach((json_t *)policy, key, value) {
        const char *text = json_string_value(value);
        bool allowed = (scopes & TOKEN_HOST) != 0;

        for (size_t i = 0; !allowed && i < ARRAY_SIZE(free_keys); i++)
            allowed = !strcmp(key, free_keys[i]);
        /* A snapshot in the store may be another tenant's. */
        if (!strcmp(key, "image") && text &&
            (strchr("/.", text[0]) || !strncmp(text, "snapshot:", 9)))
            allowed = (scopes & TOKEN_HOST) != 0;
        /* Isolation "process" shares more of the host with a guest than other tenants expect. */
        if (!strcmp(key, "isolation"))
            allowed = allowed || !text || !strcmp(text, "namespace");
        if (!strcmp(key, "clean_env"))
            allowed = allowed || json_is_true(value);
        if (!strcmp(key, "net"))
            allowed = allowed || !text || !strcmp(text, "none") || !strcmp(text, "loopback");
        bool is_rules = !strcmp(key, "net_allow_hosts") || !strcmp(key, "net_allow");
        bool is_network = (is_rules && !leads_inward(value)) || !strncmp(key, "net_max_", 8) ||
                          (!strcmp(key, "net") && text && !strcmp(text, "allow"));
        allowed = allowed || (is_network && scopes & TOKEN_NET);
        if (!allowed) {
            *ret_scope = is_network ? "net" : "host";
            return key;
        }
    }
    return NULL;
}

static void prepare_work(struct pool_job *job) {
    struct preparation *preparation = container_of(job, struct preparation, job);

    preparation->failed =
        rollbox_prepare(preparation->link->engine, preparation->text, strlen(preparation->text),
            &preparation->plan, &preparation->error) < 0;
}

/* The oldest ones go: librollbox has them still, and a thread of the pool asks it at no cost. */
static void remember(struct engine_link *link, struct preparation *preparation) {
    struct known_plan *known = calloc(1, sizeof *known);

    if (!known)
        return;
    if (link->n_plans == PLANS_MAX) {
        struct known_plan *oldest = container_of(link->plans.next, struct known_plan, node);

        list_remove(&oldest->node);
        free(oldest->text);
        free(oldest);
        link->n_plans--;
    }
    known->text = TAKE_PTR(preparation->text);
    known->plan = preparation->plan;
    list_add_tail(&link->plans, &known->node);
    link->n_plans++;
}

static void prepare_done(struct pool_job *job) {
    struct preparation *preparation = container_of(job, struct preparation, job);
    struct exchange *exchange = preparation->exchange;

    if (!preparation->failed)
        remember(preparation->link, preparation);
    if (preparation->failed)
        exchange_fail(exchange, &preparation->error);
    else if (!exchange->connection && exchange->gone && !exchange->operation)
        exchange_done(exchange);
    else
        admission_enter(exchange, preparation->plan);
    engine_link_unref(preparation->link);
    free(preparation->text);
    free(preparation);
}

/* The exchange has its engine. */
static void prepare(struct exchange *exchange) {
    const json_t *policy = json_object_get(exchange->body, "policy");
    char *text = policy ? json_dumps(policy, JSON_COMPACT | JSON_SORT_KEYS) : strdup("{}");

    list_for_each(node, &exchange->link->plans) {
        struct known_plan *known = container_of(node, struct known_plan, node);

        if (text && !strcmp(known->text, text)) {
            free(text);
            admission_enter(exchange, known->plan);
            return;
        }
    }
    struct preparation *preparation = text ? calloc(1, sizeof *preparation) : NULL;
    if (!preparation) {
        free(text);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    preparation->job = (struct pool_job){ .work = prepare_work, .done = prepare_done };
    preparation->exchange = exchange;
    preparation->link = engine_link_ref(exchange->link);
    preparation->text = text;
    pool_submit(exchange->server->pool, &preparation->job);
}

bool policies_allowed(struct exchange *exchange, const json_t *policy) {
    const char *meant = NULL, *scope, *key = forbidden(policy, exchange->scopes, &scope);

    if (key && !policy_has_key(key, &meant))
        exchange_unknown(exchange, "policy_invalid", "key", key, meant);
    else if (key)
        exchange_problem(exchange, 403, "policy_forbidden",
            "%.64s: a policy may have this only with a token of scope %s", key, scope);
    return !key;
}

void policies_prepare(struct exchange *exchange, enum admission_kind kind,
    void (*then)(struct exchange *exchange, struct rollbox_plan *plan)) {
    const json_t *policy = json_object_get(exchange->body, "policy");

    if (policy && !json_is_object(policy)) {
        exchange_problem(exchange, 400, "policy_invalid", "policy must be an object");
        return;
    }
    if (!policies_allowed(exchange, policy) || !ceilings_apply(exchange) ||
        !admission_take(exchange, kind, json_object_get(exchange->body, "policy")))
        return;
    exchange->prepared = then;
    engines_want(exchange, prepare);
}
