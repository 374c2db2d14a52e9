/* SPDX-License-Identifier: Apache-2.0 */
/* A wait under a virtual clock: for vtime_wait.c and vtime_wait_files.c. */
#ifndef ROLLBOX_GUEST_DET_VTIME_WAIT_H
#define ROLLBOX_GUEST_DET_VTIME_WAIT_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/det/vtime.h"

#define FUTEX_WAITV_CALL 449
#define FUTEX_WAIT_CALL 455
#define WAIT_MAX_POLLED 32 /* descriptors of a wait that is held for them */

enum state { HELD, KERNEL, CUTTING };

struct wait {
    struct virtual_event event;
    uint64_t id; /* held: the pending call */
    uint64_t arguments[6];
    int64_t due_ns;  /* by the real clock; INT64_MAX: the kernel ends it */
    int64_t over_ns; /* earliest time at which the kernel ends it */
    int64_t look_ns; /* held: next check for signals, or end of the slice; set aside: until then */
    int64_t tick_ns; /* between such checks */
    int64_t length_ns;
    int listener;
    int result; /* after a time-out */
    uint16_t number;
    uint8_t state;    /* enum state */
    bool time_of_day; /* by the time of day, which differs from the kernel's */
    bool absolute;
    bool shared;   /* futex: shared between processes */
    bool polls;    /* held, for descriptors */
    bool is_aside; /* the kernel's, and its thread was not found waiting: it can end when it is */
    bool is_stopping; /* the kernel's, being cut: its thread has not stopped yet */
    bool
        is_restarted; /* held, and begun again by restart_syscall: the kernel has no record of it */
    pid_t process;    /* for futexes and held polls */
    uint32_t lost_ms; /* idle_lost_ns() when it began */
};

/* ---- vtime_wait_files.c ---- */

/* The descriptors, as for poll. Returns their number, or -errno if they are too many or invalid:
 * then the wait is the kernel's. */
int wait_descriptors(const struct wait *w, struct pollfd *ret_polled);
bool wait_is_select(const struct wait *w);
/* Whether the call returns the remaining time. */
bool wait_returns_rest(const struct wait *w);
void wait_write_rest(const struct wait *w, int64_t ns);
/* Writes the remaining time of an interrupted call. */
void wait_write_left(const struct wait *w);
/* Polls for a held wait. Returns the call's result, with its output written; 0: not over; or
 * -errno: the wait is the kernel's. */
int wait_poll(const struct wait *w);
/* Whether the call would block, without a time-out, for an event of its descriptor. */
bool wait_is_blocking(const struct wait *w);
/* A select that times out leaves its sets empty. */
void wait_clear_sets(pid_t pid, const uint64_t *arguments);
/* Clears the output, as the kernel does after a time-out. */
void wait_clear_polled(const struct wait *w);

#endif
