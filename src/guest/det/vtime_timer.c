/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers under a virtual clock: alarm, setitimer(ITIMER_REAL), timer_create and related calls, and
 * timerfd. The kernel has none of them: init keeps them, and when one is due it sends the signal,
 * or makes the descriptor readable.
 *
 * Init makes a timerfd and keeps a descriptor of the same open file, to which it writes the number
 * of expirations (TFD_IOC_SET_TICKS). To find the timer behind a descriptor that a guest names,
 * init toggles a status flag of each file and looks for the change.
 *
 * After an expiration that no process has noticed (the signal is pending, the descriptor unread),
 * the following ones are no events: otherwise a timer alone would move the clock for ever while
 * everything else rests. They are counted when the clock has passed them for another reason, and
 * the next one that is noticed is in phase, as in the kernel. Init does not learn when guests close
 * their timerfds, so when the table is full, new timers are the kernel's and run in real time.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"
#include "guest/quiesce.h"
#include "guest/state.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define MAX_TIMERS 256
#define FIRST_ID                                                                                   \
    0x10000000 /* of timer_create; the kernel's own ids, for CPU clocks, count from 0 */
#define NOTIFY_THREAD_ID 4
#define CODE_TIMER (-2) /* SI_TIMER */
#define APPEND_FLAG 02000
#define SET_TICKS 0x40085400u /* TFD_IOC_SET_TICKS */

enum kind { FREE, INTERVAL, POSIX, DESCRIPTOR };

struct timer {
    struct virtual_event event; /* the next expiration; VIRTUAL_NEVER: not armed */
    int64_t interval, length_ns;
    int64_t over_ns, due_ns; /* by the real clock; and when it fires by that */
    int64_t lost_ns;         /* idle_lost_ns() when it began */
    uint64_t value;          /* payload of the signal */
    uint64_t overrun;        /* of the last signal that was taken */
    uint64_t missed;         /* unnoticed expirations after the first */
    pid_t pid;               /* the process; of a descriptor: the one that made it */
    pid_t thread;            /* receiver of the signal; 0: any thread of the process */
    int fd;                  /* pidfd of the process; or the timer itself */
    int signal;              /* 0: none */
    clockid_t clock;
    uint8_t kind;              /* enum kind */
    bool has_fired;            /* since it was set */
    bool is_marked, was_ready; /* marked for a dump worker; and a descriptor was readable then */
    bool is_due;               /* at the last search for the earliest: it may fire */
};

static struct timer timers[MAX_TIMERS];
static size_t n_used; /* entries in use are below this */
static size_t first;

static void release_timer(struct timer *t) {
    close(t->fd);
    *t = (struct timer){ .kind = FREE, .fd = -1 };
    while (n_used && timers[n_used - 1].kind == FREE)
        n_used--;
}

static bool is_gone(const struct timer *t) {
    struct pollfd end = { t->fd, POLLIN, 0 };
    struct timespec now = { 0 };

    return t->kind != DESCRIPTOR && sys_call5(__NR_ppoll, &end, 1, &now, NULL, 0) == 1;
}

static struct timer *add_timer(enum kind kind, pid_t pid, int take_fd) {
    size_t i = 0;

    while (i < n_used && timers[i].kind != FREE)
        i++;
    for (size_t j = 0; i == MAX_TIMERS && j < n_used; j++)
        if (is_gone(&timers[j])) {
            close(timers[j].fd);
            i = j;
        }
    if (i == MAX_TIMERS) {
        close(take_fd);
        return NULL;
    }
    if (i == n_used)
        n_used++;
    timers[i] = (struct timer){
        .event = vtime_event(pid, VIRTUAL_NEVER), .kind = (uint8_t)kind, .pid = pid, .fd = take_fd
    };
    return &timers[i];
}

/* Adds a timer of the caller's process, which is held by a pidfd. Its id may be reused later, but
 * not while the call is pending. NULL: no room, or the process is gone. */
static struct timer *add_of_process(
    enum kind kind, pid_t pid, int listener, const struct seccomp_notif *question) {
    uint64_t id = question->id;
    int fd = sys_pidfd_open(pid, 0);

    if (fd >= 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) < 0) {
        close(fd);
        fd = -ESRCH;
    }
    return fd < 0 ? NULL : add_timer(kind, pid, fd);
}

static struct timer *find_timer(enum kind kind, pid_t pid) {
    for (size_t i = 0; i < n_used; i++)
        if (timers[i].kind == kind && timers[i].pid == pid) {
            if (!is_gone(&timers[i]))
                return &timers[i];
            release_timer(&timers[i]);
        }
    return NULL;
}

static void schedule_timer(struct timer *t, int64_t deadline) {
    int64_t length = vtime_left(deadline);

    t->event.deadline = deadline;
    t->length_ns = length;
    t->lost_ns = idle_lost_ns();
    t->over_ns = deadline == VIRTUAL_NEVER ? INT64_MAX : clock_now_ns() + length;
    t->due_ns = deadline == VIRTUAL_NEVER ? INT64_MAX : t->over_ns + vtime_grace_ns();
}

static void arm_timer(struct timer *t, int64_t deadline, int64_t interval) {
    schedule_timer(t, deadline);
    t->interval = interval;
    t->overrun = t->missed = 0;
    t->has_fired = false;
}

/* ---- expirations ---- */

static bool is_readable(const struct timer *t) {
    struct pollfd ready = { t->fd, POLLIN, 0 };
    struct timespec now = { 0 };

    return sys_call5(__NR_ppoll, &ready, 1, &now, NULL, 0) == 1;
}

/* State of the thread that was last looked up: most timers belong to one thread. */
struct asked {
    pid_t thread; /* 0: none, or it is gone */
    struct determinism_signals signals;
};

static bool is_unnoticed(const struct timer *t, struct asked *asked) {
    pid_t thread = t->thread ? t->thread : t->pid;

    if (!t->has_fired)
        return false;
    if (t->kind == DESCRIPTOR)
        return is_readable(t);
    if (!t->signal)
        return true;
    if (asked->thread != thread)
        asked->thread = process_signals_of(thread, &asked->signals) ? thread : 0;
    return asked->thread && asked->signals.pending >> (t->signal - 1) & 1;
}

/* A kernel without CONFIG_CHECKPOINT_RESTORE cannot be given a number, and counts one. */
static void show_ticks(const struct timer *t) {
    struct itimerspec at_once = { .it_value = { 0, 1 } };
    uint64_t ticks = t->missed + 1;

    if (sys_call3(__NR_ioctl, t->fd, SET_TICKS, &ticks) < 0)
        (void)sys_call4(__NR_timerfd_settime, t->fd, 0, &at_once, NULL);
}

/* Advances to the first future expiration. Returns the number of past ones. */
static uint64_t pass_expirations(struct timer *t) {
    int64_t now = vtime_now(), deadline = t->event.deadline;

    if (deadline > now)
        return 0;
    uint64_t n = t->interval > 0 ? (uint64_t)((now - deadline) / t->interval) + 1 : 1;
    int64_t last = t->interval > 0 ? deadline + (int64_t)(n - 1) * t->interval : VIRTUAL_NEVER;
    schedule_timer(t, last < VIRTUAL_NEVER - t->interval ? last + t->interval : VIRTUAL_NEVER);
    return n;
}

/* Counts expirations that the clock has passed unnoticed. */
static void pass_unnoticed(struct timer *t, struct asked *asked) {
    if (t->kind == FREE || !t->has_fired || t->event.deadline > vtime_now() ||
        !is_unnoticed(t, asked))
        return;
    t->missed += pass_expirations(t);
    if (t->kind == DESCRIPTOR)
        show_ticks(t);
}

void timer_pass(void) {
    struct asked asked = { 0 };

    for (size_t i = 0; i < n_used; i++)
        pass_unnoticed(&timers[i], &asked);
}

void vtime_reach(int64_t deadline) {
    if (vtime_jump(deadline))
        timer_pass();
}

/* As the kernel reports it: setitimer's timer stands while its signal is pending. */
static int64_t left_of(struct timer *t) {
    struct asked asked = { 0 };

    if (t)
        pass_unnoticed(t, &asked);
    if (!t || t->event.deadline == VIRTUAL_NEVER ||
        (t->kind == INTERVAL && is_unnoticed(t, &asked)))
        return 0;
    int64_t left = vtime_left(t->event.deadline);
    return left ? left : 1000;
}

static void send_signal(const struct timer *t) {
    union {
        siginfo_t info;
        char bytes[128];
    } of = { 0 };

    if (t->kind == DESCRIPTOR) {
        serial_moves();
        show_ticks(t);
        return;
    }
    if (!t->signal)
        return;
    serial_moves();
    if (t->kind == INTERVAL) {
        (void)sys_pidfd_send_signal(t->fd, t->signal, NULL, 0);
        return;
    }
    of.info.si_signo = t->signal;
    of.info.si_code = CODE_TIMER;
    of.info.si_timerid = FIRST_ID + (int)(t - timers);
    of.info.si_overrun = (int)(t->missed < INT32_MAX ? t->missed : INT32_MAX);
    of.info.si_value.sival_ptr = (void *)(uintptr_t)t->value;
    if (t->thread)
        (void)sys_call4(__NR_rt_tgsigqueueinfo, t->pid, t->thread, t->signal, &of.info);
    else
        (void)sys_pidfd_send_signal(t->fd, t->signal, &of.info, 0);
}

static void fire_timer(struct timer *t) {
    vtime_reach(t->event.deadline);
    pass_unnoticed(t, &(struct asked){ 0 });
    uint64_t n = pass_expirations(t);
    if (!n)
        return;
    t->overrun = t->missed;
    t->missed = n - 1;
    send_signal(t);
    t->has_fired = true;
}

/* ---- questions ---- */

/* Writes an itimerspec or itimerval: the interval, then the value. */
static long write_pair(pid_t pid, uint64_t to, bool micro, struct timer *t) {
    long r = vtime_write_time(pid, to, micro, t ? t->interval : 0);

    return r < 0 ? r : vtime_write_time(pid, to + 16, micro, left_of(t));
}

static bool read_pair(
    pid_t pid, uint64_t from, bool micro, int64_t *ret_interval, int64_t *ret_value) {
    return vtime_read_time(pid, from, micro, ret_interval) &&
           vtime_read_time(pid, from + 16, micro, ret_value);
}

static void answer_alarm(int listener, const struct seccomp_notif *question) {
    pid_t pid = process_of_thread((pid_t)question->pid);
    struct timer *t = find_timer(INTERVAL, pid);
    int64_t seconds = (int64_t)(uint32_t)question->data.args[0],
            left = (left_of(t) + VIRTUAL_NS / 2) / VIRTUAL_NS;

    if (t && left_of(t) && !left)
        left = 1;
    if (!t && seconds && !(t = add_of_process(INTERVAL, pid, listener, question))) {
        answer_let_pass(listener, question->id);
        return;
    }
    if (t) {
        t->signal = SIGALRM;
        arm_timer(t, seconds ? vtime_after(seconds * VIRTUAL_NS) : VIRTUAL_NEVER, 0);
    }
    answer_call(listener, question->id, left, 0);
}

static void answer_itimer(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t asker = (pid_t)question->pid, pid = process_of_thread(asker);
    bool sets = question->data.nr == __NR_setitimer;
    struct timer *t = find_timer(INTERVAL, pid);
    uint64_t old = sets ? a[2] : a[1];
    int64_t interval = 0, value = 0;

    if (sets && a[1] && !read_pair(asker, a[1], true, &interval, &value)) {
        answer_let_pass(listener, question->id);
        return;
    }
    long r = sets ? 0 : -EFAULT;
    if (old)
        r = write_pair(asker, old, true, t);
    if (r >= 0 && sets && !t && value && !(t = add_of_process(INTERVAL, pid, listener, question))) {
        answer_let_pass(listener, question->id);
        return;
    }
    if (r >= 0 && sets && t) {
        t->signal = SIGALRM;
        arm_timer(t, value ? vtime_after(value) : VIRTUAL_NEVER, interval);
    }
    answer_written(listener, question->id, r, 0);
}

static void answer_create(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    struct {
        uint64_t value;
        int signal, notify, thread;
    } event = { 0, SIGALRM, SIGEV_SIGNAL, 0 };
    pid_t asker = (pid_t)question->pid, pid = process_of_thread(asker);
    struct timer *t;
    int64_t base;

    /* Clocks that are not virtual, and errors, are left to the kernel. */
    if (!vtime_base((clockid_t)(int)a[0], &base) ||
        (a[1] && process_read_memory(asker, a[1], &event, 20) != 20) ||
        (event.notify != SIGEV_SIGNAL && event.notify != SIGEV_NONE &&
            event.notify != NOTIFY_THREAD_ID) ||
        (event.notify != SIGEV_NONE && (event.signal < 1 || event.signal > 64)) ||
        (event.notify == NOTIFY_THREAD_ID && !process_has_thread(pid, event.thread))) {
        answer_let_pass(listener, question->id);
        return;
    }
    if (!(t = add_of_process(POSIX, pid, listener, question))) {
        answer_call(listener, question->id, 0, -EAGAIN);
        return;
    }
    int id = FIRST_ID + (int)(t - timers);
    t->clock = (clockid_t)(int)a[0];
    t->signal = event.notify == SIGEV_NONE ? 0 : event.signal;
    t->thread = event.notify == NOTIFY_THREAD_ID ? event.thread : 0;
    t->value = a[1] ? event.value : (uint64_t)id;
    long r = process_write_memory(asker, a[2], &id, sizeof id);
    if (r < 0)
        release_timer(t);
    answer_call(listener, question->id, 0, r < 0 ? (int)r : 0);
}

/* For both kinds of timers. */
static void answer_settime(int listener, const struct seccomp_notif *question, struct timer *t) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    pid_t asker = (pid_t)question->pid;
    int64_t interval, value, base = 0;

    if (a[1] & ~3u || !read_pair(asker, a[2], false, &interval, &value) ||
        !vtime_base(t->clock, &base)) {
        answer_call(listener, question->id, 0, -EINVAL);
        return;
    }
    long r = a[3] ? write_pair(asker, a[3], false, t) : 0;
    if (r >= 0) {
        struct itimerspec never = { 0 };

        if (t->kind == DESCRIPTOR) /* its count is gone */
            (void)sys_call4(__NR_timerfd_settime, t->fd, 0, &never, NULL);
        arm_timer(t,
            !value                 ? VIRTUAL_NEVER
            : a[1] & TIMER_ABSTIME ? value - base
                                   : vtime_after(value < VIRTUAL_NEVER ? value : VIRTUAL_NEVER),
            interval);
        if (t->event.deadline > VIRTUAL_NEVER)
            t->event.deadline = VIRTUAL_NEVER;
        if (t->kind == DESCRIPTOR && t->event.deadline <= vtime_now()) /* readable at once */
            fire_timer(t);
    }
    answer_call(listener, question->id, 0, r < 0 ? (int)r : 0);
}

static void answer_posix(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    size_t i = (size_t)(int)a[0] - FIRST_ID;
    struct asked asked = { 0 };
    struct timer *t = i < n_used && timers[i].kind == POSIX &&
                              timers[i].pid == process_of_thread((pid_t)question->pid)
                          ? &timers[i]
                          : NULL;

    if (!t) {
        answer_let_pass(listener, question->id);
        return;
    }
    switch (question->data.nr) {
    case __NR_timer_settime:
        answer_settime(listener, question, t);
        return;
    case __NR_timer_gettime:
        answer_written(listener, question->id, write_pair((pid_t)question->pid, a[1], false, t), 0);
        return;
    case __NR_timer_getoverrun:
        pass_unnoticed(t, &asked);
        if (!is_unnoticed(t, &asked))
            t->overrun = t->missed;
        answer_call(
            listener, question->id, (long)(t->overrun < INT32_MAX ? t->overrun : INT32_MAX), 0);
        return;
    default:
        release_timer(t);
        answer_call(listener, question->id, 0, 0);
    }
}

/* ---- descriptors ---- */

static void answer_make_descriptor(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    clockid_t clock = (clockid_t)(int)a[0];
    int64_t base;
    int fd =
        vtime_base(clock, &base) && clock != CLOCK_REALTIME_ALARM && clock != CLOCK_BOOTTIME_ALARM
            ? (int)sys_call2(__NR_timerfd_create, clock, a[1] | TFD_CLOEXEC)
            : -EINVAL;
    struct timer *t = fd < 0 ? NULL : add_timer(DESCRIPTOR, (pid_t)question->pid, fd);

    if (!t) {
        answer_let_pass(listener, question->id);
        return;
    }
    struct seccomp_notif_addfd give = { .id = question->id,
        .flags = SECCOMP_ADDFD_FLAG_SEND,
        .srcfd = (uint32_t)fd,
        .newfd_flags = a[1] & TFD_CLOEXEC };
    t->clock = clock;
    long r = vtime_give(listener, &give);
    if (r < 0) {
        release_timer(t);
        answer_call(listener, question->id, 0, r == -EINTR ? -ENFILE : (int)r);
    }
}

/* For other kinds, the kernel's text may be long: thousands of files that an epoll watches. */
static bool is_timer(pid_t pid, uint64_t fd) {
    static const char kind[] = "anon_inode:[timerfd]";
    char path[64], target[sizeof kind], *at = guest_put_number(path, (uint64_t)pid);

    memcpy(at, "/fd/", 4);
    *guest_put_number(at + 4, fd) = '\0';
    return sys_call4(__NR_readlinkat, determinism_proc, path, target, sizeof target) ==
               (long)sizeof kind - 1 &&
           !memcmp(target, kind, sizeof kind - 1);
}

static bool shows_flag(pid_t pid, uint64_t fd) {
    char name[48] = "/fdinfo/", text[256];
    const char *at = "";

    if (!is_timer(pid, fd))
        return false;
    *guest_put_number(name + 8, fd) = '\0';
    int info = process_open(pid, name, O_RDONLY);
    if (info < 0)
        return false;
    ssize_t n = read(info, text, sizeof text - 1);
    close(info);
    for (ssize_t i = 0; i + 7 < n; i++)
        if (!strncmp(text + i, "\nflags:", 7)) {
            text[n] = '\0';
            at = text + i + 7;
            break;
        }
    return strtoul(at, NULL, 8) & APPEND_FLAG;
}

/* Finds the timer of a guest's descriptor. The descriptor may have been passed in any way, so its
 * number says nothing. */
static struct timer *find_descriptor(pid_t pid, uint64_t fd) {
    if (fd > INT32_MAX || !is_timer(pid, fd))
        return NULL;
    for (size_t i = n_used; i-- > 0;) {
        int flags = timers[i].kind == DESCRIPTOR ? fcntl(timers[i].fd, F_GETFL) : -1;

        if (flags < 0)
            continue;
        flags &= ~APPEND_FLAG;
        (void)fcntl(timers[i].fd, F_SETFL, flags | APPEND_FLAG);
        bool with = shows_flag(pid, fd);
        (void)fcntl(timers[i].fd, F_SETFL, flags);
        if (with && !shows_flag(pid, fd))
            return &timers[i];
    }
    return NULL;
}

static void answer_descriptor(int listener, const struct seccomp_notif *question) {
    struct timer *t = find_descriptor((pid_t)question->pid, question->data.args[0]);

    if (!t)
        answer_let_pass(listener, question->id);
    else if (question->data.nr == __NR_timerfd_settime)
        answer_settime(listener, question, t);
    else
        answer_written(listener, question->id,
            write_pair((pid_t)question->pid, question->data.args[1], false, t), 0);
}

bool timer_answer(int listener, const struct seccomp_notif *question) {
    switch (question->data.nr) {
    case __NR_alarm:
        answer_alarm(listener, question);
        return true;
    case __NR_setitimer:
    case __NR_getitimer:
        if ((int)question->data.args[0]) /* ITIMER_VIRTUAL, ITIMER_PROF */
            return false;
        answer_itimer(listener, question);
        return true;
    case __NR_timer_create:
        answer_create(listener, question);
        return true;
    case __NR_timer_settime:
    case __NR_timer_gettime:
    case __NR_timer_getoverrun:
    case __NR_timer_delete:
        answer_posix(listener, question);
        return true;
    case __NR_timerfd_create:
        answer_make_descriptor(listener, question);
        return true;
    case __NR_timerfd_settime:
    case __NR_timerfd_gettime:
        answer_descriptor(listener, question);
        return true;
    default:
        return false;
    }
}

/* ---- whose turn it is ---- */

int64_t timer_earliest(void) {
    struct asked asked = { 0 };
    int64_t earliest = VIRTUAL_NEVER;

    for (size_t i = 0; i < n_used; i++) {
        timers[i].is_due = timers[i].kind != FREE && timers[i].event.deadline < VIRTUAL_NEVER &&
                           !is_unnoticed(&timers[i], &asked);
        if (timers[i].is_due && timers[i].event.deadline < earliest)
            earliest = timers[i].event.deadline;
    }
    return earliest;
}

bool timer_first(int64_t until, struct virtual_event *ret_event) {
    bool found = false;

    for (size_t i = 0; i < n_used; i++)
        if (timers[i].is_due && timers[i].event.deadline <= until &&
            (!found || vtime_is_before(&timers[i].event, &timers[first].event))) {
            first = i;
            found = true;
        }
    if (found)
        *ret_event = timers[first].event;
    return found;
}

bool timer_fire_first(void) {
    if (is_gone(&timers[first])) {
        release_timer(&timers[first]);
        return false;
    }
    fire_timer(&timers[first]);
    return true;
}

int64_t timer_look(int64_t now_ns) {
    int64_t next = INT64_MAX;

    for (size_t i = vtime_stands() ? 0 : n_used; i-- > 0;) {
        struct timer *t = &timers[i];

        if (t->kind == FREE || t->event.deadline == VIRTUAL_NEVER)
            continue;
        if (now_ns >= t->due_ns) {
            if (is_gone(t)) {
                release_timer(t);
                continue;
            }
            int64_t later =
                vtime_put_off(now_ns, t->over_ns, t->length_ns, t->event.deadline, t->lost_ns);
            if (later)
                t->due_ns = later;
            else
                fire_timer(t);
        }
        if (t->event.deadline != VIRTUAL_NEVER && t->due_ns < next)
            next = t->due_ns;
    }
    return next;
}

void timer_stood(int64_t now_ns, int64_t max_ns) {
    for (size_t i = 0; i < n_used; i++) {
        struct timer *t = &timers[i];
        int64_t later = now_ns + vtime_left(t->event.deadline) - t->over_ns;

        if (t->kind == FREE || t->event.deadline == VIRTUAL_NEVER)
            continue;
        if (later < max_ns)
            t->lost_ns = idle_lost_ns();
        else
            later = max_ns;
        t->over_ns += later;
        t->due_ns += later;
    }
}

bool timer_any(void) {
    for (size_t i = 0; i < n_used; i++)
        if (timers[i].kind != FREE && timers[i].event.deadline != VIRTUAL_NEVER)
            return true;
    return false;
}

void timer_executed(pid_t pid) {
    for (size_t i = n_used; i-- > 0;)
        if (timers[i].kind == POSIX && timers[i].pid == pid)
            release_timer(&timers[i]);
}

/* ---- snapshots of running processes (quiesce.c) ---- */

_Static_assert(MAX_TIMERS == IMAGE_MAX_ALARMS && (int)INTERVAL == IMAGE_ALARM_INTERVAL &&
                   (int)POSIX == IMAGE_ALARM_POSIX && (int)DESCRIPTOR == IMAGE_ALARM_DESCRIPTOR,
    "timers are the same in images");

void timer_mark(void) {
    for (size_t i = 0; i < n_used; i++) {
        struct itimerspec mark = { { (time_t)i + 1, 0 }, { QUIESCE_MARK_S, 0 } };

        if (timers[i].kind != DESCRIPTOR || timers[i].is_marked)
            continue;
        timers[i].was_ready = is_readable(&timers[i]);
        timers[i].is_marked = true;
        (void)sys_call4(__NR_timerfd_settime, timers[i].fd, 0, &mark, NULL);
    }
}

void timer_unmark(void) {
    for (size_t i = 0; i < n_used; i++) {
        struct itimerspec never = { 0 };

        if (timers[i].kind == DESCRIPTOR && timers[i].is_marked) {
            (void)sys_call4(__NR_timerfd_settime, timers[i].fd, 0, &never, NULL);
            if (timers[i].was_ready)
                show_ticks(&timers[i]);
        }
        timers[i].is_marked = timers[i].was_ready = false;
    }
}

uint32_t timer_tell(struct image_alarm *to) {
    uint32_t n = 0;

    for (size_t i = 0; i < n_used; i++) {
        const struct timer *t = &timers[i];

        if (t->kind != FREE && !is_gone(t))
            to[n++] = (struct image_alarm){
                .kind = t->kind,
                .number = (uint32_t)i,
                .pid = (uint32_t)t->pid,
                .thread = (uint32_t)t->thread,
                .signal = (uint32_t)t->signal,
                .clock = (uint32_t)t->clock,
                .has_fired = t->has_fired,
                .is_ready = t->was_ready,
                .missed = t->missed < UINT32_MAX ? (uint32_t)t->missed : UINT32_MAX,
                .deadline = t->event.deadline,
                .interval = t->interval,
                .value = t->value,
                .overrun = t->overrun,
                .stream = t->event.stream,
                .sequence = t->event.sequence,
            };
    }
    return n;
}

/* At its old index, because the index is part of its id. Invalid entries are skipped. */
void timer_resume(const struct image_alarm *from, uint32_t n, const int *files) {
    for (uint32_t i = 0; i < n; i++) {
        const struct image_alarm *a = &from[i];
        struct timer *t = &timers[a->number];
        int64_t base;
        int fd = t->kind != FREE || !vtime_base((clockid_t)a->clock, &base) ? -EINVAL
                 : a->kind == IMAGE_ALARM_DESCRIPTOR ? fcntl(files[a->file - 1], F_DUPFD_CLOEXEC, 3)
                                                     : sys_pidfd_open((pid_t)a->pid, 0);

        if (fd < 0)
            continue;
        *t = (struct timer){ .event = vtime_event((pid_t)a->pid, a->deadline),
            .kind = (uint8_t)a->kind,
            .pid = (pid_t)a->pid,
            .thread = (pid_t)a->thread,
            .fd = fd,
            .signal = (int)a->signal,
            .clock = (clockid_t)a->clock,
            .value = a->value };
        t->event.stream = a->stream;
        arm_timer(t, a->deadline, a->interval);
        t->overrun = a->overrun;
        t->missed = a->missed;
        t->has_fired = a->has_fired;
        n_used = n_used > a->number ? n_used : a->number + 1;
    }
}
