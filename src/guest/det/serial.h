/* SPDX-License-Identifier: Apache-2.0 */
/* serial inside a sandbox: one thread goes on at a time, in an order that repeats. serial.c has the
 * model. */
#ifndef ROLLBOX_GUEST_DET_SERIAL_H
#define ROLLBOX_GUEST_DET_SERIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/internal.h"

/* How long somebody may go on without asking, before others do beside it: by the real clock. */
#define SERIAL_PATIENCE_NS 10000000000ll

struct seccomp_notif;

/* How a question is answered whose turn has come: det/dispatch.c, which is above. */
typedef void serial_serve(
    const struct plan *plan, int listener, const struct seccomp_notif *question);
/* With the first command: init, and whatever it starts, on one CPU. */
void serial_begin(serial_serve *serve);

/* What the files below serial.c ask of it, by serial_ops.c: NULL where it is not on. */
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
/* Takes a question: it is answered when its turn comes. */
void serial_ask(int listener, const struct seccomp_notif *question);
/* A wait that init held is over: when its turn comes it returns `result`, or, with `passes`, is the
 * kernel's. */
void serial_ask_end(int listener, uint64_t id, pid_t thread, int result, bool passes);
/* Whether the process of a thread has, or had, more than that one. */
bool serial_has_threads(pid_t thread);
/* Whoever waits for its turn is at rest. */
bool serial_has_asked(pid_t thread);
bool serial_is_asking(pid_t thread); /* wait_is_asking */
size_t serial_count(void);
/* Somebody goes on, but for those who get their turn. */
void serial_moves(void);
/* The one whose wait has ended while all were at rest: its turn. */
void serial_turn_of(pid_t thread);
/* When serial_step is to be called at the latest, by clock_now_ns. */
int64_t serial_next_ns(void);
void serial_step(const struct plan *plan);
/* A listener is closed. */
void serial_forget(int listener);
/* Answers all that wait: before processes are to be stopped. */
void serial_release(const struct plan *plan);

#endif
