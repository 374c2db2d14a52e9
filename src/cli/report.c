/* SPDX-License-Identifier: Apache-2.0 */
/* Failures: one line for a person on standard error, and with --json one object on standard output.
 */
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/format.h"

static void fail_prefix(const struct options *options) {
    fprintf(stderr, "rollbox%s%s: ", options && options->command ? " " : "",
        options && options->command ? options->command->name : "");
}

/* The first error, for --json. */
static struct rollbox_error failure;
static bool is_told;

void cli_notify(void) {
    is_told = true;
}

static void note_failure(
    enum rollbox_error_code code, const char *stage, int error_number, const char *message) {
    if (failure.code == ROLLBOX_OK)
        error_set(&failure, code, error_number, stage, "%s", message);
}

__attribute__((format(printf, 3, 0))) static int print_failure(
    const struct options *options, enum rollbox_error_code code, const char *format, va_list args) {
    auto_free char *line = NULL;

    fail_prefix(options);
    if (vasprintf(&line, format, args) < 0)
        line = NULL;
    /* The message may contain text of a guest, or of a foreign file. */
    const char *shown = line ? line : "out of memory";
    format_error(shown, strlen(shown));
    fputc('\n', stderr);
    note_failure(code,
        code == ROLLBOX_ERR_INVALID_ARGUMENT ? "arguments"
        : code == ROLLBOX_ERR_ENGINE_LOST    ? "connect"
                                             : "run",
        0, line ? line : "out of memory");
    return CLI_EXIT_ERROR;
}

int cli_fail(const struct options *options, const char *format, ...) {
    va_list args;

    va_start(args, format);
    int status = print_failure(options, ROLLBOX_ERR_INVALID_ARGUMENT, format, args);
    va_end(args);
    return status;
}

int cli_fail_code(
    const struct options *options, enum rollbox_error_code code, const char *format, ...) {
    va_list args;

    va_start(args, format);
    int status = print_failure(options, code, format, args);
    va_end(args);
    return status;
}

int cli_fail_error(const struct options *options, const struct rollbox_error *error) {
    const char *line = error->message;

    note_failure(error->code, error->stage, error->error_number, error->message);
    do {
        size_t length = strcspn(line, "\n");

        fail_prefix(options);
        format_error(line, length);
        fputc('\n', stderr);
        line += length + (line[length] == '\n');
    } while (*line);
    return CLI_EXIT_ERROR;
}

int cli_tell_failure(const struct command *command, int status) {
    const struct rollbox_result result = {
        .outcome = ROLLBOX_OUTCOME_ERROR, .exit_code = -1, .isolation = "{}", .error = failure
    };
    const bool has_result = command && command->bit & (COMMAND_RUN | COMMAND_SHELL | COMMAND_EXEC |
                                                          COMMAND_ATTACH | COMMAND_RECORD);
    auto_free char *json = NULL;

    if (status != CLI_EXIT_ERROR || failure.code == ROLLBOX_OK || is_told ||
        rollbox_result_json(&result, NULL, &json) < 0)
        return status;
    if (has_result) {
        printf("%s\n", json);
    } else {
        json_t *whole = json_loads(json, 0, NULL);
        json_t *object = json_pack("{s:O}", "error", json_object_get(whole, "error"));

        (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        json_decref(object);
        json_decref(whole);
    }
    return cli_flush(NULL, status);
}

int cli_flush(const struct options *options, int status) {
    if (fflush(stdout) < 0 || ferror(stdout))
        return cli_fail_code(
            options, ROLLBOX_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    return status;
}
