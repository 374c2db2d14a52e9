/* SPDX-License-Identifier: Apache-2.0 */
/* Closes a descriptor of a tmpfs. The last one frees the tmpfs, which takes long, so another
 * process does that. */
#ifndef ROLLBOX_ENGINE_CORE_DEFERRED_CLOSE_H
#define ROLLBOX_ENGINE_CORE_DEFERRED_CLOSE_H

#include <sys/types.h>

/* deferred_close.c: closes a descriptor of a tmpfs which may be the last, without waiting for what
 * that frees. */
void deferred_close(int take_fd);

/* A child that has ended: it may have been one of these. */
void deferred_close_ended(pid_t pid);

/* Some child has ended: how many of these have? */
unsigned deferred_close_look(void);

/* Descriptors that are to be closed yet. */
unsigned deferred_close_waiting(void);

/* Waits for all of them. */
void deferred_close_wait(void);

#endif
