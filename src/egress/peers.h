/* SPDX-License-Identifier: Apache-2.0 */
/* The other sandboxes of a sandbox's private network, which it connects to by name. */
#ifndef ROLLBOX_EGRESS_PEERS_H
#define ROLLBOX_EGRESS_PEERS_H

#include "egress/egress.h"

/* An array of names, of which a reference is kept; anything else: there are none. */
void peers_set(struct box *box, json_t *names);
/* The name in the engine's spelling; NULL: there is no such sandbox. */
const char *peers_find(const struct box *box, const char *name);

#endif
