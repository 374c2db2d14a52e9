/* SPDX-License-Identifier: Apache-2.0 */
/* Deferred tasks of the event loop: their order, and their place among descriptors and timers. */
#include "test.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "loop/loop.h"

#define N_TASKS 3

static struct {
    struct loop *loop;
    struct loop_task tasks[N_TASKS];
    struct loop_source source;
    struct loop_timer timer;
    char order[32]; /* what has run: a letter each */
    size_t n;
    bool in_callback;
} state;

static void record(char letter) {
    ASSERT_TRUE(state.n + 1 < sizeof state.order);
    state.order[state.n++] = letter;
}

static void on_task(struct loop_task *task) {
    ASSERT_TRUE(!state.in_callback);
    record((char)('a' + (task - state.tasks)));
}

static void defer(size_t i) {
    loop_defer(state.loop, &state.tasks[i], on_task);
}

static void on_stop(struct loop_timer *timer) {
    (void)timer;
    record('t');
    loop_stop(state.loop);
}

static void begin(void) {
    ASSERT_OK(loop_new(&state.loop));
}

static void run_until_timer(void) {
    ASSERT_OK(loop_timer_set(state.loop, &state.timer, clock_now_ns(), on_stop));
    ASSERT_OK(loop_run(state.loop));
    state.loop = loop_free(state.loop);
}

TEST(tasks_run_once_in_the_order_in_which_they_were_deferred) {
    begin();
    defer(1);
    defer(0);
    defer(1);
    defer(2);
    loop_run_tasks(state.loop);
    ASSERT_STR_EQ(state.order, "bac");
    loop_free(state.loop);
}

TEST(cancelled_task_does_not_run) {
    begin();
    loop_task_cancel(&state.tasks[0]);
    defer(0);
    defer(1);
    loop_task_cancel(&state.tasks[0]);
    loop_run_tasks(state.loop);
    ASSERT_STR_EQ(state.order, "b");
    loop_free(state.loop);
}

static void on_canceller(struct loop_task *task) {
    (void)task;
    record('x');
    loop_task_cancel(&state.tasks[1]);
}

TEST(task_may_cancel_one_that_is_due_in_the_same_round) {
    begin();
    loop_defer(state.loop, &state.tasks[0], on_canceller);
    defer(1);
    defer(2);
    loop_run_tasks(state.loop);
    ASSERT_STR_EQ(state.order, "xc");
    loop_free(state.loop);
}

static void on_again(struct loop_task *task) {
    record('r');
    if (state.n < 20)
        loop_defer(state.loop, task, on_again);
}

/* The task defers itself without end; the timer that is due has its turn all the same. */
TEST(task_that_defers_itself_does_not_starve_timers) {
    begin();
    loop_defer(state.loop, &state.tasks[0], on_again);
    run_until_timer();
    ASSERT_TRUE(state.order[1] == 't' || state.order[2] == 't');
    ASSERT_EQ(state.n, 20); /* the rest ran after loop_stop */
}

static void on_event(struct loop_source *source, uint32_t events) {
    (void)events;
    state.in_callback = true;
    loop_remove(state.loop, source);
    record('e');
    defer(0);
    state.in_callback = false;
}

TEST(task_runs_after_the_callback_that_deferred_it) {
    auto_close int fd = eventfd(1, EFD_CLOEXEC);

    begin();
    ASSERT_OK(loop_add(state.loop, &state.source, fd, EPOLLIN, on_event));
    ASSERT_OK(loop_timer_set(state.loop, &state.timer, clock_now_ns() + 10000000, on_stop));
    ASSERT_OK(loop_run(state.loop));
    ASSERT_STR_EQ(state.order, "eat");
    loop_free(state.loop);
}
