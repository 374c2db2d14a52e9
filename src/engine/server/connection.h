/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of clients, and their requests. */
#ifndef ROLLBOX_ENGINE_SERVER_CONNECTION_H
#define ROLLBOX_ENGINE_SERVER_CONNECTION_H

#include "base/buf.h"
#include "base/wire.h"

struct client;
struct engine;

void engine_stop(struct engine *engine);
int client_new(struct engine *engine, int take_fd);
void client_free(struct client *client); /* and ends its runs */
int server_handle(
    struct client *client, struct wire_message *message); /* < 0: the connection is to end */
void server_status(struct engine *engine, struct buf *to);

#endif
