/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define BATCH 64

struct loop {
    int epoll;
    bool stopped;
    struct epoll_event batch[BATCH];
    int n_batch, current;     /* events current+1..n_batch-1 are fetched but not handled */
    struct loop_timer **heap; /* heap[1..n]: the root is the earliest */
    size_t n, capacity;
    struct list tasks, round_end; /* deferred tasks; the end of the current round in that list */
};

int loop_new(struct loop **ret_loop) {
    struct loop *loop = calloc(1, sizeof *loop);

    if (!loop)
        return -ENOMEM;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0) {
        int r = -errno;
        free(loop);
        return r;
    }
    list_init(&loop->tasks);
    list_init(&loop->round_end);
    *ret_loop = loop;
    return 0;
}

struct loop *loop_free(struct loop *loop) {
    if (loop) {
        close(loop->epoll);
        free(loop->heap);
        free(loop);
    }
    return NULL;
}

int loop_add(struct loop *loop, struct loop_source *source, int fd, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t)) {
    struct epoll_event event = { .events = events, .data.ptr = source };

    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        return -errno;
    source->fd = fd;
    source->callback = callback;
    return 0;
}

int loop_modify(struct loop *loop, struct loop_source *source, uint32_t events) {
    struct epoll_event event = { .events = events, .data.ptr = source };

    return epoll_ctl(loop->epoll, EPOLL_CTL_MOD, source->fd, &event) < 0 ? -errno : 0;
}

void loop_remove(struct loop *loop, struct loop_source *source) {
    if (!source->callback)
        return;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    source->fd = -1;
    source->callback = NULL;
    for (int i = loop->current + 1; i < loop->n_batch; i++)
        if (loop->batch[i].data.ptr == source)
            loop->batch[i].data.ptr = NULL;
}

static void place_timer(struct loop *loop, size_t position, struct loop_timer *timer) {
    loop->heap[position] = timer;
    timer->position = position;
}

static void sift_up(struct loop *loop, size_t position) {
    struct loop_timer *timer = loop->heap[position];

    for (; position > 1 && loop->heap[position / 2]->at_ns > timer->at_ns; position /= 2)
        place_timer(loop, position, loop->heap[position / 2]);
    place_timer(loop, position, timer);
}

static void sift_down(struct loop *loop, size_t position) {
    struct loop_timer *timer = loop->heap[position];

    for (size_t child; (child = 2 * position) <= loop->n; position = child) {
        if (child < loop->n && loop->heap[child + 1]->at_ns < loop->heap[child]->at_ns)
            child++;
        if (loop->heap[child]->at_ns >= timer->at_ns)
            break;
        place_timer(loop, position, loop->heap[child]);
    }
    place_timer(loop, position, timer);
}

int loop_timer_set(struct loop *loop, struct loop_timer *timer, int64_t at_ns,
    void (*callback)(struct loop_timer *)) {
    if (!timer->position) {
        if (loop->n + 1 >= loop->capacity) {
            size_t capacity = loop->capacity ? 2 * loop->capacity : 64;
            struct loop_timer **heap = reallocarray(loop->heap, capacity, sizeof *heap);

            if (!heap)
                return -ENOMEM;
            loop->heap = heap;
            loop->capacity = capacity;
        }
        place_timer(loop, ++loop->n, timer);
    }
    timer->at_ns = at_ns;
    timer->callback = callback;
    sift_up(loop, timer->position);
    sift_down(loop, timer->position);
    return 0;
}

void loop_timer_clear(struct loop *loop, struct loop_timer *timer) {
    size_t position = timer->position;

    if (!position)
        return;
    timer->position = 0;
    struct loop_timer *last = loop->heap[loop->n--];
    if (last == timer)
        return;
    place_timer(loop, position, last);
    sift_up(loop, position);
    sift_down(loop, last->position);
}

void loop_defer(struct loop *loop, struct loop_task *task, void (*run)(struct loop_task *task)) {
    if (task->node.next && !list_empty(&task->node))
        return;
    task->run = run;
    list_add_tail(&loop->tasks, &task->node);
}

void loop_task_cancel(struct loop_task *task) {
    if (task->node.next)
        list_remove(&task->node);
}

/* Runs the tasks that are deferred now. */
static void run_round(struct loop *loop) {
    if (list_empty(&loop->tasks))
        return;
    list_add_tail(&loop->tasks, &loop->round_end);
    while (loop->tasks.next != &loop->round_end) {
        struct loop_task *task = container_of(loop->tasks.next, struct loop_task, node);

        list_remove(&task->node);
        task->run(task);
    }
    list_remove(&loop->round_end);
}

void loop_run_tasks(struct loop *loop) {
    while (!list_empty(&loop->tasks))
        run_round(loop);
}

static int milliseconds_to_wait(const struct loop *loop) {
    if (!list_empty(&loop->tasks))
        return 0;
    if (!loop->n)
        return -1;
    int64_t left = loop->heap[1]->at_ns - clock_now_ns();
    return left <= 0 ? 0 : (int)MIN((left + 999999) / 1000000, (int64_t)1 << 30);
}

/* Runs the timers that are due now. A timer set meanwhile runs after the descriptors have had their
 * turn. */
static void fire_timers(struct loop *loop) {
    int64_t now = clock_now_ns() - 1;

    while (loop->n && loop->heap[1]->at_ns <= now) {
        struct loop_timer *timer = loop->heap[1];

        loop_timer_clear(loop, timer);
        timer->callback(timer);
        run_round(loop);
    }
}

int loop_run(struct loop *loop) {
    while (!loop->stopped) {
        int n = epoll_wait(loop->epoll, loop->batch, BATCH, milliseconds_to_wait(loop));

        if (n < 0 && errno != EINTR)
            return -errno;
        loop->n_batch = n < 0 ? 0 : n;
        for (loop->current = 0; loop->current < loop->n_batch; loop->current++) {
            struct loop_source *source = loop->batch[loop->current].data.ptr;
            if (source)
                source->callback(source, loop->batch[loop->current].events);
            run_round(loop);
        }
        loop->n_batch = 0;
        if (!n)
            run_round(loop);
        fire_timers(loop);
    }
    loop_run_tasks(loop);
    return 0;
}

void loop_stop(struct loop *loop) {
    loop->stopped = true;
}
