/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that the kernel continues by restart_syscall: which calls they were. */
#ifndef ROLLBOX_DUMP_RESTART_H
#define ROLLBOX_DUMP_RESTART_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/process_image.h"

/* Values that the kernel puts into rax when it interrupts a call. */
#define RESTART_NO_HANDLER                                                                         \
    (-514) /* ERESTARTNOHAND: restarted by the number in orig_rax, if no handler runs first */
#define RESTART_BLOCK                                                                              \
    (-516) /* ERESTART_RESTARTBLOCK: restarted by restart_syscall, for the remaining time */

/* Called once for all forked workers. Otherwise it happens on first use. */
void syscall_restart_prepare(void);

/* Is the number, of rax before the call or of orig_rax, that of restart_syscall? */
bool syscall_restart_is(uint64_t number);

/* The call behind it, as an earlier dump has left it there; 0: unknown. */
uint32_t syscall_restart_known(uint64_t number);

/* The call of a running thread with these arguments, once it sleeps in it. -EAGAIN: it does not
 * sleep yet; -ENOTSUP: it cannot be determined. */
int syscall_restart_look(pid_t tid, const struct image_registers *arguments);

/* Call `number` was interrupted (RESTART_BLOCK). Changes the registers so that the thread continues
 * it as before, and the next dump can read the number. False: nothing is changed. */
bool syscall_restart_leave(struct image_registers *registers, uint32_t number);

#endif
