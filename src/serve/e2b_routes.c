/* SPDX-License-Identifier: Apache-2.0 */
/* The requests to a sandbox's ports; those of the control plane are in router.c. */
#include <string.h>

#include "base/cleanup.h"
#include "serve/e2b_code.h"
#include "serve/e2b_port.h"
#include "serve/e2b_process.h"
#include "serve/e2b_watch.h"

static void handle_health(struct exchange *exchange) {
    exchange_answer(exchange, 204, "", NULL);
}

#define PROCESS "/process.Process/"
#define FILESYSTEM "/filesystem.Filesystem/"

static const struct route envd_routes[] = {
    { "GET", "/health", TOKEN_RUN, BODY_JSON, NULL, handle_health },
    { "GET", "/files", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_download },
    { "POST", "/files", TOKEN_RUN, BODY_BYTES, NULL, handle_e2b_upload },
    { "POST", PROCESS "Start", TOKEN_RUN, BODY_BYTES, NULL, handle_e2b_start },
    { "POST", PROCESS "Connect", TOKEN_RUN, BODY_BYTES, NULL, handle_e2b_follow },
    { "POST", PROCESS "List", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_processes },
    { "POST", PROCESS "SendInput", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_input },
    { "POST", PROCESS "StreamInput", TOKEN_RUN, BODY_STREAM, NULL, handle_e2b_stream_input },
    { "POST", PROCESS "SendSignal", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_signal },
    { "POST", PROCESS "CloseStdin", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_close_stdin },
    { "POST", PROCESS "Update", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_update },
    { "POST", FILESYSTEM "Stat", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_stat },
    { "POST", FILESYSTEM "ListDir", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_list_dir },
    { "POST", FILESYSTEM "MakeDir", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_make_dir },
    { "POST", FILESYSTEM "Move", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_move },
    { "POST", FILESYSTEM "Remove", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_remove },
    { "POST", FILESYSTEM "WatchDir", TOKEN_RUN, BODY_BYTES, NULL, handle_e2b_watch },
    { "POST", FILESYSTEM "CreateWatcher", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_watcher_create },
    { "POST", FILESYSTEM "GetWatcherEvents", TOKEN_RUN, BODY_JSON, NULL,
        handle_e2b_watcher_events },
    { "POST", FILESYSTEM "RemoveWatcher", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_watcher_remove },
};

static const struct route code_routes[] = {
    { "GET", "/health", TOKEN_RUN, BODY_JSON, NULL, handle_health },
    { "POST", "/execute", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_execute },
    { "POST", "/contexts", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_context_create },
    { "GET", "/contexts", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_contexts },
    { "DELETE", "/contexts/{context}", TOKEN_RUN, BODY_JSON, NULL, handle_e2b_context_delete },
    { "POST", "/contexts/{context}/restart", TOKEN_RUN, BODY_JSON, NULL,
        handle_e2b_context_restart },
};

static const struct route port_routes[] = {
    { "GET", "/", TOKEN_RUN, BODY_BYTES, NULL, handle_e2b_port },
};

static const struct route control_routes[] = {
#define E2B(method, path, handle)                                                                  \
    { method, path, TOKEN_RUN, BODY_JSON, NULL, handle }
    E2B("POST", "/v2/sandboxes", handle_e2b_create),
    E2B("POST", "/sandboxes", handle_e2b_create),
    E2B("GET", "/v2/sandboxes", handle_e2b_list),
    E2B("GET", "/sandboxes", handle_e2b_list),
    E2B("POST", "/v2/sandboxes/{sandbox}/connect", handle_e2b_connect),
    E2B("POST", "/sandboxes/{sandbox}/connect", handle_e2b_connect),
    E2B("POST", "/sandboxes/{sandbox}/resume", handle_e2b_resume),
    E2B("GET", "/sandboxes/{sandbox}", handle_e2b_get),
    E2B("DELETE", "/sandboxes/{sandbox}", handle_e2b_kill),
    E2B("POST", "/sandboxes/{sandbox}/timeout", handle_e2b_timeout),
    E2B("POST", "/sandboxes/{sandbox}/refreshes", handle_e2b_timeout),
    E2B("POST", "/sandboxes/{sandbox}/pause", handle_e2b_pause),
    E2B("POST", "/sandboxes/{sandbox}/fork", handle_e2b_fork),
    E2B("POST", "/sandboxes/{sandbox}/snapshots", handle_e2b_snapshot),
    E2B("GET", "/sandboxes/{sandbox}/metrics", handle_e2b_metrics),
    E2B("PUT", "/sandboxes/{sandbox}/network", handle_e2b_network),
    E2B("GET", "/snapshots", handle_e2b_snapshots),
    E2B("GET", "/templates/aliases/{alias}", handle_e2b_alias),
    E2B("GET", "/templates/{template}/tags", handle_e2b_no_builds),
    E2B("POST", "/v3/templates", handle_e2b_no_builds),
    E2B("POST", "/v2/templates", handle_e2b_no_builds),
    E2B("POST", "/templates", handle_e2b_no_builds),
    E2B("DELETE", "/templates/{sandbox}", handle_e2b_drop),
};

const struct route *e2b_routes(unsigned port, size_t *ret_n) {
    switch (port) {
    case 0:
        *ret_n = ARRAY_SIZE(control_routes);
        return control_routes;
    case E2B_ENVD_PORT:
        *ret_n = ARRAY_SIZE(envd_routes);
        return envd_routes;
    case E2B_CODE_PORT:
        *ret_n = ARRAY_SIZE(code_routes);
        return code_routes;
    default:
        *ret_n = ARRAY_SIZE(port_routes);
        return port_routes;
    }
}

exchange_translate *e2b_translator(const struct route *route, unsigned port) {
    if (!port)
        return e2b_control_answer;
    return route && (!strncmp(route->path, PROCESS, strlen(PROCESS)) ||
                        !strncmp(route->path, FILESYSTEM, strlen(FILESYSTEM)))
               ? e2b_connect_answer
               : e2b_envd_answer;
}
