/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to intercepted system calls: the lowest layer of all files that answer. */
#include <errno.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "guest/det/det.h"
#include "guest/det/serial.h"

#define NS 1000000000ll

void answer_call(int listener, uint64_t id, long value, int error) {
    struct seccomp_notif_resp response = { .id = id, .val = value, .error = error };

    serial_moves();
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void answer_let_pass(int listener, uint64_t id) {
    struct seccomp_notif_resp response = { .id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

    serial_moves();
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void answer_written(int listener, uint64_t id, long r, long value) {
    if (r == -EPERM || r == -ESRCH)
        answer_let_pass(listener, id);
    else if (r < 0)
        answer_call(listener, id, 0, (int)r);
    else
        answer_call(listener, id, value, 0);
}

void answer_time(int listener, const struct seccomp_notif *question, int64_t now) {
    pid_t pid = (pid_t)question->pid;
    const uint64_t *arguments = (const uint64_t *)question->data.args;
    bool is_clock = question->data.nr == __NR_clock_gettime;
    int64_t result[2] = { now / NS, now % NS };
    long r = 0;

    if (result[1] < 0) {
        result[0]--;
        result[1] += NS;
    }
    if (question->data.nr == __NR_time) {
        if (arguments[0])
            r = process_write_memory(pid, arguments[0], result, sizeof result[0]);
        answer_written(listener, question->id, r, (long)result[0]);
        return;
    }
    if (!is_clock) {
        static const uint64_t no_zone;

        result[1] /= 1000;
        if (arguments[1])
            r = process_write_memory(pid, arguments[1], &no_zone, sizeof no_zone);
    }
    if (r >= 0 && (arguments[is_clock] || is_clock))
        r = process_write_memory(pid, arguments[is_clock], result, sizeof result);
    answer_written(listener, question->id, r, 0);
}
