/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that the kernel goes on with by restart_syscall: which calls they are. */
#ifndef ROLLBOX_DUMP_RESTART_H
#define ROLLBOX_DUMP_RESTART_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/process_image.h"

/* What the kernel puts into rax where a call is broken off. */
#define RESTART_NO_HANDLER                                                                         \
    (-514) /* ERESTARTNOHAND: made anew by the number in orig_rax, if no signal is handled first   \
            */
#define RESTART_BLOCK (-516) /* ERESTART_RESTARTBLOCK: so by restart_syscall, for what is left */

/* Once for all forks; it is done when it is needed, too. */
void syscall_restart_prepare(void);

/* Is it restart_syscall, of rax before the call, or orig_rax? */
bool syscall_restart_is(uint64_t number);

/* Which call it goes on with, as a capture before has left it there; 0: nobody has. */
uint32_t syscall_restart_known(uint64_t number);

/* Which one a thread that runs has with these arguments, once it sleeps in it; -EAGAIN: it does not
 * yet, -ENOTSUP: that cannot be told. */
int syscall_restart_look(pid_t tid, const struct image_registers *arguments);

/* Where call `number` was broken off (RESTART_BLOCK): its thread is to go on with it as it would,
 * and the next capture to know which one it is. False: nothing is changed. */
bool syscall_restart_leave(struct image_registers *registers, uint32_t number);

#endif
