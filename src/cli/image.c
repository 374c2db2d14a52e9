/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox image, rollbox import: images and snapshots by name. See store.c for who does the work.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/policy.h"
#include "cli/session.h"
#include "cli/store_program.h"

/* Becomes rollbox-build, with the policy that the options make. */
static int become_build(const struct options *options) {
    struct rollbox_error error = { 0 };
    struct cli_policy policy;
    auto_free char **argv = calloc(options->n_uses + 6, sizeof *argv);
    size_t n = 0;

    if (!argv)
        return cli_fail(options, "out of memory");
    int status = cli_policy_make(options, options_text(options, OPTION_POLICY), &policy, &error);
    if (status)
        return error.code ? cli_fail_error(options, &error) : status;
    argv[n++] = (char *)(uintptr_t) "rollbox image build";
    if (asprintf(&argv[n++], "--policy-text=%s", policy.text) < 0)
        return cli_fail(options, "out of memory");
    for (size_t i = 0; i < options->n_uses; i++) {
        const struct option_use *use = &options->uses[i];

        if (use->option->policy_key || use->option->id == OPTION_POLICY)
            continue;
        if (asprintf(&argv[n++], "--%s%s%s", use->option->name, use->value ? "=" : "",
                use->value ? use->value : "") < 0)
            return cli_fail(options, "out of memory");
    }
    argv[n++] = (char *)(uintptr_t) "--";
    argv[n++] = options->rest[0];
    store_program_execute_as("rollbox-build", argv);
    return cli_fail(options,
        "rollbox-build cannot be started: %s; it belongs beside rollbox or into its libexec "
        "directory",
        strerror(errno));
}

/* Becomes rollbox-build, which reads the sandbox's changes. */
static int become_commit(const struct options *options) {
    struct rollbox_sandbox *sandbox = NULL;
    struct rollbox_engine *engine = NULL;
    const char *from = options_text(options, OPTION_FROM);
    auto_free char *socket = NULL;
    char *argv[8] = { (char *)(uintptr_t) "rollbox image commit" };
    size_t n = 1;

    int status = session_socket(options, &socket);
    /* Errors about the engine have hints of the command line. */
    if (status == 0)
        status = session_open(options, &engine, &sandbox);
    if (status)
        return status;
    rollbox_sandbox_free(sandbox);
    rollbox_engine_close(engine);
    if (asprintf(&argv[n++], "--sandbox=%s", options->rest[0]) < 0 ||
        asprintf(&argv[n++], "--tag=%s", options->rest[1]) < 0 ||
        asprintf(&argv[n++], "--engine=%s", socket) < 0 ||
        (from && asprintf(&argv[n++], "--from=%s", from) < 0))
        return cli_fail(options, "out of memory");
    if (options_has(options, OPTION_JSON))
        argv[n++] = (char *)(uintptr_t) "--json";
    store_program_execute_as("rollbox-build", argv);
    return cli_fail(options,
        "rollbox-build cannot be started: %s; it belongs beside rollbox or into its libexec "
        "directory",
        strerror(errno));
}

int cmd_image(const struct options *options) {
    switch (options->command->bit) {
    case COMMAND_IMPORT:
        return cli_become_store(options, "import-snapshot");
    case COMMAND_IMAGE_IMPORT:
        return cli_become_store(options, "import");
    case COMMAND_IMAGE_PULL:
        return cli_become_store(options, "pull");
    case COMMAND_IMAGE_PUSH:
        return cli_become_store(options, "push");
    case COMMAND_IMAGE_EXPORT:
        return cli_become_store(options, "export-image");
    case COMMAND_IMAGE_INSPECT:
        return cli_become_store(options, "inspect");
    case COMMAND_IMAGE_COMMIT:
        return become_commit(options);
    case COMMAND_IMAGE_BUILD:
        return become_build(options);
    case COMMAND_IMAGE_LS:
        return cli_become_store(options, "ls");
    case COMMAND_IMAGE_RM:
        return cli_become_store(options, "rm");
    default:
        return cli_become_store(options, "show");
    }
}
