/* SPDX-License-Identifier: Apache-2.0 */
/* serial inside a sandbox: one thread runs at a time, in an order that repeats. serial.c has the
 * model. */
#ifndef ROLLBOX_GUEST_DET_SERIAL_H
#define ROLLBOX_GUEST_DET_SERIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/internal.h"

/* How long a thread may run without a call, by the real clock, before others run beside it. */
#define SERIAL_PATIENCE_NS 10000000000ll

struct seccomp_notif;

/* The function that answers a call when its turn has come: det/dispatch.c, a higher layer. */
typedef void serial_serve(
    const struct plan *plan, int listener, const struct seccomp_notif *question);
/* With the first command: binds init and its processes to one CPU. */
void serial_begin(serial_serve *serve);

/* The interface for the files below serial.c, through serial_ops.c: NULL if serial is off. */
extern const struct serial_ops {
    bool (*is_moving)(void);
    void (*moves)(void);
    bool (*has_asked)(pid_t thread);
    bool (*has_threads)(pid_t thread);
    size_t (*count)(void);
    void (*ask_end)(int listener, uint64_t id, pid_t thread, int result, bool passes);
    void (*turn_of)(pid_t thread);
} * serial_ops;
bool serial_is_on(void);
bool serial_is_moving(void);
/* Takes a call: it is answered when its turn comes. */
void serial_ask(int listener, const struct seccomp_notif *question);
/* A wait that init held is over: at its turn it returns `result`, or, with `passes`, goes to the
 * kernel. */
void serial_ask_end(int listener, uint64_t id, pid_t thread, int result, bool passes);
/* Has the process of a thread several threads, or had it? */
bool serial_has_threads(pid_t thread);
/* A thread that waits for its turn is at rest. */
bool serial_has_asked(pid_t thread);
bool serial_is_asking(pid_t thread); /* wait_is_asking */
size_t serial_count(void);
/* A thread moves without having the turn. */
void serial_moves(void);
/* The thread whose wait ended while all were at rest gets the turn. */
void serial_turn_of(pid_t thread);
/* When serial_step must be called at the latest, by clock_now_ns. */
int64_t serial_next_ns(void);
void serial_step(const struct plan *plan);
/* A listener is closed. */
void serial_forget(int listener);
/* Answers all waiting calls, before processes are stopped. */
void serial_release(const struct plan *plan);

#endif
