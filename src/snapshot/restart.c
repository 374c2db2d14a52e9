/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wait for a time that was broken off (poll, nanosleep, clock_nanosleep, futex) the kernel goes on with by restart_syscall: what is left of it only the kernel knows, and no copy can make that call. So where it is captured it has to be known which call it was, of which the kernel tells nothing any more: the
 * registers have its arguments, and rax had its number.
 *
 * Of rax the kernel looks at the lower half alone (Linux 5.13); orig_rax keeps all of it, and with -ERESTARTNOHAND that is what the call is made anew by. So a capture that finds such a call leaves it as one of restart_syscall that was broken off, with the number in the upper half. The kernel goes on with it as it
 * would have, a handler ends it as it would have, nothing is there that the program could see, and the next capture reads it.
 *
 * All of that is the guest's to change; what it gains by it is a call of its own in its copies, which it could have made there itself.
 */
#include "snapshot/restart.h"

#include <sys/syscall.h>
#include <unistd.h>

#define HIGHEST_CALL 1023u

static int has_halves;          /* the kernel, of rax; -1: it has not. 0: it is not known */

void restart_prepare(void) {
    if (!has_halves)
        has_halves = syscall((long)(1ull << 32 | SYS_getpid)) == getpid() ? 1 : -1;
}

bool restart_is(uint64_t number) {
    return (uint32_t)number == SYS_restart_syscall;
}

uint32_t restart_known(uint64_t number) {
    const uint32_t known = (uint32_t)(number >> 32);

    return restart_is(number) && known <= HIGHEST_CALL && known != SYS_restart_syscall ? known : 0;
}

bool restart_leave(struct image_registers *registers, uint32_t number) {
    restart_prepare();
    if (has_halves < 0 || !number || number > HIGHEST_CALL || number == SYS_restart_syscall)
        return false;
    registers->rax = (uint64_t)RESTART_NO_HANDLER;
    registers->orig_rax = (uint64_t)number << 32 | SYS_restart_syscall;
    return true;
}
