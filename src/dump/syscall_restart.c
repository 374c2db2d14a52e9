/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interrupted waits with a relative time-out (poll, nanosleep, clock_nanosleep, futex).
 *
 * The kernel continues such a wait by restart_syscall, and only the kernel knows the remaining
 * time, so a restored process cannot make that call. The dump has to find out which call it was.
 * The registers still hold the arguments, but the number was in rax and is lost.
 *
 * The kernel reads only the lower half of rax (Linux 5.13) but keeps all of orig_rax, and after
 * -ERESTARTNOHAND it restarts the call by orig_rax. So a dump that finds such a call rewrites it as
 * an interrupted restart_syscall, with the number of the original call in the upper half. The
 * kernel continues it as before, a handler ends it as before, the program cannot see a difference,
 * and the next dump reads the number.
 *
 * If something else interrupted the wait first (SIGSTOP and SIGCONT, the freezer), there is no such
 * number. Then the thread is resumed for a moment, back into its wait, and the kernel function that
 * it sleeps in identifies the call.
 *
 * A guest can forge all of this. It only gains a system call in its own copies, which it could have
 * made anyway.
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
#define LOOKS 50        /* per thread */
#define MAX_LOOKS 2000u /* per dump, because the guest decides how many threads there are */
/* From the first to the second, then doubled: on a busy machine it takes the thread a while to
 * return to its wait, */
#define LOOK_NS 20000
#define LAST_LOOK_NS 1280000 /* and it must not be stopped before */
#define LOWEST_ADDRESS 4096u

static int has_halves; /* the kernel keeps the upper half; -1: it does not, 0: unknown */

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

/* Identifies the call by the function that the thread sleeps in. Where the compiler turned the last
 * call of a sleep into a jump, that function is the common entry of all system calls. A
 * clock_nanosleep has a small number where nanosleep has an address. */
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
            return -ENOTSUP; /* the thread is gone, or the kernel does not tell */
        if (strtol(call, NULL, 10) == SYS_restart_syscall &&
            strcmp(read_of(tid, "wchan", function, sizeof function), "0") != 0)
            return call_at(function, arguments);
        nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
    }
    return -EAGAIN;
}
