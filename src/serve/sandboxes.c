/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes: creation, lists, and the calls whose answer is one JSON object of the engine. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/admission.h"
#include "serve/command.h"
#include "serve/engines.h"
#include "serve/events.h"
#include "serve/family.h"
#include "serve/traces.h"
#include "serve/trajectories.h"
#include "serve/usage.h"
#include "serve/tenants.h"
#include "serve/warm_templates.h"

#define TIME_MAX_S (INT64_C(365) * 86400)
#define FORKS_MAX 1000

const char *const create_keys[] = { "policy", "name", "idle_s", "ttl_s", "lifetime_s",
    "hibernate_s", "auto_snapshots", "labels", "lease", "detached", "priority", "queue_timeout_ms",
    "record", "template", NULL };
const char *const snapshot_keys[] = { "name", "processes", NULL };
const char *const fork_keys[] = { "snapshot", "n", "processes", "same_seed", NULL };
const char *const reset_keys[] = { "snapshot", "processes", NULL };
const char *const label_keys[] = { "labels", NULL };
const char *const signal_keys[] = { "signal", "scope", NULL };
const char *const resize_keys[] = { "rows", "columns", NULL };
const char *const state_keys[] = { "processes", NULL };

static bool is_inspection(const struct route *route) {
    return !strcmp(route->method, "GET") && !strcmp(route->path, "/v1/sandboxes/{sandbox}");
}

/* The answer's text, parsed; NULL: the answer is given already. */
static json_t *answer_of(struct exchange *exchange, struct rollbox_run *run) {
    const struct rollbox_result *result;
    json_t *answer = NULL;

    if (rollbox_wait(run, 0, &result) < 0)
        return NULL;
    if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        struct rollbox_error error = result->error;

        /* It has ended by itself. */
        if (error.code == ROLLBOX_ERR_NOT_FOUND && is_inspection(exchange->route))
            box_forget(exchange->server, exchange->box);
        exchange_fail(exchange, &error);
        return NULL;
    }
    answer = json_loads(rollbox_call_json(run), 0, NULL);
    if (!answer)
        exchange_problem(exchange, 502, "protocol", "the engine's answer is malformed");
    return answer;
}

static void start_call(struct exchange *exchange, struct rollbox_call_options *options) {
    struct rollbox_error error = { .code = ROLLBOX_OK };

    options->size = sizeof *options;
    options->userdata = exchange;
    if (rollbox_call_start(exchange->link->engine, options, &exchange->run, &error) < 0)
        exchange_fail(exchange, &error);
}

/* ---- creating ---- */

/* Whether the body asks for a sandbox that outlives the server. */
static bool is_detached(const struct exchange *exchange) {
    const char *lease = json_string_value(json_object_get(exchange->body, "lease"));

    return json_is_true(json_object_get(exchange->body, "detached")) ||
           (lease && lease_is_durable(exchange->server, exchange->tenant, lease));
}

/* The exchange's sandbox is there; `trajectory` NULL: it is not recorded by the server. */
static void created(struct exchange *exchange, const char *trajectory) {
    struct box *box = exchange->box;
    auto_buf struct buf location = BUF_INIT;

    traces_box_created(box, exchange, NULL);
    events_of_box(box, "sandbox.created", NULL);
    json_t *answer = json_pack("{s:s, s:O*}", "name", box->name, "labels", box->labels);
    if (trajectory)
        json_object_set_new(answer, "trajectory", json_string(trajectory));
    auto_free char *text = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    buf_printf(&location, "Location: /v1/sandboxes/%s\r\n", box->name);
    exchange_answer(exchange, 201, text ? text : "{}", location.data);
}

/* Enters the sandbox that was made, under the name in exchange->data, and answers. */
static void create_enter(struct exchange *exchange, struct rollbox_sandbox *take_handle) {
    struct box *from = exchange->box; /* NULL: it is from no template */
    bool is_recorded = false;

    struct box *box = box_new(exchange, exchange->data, take_handle);
    if (!box) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    const char *lease = json_string_value(json_object_get(exchange->body, "lease"));
    if (lease && !lease_exists(exchange->server, exchange->tenant, lease)) {
        box_close(exchange->server, box);
        exchange_problem(exchange, 404, "lease_expired", "the lease has expired meanwhile");
        return;
    }
    if (lease)
        (void)snprintf(box->lease, sizeof box->lease, "%s", lease);
    box->labels = json_incref(json_object_get(exchange->body, "labels"));
    const json_t *policy = from ? from->policy : json_object_get(exchange->body, "policy");
    box->policy = policy ? json_incref((json_t *)policy) : json_object();
    if (is_detached(exchange)) {
        box->is_detached = true;
        if (state_keep_box(exchange->server, box) < 0) {
            box_close(exchange->server, box);
            exchange_problem(exchange, 503, "resource_exhausted",
                "the server cannot write its journal, so the sandbox would not outlive it");
            return;
        }
    }
    box_unref(from);
    exchange->box = box;
    box->references++;
    if (trajectories_wanted(exchange, &is_recorded) && is_recorded)
        trajectories_record(exchange, created);
    else
        created(exchange, NULL);
}

static void on_created(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    json_t *answer = answer_of(exchange, run);
    struct rollbox_sandbox *handle = NULL;

    if (!answer)
        return;
    json_decref(answer);
    if (rollbox_call_sandbox(run, 0, &handle, &error) < 0)
        exchange_fail(exchange, &error);
    else
        create_enter(exchange, handle);
}

static bool seconds_of(struct exchange *exchange, const char *key, int64_t *ret_ms) {
    int64_t seconds = 0;

    if (!exchange_integer(exchange, key, 0, TIME_MAX_S, &seconds))
        return false;
    *ret_ms = seconds * 1000;
    return true;
}

static void create(struct exchange *exchange, struct rollbox_plan *plan) {
    char name[2 * (SERVER_NAME_MAX + 1)];
    struct rollbox_sandbox_options options = { .size = sizeof options, .name = name };
    struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_CREATE, .plan = plan, .create = &options, .callback = on_created
    };
    int64_t keep = 0;

    /* The name may have been taken while the policy was compiled. */
    if (box_find(exchange->server, exchange->tenant, exchange->data)) {
        exchange_problem(exchange, 409, "conflict", "there is a sandbox \"%s\" already",
            (const char *)exchange->data);
        return;
    }
    (void)snprintf(
        name, sizeof name, "%s.%s", exchange->tenant->name, (const char *)exchange->data);
    if (seconds_of(exchange, "idle_s", &options.idle_ms) &&
        seconds_of(exchange, "ttl_s", &options.ttl_ms) &&
        seconds_of(exchange, "lifetime_s", &options.lifetime_ms) &&
        seconds_of(exchange, "hibernate_s", &options.hibernate_ms) &&
        exchange_integer(exchange, "auto_snapshots", 0, 1000, &keep)) {
        options.auto_snapshots = (unsigned)keep;
        options.detached = is_detached(exchange);
        start_call(exchange, &call);
    }
}

static void start_template_fork(struct exchange *exchange, struct rollbox_plan *no_plan) {
    const struct rollbox_state_options state = { .size = sizeof state,
        .processes = ROLLBOX_PROCESSES_KEEP };
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_FORK,
        .sandbox = rollbox_sandbox_name(exchange->box->handle),
        .snapshot = WARM_TEMPLATE_SNAPSHOT,
        .n = 1,
        .state = &state,
        .callback = on_created };

    (void)no_plan;
    if (box_find(exchange->server, exchange->tenant, exchange->data))
        exchange_problem(exchange, 409, "conflict", "there is a sandbox \"%s\" already",
            (const char *)exchange->data);
    else
        start_call(exchange, &call);
}

static void create_of_template(struct exchange *exchange, const char *template) {
    exchange->prepared = start_template_fork;
    if (warm_template_take(exchange, template) && admission_forks(exchange, 1))
        admission_enter(exchange, NULL);
}

void handle_create(struct exchange *exchange) {
    const json_t *labels = json_object_get(exchange->body, "labels");
    char made[SERVER_NAME_MAX + 1];
    const char *name = NULL, *lease = NULL, *template = NULL;

    bool detached = false, is_recorded;
    if (!trajectories_wanted(exchange, &is_recorded) || !exchange_string(exchange, "name", &name) ||
        !exchange_string(exchange, "lease", &lease) ||
        !exchange_string(exchange, "template", &template) ||
        !exchange_boolean(exchange, "detached", &detached))
        return;
    if (detached && !exchange->server->journal) {
        exchange_problem(exchange, 501, "feature_missing",
            "nothing outlives this server: it was started without --state");
        return;
    }
    if (lease && !lease_exists(exchange->server, exchange->tenant, lease)) {
        exchange_problem(exchange, 404, "lease_expired", "there is no lease \"%.64s\"", lease);
        return;
    }
    if (labels && !json_is_object(labels)) {
        exchange_problem(exchange, 400, "invalid_argument", "labels must be an object");
        return;
    }
    if (!usage_labels_ok(exchange))
        return;
    if (!name) {
        box_random_name(made);
        name = made;
    } else if (!box_name_ok(name)) {
        exchange_problem(exchange, 400, "invalid_argument",
            "name must be 1 to %d of A-Z a-z 0-9 _ . - and not begin with . or -", SERVER_NAME_MAX);
        return;
    }
    exchange->data = strdup(name);
    exchange->free_data = free;
    if (!exchange->data)
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    else if (template)
        create_of_template(exchange, template);
    else
        policies_prepare(exchange, ADMISSION_SANDBOX, create);
}

/* ---- lists ---- */

static struct box *box_of_engine(struct exchange *exchange, const char *engine_name) {
    struct server *server = exchange->server;

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (box->tenant == exchange->tenant && box->link == exchange->link &&
                !strcmp(rollbox_sandbox_name(box->handle), engine_name))
                return box;
        }
    return NULL;
}

/* The rows of one engine after the other. */
static void list_next(struct exchange *exchange);

static void on_listed(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;
    json_t *answer, *row;
    size_t i;

    /* An engine that is lost has no sandboxes. */
    if (rollbox_wait(run, 0, &result) >= 0 && result->outcome == ROLLBOX_OUTCOME_ERROR &&
        result->error.code == ROLLBOX_ERR_ENGINE_LOST) {
        exchange->run = rollbox_run_free(exchange->run);
        list_next(exchange);
        return;
    }
    answer = answer_of(exchange, run);
    if (!answer)
        return;
    json_array_foreach(json_object_get(answer, "sandboxes"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        struct box *box = name ? box_of_engine(exchange, name) : NULL;

        if (!box)
            continue;
        json_object_set_new(row, "name", json_string(box->name));
        if (box->labels)
            json_object_set(row, "labels", box->labels);
        json_array_append(exchange->data, row);
    }
    json_decref(answer);
    exchange->run = rollbox_run_free(exchange->run);
    list_next(exchange);
}

static void list_next(struct exchange *exchange) {
    const struct rollbox_call_options call = {
        .size = sizeof call, .call = ROLLBOX_CALL_LIST, .callback = on_listed, .userdata = exchange
    };
    struct rollbox_error error = { .code = ROLLBOX_ERR_ENGINE_LOST };

    while (error.code == ROLLBOX_ERR_ENGINE_LOST) {
        struct engine_link *next = engines_next(exchange->server, exchange->link);

        engine_link_unref(exchange->link);
        exchange->link = engine_link_ref(next);
        if (!next) {
            exchange_answer_json(
                exchange, 200, json_pack("{s:O}", "sandboxes", (json_t *)exchange->data));
            return;
        }
        if (rollbox_call_start(next->engine, &call, &exchange->run, &error) >= 0)
            return;
    }
    exchange_fail(exchange, &error);
}

static void free_rows(void *rows) {
    json_decref(rows);
}

void handle_list(struct exchange *exchange) {
    exchange->data = json_array();
    exchange->free_data = free_rows;
    list_next(exchange);
}

static void add_tenant(const struct tenant_numbers *numbers, void *data) {
    json_array_append_new(data, tenant_json(numbers));
}

void handle_status(struct exchange *exchange) {
    struct server *server = exchange->server;
    json_t *tenants = json_array();

    tenants_each(server, add_tenant, tenants);
    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:i, s:i, s:o, s:b, s:i, s:o}", "version", rollbox_version(),
            "connections", (int)server->http.n_connections, "requests", (int)server->n_exchanges,
            "engines", engines_status(server), "draining", (int)server->draining, "queued",
            (int)server->queue.n, "tenants", tenants));
}

/* ---- calls on one sandbox ---- */

/* Labels that are null are taken away, and others stay. */
void handle_label(struct exchange *exchange) {
    json_t *labels = json_object_get(exchange->body, "labels"), *value;
    struct box *box = exchange->box;
    const char *key;
    void *next;

    if (!json_is_object(labels)) {
        exchange_problem(exchange, 400, "invalid_argument", "labels must be an object");
        return;
    }
    if (!usage_labels_ok(exchange))
        return;
    json_t *all = box->labels ? json_copy(box->labels) : json_object();
    json_object_update(all, labels);
    json_object_foreach_safe(all, next, key, value) {
        if (json_is_null(value))
            json_object_del(all, key);
    }
    if (json_object_size(all) > USAGE_LABELS) {
        json_decref(all);
        exchange_problem(exchange, 400, "invalid_argument",
            "a sandbox may have at most %u labels; null takes one away", USAGE_LABELS);
        return;
    }
    json_decref(box->labels);
    box->labels = all;
    events_of_box(box, "sandbox.labels", NULL);
    exchange_answer_json(
        exchange, 200, json_pack("{s:s, s:O}", "name", box->name, "labels", box->labels));
}

/* Publishes a call that has changed a sandbox as an event. */
static void tell_change(struct exchange *exchange, const json_t *answer) {
    const char *call = strrchr(exchange->route->path, '/') + 1;
    auto_buf struct buf type = BUF_INIT;

    if (strcmp(exchange->route->method, "POST") != 0)
        return;
    buf_printf(&type, "sandbox.%s", !strcmp(call, "snapshots") ? "snapshot" : call);
    traces_call_ended(exchange, type.data ? type.data + strlen("sandbox.") : "call",
        json_string_value(json_object_get(answer, "id")));
    if (!buf_failed(&type))
        events_of_box(exchange->box, type.data,
            json_pack("{s:O?, s:s?}", "snapshot", json_object_get(answer, "id"), "exec",
                exchange->parameters[1]));
}

/* Numbers of the host's processes are not for clients that may not see the host. */
static void hide_host(const struct exchange *exchange, json_t *answer) {
    json_t *row;
    size_t i;

    if (exchange->scopes & (TOKEN_HOST | TOKEN_ADMIN))
        return;
    if (is_inspection(exchange->route))
        json_object_del(answer, "pid");
    json_array_foreach(json_object_get(answer, "processes"), i, row)
        json_object_del(row, "host_pid");
}

static void on_answered(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    json_t *answer = answer_of(exchange, run);

    if (!answer)
        return;
    box_rename(exchange->server, exchange->tenant, answer);
    tell_change(exchange, answer);
    hide_host(exchange, answer);
    if (is_inspection(exchange->route)) {
        char tree[17];

        if (exchange->box->labels)
            json_object_set(answer, "labels", exchange->box->labels);
        if (family_of(exchange->box, tree))
            json_object_set_new(answer, "tree", json_string(tree));
    }
    exchange_answer_json(exchange, strcmp(exchange->route->method, "POST") ? 200 : 201, answer);
}

static bool changes_use(const struct route *route);
static enum rollbox_call verb_call(const struct route *route);

/* The same for calls that do something: 200. */
static void on_done(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    json_t *answer = answer_of(exchange, run);

    if (!answer)
        return;
    box_rename(exchange->server, exchange->tenant, answer);
    tell_change(exchange, answer);
    /* A request that came meanwhile wakes it again, and has taken nothing of the quotas for that.
     */
    if (verb_call(exchange->route) == ROLLBOX_CALL_HIBERNATE &&
        exchange->box->n_wakers == (unsigned)exchange->may_wake)
        box_rest(exchange->box);
    if (changes_use(exchange->route))
        usage_measure(exchange->box);
    exchange_answer_json(exchange, 200, answer);
}

static void on_closed(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;
    json_t *answer = NULL;

    if (rollbox_wait(run, 0, &result) >= 0 && result->error.code != ROLLBOX_ERR_NOT_FOUND) {
        answer = answer_of(exchange, run);
        if (!answer)
            return;
    }
    box_forget(exchange->server, exchange->box);
    if (json_object_get(answer, "record")) {
        exchange_answer_json(exchange, 200, answer);
        return;
    }
    json_decref(answer);
    exchange_answer(exchange, 204, "", NULL);
}

static void on_dropped(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    json_t *answer = answer_of(exchange, run);

    if (!answer)
        return;
    json_decref(answer);
    exchange_answer(exchange, 204, "", NULL);
}

static const char *exchange_snapshot(const struct exchange *exchange) {
    return json_string_value(json_object_get(exchange->body, "snapshot"));
}

struct box *fork_enter(struct exchange *exchange, struct box *parent, const char *snapshot,
    struct rollbox_sandbox *take_handle) {
    char name[SERVER_NAME_MAX + 1];

    box_random_name(name);
    struct box *box = box_new(exchange, name, take_handle);
    if (!box)
        return NULL;
    memcpy(box->lease, parent->lease, sizeof box->lease);
    box->is_detached = parent->is_detached;
    box->labels = json_deep_copy(parent->labels);
    if (box->is_detached)
        (void)state_keep_box(exchange->server, box);
    box->policy = json_incref(parent->policy);
    family_fork(box, parent, snapshot);
    traces_box_created(box, exchange, parent);
    events_of_box(box, "sandbox.created", json_pack("{s:s}", "fork_of", parent->name));
    return box;
}

static void on_forked(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    json_t *answer = answer_of(exchange, run), *names;
    size_t n;

    if (!answer)
        return;
    n = json_array_size(json_object_get(answer, "sandboxes"));
    json_decref(answer);
    traces_call_ended(exchange, "fork", exchange_snapshot(exchange));
    names = json_array();
    for (size_t i = 0; i < n; i++) {
        struct rollbox_sandbox *handle = NULL;
        struct box *box = NULL;

        if (rollbox_call_sandbox(run, i, &handle, NULL) >= 0)
            box = fork_enter(exchange, exchange->box, exchange_snapshot(exchange), handle);
        if (box)
            json_array_append_new(names, json_string(box->name));
    }
    /* The lease may have expired meanwhile, and with it the sandbox. */
    if (exchange->box->is_gone && exchange->box->lease[0]) {
        for (size_t i = 0; i < json_array_size(names); i++)
            box_close(exchange->server, box_find(exchange->server, exchange->tenant,
                                            json_string_value(json_array_get(names, i))));
        json_decref(names);
        exchange_problem(exchange, 404, "lease_expired", "the lease has expired meanwhile");
        return;
    }
    exchange_answer_json(exchange, 201, json_pack("{s:o}", "sandboxes", names));
}

bool call_processes(struct exchange *exchange, struct rollbox_state_options *state) {
    const char *processes = "keep";

    if (!exchange_string(exchange, "processes", &processes))
        return false;
    if (strcmp(processes, "keep") != 0 && strcmp(processes, "drop") != 0) {
        exchange_problem(exchange, 400, "invalid_argument", "processes must be keep or drop");
        return false;
    }
    state->size = sizeof *state;
    state->processes = !strcmp(processes, "drop") ? ROLLBOX_PROCESSES_DROP : ROLLBOX_PROCESSES_KEEP;
    return true;
}

bool call_signal(struct exchange *exchange, struct rollbox_call_options *call) {
    static const struct {
        const char *name;
        int number;
    } names[] = { { "HUP", SIGHUP }, { "INT", SIGINT }, { "QUIT", SIGQUIT }, { "KILL", SIGKILL },
        { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 }, { "TERM", SIGTERM }, { "CONT", SIGCONT },
        { "STOP", SIGSTOP }, { "WINCH", SIGWINCH } };
    static const char *const scopes[] = { "main", "tree", "children", "group" };
    const char *name = "KILL", *scope = "tree";
    int64_t number = 0;

    if (json_is_integer(json_object_get(exchange->body, "signal"))) {
        if (!exchange_integer(exchange, "signal", 1, 64, &number))
            return false;
    } else if (!exchange_string(exchange, "signal", &name)) {
        return false;
    }
    if (!exchange_string(exchange, "scope", &scope))
        return false;
    for (size_t i = 0; !number && i < ARRAY_SIZE(names); i++)
        if (!strcmp(names[i].name, strncmp(name, "SIG", 3) ? name : name + 3))
            number = names[i].number;
    for (size_t i = 0; i < ARRAY_SIZE(scopes); i++)
        if (!strcmp(scopes[i], scope))
            call->scope = (enum rollbox_scope)(ROLLBOX_SCOPE_MAIN + i);
    if (!number || !call->scope) {
        exchange_problem(exchange, 400, "invalid_argument",
            "signal must be a name or number, and scope main, tree, children or group");
        return false;
    }
    call->signal_number = (int)number;
    return true;
}

/* The members of the body are read when the fork has its turn, too. */
static bool fork_of(struct exchange *exchange, struct rollbox_call_options *call,
    struct rollbox_state_options *state) {
    int64_t n = 1;

    call->call = ROLLBOX_CALL_FORK;
    call->sandbox = rollbox_sandbox_name(exchange->box->handle);
    call->state = state;
    call->callback = on_forked;
    if (!call_processes(exchange, state) ||
        !exchange_string(exchange, "snapshot", &call->snapshot) ||
        !exchange_integer(exchange, "n", 1, FORKS_MAX, &n) ||
        !exchange_boolean(exchange, "same_seed", &state->same_seed))
        return false;
    call->n = (size_t)n;
    return true;
}

static void start_fork(struct exchange *exchange, struct rollbox_plan *no_plan) {
    struct rollbox_state_options state = { .size = sizeof state };
    struct rollbox_call_options call = { 0 };

    (void)no_plan;
    if (fork_of(exchange, &call, &state))
        start_call(exchange, &call);
}

void handle_fork(struct exchange *exchange) {
    struct rollbox_state_options state = { .size = sizeof state };
    struct rollbox_call_options call = { 0 };

    exchange->prepared = start_fork;
    if (fork_of(exchange, &call, &state) && admission_forks(exchange, (unsigned)call.n))
        admission_enter(exchange, NULL);
}

static const struct verb {
    const char *method, *suffix; /* of the path, after the sandbox's name */
    enum rollbox_call call;
    rollbox_callback callback;
    bool changes_use; /* of the sandbox: it is measured before */
} verbs[] = {
    { "GET", "", ROLLBOX_CALL_INSPECT, on_answered, false },
    { "DELETE", "", ROLLBOX_CALL_CLOSE, on_closed, true },
    { "GET", "/processes", ROLLBOX_CALL_PROCESSES, on_answered, false },
    { "GET", "/stats", ROLLBOX_CALL_STATS, on_answered, false },
    { "GET", "/network-log", ROLLBOX_CALL_NET_LOG, on_answered, false },
    { "GET", "/execs", ROLLBOX_CALL_EXECS, on_answered, false },
    { "POST", "/pause", ROLLBOX_CALL_PAUSE, on_done, true },
    { "POST", "/resume", ROLLBOX_CALL_RESUME, on_done, true },
    { "POST", "/hibernate", ROLLBOX_CALL_HIBERNATE, on_done, true },
    { "POST", "/wake", ROLLBOX_CALL_WAKE, on_done, true },
    { "POST", "/snapshots", ROLLBOX_CALL_SNAPSHOT, on_answered, false },
    { "GET", "/snapshots", ROLLBOX_CALL_TREE, on_answered, false },
    { "GET", "/snapshots/{snapshot}", ROLLBOX_CALL_SHOW, on_answered, false },
    { "DELETE", "/snapshots/{snapshot}", ROLLBOX_CALL_DROP, on_dropped, false },
    { "POST", "/reset", ROLLBOX_CALL_RESET, on_done, true },
    { "GET", "/diff", ROLLBOX_CALL_DIFF, on_answered, false },
    { "POST", "/execs/{exec}/signal", ROLLBOX_CALL_SIGNAL, on_done, false },
    { "POST", "/signal", ROLLBOX_CALL_SIGNAL, on_done, false },
    { "POST", "/execs/{exec}/resize", ROLLBOX_CALL_RESIZE, on_done, false },
};

static const struct verb *verb_of(const struct route *route) {
    const char *suffix = route->path + strlen("/v1/sandboxes/{sandbox}");

    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (!strcmp(verbs[i].method, route->method) && !strcmp(verbs[i].suffix, suffix))
            return &verbs[i];
    return NULL;
}

static enum rollbox_call verb_call(const struct route *route) {
    return verb_of(route)->call;
}

static bool changes_use(const struct route *route) {
    return verb_of(route)->changes_use;
}

void handle_call(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    const struct verb *verb = verb_of(exchange->route);
    struct rollbox_state_options state = { .size = sizeof state };
    struct rollbox_call_options call = { .call = verb->call,
        .sandbox = rollbox_sandbox_name(exchange->box->handle),
        .snapshot = exchange->parameters[1],
        .state = &state,
        .callback = verb->callback };
    struct rollbox_terminal terminal;
    auto_buf struct buf from = BUF_INIT, to = BUF_INIT, text = BUF_INIT, verify = BUF_INIT;

    if (!call_processes(exchange, &state))
        return;
    if (verb->call == ROLLBOX_CALL_SIGNAL) {
        call.snapshot = NULL;
        call.operation_id = exchange->parameters[1];
        if (!call_signal(exchange, &call))
            return;
    }
    if (verb->call == ROLLBOX_CALL_RESIZE) {
        call.snapshot = NULL;
        call.operation_id = exchange->parameters[1];
        call.terminal = &terminal;
        if (!command_terminal(exchange, exchange->body, &terminal))
            return;
    }
    if (verb->call == ROLLBOX_CALL_RESET && !exchange_string(exchange, "snapshot", &call.snapshot))
        return;
    if (verb->call == ROLLBOX_CALL_SNAPSHOT && !exchange_string(exchange, "name", &call.snapshot))
        return;
    if (verb->call == ROLLBOX_CALL_SHOW && http_query(request, "verify", &verify))
        call.call = ROLLBOX_CALL_VERIFY;
    if (verb->call == ROLLBOX_CALL_DIFF) {
        call.snapshot = http_query(request, "from", &from) ? from.data : NULL;
        call.to = http_query(request, "to", &to) ? to.data : NULL;
        call.text = http_query(request, "text", &text);
    }
    if (verb->changes_use)
        usage_measure(exchange->box);
    start_call(exchange, &call);
}
