/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Model Context Protocol over streamable HTTP: POST and DELETE /mcp. `rollbox mcp` gives the
 * same to clients that speak it over standard input and output.
 *
 * Two eras of the protocol are served. In the present one each request stands for itself: it names
 * its version in `_meta` and in headers, which must agree. In the one before, a client begins with
 * "initialize" and gets a session, which is a lease: sandboxes that are created in it end with it.
 *
 * A call of a tool is an inner request to /v1 (router.c), so every rule of /v1 holds for it. Agents
 * are not trusted with the machine: a call never has the scopes "host" and "admin".
 *
 * A client that leaves, or that sends notifications/cancelled, ends its call. A call with a
 * progress token is answered by events, and gets one of progress a second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/mcp_tools.h"
#include "serve/server.h"

#define MODERN "2026-07-28"
#define SESSION_TTL_S (INT64_C(4) * 3600)
#define TOOLS_TTL_MS 3600000
#define PROGRESS_NS INT64_C(1000000000)

enum rpc_code {
    RPC_PARSE = -32700,
    RPC_REQUEST = -32600,
    RPC_METHOD = -32601,
    RPC_PARAMS = -32602,
    RPC_HEADERS = -32020,
    RPC_VERSION = -32022,
    RPC_SESSION = -32001,
    RPC_CANCELLED = -32800,
};

/* Versions that begin with "initialize", newest first. */
static const char *const legacy[] = { "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05" };

#define INSTRUCTIONS                                                                               \
    "Runs programs in sandboxes. Use run for one program in a new sandbox. For work of several "   \
    "steps use create_sandbox, then exec and the file tools with its name, snapshot before a "     \
    "risky step, reset to return, fork to try alternatives, and close_sandbox at the end. A "      \
    "program that fails is a result, not an error."

/* A call of a tool. */
struct mcp_call {
    struct list of_server;
    struct exchange *exchange;
    json_t *message;     /* the request */
    const json_t *id;    /* of it */
    const json_t *token; /* of progress; NULL: none is wanted */
    char session[SERVER_NAME_MAX + 1];
    const struct mcp_tool *tool;
    const json_t *arguments;
    struct http_connection *inner; /* NULL: it has ended */
    struct loop_timer timer;
    unsigned seconds;
    bool is_modern, streams;
};

static struct mcp_call *call_of(const struct exchange *exchange) {
    return exchange->data;
}

static void free_call(void *data) {
    struct mcp_call *call = data;

    loop_timer_clear(call->exchange->server->loop, &call->timer);
    list_remove(&call->of_server);
    if (call->inner)
        http_inner_cancel(TAKE_PTR(call->inner));
    json_decref(call->message);
    free(call);
}

/* ---- answers ---- */

static void write_event(const struct mcp_call *call, json_t *take_message) {
    auto_free char *text = json_dumps(take_message, JSON_COMPACT);
    auto_buf struct buf event = BUF_INIT;

    json_decref(take_message);
    buf_printf(&event, "event: message\ndata: %s\n\n", text ? text : "{}");
    if (!buf_failed(&event))
        (void)http_write(call->exchange->connection, event.data, event.length);
}

/* Answers, and frees the exchange with its call. */
static void send_message(
    struct exchange *exchange, int status, json_t *take_message, const char *headers) {
    const struct mcp_call *call = call_of(exchange);
    struct http_connection *connection = exchange->connection;

    if (call && call->streams && connection) {
        write_event(call, take_message);
        *http_data(connection) = NULL;
        exchange->connection = NULL;
        exchange_done(exchange);
        http_end(connection);
        return;
    }
    auto_free char *text = json_dumps(take_message, JSON_COMPACT);
    json_decref(take_message);
    exchange_answer(exchange, status, text ? text : "{}", headers);
}

static json_t *id_of(const struct exchange *exchange) {
    const struct mcp_call *call = call_of(exchange);

    return call && call->id ? json_incref((json_t *)call->id) : json_null();
}

static void send_error_with(struct exchange *exchange, int status, enum rpc_code code,
    const char *text, json_t *take_data) {
    json_t *error = json_pack("{s:i, s:s}", "code", (int)code, "message", text);

    if (take_data)
        json_object_set_new(error, "data", take_data);
    send_message(exchange, status,
        json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_of(exchange), "error", error),
        NULL);
}

static void send_error(
    struct exchange *exchange, int status, enum rpc_code code, const char *text) {
    send_error_with(exchange, status, code, text, NULL);
}

static void send_result(struct exchange *exchange, json_t *take_result, const char *headers) {
    if (call_of(exchange)->is_modern)
        json_object_set_new(take_result, "resultType", json_string("complete"));
    send_message(exchange, 200,
        json_pack(
            "{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_of(exchange), "result", take_result),
        headers);
}

/* ---- the client's version ---- */

static const char *header(const struct exchange *exchange, const char *name) {
    return http_header(http_request_of(exchange->connection), name);
}

static const char *member(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

/* A page of another site, or of a service in a sandbox, may not use the rights of a browser's
 * user. */
static bool origin_ok(const struct exchange *exchange) {
    const char *origin = header(exchange, "origin");
    const char *host = origin ? strstr(origin, "://") : NULL;
    auto_buf struct buf id = BUF_INIT;
    unsigned port;

    return !origin || (host && !http_sandbox_host(host + 3, &port, &id) &&
                          http_host_allowed(host + 3, exchange->server->http.hosts));
}

static bool is_legacy(const char *version) {
    for (size_t i = 0; version && i < ARRAY_SIZE(legacy); i++)
        if (!strcmp(version, legacy[i]))
            return true;
    return false;
}

/* The headers of a request of the present era say the same as its body. */
static const char *headers_fault(const struct exchange *exchange, const json_t *message) {
    const char *version = header(exchange, "mcp-protocol-version");
    const char *method = header(exchange, "mcp-method"), *name = header(exchange, "mcp-name");
    const json_t *params = json_object_get(message, "params");
    const char *told =
        member(json_object_get(params, "_meta"), "io.modelcontextprotocol/protocolVersion");

    if (!version || strcmp(version, told) != 0)
        return "the header MCP-Protocol-Version is not that of _meta";
    if (!method || strcmp(method, member(message, "method")) != 0)
        return "the header Mcp-Method is not the method of the body";
    if (!strcmp(method, "tools/call") &&
        (!name || !member(params, "name") || strcmp(name, member(params, "name")) != 0))
        return "the header Mcp-Name is not the tool of the body";
    return NULL;
}

/* False: the answer is given. */
static bool check_modern(struct exchange *exchange, const json_t *message) {
    const json_t *meta = json_object_get(json_object_get(message, "params"), "_meta");
    const char *version = member(meta, "io.modelcontextprotocol/protocolVersion");
    const char *fault;

    if (!version ||
        !json_is_object(json_object_get(meta, "io.modelcontextprotocol/clientCapabilities"))) {
        send_error(exchange, 400, RPC_PARAMS,
            "params._meta must have io.modelcontextprotocol/protocolVersion and "
            "io.modelcontextprotocol/clientCapabilities");
        return false;
    }
    fault = headers_fault(exchange, message);
    if (fault) {
        send_error(exchange, 400, RPC_HEADERS, fault);
        return false;
    }
    if (strcmp(version, MODERN) != 0) {
        send_error_with(exchange, 400, RPC_VERSION, "this version of the protocol is not served",
            json_pack("{s:s, s:[s]}", "requested", version, "supported", MODERN));
        return false;
    }
    return true;
}

/* False: the answer is given. */
static bool check_session(struct exchange *exchange) {
    struct mcp_call *call = call_of(exchange);
    const char *session = header(exchange, "mcp-session-id");

    if (!session)
        return true;
    if (!lease_touch(exchange->server, exchange->tenant, session)) {
        send_error(exchange, 404, RPC_SESSION, "there is no such session; begin a new one");
        return false;
    }
    (void)snprintf(call->session, sizeof call->session, "%s", session);
    return true;
}

/* ---- methods ---- */

static json_t *server_info(void) {
    return json_pack(
        "{s:s, s:s, s:s}", "name", "rollbox", "title", "rollbox", "version", rollbox_version());
}

static json_t *capabilities(void) {
    return json_pack("{s:{s:b}}", "tools", "listChanged", 0);
}

static void initialize(struct exchange *exchange, const json_t *params) {
    const char *asked = member(params, "protocolVersion");
    char session[SERVER_NAME_MAX + 1];
    auto_buf struct buf lines = BUF_INIT;

    if (lease_open(exchange->server, exchange->tenant, SESSION_TTL_S, session) < 0) {
        send_error(exchange, 429, RPC_SESSION, "the tenant has too many sessions and leases");
        return;
    }
    buf_printf(&lines, "Mcp-Session-Id: %s\r\n", session);
    send_result(exchange,
        json_pack("{s:s, s:o, s:o, s:s}", "protocolVersion", is_legacy(asked) ? asked : legacy[0],
            "capabilities", capabilities(), "serverInfo", server_info(), "instructions",
            INSTRUCTIONS),
        lines.data);
}

static void discover(struct exchange *exchange) {
    send_result(exchange,
        json_pack("{s:[s], s:o, s:o, s:s, s:i, s:s}", "supportedVersions", MODERN, "capabilities",
            capabilities(), "serverInfo", server_info(), "instructions", INSTRUCTIONS, "ttlMs",
            TOOLS_TTL_MS, "cacheScope", "public"),
        NULL);
}

static void list_tools(struct exchange *exchange) {
    send_result(exchange,
        json_pack(
            "{s:O, s:i, s:s}", "tools", mcp_tools(), "ttlMs", TOOLS_TTL_MS, "cacheScope", "public"),
        NULL);
}

static void on_answer(void *userdata, int status, const char *type, struct buf *body) {
    struct mcp_call *call = userdata;
    struct exchange *exchange = call->exchange;

    call->inner = NULL;
    if (call->session[0])
        (void)lease_touch(exchange->server, exchange->tenant, call->session);
    send_result(exchange, mcp_tool_result(call->tool, call->arguments, status, type, body), NULL);
}

static void on_progress(struct loop_timer *timer) {
    struct mcp_call *call = container_of(timer, struct mcp_call, timer);
    char text[48];

    call->seconds++;
    (void)snprintf(text, sizeof text, "running for %u s", call->seconds);
    write_event(call, json_pack("{s:s, s:s, s:{s:O, s:i, s:s}}", "jsonrpc", "2.0", "method",
                          "notifications/progress", "params", "progressToken", call->token,
                          "progress", (int)call->seconds, "message", text));
    (void)loop_timer_set(
        call->exchange->server->loop, timer, clock_now_ns() + PROGRESS_NS, on_progress);
}

static void begin_events(struct mcp_call *call) {
    struct exchange *exchange = call->exchange;

    call->streams = true;
    http_begin(exchange->connection, 200, "text/event-stream", "X-Accel-Buffering: no\r\n");
    (void)loop_timer_set(
        exchange->server->loop, &call->timer, clock_now_ns() + PROGRESS_NS, on_progress);
}

/* The scopes of a call. A local user has every scope, and is not asked for each; its agent gets the
 * least. */
static unsigned scopes_of(const struct exchange *exchange) {
    bool has_token = header(exchange, "authorization") || http_tls(exchange->connection);

    return has_token ? TOKEN_RUN | TOKEN_NET : TOKEN_RUN;
}

static void call_tool(struct exchange *exchange, const json_t *params) {
    const char *accept = header(exchange, "accept"), *name = member(params, "name");
    struct mcp_call *call = call_of(exchange);
    const json_t *arguments = json_object_get(params, "arguments");
    static json_t *no_arguments;
    auto_buf struct buf fault = BUF_INIT;
    struct mcp_request request;

    if (!no_arguments)
        no_arguments = json_object();
    call->tool = name ? mcp_tool_find(name) : NULL;
    call->arguments = arguments ? arguments : no_arguments;
    if (!call->tool || !json_is_object(call->arguments)) {
        send_error(exchange, 200, RPC_PARAMS,
            call->tool ? "arguments must be an object" : "there is no such tool");
        return;
    }
    if (!mcp_tool_request(call->tool, call->arguments, call->session, &request, &fault)) {
        mcp_request_done(&request);
        send_result(exchange, mcp_tool_fault(fault.data ? fault.data : ""), NULL);
        return;
    }
    call->token = json_object_get(json_object_get(params, "_meta"), "progressToken");
    const struct inner_request inner = { .method = request.method,
        .path = request.path.data,
        .query = request.query.data,
        .body = request.body.data,
        .length = request.body.length };
    call->inner = exchange->server->inner(exchange, scopes_of(exchange), &inner, on_answer, call);
    mcp_request_done(&request);
    if (!call->inner)
        send_result(exchange, mcp_tool_fault("the server is out of memory"), NULL);
    else if (call->token && accept && strstr(accept, "text/event-stream") && !exchange->operation)
        begin_events(call);
}

/* ---- the end of calls ---- */

static void on_gone(struct exchange *exchange) {
    if (!exchange->operation)
        exchange_done(exchange);
}

static void cancel(struct exchange *exchange, const json_t *params) {
    const json_t *id = json_object_get(params, "requestId");
    const struct mcp_call *own = call_of(exchange);

    list_for_each(node, &exchange->server->mcp_calls) {
        struct mcp_call *call = container_of(node, struct mcp_call, of_server);

        if (call->inner && call->exchange->tenant == exchange->tenant && own->session[0] &&
            !strcmp(call->session, own->session) && json_equal(call->id, id))
            send_error(call->exchange, 200, RPC_CANCELLED, "the call was cancelled");
    }
}

/* ---- messages ---- */

static void take_notification(struct exchange *exchange, const json_t *message) {
    const char *method = member(message, "method");

    if (method && !strcmp(method, "notifications/cancelled"))
        cancel(exchange, json_object_get(message, "params"));
    exchange_answer(exchange, 202, "", NULL);
}

static void take_request(struct exchange *exchange, const json_t *message) {
    const char *method = member(message, "method");
    const json_t *params = json_object_get(message, "params");

    if (!strcmp(method, "initialize") && !call_of(exchange)->is_modern)
        initialize(exchange, params);
    else if (!strcmp(method, "ping"))
        send_result(exchange, json_object(), NULL);
    else if (!strcmp(method, "server/discover") && call_of(exchange)->is_modern)
        discover(exchange);
    else if (!strcmp(method, "tools/list"))
        list_tools(exchange);
    else if (!strcmp(method, "tools/call"))
        call_tool(exchange, params);
    else
        send_error(exchange, call_of(exchange)->is_modern ? 404 : 200, RPC_METHOD,
            "this server has no such method");
}

/* NULL: the answer is given. */
static json_t *read_message(struct exchange *exchange) {
    const struct buf *body = &http_request_of(exchange->connection)->body;
    json_t *message =
        json_loadb(body->data ? body->data : "", body->length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *id = json_object_get(message, "id");
    const char *version = member(message, "jsonrpc");

    if (!message)
        send_error(exchange, 400, RPC_PARSE, "the body is not JSON");
    else if (!version || strcmp(version, "2.0") != 0 ||
             (id && !json_is_string(id) && !json_is_integer(id)) ||
             (!member(message, "method") && !json_object_get(message, "result") &&
                 !json_object_get(message, "error")))
        send_error(exchange, 400, RPC_REQUEST, "the body is not one message of JSON-RPC 2.0");
    else
        return message;
    json_decref(message);
    return NULL;
}

/* A request that belongs to the era with sessions: it begins one, has one, or names its version. */
static bool is_of_legacy(const struct exchange *exchange, const json_t *message) {
    const char *method = member(message, "method");
    const char *version = header(exchange, "mcp-protocol-version");
    const json_t *meta = json_object_get(json_object_get(message, "params"), "_meta");

    if (json_object_get(meta, "io.modelcontextprotocol/protocolVersion"))
        return false;
    return header(exchange, "mcp-session-id") || !version || is_legacy(version) ||
           (method && !strcmp(method, "initialize"));
}

void handle_mcp(struct exchange *exchange) {
    if (!origin_ok(exchange)) {
        exchange_problem(
            exchange, 403, "origin_forbidden", "pages of other origins may not use this server");
        return;
    }
    json_t *message = read_message(exchange);
    struct mcp_call *call = message ? calloc(1, sizeof *call) : NULL;
    if (!call) {
        if (message)
            exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        json_decref(message);
        return;
    }
    call->exchange = exchange;
    call->message = message;
    call->id = json_object_get(message, "id");
    call->is_modern = !is_of_legacy(exchange, message);
    list_add_tail(&exchange->server->mcp_calls, &call->of_server);
    exchange->data = call;
    exchange->free_data = free_call;
    exchange->gone = on_gone;
    if (!call->is_modern && !check_session(exchange))
        return;
    if (!call->id || !member(message, "method"))
        take_notification(exchange, message);
    else if (!call->is_modern || check_modern(exchange, message))
        take_request(exchange, message);
}

void handle_mcp_end(struct exchange *exchange) {
    const char *session = header(exchange, "mcp-session-id");

    if (!origin_ok(exchange))
        exchange_problem(
            exchange, 403, "origin_forbidden", "pages of other origins may not use this server");
    else if (!session || !lease_end(exchange->server, exchange->tenant, session))
        exchange_problem(exchange, 404, "not_found", "there is no such session");
    else
        exchange_answer(exchange, 204, "", NULL);
}
