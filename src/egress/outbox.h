/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the engine. They are sent in order and never block the loop: what the socket does not
 * take waits in memory. */
#ifndef ROLLBOX_EGRESS_OUTBOX_H
#define ROLLBOX_EGRESS_OUTBOX_H

#include "egress/egress.h"

/* Consumes the message. */
void outbox_send(struct egress *egress, json_t *message);
void outbox_done(struct egress *egress);

#endif
