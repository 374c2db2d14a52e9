/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a session as snapshots. */
#ifndef ROLLBOX_ENGINE_SESSION_SESSION_FILES_H
#define ROLLBOX_ENGINE_SESSION_SESSION_FILES_H

#include <stdbool.h>

#include "engine/snapshot/layer.h"

struct box;
struct layer;
struct session;
struct snapshot;

void snapshot_ref_assign(struct snapshot **at, struct snapshot *snapshot);

extern const struct snapshot_sessions session_files_users;

/* The state of a session in which nothing of a state's processes is: that state, or one of its
 * files alone, also where it was dropped and has lost its name. A reference, or NULL. */
struct snapshot *session_files_of(struct session *session, struct snapshot *snapshot);

/* The present state, of which all is known, as nothing was called since, or what was has left
 * nothing. A reference, or NULL. */
struct snapshot *session_files_unchanged(struct session *session);

/* The state gets the names of hosts that the box knows now (snapshot->net_names). */
void session_files_note_names(struct snapshot *snapshot, const struct box *box);

/* The private files of a box as a layer; `ends`: nobody needs the box any more. 0 or -errno. */
int session_files_layer(struct box *box, bool ends, struct layer **ret_layer);

/* The files of a box in which nothing runs (any more), as a snapshot with a reference for the
 * caller, or NULL; the session stands on it from now on. */
struct snapshot *session_files_seal(struct session *session, struct box *box);

#endif
