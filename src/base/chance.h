/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a random_seed alone, whatever runs: equal on every machine, today and later. */
#ifndef ROLLBOX_BASE_CHANCE_H
#define ROLLBOX_BASE_CHANCE_H

#include "base/chacha.h"

#define CHANCE_UUID_BYTES 38                    /* a uuid's text, its newline and NUL */
#define CHANCE_FORK_BYTES (64u << 10)           /* of /dev/urandom of a fork with a seed of its own, which is made for it alone */

/* What chacha_block is asked for, with a seed and a number; guest/determinism.c has purposes of its own, below these. */
enum { CHANCE_UUID = 16, CHANCE_URANDOM, CHANCE_FORK };

#define CHANCE_STEP (CHACHA_LANES * CHACHA_BLOCK)

/* What /dev/urandom holds from `at` on, a multiple of CHANCE_STEP as the length is. */
static inline void chance_bytes(uint64_t seed, uint64_t at, uint8_t *ret_bytes, size_t length) {
    for (size_t done = 0; done < length; done += CHANCE_STEP)
        chacha_blocks(seed, 0, CHANCE_URANDOM, (uint32_t)((at + done) / CHACHA_BLOCK), ret_bytes + done);
}

/* The seed of the n-th child, from 0, of a sandbox with this seed. Below 2^63: a number in any JSON. */
static inline uint64_t chance_fork(uint64_t seed, uint64_t n) {
    return chacha_number(seed, n, CHANCE_FORK) >> 1;
}

#endif
