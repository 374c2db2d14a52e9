/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox shell and rollbox run -t: one command on a terminal, in a sandbox that ends with the
 * command.
 *
 * A run has only pipes. So the sandbox is an anonymous session on the same private engine. It ends
 * with the connection to that engine, however this process ends. A shell whose input is not a
 * terminal is an ordinary run.
 */
#include "cli/shell.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/private_engine.h"
#include "cli/view.h"

static int follow(
    struct view *view, const struct cli_policy *policy, const char *const *argv, bool input) {
    const struct rollbox_sandbox_options sandbox_options = { .size = sizeof sandbox_options };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *term = NULL;
    auto_free const char **env = view_environment(view->options, true, &term);
    struct rollbox_plan *plan;
    char id[13];

    if (!env || view_make_id(id) < 0)
        return cli_fail(view->options, "cannot make an id: %s", strerror(errno));
    if (cli_engine_open(view->options, &view->pump.engine, &error) < 0 ||
        rollbox_prepare(view->pump.engine, policy->text, policy->length, &plan, &error) < 0 ||
        rollbox_sandbox_create(view->pump.engine, plan, &sandbox_options, &view->sandbox, &error) <
            0)
        return outcome_fail(view->options, &error);
    view->id = id;
    struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .argv = argv,
        .env = env,
        .timeout_ms = -1,
        .output_limit = -1,
        .operation_id = id,
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .callback = copy_stream_on_end,
        .userdata = &view->pump,
    };
    int status = view_start(view, &exec, input, true);
    return status ? status : view_follow(view, policy->max_output_bytes);
}

int shell_terminal(const struct options *options, const char *const *argv, bool input) {
    struct cli_policy policy;
    struct view view;

    if (input && !isatty(STDIN_FILENO))
        return cli_fail(options, "the input device is not a TTY: leave out -t for input from a "
                                 "pipe or a file, or -i for none");
    int status = view_init(&view, options);
    if (status)
        return status;
    view.one_off = true;
    view.keys.only_notices = true;
    private_engine_start(options);
    status = cli_policy_given(options, &policy);
    if (status)
        return status;
    cli_policy_tell_users(options, &policy);
    status = follow(&view, &policy, argv, input);
    view_done(&view);
    cli_policy_done(&policy);
    return cli_end(status);
}
