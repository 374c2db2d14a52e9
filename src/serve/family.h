/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families: a sandbox with its forks, and theirs. A family begins with the first fork, so a sandbox
 * without forks costs nothing. It keeps a node for each sandbox, also of those that have ended, for
 * as long as one of them lives, and then until FAMILY_NODES newer nodes of the tenant have come.
 */
#ifndef ROLLBOX_SERVE_FAMILY_H
#define ROLLBOX_SERVE_FAMILY_H

#include "serve/server.h"

#define FAMILY_NODES 20000u /* of a tenant, besides families with a living sandbox */

/* A sandbox is a fork of another one. `snapshot` may be NULL. */
void family_fork(struct box *box, struct box *parent, const char *snapshot);
/* The latest note of a sandbox. */
void family_note(struct box *box, const json_t *note);
/* The sandbox has ended. */
void family_leave(struct box *box);

/* The id of its family; false: it has none. */
bool family_of(const struct box *box, char ret_id[17]);
/* {"id", "root", "sandboxes": how many live, "nodes": how many}, newest first: a new list. */
json_t *family_list(const struct tenant *tenant);
/* The nodes of a family, the parents first; NULL: there is none. */
const json_t *family_nodes(const struct tenant *tenant, const char *id);

#endif
