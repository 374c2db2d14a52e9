/* SPDX-License-Identifier: Apache-2.0 */
/* The CLI's private engine: a fork of the CLI. */
#ifndef ROLLBOX_CLI_PRIVATE_H
#define ROLLBOX_CLI_PRIVATE_H

#include "cli/options.h"

struct rollbox_engine;
struct rollbox_error;

/* main()'s, which the engine has no use for and does not show as its own. Before anything else
 * here. */
void private_engine_arguments(int argc, char **argv);

/* Starts the engine that private_engine_open will need, so that it gets ready while the command
 * still reads its policy. Does nothing if --engine or $ROLLBOX_ENGINE name another.
 * private_engine_open reports errors. */
void private_engine_start(const struct options *options);

/* Opens a private engine: the one started, or $ROLLBOX_ENGINE, or a new one. As
 * rollbox_engine_open. */
int private_engine_open(struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* Called when no engine is open: ends an engine that was started and not opened, and removes the
 * leftovers of a killed one. */
void private_engine_end(void);

#endif
