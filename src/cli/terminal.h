/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's terminal, lent to a command in a sandbox. It is raw while the command runs, so that
 * the command receives every key. It is restored at every end of this process, signals included.
 * Changes of its size make the descriptor of signals_catch readable, as signals do.
 */
#ifndef ROLLBOX_CLI_TERMINAL_H
#define ROLLBOX_CLI_TERMINAL_H

#include <stdbool.h>

struct rollbox_terminal;

/* The size of the terminal on one of the standard streams, else 24 x 80. */
struct rollbox_terminal terminal_size(void);

/* Makes standard input's terminal raw and has it restored at exit and by fatal signals. `wake_fd`
 * (non-blocking) gets a byte when the size changes. 0 or -errno. */
int terminal_raw(int wake_fd);

/* As it was; nothing if it is. */
void terminal_restore(void);

/* Has the size changed since the last call? */
bool terminal_resized(void);

#endif
