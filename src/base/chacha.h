/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block function of ChaCha20 (RFC 8439, section 2.3): it maps a few words to 64 bytes that look
 * random. All random values of a sandbox with random_seed are derived from the seed by this
 * function. Equal words give equal bytes on every machine and in every version, because results of
 * earlier runs depend on it.
 */
#ifndef ROLLBOX_BASE_CHACHA_H
#define ROLLBOX_BASE_CHACHA_H

#include <stddef.h>
#include <stdint.h>

#define CHACHA_BLOCK 64
#define CHACHA_LANES 4    /* fits into the vector registers of any x86-64 */
#define CHACHA_COUNTER 12 /* the counter's index in the initial block */

/* For numbers and for vectors of numbers. */
#define CHACHA_ROTATE(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define CHACHA_STEP(a, b, d, n) ((a) += (b), (d) ^= (a), (d) = CHACHA_ROTATE(d, n))
#define CHACHA_QUARTER(x, a, b, c, d)                                                              \
    (CHACHA_STEP(x[a], x[b], x[d], 16), CHACHA_STEP(x[c], x[d], x[b], 12),                         \
        CHACHA_STEP(x[a], x[b], x[d], 8), CHACHA_STEP(x[c], x[d], x[b], 7))

#define CHACHA_ROUNDS(x)                                                                           \
    for (unsigned round = 0; round < 10; round++) {                                                \
        CHACHA_QUARTER(x, 0, 4, 8, 12);                                                            \
        CHACHA_QUARTER(x, 1, 5, 9, 13);                                                            \
        CHACHA_QUARTER(x, 2, 6, 10, 14);                                                           \
        CHACHA_QUARTER(x, 3, 7, 11, 15);                                                           \
        CHACHA_QUARTER(x, 0, 5, 10, 15);                                                           \
        CHACHA_QUARTER(x, 1, 6, 11, 12);                                                           \
        CHACHA_QUARTER(x, 2, 7, 8, 13);                                                            \
        CHACHA_QUARTER(x, 3, 4, 9, 14);                                                            \
    }

static inline void chacha_put(uint32_t number, uint8_t *to) {
    to[0] = (uint8_t)number;
    to[1] = (uint8_t)(number >> 8);
    to[2] = (uint8_t)(number >> 16);
    to[3] = (uint8_t)(number >> 24);
}

/* The 256 bits of the key are two numbers and zeros. */
#define CHACHA_START(seed, state, purpose, counter)                                                \
    {                                                                                              \
        0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, (uint32_t)(seed),                          \
            (uint32_t)((seed) >> 32), (uint32_t)(state), (uint32_t)((state) >> 32), 0, 0, 0, 0,    \
            (counter), (purpose), 0, 0                                                             \
    }

/* One block of 64 bytes. */
static inline void chacha_block(
    uint64_t seed, uint64_t state, uint32_t purpose, uint32_t counter, uint8_t *ret_bytes) {
    const uint32_t start[16] = CHACHA_START(seed, state, purpose, counter);
    uint32_t x[16];

    for (unsigned i = 0; i < 16; i++)
        x[i] = start[i];
    CHACHA_ROUNDS(x)
    for (unsigned i = 0; i < 16; i++)
        chacha_put(x[i] + start[i], ret_bytes + 4 * i);
}

/* Computes several consecutive blocks side by side, in half the time per block. */
static inline void chacha_blocks(
    uint64_t seed, uint64_t state, uint32_t purpose, uint32_t counter, uint8_t *ret_bytes) {
    const uint32_t start[16] = CHACHA_START(seed, state, purpose, counter);
    uint32_t __attribute__((vector_size(4 * CHACHA_LANES))) x[16];

    for (unsigned i = 0; i < 16; i++)
        for (unsigned lane = 0; lane < CHACHA_LANES; lane++)
            x[i][lane] = start[i] + (i == CHACHA_COUNTER ? lane : 0);
    CHACHA_ROUNDS(x)
    for (unsigned lane = 0; lane < CHACHA_LANES; lane++)
        for (unsigned i = 0; i < 16; i++)
            chacha_put(x[i][lane] + start[i] + (i == CHACHA_COUNTER ? lane : 0),
                ret_bytes + CHACHA_BLOCK * lane + 4 * i);
}

/* One number derived from such a block. */
static inline uint64_t chacha_number(uint64_t seed, uint64_t state, uint32_t purpose) {
    uint8_t bytes[CHACHA_BLOCK];
    uint64_t number = 0;

    chacha_block(seed, state, purpose, 0, bytes);
    for (unsigned i = 8; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

#endif
