/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of all work; admission.h has the model. */
#include "serve/admission.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "policy/policy.h"

static uint64_t processors(void) {
    static long n;

    if (!n)
        n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (uint64_t)n;
}

/* The limits of a policy. One that is not valid counts nothing: the engine refuses it. */
static struct amounts limits_of(const json_t *policy) {
    struct amounts limits = quota_nothing();
    auto_free char *text = policy ? json_dumps(policy, JSON_COMPACT) : NULL;
    const char *json = text ? text : "{}";
    struct policy_problems problems = { 0 };
    struct policy *parsed;

    if (policy_parse(json, strlen(json), &parsed, &problems) < 0) {
        policy_problems_done(&problems);
        return limits;
    }
    policy_fit(parsed, (unsigned)processors());
    limits.of[QUOTA_MEMORY] = parsed->max_memory_bytes;
    limits.of[QUOTA_DISK] = parsed->max_disk_bytes;
    limits.of[QUOTA_CPUS] = parsed->max_cpu_milli ? parsed->max_cpu_milli : processors() * 1000;
    policy_free(parsed);
    policy_problems_done(&problems);
    return limits;
}

static struct amounts limits_of_defaults(void) {
    static struct amounts limits;
    static bool is_known;

    if (!is_known)
        limits = limits_of(NULL);
    is_known = true;
    return limits;
}

/* ---- starts of the day, which outlive the server ---- */

/* Between two lines of the journal: what a server that is killed forgets. */
#define KEEP_NS (INT64_C(1000) * 1000000)

static struct loop_timer keep_timer;
static struct server *the_server;

static void keep_starts(struct journal *journal, struct tenant *tenant) {
    tenant->keeps_starts = false;
    (void)journal_add(journal,
        json_pack("{s:s, s:s, s:I, s:I}", "kind", "starts", "tenant", tenant->name, "day",
            (json_int_t)tenant->use.day, "n", (json_int_t)tenant->use.now.of[QUOTA_STARTS]));
}

static void on_keep(struct loop_timer *timer) {
    (void)timer;
    list_for_each(node, &the_server->tenants) {
        struct tenant *tenant = container_of(node, struct tenant, of_server);

        if (tenant->keeps_starts)
            keep_starts(the_server->journal, tenant);
    }
    the_server = NULL;
}

static void note_starts(struct exchange *exchange) {
    struct server *server = exchange->server;

    if (!server->journal)
        return;
    exchange->tenant->keeps_starts = true;
    if (!the_server &&
        loop_timer_set(server->loop, &keep_timer, clock_now_ns() + KEEP_NS, on_keep) >= 0)
        the_server = server;
}

bool admission_replay(struct server *server, const char *kind, const json_t *line) {
    const char *name = json_string_value(json_object_get(line, "tenant"));
    struct tenant *tenant;

    if (strcmp(kind, "starts") != 0)
        return false;
    tenant = name && token_tenant_ok(name) ? tenant_of(server, name) : NULL;
    if (tenant) {
        tenant->use.day = json_integer_value(json_object_get(line, "day"));
        tenant->use.now.of[QUOTA_STARTS] = (uint64_t)json_integer_value(json_object_get(line, "n"));
    }
    return true;
}

void admission_dump(struct server *server, struct journal *journal) {
    list_for_each(node, &server->tenants) {
        struct tenant *tenant = container_of(node, struct tenant, of_server);

        if (tenant->use.now.of[QUOTA_STARTS])
            keep_starts(journal, tenant);
    }
}

/* ---- taking ---- */

static void release(struct exchange *exchange) {
    quota_give_back(&exchange->tenant->use, &exchange->held);
}

static bool take(struct exchange *exchange, unsigned n) {
    struct amounts more = quota_times(&exchange->share, n);
    struct quota_verdict verdict;

    more.of[QUOTA_STARTS] = n;
    exchange->seen.asked_ns = clock_now_ns();
    exchange->release = release;
    if (quota_take(&exchange->quotas, &exchange->tenant->use, &more, clock_now_ns(), time(NULL),
            false, &verdict)) {
        more.of[QUOTA_STARTS] = 0;
        exchange->held = more;
        note_starts(exchange);
        return true;
    }
    exchange_over(exchange, &verdict);
    return false;
}

bool admission_take(struct exchange *exchange, enum admission_kind kind, const json_t *policy) {
    exchange->share = json_object_size(policy) ? limits_of(policy) : limits_of_defaults();
    exchange->share.of[kind == ADMISSION_SANDBOX ? QUOTA_SANDBOXES : QUOTA_RUNNING] = 1;
    if (!take(exchange, 1))
        return false;
    exchange->counts_running = kind == ADMISSION_RUN;
    return true;
}

bool admission_forks(struct exchange *exchange, unsigned n) {
    exchange->share = exchange->box->held;
    exchange->share.of[QUOTA_SANDBOXES] = 1;
    return take(exchange, n);
}

bool admission_command(struct exchange *exchange) {
    exchange->share = quota_nothing();
    exchange->share.of[QUOTA_RUNNING] = 1;
    if (!take(exchange, 1))
        return false;
    exchange->counts_running = true;
    return true;
}

bool admission_has_room(const struct exchange *exchange) {
    struct amounts one = quota_nothing();

    one.of[QUOTA_RUNNING] = 1;
    return quota_has_room(&exchange->quotas, &exchange->tenant->use, &one);
}

void admission_move(struct exchange *from, struct exchange *to) {
    to->held = from->held;
    to->release = release;
    to->counts_running = from->counts_running;
    from->held = quota_nothing();
    from->counts_running = false;
}
