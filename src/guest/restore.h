/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restoring a process from its image (image.h).
 *
 * A launcher loads an image once: its own address space then holds the process' memory, at the process' addresses. Every sandbox cloned from it has that memory, so its init only forks the process: what is left to be done is
 * done by that child itself, ahead of need, and it waits for word of the command that it is to be.
 */
#ifndef ROLLBOX_GUEST_RESTORE_H
#define ROLLBOX_GUEST_RESTORE_H

#include "guest/internal.h"

/* In the launcher, once: from a memory file that nobody writes to any more. 0 or -errno, with which the launcher is of no use any more; -EEXIST: something of the launcher's own is where the process has memory. */
int restore_load(int fd);
bool restore_is_loaded(void);
/* What it is going to touch: a memory file of struct image_touch. It costs only time if that is wrong. */
void restore_expect(int fd);

/* In a new sandbox' init, in its user namespace and before it gives up its rights: forks the process. What goes wrong is told by restore_resume. */
void restore_fork(const struct box *box);

struct restore_failure {
    int32_t error;              /* errno; 0: none is known */
    uint32_t step;              /* of those in restore.c */
};

/* Lets it go on as a command: `fds` become its 0, 1, 2, 3. Its pid once it runs; or -ENOENT if there is none, or none any more. */
pid_t restore_resume(const struct exec_request *request, struct restore_failure *ret_failure);

/* It ends: another command is started in the sandbox. */
void restore_cancel(void);

#endif
