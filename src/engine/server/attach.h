/* SPDX-License-Identifier: Apache-2.0 */
/* ATTACH: see attach.c. */
#ifndef ROLLBOX_ENGINE_SERVER_ATTACH_H
#define ROLLBOX_ENGINE_SERVER_ATTACH_H

struct client;
struct wire_message;

void attach_client(struct client *client, struct wire_message *message);

#endif
