/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block function of ChaCha20 (RFC 8439, section 2.3), as a function from a few words to 64 bytes that look random. It makes a seed into all that a sandbox with random_seed
 * takes for chance. Equal words give equal bytes on every machine, today and later: results of earlier runs depend on it.
 */
#ifndef ROLLBOX_BASE_CHACHA_H
#define ROLLBOX_BASE_CHACHA_H

#include <stddef.h>
#include <stdint.h>

#define CHACHA_BLOCK 64

static inline uint32_t chacha_rotate(uint32_t x, unsigned n) {
    return x << n | x >> (32 - n);
}

static inline void chacha_quarter(uint32_t *x, unsigned a, unsigned b, unsigned c, unsigned d) {
    x[a] += x[b];
    x[d] = chacha_rotate(x[d] ^ x[a], 16);
    x[c] += x[d];
    x[b] = chacha_rotate(x[b] ^ x[c], 12);
    x[a] += x[b];
    x[d] = chacha_rotate(x[d] ^ x[a], 8);
    x[c] += x[d];
    x[b] = chacha_rotate(x[b] ^ x[c], 7);
}

/* One block of 64 bytes. The key's 256 bits are two numbers and zeros. */
static inline void chacha_block(uint64_t seed, uint64_t state, uint32_t purpose, uint32_t counter, uint8_t *ret_bytes) {
    const uint32_t start[16] = {
        0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, (uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)state, (uint32_t)(state >> 32), 0, 0, 0, 0, counter, purpose, 0, 0,
    };
    uint32_t x[16];

    for (unsigned i = 0; i < 16; i++)
        x[i] = start[i];
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 4; i++)
            chacha_quarter(x, i, 4 + i, 8 + i, 12 + i);
        for (unsigned i = 0; i < 4; i++)
            chacha_quarter(x, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
    }
    for (unsigned i = 0; i < 16; i++) {
        x[i] += start[i];
        for (unsigned byte = 0; byte < 4; byte++)
            ret_bytes[4 * i + byte] = (uint8_t)(x[i] >> 8 * byte);
    }
}

/* A number out of such a block. */
static inline uint64_t chacha_number(uint64_t seed, uint64_t state, uint32_t purpose) {
    uint8_t bytes[CHACHA_BLOCK];
    uint64_t number = 0;

    chacha_block(seed, state, purpose, 0, bytes);
    for (unsigned i = 8; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

#endif
