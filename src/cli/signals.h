/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT, SIGTERM and SIGHUP as a descriptor in the poll set. Handlers and a pipe, not a blocked
 * mask and a signalfd: a mask would be inherited by an engine started later. The second signal of a
 * kind has its ordinary effect, and five seconds after the first the process ends by that one,
 * whatever it waits for: a stuck program always ends.
 */
#ifndef ROLLBOX_CLI_SIGNALS_H
#define ROLLBOX_CLI_SIGNALS_H

struct rollbox_error;

/* Starts catching, and ignores SIGPIPE. Returns the descriptor that polls readable after a signal,
 * or -errno. Call once the engine is open. */
int signals_catch(void);

/* That descriptor; -EBADF before. */
int signals_fd(void);

/* The first signal caught; 0 if none. */
int signals_caught(void);

/* Fills *error: a signal came. Returns its negative code. */
int signals_interrupted(struct rollbox_error *error);

/* Ends the process as killed by the signal. */
_Noreturn void signals_die(int number);

#endif
