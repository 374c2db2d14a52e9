/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that are one call on one sandbox. Each has a row in a table with the call and the
 * function that shows the answer. With --json the library's answer is printed unchanged.
 *
 * Guests choose the names of files and commands, so control characters are shown escaped.
 */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/snapshot_show.h"
#include "cli/record.h"
#include "cli/remote.h"
#include "cli/session.h"
#include "cli/format.h"

#define FORKS_MAX 100000
#define EXIT_REFUSED 1 /* of verify */

struct call {
    const struct options *options;
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox; /* NULL: no name was given, or it is a server's */
    bool has_name;
    char *json; /* the answer, or NULL */
    struct rollbox_error error;
};

/* The operand, or NULL if it was not given. */
static const char *get_operand(const struct call *call, int i) {
    return i < call->options->n_rest ? call->options->rest[i] : NULL;
}

/* ---- calls: 0, or negative with call->error filled ---- */

static int call_ps(struct call *call) {
    return call->sandbox ? rollbox_sandbox_query(
                               call->sandbox, ROLLBOX_QUERY_PROCESSES, &call->json, &call->error)
           : options_has(call->options, OPTION_QUIET)
               ? rollbox_sandbox_list(call->engine, &call->json, &call->error)
               : rollbox_sandbox_stats(call->engine, &call->json, &call->error);
}

static int call_inspect(struct call *call) {
    return rollbox_sandbox_query(call->sandbox, ROLLBOX_QUERY_INSPECT, &call->json, &call->error);
}

static int call_tree(struct call *call) {
    return rollbox_sandbox_query(call->sandbox, ROLLBOX_QUERY_TREE, &call->json, &call->error);
}

static int call_pause(struct call *call) {
    return rollbox_pause(call->sandbox, &call->error);
}

static int call_resume(struct call *call) {
    return rollbox_resume(call->sandbox, &call->error);
}

static struct rollbox_state_options state_options(const struct call *call) {
    enum rollbox_processes processes = options_has(call->options, OPTION_DROP_PROCESSES)
                                           ? ROLLBOX_PROCESSES_DROP
                                           : ROLLBOX_PROCESSES_KEEP;

    return (struct rollbox_state_options){ .size = sizeof(struct rollbox_state_options),
        .processes = processes };
}

static int call_snapshot(struct call *call) {
    struct rollbox_state_options options = state_options(call);

    return rollbox_snapshot(
        call->sandbox, options_text(call->options, OPTION_AS), &options, &call->json, &call->error);
}

static int call_reset(struct call *call) {
    struct rollbox_state_options options = state_options(call);

    return rollbox_reset(call->sandbox, get_operand(call, 1), &options, &call->error);
}

static int call_hibernate(struct call *call) {
    struct rollbox_state_options options = state_options(call);

    return rollbox_hibernate(call->sandbox, &options, &call->error);
}

static int call_wake(struct call *call) {
    struct rollbox_state_options options = state_options(call);

    return rollbox_wake(call->sandbox, &options, &call->error);
}

static int call_diff(struct call *call) {
    return rollbox_diff(call->sandbox, get_operand(call, 1), get_operand(call, 2),
        options_has(call->options, OPTION_TEXTUAL), &call->json, &call->error);
}

static int call_commit(struct call *call) {
    return rollbox_commit(call->sandbox, get_operand(call, 1),
        options_has(call->options, OPTION_FORCE), &call->json, &call->error);
}

static int call_export(struct call *call) {
    const char *snapshot = options_text(call->options, OPTION_FROM), *path = get_operand(call, 1);

    return options_has(call->options, OPTION_LIVE)
               ? rollbox_export_live(call->sandbox, snapshot, path, &call->error)
               : rollbox_export(call->sandbox, snapshot, path, &call->error);
}

static int call_show(struct call *call) {
    return rollbox_snapshot_show(call->sandbox, get_operand(call, 1), &call->json, &call->error);
}

static int call_verify(struct call *call) {
    return rollbox_snapshot_verify(call->sandbox, get_operand(call, 1), &call->json, &call->error);
}

static int fail_call(
    struct call *call, enum rollbox_error_code code, int error_number, const char *message) {
    call->error = (struct rollbox_error){ .code = code, .error_number = error_number };
    (void)snprintf(call->error.message, sizeof call->error.message, "%s", message);
    return -error_number;
}

static int fork_from(struct call *call, const char *snapshot) {
    const struct option_use *count = options_last(call->options, OPTION_FORKS);
    size_t n = count ? (size_t)MIN(count->count, (uint64_t)FORKS_MAX + 1) : 1;
    struct rollbox_state_options options = state_options(call);
    auto_buf struct buf text = BUF_INIT;

    auto_free struct rollbox_sandbox **made =
        calloc(MAX(n, (size_t)1), sizeof(struct rollbox_sandbox *));
    if (!made)
        return fail_call(call, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
    const char *record = options_text(call->options, OPTION_RECORD);
    if (record && n > 1 && !strstr(record, "{name}"))
        return fail_call(call, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL,
            "--record: several sandboxes need a file each; put {name} into its name");
    options.same_seed = options_has(call->options, OPTION_SAME_SEED);
    int r = rollbox_fork(call->sandbox, snapshot, n, &options, made, &call->error);
    if (r < 0)
        return r;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = record_kept(call->options, made[i], &call->error);
    for (size_t i = 0; r < 0 && i < n; i++)
        (void)rollbox_sandbox_close(made[i], NULL);
    if (r < 0)
        return r;
    buf_add_text(&text, "{\"sandboxes\": [");
    for (size_t i = 0; i < n; i++) {
        buf_printf(&text, "%s\"%s\"", i ? ", " : "", rollbox_sandbox_name(made[i]));
        rollbox_sandbox_free(made[i]);
    }
    buf_add_text(&text, "]}");
    call->json = buf_take(&text);
    return call->json ? 0
                      : fail_call(call, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
}

/* An array of names for each sandbox as JSON; the handles are freed. */
static void add_groups(struct rollbox_sandbox **made, size_t n_groups, size_t n, struct buf *to) {
    buf_add_text(to, "{\"sandboxes\": [");
    for (size_t i = 0; i < n_groups * n; i++) {
        if (i % n == 0)
            buf_add_text(to, i ? "], [" : "[");
        buf_printf(to, "%s\"%s\"", i % n ? ", " : "", rollbox_sandbox_name(made[i]));
        rollbox_sandbox_free(made[i]);
    }
    buf_add_text(to, "]]}");
}

/* Several sandboxes at one moment. The first is open. */
static int fork_group(struct call *call) {
    const struct option_use *count = options_last(call->options, OPTION_FORKS);
    const size_t n_groups = (size_t)call->options->n_rest,
                 n = count ? (size_t)MIN(count->count, (uint64_t)FORKS_MAX + 1) : 1;
    struct rollbox_state_options options = state_options(call);
    auto_free struct rollbox_sandbox **boxes = calloc(n_groups, sizeof(struct rollbox_sandbox *));
    auto_free struct rollbox_sandbox **made =
        calloc(n_groups * MAX(n, (size_t)1), sizeof(struct rollbox_sandbox *));
    auto_buf struct buf text = BUF_INIT;
    int r = 0;

    if (!boxes || !made)
        return fail_call(call, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
    if (options_has(call->options, OPTION_FROM) || options_has(call->options, OPTION_RECORD))
        return fail_call(call, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL,
            "several sandboxes are forked as they are now, and not recorded: leave --from and "
            "--record out");
    options.same_seed = options_has(call->options, OPTION_SAME_SEED);
    boxes[0] = call->sandbox;
    for (size_t i = 1; r >= 0 && i < n_groups; i++)
        r = rollbox_sandbox_open(call->engine, call->options->rest[i], &boxes[i], &call->error);
    if (r >= 0)
        r = rollbox_fork_group(boxes, n_groups, n, &options, made, &call->error);
    for (size_t i = 1; i < n_groups; i++)
        rollbox_sandbox_free(boxes[i]);
    if (r < 0)
        return r;
    add_groups(made, n_groups, n, &text);
    call->json = buf_take(&text);
    return call->json ? 0
                      : fail_call(call, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "out of memory");
}

static int call_fork(struct call *call) {
    if (call->options->n_rest > 1)
        return fork_group(call);
    return fork_from(call, options_text(call->options, OPTION_FROM));
}

static int call_restore(struct call *call) {
    return fork_from(call, get_operand(call, 1));
}

/* "KILL", "SIGKILL" or "9" as a number; 0 if it is not a signal. */
static int signal_number(const char *text) {
    char *end;
    long number = strtol(text, &end, 10);

    if (end != text && !*end)
        return number >= 1 && number <= SIGRTMAX ? (int)number : 0;
    if (strncmp(text, "SIG", 3) == 0)
        text += 3;
    for (int i = 1; i < NSIG; i++) {
        const char *name = sigabbrev_np(i);

        if (name && strcmp(name, text) == 0)
            return i;
    }
    return 0;
}

static enum rollbox_scope scope_of(const char *text) {
    static const char *const names[] = { [ROLLBOX_SCOPE_MAIN] = "main",
        [ROLLBOX_SCOPE_TREE] = "tree",
        [ROLLBOX_SCOPE_CHILDREN] = "children",
        [ROLLBOX_SCOPE_GROUP] = "group" };

    for (size_t i = ROLLBOX_SCOPE_MAIN; text && i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], text) == 0)
            return (enum rollbox_scope)i;
    return ROLLBOX_SCOPE_TREE;
}

/* All running commands. A command that ends meanwhile does not need the signal. */
static int kill_all(struct call *call, int number, enum rollbox_scope scope) {
    auto_free char *json = NULL;
    json_t *exec;
    size_t i;

    int r = rollbox_sandbox_query(call->sandbox, ROLLBOX_QUERY_INSPECT, &json, &call->error);
    if (r < 0)
        return r;
    json_t *answer = json_loads(json, 0, NULL);
    json_array_foreach(json_object_get(answer, "execs"), i, exec) {
        const char *id = json_string_value(json_object_get(exec, "id")),
                   *state = json_string_value(json_object_get(exec, "state"));

        if (r < 0 || !id || (state && strcmp(state, "running") != 0))
            continue;
        r = rollbox_signal(call->sandbox, id, number, scope, &call->error);
        if (r < 0 && call->error.code == ROLLBOX_ERR_NOT_FOUND)
            r = 0;
    }
    json_decref(answer);
    return r;
}

static int call_kill(struct call *call) {
    const char *name = options_text(call->options, OPTION_SIGNAL);
    enum rollbox_scope scope = scope_of(options_text(call->options, OPTION_SCOPE));
    int number = name ? signal_number(name) : SIGKILL;

    if (!number)
        return fail_call(call, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL,
            "--signal: no such signal; give a name such as TERM, or a number");
    if (get_operand(call, 1))
        return rollbox_signal(call->sandbox, get_operand(call, 1), number, scope, &call->error);
    if (number == SIGKILL && !options_has(call->options, OPTION_SCOPE))
        return rollbox_signal(call->sandbox, NULL, number, scope, &call->error);
    return kill_all(call, number, scope);
}

/* ---- output ---- */

static void show_ps(const struct call *call, const json_t *answer) {
    static const struct format_column sandboxes[] = {
        { "NAME", "name", SHOWN_TEXT },
        { "STATE", "state", SHOWN_TEXT },
        { "COMMANDS", "commands", SHOWN_COUNT },
        { "MEMORY", "memory_bytes", SHOWN_SIZE },
        { "AGE", "age_s", SHOWN_SECONDS },
        { "CREATED", "created", SHOWN_TIME },
    };
    static const struct format_column processes[] = {
        { "PID", "pid", SHOWN_COUNT },
        { "PARENT", "parent", SHOWN_COUNT },
        { "STATE", "state", SHOWN_TEXT },
        { "CPU", "cpu_ms", SHOWN_MILLISECONDS },
        { "MEMORY", "memory_bytes", SHOWN_SIZE },
        { "ID", "exec", SHOWN_TEXT },
        { "COMMAND", "command", SHOWN_TEXT },
    };
    const json_t *rows = json_object_get(answer, call->has_name ? "processes" : "sandboxes");
    json_t *row;
    size_t i;

    if (!options_has(call->options, OPTION_QUIET)) {
        if (call->has_name)
            format_table(rows, processes, ARRAY_SIZE(processes));
        else
            format_table(rows, sandboxes, ARRAY_SIZE(sandboxes));
        return;
    }
    json_array_foreach(rows, i, row) {
        if (call->has_name)
            printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(json_object_get(row, "pid")));
        else
            format_line(json_string_value(json_object_get(row, "name")));
    }
}

static void show_inspect(const struct call *call, const json_t *answer) {
    (void)call;
    (void)json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    putchar('\n');
}

static void show_snapshot(const struct call *call, const json_t *answer) {
    (void)call;
    format_line(json_string_value(json_object_get(answer, "id")));
}

/* A line for each network of forks: the copies in the order of the sandboxes. */
static void show_groups(const json_t *lists, size_t n) {
    for (size_t k = 0; k < n; k++) {
        auto_buf struct buf line = BUF_INIT;

        for (size_t i = 0; i < json_array_size(lists); i++)
            buf_printf(&line, "%s%s", i ? " " : "",
                json_string_value(json_array_get(json_array_get(lists, i), k)));
        if (!buf_failed(&line))
            format_line(line.data);
    }
}

static void show_names(const struct call *call, const json_t *answer) {
    json_t *name;
    size_t i;

    const json_t *names = json_object_get(answer, "sandboxes"), *first = json_array_get(names, 0);

    (void)call;
    if (json_is_array(first)) {
        show_groups(names, json_array_size(first));
        return;
    }
    json_array_foreach(names, i, name) format_line(json_string_value(name));
}

/* A snapshot's name, or else its id. */
static void show_tree(const struct call *call, const json_t *answer) {
    const json_t *rows = json_object_get(answer, "snapshots");
    json_t *row;
    size_t i;

    if (!options_has(call->options, OPTION_QUIET)) {
        format_snapshot_tree(rows);
        return;
    }
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));

        format_line(name ? name : json_string_value(json_object_get(row, "id")));
    }
}

static void describe_snapshot(const struct call *call, const json_t *answer) {
    (void)call;
    snapshot_show_contents(answer);
}

static void show_checks(const struct call *call, const json_t *answer) {
    (void)call;
    snapshot_show_checks(answer);
}

static void show_diff(const struct call *call, const json_t *answer) {
    format_diff(answer, options_has(call->options, OPTION_TEXTUAL));
}

static void show_commit(const struct call *call, const json_t *answer) {
    json_t *place;
    size_t i;

    (void)call;
    json_array_foreach(json_object_get(answer, "committed"), i, place) {
        json_int_t n = json_integer_value(json_object_get(place, "changes"));

        format_text(json_string_value(json_object_get(place, "path")));
        printf(": %" JSON_INTEGER_FORMAT " change%s\n", n, n == 1 ? "" : "s");
    }
}

/* ---- the table ---- */

static const struct action {
    unsigned __int128 command;
    int (*call)(struct call *call);
    void (*show)(
        const struct call *call, const json_t *answer); /* NULL: there is nothing to show */
} actions[] = {
    { COMMAND_PS, call_ps, show_ps },
    { COMMAND_INSPECT, call_inspect, show_inspect },
    { COMMAND_KILL, call_kill, NULL },
    { COMMAND_PAUSE, call_pause, NULL },
    { COMMAND_RESUME, call_resume, NULL },
    { COMMAND_HIBERNATE, call_hibernate, NULL },
    { COMMAND_WAKE, call_wake, NULL },
    { COMMAND_SNAPSHOT, call_snapshot, show_snapshot },
    { COMMAND_SNAPSHOT_SHOW, call_show, describe_snapshot },
    { COMMAND_SNAPSHOT_VERIFY, call_verify, show_checks },
    { COMMAND_FORK, call_fork, show_names },
    { COMMAND_RESTORE, call_restore, show_names },
    { COMMAND_RESET, call_reset, NULL },
    { COMMAND_TREE, call_tree, show_tree },
    { COMMAND_DIFF, call_diff, show_diff },
    { COMMAND_COMMIT, call_commit, show_commit },
    { COMMAND_DISCARD, call_reset, NULL },
    { COMMAND_EXPORT, call_export, NULL },
};

static int show_action(const struct call *call, const struct action *action) {
    json_t *answer = json_loads(call->json, 0, NULL);
    bool is_refused = json_is_false(json_object_get(answer, "sound"));

    if (options_has(call->options, OPTION_JSON) || !action->show) {
        format_json(call->json);
    } else {
        if (!answer)
            return cli_fail(call->options,
                "the engine's answer is not JSON; use an engine of the command's version");
        action->show(call, answer);
    }
    json_decref(answer);
    return cli_flush(call->options, is_refused ? EXIT_REFUSED : 0);
}

/* NULL: the command is none of these. */
static const struct action *action_of(const struct options *options) {
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
        if (actions[i].command == options->command->bit)
            return &actions[i];
    return NULL;
}

/* Of create and engine status, too: they have the answer as it is. */
int sandbox_show(const struct options *options, bool has_name, const char *json) {
    static const struct action plain = { .show = NULL };
    const struct call call = {
        .options = options, .has_name = has_name, .json = (char *)(uintptr_t)json
    };
    const struct action *action = action_of(options);

    return show_action(&call, action ? action : &plain);
}

int cmd_sandbox(const struct options *options) {
    struct call call = { .options = options, .has_name = options->n_rest > 0 };
    const struct action *action = action_of(options);

    int status = options->n_rest ? session_open(options, &call.engine, &call.sandbox)
                                 : session_connect(options, &call.engine);
    if (status)
        return status;
    if (action->call(&call) < 0)
        status = cli_fail_error(options, &call.error);
    else if (action->show && call.json)
        status = show_action(&call, action);
    else
        status = cli_done(options, 0);
    free(call.json);
    rollbox_sandbox_free(call.sandbox);
    rollbox_engine_close(call.engine);
    return status;
}

int cmd_rm(const struct options *options) {
    struct rollbox_engine *engine;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    for (int i = 0; i < options->n_rest; i++) {
        struct rollbox_error error = { .code = ROLLBOX_OK };
        struct rollbox_sandbox *sandbox;

        if (rollbox_sandbox_open(engine, options->rest[i], &sandbox, &error) < 0)
            status = cli_fail_error(options, &error);
        else if (record_end(options, sandbox, options->rest[i]))
            status = CLI_EXIT_ERROR;
    }
    rollbox_engine_close(engine);
    return cli_done(options, status);
}
