/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes that have ended by themselves. */
#ifndef ROLLBOX_SERVE_ENDED_BOXES_H
#define ROLLBOX_SERVE_ENDED_BOXES_H

#include "serve/server.h"

/* Asks the engine of a sandbox for it, and forgets the sandbox if the engine has it no more. */
void ended_boxes_ask(struct server *server, struct box *box);

#endif
