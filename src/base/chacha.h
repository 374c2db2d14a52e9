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

static inline __attribute__((always_inline)) void chacha_quarter(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
    *a += *b;
    *d = chacha_rotate(*d ^ *a, 16);
    *c += *d;
    *b = chacha_rotate(*b ^ *c, 12);
    *a += *b;
    *d = chacha_rotate(*d ^ *a, 8);
    *c += *d;
    *b = chacha_rotate(*b ^ *c, 7);
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
        chacha_quarter(&x[0], &x[4], &x[8], &x[12]);
        chacha_quarter(&x[1], &x[5], &x[9], &x[13]);
        chacha_quarter(&x[2], &x[6], &x[10], &x[14]);
        chacha_quarter(&x[3], &x[7], &x[11], &x[15]);
        chacha_quarter(&x[0], &x[5], &x[10], &x[15]);
        chacha_quarter(&x[1], &x[6], &x[11], &x[12]);
        chacha_quarter(&x[2], &x[7], &x[8], &x[13]);
        chacha_quarter(&x[3], &x[4], &x[9], &x[14]);
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
