/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox serve and rollbox token: this process becomes rollbox-serve, with the same options. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"

/* The program that ROLLBOX_SERVE names, else the one beside this program (in a
 * build tree or a bundle), else the installed one. */
int serve_execute(const struct options *options, char **argv) {
    static const char *const places[] = { "rollbox-serve", "../libexec/rollbox/rollbox-serve" };
    const char *program = getenv("ROLLBOX_SERVE");
    char self[PATH_MAX];

    if (program && program[0]) {
        execv(program, argv);
        return cli_fail(
            options, "cannot execute $ROLLBOX_SERVE (%s): %s", program, strerror(errno));
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    while (n > 0 && self[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && i < ARRAY_SIZE(places); i++) {
        auto_buf struct buf path = BUF_INIT;

        buf_add(&path, self, (size_t)n);
        buf_add_text(&path, places[i]);
        if (!buf_failed(&path))
            execv(path.data, argv);
    }
    execvp("rollbox-serve", argv);
    return cli_fail(options,
        "cannot find rollbox-serve: %s; it is built where llhttp, wslay and zlib are (Debian's "
        "node-llhttp, libwslay-dev and zlib1g-dev), and not in the portable wheel "
        "(docs/how-to/install.md); set ROLLBOX_SERVE to its path",
        strerror(errno));
}

/* rollbox-serve WORDS --OPTION VALUE... OPERANDS */
static int become(const struct options *options, const char *const *words, size_t n_words) {
    size_t most = 1 + n_words + 2 * options->n_uses + (size_t)options->n_rest + 1, n = 0;
    auto_free char **argv = calloc(most, sizeof *argv);

    if (!argv)
        return cli_fail(options, "out of memory");
    argv[n++] = (char *)(uintptr_t) "rollbox-serve";
    for (size_t i = 0; i < n_words; i++)
        argv[n++] = (char *)(uintptr_t)words[i];
    for (size_t i = 0; i < options->n_uses; i++) {
        const struct option_use *use = &options->uses[i];
        char *name;

        if (use->option->id == OPTION_JSON)
            continue;
        if (asprintf(&name, "--%s", use->option->name) < 0)
            return cli_fail(options, "out of memory");
        argv[n++] = name;
        if (use->value)
            argv[n++] = (char *)(uintptr_t)use->value;
    }
    for (int i = 0; i < options->n_rest; i++)
        argv[n++] = options->rest[i];
    return serve_execute(options, argv);
}

int cmd_serve(const struct options *options) {
    return become(options, NULL, 0);
}

int cmd_token(const struct options *options) {
    const char *const words[] = { "token", strchr(options->command->name, ' ') + 1 };

    return become(options, words, ARRAY_SIZE(words));
}
