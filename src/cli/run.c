/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox run: one command in one sandbox.
 *
 * The guest gets three pipes, with and without --json; the caller's streams are relayed through them while it runs, so input of any size
 * works and a guest that does not read its input holds nothing up. With --json the output goes into memory instead of out. In both cases the output limit
 * is held here, exactly. When the run has ended, what is still in the pipes is moved before the exit: nothing is lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/private.h"
#include "cli/relay.h"
#include "cli/signals.h"

enum stream { STREAM_IN, STREAM_OUT, STREAM_ERR, N_STREAMS };

static void run_ended(struct rollbox_run *run, void *userdata) {
    (void)run;
    *(bool *)userdata = true;
}

/* Moves the streams until the run has ended and nothing is left in its pipes. */
static void pump(struct rollbox_engine *engine, struct rollbox_run *run, struct relay relays[N_STREAMS], int signal_fd, const bool *ended) {
    bool killed = false;

    for (;;) {
        struct pollfd polls[N_STREAMS + 2];

        rollbox_dispatch(engine);
        if (*ended) {
            relay_writers_gone(&relays[STREAM_OUT]);
            relay_writers_gone(&relays[STREAM_ERR]);
            if (relays[STREAM_OUT].state == RELAY_DONE && relays[STREAM_ERR].state == RELAY_DONE)
                return;
            relay_done(&relays[STREAM_IN]);
        } else if (!killed && signals_caught()) {
            killed = true;
            rollbox_kill(run, ROLLBOX_OUTCOME_ERROR);
        } else if (!killed && (relays[STREAM_OUT].over || relays[STREAM_ERR].over)) {
            killed = true;
            rollbox_kill(run, ROLLBOX_OUTCOME_OUTPUT_LIMIT);
        }
        for (int i = 0; i < N_STREAMS; i++)
            relay_poll(&relays[i], &polls[i]);
        /* A caught signal stays readable; only its first sight matters. */
        polls[N_STREAMS] = (struct pollfd){ .fd = signals_caught() ? -1 : signal_fd, .events = POLLIN };
        polls[N_STREAMS + 1] = (struct pollfd){ .fd = *ended ? -1 : rollbox_engine_fd(engine), .events = POLLIN };
        if (poll(polls, N_STREAMS + 2, -1) < 0)
            continue;
        for (int i = 0; i < N_STREAMS; i++)
            if (polls[i].revents)
                relay_ready(&relays[i]);
    }
}

/* Runs it with streams that exist, and tells the result. */
static int run(const struct options *options, struct rollbox_engine *engine, struct rollbox_plan *plan, const struct cli_policy *policy) {
    const bool json = options_has(options, OPTION_JSON);
    auto_close int in_read = -EBADF, in_write = -EBADF, out_read = -EBADF, out_write = -EBADF, err_read = -EBADF, err_write = -EBADF;
    struct { int *read_end, *write_end; } pipes[N_STREAMS] = { { &in_read, &in_write }, { &out_read, &out_write }, { &err_read, &err_write } };
    struct rollbox_error error = { 0 };
    struct rollbox_run *handle = NULL;
    const struct rollbox_result *ended_as;
    struct relay relays[N_STREAMS];
    bool ended = false;

    for (int i = 0; i < N_STREAMS; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0)
            return cli_fail(options, "cannot make a pipe: %s", strerror(errno));
        *pipes[i].read_end = fds[0];
        *pipes[i].write_end = fds[1];
    }
    int signal_fd = signals_catch();
    if (signal_fd < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(-signal_fd));

    const int stdio[3] = { in_read, out_write, err_write };
    struct rollbox_run_options run_options = {
        .size = sizeof run_options,
        .argv = options->n_rest ? (const char *const *)options->rest : NULL,
        .timeout_ms = -1,
        .output_limit = -1,
        .stdio_fds = stdio,
        .callback = run_ended,
        .userdata = &ended,
    };
    if (rollbox_start(engine, plan, &run_options, &handle, &error) < 0)
        return outcome_fail(options, &error);
    close_fd(&in_read);
    close_fd(&out_write);
    close_fd(&err_write);
    relay_init_input(&relays[STREAM_IN], STDIN_FILENO, TAKE_FD(in_write));
    relay_init_output(&relays[STREAM_OUT], TAKE_FD(out_read), json ? -EBADF : STDOUT_FILENO, policy->max_output_bytes);
    relay_init_output(&relays[STREAM_ERR], TAKE_FD(err_read), json ? -EBADF : STDERR_FILENO, policy->max_output_bytes);
    pump(engine, handle, relays, signal_fd, &ended);

    int status;
    int r = rollbox_wait(handle, -1, &ended_as);
    if (r < 0) {
        status = cli_fail(options, "cannot collect the result: %s", strerror(-r));
    } else {
        struct rollbox_result result = *ended_as;

        if (json) {
            result.stdout_data = relays[STREAM_OUT].collected.data;
            result.stdout_length = relays[STREAM_OUT].collected.length;
            result.stderr_data = relays[STREAM_ERR].collected.data;
            result.stderr_length = relays[STREAM_ERR].collected.length;
            result.stdout_truncated = relays[STREAM_OUT].over;
            result.stderr_truncated = relays[STREAM_ERR].over;
        }
        /* A guest may have ended by itself just before the kill, or the engine not have heard yet that it began: it has written too much all the same. */
        bool over = relays[STREAM_OUT].over || relays[STREAM_ERR].over;
        if (over && (result.outcome == ROLLBOX_OUTCOME_EXIT || result.outcome == ROLLBOX_OUTCOME_SIGNAL ||
                     (result.outcome == ROLLBOX_OUTCOME_ERROR && result.error.code == ROLLBOX_ERR_CANCELLED))) {
            result.outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
            result.exit_code = -1;
            result.signal = 0;
            result.processes_peak = MAX(result.processes_peak, 1u);
            result.error = (struct rollbox_error){ .code = ROLLBOX_OK };
        }
        if (signals_caught())
            status = CLI_EXIT_ERROR;
        else if (relays[STREAM_OUT].error || relays[STREAM_ERR].error)
            status = cli_fail(options, "cannot write to standard %s: %s", relays[STREAM_OUT].error ? "output" : "error",
                              strerror(relays[STREAM_OUT].error ? relays[STREAM_OUT].error : relays[STREAM_ERR].error));
        else
            status = json ? outcome_print_json(options, &result, NULL) : outcome_status(options, &result, policy->max_output_bytes);
    }
    for (int i = 0; i < N_STREAMS; i++)
        relay_done(&relays[i]);
    rollbox_run_free(handle);
    return status;
}

int cmd_run(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_plan *plan;
    struct rollbox_error error = { 0 };
    struct cli_policy policy;

    private_start(options);
    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    if (cli_engine_open(options, &engine, &error) < 0) {
        status = outcome_fail(options, &error);
    } else {
        if (rollbox_prepare(engine, policy.text, policy.length, &plan, &error) < 0)
            status = outcome_fail(options, &error);
        else
            status = run(options, engine, plan, &policy);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_end(status);
}
