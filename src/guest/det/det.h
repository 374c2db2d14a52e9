/* SPDX-License-Identifier: Apache-2.0 */
/* random_seed and time_start inside a sandbox. det/dispatch.c has the model, det/vdso_patch.c how
 * clocks are read without a system call. */
#ifndef ROLLBOX_GUEST_DET_DET_H
#define ROLLBOX_GUEST_DET_DET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "guest/internal.h"
#include "guest/det/file_times.h"

/* Trees of commands that init is asked by, background ones of commands that have ended included. */
#define DETERMINISM_MAX_LISTENERS 1024

/* Answers by which the kernel does a call again: always; unless a signal is handled first; and
 * that, by restart_syscall with the same arguments. */
#define DETERMINISM_DONE_AGAIN (-513) /* -ERESTARTNOINTR */
#define DETERMINISM_BROKEN_OFF (-514) /* -ERESTARTNOHAND */
#define DETERMINISM_RESTARTED (-516)  /* -ERESTART_RESTARTBLOCK */

/* What a command's child and init share on the way to execve. */
struct determinism_start {
    int listener; /* which number it will have: the child shares init's descriptors until it has it
                   */
    uint64_t stream; /* where its randomness starts */
};

/* A /proc of the sandbox's own that may be written to, which no guest sees (mount_ops.c). */
extern int determinism_proc;
/* What CLOCK_MONOTONIC of the sandbox is ahead of init's, which is the kernel's. */
extern int64_t determinism_uptime_ahead_ns;

static inline bool determinism_wanted(const struct plan *plan) {
    return plan->flags & (PLAN_SEED | PLAN_CLOCK);
}

/* In the launcher: what is the same in all its sandboxes, once. */
void determinism_prepare(const struct plan *plan);
/* In init, before the child is made; 0 or -errno. */
int determinism_begin(const struct plan *plan, struct determinism_start *start);
/* The number of the stream that the last one began with, from 0. */
uint64_t determinism_last_stream(void);
/* In the child, which shares init's descriptors and has ones of its own after; from here on it may
 * do nothing but what leads to execve. 0 or -errno. */
int determinism_enter(const struct plan *plan, const struct determinism_start *start);
/* In a process that is restored, of several threads perhaps, with the plan's program: its listener,
 * or -errno. */
struct sock_filter;
/* Likewise, of the calling process, and of what it forks from then on. */
int determinism_enter_asked(const struct sock_filter *program, size_t n);
int determinism_enter_restored(const struct sock_filter *program, size_t n);
#define DETERMINISM_NO_RANDOM_ADDRESSES 0x0040000 /* personality(2) */
/* In init, once the child has executed, with the three streams that it got, or ended, with NULL:
 * takes the listener over. */
void determinism_end(const struct determinism_start *start, const int *streams);

/* init's loop. How many entries of events[0..DETERMINISM_MAX_LISTENERS) it fills; and when it wants
 * to be called at the latest, by clock_now_ns. */
size_t determinism_poll(struct pollfd *events, int64_t *ret_until_ns);
/* Answers what there is, one question a listener, so that none holds up another. `quiet`: nobody
 * wanted anything of init. */
void determinism_serve(const struct plan *plan, const struct pollfd *events, size_t n, bool quiet);
/* Answers what is asked, and does nothing else, until all who begin waits anew have asked
 * (wait_count_left), or for long enough. */
void determinism_await_waits(const struct plan *plan);
/* Does a question wait for its answer, but for those that are held? */
bool determinism_is_asked(void);
/* Ends all waits that are held: before processes are to be sent signals, of which only SIGKILL
 * reaches them meanwhile. */
void determinism_release(const struct plan *plan);
/* Before all are stopped: under a virtual clock who waits for init stands still where he is, and
 * others are released. */
void determinism_stand(const struct plan *plan);
/* Does a thread wait for init, which has taken up its question? */
bool determinism_holds(pid_t thread);
/* That, and the kernel says so, too: it goes nowhere unless init lets it, or somebody kills it. */
bool determinism_holds_surely(pid_t thread);
/* Has somebody sent a process a signal that will stop it, which it has not taken yet? A SIGCONT
 * would make that undone. `surely`: one that it neither blocks nor catches. `proc`: a descriptor of
 * /proc. */
bool determinism_is_to_stop(int proc, pid_t process, bool surely);

/* For quiesce.c. All listeners; a question of one that is not to be looked at; what is held of a
 * thread that a tracer has told to stop. */
struct image_determinism;
size_t determinism_listeners(struct pollfd *events);
void determinism_pass(int listener);
void determinism_give_back(pid_t thread);
void determinism_tell(const struct plan *plan, struct image_determinism *to);
/* `ahead_ns`: what the time of day is ahead of CLOCK_MONOTONIC of init's. */
int determinism_resume(
    const struct plan *plan, const struct image_determinism *from, int64_t ahead_ns);
int determinism_adopt(int take_listener);
/* The same for a first command that was captured as one: its clock starts now. And if nothing came
 * of it: as if it had not been. */
int determinism_begin_command(const struct plan *plan, const struct image_determinism *from);
void determinism_begin_anew(const struct plan *plan);

/* det/listeners.c: those that there are. */
extern int determinism_fds[DETERMINISM_MAX_LISTENERS];
extern size_t determinism_n_fds;

/* det/vdso_patch.c. Prepares the patched image. `offset_ns` is what the time of day is ahead of the
 * kernel's, unless it is virtual. 0, or -EOPNOTSUPP: the kernel's is not as expected. */
int vdso_prepare(const struct plan *plan, int64_t offset_ns, struct stamps_bounds bounds);
/* Is what a process has at `base` what the kernel put there? */
bool vdso_is_fresh(pid_t pid, uint64_t base);
/* Has it been patched where the program before it was? A glance, for those that ask a second time
 * as they start: false may be wrong. */
bool vdso_is_known(pid_t pid);
/* Into such a process, with where its clock page is mapped, if it has it; 0: not yet. Where glibc's
 * newfstatat may be called from, if that is known, it is routed there as well (vdso_route_stat); 0:
 * not. 0 or -errno. */
int vdso_patch(pid_t pid, uint64_t base, uint64_t page, uint64_t stat_after);
/* Tells the patched code in a process where its clock page is mapped. 0 or -errno. */
int vdso_tell_page(pid_t pid, uint64_t base, uint64_t page);
/* What was told of a file, and the stamps that the kernel had then (both in the order of struct
 * stat: accessed, modified, changed): the code in a process tells it again as long as the kernel's
 * are the same. 0 or -errno. */
struct vdso_told {
    uint64_t device, inode;
    struct timespec kernels[3], told[3];
};
int vdso_tell_stat(pid_t pid, uint64_t base, const struct vdso_told *file);
/* Is the address one of the image at `base`? */
bool vdso_contains(uint64_t base, uint64_t address);
/* Where a process whose vDSO is at `base` has the code that abs_timers.c sends it to, or 0: it has
 * not. */
uint64_t vdso_settime(pid_t pid, uint64_t base);

/* Has a process' code, which stands in a newfstatat that ends at `after`, make this call by its
 * vDSO at `base`. 0 or -errno (EOPNOTSUPP: it is not the code that we know, or too far away). */
int vdso_route_stat(pid_t pid, uint64_t base, uint64_t after);

/* Has a process that stands in the clone of a fork, which ends at `after` and whose flags are
 * these, fork with its signals blocked from there on. 0 or -errno (EOPNOTSUPP: it is not the code
 * that we know, or there is no place for ours). */
#define FORK_GLIBC_FLAGS 0x01200011u /* CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD */
int fork_route(pid_t pid, uint64_t after);

/* det/process.c. Memory of another process, under its own protections: the number of bytes,
 * or -errno. */
long determinism_read(pid_t pid, uint64_t from, void *to, size_t length);
long determinism_write(pid_t pid, uint64_t to, const void *from, size_t length);
/* A file of its directory in /proc, "/NAME", or -errno. */
int determinism_open(pid_t pid, const char *name, int flags);
/* Two of its auxiliary vector. False if there is none to be seen. */
bool determinism_read_auxv(pid_t pid, uint64_t *ret_vdso, uint64_t *ret_random);
/* Fields of /proc/PID/stat, as proc(5) counts them: of a thread's process, from the state on. */
enum {
    DETERMINISM_STAT_STATE = 3,
    DETERMINISM_STAT_FLAGS = 9,
    DETERMINISM_STAT_TIMES = 14,
    DETERMINISM_STAT_THREADS = 20,
    DETERMINISM_STAT_FIELDS
};
bool determinism_read_stat(pid_t thread, uint64_t ret_fields[DETERMINISM_STAT_FIELDS]);
/* Where its vDSO is, if it has one. */
bool determinism_vdso_of(pid_t pid, uint64_t *ret_base);
/* Where the stream of a thread's process is. */
uint64_t determinism_stream_of(uint64_t seed, pid_t thread);
/* The process that a thread belongs to. */
pid_t determinism_process_of(pid_t thread);
bool determinism_is_thread_of(pid_t process, pid_t thread);
/* Has its process no other, and memory of its own for certain: that of a program that it has
 * executed itself? What was forked may have its parent's still (vfork), with all the threads of
 * that. */
bool determinism_is_single(pid_t thread);
/* Signals of a thread, its process' included; a bit each, signal 1 the lowest. False if it is gone.
 */
struct determinism_signals {
    uint64_t pending, blocked, caught;
};
bool determinism_signals_of(pid_t pid, struct determinism_signals *ret_signals);
/* Its /proc/PID/mem, or -errno. */
int determinism_open_memory(pid_t pid);
/* Into its own copy of pages that it may not write to: code_write with the file opened for it. 0 or
 * -errno. */
int determinism_put(pid_t pid, uint64_t to, const void *from, size_t size);
/* Likewise a call of `to`, of 5 bytes. -EOPNOTSUPP: that is too far away. */
int determinism_put_call(pid_t pid, uint64_t at, uint64_t to);
int determinism_put_call_by(pid_t pid, int memory, uint64_t at, uint64_t to);

/* What is asked, when its turn has come. */
struct seccomp_notif;
void determinism_serve_question(
    const struct plan *plan, int listener, const struct seccomp_notif *question);
/* Answers to a question: a result; that the kernel is to do it; and what writing to the asker came
 * to, where the kernel has the word if we may not write. */
void determinism_answer(int listener, uint64_t id, long value, int error);
void determinism_let_pass(int listener, uint64_t id);
void determinism_answer_written(int listener, uint64_t id, long r, long value);
/* To clock_gettime, gettimeofday or time: this one, in nanoseconds. */
void determinism_answer_time(int listener, const struct seccomp_notif *question, int64_t now_ns);

#endif
