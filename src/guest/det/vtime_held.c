/* SPDX-License-Identifier: Apache-2.0 */
/* Which threads have held calls: vtime_wait.c records it, and vtime_idle.c reads it. */
#include "guest/det/det.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"

static uint64_t
    held[WAIT_MAX_THREADS / 64]; /* a bit for each; the kernel allocates the memory on first use */
static uint64_t
    alone[WAIT_MAX_THREADS / 64]; /* and which of these are the only thread of their process */

void wait_mark(pid_t marked, bool is_held) {
    uint64_t thread = (uint64_t)marked, bit = 1ull << thread % 64;

    if (thread >= WAIT_MAX_THREADS)
        return;
    held[thread / 64] = (held[thread / 64] & ~bit) | (is_held ? bit : 0);
    alone[thread / 64] &= ~bit;
}

static bool has_mark(const uint64_t *marks, pid_t thread) {
    return (uint64_t)thread < WAIT_MAX_THREADS && marks[thread / 64] >> thread % 64 & 1;
}

bool wait_is_held(pid_t thread) {
    return has_mark(held, thread);
}

bool wait_is_held_alone(pid_t process) {
    return has_mark(alone, process);
}

void wait_set_alone(pid_t process) {
    alone[process / 64] |= 1ull << process % 64;
}

bool wait_holds(pid_t thread) {
    return wait_is_held(thread) || serial_has_asked(thread);
}
