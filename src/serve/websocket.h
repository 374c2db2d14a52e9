/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WebSocket connections (RFC 6455). wslay has the framing; this file the handshake, and the way
 * between wslay and an upgraded HTTP connection. Messages are whole, and have at most
 * WEBSOCKET_MESSAGE_MAX bytes.
 *
 * A page of another origin is refused: a browser would send the password that a user once typed.
 */
#ifndef ROLLBOX_SERVE_WEBSOCKET_H
#define ROLLBOX_SERVE_WEBSOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/server.h"

#define WEBSOCKET_MESSAGE_MAX ((size_t)1 << 20)

struct websocket;
/* Must not free the websocket. */
typedef void websocket_message(
    struct exchange *exchange, bool is_text, const char *data, size_t length);

/* Answers 101. NULL: the request is no valid handshake, it is answered, and the exchange is gone.
 */
struct websocket *websocket_accept(struct exchange *exchange, websocket_message *message);
struct websocket *websocket_free(struct websocket *websocket);

/* Takes bytes of the client. False: it has closed the connection, or broken the protocol; what is
 * left is websocket_close. */
bool websocket_input(struct websocket *websocket, const char *data, size_t length);
/* Sends a message; returns the unsent bytes, as http_write. */
size_t websocket_send(struct websocket *websocket, bool is_text, const void *data, size_t length);
void websocket_ping(struct websocket *websocket);
/* Sends a close frame and closes the connection. Messages that arrive later are dropped. */
void websocket_close(struct websocket *websocket, unsigned code, const char *reason);

#endif
