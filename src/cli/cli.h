/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: the declarations that its files share. main.c finds the command in its table
 * and parses the options by the table in options.c. A cmd_ function executes the command and
 * returns the exit status. A failure is one line on standard error that begins with "rollbox".
 * Standard output has only the command's answer.
 */
#ifndef ROLLBOX_CLI_CLI_H
#define ROLLBOX_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "cli/options.h"

/* Exit statuses beside the command's own and 128 + signal. */
enum cli_exit {
    CLI_EXIT_TIMEOUT = 124,
    CLI_EXIT_ERROR = 125,
    CLI_EXIT_NOT_EXECUTABLE = 126,
    CLI_EXIT_NOT_FOUND = 127,
    CLI_EXIT_OUT_OF_MEMORY = 137,
    CLI_EXIT_OUTPUT_LIMIT = 141,
};

int cmd_run(const struct options *options);
int cmd_shell(const struct options *options);
int cmd_batch(const struct options *options);
int cmd_doctor(const struct options *options);
int cmd_policy_check(const struct options *options);
int cmd_policy_plan(const struct options *options);
int cmd_create(const struct options *options);
int cmd_cp(const struct options *options);
int cmd_exec(const struct options *options);
int cmd_attach(const struct options *options);
int cmd_rm(const struct options *options);
int cmd_logs(const struct options *options);
int cmd_forward(const struct options *options);
int cmd_port(const struct options *options);
int cmd_stats(const struct options *options);
int cmd_cost(const struct options *options);
int cmd_sandbox(const struct options *options);
int cmd_image(const struct options *options);
int cmd_record(const struct options *options);
int cmd_replay(const struct options *options);
int cmd_verify(const struct options *options);
int cmd_template(const struct options *options);
/* Executes rollbox-serve with these arguments. Returns an exit status, and only on failure. */
int serve_execute(const struct options *options, char **argv);
int cmd_mcp(const struct options *options);
int cmd_serve(const struct options *options);
int cmd_token(const struct options *options);
int cmd_store(const struct options *options);
int cmd_volume(const struct options *options);
int cmd_engine_start(const struct options *options);
int cmd_engine_status(const struct options *options);
int cmd_debug_dump(const struct options *options);
int cmd_net_log(const struct options *options);
int cmd_net_test(const struct options *options);
int cmd_net_set(const struct options *options);
int cmd_engine_stop(const struct options *options);
int cmd_version(const struct options *options);
int cmd_completion(const struct options *options);
int cmd_help(const struct options *options);

/* One line on standard error: "rollbox COMMAND: ...". Returns CLI_EXIT_ERROR, so that `return
 * cli_fail(...)` reads well. */
__attribute__((format(printf, 2, 3))) int cli_fail(
    const struct options *options, const char *format, ...);

/* The same from an error of the library, whose message may have several lines (one a problem). */
int cli_fail_error(const struct options *options, const struct rollbox_error *error);

/* As cli_fail, for a failure that is neither an error of the arguments nor of the library. */
__attribute__((format(printf, 3, 4))) int cli_fail_code(
    const struct options *options, enum rollbox_error_code code, const char *format, ...);

/* With --json: if no object was printed on standard output and the command has failed, prints the
 * failure. */
void cli_notify(void);

/* With --json: prints the object of a command that has failed before it had one (a result if the
 * command has results). `status`. */
int cli_tell_failure(const struct command *command, int status);

/* Opens the engine that --engine names, or a private one. As rollbox_engine_open. */
int cli_engine_open(
    const struct options *options, struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* Becomes rollbox-store with its command and the options given; CLI_EXIT_ERROR if that cannot be
 * found. */
int cli_become_store(const struct options *options, const char *command);

/* Opens /dev/null in place of the standard streams that are closed. 0, or -EBADF. */
int cli_open_standard_streams(void);

/* It reads as /dev/null does, which is no list of jobs that came to its end. */
bool cli_stdin_was_closed(void);

/* The end of a command that catches signals. Returns `status`; if a signal was caught, ends the
 * process by that signal. */
int cli_end(int status);

/* Flushes standard output: `status`, or CLI_EXIT_ERROR with a line if what was printed could not be
 * written. */
int cli_flush(const struct options *options, int status);

/* The end of a command that has nothing to say: `status`; where that is 0, with --json, an object
 * without members. */
int cli_done(const struct options *options, int status);

/* True if the stream is a terminal that wants colours (NO_COLOR is unset). */
bool cli_colours(int fd);

#endif
