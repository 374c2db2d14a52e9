/* SPDX-License-Identifier: Apache-2.0 */
/* time_mode virtual inside a sandbox. vtime.c has the model; vtime_wait.c handles waits,
 * vtime_timer.c timers, and vtime_idle.c detects rest. */
#ifndef ROLLBOX_GUEST_DET_VTIME_H
#define ROLLBOX_GUEST_DET_VTIME_H

/* The vDSO's assembly code contains these, so they are plain numbers. */
#define VIRTUAL_TICK_NS 1000 /* how far each query moves the clock */
#define VIRTUAL_ASK_PAGE                                                                           \
    1919904876 /* clock ids that no clock has: requests of the patched vDSO to init */
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

/* While the sandbox is made, before any restriction: creates the page that its processes will
 * share. 0 or -errno. */
int vtime_make_page(void);
/* Takes the file behind /proc/uptime, open for writing; closes it on failure. 0 or -errno. */
int vtime_take_uptime(int take_fd);
/* Starts the clock, with the first command. */
void vtime_begin(const struct plan *plan);
/* The time of day; and the time of day of a query, which moves the clock. Nanoseconds. */
int64_t vtime_time_of_day(void);
int64_t vtime_query_time_of_day(void);
/* A command's main process has executed, with these standard streams and this listener. */
void vtime_started(int listener, const int *streams);
/* No command runs any more, or all are about to be stopped: the clock stands until one runs. */
void vtime_stand(void);
/* A process has executed a program. */
void vtime_executed(pid_t pid);
/* False: the call is not about time. */
bool vtime_answer(int listener, const struct seccomp_notif *question);
/* When vtime_step must be called at the latest, by clock_now_ns. */
int64_t vtime_next_ns(void);
/* Moves the clock if it is due. `quiet`: init had no other event. */
void vtime_step(bool quiet);
/* Waits until init is not stopping any thread. */
void vtime_settle(void);
/* Exports the state for another init, which resumes the processes (quiesce.c), and imports it
 * there. */
struct image_determinism;
struct image_wait;
struct image_alarm;
void vtime_tell(struct image_determinism *to);
void vtime_resume(const struct image_determinism *from);
uint32_t wait_tell(struct image_wait *to, uint32_t *ret_again);
void wait_resume(const struct image_wait *from, uint32_t n);
uint32_t timer_tell(struct image_alarm *to);
/* `files`: descriptors of the image's files, which remain the caller's. */
void timer_resume(const struct image_alarm *from, uint32_t n, const int *files);
/* Returns the held call of a thread so that it is restarted, unless a signal is handled first; its
 * deadline stays. */
void wait_give_back(pid_t thread);
/* How many threads begin a wait again; and how many of these have not made their call yet. */
uint32_t wait_count_again(void);
uint32_t wait_count_left(void);
/* The thread begins no earlier wait again. */
void wait_forget_again(pid_t thread);
/* Marks timer descriptors so that a dump recognises them (quiesce.h), and removes the marks. */
void timer_mark(void);
void timer_unmark(void);
/* The thread exists and is not stopped. */
bool idle_is_on_its_way(pid_t thread);
/* Registers an end of a pipe, or a terminal, whose other end is outside. */
void idle_add_external(int fd);
/* A descriptor of the page, which the caller closes; or -errno. */
int vtime_page(void);
/* A listener is closed. */
void vtime_forget(int listener);
/* Passes all waits to the kernel, where signals reach them. */
void vtime_release(void);
/* A thread has stopped. False if the stop was not made here. */
bool vtime_stopped(pid_t thread, int status);

/* ---- among these files ---- */

#define VIRTUAL_NS 1000000000ll
#define VIRTUAL_NEVER (1ll << 61) /* nanoseconds: 73 years, the end of the clock */

/* A future event. Simultaneous events are ordered by process, because calls of racing threads
 * arrive in any order. */
struct virtual_event {
    int64_t deadline; /* nanoseconds since the start */
    uint64_t stream;  /* with a seed: the process's stream, which follows from the tree of forks,
                         unlike its id; else 0 */
    uint64_t sequence;
    pid_t thread;
};

struct virtual_event vtime_event(pid_t thread, int64_t deadline);
/* Orders two simultaneous events. */
bool vtime_is_before(const struct virtual_event *a, const struct virtual_event *b);

/* Nanoseconds since the start. */
int64_t vtime_now(void);
/* The time `ns` from now; at most VIRTUAL_NEVER. */
int64_t vtime_after(int64_t ns);
/* The time that is left; 0: it has passed. */
int64_t vtime_left(int64_t deadline);
/* vtime_timer.c: moves the clock to the deadline, unless that has passed. */
void vtime_reach(int64_t deadline);
/* The same, without noticing timers. True if it moved. */
bool vtime_jump(int64_t deadline);
void vtime_begin_clock(const struct plan *plan);
bool vtime_is_on(void);
extern int vtime_page_fd;
/* Queries by a system call are equivalent to others: the time, which moves the clock; and the sum
 * of the queries alone, which counts as CPU time. */
int64_t vtime_query(void);
int64_t vtime_query_cpu(void);
/* Writes /proc/uptime. 0 or -errno. */
int vtime_tell_uptime(void);

/* det/vtime_pace.c */
#define VIRTUAL_FIRST_PAUSE_NS 50000ll /* between checks for running threads: doubled each time */
extern struct virtual_pace {
    int64_t pause_ns, look_ns;  /* pause before the next check for running threads, and its time */
    int64_t looked_ns, cost_ns; /* end and duration of the last check */
    int64_t jumped_ns;          /* its last jump, by the real clock */
    bool awaits_outside; /* at the last check all threads waited, one of them for the outside */
} vtime_pace;

/* The start value of a clock in nanoseconds. False: it is not virtual. */
bool vtime_base(clockid_t clock, int64_t *ret_ns);
/* Reads a time at `address` of a process: a timespec, or a timeval. False if it is unreadable or
 * invalid. Larger values become VIRTUAL_NEVER. */
bool vtime_read_time(pid_t pid, uint64_t address, bool micro, int64_t *ret_ns);
/* The reverse. 0 or -errno. */
long vtime_write_time(pid_t pid, uint64_t address, bool micro, int64_t ns);

/* Gives the caller a descriptor: 0 or more, or -errno. */
long vtime_give(int listener, const struct seccomp_notif_addfd *give);

/* vtime_wait.c: false if the call is no wait. */
bool wait_answer(int listener, const struct seccomp_notif *question);
/* A listener is closed. */
void wait_forget(int listener);
/* All threads wait: waits that were set aside because their thread ran can end again. */
void wait_take_back(void);
/* The earliest deadline that can be ended; VIRTUAL_NEVER: none. */
int64_t wait_earliest(void);
/* The first wait up to a time. */
bool wait_first(int64_t until, struct virtual_event *ret_event);
/* Ends the wait of wait_first() and moves the clock to its time. False: it was over already, cannot
 * be ended, or is set aside until its thread is seen. */
bool wait_end_first(void);
/* Ends waits that ended for another reason than time (a signal, a futex's word), as far as it can
 * be seen. Their number. */
size_t wait_end_changed(void);
/* Ends waits that are due by the real clock, and checks held waits; returns the time of its next
 * call. */
int64_t wait_look(int64_t now_ns);
/* No thread could proceed until now: deadlines by the real clock are moved as if the stop began
 * now, by at most `max_ns`. */
void wait_stood(int64_t now_ns, int64_t max_ns);
/* While all threads wait, one of them for the outside, the clock moves at the real rate: ends waits
 * that are over by that. Returns the time of the next one. */
int64_t wait_end_over(int64_t now_ns);
/* Until when the stop of a thread is awaited; 0: none. */
int64_t wait_cutting_until(void);
/* serial: ends at most `most` waits for a futex, on behalf of a call of `waker`. Their number. */
size_t wait_wake(pid_t waker, uint64_t address, bool shared, uint32_t most);
/* Ends held waits for descriptors that are ready. */
void wait_pass_ready(void);
/* det/vtime_held.c: a held call begins, or ends. */
#define WAIT_MAX_THREADS (1u << 18) /* Ids below this have marks; other threads are looked up. */
void wait_mark(pid_t thread, bool is_held);
/* Is the thread in a call that init holds? */
bool wait_is_held(pid_t thread);
/* And is it the only thread of its process? That cannot change meanwhile: wait_set_alone() has
 * recorded it. */
bool wait_is_held_alone(pid_t process);
/* By the kernel's knowledge: a thread that was killed while it waited, and any new thread with its
 * id, even after an execve, counts as held until init notices. */
bool wait_is_asking(pid_t thread);
void wait_set_alone(pid_t process);
size_t wait_count(void);
/* A thread has made a call: the wait that it was to begin again has begun, or never will. A
 * restart_syscall is replaced by the call that it continues. */
void wait_asked(struct seccomp_notif *question);

/* Ends events that the clock has passed. True if it did anything. */
bool vtime_end_overdue(void);
/* How much later than by the real clock init ends a wait that it holds, if the sandbox never
 * rests. */
int64_t vtime_grace_ns(void);
/* The sandbox does rest and events are coming nearer: until when a wait that is due by the real
 * clock can be delayed. 0: no delay. */
int64_t vtime_put_off(
    int64_t now_ns, int64_t over_ns, int64_t length_ns, int64_t deadline, int64_t lost_before_ns);
/* No thread can proceed: waits do not end by the real clock until one can. */
bool vtime_stands(void);
/* At the last check, all threads waited, one of them for input from outside or for its output to be
 * taken. */
bool vtime_awaits_outside(void);
/* For this long, all threads were stopped for a dump, or init was occupied with it: that time does
 * not count for waits by the real clock, or as computing. */
void vtime_stood(int64_t ns);
/* Something happens in the sandbox: it may rest soon. */
void vtime_disturb(void);
/* From a thread's file "syscall": the arguments and the number of its call, or -errno. */
int vtime_parse_call(const char *text, uint64_t *ret_arguments);

/* vtime_timer.c: the same for timers. */
bool timer_answer(int listener, const struct seccomp_notif *question);
int64_t timer_earliest(void);
bool timer_first(int64_t until, struct virtual_event *ret_event);
bool timer_fire_first(void);
int64_t timer_look(int64_t now_ns);
void timer_stood(int64_t now_ns, int64_t max_ns);
bool timer_any(void);
/* The clock has moved: counts expirations that no process has noticed. */
void timer_pass(void);
/* Removes timers that an execve ends. */
void timer_executed(pid_t pid);

/* vtime_kernel.c */
void kernel_begin(const struct plan *plan);
/* Every thread waits: has the kernel nothing left to deliver? This also delivers what terminals
 * have queued; the network is checked if `delivers`. */
bool kernel_has_settled(bool delivers);
/* The time spent on that since the last call. */
int64_t kernel_spent_ns(void);

/* vtime_idle.c */
enum idle { IDLE_NOT, IDLE_OUTSIDE, IDLE };
/* IDLE: there was a moment in which every thread waited; OUTSIDE: one of them for the outside of
 * the sandbox. `delivers`: and the network had nothing to deliver. */
enum idle idle_look(bool delivers);
/* The total time that running threads were kept from running by other load on the machine, as of
 * the last check: time that programs were not given does not count as used. The second bounds it
 * for a span that began at `before_ns` of the first. Time lost before the last rest is not
 * counted. */
int64_t idle_lost_ns(void);
int64_t idle_lost_of_ns(int64_t span_ns, int64_t before_ns);
void idle_stand(void); /* the time from now to the next check cannot be lost by any thread */
/* Does the thread run, or is it about to? A single look at it. */
bool idle_runs(pid_t thread);
/* Is the process dead, collected or not? */
bool idle_has_ended(pid_t process);
/* The waits of the threads at the last idle_look(). */
enum idle_waits {
    IDLE_WAITS_CALL = 1,
    IDLE_WAITS_LOCK = 2
}; /* for the effects of other threads' calls, except the ends of processes; for a lock of a file */
unsigned idle_waits(void);
/* Inspects a descriptor of a thread. */
struct stat;
bool idle_stat(pid_t thread, uint64_t fd, struct stat *ret_st);
/* Does such a call wait for input from outside of the sandbox, or for output to be taken there? */
bool idle_is_outside(pid_t thread, int call, const uint64_t *arguments);
/* A command's standard streams lead outside, until its listener is forgotten. */
void idle_add_outside(int listener, const int *streams);
void idle_forget_outside(int listener);

#endif
