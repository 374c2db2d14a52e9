/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: descriptors by epoll, timers by a heap. One thread.
 *
 * Owners embed sources and timers and may remove any of them from any callback, the running one
 * included. An event that was already fetched for a removed source is dropped.
 *
 * A module must not call its user back from inside a call of that user; it defers a task instead.
 * Tasks run in the order of deferral, after the current callback returns. A task deferred by a task
 * runs after descriptors and timers have had their turn, so tasks that defer each other cannot
 * starve them.
 */
#ifndef ROLLBOX_LOOP_LOOP_H
#define ROLLBOX_LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct loop;

struct loop_source {
    int fd; /* borrowed; -1 while not added */
    void (*callback)(struct loop_source *source, uint32_t events);
};

struct loop_timer {
    int64_t at_ns;   /* CLOCK_MONOTONIC */
    size_t position; /* in the heap, from 1; 0: not armed */
    void (*callback)(struct loop_timer *timer);
};

/* Embedded in its owner, which must cancel the task before it is freed. */
struct loop_task {
    struct list node; /* linked while it is deferred */
    void (*run)(struct loop_task *task);
};

/* 0 or -errno. */
int loop_new(struct loop **ret_loop);
struct loop *loop_free(struct loop *loop);

/* Level-triggered; events are EPOLL*. 0 or -errno. */
int loop_add(struct loop *loop, struct loop_source *source, int fd, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t));
int loop_modify(struct loop *loop, struct loop_source *source, uint32_t events);
/* Must be called before the descriptor is closed. Does nothing for a source that is not added. */
void loop_remove(struct loop *loop, struct loop_source *source);

/* Arms (again). 0 or -ENOMEM, which cannot happen to a timer that is armed already. */
int loop_timer_set(struct loop *loop, struct loop_timer *timer, int64_t at_ns,
    void (*callback)(struct loop_timer *));
void loop_timer_clear(struct loop *loop, struct loop_timer *timer);

/* Runs task->run once, soon. Does nothing if it is deferred already. */
void loop_defer(struct loop *loop, struct loop_task *task, void (*run)(struct loop_task *task));
void loop_task_cancel(struct loop_task *task);
/* Runs tasks until none is left. For the end, when no more events are wanted. */
void loop_run_tasks(struct loop *loop);

/* Runs until loop_stop, and then runs the deferred tasks. Returns 0 or -errno. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

#endif
