/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the commands about sessions: the shared engine that they use, and the session named by
 * the first operand. A command is an ordinary client that ends at once. The sessions are detached
 * from it, so they stay.
 */
#ifndef ROLLBOX_CLI_SESSION_H
#define ROLLBOX_CLI_SESSION_H

#include <rollbox/rollbox.h>

struct options;

/* The shared engine's socket: --socket, $ROLLBOX_SOCKET, or the usual place of this user, for
 * free(). 0, or an exit status after a line. */
int session_socket(const struct options *options, char **ret_path);

/* Connects to it. 0, or an exit status after a line that says how to start one. */
int session_connect(const struct options *options, struct rollbox_engine **ret_engine);

/* Connects, and opens the sandbox of the first operand. 0, or an exit status after a line. */
int session_open(const struct options *options, struct rollbox_engine **ret_engine,
    struct rollbox_sandbox **ret_sandbox);

#endif
