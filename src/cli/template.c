/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates: Python processes that have run some code, kept for forking.
 *
 * A template NAME is the session template.NAME of a shared engine with one interpreter
 * (python/rollbox/_clone_guest.py). The interpreter ran the template's code and was captured in the
 * snapshot "template" while it waited for a program. The interpreter then ended; the snapshot is
 * kept. A run forks that snapshot: the interpreter receives the program through a new pipe in place
 * of the one on which it waited, and the fork ends with the program. Messages are a length in 8
 * bytes and JSON.
 */
#include "cli/template.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <guest_source.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/copy_stream.h"
#include "cli/session.h"
#include "cli/format.h"
#include "cli/signals.h"
#include "policy/policy.h"

#define PREFIX "template."
#define SNAPSHOT "template"
#define COMMAND "python"
#define FOR_EVER_MS INT64_C(1000000000000)
#define MAX_ANSWER (1 << 20)

enum { CONTROL = 3, RESULTS = 4 }; /* the interpreter's descriptors */

static int sandbox_name(const struct options *options, const char *name, char **ret_name) {
    return asprintf(ret_name, PREFIX "%s", name) < 0 ? cli_fail(options, "out of memory") : 0;
}

/* Takes the object. 0, or an exit status after a line. */
static int send_message(const struct options *options, int fd, json_t *take_message) {
    auto_free char *text = take_message ? json_dumps(take_message, JSON_COMPACT) : NULL;

    json_decref(take_message);
    if (!text)
        return cli_fail(options, "the code and its arguments must be UTF-8");
    const uint64_t length = htobe64(strlen(text));
    int r = fd_write_all(fd, &length, sizeof length);
    if (r >= 0)
        r = fd_write_all(fd, text, strlen(text));
    /* One that is gone says so by its end. */
    return r < 0 && r != -EPIPE ? cli_fail(options, "cannot write to the sandbox: %s", strerror(-r))
                                : 0;
}

/* ---- create ---- */

struct making {
    const struct options *options;
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox;
    struct rollbox_run *run;
    int control, results;
    bool ended;
};

static void on_end(struct rollbox_run *run, void *making) {
    (void)run;
    ((struct making *)making)->ended = true;
}

static int start_python(struct making *making) {
    const char *const argv[] = { "python3", "-c", guest_source, NULL };
    auto_close int control = -EBADF, results = -EBADF, input = -EBADF;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int ends[3][2];

    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        if (pipe2(ends[i], O_CLOEXEC) < 0)
            return cli_fail(making->options, "cannot make a pipe: %s", strerror(errno));
        if (i == 0)
            control = ends[i][0], making->control = ends[i][1];
        else if (i == 1)
            results = ends[i][1], making->results = ends[i][0];
        else
            input = ends[i][0], close(ends[i][1]);
    }
    const int extra[] = { control, results };
    const struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .argv = argv,
        .timeout_ms = FOR_EVER_MS,
        .output_limit = -1,
        .operation_id = COMMAND,
        .input_fd = input,
        .stream_fds = { -1, -1 },
        .extra_fds = extra,
        .n_extra_fds = ARRAY_SIZE(extra),
        .detached = true,
        .callback = on_end,
        .userdata = making,
    };
    return rollbox_exec(making->sandbox, &exec, &making->run, &error) < 0
               ? cli_fail_error(making->options, &error)
               : 0;
}

/* Reads until the interpreter's message is whole, it has ended, or a signal came. */
static int wait_ready(struct making *making, struct buf *answer) {
    char data[4096];

    while (!signals_caught()) {
        struct pollfd polls[] = { { .fd = making->results, .events = POLLIN },
            { .fd = rollbox_engine_fd(making->engine), .events = POLLIN },
            { .fd = signals_fd(), .events = POLLIN } };

        rollbox_dispatch(making->engine);
        uint64_t length = 0;
        if (answer->length >= sizeof length)
            memcpy(&length, answer->data, sizeof length);
        length = be64toh(length);
        if (answer->length >= 8 && (length > MAX_ANSWER || answer->length - 8 >= length))
            return 0;
        if (making->ended && polls[0].fd < 0)
            return 0;
        if (poll(polls, ARRAY_SIZE(polls), making->ended ? 0 : -1) < 0 && errno != EINTR)
            return cli_fail(making->options, "cannot wait: %s", strerror(errno));
        if (polls[0].revents) {
            ssize_t n = read(making->results, data, sizeof data);

            if (n > 0)
                buf_add(answer, data, (size_t)n);
            else if (making->ended)
                return 0;
            else
                close_fd(&making->results);
        } else if (making->ended) {
            return 0;
        }
    }
    return CLI_EXIT_ERROR;
}

static void show_lines(const char *text, size_t length) {
    while (length) {
        const char *end = memchr(text, '\n', length);
        size_t n = end ? (size_t)(end - text) : length;

        format_error(text, n);
        fputc('\n', stderr);
        text += n + (end != NULL);
        length -= n + (end != NULL);
    }
}

/* The exception of the code, or the interpreter's end. */
static int tell_failure(struct making *making, const json_t *answer) {
    const json_t *raised = json_object_get(answer, "raised");
    const char *text = json_string_value(json_object_get(raised, "traceback"));
    const struct rollbox_result *result;

    (void)rollbox_signal(making->sandbox, COMMAND, SIGKILL, ROLLBOX_SCOPE_TREE, NULL);
    if (text) {
        show_lines(text, strlen(text));
        return cli_fail(making->options, "the code of --python failed; there is no template");
    }
    if (rollbox_wait(making->run, -1, &result) < 0)
        return cli_fail(making->options, "the interpreter is lost");
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        return cli_fail_error(making->options, &result->error);
    show_lines(result->stderr_data, result->stderr_length);
    return cli_fail(making->options,
        "the interpreter ended before the code of --python was done; there is no template");
}

static int make_template(struct making *making, const char *code) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_buf struct buf answer = BUF_INIT;
    auto_free char *json = NULL;

    int status = start_python(making);
    if (!status)
        status = send_message(making->options, making->control, json_pack("{s:s}", "code", code));
    if (!status)
        status = wait_ready(making, &answer);
    if (status)
        return status;
    json_t *message =
        answer.length > 8 ? json_loadb(answer.data + 8, answer.length - 8, 0, NULL) : NULL;
    if (!json_is_true(json_object_get(message, "ready")))
        status = tell_failure(making, message);
    json_decref(message);
    if (!status && rollbox_snapshot(making->sandbox, SNAPSHOT, NULL, &json, &error) < 0)
        status = cli_fail_error(making->options, &error);
    return status;
}

static int create_template(const struct options *options, struct rollbox_engine *engine,
    const struct cli_policy *policy, const char *code) {
    struct making making = {
        .options = options, .engine = engine, .control = -EBADF, .results = -EBADF
    };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *name = NULL;
    struct rollbox_plan *plan;

    if (sandbox_name(options, options->rest[0], &name))
        return CLI_EXIT_ERROR;
    const struct rollbox_sandbox_options sandbox_options = {
        .size = sizeof sandbox_options, .name = name, .detached = true
    };
    int caught = signals_catch();
    if (caught < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(-caught));
    if (rollbox_prepare(engine, policy->text, policy->length, &plan, &error) < 0 ||
        rollbox_sandbox_create(engine, plan, &sandbox_options, &making.sandbox, &error) < 0)
        return cli_fail_error(options, &error);
    int status = make_template(&making, code);
    /* At the end of its input it ends: the snapshot has it. */
    close_fd(&making.control);
    close_fd(&making.results);
    rollbox_run_free(making.run);
    if (status)
        (void)rollbox_sandbox_close(making.sandbox, NULL);
    else
        rollbox_sandbox_free(making.sandbox);
    return status;
}

static int template_create(const struct options *options) {
    const char *code = options_text(options, OPTION_PYTHON);
    struct rollbox_engine *engine;
    struct cli_policy policy;

    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    status = session_connect(options, &engine);
    if (!status) {
        status = create_template(options, engine, &policy, code ? code : "");
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_end(status);
}

/* ---- ls, rm ---- */

static int list_templates(const struct options *options, struct rollbox_engine *engine) {
    static const struct format_column columns[] = { { "NAME", "name", SHOWN_TEXT },
        { "CREATED", "created", SHOWN_TIME } };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;
    json_t *row;
    size_t i;

    if (rollbox_sandbox_list(engine, &json, &error) < 0)
        return cli_fail_error(options, &error);
    json_t *answer = json_loads(json, 0, NULL), *found = json_array();
    json_array_foreach(json_object_get(answer, "sandboxes"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));

        if (name && strncmp(name, PREFIX, strlen(PREFIX)) == 0)
            (void)json_array_append_new(
                found, json_pack("{s:s, s:O}", "name", name + strlen(PREFIX), "created",
                           json_object_get(row, "created")));
    }
    if (options_has(options, OPTION_JSON)) {
        (void)json_dumpf(found, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
    } else if (options_has(options, OPTION_QUIET)) {
        json_array_foreach(found, i, row)
            format_line(json_string_value(json_object_get(row, "name")));
    } else {
        format_table(found, columns, ARRAY_SIZE(columns));
    }
    json_decref(found);
    json_decref(answer);
    return cli_flush(options, 0);
}

/* Opens the sandbox of a template. 0, or an exit status after a line. */
static int open_template(const struct options *options, struct rollbox_engine *engine,
    const char *given, struct rollbox_sandbox **ret_sandbox) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *name = NULL;

    if (sandbox_name(options, given, &name))
        return CLI_EXIT_ERROR;
    if (rollbox_sandbox_open(engine, name, ret_sandbox, &error) == 0)
        return 0;
    return error.code == ROLLBOX_ERR_NOT_FOUND
               ? cli_fail(options, "there is no template %s; rollbox template ls lists them", given)
               : cli_fail_error(options, &error);
}

int cmd_template(const struct options *options) {
    struct rollbox_engine *engine;

    if (options->command->bit == COMMAND_TEMPLATE_CREATE)
        return cli_done(options, template_create(options));
    int status = session_connect(options, &engine);
    if (status)
        return status;
    if (options->command->bit == COMMAND_TEMPLATE_LS)
        status = list_templates(options, engine);
    for (int i = 0; i < options->n_rest; i++) {
        struct rollbox_error error = { .code = ROLLBOX_OK };
        struct rollbox_sandbox *sandbox;

        if (open_template(options, engine, options->rest[i], &sandbox))
            status = CLI_EXIT_ERROR;
        else if (rollbox_sandbox_close(sandbox, &error) < 0)
            status = cli_fail_error(options, &error);
    }
    rollbox_engine_close(engine);
    return options->command->bit == COMMAND_TEMPLATE_LS ? status : cli_done(options, status);
}

/* ---- run ---- */

/* Checks the options for a run whose sandbox exists already. 0, or an exit status after a line. */
static int check_options(const struct options *options) {
    for (size_t i = 0; i < options->n_uses; i++) {
        const struct option *option = options->uses[i].option;

        if (option->id != OPTION_TIMEOUT && (option->policy_key || option->id == OPTION_POLICY))
            return cli_fail(options,
                "--%s and --template exclude each other: a template has the policy that it was "
                "created under",
                option->name);
    }
    const char *program = options->n_rest ? options->rest[0] : "";
    if (strcmp(program, "python3") != 0 && strcmp(program, "python") != 0)
        return cli_fail(options,
            "--template: a template runs python3 -c CODE or python3 FILE, and not %s; other "
            "commands need no template",
            program[0] ? program : "nothing");
    if (options->n_rest < 2 || (options->rest[1][0] == '-' &&
                                   (strcmp(options->rest[1], "-c") != 0 || options->n_rest < 3)))
        return cli_fail(options, "--template: its python3 is started already and takes -c CODE or "
                                 "FILE, with their arguments, and no other option");
    return 0;
}

/* A timer of --timeout, else of the policy's time-out, else of a run's default; -EBADF: no limit.
 */
static int make_timer(
    const struct options *options, struct rollbox_sandbox *sandbox, int *ret_timer) {
    const struct option_use *given = options_last(options, OPTION_TIMEOUT);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;

    if (rollbox_sandbox_query(sandbox, ROLLBOX_QUERY_INSPECT, &json, &error) < 0)
        return outcome_fail(options, &error);
    json_t *answer = json_loads(json, 0, NULL);
    const json_t *policy_seconds = json_object_get(json_object_get(answer, "policy"), "timeout");
    /* The default of any run, which the engine knows; to the engine a template's fork is a session.
     */
    double seconds = given                            ? given->number
                     : json_is_number(policy_seconds) ? json_number_value(policy_seconds)
                     : json_is_string(policy_seconds) ? 0
                                                      : POLICY_RUN_TIMEOUT_MS / 1000.0;
    json_decref(answer);
    *ret_timer = -EBADF;
    if (seconds <= 0 || seconds > 1e9)
        return 0;
    const struct itimerspec at = {
        .it_value = { .tv_sec = (time_t)seconds,
            .tv_nsec = MAX((long)((seconds - (double)(time_t)seconds) * 1e9), 1L) }
    };
    *ret_timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (*ret_timer < 0 || timerfd_settime(*ret_timer, 0, &at, NULL) < 0)
        return cli_fail(options, "cannot make a timer: %s", strerror(errno));
    return 0;
}

/* Moves the streams until the program has ended. True: its time was over before. */
static bool move_streams(struct copy_stream *pump, struct rollbox_sandbox *sandbox, int timer) {
    bool is_late = false, broken = false;

    for (;;) {
        rollbox_dispatch(pump->engine);
        if (pump->ended && (stdio_relay_done(&pump->relays[STREAM_IN]), copy_stream_is_over(pump)))
            return is_late;
        bool is_signalled = copy_stream_signalled(pump),
             is_broken = !broken && pump->relays[STREAM_OUT].broken;
        broken |= is_broken;
        if (!pump->ended && (is_signalled || is_broken))
            (void)rollbox_signal(
                sandbox, COMMAND, is_broken ? SIGPIPE : SIGKILL, ROLLBOX_SCOPE_TREE, NULL);
        rollbox_dispatch(pump->engine);
        if (pump->ended && copy_stream_is_over(pump))
            return is_late;
        if (copy_stream_wait(pump, is_late ? -EBADF : timer) && !pump->ended) {
            is_late = true;
            (void)rollbox_signal(sandbox, COMMAND, SIGKILL, ROLLBOX_SCOPE_TREE, NULL);
        }
    }
}

/* Resumes the fork's interpreter, and reports its end. */
static int resume(const struct options *options, struct rollbox_engine *engine,
    struct rollbox_sandbox *sandbox, int timer) {
    const bool is_json = options_has(options, OPTION_JSON);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_result *end_sequence;
    struct rollbox_run *run = NULL;
    int fds[ROLLBOX_CLAIM_FDS], streams[2] = { -EBADF, -EBADF };
    json_t *words = json_array();
    struct copy_stream pump;

    if (rollbox_claim(
            sandbox, COMMAND, 1u << STREAM_IN | 1u << CONTROL | 1u << RESULTS, fds, &error) < 0)
        return outcome_fail(options, &error);
    auto_close int control = fds[CONTROL], results __attribute__((unused)) = fds[RESULTS];
    copy_stream_init(&pump, engine);
    if (fds[STREAM_IN] >= 0)
        stdio_relay_init_input(&pump.relays[STREAM_IN], STDIN_FILENO, fds[STREAM_IN]);
    int status = 0;
    for (int i = STREAM_OUT; i <= STREAM_ERR && !status && !is_json; i++)
        status = copy_stream_open(&pump, options, (enum stream)i,
            i == STREAM_OUT ? STDOUT_FILENO : STDERR_FILENO, UINT64_MAX, &streams[i - STREAM_OUT]);
    if (!status)
        status = copy_stream_catch_signals(&pump, options);
    const struct rollbox_attach_options attach = {
        .size = sizeof attach,
        .operation_id = COMMAND,
        .input_fd = -1,
        .stream_fds = { MAX(streams[0], -1), MAX(streams[1], -1) },
        .callback = copy_stream_on_end,
        .userdata = &pump,
    };
    if (!status && rollbox_attach(sandbox, &attach, &run, &error) < 0)
        status = outcome_fail(options, &error);
    close_fd(&streams[0]);
    close_fd(&streams[1]);
    for (int i = 1; i < options->n_rest; i++)
        if (json_array_append_new(words, json_string(options->rest[i])) < 0)
            json_decref(TAKE_PTR(words));
    if (!status)
        status = send_message(options, control, json_pack("{s:o}", "argv", TAKE_PTR(words)));
    json_decref(words);
    close_fd(&control);
    if (!status) {
        bool is_late = move_streams(&pump, sandbox, timer);

        status = copy_stream_result(&pump, options, run, &end_sequence);
        if (!status) {
            struct rollbox_result result = *end_sequence;

            if (is_late && result.outcome == ROLLBOX_OUTCOME_SIGNAL) {
                result.outcome = ROLLBOX_OUTCOME_TIMEOUT;
                result.signal = 0;
            }
            status = is_json ? outcome_print_json(options, &result, NULL)
                             : outcome_status(options, &result, UINT64_MAX);
        }
    }
    copy_stream_done(&pump);
    rollbox_run_free(run);
    return status;
}

int template_run(const struct options *options) {
    const struct rollbox_state_options attached = { .size = sizeof attached, .attached = true };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *template, *fork;
    struct rollbox_engine *engine;
    auto_close int timer = -EBADF;

    int status = check_options(options);
    if (!status)
        status = session_connect(options, &engine);
    if (status)
        return status;
    status = open_template(options, engine, options_text(options, OPTION_TEMPLATE), &template);
    if (!status) {
        if (rollbox_fork(template, SNAPSHOT, 1, &attached, &fork, &error) < 0) {
            status = outcome_fail(options, &error);
        } else {
            status = make_timer(options, fork, &timer);
            if (!status)
                status = resume(options, engine, fork, timer);
            (void)rollbox_sandbox_close(fork, NULL);
        }
        rollbox_sandbox_free(template);
    }
    rollbox_engine_close(engine);
    return cli_end(status);
}
