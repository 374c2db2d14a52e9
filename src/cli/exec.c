/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox exec and attach: a command of a sandbox that lives, seen from here.
 *
 * The command belongs to the sandbox and not to this process: it is started detached, and ends with us only where we say so (SIGINT, SIGTERM). Its
 * streams are pipes that the engine writes to and reads from, relayed to and from ours as rollbox run does; with a terminal of its own, its one stream is
 * what that shows, and ours is raw meanwhile, so that keys, signals and sizes are the command's business. With --json nothing is streamed: the result has the
 * output. What the engine has not delivered yet when the command ends still comes: the end of a stream is its end of file.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/pump.h"
#include "cli/session.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "policy/policy.h"

/* A login shell, with what it is to do as $1, or none. */
#define SHELL_OF_STRING "if command -v bash >/dev/null 2>&1; then exec bash -lc -- \"$1\"; else exec sh -lc -- \"$1\"; fi"
#define SHELL_ALONE "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"

/* One command, from its start to its end. */
struct view {
    const struct options *options;
    struct rollbox_sandbox *sandbox;
    struct rollbox_run *run;
    struct pump pump;
    const char *id;
    bool attached;              /* somebody else's: signals end only us */
    bool terminal;              /* ours is its terminal */
    bool left;                  /* by a signal that is not for the command */
    int resize_fds[2];          /* a pipe: the size of our terminal changed */
};

/* ---- streams ------------------------------------------------------------------------------------------------------ */

/* The other ends of the streams, for the engine. */
struct ends {
    int input;
    int streams[2];
};

static void ends_close(struct ends *ends) {
    close_fd(&ends->input);
    close_fd(&ends->streams[0]);
    close_fd(&ends->streams[1]);
}

/* Makes the pipes that are wanted and their relays. 0, or an exit status after a line. */
static int open_streams(struct view *view, bool input, bool output, bool errors, struct ends *ret_ends) {
    const bool wanted[N_STREAMS] = { input, output, errors };
    int *theirs[N_STREAMS] = { &ret_ends->input, &ret_ends->streams[0], &ret_ends->streams[1] };

    for (int i = 0; i < N_STREAMS; i++)
        *theirs[i] = -EBADF;
    for (int i = 0; i < N_STREAMS; i++) {
        int status = wanted[i] ? pump_open(&view->pump, view->options, (enum stream)i, i == STREAM_OUT ? STDOUT_FILENO : STDERR_FILENO, UINT64_MAX, theirs[i]) : 0;

        if (status)
            return status;
    }
    return 0;
}

/* Lends our terminal. What is no terminal is not typed into one: it would be echoed, edited and taken for keys. */
static int lend_terminal(struct view *view) {
    if (!isatty(STDIN_FILENO))
        return cli_fail(view->options, "the input device is not a TTY: leave out -t for input from a pipe or a file, or -i for none");
    if (pipe2(view->resize_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return cli_fail(view->options, "cannot make a pipe: %s", strerror(errno));
    int r = terminal_raw(view->resize_fds[1]);
    if (r < 0)
        return cli_fail(view->options, "cannot make the terminal raw: %s", strerror(-r));
    view->terminal = true;
    return 0;
}

static void tell_size(const struct view *view) {
    const struct rollbox_terminal size = terminal_size();

    /* It may have ended just now. */
    (void)rollbox_resize(view->sandbox, view->id, &size, NULL);
}

/* What our own signals mean. True: leave. */
static bool on_signal(struct view *view) {
    int number = signals_caught();

    terminal_restore();
    if (view->attached || number == SIGHUP)
        return true;
    rollbox_kill(view->run, ROLLBOX_OUTCOME_ERROR);
    return false;
}

/* Moves the streams until the command has ended and all that it wrote is here. */
static void move(struct view *view) {
    struct pump *pump = &view->pump;
    bool broken = false;
    char drop[64];

    for (;;) {
        rollbox_dispatch(pump->engine);
        /* A command that has ended may still have output that nobody takes. */
        if (pump_signalled(pump) && (pump->ended || on_signal(view))) {
            view->left = true;
            return;
        }
        if (pump->ended) {
            relay_done(&pump->relays[STREAM_IN]);
        } else if (!broken && pump->relays[STREAM_OUT].broken) {
            /* As if it held our standard output itself. */
            broken = true;
            if (!view->attached)
                (void)rollbox_signal(view->sandbox, view->id, SIGPIPE, ROLLBOX_SCOPE_TREE, NULL);
        } else if (view->terminal && terminal_resized()) {
            tell_size(view);
        }
        /* A call above may have taken the result along. */
        rollbox_dispatch(pump->engine);
        if (pump_is_over(pump))
            return;
        if (pump_wait(pump, view->resize_fds[0]))
            (void)!read(view->resize_fds[0], drop, sizeof drop);
    }
}

/* Writes what a retry by an id got at once: the first one's output, which came with its result and not by a stream. */
static int write_rest(const struct view *view, const struct relay *relay, int fd, const void *data, size_t length) {
    int r = relay->passed || relay->broken || !length ? 0 : fd_write_all(fd, data, length);

    return r < 0 && r != -EPIPE ? cli_fail(view->options, "cannot write to standard %s: %s", fd == STDOUT_FILENO ? "output" : "error", strerror(-r)) : 0;
}

/* The command's end as ours. */
static int conclude(struct view *view, uint64_t output_limit) {
    const struct relay *out = &view->pump.relays[STREAM_OUT], *err = &view->pump.relays[STREAM_ERR];
    const struct rollbox_result *result;

    terminal_restore();
    if (view->left)
        return CLI_EXIT_ERROR;
    int status = pump_result(&view->pump, view->options, view->run, &result);
    if (status)
        return status;
    if (options_has(view->options, OPTION_JSON))
        return outcome_print_json(view->options, result, view->id);
    status = write_rest(view, out, STDOUT_FILENO, result->stdout_data, result->stdout_length);
    if (!status)
        status = write_rest(view, err, STDERR_FILENO, result->stderr_data, result->stderr_length);
    return status ? status : outcome_status(view->options, result, output_limit);
}

/* ---- exec --------------------------------------------------------------------------------------------------------- */

/* The command's argv in the caller's array. 0, or an exit status after a line. */
static int make_argv(const struct options *options, const char *shell[6], const char *const **ret_argv) {
    const char *string = options_text(options, OPTION_SHELL);

    if (string && options->n_rest > 1)
        return cli_fail(options, "--shell and a command exclude each other: '%s'", options->rest[1]);
    if (!string && options->n_rest > 1) {
        *ret_argv = (const char *const *)options->rest + 1;
        return 0;
    }
    if (!string && !options_has(options, OPTION_TTY))
        return cli_fail(options, "the command to run is missing: rollbox exec %s -- COMMAND, or -it for a shell", options->rest[0]);
    shell[0] = "sh";
    shell[1] = "-c";
    shell[2] = string ? SHELL_OF_STRING : SHELL_ALONE;
    shell[3] = "sh";
    shell[4] = string;
    shell[5] = NULL;
    *ret_argv = shell;
    return 0;
}

/* --env, and with a terminal what kind ours is. */
static const char **make_environment(const struct options *options, char **ret_term) {
    const char **env = calloc(options->n_uses + 2, sizeof *env), *term = getenv("TERM");
    size_t n = 0;

    if (!env)
        return NULL;
    for (size_t i = 0; i < options->n_uses; i++)
        if (options->uses[i].option->id == OPTION_ENV) {
            env[n++] = options->uses[i].value;
            if (strncmp(options->uses[i].value, "TERM=", 5) == 0)
                term = NULL;
        }
    if (options_has(options, OPTION_TTY) && term && term[0] && asprintf(ret_term, "TERM=%s", term) > 0)
        env[n++] = *ret_term;
    return env;
}

static int make_id(char id[13]) {
    unsigned char random[6];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -errno;
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(id + 2 * i, 3, "%02x", random[i]);
    return 0;
}

/* The id of a command that is left running, once the engine has it. */
static int leave(struct view *view) {
    const struct rollbox_result *result;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;

    /* Requests are answered in their order as far as that goes: what stops a command at once is known by now. */
    if (rollbox_sandbox_query(view->sandbox, ROLLBOX_QUERY_INSPECT, &json, &error) < 0)
        return outcome_fail(view->options, &error);
    if (rollbox_wait(view->run, 0, &result) == 0 && result->outcome == ROLLBOX_OUTCOME_ERROR)
        return options_has(view->options, OPTION_JSON) ? outcome_print_json(view->options, result, view->id) : outcome_status(view->options, result, UINT64_MAX);
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

static int start(struct view *view, struct rollbox_exec_options *exec) {
    const struct options *options = view->options;
    const bool detach = options_has(options, OPTION_DETACH), tty = options_has(options, OPTION_TTY), stream = !detach && !options_has(options, OPTION_JSON);
    const struct rollbox_terminal size = terminal_size();
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct ends ends;

    int status = open_streams(view, options_has(options, OPTION_INTERACTIVE), stream, stream && !tty, &ends);
    /* All that can fail comes before the command is there: it would run on without us. */
    if (!status && !detach)
        status = pump_catch_signals(&view->pump, options);
    if (!status && tty && options_has(options, OPTION_INTERACTIVE))
        status = lend_terminal(view);
    if (!status) {
        exec->input_fd = ends.input;
        exec->stream_fds[0] = ends.streams[0];
        exec->stream_fds[1] = ends.streams[1];
        exec->terminal = tty ? &size : NULL;
        if (rollbox_exec(view->sandbox, exec, &view->run, &error) < 0) {
            terminal_restore();
            status = outcome_fail(options, &error);
        }
    }
    ends_close(&ends);
    if (status)
        return status;
    if (detach)
        return leave(view);
    move(view);
    return conclude(view, exec->output_limit >= 0 ? (uint64_t)exec->output_limit : UINT64_MAX);
}

static void view_done(struct view *view) {
    terminal_restore();
    rollbox_run_free(view->run);
    rollbox_sandbox_free(view->sandbox);
    rollbox_engine_close(view->pump.engine);
    pump_done(&view->pump);     /* last: while we are connected, the end of our input is that of the command's terminal */
}

static void view_init(struct view *view, const struct options *options) {
    *view = (struct view){ .options = options, .resize_fds = { -EBADF, -EBADF } };
    pump_init(&view->pump, NULL);
}

int cmd_exec(const struct options *options) {
    const struct option_use *timeout = options_last(options, OPTION_TIMEOUT);
    const char *limit = options_text(options, OPTION_OUTPUT_LIMIT), *cwd_given = options_text(options, OPTION_CWD);
    auto_free char *cwd = NULL, *term = NULL;
    auto_free const char **env = NULL;
    const char *shell[6];
    uint64_t limit_bytes = 0;
    struct view view;
    char id[13];

    view_init(&view, options);
    struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .user = options_text(options, OPTION_USER),
        .timeout_ms = !timeout ? -1 : timeout->number <= 0 ? ROLLBOX_NO_TIMEOUT : (int64_t)MAX(MIN(timeout->number, 9e9) * 1000, 1.0),
        .output_limit = -1,
        .operation_id = options_text(options, OPTION_ID),
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .detached = true,
        .callback = pump_on_end,
        .userdata = &view.pump,
    };
    if (options_has(options, OPTION_DETACH) && options_has(options, OPTION_INTERACTIVE))
        return cli_fail(options, "--detach and --interactive exclude each other: what is left running has no standard input");
    if (limit && policy_parse_size(limit, &limit_bytes) < 0)
        return cli_fail(options, "--output-limit %s: not a size such as 10M", limit);
    if (limit)
        exec.output_limit = (int64_t)MIN(limit_bytes, (uint64_t)INT64_MAX);
    if (cwd_given && !(exec.cwd = cwd = cli_path_absolute(cwd_given)))
        return cli_fail(options, "out of memory");
    if (!exec.operation_id) {
        if (make_id(id) < 0)
            return cli_fail(options, "cannot make an id: %s", strerror(errno));
        exec.operation_id = id;
    }
    view.id = exec.operation_id;
    int status = make_argv(options, shell, &exec.argv);
    if (status)
        return status;
    exec.env = env = make_environment(options, &term);
    if (!env)
        return cli_fail(options, "out of memory");
    status = session_open(options, &view.pump.engine, &view.sandbox);
    if (status)
        return status;
    status = start(&view, &exec);
    view_done(&view);
    return cli_end(status);
}

/* ---- attach ------------------------------------------------------------------------------------------------------- */

/* Has the command a terminal? */
static bool has_terminal(const struct view *view) {
    auto_free char *json = NULL;
    bool found = false;
    json_t *exec;
    size_t i;

    if (rollbox_sandbox_query(view->sandbox, ROLLBOX_QUERY_INSPECT, &json, NULL) < 0)
        return false;
    json_t *answer = json_loads(json, 0, NULL);
    json_array_foreach(json_object_get(answer, "execs"), i, exec) {
        const char *id = json_string_value(json_object_get(exec, "id"));

        found = found || (id && strcmp(id, view->id) == 0 && json_is_true(json_object_get(exec, "terminal")));
    }
    json_decref(answer);
    return found;
}

static int attach(struct view *view) {
    const struct options *options = view->options;
    const bool input = options_has(options, OPTION_INTERACTIVE), stream = !options_has(options, OPTION_JSON);
    struct rollbox_attach_options attach_options = {
        .size = sizeof attach_options, .operation_id = view->id, .input_fd = -1, .stream_fds = { -1, -1 }, .callback = pump_on_end, .userdata = &view->pump,
    };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const bool tty = has_terminal(view);
    struct ends ends;

    if (input && !tty)
        return cli_fail(options, "--interactive: %s has no terminal to type into", view->id);
    int status = open_streams(view, input, stream, stream && !tty, &ends);
    if (!status)
        status = pump_catch_signals(&view->pump, options);
    if (!status && input)
        status = lend_terminal(view);
    if (!status) {
        attach_options.input_fd = ends.input;
        attach_options.stream_fds[0] = ends.streams[0];
        attach_options.stream_fds[1] = ends.streams[1];
        if (rollbox_attach(view->sandbox, &attach_options, &view->run, &error) < 0) {
            terminal_restore();
            status = outcome_fail(options, &error);
        }
    }
    ends_close(&ends);
    if (status)
        return status;
    if (view->terminal)
        tell_size(view);
    move(view);
    return conclude(view, UINT64_MAX);
}

int cmd_attach(const struct options *options) {
    struct view view;

    view_init(&view, options);
    view.attached = true;
    view.id = options->rest[1];
    int status = session_open(options, &view.pump.engine, &view.sandbox);
    if (status)
        return status;
    status = attach(&view);
    view_done(&view);
    return cli_end(status);
}
