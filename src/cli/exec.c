/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox exec and attach: run a command in a session, or connect to a running one.
 *
 * The command belongs to the session and not to this process. It is started detached, and this
 * process kills it only on SIGINT and SIGTERM. view.h has the model of the data between the two.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/absolute_path.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/copy_stream.h"
#include "cli/session.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/view.h"
#include "policy/policy.h"

/* ---- exec ---- */

/* The command's argv in the caller's array. 0, or an exit status after a line. */
static int make_argv(
    const struct options *options, const char *shell[6], const char *const **ret_argv) {
    const char *string = options_text(options, OPTION_SHELL);

    if (string && options->n_rest > 1)
        return cli_fail(
            options, "--shell and a command exclude each other: '%s'", options->rest[1]);
    if (!string && options->n_rest > 1) {
        *ret_argv = (const char *const *)options->rest + 1;
        return 0;
    }
    if (!string && !options_has(options, OPTION_TTY))
        return cli_fail(options,
            "the command to run is missing: rollbox exec %s -- COMMAND, or -it for a shell",
            options->rest[0]);
    view_shell(string, true, shell);
    *ret_argv = shell;
    return 0;
}

/* The id of a command that is left running, once the engine has it. */
static int leave_exec(struct view *view) {
    const struct rollbox_result *result;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;

    /* Requests are answered in order, so failures that stop a command at once are known by now. */
    if (rollbox_sandbox_query(view->sandbox, ROLLBOX_QUERY_INSPECT, &json, &error) < 0)
        return outcome_fail(view->options, &error);
    if (rollbox_wait(view->run, 0, &result) == 0 && result->outcome == ROLLBOX_OUTCOME_ERROR)
        return options_has(view->options, OPTION_JSON)
                   ? outcome_print_json(view->options, result, view->id)
                   : outcome_status(view->options, result, UINT64_MAX);
    if (options_has(view->options, OPTION_JSON)) {
        json_t *object = json_pack("{s:s%}", "id", view->id, strlen(view->id));
        auto_free char *text = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

        json_decref(object);
        if (!text)
            return cli_fail(view->options, "the id is not valid UTF-8");
        printf("%s\n", text);
    } else {
        printf("%s\n", view->id);
    }
    return cli_flush(view->options, 0);
}

int cmd_exec(const struct options *options) {
    const struct option_use *timeout = options_last(options, OPTION_TIMEOUT);
    const char *limit = options_text(options, OPTION_OUTPUT_LIMIT),
               *cwd_given = options_text(options, OPTION_CWD);
    auto_free char *cwd = NULL, *term = NULL;
    auto_free const char **env = NULL;
    const char *shell[6];
    uint64_t limit_bytes = 0;
    struct view view;
    char id[13];

    int status = view_init(&view, options);
    if (status)
        return status;
    struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .user = options_text(options, OPTION_USER),
        .timeout_ms = !timeout               ? -1
                      : timeout->number <= 0 ? ROLLBOX_NO_TIMEOUT
                                             : (int64_t)MAX(MIN(timeout->number, 9e9) * 1000, 1.0),
        .output_limit = -1,
        .operation_id = options_text(options, OPTION_ID),
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .detached = true,
        .callback = copy_stream_on_end,
        .userdata = &view.pump,
    };
    if (options_has(options, OPTION_DETACH) && options_has(options, OPTION_INTERACTIVE))
        return cli_fail(options, "--detach and --interactive exclude each other: a detached "
                                 "command has no standard input");
    if (limit && policy_parse_size(limit, &limit_bytes) < 0)
        return cli_fail(options, "--output-limit %s: not a size such as 10M", limit);
    if (limit)
        exec.output_limit = (int64_t)MIN(limit_bytes, (uint64_t)INT64_MAX);
    if (cwd_given && !(exec.cwd = cwd = cli_path_absolute(cwd_given)))
        return cli_fail(options, "out of memory");
    if (!exec.operation_id) {
        if (view_make_id(id) < 0)
            return cli_fail(options, "cannot make an id: %s", strerror(errno));
        exec.operation_id = id;
    }
    view.id = exec.operation_id;
    status = make_argv(options, shell, &exec.argv);
    if (status)
        return status;
    exec.env = env = view_environment(options, options_has(options, OPTION_TTY), &term);
    if (!env)
        return cli_fail(options, "out of memory");
    status = session_open(options, &view.pump.engine, &view.sandbox);
    if (status)
        return status;
    status = view_start(
        &view, &exec, options_has(options, OPTION_INTERACTIVE), options_has(options, OPTION_TTY));
    if (!status && options_has(options, OPTION_DETACH))
        status = leave_exec(&view);
    else if (!status)
        status =
            view_follow(&view, exec.output_limit >= 0 ? (uint64_t)exec.output_limit : UINT64_MAX);
    view_done(&view);
    return cli_end(status);
}

/* ---- attach ---- */

/* The commands of the sandbox, as JSON; NULL after an error. */
static json_t *commands_of(const struct view *view) {
    auto_free char *json = NULL;

    if (rollbox_sandbox_query(view->sandbox, ROLLBOX_QUERY_EXECS, &json, NULL) < 0)
        return NULL;
    json_t *answer = json_loads(json, 0, NULL),
           *commands = json_incref(json_object_get(answer, "execs"));
    json_decref(answer);
    return commands;
}

/* Has the command a terminal? */
static bool has_terminal(const struct view *view) {
    json_t *commands = commands_of(view), *command;
    bool found = false;
    size_t i;

    json_array_foreach(commands, i, command) {
        const char *id = json_string_value(json_object_get(command, "id"));

        found = found || (id && strcmp(id, view->id) == 0 &&
                             json_is_true(json_object_get(command, "terminal")));
    }
    json_decref(commands);
    return found;
}

/* Without an ID: the only running command, with --tty the only one on a terminal. 0, or an exit
 * status after a line. */
static int choose_command(const struct view *view, char **ret_id) {
    const bool tty = options_has(view->options, OPTION_TTY);
    json_t *commands = commands_of(view), *command;
    auto_buf struct buf ids = BUF_INIT;
    auto_free char *found = NULL;
    size_t i, n = 0;

    json_array_foreach(commands, i, command) {
        const char *id = json_string_value(json_object_get(command, "id")),
                   *state = json_string_value(json_object_get(command, "state"));

        if (!id || !state || !strcmp(state, "ended") ||
            (tty && !json_is_true(json_object_get(command, "terminal"))))
            continue;
        buf_printf(&ids, "%s%s", n++ ? ", " : "", id);
        free(found);
        found = strdup(id);
    }
    json_decref(commands);
    if (n != 1)
        return n ? cli_fail(view->options, "%zu commands run in %s; name one: %s", n,
                       view->options->rest[0], buf_failed(&ids) ? "" : ids.data)
                 : cli_fail(view->options, "no command runs %sin %s", tty ? "on a terminal " : "",
                       view->options->rest[0]);
    *ret_id = TAKE_PTR(found);
    return *ret_id ? 0 : cli_fail(view->options, "out of memory");
}

/* A program redraws its screen when the size changes, and only then: so it changes twice. */
static void redraw(const struct view *view) {
    struct rollbox_terminal other = terminal_size();

    other.rows++;
    (void)rollbox_resize(view->sandbox, view->id, &other, NULL);
    view_tell_size(view);
}

static int attach_exec(struct view *view) {
    const struct options *options = view->options;
    const bool input = options_has(options, OPTION_INTERACTIVE),
               stream = !options_has(options, OPTION_JSON);
    struct rollbox_attach_options attach_options = {
        .size = sizeof attach_options,
        .operation_id = view->id,
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .callback = copy_stream_on_end,
        .userdata = &view->pump,
    };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const bool tty = has_terminal(view);
    struct view_ends ends;

    if (input && !tty)
        return cli_fail(options, "--interactive: %s has no terminal to type into", view->id);
    if (options_has(options, OPTION_TTY) && !tty)
        return cli_fail(options, "--tty: %s has no terminal", view->id);
    int status = view_open(view, input, stream, stream && !tty, &ends);
    if (!status)
        status = copy_stream_catch_signals(&view->pump, options);
    if (!status && input)
        status = view_lend_terminal(view);
    if (!status) {
        attach_options.input_fd = ends.input;
        attach_options.stream_fds[0] = ends.streams[0];
        attach_options.stream_fds[1] = ends.streams[1];
        if (rollbox_attach(view->sandbox, &attach_options, &view->run, &error) < 0) {
            terminal_restore();
            status = outcome_fail(options, &error);
        }
    }
    view_ends_close(&ends);
    if (status)
        return status;
    if (view->terminal)
        redraw(view);
    return view_follow(view, UINT64_MAX);
}

int cmd_attach(const struct options *options) {
    auto_free char *id = NULL;
    struct view view;

    int status = view_init(&view, options);
    if (!status)
        status = session_open(options, &view.pump.engine, &view.sandbox);
    if (status)
        return status;
    view.attached = true;
    view.id = options->n_rest > 1 ? options->rest[1] : NULL;
    if (!view.id)
        status = choose_command(&view, &id);
    if (id)
        view.id = id;
    if (!status)
        status = attach_exec(&view);
    view_done(&view);
    return cli_end(status);
}
