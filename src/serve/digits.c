/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/digits.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void digits_of(const unsigned char *bytes, size_t n, char *to) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        to[2 * i] = digits[bytes[i] >> 4];
        to[2 * i + 1] = digits[bytes[i] & 15];
    }
    to[2 * n] = '\0';
}

void digits_random(size_t n, char *to) {
    unsigned char bytes[32] = { 0 };

    /* Up to 256 bytes come whole once the kernel's generator is seeded, and it waits for that. */
    if (n > sizeof bytes || getrandom(bytes, n, 0) != (ssize_t)n)
        abort();
    digits_of(bytes, n, to);
}

bool digits_read(const char *digits, unsigned char *to, size_t n) {
    if (!digits || strlen(digits) != 2 * n || strspn(digits, "0123456789abcdef") != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = { digits[2 * i], digits[2 * i + 1], '\0' };

        to[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}
