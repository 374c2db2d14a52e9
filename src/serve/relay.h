/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams between clients and calls that block. A thread makes the call on one end of a pipe, and
 * the server moves bytes between the other end and the client, as fast as the slower one. So a
 * stream of any length needs the memory of a pipe and of HTTP_UNSENT_MAX.
 *
 * A client that leaves closes the pipe, which ends the call.
 */
#ifndef ROLLBOX_SERVE_RELAY_H
#define ROLLBOX_SERVE_RELAY_H

#include "serve/server.h"

struct relay_call {
    /* In a thread. 0, or negative with the error. */
    int (*work)(struct relay_call *call, int fd, struct rollbox_error *error);
    struct rollbox_sandbox *sandbox; /* filled in by the relay; NULL without one */
    char *text;                      /* a path, or the name of a snapshot; freed */
    char *json;                      /* the answer of a call that reads; freed */
    struct buf user, owner;
    int socket; /* of store_worker.h */
    bool is_live;
    unsigned mode;
    uint64_t size;
};

/* Consumes the call. The answer is what the call writes, of this type. */
void relay_out(struct exchange *exchange, struct relay_call *take_call, const char *type);
/* The same for a call that reads the request's body. The route's body is BODY_STREAM, or was read.
 * The answer is the call's JSON with the status 201, or 204 without any. */
void relay_in(struct exchange *exchange, struct relay_call *take_call);
struct relay_call *relay_call_free(struct relay_call *call);

#endif
