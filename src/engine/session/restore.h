/* SPDX-License-Identifier: Apache-2.0 */
/* Restoring the processes of a checkpoint in a session: see restore.c. */
#ifndef ROLLBOX_ENGINE_SESSION_RESTORE_H
#define ROLLBOX_ENGINE_SESSION_RESTORE_H

#include <stddef.h>

struct rollbox_error;
struct checkpoint_command;
struct run;
struct session;

/* In its box, which is ready; init answers RESTORED. `adopt` makes the run of each command, or
 * returns NULL. 0, or the error. */
int restore_start(struct session *session,
    struct run *(*adopt)(struct session *, const struct checkpoint_command *),
    struct rollbox_error *error);
/* The terminals of its commands. Takes the descriptors that are terminals (-EBADF). */
int restore_take_terminals(struct session *session, int *fds, size_t n_fds);
/* The processes run again. */
void restore_done(struct session *session);

#endif
