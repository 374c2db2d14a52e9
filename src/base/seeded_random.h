/* SPDX-License-Identifier: Apache-2.0 */
/* Values that depend on a random_seed alone. They are equal on every machine and in every
 * version. */
#ifndef ROLLBOX_BASE_SEEDED_RANDOM_H
#define ROLLBOX_BASE_SEEDED_RANDOM_H

#include "base/chacha.h"

#define SEEDED_RANDOM_UUID_BYTES 38 /* a uuid's text, its newline and NUL */
#define SEEDED_RANDOM_FORK_BYTES                                                                   \
    (64u << 10) /* /dev/urandom of a fork that has a seed of its own                               \
                 */

/* The purposes of a chacha_block call, beside seed and number. guest/det/dispatch.c has purposes of
 * its own, below these. */
enum { SEEDED_RANDOM_UUID = 16, SEEDED_RANDOM_URANDOM, SEEDED_RANDOM_FORK };

#define SEEDED_RANDOM_STEP (CHACHA_LANES * CHACHA_BLOCK)

/* The bytes of /dev/urandom from `at` on. `at` and the length are multiples of SEEDED_RANDOM_STEP.
 */
static inline void seeded_random_bytes(
    uint64_t seed, uint64_t at, uint8_t *ret_bytes, size_t length) {
    for (size_t done = 0; done < length; done += SEEDED_RANDOM_STEP)
        chacha_blocks(seed, 0, SEEDED_RANDOM_URANDOM, (uint32_t)((at + done) / CHACHA_BLOCK),
            ret_bytes + done);
}

/* The seed of the n-th child, from 0, of a sandbox with this seed. Below 2^63: a number in any
 * JSON. */
static inline uint64_t seeded_random_fork(uint64_t seed, uint64_t n) {
    return chacha_number(seed, n, SEEDED_RANDOM_FORK) >> 1;
}

#endif
