/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published ports: listeners on the host that lead into sandboxes.
 *
 * The engine listens, so a sandbox that is paused or hibernated keeps its addresses. For each
 * connection that arrives it asks the sandbox's init for a connection inside (op_connect.c), which
 * resumes or wakes the sandbox first. Both sockets then go to rollbox-egress, which passes the
 * bytes (egress/inward.h). The engine itself never reads any.
 *
 * Bounds: a sandbox has at most so many connections at one time, and an engine as many as its limit
 * of open files bears. Beyond, connections wait in the kernel's queue of the listener.
 */
#ifndef ROLLBOX_ENGINE_PUBLISH_H
#define ROLLBOX_ENGINE_PUBLISH_H

#include "policy/publish.h"

struct buf;
struct session;
struct rollbox_error;

/* At the start of the engine. */
void publish_init(void);
/* Listens for the ports of a new session's policy: on all of them, or none. 0, or -errno and the
 * error. */
int publish_policy(struct session *session, struct rollbox_error *error);
/* A fork has those ports of its parent whose address the kernel chose, at addresses of its own. 0,
 * or -errno and the error. */
int publish_fork(const struct session *parent, struct session *child, struct rollbox_error *error);
/* Publishes a port, unless it is published already and no other address is asked for. `address`:
 * see publish_parse_address; NULL: any. 0, or -errno and the error. */
int publish_add(
    struct session *session, uint16_t port, const char *address, struct rollbox_error *error);
/* The published ports as a JSON array; of one port, unless it is 0. */
void publish_text(const struct session *session, uint16_t port, struct buf *to);

#endif
