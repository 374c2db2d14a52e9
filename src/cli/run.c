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
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/policy.h"
#include "cli/relay.h"
#include "cli/signals.h"

enum stream { STREAM_IN, STREAM_OUT, STREAM_ERR, N_STREAMS };

static void run_ended(struct rollbox_run *run, void *userdata) {
    (void)run;
    *(bool *)userdata = true;
}

/* Prints the result as JSON. */
static int print_json(const struct options *options, const struct rollbox_result *result) {
    auto_free char *json = NULL;
    auto_buf struct buf line = BUF_INIT;

    if (rollbox_result_json(result, NULL, &json) < 0)
        return cli_fail(options, "out of memory");
    buf_add_text(&line, json);
    buf_add(&line, "\n", 1);
    if (buf_failed(&line))
        return cli_fail(options, "out of memory");
    int r = fd_write_all(STDOUT_FILENO, line.data, line.length);
    if (r < 0)
        return cli_fail(options, "cannot write to standard output: %s", strerror(-r));
    return result->outcome == ROLLBOX_OUTCOME_ERROR ? CLI_EXIT_ERROR : 0;
}

/* The end of a run that never began. */
static int fail(const struct options *options, const struct rollbox_error *error) {
    struct rollbox_result result = { .outcome = ROLLBOX_OUTCOME_ERROR, .exit_code = -1, .isolation = "{}", .error = *error };

    return options_has(options, OPTION_JSON) ? print_json(options, &result) : cli_fail_error(options, error);
}

/* The exit status that a result means, after a line about whatever is not plain from the status. */
static int status_of(const struct options *options, const struct rollbox_result *result, uint64_t output_limit) {
    const char *timeout = options_text(options, OPTION_TIMEOUT);

    switch (result->outcome) {
    case ROLLBOX_OUTCOME_EXIT:
        return result->exit_code;
    case ROLLBOX_OUTCOME_SIGNAL:
        return 128 + result->signal;
    case ROLLBOX_OUTCOME_TIMEOUT:
        cli_fail(options, "timed out after %s%s", timeout ? timeout : "the policy's time", timeout ? " s" : "");
        return CLI_EXIT_TIMEOUT;
    case ROLLBOX_OUTCOME_OUT_OF_MEMORY:
        cli_fail(options, "out of memory: the sandbox needed more than its limit (see --memory)");
        return CLI_EXIT_OUT_OF_MEMORY;
    case ROLLBOX_OUTCOME_OUTPUT_LIMIT:
        cli_fail(options, "too much output: more than %" PRIu64 " bytes on one stream (see --output-limit)", output_limit);
        return CLI_EXIT_OUTPUT_LIMIT;
    case ROLLBOX_OUTCOME_ERROR:
        cli_fail_error(options, &result->error);
        if (result->error.code == ROLLBOX_ERR_COMMAND_NOT_FOUND)
            return CLI_EXIT_NOT_FOUND;
        return result->error.code == ROLLBOX_ERR_NOT_EXECUTABLE ? CLI_EXIT_NOT_EXECUTABLE : CLI_EXIT_ERROR;
    }
    return CLI_EXIT_ERROR;
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
        .argv = (const char *const *)options->rest,
        .timeout_ms = -1,
        .output_limit = -1,
        .stdio_fds = stdio,
        .callback = run_ended,
        .userdata = &ended,
    };
    if (rollbox_start(engine, plan, &run_options, &handle, &error) < 0)
        return fail(options, &error);
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
            status = json ? print_json(options, &result) : status_of(options, &result, policy->max_output_bytes);
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

    int status = cli_policy_make(options, options_text(options, OPTION_POLICY), &policy, &error);
    if (status)
        return error.code ? fail(options, &error) : status;
    if (cli_engine_open(options, &engine, &error) < 0) {
        status = fail(options, &error);
    } else {
        if (rollbox_prepare(engine, policy.text, policy.length, &plan, &error) < 0)
            status = fail(options, &error);
        else
            status = run(options, engine, plan, &policy);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    if (signals_caught())
        signals_die(signals_caught());
    return status;
}
