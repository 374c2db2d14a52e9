/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes, and the way of a request to its handler: token, body, sandbox. */
#include <nettle/base64.h>
#include <openapi_source.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/digits.h"
#include "serve/e2b.h"
#include "serve/engines.h"
#include "serve/events.h"
#include "serve/metrics.h"
#include "serve/tenants.h"
#include "serve/traces.h"
#include "serve/trajectories.h"
#include "serve/usage.h"
#include "serve/warm_templates.h"

#define JSON_MAX ((size_t)16 << 20)
#define FILE_MAX ((size_t)64 << 20)
#define CLIENT_GONE 499 /* in the metrics: before the end of the answer */

static void handle_health(struct exchange *exchange);
static void handle_ready(struct exchange *exchange);
static void handle_openapi(struct exchange *exchange);

static const char *const no_keys[] = { NULL };
#define BOX "/v1/sandboxes/{sandbox}"
#define REX "/swerex/{sandbox}"

/* In the order in which they are tried. */
static const struct route routes[] = {
    { "GET", "/healthz", 0, BODY_JSON, no_keys, handle_health },
    { "GET", "/readyz", 0, BODY_JSON, no_keys, handle_ready },
    { "GET", "/metrics", TOKEN_METRICS | TOKEN_ADMIN, BODY_JSON, no_keys, handle_metrics },
    { "GET", "/v1/openapi.json", 0, BODY_JSON, no_keys, handle_openapi },
    { "GET", "/v1/status", TOKEN_ADMIN, BODY_JSON, no_keys, handle_status },
    { "POST", "/v1/leases", TOKEN_RUN, BODY_JSON, lease_keys, handle_lease_create },
    { "PUT", "/v1/leases/{lease}", TOKEN_RUN, BODY_JSON, no_keys, handle_lease_renew },
    { "DELETE", "/v1/leases/{lease}", TOKEN_RUN, BODY_JSON, no_keys, handle_lease_delete },
    { "POST", "/run_code", TOKEN_RUN, BODY_JSON, NULL, handle_fusion_run },
    { "POST", "/run_jupyter", TOKEN_RUN, BODY_JSON, NULL, handle_fusion_cells },
    { "GET", "/v1/ping", 0, BODY_JSON, no_keys, handle_fusion_ping },
    { "POST", "/mcp", TOKEN_RUN, BODY_TEXT, no_keys, handle_mcp },
    { "DELETE", "/mcp", TOKEN_RUN, BODY_JSON, no_keys, handle_mcp_end },
    { "GET", "/is_alive", TOKEN_RUN, BODY_JSON, no_keys, handle_rex_alive },
    { "POST", "/create_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_create },
    { "POST", "/run_in_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_run },
    { "POST", "/close_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_close_session },
    { "POST", "/execute", TOKEN_RUN, BODY_JSON, NULL, handle_rex_execute },
    { "POST", "/read_file", TOKEN_RUN, BODY_JSON, NULL, handle_rex_read },
    { "POST", "/write_file", TOKEN_RUN, BODY_JSON, NULL, handle_rex_write },
    { "POST", "/upload", TOKEN_RUN, BODY_BYTES, no_keys, handle_rex_upload },
    { "POST", "/close", TOKEN_RUN, BODY_JSON, NULL, handle_rex_close },
    { "GET", REX "/is_alive", TOKEN_RUN, BODY_JSON, no_keys, handle_rex_alive },
    { "POST", REX "/create_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_create },
    { "POST", REX "/run_in_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_run },
    { "POST", REX "/close_session", TOKEN_RUN, BODY_JSON, NULL, handle_rex_close_session },
    { "POST", REX "/execute", TOKEN_RUN, BODY_JSON, NULL, handle_rex_execute },
    { "POST", REX "/read_file", TOKEN_RUN, BODY_JSON, NULL, handle_rex_read },
    { "POST", REX "/write_file", TOKEN_RUN, BODY_JSON, NULL, handle_rex_write },
    { "POST", REX "/upload", TOKEN_RUN, BODY_BYTES, no_keys, handle_rex_upload },
    { "POST", REX "/close", TOKEN_RUN, BODY_JSON, NULL, handle_rex_close },
    { "GET", "/v1/images", TOKEN_RUN, BODY_JSON, no_keys, handle_images },
    { "POST", "/v1/images", TOKEN_HOST, BODY_JSON, image_keys, handle_image_pull },
    { "GET", "/v1/images/{image...}", TOKEN_RUN, BODY_JSON, no_keys, handle_image },
    { "DELETE", "/v1/images/{image...}", TOKEN_HOST, BODY_JSON, no_keys, handle_image_delete },
    { "GET", "/v1/volumes", TOKEN_HOST, BODY_JSON, no_keys, handle_volumes },
    { "POST", "/v1/volumes", TOKEN_HOST, BODY_JSON, volume_keys, handle_volume_create },
    { "GET", "/v1/volumes/{volume}", TOKEN_HOST, BODY_JSON, no_keys, handle_volume },
    { "DELETE", "/v1/volumes/{volume}", TOKEN_HOST, BODY_JSON, no_keys, handle_volume_delete },
    { "POST", "/v1/imports", TOKEN_HOST, BODY_STREAM, no_keys, handle_import },
    { "POST", "/v1/policies", TOKEN_RUN, BODY_JSON, NULL, handle_policy },
    { "POST", "/v1/runs", TOKEN_RUN, BODY_JSON, run_keys, handle_run },
    { "GET", "/v1/runs/{run}", TOKEN_RUN, BODY_JSON, no_keys, handle_run_get },
    { "DELETE", "/v1/runs/{run}", TOKEN_RUN, BODY_JSON, no_keys, handle_run_delete },
    { "GET", "/v1/runs/{run}/output", TOKEN_RUN, BODY_JSON, no_keys, handle_run_output },
    { "GET", "/v1/quota", TOKEN_RUN, BODY_JSON, no_keys, handle_quota },
    { "GET", "/v1/usage", TOKEN_RUN, BODY_JSON, no_keys, handle_usage },
    { "GET", "/v1/events", TOKEN_RUN, BODY_JSON, no_keys, handle_events },
    { "POST", "/v1/batches", TOKEN_RUN, BODY_STREAM, no_keys, handle_batch },
    { "GET", "/v1/templates", TOKEN_RUN, BODY_JSON, no_keys, handle_templates },
    { "POST", "/v1/templates", TOKEN_RUN, BODY_JSON, template_keys, handle_template_create },
    { "GET", "/v1/templates/{template}", TOKEN_RUN, BODY_JSON, no_keys, handle_template },
    { "DELETE", "/v1/templates/{template}", TOKEN_RUN, BODY_JSON, no_keys, handle_template_delete },
    { "GET", "/v1/trajectories", TOKEN_RUN, BODY_JSON, no_keys, handle_trajectories },
    { "GET", "/v1/trajectories/{trajectory}", TOKEN_RUN, BODY_JSON, no_keys, handle_trajectory },
    { "DELETE", "/v1/trajectories/{trajectory}", TOKEN_RUN, BODY_JSON, no_keys,
        handle_trajectory_delete },
    { "GET", "/v1/trees", TOKEN_RUN, BODY_JSON, no_keys, handle_trees },
    { "GET", "/v1/trees/{tree}", TOKEN_RUN, BODY_JSON, no_keys, handle_tree },
    { "POST", "/v1/forks", TOKEN_RUN, BODY_JSON, fork_group_keys, handle_fork_group },
    { "POST", "/v1/sandboxes", TOKEN_RUN, BODY_JSON, create_keys, handle_create },
    { "GET", "/v1/sandboxes", TOKEN_RUN, BODY_JSON, no_keys, handle_list },
    { "GET", BOX, TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "PATCH", BOX, TOKEN_RUN, BODY_JSON, label_keys, handle_label },
    { "DELETE", BOX, TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "GET", BOX "/processes", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "GET", BOX "/stats", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "GET", BOX "/network-log", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "POST", BOX "/pause", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "POST", BOX "/resume", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "POST", BOX "/hibernate", TOKEN_RUN, BODY_JSON, state_keys, handle_call },
    { "POST", BOX "/wake", TOKEN_RUN, BODY_JSON, state_keys, handle_call },
    { "POST", BOX "/snapshots", TOKEN_RUN, BODY_JSON, snapshot_keys, handle_call },
    { "GET", BOX "/snapshots", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "GET", BOX "/snapshots/{snapshot}", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "DELETE", BOX "/snapshots/{snapshot}", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "POST", BOX "/fork", TOKEN_RUN, BODY_JSON, fork_keys, handle_fork },
    { "POST", BOX "/reset", TOKEN_RUN, BODY_JSON, reset_keys, handle_call },
    { "GET", BOX "/diff", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "POST", BOX "/grade", TOKEN_RUN, BODY_JSON, grade_keys, handle_grade },
    { "POST", BOX "/execs", TOKEN_RUN, BODY_JSON, exec_keys, handle_exec },
    { "GET", BOX "/execs", TOKEN_RUN, BODY_JSON, no_keys, handle_call },
    { "PUT", BOX "/execs/{exec}", TOKEN_RUN, BODY_JSON, exec_keys, handle_exec_put },
    { "GET", BOX "/execs/{exec}", TOKEN_RUN, BODY_JSON, no_keys, handle_exec_get },
    { "GET", BOX "/execs/{exec}/stream", TOKEN_RUN, BODY_JSON, no_keys, handle_exec_stream },
    { "GET", BOX "/execs/{exec}/output", TOKEN_RUN, BODY_JSON, no_keys, handle_exec_output },
    { "GET", BOX "/execs/{exec}/tty", TOKEN_RUN, BODY_JSON, no_keys, handle_terminal },
    { "GET", BOX "/channel", TOKEN_RUN, BODY_JSON, no_keys, handle_channel },
    { "POST", BOX "/execs/{exec}/signal", TOKEN_RUN, BODY_JSON, signal_keys, handle_call },
    { "POST", BOX "/execs/{exec}/stdin", TOKEN_RUN, BODY_BYTES, no_keys, handle_stdin },
    { "POST", BOX "/execs/{exec}/resize", TOKEN_RUN, BODY_JSON, resize_keys, handle_call },
    { "POST", BOX "/signal", TOKEN_RUN, BODY_JSON, signal_keys, handle_call },
    { "POST", BOX "/commit", TOKEN_HOST, BODY_JSON, commit_keys, handle_commit },
    { "POST", BOX "/network", TOKEN_RUN, BODY_JSON, NULL, handle_net_set },
    { "GET", BOX "/execs/{exec}/network", TOKEN_RUN, BODY_JSON, no_keys, handle_net_tally },
    { "POST", BOX "/notes", TOKEN_RUN, BODY_JSON, note_keys, handle_note },
    { "GET", BOX "/export", TOKEN_RUN, BODY_JSON, no_keys, handle_export },
    { "GET", BOX "/files/{path...}", TOKEN_RUN, BODY_JSON, no_keys, handle_file_get },
    { "PUT", BOX "/files/{path...}", TOKEN_RUN, BODY_FILE, no_keys, handle_file_put },
    { "GET", BOX "/tree/{path...}", TOKEN_RUN, BODY_JSON, no_keys, handle_tree_get },
    { "PUT", BOX "/tree/{path...}", TOKEN_RUN, BODY_STREAM, no_keys, handle_tree_put },
    { "DELETE", BOX "/files/{path...}", TOKEN_RUN, BODY_JSON, no_keys, handle_file_delete },
};

static const char *code_of_status(int status) {
    switch (status) {
    case 401:
        return "token_invalid";
    case 403:
        return "scope_missing";
    case 404:
        return "not_found";
    case 413:
    case 431:
        return "too_large";
    case 503:
        return "resource_exhausted";
    default:
        return "request_invalid";
    }
}

static void write_problem(struct buf *to, int status, const char *detail) {
    json_t *problem = exchange_problem_json(status, code_of_status(status), "request", detail, "");
    auto_free char *text = json_dumps(problem, JSON_COMPACT);

    metrics_malformed(status);
    buf_add_text(to, text ? text : "{}");
    json_decref(problem);
}

/* ---- routes ---- */

/* Whether the path is of this form. Its parameters are decoded. */
static bool match(const char *pattern, const char *path, char *parameters[EXCHANGE_PARAMETERS]) {
    size_t n = 0;

    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t name = strcspn(pattern, "}");
        bool is_rest = name > 3 && !strncmp(pattern + name - 3, "...", 3);
        size_t length = is_rest ? strlen(path) : strcspn(path, "/");
        struct buf value = BUF_INIT;

        if (!length || n == EXCHANGE_PARAMETERS || !http_decode(path, length, &value)) {
            buf_done(&value);
            return false;
        }
        parameters[n++] = strdup(value.data);
        buf_done(&value);
        if (!parameters[n - 1])
            return false;
        pattern += name + 1;
        path += length;
    }
    return !*path;
}

static void forget_parameters(char *parameters[EXCHANGE_PARAMETERS]) {
    for (size_t i = 0; i < EXCHANGE_PARAMETERS; i++) {
        free(parameters[i]);
        parameters[i] = NULL;
    }
}

static const struct route *find_route(const struct http_request *request, const struct route *table,
    size_t n, char *parameters[EXCHANGE_PARAMETERS], bool *ret_path_known) {
    const char *method = strcmp(request->method, "HEAD") ? request->method : "GET";

    *ret_path_known = false;
    for (size_t i = 0; i < n; i++) {
        if (match(table[i].path, request->path, parameters)) {
            *ret_path_known = true;
            if (!strcmp(table[i].method, method))
                return &table[i];
        }
        forget_parameters(parameters);
    }
    return NULL;
}

/* "Bearer " and the password of Basic authentication: clients that know only an address put the
 * token into it. */
static void take_password(const char *text, struct buf *to) {
    struct base64_decode_ctx context;
    uint8_t bytes[256];
    size_t n = sizeof bytes;

    if (BASE64_DECODE_LENGTH(strlen(text)) > sizeof bytes)
        return;
    base64_decode_init(&context);
    if (!base64_decode_update(&context, &n, bytes, strlen(text), text) ||
        !base64_decode_final(&context))
        return;
    const uint8_t *colon = memchr(bytes, ':', n);
    if (!colon)
        return;
    buf_add_text(to, "Bearer ");
    buf_add(to, colon + 1, n - (size_t)(colon + 1 - bytes));
}

struct certificate_search {
    struct tokens *tokens;
    const struct token *found;
};

static bool look_for_certificate(const char *name, void *data) {
    struct certificate_search *search = data;

    search->found = tokens_of_certificate(search->tokens, name);
    return search->found != NULL;
}

/* The row of the client's certificate. A token in the request is worth more: it says which of the
 * client's tenants is meant. */
static const struct token *certificate_token(const struct exchange *exchange) {
    struct tls_session *session = http_tls(exchange->connection);
    struct certificate_search search = { .tokens = &exchange->server->tokens };

    if (session)
        (void)tls_peer_is(session, look_for_certificate, &search);
    return search.found;
}

/* The tenant. Peers of the Unix socket that are the server's own user need no token. `given` is
 * what counts in place of the request's Authorization, or NULL. */
static int authenticate(struct exchange *exchange, const char *given) {
    const struct http_request *request = http_request_of(exchange->connection);
    const char *header = given ? given : http_header(request, "authorization");
    const struct token *token = NULL;
    auto_buf struct buf bearer = BUF_INIT;

    if (header && !strncasecmp(header, "Basic ", 6)) {
        take_password(header + 6, &bearer);
        header = bearer.data;
    }
    if (!header) {
        const char *key = http_header(request, "x-api-key");

        if (key) {
            buf_printf(&bearer, "Bearer %s", key);
            header = bearer.data;
        }
    }
    if (!header && http_is_own_user(exchange->connection)) {
        exchange->scopes = TOKEN_EVERYTHING;
        exchange->quotas = quota_unlimited();
        exchange->tenant = tenant_of(exchange->server, "local");
    } else {
        token =
            header ? tokens_find(&exchange->server->tokens, header) : certificate_token(exchange);
        if (!token)
            return 401;
        exchange->scopes = token->scopes;
        exchange->quotas = token->quotas;
        memcpy(exchange->tokened.id, token->id, sizeof exchange->tokened.id);
        exchange->tokened.expires = token->expires;
        list_add_tail(&exchange->server->tokened, &exchange->tokened.of_server);
        exchange->tenant = tenant_of(exchange->server, token->tenant);
    }
    if (!exchange->tenant)
        return 503;
    const struct tenant_rules *rules =
        tokens_tenant(&exchange->server->tokens, exchange->tenant->name);
    exchange->quotas =
        quota_least(&exchange->quotas, rules ? &rules->quotas : &exchange->server->tokens.defaults);
    return exchange->scopes & exchange->route->scope ? 0 : 403;
}

static void refuse(struct exchange *exchange, int status, const char *detail) {
    exchange_problem(exchange, status, code_of_status(status), "%s", detail);
}

static void refuse_scope(struct exchange *exchange) {
    exchange_problem(exchange, 403, code_of_status(403),
        "the token needs the scope \"%s\" for this request (rollbox token create --scope %s)",
        tokens_scope_name(exchange->route->scope), tokens_scope_name(exchange->route->scope));
}

/* The path exists, but not for this method. */
static void refuse_method(struct exchange *exchange, const struct http_request *request) {
    size_t n_e2b;
    const struct route *e2b = e2b_routes(exchange->port, &n_e2b);
    auto_buf struct buf allowed = BUF_INIT;

    for (size_t i = 0; i < ARRAY_SIZE(routes) + n_e2b; i++) {
        const struct route *route =
            i < ARRAY_SIZE(routes) ? &routes[i] : &e2b[i - ARRAY_SIZE(routes)];

        if (match(route->path, request->path, exchange->parameters) &&
            !(allowed.length && strstr(allowed.data, route->method))) {
            buf_add_text(&allowed, allowed.length ? ", " : "");
            buf_add_text(&allowed, route->method);
        }
        forget_parameters(exchange->parameters);
    }
    exchange_no_method(exchange, allowed.length ? allowed.data : "");
}

/* Of a path that does not exist. */
static const struct route any_route = { "", "", TOKEN_EVERYTHING, BODY_JSON, no_keys, NULL };

static const struct route *find_e2b_route(
    struct exchange *exchange, const struct http_request *request, bool *ret_path_known) {
    size_t n;
    const struct route *table = e2b_routes(exchange->port, &n);
    const struct route *route = find_route(request, table, n, exchange->parameters, ret_path_known);

    if (!route && exchange->port && exchange->port != E2B_ENVD_PORT &&
        exchange->port != E2B_CODE_PORT)
        route = table;
    if (route || exchange->port)
        exchange->translate = e2b_translator(route, exchange->port);
    return route;
}

/* Says how the route's body comes. */
static void take_body_of(struct exchange *exchange, size_t *ret_body_max) {
    enum route_body body = exchange->route->body;
    uint64_t size;

    *ret_body_max = body == BODY_BYTES || body == BODY_FILE ? FILE_MAX : JSON_MAX;
    if (body == BODY_STREAM ||
        (body == BODY_FILE && transfer_is_streamed(http_request_of(exchange->connection), &size)))
        http_stream_body(exchange->connection);
}

/* The head of a request to a sandbox's port (e2b.h). */
static int on_sandbox_head(struct exchange *exchange, const char *id, size_t *ret_body_max) {
    struct http_connection *connection = exchange->connection;
    struct http_request *request = http_request_of(connection);
    const char *header = NULL;
    bool path_known = false;

    /* Port 0 is the control plane's table, which a sandbox's token or name must never open. */
    if (!exchange->port || exchange->port > UINT16_MAX) {
        exchange->route = &any_route;
        request->keep_alive = false;
        http_close_after(connection);
        refuse(exchange, 400, "E2b-Sandbox-Port must be a port, from 1 to 65535");
        return 400;
    }
    exchange->route = find_e2b_route(exchange, request, &path_known);
    int status = 0;
    if (!exchange->route) {
        status = path_known ? 405 : 404;
        exchange->route = &any_route;
    }
    int found = e2b_find(exchange, exchange->port, id, &header);
    if (found || status) {
        request->keep_alive = false;
        http_close_after(connection);
        if (found)
            e2b_refuse(exchange, found);
        else
            refuse(exchange, status, "E2B's daemon has no such path");
        return found ? found : status;
    }
    status = authenticate(exchange, header);
    if (status) {
        request->keep_alive = false;
        http_close_after(connection);
        refuse(exchange, status, "the token with which the sandbox was made is not valid any more");
        return status;
    }
    take_body_of(exchange, ret_body_max);
    return 0;
}

/* NULL: out of memory, and answered. */
static struct exchange *exchange_new(struct http_connection *connection) {
    struct exchange *exchange = calloc(1, sizeof *exchange);

    if (!exchange) {
        http_reply(connection, 503, NULL, NULL, "", 0);
        return NULL;
    }
    exchange->server = http_server_of(connection)->userdata;
    exchange->server->n_exchanges++;
    exchange->connection = connection;
    list_init(&exchange->of_operation);
    list_init(&exchange->of_engine);
    list_init(&exchange->tokened.of_server);
    *http_data(connection) = exchange;
    digits_random(8, exchange->id);
    return exchange;
}

static int on_head(struct http_connection *connection, size_t *ret_body_max) {
    struct http_request *request = http_request_of(connection);
    struct exchange *exchange = exchange_new(connection);
    auto_buf struct buf sandbox = BUF_INIT;
    bool path_known;

    if (!exchange)
        return 503;
    exchange->seen.is_request = true;
    exchange->seen.begun_ns = clock_now_ns();
    if (e2b_is_for_sandbox(request, &exchange->port, &sandbox))
        return on_sandbox_head(exchange, sandbox.data ? sandbox.data : "", ret_body_max);
    exchange->route =
        find_route(request, routes, ARRAY_SIZE(routes), exchange->parameters, &path_known);
    if (!exchange->route && !path_known)
        exchange->route = find_e2b_route(exchange, request, &path_known);
    int status = path_known ? 405 : 404;
    if (exchange->route)
        status = exchange->route->scope ? authenticate(exchange, NULL) : 0;
    /* A path that does not exist is named to clients with a token alone. */
    if (!exchange->route) {
        exchange->route = &any_route;
        int known = authenticate(exchange, NULL);
        if (known == 401)
            status = 401;
    }
    take_body_of(exchange, ret_body_max);
    if (!status)
        return 0;
    /* The next bytes on the connection might be a body. */
    request->keep_alive = false;
    http_close_after(connection);
    if (status == 403)
        refuse_scope(exchange);
    else if (status == 405)
        refuse_method(exchange, request);
    else
        refuse(exchange, status,
            status == 401 ? "a valid token is needed (Authorization: Bearer TOKEN), or a client "
                            "certificate that the server's tokens name"
                          : "there is no such path; GET /v1/openapi.json lists them");
    return status;
}

/* False: the answer is given. */
static bool read_body(struct exchange *exchange, struct http_request *request) {
    json_error_t problem;

    if (exchange->route->body != BODY_JSON)
        return true;
    if (!request->body.length) {
        exchange->body = json_object();
        return true;
    }
    exchange->body = json_loadb(request->body.data, request->body.length,
        JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
    if (!json_is_object(exchange->body)) {
        exchange_problem(exchange, exchange->route->keys ? 400 : 422, "request_invalid",
            "the body is not a JSON object: line %d: %.160s", exchange->body ? 1 : problem.line,
            exchange->body ? "another type" : problem.text);
        return false;
    }
    return !exchange->route->keys || exchange_knows(exchange, exchange->route->keys, no_keys);
}

/* A request to a sandbox wakes it, but for those that end it or tell of it. One that is counted
 * wrongly is corrected by the next measurement (usage.c). */
static bool may_wake(const struct route *route) {
    static const char *const quiet[] = { "/stats", "/snapshots", "/execs", "/hibernate", "/notes",
        "/network-log" };
    const char *last = strrchr(route->path, '/');

    /* Of the sandbox itself: its description, its labels, its end. */
    if (!strcmp(last, "/{sandbox}"))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(quiet); i++)
        if (!strcmp(last, quiet[i]) && (strcmp(route->method, "POST") || i > 2))
            return false;
    return true;
}

static bool look_up_box(struct exchange *exchange) {
    const char *path = exchange->route->path;

    /* SWE-ReX's requests make the sandbox that they name. */
    if (exchange->box || !strstr(path, "{sandbox}") || strncmp(path, REX, strlen(REX)) == 0)
        return true;
    exchange->box = box_find(exchange->server, exchange->tenant, exchange->parameters[0]);
    if (exchange->box) {
        exchange->box->references++;
        exchange->link = engine_link_ref(exchange->box->link);
        return true;
    }
    exchange_problem(
        exchange, 404, "not_found", "there is no sandbox \"%.64s\"", exchange->parameters[0]);
    return false;
}

/* False: the answer is given. */
static bool find_box(struct exchange *exchange) {
    return look_up_box(exchange) &&
           (!exchange->box || !may_wake(exchange->route) || admission_awake(exchange));
}

/* SWE-ReX's clients name their requests by X-Request-ID. */
static bool is_of_swerex(const struct route *route) {
    static void (*const handlers[])(struct exchange * exchange) = { handle_rex_create,
        handle_rex_run, handle_rex_close_session, handle_rex_execute, handle_rex_read,
        handle_rex_write, handle_rex_upload, handle_rex_close };

    for (size_t i = 0; i < ARRAY_SIZE(handlers); i++)
        if (route->handle == handlers[i])
            return true;
    return false;
}

/* Whether the request continues. */
static bool begin_operation(struct exchange *exchange, const char *key, bool is_run) {
    enum operation_start start = operation_begin(exchange, key, is_run);

    if (start == OPERATION_WAITS && is_run)
        run_wait_again(exchange, key);
    return start == OPERATION_BEGUN;
}

static void on_request(struct http_connection *connection) {
    struct exchange *exchange = *http_data(connection);
    struct http_request *request = http_request_of(connection);
    const char *key = http_header(request, "idempotency-key");
    auto_buf struct buf own = BUF_INIT;

    if (!exchange)
        return;
    exchange->has_begun = true;
    traces_request(exchange);
    if (exchange->server->draining && exchange->route->scope &&
        strcmp(exchange->route->method, "GET") && strcmp(exchange->route->method, "DELETE")) {
        exchange_problem(exchange, 503, "draining",
            "the server is shutting down; send the request to another one");
        return;
    }
    if (!find_box(exchange))
        return;
    /* A command's id is its key: another request under the same id is refused, and not answered
     * with the result of the first. */
    if (exchange->route->handle == handle_exec_put) {
        buf_printf(&own, "exec %llu %s", (unsigned long long)exchange->box->number,
            exchange->parameters[1]);
        key = own.data;
    } else if (is_of_swerex(exchange->route) && http_header(request, "x-request-id")) {
        buf_printf(&own, "swerex %s", http_header(request, "x-request-id"));
        key = own.data;
    } else if (strcmp(exchange->route->method, "POST") != 0 ||
               exchange->route->body == BODY_STREAM) {
        key = NULL;
    } else if (key && exchange->port) {
        /* The path of such a request does not name the sandbox. */
        buf_printf(&own, "port %u %llu %s", exchange->port,
            (unsigned long long)exchange->box->number, key);
        key = own.data;
    }
    /* The body of a run may have its key. */
    const bool is_run = exchange->route->handle == handle_run;
    if (is_run && !(read_body(exchange, request) && run_key(exchange, &key)))
        return;
    if (key && exchange->tenant && !begin_operation(exchange, key, is_run))
        return;
    if (!is_run && !read_body(exchange, request))
        return;
    if (exchange->body)
        buf_done(&request->body);
    exchange->route->handle(exchange);
}

struct http_connection *router_inner(const struct exchange *parent, unsigned scopes,
    const struct inner_request *request, http_inner_done *done, void *userdata) {
    struct http_connection *connection = http_inner(&parent->server->http, request->method,
        request->path, request->query ? request->query : "", done, userdata);
    struct exchange *exchange = connection ? exchange_new(connection) : NULL;
    bool path_known;

    if (connection && request->body)
        buf_add(&http_request_of(connection)->body, request->body, request->length);
    if (!exchange)
        return connection;
    exchange->tenant = parent->tenant;
    exchange->scopes = parent->scopes & scopes;
    exchange->quotas = parent->quotas;
    exchange->route = find_route(
        http_request_of(connection), routes, ARRAY_SIZE(routes), exchange->parameters, &path_known);
    if (!exchange->route || exchange->route->body == BODY_STREAM) {
        static const struct route none = { "", "", 0, BODY_JSON, no_keys, NULL };

        exchange->route = &none;
        refuse(exchange, 404, "there is no such path");
    } else if (exchange->route->scope && !(exchange->scopes & exchange->route->scope)) {
        refuse_scope(exchange);
    } else {
        on_request(connection);
    }
    return connection;
}

static void on_gone(struct http_connection *connection) {
    struct exchange *exchange = *http_data(connection);

    if (!exchange)
        return;
    *http_data(connection) = NULL;
    exchange->connection = NULL;
    if (!exchange->seen.status)
        exchange->seen.status = CLIENT_GONE;
    if (!exchange->has_begun || !list_empty(&exchange->of_operation))
        exchange_done(exchange);
    else if (exchange->gone)
        exchange->gone(exchange);
}

static void on_writable(struct http_connection *connection) {
    struct exchange *exchange = *http_data(connection);

    if (exchange && exchange->writable)
        exchange->writable(exchange);
    else if (exchange && exchange->data)
        stream_writable(exchange);
}

static void on_body(
    struct http_connection *connection, const char *data, size_t length, bool is_end) {
    struct exchange *exchange = *http_data(connection);

    if (exchange && exchange->input)
        exchange->input(exchange, data, length, is_end);
}

const struct http_user router_user = {
    .head = on_head,
    .request = on_request,
    .gone = on_gone,
    .writable = on_writable,
    .body = on_body,
    .problem = write_problem,
};

/* ---- small handlers ---- */

static void handle_health(struct exchange *exchange) {
    exchange_answer(exchange, 200, "{\"status\":\"ok\"}", NULL);
}

static void handle_ready(struct exchange *exchange) {
    if (exchange->server->draining)
        exchange_problem(exchange, 503, "draining", "the server takes no new work");
    else if (!engines_ready(exchange->server))
        exchange_problem(exchange, 503, "engine_lost", "the server has no engine at the moment");
    else if (exchange->server->tokens.fault[0])
        exchange_answer(exchange, 200,
            "{\"status\":\"ready\",\"tokens\":\"the tokens file is not valid; the tokens that were "
            "read before stay valid\"}",
            NULL);
    else
        exchange_answer(exchange, 200, "{\"status\":\"ready\"}", NULL);
}

static void handle_openapi(struct exchange *exchange) {
    exchange_answer(exchange, 200, openapi_source, NULL);
}
