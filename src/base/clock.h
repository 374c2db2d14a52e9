/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROLLBOX_BASE_CLOCK_H
#define ROLLBOX_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline int64_t clock_now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

/* Nanoseconds of CLOCK_REALTIME, since 1970. */
static inline int64_t clock_real_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

/* The same at the kernel's last tick. Time stamps of files written from now on are not earlier. */
static inline int64_t clock_coarse_ns(void) {
    return clock_ns(CLOCK_REALTIME_COARSE);
}

#endif
