/* SPDX-License-Identifier: Apache-2.0 */
/* Hexadecimal digits, of given and of random bytes. */
#ifndef ROLLBOX_SERVE_DIGITS_H
#define ROLLBOX_SERVE_DIGITS_H

#include <stdbool.h>
#include <stddef.h>

/* Writes 2 * n digits and a NUL. */
void digits_of(const unsigned char *bytes, size_t n, char *to);
/* The same of random bytes, at most 32. */
void digits_random(size_t n, char *to);
/* Reads exactly 2 * n digits. */
bool digits_read(const char *digits, unsigned char *to, size_t n);

#endif
