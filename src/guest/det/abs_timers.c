/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers that expire at a time of day, at the real rate of time_start, where the kernel's clock
 * differs from the sandbox's.
 *
 * Init sets a timer descriptor itself, through a copy of it. Only its own process can set a timer
 * of timer_create. So init has the system call restarted, and stops its thread (ptrace) on the way
 * back to it. Init then directs the thread to code in its vDSO (det/vdso_patch.c), which makes the
 * call with the kernel's time and continues after the original call. A thread that cannot be
 * stopped, or has another vDSO, gets the kernel's clock.
 */
#include "guest/det/abs_timers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/det/det.h"
#include "guest/timed_syscall.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define MAX_STOPPING 64
#define SETTLE_TICKS 1000
#define PROC_BYTES 4096 /* the kernel's own buffer for a file in /proc */
#define MAX_READS 64    /* enough for thousands of timers */

static struct stopping {
    pid_t thread;
    uint64_t code, until_s, until_ns; /* by the kernel's clock */
} stopping[MAX_STOPPING];
static size_t n_stopping;

/* ---- of timer_create ---- */

/* Finds "ID: 3", and three lines later "ClockID: 0". True: the timer was found. */
static bool find_clock(const char *text, int timer, bool *is_it, clockid_t *ret_clock) {
    static const char id[] = "ID: ", clock[] = "ClockID: ";

    for (const char *line = text, *next; (next = strchr(line, '\n')); line = next + 1) {
        if (!strncmp(line, id, sizeof id - 1))
            *is_it = strtoul(line + sizeof id - 1, NULL, 10) == (unsigned long)timer;
        else if (*is_it && !strncmp(line, clock, sizeof clock - 1)) {
            *ret_clock = (clockid_t)strtoul(line + sizeof clock - 1, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool is_time_of_day(pid_t process, int timer) {
    char text[PROC_BYTES + 1];
    auto_close int fd = process_open(process, "/timers", O_RDONLY);
    clockid_t clock = -1;
    bool is_it = false;
    ssize_t n;

    /* Each read returns whole timers. */
    for (int reads = 0; reads < MAX_READS && fd >= 0 && (n = read(fd, text, PROC_BYTES)) > 0;
         reads++) {
        text[n] = '\0';
        if (find_clock(text, timer, &is_it, &clock))
            break;
    }
    return clock == CLOCK_REALTIME || clock == CLOCK_TAI;
}

static bool set_process_timer(
    int listener, const struct seccomp_notif *question, const struct timespec *until) {
    pid_t thread = (pid_t)question->pid;
    uint64_t vdso, code;

    if (n_stopping == MAX_STOPPING)
        abs_timers_settle();
    if (!is_time_of_day(process_of_thread(thread), (int)question->data.args[0]) ||
        !process_vdso_of(thread, &vdso) || !(code = vdso_settime(thread, vdso)) ||
        !timed_syscall_stop(thread))
        return false;
    stopping[n_stopping++] =
        (struct stopping){ thread, code, (uint64_t)until->tv_sec, (uint64_t)until->tv_nsec };
    answer_call(listener, question->id, 0, DETERMINISM_DONE_AGAIN);
    return true;
}

/* Registers that a system call changes anyway tell that code where to continue, and the expiry
 * time. */
static void redirect_call(const struct stopping *s) {
    struct user_regs_struct registers;

    if (sys_call4(__NR_ptrace, PTRACE_GETREGS, s->thread, NULL, &registers) < 0 ||
        (long long)registers.rax != DETERMINISM_DONE_AGAIN ||
        registers.orig_rax != __NR_timer_settime)
        return;
    registers.rcx = registers.rip;
    registers.rip = s->code;
    registers.r11 = s->until_s;
    registers.rax = s->until_ns;
    registers.orig_rax = (unsigned long long)-1;
    (void)sys_call4(__NR_ptrace, PTRACE_SETREGS, s->thread, NULL, &registers);
}

bool abs_timers_stopped(pid_t thread, int status) {
    for (size_t i = 0; i < n_stopping; i++) {
        if (stopping[i].thread != thread)
            continue;
        struct stopping s = stopping[i];
        stopping[i] = stopping[--n_stopping];
        if (status >> 16 != BOUNDED_STOP_EVENT)
            return false;
        redirect_call(&s);
        (void)sys_call4(__NR_ptrace, PTRACE_DETACH, thread, NULL, NULL);
        return true;
    }
    return false;
}

void abs_timers_settle(void) {
    for (int ticks = 0; n_stopping && ticks < SETTLE_TICKS; ticks++) {
        for (size_t i = n_stopping; i-- > 0;)
            if (timed_syscall_has_stopped(stopping[i].thread, abs_timers_stopped) < 0)
                stopping[i] = stopping[--n_stopping];
        if (n_stopping)
            timed_syscall_pause();
    }
    n_stopping = 0;
}

/* ---- of timerfd_create ---- */

/* A copy of a guest's timer with an absolute time of day, or -errno. */
static int open_timer(pid_t pid, uint64_t number) {
    static const char heading[] =
        "clockid: 0\n"; /* CLOCK_REALTIME; no other kind of descriptor has this line */
    char name[48] = "/fdinfo/", text[256];
    auto_close int process = sys_pidfd_open(process_of_thread(pid), 0);
    int fd = process < 0          ? process
             : number > INT32_MAX ? -EBADF
                                  : sys_pidfd_getfd(process, (int)number, 0);

    if (fd < 0)
        return fd;
    *guest_put_number(name + sizeof "/fdinfo/" - 1, (uint64_t)fd) = '\0';
    auto_close int info = process_open(1, name, O_RDONLY);
    ssize_t n = info < 0 ? -1 : read(info, text, sizeof text - 1);
    for (ssize_t i = 0; i + (ssize_t)sizeof heading - 1 <= n; i++)
        if (!memcmp(text + i, heading, sizeof heading - 1))
            return fd;
    close(fd);
    return -EINVAL;
}

/* Init's copy refers to the same timer, so init can set it. False: the kernel sets it, or reports
 * an error. */
static bool set_descriptor(
    int listener, const struct seccomp_notif *question, struct itimerspec *to) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t pid = (pid_t)question->pid;
    struct itimerspec from;
    auto_close int fd = open_timer(pid, a[0]);

    if (fd < 0)
        return false;
    long r = sys_call4(__NR_timerfd_settime, fd, (int)a[1], to, &from);
    if (r == 0 && a[3])
        r = process_write_memory(pid, a[3], &from, sizeof from);
    answer_call(listener, question->id, 0, r < 0 ? (int)r : 0);
    return true;
}

/* ---- both ---- */

/* Subtracts the lead of the sandbox's clock over the kernel's; a past time becomes an immediate
 * expiry. False: not a valid time. */
static bool put_earlier(struct timespec *t, int64_t ahead_ns) {
    if (t->tv_nsec < 0 || t->tv_nsec >= NS || t->tv_sec < 0 || t->tv_sec > INT64_MAX / NS / 2 ||
        (!t->tv_sec && !t->tv_nsec))
        return false;
    int64_t at = t->tv_sec * NS + t->tv_nsec - ahead_ns;
    *t = at > 0 ? (struct timespec){ at / NS, at % NS } : (struct timespec){ 0, 1 };
    return true;
}

bool abs_timers_answer(int listener, const struct seccomp_notif *question, int64_t ahead_ns) {
    struct itimerspec to;

    if (process_read_memory((pid_t)question->pid, question->data.args[2], &to, sizeof to) !=
            (long)sizeof to ||
        !put_earlier(&to.it_value, ahead_ns))
        return false;
    return question->data.nr == __NR_timer_settime
               ? set_process_timer(listener, question, &to.it_value)
               : set_descriptor(listener, question, &to);
}
