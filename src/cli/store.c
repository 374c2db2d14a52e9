/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox store: commands on the store. The program rollbox-store does the work; this one parses no
 * archive and walks no guest's tree. It executes rollbox-store in this process, under the name of
 * the command that was typed, so messages and exit status are those of the command.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "cli/store_program.h"

int cli_become_store(const struct options *options, const char *command) {
    static char separator[] = "--";
    auto_buf struct buf name = BUF_INIT;
    size_t n = 0;
    auto_free char **argv = calloc(2 * options->n_uses + (size_t)options->n_rest + 6, sizeof *argv);
    auto_free char **words = calloc(options->n_uses + 1, sizeof *words);
    auto_free char *socket = NULL, *socket_word = NULL;
    auto_free char *to_word = NULL;
    bool needs_socket =
        options->command->bit == COMMAND_IMPORT && !options_has(options, OPTION_SOCKET);

    int status = needs_socket ? session_socket(options, &socket) : 0;
    if (status)
        return status;
    buf_printf(&name, "rollbox %s", options->command->name);
    if (!argv || !words || buf_failed(&name))
        return cli_fail(options, "out of memory");
    argv[n++] = name.data;
    argv[n++] = (char *)(uintptr_t)command;
    for (size_t i = 0; i < options->n_uses; i++) {
        const struct option_use *use = &options->uses[i];

        if (use->option->id == OPTION_ENGINE) /* the store needs none */
            continue;
        if (asprintf(&words[i], "--%s%s%s", use->option->name, use->value ? "=" : "",
                use->value ? use->value : "") < 0)
            return cli_fail(options, "out of memory");
        argv[n++] = words[i];
    }
    if (socket) {
        if (asprintf(&socket_word, "--socket=%s", socket) < 0)
            return cli_fail(options, "out of memory");
        argv[n++] = socket_word;
    }
    if (options->n_rest > 1) {
        if (asprintf(&to_word, "--to=%s", options->rest[1]) < 0)
            return cli_fail(options, "out of memory");
        argv[n++] = to_word;
    }
    if (options->n_rest) {
        argv[n++] = separator;
        argv[n++] = options->rest[0];
    }
    store_program_execute(argv);
    int error_number = errno;
    for (size_t i = 0; i < options->n_uses; i++)
        free(words[i]);
    return cli_fail(options,
        STORE_PROGRAM
        " cannot be started: %s; it belongs beside rollbox or into its libexec directory",
        strerror(error_number));
}

int cmd_store(const struct options *options) {
    switch (options->command->bit) {
    case COMMAND_STORE_PATH:
        return cli_become_store(options, "path");
    case COMMAND_STORE_GC:
        return cli_become_store(options, "gc");
    case COMMAND_STORE_FSCK:
        return cli_become_store(options, "fsck");
    default:
        return cli_become_store(options, "df");
    }
}

int cmd_volume(const struct options *options) {
    switch (options->command->bit) {
    case COMMAND_VOLUME_CREATE:
        return cli_become_store(options, "volume-create");
    case COMMAND_VOLUME_LS:
        return cli_become_store(options, "volume-ls");
    case COMMAND_VOLUME_RM:
        return cli_become_store(options, "volume-rm");
    case COMMAND_VOLUME_INSPECT:
        return cli_become_store(options, "volume-inspect");
    case COMMAND_VOLUME_DF:
        return cli_become_store(options, "volume-df");
    default:
        return cli_become_store(options, "volume-snapshot");
    }
}
