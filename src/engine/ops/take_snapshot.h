/* SPDX-License-Identifier: Apache-2.0 */
/* The present state of a session becomes op->to. */
#ifndef ROLLBOX_ENGINE_OPS_TAKE_SNAPSHOT_H
#define ROLLBOX_ENGINE_OPS_TAKE_SNAPSHOT_H

#include <stdbool.h>

#include "engine/session/op.h"

void op_take_snapshot(struct op *op);

/* op->to is there: its size and a short chain are waited for, then class->have_snapshot. */
void op_have_snapshot(struct op *op);
void take_snapshot_event(struct op *op, enum op_event event, const struct op_message *message);
void take_snapshot_release(struct op *op);
void op_freeze(struct op *op);           /* INIT_REPLY follows, or PROCESSES_FREE before it */
void op_thaw(struct op *op);             /* unless the session is paused */
void op_resume_processes(struct op *op); /* those that keeps_stopped kept */
bool op_is_dying(int r); /* init is gone, of which we have not heard yet: BOX_LOST comes */

#endif
