/* SPDX-License-Identifier: Apache-2.0 */
/* System calls of init's that a guest could make last: bounded.c has the model. */
#ifndef ROLLBOX_GUEST_BOUNDED_H
#define ROLLBOX_GUEST_BOUNDED_H

#include <stdint.h>

/* In init, once, before the first call. 0 or -errno. */
int bounded_begin(void);
/* A system call that is given up after about `limit_us`. Its result, or -EINTR. */
long bounded_call(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t limit_us);

#endif
