/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT, SIGTERM and SIGHUP as a descriptor in the poll set. It uses handlers and a pipe, because
 * an engine started later would inherit the blocked mask that a signalfd needs. The second signal
 * of a kind has its default effect. Five seconds after the first signal the process ends by that
 * signal, even if it is stuck.
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
