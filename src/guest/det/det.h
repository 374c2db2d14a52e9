/* SPDX-License-Identifier: Apache-2.0 */
/* random_seed and time_start inside a sandbox. det/dispatch.c has the model; det/vdso_patch.c
 * explains how clocks are read without a system call. */
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

/* Process trees of commands whose calls init answers, including background processes of ended
 * commands. */
#define DETERMINISM_MAX_LISTENERS 1024

/* Results that make the kernel restart a call: always; unless a signal is handled first; and the
 * latter by restart_syscall with the same arguments. */
#define DETERMINISM_DONE_AGAIN (-513) /* -ERESTARTNOINTR */
#define DETERMINISM_BROKEN_OFF (-514) /* -ERESTARTNOHAND */
#define DETERMINISM_RESTARTED (-516)  /* -ERESTART_RESTARTBLOCK */

/* Shared by a command's child and init on the way to execve. */
struct determinism_start {
    int listener;    /* the future number of the listener: the child shares init's descriptors until
                        then */
    uint64_t stream; /* start of its random stream */
};

/* A writable /proc of the sandbox's own, which no guest sees (mount_ops.c). */
extern int determinism_proc;
/* The sandbox's CLOCK_MONOTONIC minus init's, which is the kernel's. */
extern int64_t determinism_uptime_ahead_ns;

static inline bool determinism_wanted(const struct plan *plan) {
    return plan->flags & (PLAN_SEED | PLAN_CLOCK);
}

/* In the launcher, once: the common state of all its sandboxes. */
void dispatch_prepare(const struct plan *plan);
/* In init, before the child is made; 0 or -errno. */
int dispatch_begin(const struct plan *plan, struct determinism_start *start);
/* The number of the last command's stream, from 0. */
uint64_t dispatch_last_stream(void);
/* In the child, which shares init's descriptors and has its own afterwards; from here on it makes
 * only calls that lead to execve. 0 or -errno. */
int dispatch_enter(const struct plan *plan, const struct determinism_start *start);
/* In a restored process, perhaps with several threads, with the plan's program: its listener, or
 * -errno. */
struct sock_filter;
/* The same for the calling process and its later forks. */
int listeners_enter_asked(const struct sock_filter *program, size_t n);
int listeners_enter_restored(const struct sock_filter *program, size_t n);
#define DETERMINISM_NO_RANDOM_ADDRESSES 0x0040000 /* personality(2) */
/* In init, after the child has executed, with its three streams, or has ended, with NULL: takes the
 * listener over. */
void dispatch_end(const struct determinism_start *start, const int *streams);

/* For init's loop: fills entries of events[0..DETERMINISM_MAX_LISTENERS), returns their number, and
 * when it must be called at the latest, by clock_now_ns. */
size_t dispatch_poll(struct pollfd *events, int64_t *ret_until_ns);
/* Answers pending calls, one for each listener in turn, so that none delays another. `quiet`: init
 * had no other event. */
void dispatch_serve(const struct plan *plan, const struct pollfd *events, size_t n, bool quiet);
/* Answers calls, and does nothing else, until all threads that begin a wait again have made their
 * call (wait_count_left), or a time limit passes. */
void dispatch_await_waits(const struct plan *plan);
/* Does a call wait for its answer, other than those that are held? */
bool listeners_is_asked(void);
/* Ends all held waits, before signals are sent to processes: only SIGKILL reaches a thread in a
 * held wait. */
void dispatch_release(const struct plan *plan);
/* Before all processes are stopped: under a virtual clock, threads that wait for init count as
 * paused; others are released. */
void dispatch_stand(const struct plan *plan);
/* Does a thread wait for init, which has received its call? */
bool wait_holds(pid_t thread);
/* The same, confirmed by the kernel: the thread moves only if init answers, or if it is killed. */
bool dispatch_holds_surely(pid_t thread);
/* Has a process a pending signal that will stop it? A SIGCONT would discard that. `surely`: one
 * that it neither blocks nor catches. `proc`: a descriptor of /proc. */
bool process_is_to_stop(int proc, pid_t process, bool surely);

/* For quiesce.c: all listeners; a call that is not to be handled; and held calls of a thread that a
 * tracer has asked to stop. */
struct image_determinism;
size_t listeners_fill(struct pollfd *events);
void listeners_pass(int listener);
void dispatch_give_back(pid_t thread);
void dispatch_tell(const struct plan *plan, struct image_determinism *to);
/* `ahead_ns`: the time of day minus init's CLOCK_MONOTONIC. */
int dispatch_resume(
    const struct plan *plan, const struct image_determinism *from, int64_t ahead_ns);
int listeners_adopt(int take_listener);
/* The same for a first command that is restored from its start: its clock starts now. The second
 * undoes this if the restore fails. */
int dispatch_begin_command(const struct plan *plan, const struct image_determinism *from);
void dispatch_undo_command(const struct plan *plan);

/* det/listeners.c: the present listeners. */
extern int listeners_fds[DETERMINISM_MAX_LISTENERS];
extern size_t listeners_n_fds;

/* det/vdso_patch.c. Prepares the patched image. `offset_ns` is the time of day minus the kernel's,
 * unless the clock is virtual. 0, or -EOPNOTSUPP: the kernel's vDSO is not as expected. */
int vdso_prepare(const struct plan *plan, int64_t offset_ns, struct stamps_bounds bounds);
/* Is the vDSO at `base` of a process unmodified? */
bool vdso_is_fresh(pid_t pid, uint64_t base);
/* Is it patched where the previous program's was? This is a quick check for programs that ask again
 * at their start, so false may be wrong. */
bool vdso_is_known(pid_t pid);
/* Patches the vDSO of such a process, with the address of its clock page; 0: not mapped yet. If the
 * address is known from which glibc may call newfstatat, that call is routed to the vDSO as well
 * (vdso_route_stat); 0: not known. 0 or -errno. */
int vdso_patch(pid_t pid, uint64_t base, uint64_t page, uint64_t stat_after);
/* Writes the address of the clock page into the patched code. 0 or -errno. */
int vdso_tell_page(pid_t pid, uint64_t base, uint64_t page);
/* The times that a file was last shown with, and the kernel's times at that moment (both in the
 * order of struct stat: accessed, modified, changed). The patched code shows them again as long as
 * the kernel's are the same. 0 or -errno. */
struct vdso_told {
    uint64_t device, inode;
    struct timespec kernels[3], told[3];
};
int vdso_tell_stat(pid_t pid, uint64_t base, const struct vdso_told *file);
/* Is the address one of the image at `base`? */
bool vdso_contains(uint64_t base, uint64_t address);
/* The address of the code for abs_timers.c in a process whose vDSO is at `base`, or 0. */
uint64_t vdso_settime(pid_t pid, uint64_t base);

/* Makes a process's code, which is in a newfstatat that ends at `after`, use its vDSO at `base`
 * from now on. 0 or -errno (EOPNOTSUPP: the code is unknown, or too far away). */
int vdso_route_stat(pid_t pid, uint64_t base, uint64_t after);

/* Makes a process that is in a fork's clone, which ends at `after` and has these flags, fork with
 * signals blocked from then on. 0 or -errno (EOPNOTSUPP: the code is unknown, or there is no room
 * for the new code). */
#define FORK_GLIBC_FLAGS 0x01200011u /* CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD */
int fork_route(pid_t pid, uint64_t after);

/* det/process.c. Access to another process's memory, under its own protections: the number of
 * bytes, or -errno. */
long process_read_memory(pid_t pid, uint64_t from, void *to, size_t length);
long process_write_memory(pid_t pid, uint64_t to, const void *from, size_t length);
/* Opens a file of its directory in /proc, "/NAME", or returns -errno. */
int process_open(pid_t pid, const char *name, int flags);
/* Two entries of its auxiliary vector. False if it cannot be read. */
bool process_read_auxv(pid_t pid, uint64_t *ret_vdso, uint64_t *ret_random);
/* Fields of a thread's process in /proc/PID/stat, with the numbers of proc(5), from the state
 * on. */
enum {
    DETERMINISM_STAT_STATE = 3,
    DETERMINISM_STAT_FLAGS = 9,
    DETERMINISM_STAT_TIMES = 14,
    DETERMINISM_STAT_THREADS = 20,
    DETERMINISM_STAT_FIELDS
};
bool process_read_stat(pid_t thread, uint64_t ret_fields[DETERMINISM_STAT_FIELDS]);
/* The address of its vDSO, if it has one. */
bool process_vdso_of(pid_t pid, uint64_t *ret_base);
/* The random stream of a thread's process. */
uint64_t stream_of(uint64_t seed, pid_t thread);
/* The process of a thread. */
pid_t process_of_thread(pid_t thread);
bool process_has_thread(pid_t process, pid_t thread);
/* Has its process only this thread, and memory that is certainly its own because it has executed a
 * program? A forked process may share its parent's memory (vfork), with all its threads. */
bool process_is_single(pid_t thread);
/* Signals of a thread, including its process's; a bit for each, signal 1 the lowest. False if it is
 * gone. */
struct determinism_signals {
    uint64_t pending, blocked, caught;
};
bool process_signals_of(pid_t pid, struct determinism_signals *ret_signals);
/* Its /proc/PID/mem, or -errno. */
int process_open_memory(pid_t pid);
/* Writes to the process's own copy of read-only pages: code_write with the file opened for it. 0 or
 * -errno. */
int process_put(pid_t pid, uint64_t to, const void *from, size_t size);
/* Writes a call instruction to `to`, 5 bytes. -EOPNOTSUPP: the target is too far away. */
int process_put_call(pid_t pid, uint64_t at, uint64_t to);
int process_put_call_by(pid_t pid, int memory, uint64_t at, uint64_t to);

/* Handles an intercepted call when its turn has come. */
struct seccomp_notif;
void dispatch_serve_question(
    const struct plan *plan, int listener, const struct seccomp_notif *question);
/* Answers to a call: a result; pass it to the kernel; or the outcome of writing to the caller's
 * memory, where the kernel takes over if init may not write. */
void answer_call(int listener, uint64_t id, long value, int error);
void answer_let_pass(int listener, uint64_t id);
void answer_written(int listener, uint64_t id, long r, long value);
/* Answers clock_gettime, gettimeofday or time with this time, in nanoseconds. */
void answer_time(int listener, const struct seccomp_notif *question, int64_t now_ns);

#endif
