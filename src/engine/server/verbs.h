/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about a sandbox (PROTOCOL_SANDBOX): a table of verbs, each with the function that
 * carries it out. */
#ifndef ROLLBOX_ENGINE_SERVER_VERBS_H
#define ROLLBOX_ENGINE_SERVER_VERBS_H

struct client;
struct wire_message;

/* Decodes the request and carries it out, or adds an operation to its session. The client is
 * answered in any case. */
void verbs_request(struct client *client, struct wire_message *message);

#endif
