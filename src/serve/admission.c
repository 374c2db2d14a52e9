/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of all work; admission.h has the model. */
#include "serve/admission.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "policy/policy.h"
#include "serve/ceilings.h"
#include "serve/engine_link.h"

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

/* ---- the queue ---- */

#define FRESH_NS (INT64_C(30) * 1000000)
#define FRESH_LEAST 3u /* an engine begins one while others wait for the kernel */
#define QUEUED_MAX 10000u
#define KEPT_FOR_OTHERS (UINT64_C(512) << 20) /* what an engine may keep for its other clients */
#define COST_BYTES (UINT64_C(256) << 20)      /* memory that costs as much as another start */
#define COST_MAX_MS 60000.0
#define MEAN_OF 16.0
#define LOOK_NS (INT64_C(250) * 1000000)
#define QUEUE_TIMEOUT_MS INT64_C(60000)
#define QUEUE_TIMEOUT_MAX_MS (INT64_C(86400) * 1000)

static struct server *the_server;
static struct list fresh; /* struct exchange.of_fresh, the oldest first */
static unsigned n_fresh;
static struct loop_timer fresh_timer, look_timer;
static struct loop_task turn_task;

static unsigned fresh_max(void) {
    return (unsigned)MAX(processors() + 2, (uint64_t)FRESH_LEAST);
}

static bool read_turn(struct exchange *exchange) {
    static const char *const names[] = { "high", "normal", "low" };
    const char *priority = "normal";
    int64_t timeout_ms = QUEUE_TIMEOUT_MS;

    fair_item_init(&exchange->turn.item);
    if (!exchange_string(exchange, "priority", &priority) ||
        !exchange_integer(exchange, "queue_timeout_ms", 1, QUEUE_TIMEOUT_MAX_MS, &timeout_ms))
        return false;
    exchange->turn.timeout_ns = timeout_ms * 1000000;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(names[i], priority)) {
            exchange->turn.item.priority = (enum fair_priority)i;
            return true;
        }
    exchange_problem(exchange, 400, "invalid_argument", "priority must be high, normal or low");
    return false;
}

enum rollbox_priority admission_priority(const struct exchange *exchange) {
    switch (exchange->turn.item.priority) {
    case FAIR_HIGH:
        return ROLLBOX_PRIORITY_HIGH;
    case FAIR_LOW:
        return ROLLBOX_PRIORITY_LOW;
    case FAIR_NORMAL:
    case FAIR_PRIORITIES:
        break;
    }
    return ROLLBOX_PRIORITY_NORMAL;
}

static struct exchange *exchange_of(const struct fair_item *item) {
    return container_of(item, struct exchange, turn.item);
}

/* An engine begins one run however large it is, if it has no other one. */
static bool engine_has_room(const struct engine_link *link, uint64_t memory) {
    const uint64_t budget = link->memory_budget, kept = MIN(budget / 8, KEPT_FOR_OTHERS);

    return !budget || !link->memory_started || link->memory_started + memory <= budget - kept;
}

static bool fits(const struct fair_item *item, void *data) {
    const struct exchange *exchange = exchange_of(item);

    (void)data;
    if (exchange->waits &&
        !quota_has_room(&exchange->quotas, &exchange->tenant->use, &exchange->share))
        return false;
    return !exchange->turn.is_run ||
           engine_has_room(exchange->link, exchange->share.of[QUOTA_MEMORY]);
}

static void run_turns(struct loop_task *task);

static void schedule(struct server *server) {
    if (server->queue.n)
        loop_defer(server->loop, &turn_task, run_turns);
}

static void on_fresh(struct loop_timer *timer);

static void watch_fresh(struct server *server) {
    if (!list_empty(&fresh))
        (void)loop_timer_set(server->loop, &fresh_timer,
            container_of(fresh.next, struct exchange, turn.of_fresh)->turn.started_ns + FRESH_NS,
            on_fresh);
}

static void leave_fresh(struct exchange *exchange) {
    if (list_empty(&exchange->turn.of_fresh))
        return;
    list_remove(&exchange->turn.of_fresh);
    n_fresh--;
}

static void on_fresh(struct loop_timer *timer) {
    int64_t now = clock_now_ns();

    (void)timer;
    while (!list_empty(&fresh)) {
        struct exchange *first = container_of(fresh.next, struct exchange, turn.of_fresh);

        if (first->turn.started_ns + FRESH_NS > now)
            break;
        leave_fresh(first);
    }
    watch_fresh(the_server);
    schedule(the_server);
}

/* Runs cost their tenant what its runs took until now, and their memory. */
static uint64_t cost_of(const struct exchange *exchange) {
    double ms = exchange->turn.is_run ? MIN(exchange->tenant->mean_ms, COST_MAX_MS) : 1;

    return exchange->turn.n *
           (uint64_t)((1 + ms) * (double)(1 + exchange->share.of[QUOTA_MEMORY] / COST_BYTES));
}

static void begin(struct exchange *exchange) {
    exchange->turn.started_ns = clock_now_ns();
    exchange->tenant->waited_ns +=
        (uint64_t)(exchange->turn.started_ns - exchange->turn.item.since_ns);
    exchange->tenant->n_started++;
    if (exchange->waits) {
        quota_take_levels(&exchange->tenant->use, &exchange->share);
        exchange->held = quota_times(&exchange->share, 1);
    }
    if (exchange->turn.is_run) {
        exchange->counts_running = true;
        exchange->link->memory_started += exchange->share.of[QUOTA_MEMORY];
    }
    exchange->turn.has_started = true;
    list_add_tail(&fresh, &exchange->turn.of_fresh);
    if (n_fresh++ == 0)
        watch_fresh(exchange->server);
    exchange->prepared(exchange, exchange->turn.plan);
}

static void end_start(struct exchange *exchange) {
    struct tenant *tenant = exchange->tenant;

    if (!exchange->turn.has_started)
        return;
    exchange->turn.has_started = false;
    leave_fresh(exchange);
    if (!exchange->turn.is_run)
        return;
    exchange->link->memory_started -= exchange->share.of[QUOTA_MEMORY];
    double ms = (double)(clock_now_ns() - exchange->turn.started_ns) / 1e6;
    tenant->mean_ms += (ms - tenant->mean_ms) / MEAN_OF;
}

static void run_turns(struct loop_task *task) {
    struct server *server = the_server;
    struct fair_item *item;

    (void)task;
    while (n_fresh < fresh_max() &&
           (item = fair_queue_next(&server->queue, clock_now_ns(), fits, NULL)))
        begin(exchange_of(item));
}

/* The first of the queue that has waited for too long; NULL: none. */
static struct exchange *overdue(struct server *server, int64_t now) {
    list_for_each(turn, &server->queue.turns) {
        const struct fair_tenant *tenant = container_of(turn, struct fair_tenant, in_turns);

        for (size_t i = 0; i < FAIR_PRIORITIES; i++)
            list_for_each(node, &tenant->items[i]) {
                struct exchange *exchange = exchange_of(container_of(node, struct fair_item, node));

                if (now - exchange->turn.item.since_ns > exchange->turn.timeout_ns)
                    return exchange;
            }
    }
    return NULL;
}

static void on_look(struct loop_timer *timer) {
    struct server *server = the_server;
    struct exchange *exchange;

    while ((exchange = overdue(server, clock_now_ns()))) {
        fair_queue_leave(&server->queue, &exchange->turn.item);
        exchange->tenant->use.refused.of[QUOTA_QUEUED]++;
        exchange_problem(exchange, 503, "queue_timeout",
            "the request has waited for %lld ms (queue_timeout_ms), and the server is still full; "
            "try again later",
            (long long)(exchange->turn.timeout_ns / 1000000));
    }
    if (server->queue.n) {
        run_turns(NULL);
        (void)loop_timer_set(server->loop, timer, clock_now_ns() + LOOK_NS, on_look);
    }
}

void admission_enter(struct exchange *exchange, struct rollbox_plan *plan) {
    struct server *server = exchange->server;
    struct tenant *tenant = exchange->tenant;
    const struct tenant_rules *rules = tokens_tenant(&server->tokens, tenant->name);
    uint64_t most = exchange->quotas.of[QUOTA_QUEUED];

    exchange->turn.plan = plan;
    exchange->turn.item.since_ns = clock_now_ns();
    exchange->turn.item.cost = cost_of(exchange);
    exchange->turn.item.size = exchange->share.of[QUOTA_MEMORY];
    tenant->turns.weight = rules ? rules->weight : 1;
    if (!server->queue.n && n_fresh < fresh_max() && fits(&exchange->turn.item, NULL)) {
        begin(exchange);
        return;
    }
    if (!exchange->waits && tenant->turns.n >= most) {
        tenant->use.refused.of[QUOTA_QUEUED]++;
        exchange_over(exchange, &(struct quota_verdict){ QUOTA_QUEUED, tenant->turns.n, most, 1 });
        return;
    }
    if (server->queue.n >= QUEUED_MAX) {
        tenant->use.refused.of[QUOTA_QUEUED]++;
        exchange_full(exchange, server->queue.n, QUEUED_MAX);
        return;
    }
    fair_queue_add(&server->queue, &tenant->turns, &exchange->turn.item);
    if (server->queue.n == 1)
        (void)loop_timer_set(server->loop, &look_timer, clock_now_ns() + LOOK_NS, on_look);
    schedule(server);
}

unsigned admission_position(const struct exchange *exchange) {
    const struct fair_item *item = &exchange->turn.item;
    unsigned n = 1;

    if (!item->node.next || list_empty(&item->node))
        return 0;
    for (size_t i = 0; i <= (size_t)item->priority; i++)
        list_for_each(node, &item->tenant->items[i]) {
            if (node == &item->node)
                return n;
            n++;
        }
    return n;
}

void admission_start(struct server *server) {
    the_server = server;
    list_init(&fresh);
    list_init(&turn_task.node);
    fair_queue_init(&server->queue);
}

/* ---- starts of the day, which outlive the server ---- */

/* Between two lines of the journal: what a server that is killed forgets. */
#define KEEP_NS (INT64_C(1000) * 1000000)

static struct loop_timer keep_timer;
static bool is_keeping;

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
    is_keeping = false;
}

static void note_starts(struct exchange *exchange) {
    struct server *server = exchange->server;

    if (!server->journal)
        return;
    exchange->tenant->keeps_starts = true;
    if (!is_keeping)
        is_keeping =
            loop_timer_set(server->loop, &keep_timer, clock_now_ns() + KEEP_NS, on_keep) >= 0;
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
    fair_queue_leave(&exchange->server->queue, &exchange->turn.item);
    end_start(exchange);
    quota_give_back(&exchange->tenant->use, &exchange->held);
    schedule(exchange->server);
}

static void hold(struct exchange *exchange) {
    if (!exchange->release) {
        list_init(&exchange->turn.of_fresh);
        list_init(&exchange->turn.item.node);
    }
    exchange->release = release;
}

/* n times the share; `starts` sandboxes or commands. */
static bool take(struct exchange *exchange, unsigned n, unsigned starts) {
    struct amounts more = quota_times(&exchange->share, n);
    struct quota_verdict verdict;

    more.of[QUOTA_STARTS] = starts;
    exchange->seen.asked_ns = clock_now_ns();
    hold(exchange);
    if (quota_take(&exchange->quotas, &exchange->tenant->use, &more, clock_now_ns(), time(NULL),
            exchange->waits, &verdict)) {
        more.of[QUOTA_STARTS] = 0;
        if (!exchange->waits)
            exchange->held = more;
        note_starts(exchange);
        return true;
    }
    exchange_over(exchange, &verdict);
    return false;
}

/* ---- runs, sandboxes, forks, commands ---- */

bool admission_take(struct exchange *exchange, enum admission_kind kind, const json_t *policy) {
    exchange->share = json_object_size(policy) ? limits_of(policy) : limits_of_defaults();
    exchange->share.of[kind == ADMISSION_SANDBOX ? QUOTA_SANDBOXES : QUOTA_RUNNING] = 1;
    exchange->turn.is_run = kind == ADMISSION_RUN;
    exchange->turn.n = 1;
    return read_turn(exchange) && take(exchange, 1, 1);
}

int64_t admission_wait_ns(const struct exchange *exchange) {
    return quota_rate_wait_ns(&exchange->quotas, &exchange->tenant->use, clock_now_ns());
}

static bool is_resting(const struct box *box) {
    return box->resting.of[QUOTA_MEMORY] || box->resting.of[QUOTA_CPUS];
}

/* What the exchange's hibernated sandbox has given back. */
static bool take_again(struct exchange *exchange) {
    struct box *box = exchange->box;
    struct quota_verdict verdict;

    if (!is_resting(box))
        return true;
    if (quota_fits(&exchange->quotas, &exchange->tenant->use, &box->resting, &verdict)) {
        box_rouse(box);
        return true;
    }
    exchange_over(exchange, &verdict);
    return false;
}

bool admission_awake(struct exchange *exchange) {
    if (!exchange->may_wake)
        exchange->box->n_wakers++;
    exchange->may_wake = true;
    return take_again(exchange);
}

void admission_rest(struct exchange *exchange) {
    if (exchange->may_wake)
        exchange->box->n_wakers--;
    exchange->may_wake = false;
}

bool admission_forks(struct exchange *exchange, unsigned n) {
    if (!admission_awake(exchange) || !ceilings_allow_fork(exchange))
        return false;
    exchange->share = box_limits(exchange->box);
    exchange->share.of[QUOTA_SANDBOXES] = 1;
    exchange->turn.is_run = false;
    exchange->turn.n = n;
    return read_turn(exchange) && take(exchange, n, n);
}

bool admission_fork_group(
    struct exchange *exchange, struct box *const *boxes, size_t n_boxes, unsigned n) {
    exchange->share = quota_nothing();
    for (size_t i = 0; i < n_boxes; i++) {
        const struct amounts limits = box_limits(boxes[i]);

        exchange->box = boxes[i];
        exchange->box->references++;
        if (!take_again(exchange) || !ceilings_allow_fork(exchange))
            return false;
        exchange->box = box_unref(exchange->box);
        for (enum quota quota = 0; quota < QUOTA_LEVELS; quota++)
            exchange->share.of[quota] += limits.of[quota];
    }
    exchange->share.of[QUOTA_SANDBOXES] = n_boxes;
    exchange->turn.is_run = false;
    exchange->turn.n = n * (unsigned)n_boxes;
    return read_turn(exchange) && take(exchange, n, exchange->turn.n);
}

bool admission_command(struct exchange *exchange) {
    exchange->share = quota_nothing();
    exchange->share.of[QUOTA_RUNNING] = 1;
    if (!take(exchange, 1, 1))
        return false;
    exchange->counts_running = true;
    return true;
}

void admission_move(struct exchange *from, struct exchange *to) {
    to->held = from->held;
    hold(to);
    to->counts_running = from->counts_running;
    from->held = quota_nothing();
    from->counts_running = false;
}
