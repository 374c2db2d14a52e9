/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that a server starts beside itself. */
#ifndef ROLLBOX_SYS_BACKGROUND_H
#define ROLLBOX_SYS_BACKGROUND_H

#include <sys/types.h>

/* Starts a program in a session of its own, so that no signal of a terminal reaches it, and with no
 * blocked signals. `input_fd` is its standard input (-1: nothing to read), standard output is
 * discarded, standard error is inherited, and nothing else is. A name without a slash is searched
 * for. The pid, or -errno. */
pid_t background_spawn(const char *program, char *const *argv, int input_fd);

#endif
