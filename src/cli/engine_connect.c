/* SPDX-License-Identifier: Apache-2.0 */
/* Connects a command to its engine: the engine of --engine, or a private one. */
#include "cli/cli.h"
#include "cli/private_engine.h"

int cli_engine_open(const struct options *options, struct rollbox_engine **ret_engine,
    struct rollbox_error *error) {
    struct rollbox_engine_options engine_options = { .size = sizeof engine_options,
        .socket_path = options_text(options, OPTION_ENGINE) };

    if (!engine_options.socket_path)
        return private_engine_open(ret_engine, error);
    return rollbox_engine_open(&engine_options, ret_engine, error);
}
