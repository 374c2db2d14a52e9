/* SPDX-License-Identifier: Apache-2.0 */
/* time_mode virtual inside a sandbox. vtime.c has the model; vtime_wait.c waits, vtime_timer.c
 * timers, vtime_idle.c when everybody waits. */
#ifndef ROLLBOX_GUEST_DET_VTIME_H
#define ROLLBOX_GUEST_DET_VTIME_H

/* The code in the vDSO has these in its text, so they are plain numbers. */
#define VIRTUAL_TICK_NS 1000 /* by how much each query moves the clock */
#define VIRTUAL_ASK_PAGE                                                                           \
    1919904876 /* clock ids that none has: what the patched vDSO asks init, and tells it */
#define VIRTUAL_TELL_PAGE 1919904877

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "guest/internal.h"

struct seccomp_notif;
struct seccomp_notif_addfd;

/* ---- for the rest of init ---- */

/* While the sandbox is made, before anything is forbidden: the page that its processes will share.
 * 0 or -errno. */
int vtime_make_page(void);
/* The file that is /proc/uptime, open for writing, which is closed if that fails. 0 or -errno. */
int vtime_take_uptime(int take_fd);
/* The clock starts, with the first command. */
void vtime_begin(const struct plan *plan);
/* The time of day; and as told to somebody who asks, which moves the clock. Nanoseconds. */
int64_t vtime_time_of_day(void);
int64_t vtime_query_time_of_day(void);
/* A command's main process has executed, with these for its standard streams, and asks by this
 * listener. */
void vtime_started(int listener, const int *streams);
/* No command runs any more, or all are about to be stopped: the clock stands until one runs. */
void vtime_stand(void);
/* A process has a new image. */
void vtime_executed(pid_t pid);
/* False: the question is none about time. */
bool vtime_answer(int listener, const struct seccomp_notif *question);
/* When vtime_step is to be called at the latest, by clock_now_ns. */
int64_t vtime_next_ns(void);
/* Moves the clock on if it is due. `quiet`: nobody wants anything of init. */
void vtime_step(bool quiet);
/* Until no thread is being stopped by init. */
void vtime_settle(void);
/* What is told to another init that goes on with it (quiesce.c), and there. */
struct image_determinism;
struct image_wait;
struct image_alarm;
void vtime_tell(struct image_determinism *to);
void vtime_resume(const struct image_determinism *from);
uint32_t wait_tell(struct image_wait *to, uint32_t *ret_again);
void wait_resume(const struct image_wait *from, uint32_t n);
uint32_t timer_tell(struct image_alarm *to);
/* `files`: descriptors of those of the image, which stay the caller's. */
void timer_resume(const struct image_alarm *from, uint32_t n, const int *files);
/* Answers what init holds of a thread so that it is done again, unless a signal is handled first;
 * the end of it stays what it was. */
void wait_give_back(pid_t thread);
/* How many threads begin a wait anew; and how many of these are on their way there. */
uint32_t wait_count_again(void);
uint32_t wait_count_left(void);
/* It begins no call of before anew. */
void wait_forget_again(pid_t thread);
/* So that timer descriptors are known wherever they are found (quiesce.h), and not any more. */
void timer_mark(void);
void timer_unmark(void);
/* It is there, and does not stand. */
bool idle_is_on_its_way(pid_t thread);
/* An end of a pipe, or a terminal, whose other end is outside. */
void idle_add_external(int fd);
/* A descriptor of the page, which the caller closes; or -errno. */
int vtime_page(void);
/* A listener is closed. */
void vtime_forget(int listener);
/* Gives all waits to the kernel, where signals reach them. */
void vtime_release(void);
/* A thread has stopped. False if not for us. */
bool vtime_stopped(pid_t thread, int status);

/* ---- among these files ---- */

#define VIRTUAL_NS 1000000000ll
#define VIRTUAL_NEVER (1ll << 61) /* nanoseconds: 73 years, the end of the clock */

/* What lies ahead. What is nearly at the same time comes by whose it is, as questions of threads
 * that race come in any order. */
struct virtual_event {
    int64_t deadline; /* nanoseconds since the start */
    uint64_t stream;  /* with a seed: of the process, which follows from the tree of forks, unlike
                         its id; else 0 */
    uint64_t sequence;
    pid_t thread;
};

struct virtual_event vtime_event(pid_t thread, int64_t deadline);
/* Of two at the same time. */
bool vtime_is_before(const struct virtual_event *a, const struct virtual_event *b);

/* Nanoseconds since the start. */
int64_t vtime_now(void);
/* That many later; at most VIRTUAL_NEVER. */
int64_t vtime_after(int64_t ns);
/* How long it is until then; 0: it is past. */
int64_t vtime_left(int64_t deadline);
/* vtime_timer.c: moves the clock there, if it is not past it. */
void vtime_reach(int64_t deadline);
/* The same, and no timer notices. True if it was moved. */
bool vtime_jump(int64_t deadline);
void vtime_begin_clock(const struct plan *plan);
bool vtime_is_on(void);
extern int vtime_page_fd;
/* A query by a call is one like another: the time, which that moves; and that of the queries alone,
 * which is the time spent computing. */
int64_t vtime_query(void);
int64_t vtime_query_cpu(void);
/* Writes /proc/uptime. 0 or -errno. */
int vtime_tell_uptime(void);

/* det/vtime_pace.c */
#define VIRTUAL_FIRST_PAUSE_NS 50000ll /* between looks at who runs: doubled each time */
extern struct virtual_pace {
    int64_t pause_ns, look_ns;  /* the next look at who runs: how long after, and when */
    int64_t looked_ns, cost_ns; /* the last one: when it was over, and how long it took */
    int64_t jumped_ns;          /* when it last jumped, by the real clock */
    bool awaits_outside; /* all waited when that was last looked for, somebody of them for the
                            outside */
} vtime_pace;

/* What a clock shows at the start, in nanoseconds. False: it is none of the virtual ones. */
bool vtime_base(clockid_t clock, int64_t *ret_ns);
/* A time at `address` in a process: a timespec, or a timeval. False if there is none to be read or
 * it is none. What is too far is VIRTUAL_NEVER. */
bool vtime_read_time(pid_t pid, uint64_t address, bool micro, int64_t *ret_ns);
/* The reverse. 0 or -errno. */
long vtime_write_time(pid_t pid, uint64_t address, bool micro, int64_t ns);

/* Gives the asker a descriptor, as described: 0 or more, or -errno. */
long vtime_give(int listener, const struct seccomp_notif_addfd *give);

/* vtime_wait.c: false if the question is no wait. */
bool wait_answer(int listener, const struct seccomp_notif *question);
/* A listener is closed. */
void wait_forget(int listener);
/* Everybody waits: what was set aside because its thread ran has its turn again. */
void wait_take_back(void);
/* The deadline of the earliest that can be ended; VIRTUAL_NEVER: there is none. */
int64_t wait_earliest(void);
/* The first of those up to a time. */
bool wait_first(int64_t until, struct virtual_event *ret_event);
/* Ends the one that wait_first told of, and moves the clock to its time. False: it was over
 * already, cannot be ended, or is set aside until its thread is seen. */
bool wait_end_first(void);
/* Ends what has ended for another reason than time (a signal, a futex' word), as far as it can be
 * seen. How many. */
size_t wait_end_changed(void);
/* What is due by the real clock, and looks at what is held; when it wants to do so again. */
int64_t wait_look(int64_t now_ns);
/* Nobody got on until now: what is to end by the real clock has as long as if its rest began now,
 * but that much longer at the most. */
void wait_stood(int64_t now_ns, int64_t max_ns);
/* While all wait, and somebody for the outside, the clock goes on at the real rate: ends what is
 * over by that. When the next is. */
int64_t wait_end_over(int64_t now_ns);
/* Until when the stop of a thread is waited for; 0: none is. */
int64_t wait_cutting_until(void);
/* serial: ends waits for a futex, as a call of `waker` asks for; at most so many. How many. */
size_t wait_wake(pid_t waker, uint64_t address, bool shared, uint32_t most);
/* Ends those of the held waits for descriptors that have not to wait any more. */
void wait_pass_ready(void);
/* det/vtime_held.c. Of a held call: it begins, or ends. */
#define WAIT_MAX_THREADS                                                                           \
    (1u << 18) /* ids that are marked; threads with higher ones are looked at instead */
void wait_mark(pid_t thread, bool is_held);
/* Is it in a call that init holds? */
bool wait_is_held(pid_t thread);
/* And the only one of its process, which cannot change meanwhile: as wait_set_alone has said. */
bool wait_is_held_alone(pid_t process);
/* As the kernel knows it: who was killed while he waited, and whoever has got his id since, even by
 * an execve, is held until init notices. */
bool wait_is_asking(pid_t thread);
void wait_set_alone(pid_t process);
size_t wait_count(void);
/* A thread has asked something: what it was to begin anew it has, or will not any more. A
 * restart_syscall is made the call that it goes on with. */
void wait_asked(struct seccomp_notif *question);

/* Ends what the clock has passed. True if it did anything. */
bool vtime_end_overdue(void);
/* How much later than by the real clock what init holds ends, if the sandbox never comes to rest.
 */
int64_t vtime_grace_ns(void);
/* Until when that can wait still which is to end by the real clock now: the sandbox does come to
 * rest, and what is waited for nearer. 0: it cannot. */
int64_t vtime_put_off(
    int64_t now_ns, int64_t over_ns, int64_t length_ns, int64_t deadline, int64_t lost_before_ns);
/* Nobody gets on: what is due by the real clock is not, until somebody does. */
bool vtime_stands(void);
/* When that was last looked for all waited, somebody of them for input from outside, or for output
 * to be taken. */
bool vtime_awaits_outside(void);
/* Until now all stood for a capture, or init did nothing else while they did, for so long: of that
 * nothing has passed by the real clock for anybody who waits for it, or computes. */
void vtime_stood(int64_t ns);
/* Something happens in the sandbox: it may come to rest soon. */
void vtime_disturb(void);
/* Of a thread's file "syscall": the arguments and the number of the call that it is in, or -errno.
 */
int vtime_parse_call(const char *text, uint64_t *ret_arguments);

/* vtime_timer.c, likewise. */
bool timer_answer(int listener, const struct seccomp_notif *question);
int64_t timer_earliest(void);
bool timer_first(int64_t until, struct virtual_event *ret_event);
bool timer_fire_first(void);
int64_t timer_look(int64_t now_ns);
void timer_stood(int64_t now_ns, int64_t max_ns);
bool timer_any(void);
/* The clock has moved: counts what expires and is nobody's to notice. */
void timer_pass(void);
/* Timers that an execve ends. */
void timer_executed(pid_t pid);

/* vtime_kernel.c */
void kernel_begin(const struct plan *plan);
/* Every thread waits: has the kernel nothing to deliver to one? What terminals have is delivered by
 * this; the network is looked at if `delivers`. */
bool kernel_has_settled(bool delivers);
/* How long that took since this was asked last. */
int64_t kernel_spent_ns(void);

/* vtime_idle.c */
enum idle { IDLE_NOT, IDLE_OUTSIDE, IDLE };
/* IDLE: there was a moment in which every thread waited; OUTSIDE: one of them for what comes from
 * outside of the sandbox. `delivers`: and in which the network had nothing to deliver. */
enum idle idle_look(bool delivers);
/* For how long, in all, who ran was kept from it by what else the machine does: time that programs
 * were not given is none that they took. As of the last look; so of a span, since when it was
 * `before_ns`, it is bounded by that. What was lost before the last rest is not counted. */
int64_t idle_lost_ns(void);
int64_t idle_lost_of_ns(int64_t span_ns, int64_t before_ns);
void idle_stand(void); /* the time from now to the next look is none that anybody could lose */
/* Whether a thread runs, or is about to: one look at it alone. */
bool idle_runs(pid_t thread);
/* Whether a process is dead, waited for or not. */
bool idle_has_ended(pid_t process);
/* What those seen by the last idle_look wait for. */
enum idle_waits {
    IDLE_WAITS_CALL = 1,
    IDLE_WAITS_LOCK = 2
}; /* for what calls of others can do, but for the ends of processes; for a lock of a file */
unsigned idle_waits(void);
/* Of a descriptor of a thread's. */
struct stat;
bool idle_stat(pid_t thread, uint64_t fd, struct stat *ret_st);
/* Whether such a call waits for what comes from outside of the sandbox, or is taken there. */
bool idle_is_outside(pid_t thread, int call, const uint64_t *arguments);
/* The standard input of a command is from outside, its output goes there; until its listener is
 * forgotten. */
void idle_add_outside(int listener, const int *streams);
void idle_forget_outside(int listener);

#endif
