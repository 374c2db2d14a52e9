/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "cli/view.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/trace.h"

/* A shell, with its command as $1, or without one. */
#define SHELL_OF_STRING                                                                            \
    "if command -v bash >/dev/null 2>&1; then exec bash -lc -- \"$1\"; else exec sh -lc -- "       \
    "\"$1\"; fi"
#define LOGIN_SHELL "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"
#define PLAIN_SHELL "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"

/* ---- streams ---- */

void view_ends_close(struct view_ends *ends) {
    close_fd(&ends->input);
    close_fd(&ends->streams[0]);
    close_fd(&ends->streams[1]);
}

int view_open(struct view *view, bool input, bool output, bool errors, struct view_ends *ret_ends) {
    const bool wanted[N_STREAMS] = { input, output, errors };
    int *theirs[N_STREAMS] = { &ret_ends->input, &ret_ends->streams[0], &ret_ends->streams[1] };

    for (int i = 0; i < N_STREAMS; i++)
        *theirs[i] = -EBADF;
    for (int i = 0; i < N_STREAMS; i++) {
        int status =
            wanted[i] ? copy_stream_open(&view->pump, view->options, (enum stream)i,
                            i == STREAM_OUT ? STDOUT_FILENO : STDERR_FILENO, UINT64_MAX, theirs[i])
                      : 0;

        if (status)
            return status;
    }
    return 0;
}

/* Connects our terminal. Input that is not a terminal is not typed into one: it would be echoed,
 * edited and interpreted as keys. */
int view_lend_terminal(struct view *view) {
    if (!isatty(STDIN_FILENO))
        return cli_fail(view->options, "the input device is not a TTY: leave out -t for input from "
                                       "a pipe or a file, or -i for none");
    if (pipe2(view->resize_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return cli_fail(view->options, "cannot make a pipe: %s", strerror(errno));
    int r = terminal_raw(view->resize_fds[1]);
    if (r < 0)
        return cli_fail(view->options, "cannot make the terminal raw: %s", strerror(-r));
    view->terminal = true;
    view->pump.relays[STREAM_IN].keys = &view->keys;
    return 0;
}

void view_tell_size(const struct view *view) {
    const struct rollbox_terminal size = terminal_size();

    /* It may have ended just now. */
    (void)rollbox_resize(view->sandbox, view->id, &size, NULL);
}

/* Handles our own signals. True: leave. */
static bool on_signal(struct view *view) {
    int number = signals_caught();

    terminal_restore();
    if (view->attached || number == SIGHUP)
        return true;
    rollbox_kill(view->run, ROLLBOX_OUTCOME_ERROR);
    return false;
}

/* A rollbox attach for the user to copy. */
static void tell_detached(const struct view *view) {
    const char *socket = options_text(view->options, OPTION_SOCKET);

    (void)cli_fail(view->options,
        "detached: %s runs on in %s; to see it again: rollbox attach -it%s%s %s %s", view->id,
        rollbox_sandbox_name(view->sandbox), text_if(socket, " --socket "), text_or(socket, ""),
        rollbox_sandbox_name(view->sandbox), view->id);
}

/* True: leave. The keys before them are the command's, as far as it takes them now. */
static bool on_detach_keys(struct view *view) {
    struct stdio_relay *input = &view->pump.relays[STREAM_IN];

    if (view->one_off) {
        view->keys.seen = false;
        fputs("\r\n", stderr);
        (void)cli_fail(view->options, "cannot detach: this sandbox ends with rollbox; rollbox "
                                      "create and exec -it make one to come back to\r");
        return false;
    }
    if (input->state == RELAY_WAIT_OUTPUT)
        stdio_relay_ready(input);
    view->detached = true;
    return true;
}

/* The latest client types; earlier ones only see the output. The command may also be about to end,
 * or have closed its terminal. */
static void lose_input(struct view *view) {
    auto_free char *json = NULL;

    /* The engine answers in order: an end that comes before the answer is known then. */
    if (rollbox_sandbox_query(view->sandbox, ROLLBOX_QUERY_EXECS, &json, NULL) < 0)
        return;
    rollbox_dispatch(view->pump.engine);
    if (view->pump.ended)
        return;
    terminal_restore();
    view->terminal = false;
    view->attached = true;
    (void)cli_fail(view->options,
        "%s takes no more keys from here: another client has attached to it; its output is still "
        "shown here, and Ctrl-C leaves",
        view->id);
}

/* Moves the streams until the command has ended and all that it wrote is here. */
static void move(struct view *view) {
    struct copy_stream *pump = &view->pump;
    bool broken = false;
    char drop[64];

    for (;;) {
        rollbox_dispatch(pump->engine);
        /* A command that has ended may still have output without a reader. */
        if (copy_stream_signalled(pump) && (pump->ended || on_signal(view))) {
            view->left = true;
            return;
        }
        if (pump->ended) {
            stdio_relay_done(&pump->relays[STREAM_IN]);
        } else if (!broken && pump->relays[STREAM_OUT].broken) {
            /* As if it held our standard output itself. */
            broken = true;
            if (!view->attached)
                (void)rollbox_signal(view->sandbox, view->id, SIGPIPE, ROLLBOX_SCOPE_TREE, NULL);
        } else if (view->terminal && terminal_resized()) {
            view_tell_size(view);
        }
        if (view->terminal && !pump->ended && pump->relays[STREAM_IN].broken)
            lose_input(view);
        /* A call above may have received the result as well. */
        rollbox_dispatch(pump->engine);
        if (copy_stream_is_over(pump))
            return;
        if (copy_stream_wait(pump, view->resize_fds[0]))
            (void)!read(view->resize_fds[0], drop, sizeof drop);
        if (view->keys.seen && on_detach_keys(view))
            return;
    }
}

/* Writes the output of a retry by id: the first call's output, which came with its result and not
 * by a stream. */
static int write_rest(const struct view *view, const struct stdio_relay *relay, int fd,
    const void *data, size_t length) {
    int r = relay->passed || relay->broken || !length ? 0 : fd_write_all(fd, data, length);

    return r < 0 && r != -EPIPE ? cli_fail(view->options, "cannot write to standard %s: %s",
                                      fd == STDOUT_FILENO ? "output" : "error", strerror(-r))
                                : 0;
}

static void trace(const struct options *options, const struct rollbox_result *result) {
    cli_trace(options, result, options->n_rest > 1 ? options->rest[1] : NULL,
        options->n_rest ? options->rest[0] : "", 0);
}

/* The command's end as ours. */
static int conclude(struct view *view, uint64_t output_limit) {
    const struct stdio_relay *out = &view->pump.relays[STREAM_OUT],
                             *err = &view->pump.relays[STREAM_ERR];
    const struct rollbox_result *result;

    terminal_restore();
    if (view->detached) {
        tell_detached(view);
        return 0;
    }
    if (view->left)
        return CLI_EXIT_ERROR;
    int status = copy_stream_result(&view->pump, view->options, view->run, &result);
    if (status)
        return status;
    if (!view->attached)
        trace(view->options, result);
    if (options_has(view->options, OPTION_JSON))
        return outcome_print_json(view->options, result, view->id);
    status = write_rest(view, out, STDOUT_FILENO, result->stdout_data, result->stdout_length);
    if (!status)
        status = write_rest(view, err, STDERR_FILENO, result->stderr_data, result->stderr_length);
    if (status)
        return status;
    const struct stdio_relay *last = err->tail_length ? err : out; /* a terminal is one stream */
    outcome_hint_network(view->options, result, last->tail, last->tail_length);
    return outcome_status(view->options, result, output_limit);
}

int view_follow(struct view *view, uint64_t output_limit) {
    move(view);
    return conclude(view, output_limit);
}

int view_start(struct view *view, struct rollbox_exec_options *exec, bool input, bool tty) {
    const struct options *options = view->options;
    const bool detach = options_has(options, OPTION_DETACH),
               stream = !detach && !options_has(options, OPTION_JSON);
    const struct rollbox_terminal size = terminal_size();
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct view_ends ends;

    int status = view_open(view, input, stream, stream && !tty, &ends);
    /* Everything that can fail is done before the command starts: it would continue without us. */
    if (!status && !detach)
        status = copy_stream_catch_signals(&view->pump, options);
    if (!status && tty && input)
        status = view_lend_terminal(view);
    if (!status) {
        exec->input_fd = ends.input;
        exec->stream_fds[0] = ends.streams[0];
        exec->stream_fds[1] = ends.streams[1];
        exec->terminal = tty ? &size : NULL;
        if (rollbox_exec(view->sandbox, exec, &view->run, &error) < 0) {
            terminal_restore();
            status = outcome_fail(options, &error);
        }
        exec->terminal = NULL;
    }
    view_ends_close(&ends);
    return status;
}

/* ---- start of the command ---- */

void view_shell(const char *string, bool is_login, const char *argv[6]) {
    argv[0] = "sh";
    argv[1] = "-c";
    argv[2] = is_login ? LOGIN_SHELL : PLAIN_SHELL;
    if (string)
        argv[2] = SHELL_OF_STRING;
    argv[3] = "sh";
    argv[4] = string;
    argv[5] = NULL;
}

const char **view_environment(const struct options *options, bool tty, char **ret_term) {
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
    if (tty && term && term[0] && asprintf(ret_term, "TERM=%s", term) > 0)
        env[n++] = *ret_term;
    return env;
}

int view_make_id(char id[13]) {
    unsigned char random[6];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -errno;
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(id + 2 * i, 3, "%02x", random[i]);
    return 0;
}

/* ---- the view itself ---- */

int view_init(struct view *view, const struct options *options) {
    const char *keys = options_text(options, OPTION_DETACH_KEYS);

    *view = (struct view){ .options = options, .resize_fds = { -EBADF, -EBADF } };
    copy_stream_init(&view->pump, NULL);
    if (keys_parse(keys ? keys : KEYS_DEFAULT, false, &view->keys) < 0)
        return cli_fail(options,
            "--detach-keys %s: must be keys with commas between them, such as ctrl-p,ctrl-q or "
            "ctrl-],x, or none",
            keys);
    return 0;
}

void view_done(struct view *view) {
    terminal_restore();
    rollbox_run_free(view->run);
    rollbox_sandbox_free(view->sandbox);
    rollbox_engine_close(view->pump.engine);
    copy_stream_done(&view->pump); /* last: while connected, the end of our input is the end of the
                                      terminal's input */
}
