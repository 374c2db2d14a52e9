/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands about sandboxes that live share: which shared engine they speak to, and the
 * sandbox that their first operand names. A command is a client like any other and ends at once;
 * the sandboxes are detached from it, so they stay.
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
