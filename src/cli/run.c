/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox run: one command in one sandbox.
 *
 * The guest gets three pipes, with and without --json. The caller's streams are relayed through
 * them while the command runs, so input of any size works, and a guest that does not read its input
 * blocks nothing. With --json the output is collected in memory. The output limit is enforced here,
 * exactly, in both cases. After the run has ended, the rest of the pipes is read before rollbox
 * exits, so no output is lost.
 */
#include <errno.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/private_engine.h"
#include "cli/copy_stream.h"
#include "cli/shell.h"
#include "cli/template.h"
#include "cli/view.h"
#include "cli/trace.h"

/* Moves the streams until the run has ended and nothing is left in its pipes. */
static void move_streams(struct copy_stream *pump, struct rollbox_run *run) {
    struct stdio_relay *out = &pump->relays[STREAM_OUT], *err = &pump->relays[STREAM_ERR];
    bool killed = false;

    for (;;) {
        rollbox_dispatch(pump->engine);
        bool signalled = copy_stream_signalled(pump);
        if (pump->ended) {
            stdio_relay_writers_gone(out);
            stdio_relay_writers_gone(err);
            if (copy_stream_is_over(pump))
                return;
            stdio_relay_done(&pump->relays[STREAM_IN]);
        } else if (!killed && (signalled || out->over || err->over)) {
            killed = true;
            rollbox_kill(run, signalled ? ROLLBOX_OUTCOME_ERROR : ROLLBOX_OUTCOME_OUTPUT_LIMIT);
        }
        (void)copy_stream_wait(pump, -EBADF);
    }
}

/* Reports the result, whose output is in the relays. */
static int conclude_run(const struct options *options, struct copy_stream *pump,
    struct rollbox_run *run, const struct cli_policy *policy, const char *const *argv,
    int64_t asked_ns) {
    const struct stdio_relay *out = &pump->relays[STREAM_OUT], *err = &pump->relays[STREAM_ERR];
    const struct rollbox_result *end_sequence;

    int status = copy_stream_result(pump, options, run, &end_sequence);
    if (status)
        return status;
    struct rollbox_result result = *end_sequence;
    /* The guest may have ended by itself just before the kill, or the engine may not know yet that
     * it started: it has still written too much. */
    if ((out->over || err->over) &&
        (result.outcome == ROLLBOX_OUTCOME_EXIT || result.outcome == ROLLBOX_OUTCOME_SIGNAL ||
            (result.outcome == ROLLBOX_OUTCOME_ERROR &&
                result.error.code == ROLLBOX_ERR_CANCELLED))) {
        result.outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
        result.exit_code = -1;
        result.signal = 0;
        result.processes_peak = MAX(result.processes_peak, 1u);
        result.error = (struct rollbox_error){ .code = ROLLBOX_OK };
    }
    cli_trace(options, &result, argv ? argv[0] : NULL, NULL, asked_ns);
    if (!options_has(options, OPTION_JSON)) {
        outcome_hint_network(options, &result, err->tail, err->tail_length);
        return outcome_status(options, &result, policy->max_output_bytes);
    }
    result.stdout_data = out->collected.data;
    result.stdout_length = out->collected.length;
    result.stderr_data = err->collected.data;
    result.stderr_length = err->collected.length;
    result.stdout_truncated = out->over;
    result.stderr_truncated = err->over;
    return outcome_print_json(options, &result, NULL);
}

/* Runs the command with existing streams, and reports the result. */
static int run_plan(const struct options *options, struct rollbox_engine *engine,
    struct rollbox_plan *plan, const struct cli_policy *policy, const char *const *argv) {
    const int ours[N_STREAMS] = { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO };
    int theirs[N_STREAMS] = { -EBADF, -EBADF, -EBADF }, status = 0;
    struct rollbox_error error = { 0 };
    struct rollbox_run *handle = NULL;
    const int64_t asked_ns = clock_now_ns();
    struct copy_stream pump;

    copy_stream_init(&pump, engine);
    for (int i = 0; i < N_STREAMS && !status; i++)
        status = copy_stream_open(&pump, options, (enum stream)i,
            options_has(options, OPTION_JSON) ? -EBADF : ours[i], policy->max_output_bytes,
            &theirs[i]);
    if (!status)
        status = copy_stream_catch_signals(&pump, options);
    const struct rollbox_run_options run_options = {
        .size = sizeof run_options,
        .argv = argv,
        .timeout_ms = -1,
        .output_limit = -1,
        .stdio_fds = theirs,
        .callback = copy_stream_on_end,
        .userdata = &pump,
    };
    if (!status && rollbox_start(engine, plan, &run_options, &handle, &error) < 0)
        status = outcome_fail(options, &error);
    for (int i = 0; i < N_STREAMS; i++)
        close_fd(&theirs[i]);
    if (!status) {
        move_streams(&pump, handle);
        status = conclude_run(options, &pump, handle, policy, argv, asked_ns);
    }
    copy_stream_done(&pump);
    rollbox_run_free(handle);
    return status;
}

static int run_once(const struct options *options, const char *const *argv) {
    struct rollbox_engine *engine;
    struct rollbox_plan *plan;
    struct rollbox_error error = { 0 };
    struct cli_policy policy;

    private_engine_start(options);
    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    cli_policy_tell_users(options, &policy);
    if (cli_engine_open(options, &engine, &error) < 0) {
        status = outcome_fail(options, &error);
    } else {
        if (rollbox_prepare(engine, policy.text, policy.length, &plan, &error) < 0)
            status = outcome_fail(options, &error);
        else
            status = run_plan(options, engine, plan, &policy, argv);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_end(status);
}

int cmd_run(const struct options *options) {
    const char *const *argv = options->n_rest ? (const char *const *)options->rest : NULL;
    const bool tty = options_has(options, OPTION_TTY);

    if (tty && options_has(options, OPTION_TEMPLATE))
        return cli_fail(options,
            "--tty and --template exclude each other: a fork of a template has no terminal");
    if (options_has(options, OPTION_TEMPLATE))
        return template_run(options);
    return tty ? shell_terminal(options, argv, options_has(options, OPTION_INTERACTIVE))
               : run_once(options, argv);
}

int cmd_shell(const struct options *options) {
    const bool tty = isatty(STDIN_FILENO);
    const char *argv[6];

    view_shell(NULL, tty, argv);
    if (!tty)
        return run_once(options, (const char *const *)argv);
    if (options_has(options, OPTION_JSON))
        return cli_fail(
            options, "--json: is for a script on standard input, which is a terminal here");
    return shell_terminal(options, (const char *const *)argv, true);
}
