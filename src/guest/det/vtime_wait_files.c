/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors and the output of waits under a virtual clock: which descriptors a call waits
 * for, whether one of them is ready, and the memory that the call writes when it ends.
 *
 * select, pselect6 and ppoll return the remaining time, which the kernel would compute by its own
 * clock. Where init holds or ends such a wait, it writes the time.
 */
#include "guest/det/vtime_wait.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/det/det.h"
#include "sys/syscalls.h"

#define MAX_SET 8192 /* bytes of a select's set */

int wait_descriptors(const struct wait *w, struct pollfd *ret_polled) {
    static const short events[] = { POLLIN | POLLHUP, POLLOUT, POLLPRI };
    const uint64_t *a = w->arguments;
    uint64_t set;
    int n = 0;

    switch (w->number) {
    case __NR_epoll_wait:
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
        ret_polled[0] = (struct pollfd){ (int)a[0], POLLIN, 0 };
        return w->number != __NR_epoll_wait && a[4] ? -ENOTSUP : 1;
    case __NR_poll:
    case __NR_ppoll:
        if (a[1] > WAIT_MAX_POLLED || (w->number == __NR_ppoll && a[3]) ||
            process_read_memory(w->event.thread, a[0], ret_polled, a[1] * sizeof *ret_polled) !=
                (long)(a[1] * sizeof *ret_polled))
            return -ENOTSUP;
        return (int)a[1];
    case __NR_nanosleep:
    case __NR_clock_nanosleep:
    case __NR_rt_sigtimedwait:
    case __NR_semtimedop:
    case FUTEX_WAITV_CALL:
    case FUTEX_WAIT_CALL:
        return -ENOTSUP;
    case __NR_select:
    case __NR_pselect6:
        if (a[0] > 64 ||
            (w->number == __NR_pselect6 && a[5] &&
                (process_read_memory(w->event.thread, a[5], &set, sizeof set) != (long)sizeof set ||
                    set)))
            return -ENOTSUP;
        for (int kind = 0; kind < 3; kind++) {
            if (a[1 + kind] && process_read_memory(w->event.thread, a[1 + kind], &set,
                                   sizeof set) != (long)sizeof set)
                return -ENOTSUP;
            for (int fd = 0; a[1 + kind] && fd < (int)a[0]; fd++) {
                if (!(set >> fd & 1))
                    continue;
                if (n == WAIT_MAX_POLLED)
                    return -ENOTSUP;
                ret_polled[n++] = (struct pollfd){ fd, events[kind], 0 };
            }
        }
        return n;
    default:
        ret_polled[0] = (struct pollfd){ (int)a[0], POLLIN, 0 };
        return 1;
    }
}

/* The result of an immediate poll of copies of the descriptors; or -errno. All threads are stopped,
 * so the copies are not noticed. */
static long poll_copies(const struct wait *w, struct pollfd *polled, int n) {
    struct pollfd copies[WAIT_MAX_POLLED];
    struct timespec now = { 0 };
    auto_close int process = sys_pidfd_open(w->process, 0);
    long r = process < 0 ? process : 0;

    for (int i = 0; i < n; i++) {
        copies[i] = (struct pollfd){ -1, polled[i].events, 0 };
        if (polled[i].fd < 0 || r < 0)
            continue;
        copies[i].fd = sys_pidfd_getfd(process, polled[i].fd, 0);
        r = copies[i].fd < 0 ? copies[i].fd : 0;
    }
    if (r == 0)
        r = sys_call5(__NR_ppoll, copies, (size_t)n, &now, NULL, 0);
    for (int i = 0; i < n; i++) {
        polled[i].revents = copies[i].revents;
        if (copies[i].fd >= 0)
            close(copies[i].fd);
    }
    return r;
}

/* Would the kernel return at once? */
static bool is_ready(const struct wait *w) {
    struct pollfd polled[WAIT_MAX_POLLED];

    if (w->number == __NR_wait4)
        return idle_has_ended((pid_t)(int)w->arguments[0]);
    int n = wait_descriptors(w, polled);
    return n < 0 || poll_copies(w, polled, n) != 0;
}

bool wait_is_select(const struct wait *w) {
    return w->number == __NR_select || w->number == __NR_pselect6;
}

bool wait_returns_rest(const struct wait *w) {
    return wait_is_select(w) || w->number == __NR_ppoll;
}

void wait_write_rest(const struct wait *w, int64_t ns) {
    const int timeout = w->number == __NR_ppoll ? 2 : 4;
    uint64_t to = wait_returns_rest(w) ? w->arguments[timeout] : 0;

    if (to)
        (void)vtime_write_time(w->event.thread, to, w->number == __NR_select, ns);
}

void wait_write_left(const struct wait *w) {
    uint64_t to = w->number == __NR_nanosleep                         ? w->arguments[1]
                  : w->number == __NR_clock_nanosleep && !w->absolute ? w->arguments[3]
                                                                      : 0;

    if (to)
        (void)vtime_write_time(w->event.thread, to, false, vtime_left(w->event.deadline));
    wait_write_rest(w, vtime_left(w->event.deadline));
}

/* The index of the set that these events are for. */
static int kind_of(short events) {
    if (events & POLLIN)
        return 0;
    return events & POLLOUT ? 1 : 2;
}

/* Writes the sets as select returns them. The number of descriptors in them. */
static int show_sets(const struct wait *w, const struct pollfd *polled, int n) {
    uint64_t sets[3] = { 0 };
    static const short awaited[3] = { POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI };
    int count = 0;

    for (int i = 0; i < n; i++) {
        int kind = kind_of(polled[i].events);
        if (!(polled[i].revents & awaited[kind]))
            continue;
        sets[kind] |= 1ull << polled[i].fd;
        count++;
    }
    for (int kind = 0; count && kind < 3; kind++)
        if (w->arguments[1 + kind])
            (void)process_write_memory(
                w->event.thread, w->arguments[1 + kind], &sets[kind], sizeof sets[kind]);
    return count;
}

int wait_poll(const struct wait *w) {
    struct pollfd polled[WAIT_MAX_POLLED];

    if (!wait_returns_rest(w) || w->event.deadline == VIRTUAL_NEVER)
        return is_ready(w) ? -ENOTSUP : 0;
    int n = wait_descriptors(w, polled);
    if (n < 0)
        return n;
    int count = (int)poll_copies(w, polled, n);
    if (count > 0 && wait_is_select(w))
        count = show_sets(w, polled, n);
    else if (count > 0)
        (void)process_write_memory(
            w->event.thread, w->arguments[0], polled, (size_t)n * sizeof polled[0]);
    if (count > 0)
        wait_write_rest(w, vtime_left(w->event.deadline));
    return count;
}

bool wait_is_blocking(const struct wait *w) {
    struct timeval limit = { 0 };
    uint32_t length = sizeof limit;
    auto_close int process = sys_pidfd_open(w->process, 0),
                   fd = process < 0 ? process : sys_pidfd_getfd(process, (int)w->arguments[0], 0);
    long flags = fd < 0 ? O_NONBLOCK : fcntl(fd, F_GETFL);

    if (fd >= 0 && sys_call5(__NR_getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length) == 0 &&
        (limit.tv_sec || limit.tv_usec))
        flags = O_NONBLOCK;
    return !(flags & O_NONBLOCK);
}

void wait_clear_sets(pid_t pid, const uint64_t *arguments) {
    static const char nothing[MAX_SET];
    size_t length = ((arguments[0] & 0x7fffffff) + 63) / 64 * 8;

    for (size_t i = 1; i <= 3; i++)
        if (arguments[i])
            (void)process_write_memory(
                pid, arguments[i], nothing, length < MAX_SET ? length : MAX_SET);
}

void wait_clear_polled(const struct wait *w) {
    struct pollfd polled[WAIT_MAX_POLLED];

    if (wait_is_select(w))
        wait_clear_sets(w->event.thread, w->arguments);
    int n = w->number == __NR_poll || w->number == __NR_ppoll ? wait_descriptors(w, polled) : 0;
    for (int i = 0; i < n; i++)
        polled[i].revents = 0;
    if (n > 0)
        (void)process_write_memory(
            w->event.thread, w->arguments[0], polled, (size_t)n * sizeof polled[0]);
}
