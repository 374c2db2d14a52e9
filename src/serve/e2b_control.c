/* SPDX-License-Identifier: Apache-2.0 */
/*
 * E2B's control plane. A snapshot is a sandbox of its own without processes, which only keeps the
 * snapshot: it counts as a sandbox of the tenant, and ends when the snapshot is deleted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "serve/connect.h"
#include "serve/e2b.h"
#include "serve/e2b_code.h"
#include "serve/e2b_process.h"
#include "serve/engine_link.h"
#include "serve/templates.h"
#include "serve/usage.h"

#define ENVD_VERSION "0.6.4" /* the version of E2B's own daemon that this server answers like */
#define TIMEOUT_DEFAULT_S 300
#define TIMEOUT_MAX_S (INT64_C(30) * 86400)
#define FORKS_MAX 100
#define PAGE_MAX 100
#define OUTPUT_MAX "256M"
#define USER_HOME "/home/user"
#define ROOT_HOME "/root"
#define NOTHING "nothing.invalid"

/* The calls of the native API that the requests become. */
#define BOX "/v1/sandboxes/{sandbox}"
static const struct route native_inspect = { "GET", BOX, TOKEN_RUN, BODY_JSON, NULL, handle_call };
static const struct route native_close = { "DELETE", BOX, TOKEN_RUN, BODY_JSON, NULL, handle_call };
static const struct route native_stats = { "GET", BOX "/stats", TOKEN_RUN, BODY_JSON, NULL,
    handle_call };
static const struct route native_hibernate = { "POST", BOX "/hibernate", TOKEN_RUN, BODY_JSON, NULL,
    handle_call };
static const struct route native_wake = { "POST", BOX "/wake", TOKEN_RUN, BODY_JSON, NULL,
    handle_call };
static const struct route native_snapshot = { "POST", BOX "/snapshots", TOKEN_RUN, BODY_JSON, NULL,
    handle_call };
static const struct route native_image = { "GET", "/v1/images/{image...}", TOKEN_RUN, BODY_JSON,
    NULL, handle_image };
static const struct route native_fork = { "POST", BOX "/fork", TOKEN_RUN, BODY_JSON, NULL,
    handle_fork };

/* The request becomes one of the native API. `take_body` NULL: without members. What the client
 * sent stays in the member "e2b", which the native calls do not look at. */
static void become(struct exchange *exchange, const struct route *route, json_t *take_body,
    exchange_translate *translate) {
    json_t *body = take_body ? take_body : json_object();
    const json_t *before = json_object_get(exchange->body, "e2b");

    json_object_set_new(
        body, "e2b", json_incref(before ? (json_t *)(uintptr_t)before : exchange->body));
    json_decref(exchange->body);
    exchange->body = body;
    exchange->route = route;
    exchange->translate = translate;
    if (exchange->run)
        exchange->run = rollbox_run_free(exchange->run);
    route->handle(exchange);
}

static const json_t *sent(const struct exchange *exchange, const char *key) {
    return json_object_get(json_object_get(exchange->body, "e2b"), key);
}

static void invalid(struct exchange *exchange, const char *detail) {
    exchange_problem(exchange, 400, "invalid_argument", "%s", detail);
}

static bool timeout_of(struct exchange *exchange, int64_t *ret_s) {
    if (json_is_null(json_object_get(exchange->body, "timeout")))
        return true;
    return exchange_integer(exchange, "timeout", 0, TIMEOUT_MAX_S, ret_s);
}

/* ---- descriptions ---- */

static json_t *time_text(int64_t seconds) {
    const time_t at = (time_t)seconds;
    struct tm parts;
    char text[32];

    (void)gmtime_r(&at, &parts);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

/* The domain below which the client finds the sandbox's ports; NULL: the request named an address
 * or this machine. */
static char *domain_of(const struct exchange *exchange) {
    const char *host =
        exchange->connection ? http_header(http_request_of(exchange->connection), "host") : NULL;
    char *domain;

    if (!host || strspn(host, "0123456789.:") == strlen(host) || host[0] == '[' ||
        !strncmp(host, "localhost", 9))
        return NULL;
    domain = strdup(!strncasecmp(host, "api.", 4) ? host + 4 : host);
    if (domain && strchr(domain, ':'))
        *strchr(domain, ':') = '\0';
    return domain;
}

static json_t *describe(const struct exchange *exchange, const struct e2b_box *e2b) {
    auto_free char *domain = domain_of(exchange);

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s?}", "templateID",
        e2b->template_id ? e2b->template_id : "base", "sandboxID", e2b->box->name, "clientID",
        "rollbox", "envdVersion", ENVD_VERSION, "envdAccessToken", e2b->token, "trafficAccessToken",
        e2b->token, "domain", domain);
}

static json_t *row_of(const struct exchange *exchange, const struct e2b_box *e2b) {
    auto_free char *domain = domain_of(exchange);

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:O*, s:o, s:o, s:i, s:i, s:i, s:s, s:b, s:s?, "
                     "s:{s:b, s:s}}",
        "templateID", e2b->template_id ? e2b->template_id : "base", "sandboxID", e2b->box->name,
        "clientID", "rollbox", "envdVersion", ENVD_VERSION, "envdAccessToken", e2b->token,
        "metadata", e2b->metadata, "startedAt", time_text(e2b->started_s), "endAt",
        time_text(e2b->ends_s), "cpuCount", MAX((int)sysconf(_SC_NPROCESSORS_ONLN), 1), "memoryMB",
        1024, "diskSizeMB", 1024, "state", e2b->is_paused ? "paused" : "running",
        "allowInternetAccess", (int)e2b->allows_internet, "domain", domain, "lifecycle",
        "autoResume", 0, "onTimeout", e2b->auto_pause ? "pause" : "kill");
}

/* ---- creating ---- */

/* Takes over what a client said at the creation. */
static struct e2b_box *adopt(
    struct exchange *exchange, struct box *box, const json_t *wanted, int64_t timeout_s) {
    struct e2b_box *e2b = box ? e2b_box_new(exchange, box, timeout_s) : NULL;
    const json_t *template_id = json_object_get(wanted, "templateID");

    if (!e2b)
        return NULL;
    e2b->template_id = template_id ? strdup(json_string_value(template_id)) : NULL;
    e2b->metadata = json_incref(json_object_get(wanted, "metadata"));
    e2b->auto_pause = json_is_true(json_object_get(wanted, "autoPause"));
    e2b->is_public =
        !json_is_false(json_object_get(json_object_get(wanted, "network"), "allowPublicTraffic"));
    return e2b;
}

/* A fork has its processes, too. */
static struct e2b_box *adopt_fork(struct exchange *exchange, const char *name,
    const struct e2b_box *parent, const json_t *wanted, int64_t timeout_s) {
    struct box *box = name ? box_find(exchange->server, exchange->tenant, name) : NULL;
    struct e2b_box *e2b = adopt(exchange, box, wanted, timeout_s);

    if (!e2b)
        return NULL;
    if (!e2b->template_id)
        e2b->template_id =
            strdup(parent->snapshot ? parent->box->name
                                    : (parent->template_id ? parent->template_id : "base"));
    if (!e2b->metadata)
        e2b->metadata = json_incref(parent->metadata);
    e2b->home = parent->home;
    e2b->root_home = parent->root_home;
    e2b->file_metadata = json_deep_copy(parent->file_metadata);
    e2b->has_network = parent->has_network;
    e2b->is_public = parent->is_public;
    e2b->allows_internet = parent->allows_internet;
    return e2b;
}

static int64_t timeout_wanted(const struct exchange *exchange) {
    const json_t *timeout = sent(exchange, "timeout");

    return json_is_integer(timeout) ? json_integer_value(timeout) : TIMEOUT_DEFAULT_S;
}

static json_t *no_memory(int *status, json_t *take_answer) {
    json_decref(take_answer);
    *status = 503;
    return json_pack("{s:i, s:s}", "code", 503, "message", "the server is out of memory");
}

static void adopt_policy(struct e2b_box *e2b, const json_t *policy) {
    const char *net = json_string_value(json_object_get(policy, "net"));

    e2b->has_network = net && !strcmp(net, "allow");
    e2b->allows_internet =
        e2b->has_network && (json_array_size(json_object_get(policy, "net_allow_hosts")) ||
                                json_array_size(json_object_get(policy, "net_allow")));
    if (json_object_get(json_object_get(policy, "tmpfs"), USER_HOME))
        e2b->home = USER_HOME;
    if (json_object_get(policy, "image"))
        e2b->home = ROOT_HOME;
    if (json_object_get(policy, "image") ||
        json_object_get(json_object_get(policy, "tmpfs"), ROOT_HOME))
        e2b->root_home = ROOT_HOME;
}

static json_t *on_created(struct exchange *exchange, int *status, json_t *take_answer) {
    const char *name = json_string_value(json_object_get(take_answer, "name"));
    const json_t *wanted = json_object_get(exchange->body, "e2b");

    if (*status >= 400)
        return e2b_control_answer(exchange, status, take_answer);
    struct box *box = name ? box_find(exchange->server, exchange->tenant, name) : NULL;
    struct e2b_box *e2b = adopt(exchange, box, wanted, timeout_wanted(exchange));
    if (!e2b)
        return no_memory(status, take_answer);
    json_decref(take_answer);
    adopt_policy(e2b, json_object_get(exchange->body, "policy"));
    return describe(exchange, e2b);
}

/* From a snapshot. */
static json_t *on_created_fork(struct exchange *exchange, int *status, json_t *take_answer) {
    const json_t *names = json_object_get(take_answer, "sandboxes");
    struct e2b_box *parent = exchange->box->e2b, *e2b = NULL;

    if (*status >= 400)
        return e2b_control_answer(exchange, status, take_answer);
    if (parent)
        e2b = adopt_fork(exchange, json_string_value(json_array_get(names, 0)), parent,
            json_object_get(exchange->body, "e2b"), timeout_wanted(exchange));
    if (!e2b)
        return no_memory(status, take_answer);
    e2b_processes_copy(parent, e2b);
    e2b_code_copy(parent, e2b);
    json_decref(take_answer);
    return describe(exchange, e2b);
}

static bool is_texts(const json_t *value) {
    const char *key;
    json_t *text;

    if (value && !json_is_null(value) && !json_is_object(value))
        return false;
    json_object_foreach((json_t *)(uintptr_t)value, key, text) {
        if (!json_is_string(text))
            return false;
    }
    return true;
}

/* The templates of E2B's clients, which are the server's own system. */
static bool is_own_system(const char *template_id) {
    return !strcmp(template_id, "base") || !strcmp(template_id, "code-interpreter-v1");
}

/* Of "allow_internet_access" and "network"; false: the answer is given. */
static bool add_network(struct exchange *exchange, json_t *policy) {
    const json_t *access = json_object_get(exchange->body, "allow_internet_access");
    json_t *settings = json_object();
    bool is_default = exchange->scopes & TOKEN_NET && !json_is_boolean(access);

    json_object_update(settings, json_object_get(exchange->body, "network"));
    if (json_is_boolean(access))
        json_object_set(settings, "allow_internet_access", (json_t *)(uintptr_t)access);
    json_t *rules = e2b_network_rules(exchange, settings, is_default);
    json_decref(settings);
    if (!rules)
        return false;
    /* With the scope a sandbox has a network without rules, which can get some later. */
    if (json_array_size(rules) || exchange->scopes & TOKEN_NET) {
        json_object_set_new(policy, "net", json_string("allow"));
        json_object_set(policy, "net_allow_hosts", rules);
    } else {
        json_object_set_new(policy, "net", json_string("loopback"));
    }
    json_decref(rules);
    return true;
}

/* To a list of "NAME=VALUE", whose last entry of a name counts. */
static void add_variables(json_t *list, const json_t *variables) {
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)variables, name, value)
        json_array_append_new(list, json_sprintf("%s=%s", name, json_string_value(value)));
}

/* Without an image only these directories can be written, and /tmp. */
static void add_homes(json_t *policy) {
    if (json_object_get(policy, "image") || json_object_get(policy, "isolation"))
        return;
    if (!json_object_get(policy, "tmpfs"))
        json_object_set_new(policy, "tmpfs", json_object());
    json_t *places = json_object_get(policy, "tmpfs");
    if (!json_object_get(places, USER_HOME))
        json_object_set_new(places, USER_HOME, json_pack("{s:s}", "mode", "0755"));
    if (!json_object_get(places, ROOT_HOME))
        json_object_set_new(places, ROOT_HOME, json_pack("{s:s}", "mode", "0700"));
    if (!json_object_get(policy, "cwd"))
        json_object_set_new(policy, "cwd", json_string(USER_HOME));
}

/* The policy of a client, or that of the operator's template with what the client adds. NULL: the
 * answer is given. */
static json_t *policy_of(struct exchange *exchange, const char *template_id) {
    const json_t *template_policy = templates_find(template_id);
    json_t *policy = template_policy ? json_deep_copy(template_policy) : json_object();
    json_t *variables = json_object_get(exchange->body, "envVars");
    json_t *network = json_object();

    if (!add_network(exchange, network)) {
        json_decref(network);
        json_decref(policy);
        return NULL;
    }
    /* The operator's network rules stand, unless the client wants none. */
    if (json_object_get(policy, "net")) {
        if (json_is_false(json_object_get(exchange->body, "allow_internet_access")))
            json_object_set_new(policy, "net", json_string("loopback"));
    } else if (policies_allowed(exchange, network)) {
        json_object_update(policy, network);
    } else {
        json_decref(network);
        json_decref(policy);
        return NULL;
    }
    json_decref(network);
    if (!json_object_get(policy, "user"))
        json_object_set_new(policy, "user", json_string("root"));
    if (!json_object_get(policy, "max_output"))
        json_object_set_new(policy, "max_output", json_string(OUTPUT_MAX));
    if (!template_policy && !is_own_system(template_id))
        json_object_set_new(policy, "image", json_string(template_id));
    add_homes(policy);
    if (json_is_object(json_object_get(policy, "env")) || !json_object_get(policy, "env")) {
        json_t *env = json_object();

        if (!json_object_get(policy, "image"))
            json_object_set_new(env, "HOME", json_string(USER_HOME));
        json_object_update(env, json_object_get(policy, "env"));
        json_object_update(env, variables);
        json_object_set_new(policy, "env", env);
    } else {
        add_variables(json_object_get(policy, "env"), variables);
    }
    /* What is not allowed to a client's own policy comes from the operator. */
    if (template_policy)
        exchange->scopes |= TOKEN_HOST | TOKEN_NET;
    return policy;
}

static struct e2b_box *snapshot_of(struct exchange *exchange, const char *id) {
    struct box *box = box_find(exchange->server, exchange->tenant, id);

    return box && box->e2b && box->e2b->snapshot ? box->e2b : NULL;
}

static void create_fork(struct exchange *exchange, struct e2b_box *snapshot) {
    exchange->box = snapshot->box;
    exchange->box->references++;
    exchange->link = engine_link_ref(exchange->box->link);
    become(exchange, &native_fork, json_pack("{s:s, s:i}", "snapshot", snapshot->snapshot, "n", 1),
        on_created_fork);
}

void handle_e2b_create(struct exchange *exchange) {
    static const char *const refused[] = { "volumeMounts", "mcp", "iam" };
    const char *template_id = "base";
    int64_t timeout_s = TIMEOUT_DEFAULT_S;

    if (!exchange_string(exchange, "templateID", &template_id) || !timeout_of(exchange, &timeout_s))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        const json_t *value = json_object_get(exchange->body, refused[i]);

        if (json_object_size(value) || json_array_size(value)) {
            exchange_problem(exchange, 400, "feature_missing",
                "%s: rollbox does not offer this to E2B's clients", refused[i]);
            return;
        }
    }
    if (!is_texts(json_object_get(exchange->body, "metadata")) ||
        !is_texts(json_object_get(exchange->body, "envVars"))) {
        invalid(exchange, "metadata and envVars must be objects of strings");
        return;
    }
    if (!usage_labels_fit(exchange, json_object_get(exchange->body, "metadata")))
        return;
    struct e2b_box *snapshot = snapshot_of(exchange, template_id);
    if (snapshot) {
        create_fork(exchange, snapshot);
        return;
    }
    json_t *policy = policy_of(exchange, template_id);
    if (!policy)
        return;
    json_t *body = json_pack("{s:o, s:O*, s:O}", "policy", policy, "labels",
        json_object_get(exchange->body, "metadata"), "e2b", exchange->body);
    if (json_is_null(json_object_get(body, "labels")))
        json_object_del(body, "labels");
    json_decref(exchange->body);
    exchange->body = body;
    exchange->translate = on_created;
    handle_create(exchange);
}

/* ---- lists ---- */

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);

    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == length && !strncmp(p, word, length))
            return true;
    return false;
}

/* "a=1&b=2", percent-encoded within the parameter. */
static bool has_metadata(const struct e2b_box *e2b, const char *wanted) {
    for (const char *p = wanted; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t length = strcspn(p, "&"), name = strcspn(p, "=&");
        auto_buf struct buf key = BUF_INIT, value = BUF_INIT;

        if (p[name] != '=' || !http_decode(p, name, &key) ||
            !http_decode(p + name + 1, length - name - 1, &value))
            return false;
        const char *have =
            json_string_value(json_object_get(e2b->metadata, key.data ? key.data : ""));
        if (!have || strcmp(have, value.data ? value.data : "") != 0)
            return false;
    }
    return true;
}

struct page {
    long start, limit, seen;
    bool snapshots;
    struct buf metadata, state, box;
    json_t *rows;
};

static void add_row(struct exchange *exchange, struct page *page, const struct e2b_box *e2b) {
    if (e2b->box->tenant != exchange->tenant || page->snapshots != (e2b->snapshot != NULL))
        return;
    if (page->box.data && (!e2b->origin || strcmp(page->box.data, e2b->origin) != 0))
        return;
    if (page->state.data && *page->state.data &&
        !has_word(page->state.data, e2b->is_paused ? "paused" : "running"))
        return;
    if (page->metadata.data && !has_metadata(e2b, page->metadata.data))
        return;
    if (page->seen++ < page->start || page->seen > page->start + page->limit)
        return;
    json_array_append_new(page->rows,
        page->snapshots ? json_pack("{s:s, s:[]}", "snapshotID", e2b->box->name, "names")
                        : row_of(exchange, e2b));
}

static void list(struct exchange *exchange, bool snapshots) {
    const struct http_request *request = http_request_of(exchange->connection);
    struct page page = { .limit = PAGE_MAX, .snapshots = snapshots, .rows = json_array() };
    auto_buf struct buf limit = BUF_INIT, next = BUF_INIT, headers = BUF_INIT;

    (void)http_query(request, "metadata", &page.metadata);
    (void)http_query(request, "state", &page.state);
    if (snapshots)
        (void)http_query(request, "sandboxID", &page.box);
    if (http_query(request, "limit", &limit) && limit.data)
        page.limit = strtol(limit.data, NULL, 10);
    if (http_query(request, "nextToken", &next) && next.data)
        page.start = strtol(next.data, NULL, 10);
    page.limit = MAX(MIN(page.limit, (long)PAGE_MAX), 1L);
    page.start = MAX(page.start, 0L);
    /* The newest first. */
    for (struct list *node = exchange->server->e2b_boxes.prev; node != &exchange->server->e2b_boxes;
         node = node->prev)
        add_row(exchange, &page, container_of(node, struct e2b_box, of_server));
    if (page.seen > page.start + page.limit)
        buf_printf(&headers, "x-next-token: %ld\r\n", page.start + page.limit);
    auto_free char *text = json_dumps(page.rows, JSON_COMPACT);
    json_decref(page.rows);
    buf_done(&page.metadata);
    buf_done(&page.state);
    buf_done(&page.box);
    exchange_answer(exchange, 200, text ? text : "[]", headers.data);
}

void handle_e2b_list(struct exchange *exchange) {
    list(exchange, false);
}

void handle_e2b_snapshots(struct exchange *exchange) {
    list(exchange, true);
}

/* ---- one sandbox ---- */

/* A sandbox that the native API has made gets its part with the first connection. */
static struct e2b_box *of(struct exchange *exchange) {
    if (exchange->box->e2b && exchange->box->e2b->snapshot) {
        exchange_problem(exchange, 404, "not_found", "there is no sandbox \"%s\": it is a snapshot",
            exchange->box->name);
        return NULL;
    }
    if (!exchange->box->e2b && !e2b_box_new(exchange, exchange->box, TIMEOUT_DEFAULT_S)) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    return exchange->box->e2b;
}

static json_t *on_inspected(struct exchange *exchange, int *status, json_t *take_answer) {
    if (*status >= 400 || !exchange->box->e2b)
        return e2b_control_answer(exchange, status, take_answer);
    json_decref(take_answer);
    return row_of(exchange, exchange->box->e2b);
}

void handle_e2b_get(struct exchange *exchange) {
    const struct e2b_box *e2b = of(exchange);

    if (!e2b)
        return;
    if (e2b->is_paused)
        exchange_answer_json(exchange, 200, row_of(exchange, e2b));
    else
        become(exchange, &native_inspect, NULL, on_inspected);
}

void handle_e2b_kill(struct exchange *exchange) {
    become(exchange, &native_close, NULL, e2b_control_answer);
}

void handle_e2b_timeout(struct exchange *exchange) {
    struct e2b_box *e2b = of(exchange);
    int64_t timeout_s = TIMEOUT_DEFAULT_S;

    if (!e2b || !timeout_of(exchange, &timeout_s))
        return;
    e2b_box_end_at(e2b, timeout_s);
    exchange_answer(exchange, 204, "", NULL);
}

static json_t *on_paused(struct exchange *exchange, int *status, json_t *take_answer) {
    struct e2b_box *e2b = exchange->box->e2b;

    if (*status >= 400) {
        if (e2b)
            e2b->is_paused = false;
        return e2b_control_answer(exchange, status, take_answer);
    }
    json_decref(take_answer);
    *status = 204;
    if (e2b)
        loop_timer_clear(e2b->server->loop, &e2b->timer);
    return NULL;
}

void handle_e2b_pause(struct exchange *exchange) {
    struct e2b_box *e2b = of(exchange);

    if (!e2b)
        return;
    if (e2b->is_paused) {
        exchange_problem(exchange, 409, "conflict", "the sandbox is paused already");
        return;
    }
    /* Its commands end for the server, and continue when it wakes: see e2b_process.c. */
    e2b->is_paused = true;
    become(exchange, &native_hibernate, NULL, on_paused);
}

static json_t *on_woken(struct exchange *exchange, int *status, json_t *take_answer) {
    struct e2b_box *e2b = exchange->box->e2b;

    if (*status >= 400 || !e2b)
        return e2b_control_answer(exchange, status, take_answer);
    json_decref(take_answer);
    e2b->is_paused = false;
    e2b_box_connected(exchange, e2b);
    e2b_box_end_at(e2b, timeout_wanted(exchange));
    e2b_processes_woken(e2b);
    *status = 201;
    return describe(exchange, e2b);
}

static void connect_to(struct exchange *exchange, int64_t timeout_s) {
    struct e2b_box *e2b = of(exchange);

    if (!e2b || !timeout_of(exchange, &timeout_s))
        return;
    if (e2b->is_paused) {
        become(exchange, &native_wake, NULL, on_woken);
        return;
    }
    e2b_box_connected(exchange, e2b);
    /* It is only made longer. */
    if (time(NULL) + timeout_s > e2b->ends_s)
        e2b_box_end_at(e2b, timeout_s);
    exchange_answer_json(exchange, 200, describe(exchange, e2b));
}

void handle_e2b_connect(struct exchange *exchange) {
    connect_to(exchange, TIMEOUT_DEFAULT_S);
}

void handle_e2b_resume(struct exchange *exchange) {
    if (exchange->box->e2b && !exchange->box->e2b->is_paused)
        exchange_problem(exchange, 409, "conflict", "the sandbox runs already");
    else
        connect_to(exchange, TIMEOUT_DEFAULT_S);
}

/* ---- forks and snapshots ---- */

static json_t *on_forked(struct exchange *exchange, int *status, json_t *take_answer) {
    struct e2b_box *parent = exchange->box->e2b;
    json_t *rows, *name;
    size_t i;

    if (*status >= 400 || !parent)
        return e2b_control_answer(exchange, status, take_answer);
    rows = json_array();
    json_array_foreach(json_object_get(take_answer, "sandboxes"), i, name) {
        struct e2b_box *e2b =
            adopt_fork(exchange, json_string_value(name), parent, NULL, timeout_wanted(exchange));

        if (e2b) {
            e2b_processes_copy(parent, e2b);
            e2b_code_copy(parent, e2b);
        }
        json_array_append_new(rows,
            e2b ? json_pack("{s:o}", "sandbox", describe(exchange, e2b))
                : json_pack("{s:{s:i, s:s}}", "error", "code", 503, "message", "out of memory"));
    }
    json_decref(take_answer);
    return rows;
}

void handle_e2b_fork(struct exchange *exchange) {
    const struct e2b_box *e2b = of(exchange);
    int64_t timeout_s = 0, n = 1;

    if (!e2b || !timeout_of(exchange, &timeout_s))
        return;
    if (e2b->is_paused) {
        exchange_problem(exchange, 409, "conflict", "the sandbox is paused; connect to it first");
        return;
    }
    if (exchange_integer(exchange, "count", 1, FORKS_MAX, &n))
        become(exchange, &native_fork, json_pack("{s:I}", "n", (json_int_t)n), on_forked);
}

/* The sandbox that keeps the snapshot is there. */
static json_t *on_kept(struct exchange *exchange, int *status, json_t *take_answer) {
    struct e2b_box *parent = exchange->box->e2b;
    const json_t *names = json_object_get(take_answer, "sandboxes");

    if (*status >= 400 || !parent)
        return e2b_control_answer(exchange, status, take_answer);
    struct e2b_box *e2b = adopt_fork(
        exchange, json_string_value(json_array_get(names, 0)), parent, NULL, TIMEOUT_MAX_S);
    if (!e2b)
        return no_memory(status, take_answer);
    loop_timer_clear(e2b->server->loop, &e2b->timer);
    e2b->snapshot = strdup(json_string_value(json_object_get(exchange->body, "snapshot")));
    e2b->origin = strdup(parent->box->name);
    e2b_processes_remember(parent, e2b);
    e2b_code_copy(parent, e2b);
    json_decref(take_answer);
    return json_pack("{s:s, s:[]}", "snapshotID", e2b->box->name, "names");
}

static json_t *on_snapshot(struct exchange *exchange, int *status, json_t *take_answer) {
    json_t *id = json_incref(json_object_get(take_answer, "id"));

    if (*status >= 400 || !id) {
        json_decref(id);
        return e2b_control_answer(exchange, status, take_answer);
    }
    json_decref(take_answer);
    *status = 0;
    become(exchange, &native_fork,
        json_pack("{s:o, s:i, s:s}", "snapshot", id, "n", 1, "processes", "drop"), on_kept);
    return NULL;
}

void handle_e2b_snapshot(struct exchange *exchange) {
    const struct e2b_box *e2b = of(exchange);

    if (!e2b)
        return;
    if (e2b->is_paused)
        exchange_problem(exchange, 409, "conflict", "the sandbox is paused; connect to it first");
    else
        become(exchange, &native_snapshot, NULL, on_snapshot);
}

void handle_e2b_drop(struct exchange *exchange) {
    if (!exchange->box->e2b || !exchange->box->e2b->snapshot)
        exchange_problem(
            exchange, 404, "not_found", "there is no snapshot \"%s\"", exchange->box->name);
    else
        become(exchange, &native_close, NULL, e2b_control_answer);
}

/* ---- the rest ---- */

static json_t *on_stats(struct exchange *exchange, int *status, json_t *take_answer) {
    const json_t *stats = take_answer;

    if (*status >= 400)
        return e2b_control_answer(exchange, status, take_answer);
    double age_s = json_number_value(json_object_get(stats, "age_s"));
    double cpu_ms = json_number_value(json_object_get(stats, "cpu_ms"));
    json_t *row = json_pack("{s:o, s:I, s:i, s:f, s:I, s:I, s:i, s:I, s:I}", "timestamp",
        time_text(time(NULL)), "timestampUnix", (json_int_t)time(NULL), "cpuCount",
        MAX((int)sysconf(_SC_NPROCESSORS_ONLN), 1), "cpuUsedPct",
        age_s > 0 ? cpu_ms / age_s / 10 : 0.0, "memUsed",
        json_integer_value(json_object_get(stats, "memory_bytes")), "memTotal",
        json_integer_value(json_object_get(stats, "max_memory_bytes")), "memCache", 0, "diskUsed",
        json_integer_value(json_object_get(stats, "disk_bytes")), "diskTotal",
        json_integer_value(json_object_get(stats, "max_disk_bytes")));
    json_decref(take_answer);
    return json_pack("[o]", row);
}

void handle_e2b_metrics(struct exchange *exchange) {
    const struct e2b_box *e2b = of(exchange);

    if (!e2b)
        return;
    if (e2b->is_paused)
        exchange_answer(exchange, 200, "[]", NULL);
    else
        become(exchange, &native_stats, NULL, on_stats);
}

/* ---- the network ---- */

static json_t *on_network(struct exchange *exchange, int *status, json_t *take_answer) {
    if (*status >= 400)
        return e2b_control_answer(exchange, status, take_answer);
    const char *first =
        json_string_value(json_array_get(json_object_get(exchange->body, "net_allow_hosts"), 0));
    if (exchange->box->e2b)
        exchange->box->e2b->allows_internet = first && strcmp(first, NOTHING) != 0;
    json_decref(take_answer);
    *status = 204;
    return NULL;
}

/* Left-out settings are reset, as with E2B: so a request without any allows everything. */
void handle_e2b_network(struct exchange *exchange) {
    const struct e2b_box *e2b = of(exchange);

    if (!e2b)
        return;
    json_t *rules = e2b_network_rules(exchange, exchange->body, e2b->has_network);
    if (!rules)
        return;
    if (!e2b->has_network) {
        bool is_wanted = json_array_size(rules) > 0;

        json_decref(rules);
        if (is_wanted)
            exchange_problem(exchange, 400, "feature_missing",
                "the sandbox was created without a network; create it with one, which needs a "
                "token of scope net");
        else
            exchange_answer(exchange, 204, "", NULL);
        return;
    }
    /* The engine wants a rule: no resolver ever has this name. */
    if (!json_array_size(rules))
        json_array_append_new(rules, json_string(NOTHING));
    json_decref(exchange->body);
    exchange->body = json_pack("{s:o}", "net_allow_hosts", rules);
    exchange->translate = on_network;
    handle_net_set(exchange);
}

/* ---- templates ---- */

static json_t *on_alias(struct exchange *exchange, int *status, json_t *take_answer) {
    if (*status >= 400)
        return e2b_control_answer(exchange, status, take_answer);
    json_decref(take_answer);
    return json_pack("{s:s, s:b}", "templateID", exchange->parameters[0], "public", 1);
}

/* A template is the operator's, one of the two of the clients, or an image. Clients add the tag
 * "default", which images of the store may lack. */
void handle_e2b_alias(struct exchange *exchange) {
    char *name = exchange->parameters[0], *tag = strrchr(name, ':');
    int status = 200;

    if (tag && !strcmp(tag, ":default"))
        *tag = '\0';
    if (is_own_system(name) || templates_find(name))
        exchange_answer_json(exchange, 200, on_alias(exchange, &status, NULL));
    else
        become(exchange, &native_image, NULL, on_alias);
}

void handle_e2b_no_builds(struct exchange *exchange) {
    exchange_problem(exchange, 400, "feature_missing",
        "rollbox builds no templates for E2B's clients: make an image of that name with rollbox "
        "image build, or start the server with --template NAME=FILE");
}
