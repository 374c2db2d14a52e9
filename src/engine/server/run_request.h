/* SPDX-License-Identifier: Apache-2.0 */
/* The request for a command. */
#ifndef ROLLBOX_ENGINE_SERVER_RUN_REQUEST_H
#define ROLLBOX_ENGINE_SERVER_RUN_REQUEST_H

#include "base/wire.h"

struct client;

void run_request(struct client *client, struct wire_message *message);

#endif
