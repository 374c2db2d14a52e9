/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners through which init receives system calls, one for each command's process tree. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guest/det/det.h"
#include "sys/syscalls.h"

#define NEW_LISTENER 8u
/* Linux 5.19: once init has received a call, only the thread's death withdraws it. Otherwise a
 * signal would send the call twice, and two random numbers would be drawn. */
#define WAIT_KILLABLE 32u
#define SYNC_WAKE_UP_FLAG 1
#define SET_FLAGS_REQUEST _IOW('!', 4, uint64_t) /* SECCOMP_IOCTL_NOTIF_SET_FLAGS, 6.6 */
#define ALL_THREADS 17u /* TSYNC, TSYNC_ESRCH: allowed together with NEW_LISTENER */

int listeners_fds[DETERMINISM_MAX_LISTENERS];
size_t listeners_n_fds;

size_t listeners_fill(struct pollfd *events) {
    for (size_t i = 0; i < listeners_n_fds; i++)
        events[i] = (struct pollfd){ listeners_fds[i], POLLIN, 0 };
    return listeners_n_fds;
}

void listeners_pass(int listener) {
    struct seccomp_notif question = { 0 };

    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) == 0)
        answer_let_pass(listener, question.id);
}

bool listeners_is_asked(void) {
    static struct pollfd events[DETERMINISM_MAX_LISTENERS];
    struct timespec now = { 0 };

    (void)listeners_fill(events);
    return sys_call5(__NR_ppoll, events, listeners_n_fds, &now, NULL, 0) != 0;
}

int listeners_enter_asked(const struct sock_filter *program, size_t n) {
    struct sock_fprog of = { .len = (unsigned short)n,
        .filter = (struct sock_filter *)(uintptr_t)program };

    return sys_seccomp(SECCOMP_SET_MODE_FILTER, NEW_LISTENER | WAIT_KILLABLE, &of);
}

int listeners_enter_restored(const struct sock_filter *program, size_t n) {
    struct sock_fprog of = { .len = (unsigned short)n,
        .filter = (struct sock_filter *)(uintptr_t)program };

    return sys_seccomp(SECCOMP_SET_MODE_FILTER, ALL_THREADS | NEW_LISTENER | WAIT_KILLABLE, &of);
}

int listeners_adopt(int take_listener) {
    if (listeners_n_fds == DETERMINISM_MAX_LISTENERS) {
        close(take_listener);
        return -EAGAIN;
    }
    (void)ioctl(take_listener, SET_FLAGS_REQUEST, SYNC_WAKE_UP_FLAG);
    listeners_fds[listeners_n_fds++] = take_listener;
    return 0;
}
