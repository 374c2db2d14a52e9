/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the engine. They are sent in order and never block the loop. If the socket is full,
 * they wait in memory. */
#ifndef ROLLBOX_EGRESS_OUTBOX_H
#define ROLLBOX_EGRESS_OUTBOX_H

#include "egress/egress.h"

/* Consumes the message. */
void outbox_send(struct egress *egress, json_t *message);
void outbox_done(struct egress *egress);

#endif
