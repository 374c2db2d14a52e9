/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections into sandboxes: from a published port of the host to a server inside.
 *
 * The engine accepts the connection outside, has the sandbox's init connect inside, and hands over
 * both sockets. Here bytes are passed, and nothing else: the bytes mean nothing to rollbox. The
 * connections of one sandbox are a group, which the engine names by a number. Each end of
 * a connection is reported to the engine.
 */
#ifndef ROLLBOX_EGRESS_INWARD_H
#define ROLLBOX_EGRESS_INWARD_H

#include "egress/egress.h"

/* Takes both sockets, which must be non-blocking; the one inside may still be connecting. 0 or
 * -errno. In both cases {"event":"relayed"} tells the end. */
int inward_start(struct egress *egress, uint64_t group, int take_outside, int take_inside);
/* Tells that the sockets of a connection, which the engine has numbered, have arrived. Until then
 * the engine keeps copies of them, because a gateway that is killed loses what it has not read. */
void inward_tell_taken(struct egress *egress, uint64_t group, uint64_t serial);
/* Tells the end of a connection. `serial`: its sockets did not arrive; 0: they did. */
void inward_tell_end(struct egress *egress, uint64_t group, uint64_t serial);
/* Resets all connections of the group. Nothing is reported. */
void inward_end_group(struct egress *egress, uint64_t group);
/* Of all groups. */
void inward_end_all(struct egress *egress);

#endif
