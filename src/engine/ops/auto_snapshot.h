/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots that are taken by themselves. */
#ifndef ROLLBOX_ENGINE_OPS_AUTO_SNAPSHOT_H
#define ROLLBOX_ENGINE_OPS_AUTO_SNAPSHOT_H

#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

struct op;
struct session;

void auto_snapshot_init(void);
bool auto_snapshot_is_due(const struct session
        *session); /* its state may be another than before the command that has just ended */

/* From now on each command that changes something is followed by a snapshot; `keep` of them stay.
 * 0: none are taken. */
void auto_snapshot_set(struct session *session, unsigned keep);
void auto_snapshot_failed(struct session *session, const struct rollbox_error *error);
void auto_snapshot_text(const struct session *session, struct buf *to);
void auto_snapshot_taken(struct op *op);

#endif
