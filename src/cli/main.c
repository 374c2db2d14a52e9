/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the command (one word, or two as in "policy check"), parses its options and calls it. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/private.h"
#include "cli/shown.h"
#include "cli/signals.h"
#include "sys/limits.h"

static void fail_prefix(const struct options *options) {
    fprintf(stderr, "rollbox%s%s: ", options && options->command ? " " : "", options && options->command ? options->command->name : "");
}

/* What went wrong first, for --json. */
static struct rollbox_error failure;
static bool is_told, stdin_was_closed;

void cli_told(void) {
    is_told = true;
}

static void note_failure(enum rollbox_error_code code, const char *stage, int error_number, const char *message) {
    if (failure.code == ROLLBOX_OK)
        error_set(&failure, code, error_number, stage, "%s", message);
}

__attribute__((format(printf, 3, 0))) static int fail(const struct options *options, enum rollbox_error_code code, const char *format, va_list args) {
    auto_free char *line = NULL;

    fail_prefix(options);
    if (vasprintf(&line, format, args) < 0)
        line = NULL;
    /* A guest's words, or those of a file that somebody sent, may be in it. */
    shown_error(line ? line : "out of memory", line ? strlen(line) : strlen("out of memory"));
    fputc('\n', stderr);
    note_failure(code, code == ROLLBOX_ERR_INVALID_ARGUMENT ? "arguments" : code == ROLLBOX_ERR_ENGINE_LOST ? "connect" : "run", 0, line ? line : "out of memory");
    return CLI_EXIT_ERROR;
}

int cli_fail(const struct options *options, const char *format, ...) {
    va_list args;

    va_start(args, format);
    int status = fail(options, ROLLBOX_ERR_INVALID_ARGUMENT, format, args);
    va_end(args);
    return status;
}

int cli_fail_code(const struct options *options, enum rollbox_error_code code, const char *format, ...) {
    va_list args;

    va_start(args, format);
    int status = fail(options, code, format, args);
    va_end(args);
    return status;
}

int cli_fail_error(const struct options *options, const struct rollbox_error *error) {
    const char *line = error->message;

    note_failure(error->code, error->stage, error->error_number, error->message);
    do {
        size_t length = strcspn(line, "\n");

        fail_prefix(options);
        shown_error(line, length);
        fputc('\n', stderr);
        line += length + (line[length] == '\n');
    } while (*line);
    return CLI_EXIT_ERROR;
}

/* The object of a command that has failed before it had one: a result where it is one that has a result. */
static int tell_failure(const struct command *command, int status) {
    const struct rollbox_result result = { .outcome = ROLLBOX_OUTCOME_ERROR, .exit_code = -1, .isolation = "{}", .error = failure };
    const bool has_result = command && command->bit & (COMMAND_RUN | COMMAND_EXEC | COMMAND_ATTACH | COMMAND_RECORD);
    auto_free char *json = NULL;

    if (status != CLI_EXIT_ERROR || failure.code == ROLLBOX_OK || is_told || rollbox_result_json(&result, NULL, &json) < 0)
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

int cli_engine_open(const struct options *options, struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    struct rollbox_engine_options engine_options = { .size = sizeof engine_options, .socket_path = options_text(options, OPTION_ENGINE) };

    if (!engine_options.socket_path)
        return private_open(ret_engine, error);
    return rollbox_engine_open(&engine_options, ret_engine, error);
}

int cli_end(int status) {
    if (signals_caught()) {
        private_end();
        signals_die(signals_caught());
    }
    return status;
}

int cli_flush(const struct options *options, int status) {
    if (fflush(stdout) < 0 || ferror(stdout))
        return cli_fail_code(options, ROLLBOX_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    return status;
}

int cli_done(const struct options *options, int status) {
    if (status)
        return status;
    if (options_has(options, OPTION_JSON))
        printf("{}\n");
    return cli_flush(options, 0);
}

bool cli_colours(int fd) {
    const char *no_colour = getenv("NO_COLOR");

    return (!no_colour || !no_colour[0]) && isatty(fd);
}

int cmd_version(const struct options *options) {
    printf(options && options_has(options, OPTION_JSON) ? "{\"version\": \"%s\"}\n" : "rollbox %s\n", rollbox_version());
    return cli_flush(options, 0);
}

/* The command that words begin with; *ret_used is how many of them name it. NULL if none. */
static const struct command *command_find(int n, char **words, int *ret_used) {
    for (size_t i = 0; i < command_count; i++) {
        const char *name = command_table[i].name, *space = strchr(name, ' ');
        size_t first = space ? (size_t)(space - name) : strlen(name);

        if (n < 1 || strlen(words[0]) != first || memcmp(words[0], name, first) != 0)
            continue;
        if (space && (n < 2 || strcmp(words[1], space + 1) != 0))
            continue;
        *ret_used = space ? 2 : 1;
        return &command_table[i];
    }
    return NULL;
}

/* The line for a word that names no command; half of one can be asked what there is. */
static int command_unknown(int n, char **words) {
    enum { MOST = 96, LONGEST = 24 };
    const char *names[MOST];
    char firsts[MOST][LONGEST];
    size_t n_firsts = 0, length = strlen(words[0]);
    bool half = false;

    for (size_t i = 0; i < command_count && n_firsts < MOST; i++) {
        const char *name = command_table[i].name;
        size_t first = strcspn(name, " ");

        if (name[first] && first == length && memcmp(name, words[0], first) == 0) {
            /* The first of a pair of words is right: suggest among the second ones. */
            if (!half)
                n_firsts = 0;
            half = true;
            names[n_firsts++] = name + first + 1;
        } else if (!half) {
            snprintf(firsts[n_firsts], sizeof firsts[0], "%.*s", (int)first, name);
            names[n_firsts] = firsts[n_firsts];
            n_firsts++;
        }
    }
    if (half && n > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0)) {
        options_help_group(words[0]);
        return cli_flush(NULL, 0);
    }
    if (half) {
        const char *near = n > 1 ? options_nearest(words[1], names, n_firsts, sizeof names[0]) : NULL;

        if (near)
            return cli_fail(NULL, "unknown command '%s %s'; did you mean '%s %s'?", words[0], words[1], words[0], near);
        char list[MOST * LONGEST] = "";

        for (size_t i = 0, at = 0; i < n_firsts; i++)
            at += (size_t)snprintf(list + at, sizeof list - at, " %.*s", LONGEST - 2, names[i]);
        return cli_fail(NULL, "'%s' needs one of:%s", words[0], list);
    }
    const char *near = options_nearest(words[0], names, n_firsts, sizeof names[0]);
    if (near)
        return cli_fail(NULL, "unknown command '%s'; did you mean '%s'?", words[0], near);
    return cli_fail(NULL, "unknown command '%s'; see rollbox --help", words[0]);
}

int cmd_help(const struct options *options) {
    int used;

    if (options->n_rest == 0) {
        options_help_all();
        return cli_flush(options, 0);
    }
    const struct command *command = command_find(options->n_rest, options->rest, &used);
    if (!command)
        return command_unknown(options->n_rest, options->rest);
    options_help(command);
    return cli_flush(options, 0);
}

/* A closed standard stream would be taken by the next descriptor opened, and guest output be written into an engine's socket. What is written to standard output fails, as it would have; a guest's input is at its end, and nobody could be told that an error cannot be. */
static int open_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0) {
            if (open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd)
                return -EBADF;
            stdin_was_closed |= fd == 0;
        }
    return 0;
}

bool cli_stdin_was_closed(void) {
    return stdin_was_closed;
}

int main(int argc, char **argv) {
    struct options options;
    int used;

    private_arguments(argc, argv);
    if (open_standard_streams() < 0)
        return CLI_EXIT_ERROR;
    (void)limits_raise_open_files();    /* descriptors that anybody of this user has on their way in sockets, guests included, count against the soft limit of whoever sends some */
    if (argc < 2) {
        cli_fail(NULL, "a command is missing; see rollbox --help");
        return CLI_EXIT_ERROR;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        options_help_all();
        return cli_flush(NULL, 0);
    }
    if (strcmp(argv[1], "--version") == 0)
        return cmd_version(NULL);
    const struct command *command = command_find(argc - 1, argv + 1, &used);
    const bool asks_json = command ? options_ask_json(command, argc - 1 - used, argv + 1 + used) : options_ask_json(NULL, argc - 1, argv + 1);
    int status;
    if (!command) {
        status = command_unknown(argc - 1, argv + 1);
        return asks_json ? tell_failure(NULL, status) : status;
    }
    if (options_parse(command, argc - 1 - used, argv + 1 + used, &options) < 0)
        return asks_json ? tell_failure(command, CLI_EXIT_ERROR) : CLI_EXIT_ERROR;
    if (options_has(&options, OPTION_HELP)) {
        options_help(command);
        status = cli_flush(&options, 0);
    } else {
        status = command->call(&options);
        private_end();
        if (asks_json)
            status = tell_failure(command, status);
    }
    options_done(&options);
    return status;
}
