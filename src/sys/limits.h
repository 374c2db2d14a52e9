/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of processes (setrlimit(2)) that no policy sets, so that guests have those of whoever
 * starts the engine: what a program does would depend on that shell, and what it fails for would
 * look like its own fault. The engine makes them the same everywhere as far as it may; an ordinary
 * user may not where they are hard.
 */
#ifndef ROLLBOX_SYS_LIMITS_H
#define ROLLBOX_SYS_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#define LIMITS_COUNT 6

struct limits_left {
    const char *name, *command; /* "address space", "ulimit -v" */
    uint64_t value;             /* in the command's unit */
};

/* Of this process, for its children's. */
void limits_settle(void);

/* As many descriptors as we may have. How many, or 0: it cannot be told. */
uint64_t limits_raise_open_files(void);

/* The i-th of LIMITS_COUNT: whether a guest has less than it should, as this process stands. */
bool limits_is_low(unsigned i, struct limits_left *ret_left);

#endif
