/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in sessions. */
#ifndef ROLLBOX_ENGINE_SESSION_EXEC_H
#define ROLLBOX_ENGINE_SESSION_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/wire.h"
#include "guest/guest.h"

struct checkpoint_command;
struct run;
struct session;

void exec_enter(struct run *run);
bool exec_kill(struct run *run); /* its tree; false: init cannot receive it, or never knew of it */
int exec_signal(struct run *run, int number, enum rollbox_scope scope);
void exec_kill_all(struct session *session);    /* every process but init */
void exec_kill_guests(struct session *session); /* and but its agents */

/* Commands wait that may be sent: the session is to have a box then. */
bool exec_may_send(const struct session *session);

/* To init, in the session's box; of session_schedule alone. `ready`: 0, or why there is no box.
 * False: some wait still. */
bool exec_send_waiting(struct session *session, int ready, struct rollbox_error *error);
void exec_tell_again(
    struct session *session); /* sends messages for which init's socket had no room */

/* There is no init any more that would tell the end of a command. It fails, unless its outcome is
 * known. */
void exec_end(struct run *run, const struct rollbox_error *error);

/* init has answered to a signal for that command. */
void exec_signalled(struct session *session, uint64_t serial);
void exec_answer(
    struct session *session, const struct guest_record *record, int *fds, size_t n_fds);
size_t exec_claim(struct run *run, uint64_t wanted, struct buf *json,
    int *ret_fds); /* VERB_CLAIM: the pipes kept for the first client that asks; the descriptors are
                      the caller's */
struct run *exec_find(struct session *session, const struct wire_field *operation);

/* A restored command, which continues in the session's box. NULL: out of memory. */
struct run *exec_adopt(struct session *session, const struct checkpoint_command *command);

#endif
