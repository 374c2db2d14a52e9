/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies to clients. Nothing here blocks: a reply that does not fit into the client's socket waits
 * in the client's sender (sender.c). connection.c has the other direction.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "engine/core/client.h"
#include "base/wire.h"
#include "engine/core/context.h"
#include "engine/core/sender.h"
#include "engine/protocol.h"

/* A connection with more bytes of unread replies than both of these is ended. */
#define MAX_UNREAD (UINT64_C(1) << 30)
#define UNREAD_SHARE 4u /* of the memory budget, the part */

struct wire_message *client_keep_request(struct wire_message *message) {
    struct wire_message *kept = malloc(sizeof *kept);

    if (!kept)
        return NULL;
    memcpy(kept, message, sizeof *kept);
    if (!kept->mapping)
        kept->data = kept->bytes + ((const char *)message->data - message->bytes);
    message->mapping = NULL;
    message->n_fds = 0;
    return kept;
}

void client_free_request(struct wire_message *take_message) {
    if (take_message)
        wire_message_done(take_message);
    free(take_message);
}

/* One answer to each request. The unread answers of a client are bounded by its running requests
 * when it stopped reading: from then on the engine reads no requests from it and starts none.
 * Beyond this limit they would take memory from others all the same. */
void client_send(struct client *client, struct buf *message, const int *fds, size_t n_fds) {
    const struct engine *engine = client->engine;
    int r = sender_send(&client->sender, message, fds, n_fds);

    client->n_requests -= client->n_requests > 0;

    if (r > 0) {
        struct outgoing *outgoing = calloc(1, sizeof *outgoing);

        r = outgoing ? sender_keep(&client->sender, outgoing, message, fds, n_fds) : -ENOMEM;
        if (r < 0)
            free(outgoing);
        else if (client->sender.bytes >
                 MAX(MAX_UNREAD, engine->runs.memory_budget / UNREAD_SHARE)) {
            fprintf(stderr,
                "rollbox-engine: the connection of process %d is closed: it has left %zu MiB of "
                "answers unread\n",
                (int)client->pid, client->sender.bytes >> 20);
            r = -ENOBUFS;
        }
    }
    /* A closed connection is noticed by reading it. */
    if (r < 0 && r != -EPIPE && r != -ECONNRESET)
        shutdown(client->fd, SHUT_RDWR);
}

void client_fail(struct client *client, uint64_t serial, const struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_FAILED, serial);
    wire_add_u64(&message, TAG_ERROR_CODE, error->code);
    wire_add_u64(&message, TAG_ERROR_NUMBER, (uint64_t)error->error_number);
    wire_add_text(&message, TAG_ERROR_STAGE, error->stage);
    wire_add_text(&message, TAG_ERROR_MESSAGE, error->message);
    client_send(client, &message, NULL, 0);
}

void client_reply(struct client *client, uint64_t serial, struct buf *json) {
    auto_buf struct buf reply = BUF_INIT;

    wire_begin(&reply, PROTOCOL_TEXT, serial);
    if (json->failed)
        reply.failed = true;
    else
        wire_add_text(&reply, TAG_TEXT_DATA, json->data ? json->data : "{}");
    buf_done(json);
    client_send(client, &reply, NULL, 0);
}
