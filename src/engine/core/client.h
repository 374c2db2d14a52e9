/* SPDX-License-Identifier: Apache-2.0 */
/* A client, and the replies to it. server/connection.c reads its requests. */
#ifndef ROLLBOX_ENGINE_CORE_CLIENT_H
#define ROLLBOX_ENGINE_CORE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/core/sender.h"
#include "loop/loop.h"

struct engine;
struct wire_message;

struct client {
    struct engine *engine;
    struct list node; /* engine->server.clients */
    struct loop_source source;
    int fd;
    bool greeted;
    struct list runs;     /* struct run.of_client */
    struct list sessions; /* struct session.of_client: those that end with it */
    struct sender sender;
    pid_t pid; /* as the kernel tells; 0: of another pid namespace */
    uid_t uid;
    unsigned n_requests;         /* that are not answered yet */
    size_t held_bytes, held_fds; /* of its requests: what waits in the engine */
    struct list queue;           /* struct run.in_queue */
    struct list in_turns;        /* engine->runs.turns */
    unsigned n_queued, n_running;
    uint64_t memory_reserved; /* bytes: of its runs that run */
    uint64_t passed;          /* bytes: of others' runs that began while its first had no room */
};

/* A JSON object as the reply; consumed. Without text: {}. */
void client_reply(struct client *client, uint64_t serial, struct buf *json);

void client_send(struct client *client, struct buf *message, const int *fds, size_t n_fds);
void client_fail(struct client *client, uint64_t serial, const struct rollbox_error *error);

/* Moves a request, with its body and descriptors, to the heap, so that it can be carried out later.
 * NULL: no memory, and the message is unchanged. client_free_request frees it; NULL is nothing. */
struct wire_message *client_keep_request(struct wire_message *message);
void client_free_request(struct wire_message *take_message);

#endif
