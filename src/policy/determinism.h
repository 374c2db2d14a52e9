/* SPDX-License-Identifier: Apache-2.0 */
/* What random_seed and time_start add to a plan. The guest's half, and the model:
 * guest/det/dispatch.c. */
#ifndef ROLLBOX_POLICY_DETERMINISM_H
#define ROLLBOX_POLICY_DETERMINISM_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/seeded_random.h"

#define DETERMINISM_URANDOM_BYTES (1u << 20)

enum determinism_clock {
    DETERMINISM_CLOCK_REAL,
    DETERMINISM_CLOCK_OFFSET,
    DETERMINISM_CLOCK_VIRTUAL,
    DETERMINISM_CLOCK_SERIAL
};

/* The second filter program of each command: it sends the questions that determinism needs to init.
 * Returns the number of instructions, or -ENOTSUP on an architecture without one. */
int determinism_filter(bool seed, enum determinism_clock clock, bool many_users,
    struct sock_filter *program, size_t capacity);

/* A time as parsed by policy_parse, in seconds and nanoseconds of CLOCK_REALTIME. */
void determinism_time(const char *text, int64_t *ret_seconds, uint32_t *ret_nanoseconds);

/* The text of a random uuid (version 4) and its newline, with NUL: 38 bytes. */
void determinism_uuid(uint64_t seed, char *ret_text);

#endif
