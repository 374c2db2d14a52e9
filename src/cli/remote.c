/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that a server accepts, and the requests of commands that are a single call.
 * remote.h has the model. */
#include "cli/remote.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/store_program.h"

bool remote_is_url(const char *text) {
    return text && (!strncmp(text, "http://", 7) || !strncmp(text, "https://", 8) ||
                       !strncmp(text, "unix:", 5));
}

/* ---- options before the command ---- */

static const struct {
    const char *name, *variable;
} leading[] = { { "--engine", "ROLLBOX_ENGINE" }, { "--token-file", "ROLLBOX_TOKEN_FILE" },
    { "--ca", "ROLLBOX_CA" }, { "--client-cert", "ROLLBOX_CLIENT_CERT" },
    { "--client-key", "ROLLBOX_CLIENT_KEY" }, { "--traceparent", "TRACEPARENT" } };

/* Reads a leading option. Returns its number of arguments, 0 for another word, or -1 after an error
 * message. A socket of --engine is put into *ret_socket. */
static int take_leading(char **argv, const char **ret_socket) {
    for (size_t i = 0; i < ARRAY_SIZE(leading); i++) {
        size_t length = strlen(leading[i].name);
        const char *value = argv[0][length] == '=' ? argv[0] + length + 1 : argv[1];

        if (strncmp(argv[0], leading[i].name, length) || !strchr("=", argv[0][length]))
            continue;
        bool is_address = i > 0 || !value || remote_is_url(value) || !strstr(value, "://");
        if (!value || !*value || !is_address) {
            cli_fail(NULL, "%s needs %s%s", leading[i].name, is_address ? "a value" : "an address",
                i == 0 ? ": an engine's socket, or a server's address (http://, https:// or "
                         "unix:PATH)"
                       : "");
            return -1;
        }
        if (i == 0)
            *ret_socket = remote_is_url(value) ? NULL : value;
        if (i == 0 && *ret_socket)
            return value == argv[1] ? 2 : 1;
        if (setenv(leading[i].variable, value, 1) < 0) {
            cli_fail(NULL, "out of memory");
            return -1;
        }
        return value == argv[1] ? 2 : 1;
    }
    return 0;
}

int remote_arguments(int argc, char **argv, const char **ret_socket) {
    *ret_socket = NULL;
    while (argc > 1) {
        int n = take_leading(argv + 1, ret_socket);

        if (n < 0)
            return -1;
        if (n == 0)
            break;
        memmove(argv + 1, argv + 1 + n, (size_t)(argc - n) * sizeof *argv);
        argc -= n;
    }
    return argc;
}

/* ---- calls ---- */

static json_t *with_processes(const struct options *options) {
    return json_pack(
        "{s:s}", "processes", options_has(options, OPTION_DROP_PROCESSES) ? "drop" : "keep");
}

static const char *operand(const struct options *options, int i) {
    return i < options->n_rest ? options->rest[i] : NULL;
}

static int set_seconds(
    const struct options *options, enum option_id id, const char *key, json_t *body) {
    const char *text = options_text(options, id);
    double seconds = text ? strtod(text, NULL) : 0;

    if (!text)
        return 0;
    if (seconds != (double)(json_int_t)seconds)
        return cli_fail(options, "%s %s: a server takes whole seconds",
            options_last(options, id)->option->name, text);
    json_object_set_new(body, key, json_integer((json_int_t)seconds));
    return 0;
}

static int create_body(const struct options *options, json_t *body) {
    const char *automatic = options_text(options, OPTION_AUTO_SNAPSHOT);
    const struct option_use *keep = options_last(options, OPTION_AUTO_KEEP);

    int status = remote_add_policy(options, body);
    if (status)
        return status;
    remote_set_text(body, "name", options_text(options, OPTION_NAME));
    remote_add_labels(options, body);
    remote_add_turn(options, body);
    if (automatic && !strcmp(automatic, "changed"))
        json_object_set_new(
            body, "auto_snapshots", json_integer(keep ? (json_int_t)keep->count : 16));
    if (!status)
        status = set_seconds(options, OPTION_IDLE, "idle_s", body);
    if (!status)
        status = set_seconds(options, OPTION_TTL, "ttl_s", body);
    if (!status)
        status = set_seconds(options, OPTION_LIFETIME, "lifetime_s", body);
    return status ? status : set_seconds(options, OPTION_HIBERNATE_AFTER, "hibernate_s", body);
}

static const struct call {
    unsigned __int128 command;
    const char *method, *suffix; /* after the sandbox's name; NULL: of no sandbox */
    bool is_shown;
} calls[] = {
    { COMMAND_INSPECT, "GET", "", true },
    { COMMAND_PAUSE, "POST", "/pause", false },
    { COMMAND_RESUME, "POST", "/resume", false },
    { COMMAND_HIBERNATE, "POST", "/hibernate", false },
    { COMMAND_WAKE, "POST", "/wake", false },
    { COMMAND_SNAPSHOT, "POST", "/snapshots", true },
    { COMMAND_SNAPSHOT_SHOW, "GET", "/snapshots/", true },
    { COMMAND_SNAPSHOT_VERIFY, "GET", "/snapshots/", true },
    { COMMAND_FORK, "POST", "/fork", true },
    { COMMAND_RESTORE, "POST", "/fork", true },
    { COMMAND_RESET, "POST", "/reset", false },
    { COMMAND_DISCARD, "POST", "/reset", false },
    { COMMAND_TREE, "GET", "/snapshots", true },
    { COMMAND_DIFF, "GET", "/diff", true },
    { COMMAND_KILL, "POST", "/execs/", false },
};

/* Several sandboxes are forked at one moment. */
static bool is_group(const struct options *options) {
    return options->command->bit == COMMAND_FORK && options->n_rest > 1;
}

/* The body of a POST; NULL: none. */
static json_t *body_of(const struct options *options) {
    unsigned __int128 bit = options->command->bit;
    const struct option_use *count = options_last(options, OPTION_FORKS);
    json_t *body;

    if (bit == COMMAND_PAUSE || bit == COMMAND_RESUME)
        return NULL;
    if (bit == COMMAND_KILL) {
        body = json_object();
        remote_set_text(body, "signal", options_text(options, OPTION_SIGNAL));
        remote_set_text(body, "scope", options_text(options, OPTION_SCOPE));
        return body;
    }
    body = with_processes(options);
    if (bit == COMMAND_SNAPSHOT)
        remote_set_text(body, "name", options_text(options, OPTION_AS));
    if (bit == COMMAND_RESET || bit == COMMAND_RESTORE)
        remote_set_text(body, "snapshot", operand(options, 1));
    if (bit == COMMAND_FORK)
        remote_set_text(body, "snapshot", options_text(options, OPTION_FROM));
    if (bit == COMMAND_FORK || bit == COMMAND_RESTORE) {
        json_object_set_new(body, "n", json_integer(count ? (json_int_t)count->count : 1));
        json_object_set_new(
            body, "same_seed", json_boolean(options_has(options, OPTION_SAME_SEED)));
    }
    if (is_group(options)) {
        json_t *names = json_array();

        for (int i = 0; i < options->n_rest; i++)
            json_array_append_new(names, json_string(options->rest[i]));
        json_object_set_new(body, "sandboxes", names);
    }
    return body;
}

/* 0, or an exit status after a message. */
static int add_details(const struct options *options, struct buf *path) {
    unsigned __int128 bit = options->command->bit;
    const char *named = operand(options, 1);

    if (is_group(options) && options_has(options, OPTION_FROM))
        return cli_fail(options, "several sandboxes are forked as they are now: leave --from out");
    if (bit & (COMMAND_SNAPSHOT_SHOW | COMMAND_SNAPSHOT_VERIFY)) {
        if (!named)
            return cli_fail(options, "on a server the snapshot must be named; see rollbox tree");
        remote_path_add(path, named, false);
        if (bit == COMMAND_SNAPSHOT_VERIFY)
            buf_add_text(path, "?verify=1");
    }
    if (bit == COMMAND_KILL) {
        if (!named)
            return cli_fail(options, "on a server the command's id must be given");
        remote_path_add(path, named, false);
        buf_add_text(path, "/signal");
    }
    if (bit == COMMAND_DIFF) {
        buf_add_text(path, options_has(options, OPTION_TEXTUAL) ? "?text=1" : "?");
        for (int i = 1; i < options->n_rest; i++) {
            buf_add_text(path, i == 1 ? "&from=" : "&to=");
            remote_path_add(path, options->rest[i], false);
        }
    }
    return 0;
}

static int show_answer(
    const struct options *options, bool has_name, bool is_shown, struct remote_answer *answer) {
    if (answer->status >= 400 || !answer->status)
        return remote_fail(options, answer);
    if (!is_shown)
        return cli_done(options, 0);
    return sandbox_show(options, has_name, answer->body.data ? answer->body.data : "");
}

static int call_one(const struct options *options, const struct call *call) {
    auto_buf struct buf path = BUF_INIT;
    struct remote_answer answer;
    json_t *body = strcmp(call->method, "POST") ? NULL : body_of(options);

    if (is_group(options)) {
        buf_add_text(&path, "/v1/forks");
    } else {
        buf_add_text(&path, "/v1/sandboxes/");
        remote_path_add(&path, options->rest[0], false);
        buf_add_text(&path, call->suffix);
    }
    int status = add_details(options, &path);
    if (!status) {
        remote_ask(options, call->method, path.data, NULL, body, &answer);
        status = show_answer(options, true, call->is_shown, &answer);
        buf_done(&answer.body);
    }
    json_decref(body);
    return status;
}

static int call_create(const struct options *options) {
    struct remote_answer answer;
    json_t *body = json_object();

    int status = options_has(options, OPTION_NO_DETACH)
                     ? cli_fail(options, "--no-detach is not offered by a server")
                     : create_body(options, body);
    if (!status) {
        remote_ask(options, "POST", "/v1/sandboxes", NULL, body, &answer);
        json_t *made = json_loadb(answer.body.data, answer.body.length, 0, NULL);
        const char *name = json_string_value(json_object_get(made, "name"));

        if (answer.status >= 400 || !answer.status || !name)
            status = remote_fail(options, &answer);
        else if (options_has(options, OPTION_JSON))
            status = sandbox_show(options, true, answer.body.data);
        else
            status = printf("%s\n", name) < 0 ? CLI_EXIT_ERROR : cli_flush(options, 0);
        json_decref(made);
        buf_done(&answer.body);
    }
    json_decref(body);
    return status;
}

static int call_rm(const struct options *options) {
    int status = 0;

    for (int i = 0; i < options->n_rest; i++) {
        auto_buf struct buf path = BUF_INIT;
        struct remote_answer answer;

        buf_add_text(&path, "/v1/sandboxes/");
        remote_path_add(&path, options->rest[i], false);
        remote_ask(options, "DELETE", path.data, NULL, NULL, &answer);
        if (answer.status >= 400 || !answer.status)
            status = remote_fail(options, &answer);
        buf_done(&answer.body);
    }
    return cli_done(options, status);
}

/* The sandboxes, the processes of one, or the server's status. */
static int call_list(const struct options *options) {
    auto_buf struct buf path = BUF_INIT;
    struct remote_answer answer;

    buf_add_text(
        &path, options->command->bit == COMMAND_ENGINE_STATUS ? "/v1/status" : "/v1/sandboxes");
    if (options->n_rest) {
        buf_add_text(&path, "/");
        remote_path_add(&path, options->rest[0], false);
        buf_add_text(&path, "/processes");
    }
    remote_ask(options, "GET", path.data, NULL, NULL, &answer);
    int status = show_answer(options, options->n_rest > 0, true, &answer);
    buf_done(&answer.body);
    return status;
}

/* ---- which commands ---- */

/* They use no engine, or find a server by themselves. */
#define LOCAL_COMMANDS                                                                             \
    (COMMAND_HELP | COMMAND_VERSION | COMMAND_COMPLETION | COMMAND_POLICY_CHECK |                  \
        COMMAND_NET_TEST | COMMAND_MCP | TOKEN_COMMANDS | COMMAND_COST)

static int call_remote(const struct options *options) {
    unsigned __int128 bit = options->command->bit;
    const char *image = options_text(options, OPTION_IMAGE);

    if (image && store_program_is_reference(image))
        return cli_fail(options,
            "--image %s: a server starts from images of its own store; pull it there, and give "
            "its name",
            image);
    int status;
    if (remote_named(options, &status))
        return status;
    if (bit == COMMAND_RUN)
        return remote_run(options);
    if (bit == COMMAND_EXEC)
        return remote_exec(options);
    if (bit == COMMAND_CP)
        return remote_cp(options);
    if (bit == COMMAND_CREATE)
        return call_create(options);
    if (bit == COMMAND_RM)
        return call_rm(options);
    if (bit == COMMAND_PS || bit == COMMAND_ENGINE_STATUS)
        return call_list(options);
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
        if (calls[i].command == bit)
            return call_one(options, &calls[i]);
    return cli_fail(options,
        "it is not offered by a server; leave --engine and $ROLLBOX_ENGINE (%s) out to use this "
        "machine",
        getenv("ROLLBOX_ENGINE"));
}

bool remote_is_named(void) {
    return remote_is_url(getenv("ROLLBOX_ENGINE"));
}

bool remote_command(const struct options *options, int *ret_status) {
    const char *given = options_text(options, OPTION_ENGINE);

    given = given ? given : options_text(options, OPTION_SOCKET);
    if (remote_is_url(given) && options->command->bit != COMMAND_SERVE &&
        setenv("ROLLBOX_ENGINE", given, 1) < 0) {
        *ret_status = cli_fail(options, "out of memory");
        return true;
    }
    if (options->command->bit & LOCAL_COMMANDS)
        return false;
    /* A socket of this machine on the command line wins over the environment. */
    if (!remote_is_url(getenv("ROLLBOX_ENGINE")) || (given && !remote_is_url(given))) {
        bool has_turn =
            options_has(options, OPTION_PRIORITY) || options_has(options, OPTION_QUEUE_TIMEOUT);
        if (has_turn)
            *ret_status = cli_fail(
                options, "--priority and --queue-timeout need a server (--engine https://HOST)");
        return has_turn;
    }
    *ret_status = call_remote(options);
    return true;
}
