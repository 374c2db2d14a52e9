/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families: a sandbox with its forks, and theirs. A family begins with the first fork, so a sandbox
 * without forks costs nothing. It keeps a node for each sandbox, also of those that have ended. If
 * a tenant has more than FAMILY_NODES of these, the oldest go: first those of families of which no
 * sandbox lives.
 */
#ifndef ROLLBOX_SERVE_FAMILY_H
#define ROLLBOX_SERVE_FAMILY_H

#include "serve/server.h"

#define FAMILY_NODES 20000u   /* of sandboxes of a tenant that have ended */
#define FAMILY_NOTE_MAX 4096u /* bytes; a longer note is not kept */

/* A sandbox is a fork of another one. `snapshot` may be NULL. */
void family_fork(struct box *box, struct box *parent, const char *snapshot);
/* The latest note of a sandbox, in JSON. It is kept as text, which is smaller than its values. */
void family_note(struct box *box, const char *note);
/* The sandbox has ended. */
void family_leave(struct box *box);

/* The id of its family; false: it has none. */
bool family_of(const struct box *box, char ret_id[17]);
/* {"id", "root", "sandboxes": how many live, "nodes": how many}, newest first: a new list. */
json_t *family_list(const struct tenant *tenant);
/* The nodes of a family, the parents first: a new list. NULL: there is none. */
json_t *family_nodes(const struct tenant *tenant, const char *id);

#endif
