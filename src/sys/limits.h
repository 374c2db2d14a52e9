/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process limits (setrlimit(2)) that no policy sets. Without this module, guests would inherit the
 * limits of the shell that started the engine: a program's behaviour would depend on that shell,
 * and a failure would look like the program's fault. The engine sets the limits to the same values
 * everywhere, as far as hard limits allow an ordinary user to do so.
 */
#ifndef ROLLBOX_SYS_LIMITS_H
#define ROLLBOX_SYS_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#define LIMITS_COUNT 7

struct limits_left {
    const char *name, *command; /* "address space", "ulimit -v" */
    uint64_t value;             /* in the command's unit */
};

/* Sets the limits of this process, which its children inherit. */
void limits_settle(void);

/* Raises this process's limit of open files to the maximum allowed. Returns the new limit, or 0 if
 * it is not known. */
uint64_t limits_raise_open_files(void);

/* Whether this process's limit number i, of LIMITS_COUNT, is lower than a guest should have. */
bool limits_is_low(unsigned i, struct limits_left *ret_left);

#endif
