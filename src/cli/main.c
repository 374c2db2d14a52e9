/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the command (one word, or two as in "policy check"), parses its options and calls it. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/private.h"
#include "cli/shown.h"
#include "cli/signals.h"

static void fail_prefix(const struct options *options) {
    fprintf(stderr, "rollbox%s%s: ", options && options->command ? " " : "", options && options->command ? options->command->name : "");
}

int cli_fail(const struct options *options, const char *format, ...) {
    auto_free char *line = NULL;
    va_list args;

    fail_prefix(options);
    va_start(args, format);
    if (vasprintf(&line, format, args) < 0)
        line = NULL;
    va_end(args);
    /* A guest's words, or those of a file that somebody sent, may be in it. */
    shown_error(line ? line : "out of memory", line ? strlen(line) : strlen("out of memory"));
    fputc('\n', stderr);
    return CLI_EXIT_ERROR;
}

int cli_fail_error(const struct options *options, const struct rollbox_error *error) {
    const char *line = error->message;

    do {
        size_t length = strcspn(line, "\n");

        fail_prefix(options);
        shown_error(line, length);
        fputc('\n', stderr);
        line += length + (line[length] == '\n');
    } while (*line);
    return CLI_EXIT_ERROR;
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
        return cli_fail(options, "cannot write to standard output: %s", strerror(errno));
    return status;
}

bool cli_colours(int fd) {
    const char *no_colour = getenv("NO_COLOR");

    return (!no_colour || !no_colour[0]) && isatty(fd);
}

int cmd_version(const struct options *options) {
    printf("rollbox %s\n", rollbox_version());
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
        fprintf(stderr, "rollbox: '%s' needs one of:", words[0]);
        for (size_t i = 0; i < n_firsts; i++)
            fprintf(stderr, " %s", names[i]);
        fputc('\n', stderr);
        return CLI_EXIT_ERROR;
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

/* A closed standard stream would be taken by the next descriptor opened, and guest output be written into an engine's socket. */
static int open_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return -EBADF;
    return 0;
}

/* Descriptors that anybody of this user has on their way in sockets, guests included, count against the soft limit of whoever sends some. */
static void raise_open_files(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv) {
    struct options options;
    int used;

    private_arguments(argc, argv);
    if (open_standard_streams() < 0)
        return CLI_EXIT_ERROR;
    raise_open_files();
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
    if (!command)
        return command_unknown(argc - 1, argv + 1);
    if (options_parse(command, argc - 1 - used, argv + 1 + used, &options) < 0)
        return CLI_EXIT_ERROR;
    int status;
    if (options_has(&options, OPTION_HELP)) {
        options_help(command);
        status = cli_flush(&options, 0);
    } else {
        status = command->call(&options);
        private_end();
    }
    options_done(&options);
    return status;
}
