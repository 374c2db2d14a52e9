/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox port: addresses of the host that lead into a sandbox. The engine listens. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/absolute_path.h"
#include "cli/cli.h"
#include "cli/session.h"

/* With --json one object a line. Without, of the port that was asked for its address alone, so that
 * a script can use it. */
static int show(const struct options *options, const char *json, bool is_list) {
    json_t *answer = json_loads(json, 0, NULL), *row;
    size_t i;

    json_array_foreach(json_object_get(answer, "ports"), i, row) {
        const char *address = json_string_value(json_object_get(row, "address"));
        auto_free char *line = json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);

        if (options_has(options, OPTION_JSON))
            puts(line ? line : "");
        else if (is_list)
            printf("%s leads to port %lld\n", address,
                (long long)json_integer_value(json_object_get(row, "port")));
        else
            puts(address);
    }
    json_decref(answer);
    return cli_flush(options, 0);
}

static int publish(const struct options *options, unsigned port, const char *listen) {
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox;
    struct rollbox_error error;
    auto_free char *json = NULL;

    int status = session_open(options, &engine, &sandbox);
    if (status)
        return status;
    if (rollbox_publish(sandbox, port, listen, &json, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        status = show(options, json, port == 0);
    rollbox_sandbox_free(sandbox);
    rollbox_engine_close(engine);
    return status;
}

int cmd_port(const struct options *options) {
    const char *listen = options_text(options, OPTION_LISTEN);
    auto_free char *path = listen && strchr(listen, '/') ? cli_path_absolute(listen) : NULL;
    unsigned long port = 0;
    char *end;

    if (options->n_rest > 1) {
        port = strtoul(options->rest[1], &end, 10);
        if (*end || port < 1 || port > 65535)
            return cli_fail(options, "%s: must be a port from 1 to 65535", options->rest[1]);
    } else if (listen) {
        return cli_fail(options, "--listen needs a port of the sandbox");
    }
    return publish(options, (unsigned)port, path ? path : listen);
}
