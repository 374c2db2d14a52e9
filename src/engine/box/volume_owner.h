/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose files a volume of an ordinary user has.
 *
 * Run by root, a volume is shown with the ids of each sandbox. An ordinary
 * user cannot do that: files of sandboxes of one user are the user's own, and files of sandboxes of
 * many users belong to ids of the user's range, of which the first is the sandboxes' root. So such
 * a volume is of one kind or the other, as the owner of its directory says. An empty one changes
 * its kind with the sandbox that mounts it.
 */
#ifndef ROLLBOX_ENGINE_BOX_VOLUME_OWNER_H
#define ROLLBOX_ENGINE_BOX_VOLUME_OWNER_H

#include <rollbox/rollbox.h>

struct engine;
struct plan;

/* Makes the files of the volume at `directory` usable for sandboxes of the plan. Takes a fork if
 * the volume is empty and of the other kind. 0; CONFLICT: it has files of the other kind; IO. */
int volume_owner_settle(struct engine *engine, const struct plan *plan, int directory,
    const char *name, struct rollbox_error *error);

#endif
