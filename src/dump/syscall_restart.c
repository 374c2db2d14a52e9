/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wait for a time that was broken off (poll, nanosleep, clock_nanosleep, futex) the kernel goes
 * on with by restart_syscall: what is left of it only the kernel knows, and no copy can make that
 * call. So where it is captured it has to be known which call it was, of which the kernel tells
 * nothing any more: the registers have its arguments, and rax had its number.
 *
 * Of rax the kernel looks at the lower half alone (Linux 5.13); orig_rax keeps all of it, and with
 * -ERESTARTNOHAND that is what the call is made anew by. So a capture that finds such a call leaves
 * it as one of restart_syscall that was broken off, with the number in the upper half. The kernel
 * goes on with it as it would have, a handler ends it as it would have, nothing is there that the
 * program could see, and the next capture reads it.
 *
 * Where the first to break it off was not a capture (SIGSTOP and SIGCONT, the freezer) nobody has
 * left anything. Then the thread goes on for a moment, back into its wait, and where in the kernel
 * it sleeps tells which one it is.
 *
 * All of that is the guest's to change; what it gains by it is a call of its own in its copies,
 * which it could have made there itself.
 */
#include "dump/syscall_restart.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define HIGHEST_CALL 1023u
#define LOOKS 50        /* at a time */
#define MAX_LOOKS 2000u /* in all: it is for the guest to say how many threads are looked at */
#define LOOK_NS                                                                                    \
    20000 /* from the first to the second, and doubled: where others are in the way it takes a     \
             while to come back to its wait, */
#define LAST_LOOK_NS 1280000 /* and one that is asked to stand before has not */
#define LOWEST_ADDRESS 4096u

static int has_halves; /* the kernel, of rax; -1: it has not. 0: it is not known */

void syscall_restart_prepare(void) {
    if (!has_halves)
        has_halves = syscall((long)(1ull << 32 | SYS_getpid)) == getpid() ? 1 : -1;
}

bool syscall_restart_is(uint64_t number) {
    return (uint32_t)number == SYS_restart_syscall;
}

uint32_t syscall_restart_known(uint64_t number) {
    const uint32_t known = (uint32_t)(number >> 32);

    return syscall_restart_is(number) && known <= HIGHEST_CALL && known != SYS_restart_syscall
               ? known
               : 0;
}

bool syscall_restart_leave(struct image_registers *registers, uint32_t number) {
    syscall_restart_prepare();
    if (has_halves < 0 || !number || number > HIGHEST_CALL || number == SYS_restart_syscall)
        return false;
    registers->rax = (uint64_t)RESTART_NO_HANDLER;
    registers->orig_rax = (uint64_t)number << 32 | SYS_restart_syscall;
    return true;
}

static const char *read_of(pid_t tid, const char *name, char *to, size_t size) {
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)tid, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);
    to[n > 0 ? n : 0] = '\0';
    return to;
}

/* By the function that it sleeps in. That of a sleep leaves no trace where a compiler makes jumps
 * of last calls; then it is what all system calls are below. A sleep by a clock has a small number
 * where the other has an address. */
static int call_at(const char *function, const struct image_registers *r) {
    const uint32_t operation = (uint32_t)r->rsi & FUTEX_CMD_MASK;

    if (strstr(function, "futex"))
        return (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET) && r->r10 ? SYS_futex
                                                                                     : -ENOTSUP;
    if (strstr(function, "poll"))
        return SYS_poll;
    if (strstr(function, "cpu_nsleep") || strstr(function, "cpu_nanosleep"))
        return SYS_clock_nanosleep;
    if (!strstr(function, "nanosleep") && !strstr(function, "sys_call") &&
        !strstr(function, "syscall"))
        return -ENOTSUP;
    return r->rdi >= LOWEST_ADDRESS           ? SYS_nanosleep
           : (uint32_t)r->rsi & TIMER_ABSTIME ? -ENOTSUP
                                              : SYS_clock_nanosleep;
}

int syscall_restart_look(pid_t tid, const struct image_registers *arguments) {
    static unsigned looks_left = MAX_LOOKS;
    char call[32], function[64];

    for (long looks = 0, ns = LOOK_NS; looks < LOOKS;
         looks++, ns = MIN(2 * ns, (long)LAST_LOOK_NS)) {
        if (!looks_left)
            return -ENOTSUP;
        looks_left--;
        read_of(tid, "syscall", call, sizeof call);
        if (!*call)
            return -ENOTSUP; /* it is gone, or the kernel does not tell */
        if (strtol(call, NULL, 10) == SYS_restart_syscall &&
            strcmp(read_of(tid, "wchan", function, sizeof function), "0") != 0)
            return call_at(function, arguments);
        nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
    }
    return -EAGAIN;
}
