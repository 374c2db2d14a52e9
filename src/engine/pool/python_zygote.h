/* SPDX-License-Identifier: Apache-2.0 */
/* Python kept started, for runs of code. */
#ifndef ROLLBOX_ENGINE_POOL_PYTHON_ZYGOTE_H
#define ROLLBOX_ENGINE_POOL_PYTHON_ZYGOTE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/list.h"
#include "guest/guest.h"

struct engine;
struct interpreter;
struct profile;

/* A run of code of the profile has come; the second has an interpreter made. True: the run is to
 * wait, by its in_queue, until there is one, or a processor is free: hooks.code_released. */
bool interpreter_queue(struct profile *profile, struct list *in_queue);

/* Releases the runs that need not wait any more. NULL: nobody waits. */
void interpreter_release_queue(struct interpreter *interpreter);
struct profile *interpreter_profile(
    struct profile *base); /* in which a run of code is to be started: that one, or one that has the
                              interpreter ready */
int interpreter_code(
    const struct buf *request); /* the interpreter's input as a memory file; or -errno */
bool interpreter_is_fixed(
    const struct profile *profile); /* code is always run by it, also after a cold start: its
                                       surroundings must be the same */
int interpreter_request(const struct buf *request,
    struct buf *to); /* that, in place of the command of a GUEST_EXEC. 0 or -errno */
void interpreter_started(struct profile *profile, const struct guest_record *record);
struct profile *interpreter_base_of(
    struct profile *second); /* a run of the second profile has ended */
void interpreter_status(const struct engine *engine, struct buf *to);

#endif
