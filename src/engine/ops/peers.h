/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private networks: sandboxes of an engine that reach each other by name.
 *
 * Each member has a network namespace of its own, as with net "allow". The gateway gives the names
 * of the members fake addresses, as it does with those of hosts. A connection to one of them is
 * reported here; the engine asks the other sandbox's init for a connection inside (inside.h), and
 * the gateway passes the bytes. So no namespace is shared, each member is captured by itself, and
 * nothing else becomes reachable.
 *
 * A network is known by a text: the policy's, and for forks one that no policy can have. A fork has
 * the name of its parent there, and its own name does not count.
 */
#ifndef ROLLBOX_ENGINE_PEERS_H
#define ROLLBOX_ENGINE_PEERS_H

#include <stdint.h>

struct buf;
struct rollbox_error;
struct session;

/* At the start of the engine. */
void peers_init(void);
/* A new session joins the network of its policy, if that names one. 0, or -errno and the error. */
int peers_join(struct session *session, struct rollbox_error *error);
/* A fork joins a network of its own. Forks that were made of several members at one moment, and
 * have the same index, share it: `group` is not 0 then. 0, or -errno and the error. */
int peers_fork(const struct session *parent, struct session *child, uint64_t group, unsigned index,
    struct rollbox_error *error);
/* A JSON object, or null. */
void peers_text(const struct session *session, struct buf *to);

#endif
