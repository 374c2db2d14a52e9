/* SPDX-License-Identifier: Apache-2.0 */
/* A command on a terminal of its own, in a sandbox of its own. */
#ifndef ROLLBOX_CLI_SHELL_H
#define ROLLBOX_CLI_SHELL_H

#include <stdbool.h>

struct options;

/* argv NULL: the default command of the policy's image. With `input`, our terminal is used for it.
 * Returns the exit status. */
int shell_terminal(const struct options *options, const char *const *argv, bool input);

#endif
