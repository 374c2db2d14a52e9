/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/policies: whether a tenant may use a policy, and the engine's plan of it. Nothing is
 * started. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/ceilings.h"
#include "serve/engines.h"

struct planning {
    struct pool_job job;
    struct exchange *exchange;
    struct engine_link *link;
    char *policy, *text;
    struct rollbox_error error;
    int r;
};

static void work(struct pool_job *job) {
    struct planning *planning = container_of(job, struct planning, job);

    planning->r = rollbox_policy_plan(planning->link->engine, planning->policy,
        strlen(planning->policy), &planning->text, &planning->error);
}

/* {"plan": [line, ...], "policy"}, as of rollbox policy plan --json. A path of the host need not be
 * UTF-8. */
static void answer(struct exchange *exchange, const char *text) {
    auto_free char *policy = json_dumps(json_object_get(exchange->body, "policy"), JSON_COMPACT);
    auto_buf struct buf plan = BUF_INIT;

    buf_add_text(&plan, "{\"plan\":[");
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");

        buf_add_text(&plan, line == text ? "" : ",");
        (void)utf8_json(&plan, line, length);
        line += length + (line[length] == '\n');
    }
    buf_printf(&plan, "],\"policy\":%s}", policy ? policy : "{}");
    if (buf_failed(&plan))
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    else
        exchange_answer(exchange, 200, plan.data, NULL);
}

static void done(struct pool_job *job) {
    struct planning *planning = container_of(job, struct planning, job);

    if (planning->r < 0)
        exchange_fail(planning->exchange, &planning->error);
    else
        answer(planning->exchange, planning->text);
    engine_link_unref(planning->link);
    free(planning->policy);
    free(planning->text);
    free(planning);
}

static void plan(struct exchange *exchange) {
    struct planning *planning = calloc(1, sizeof *planning);
    char *policy = json_dumps(json_object_get(exchange->body, "policy"), JSON_COMPACT);

    if (!planning || !policy) {
        free(planning);
        free(policy);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    planning->job = (struct pool_job){ .work = work, .done = done };
    planning->exchange = exchange;
    planning->link = engine_link_ref(exchange->link);
    planning->policy = policy;
    pool_submit(exchange->server->pool, &planning->job);
}

/* The body is the policy. */
void handle_policy(struct exchange *exchange) {
    json_t *body = json_object();

    if (!body || json_object_set_new(body, "policy", TAKE_PTR(exchange->body)) < 0) {
        json_decref(body);
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange->body = body;
    if (policies_allowed(exchange, json_object_get(body, "policy")) && ceilings_apply(exchange))
        engines_want(exchange, plan);
}
