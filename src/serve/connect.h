/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Connect protocol with JSON, as E2B's clients speak it. A unary call is a JSON body and a JSON
 * answer. A stream is a sequence of messages in both directions, each with a head of five bytes:
 * flags, and the length, big-endian. The last message of an answer has CONNECT_END, and contains
 * {} or {"error": {"code", "message"}}.
 */
#ifndef ROLLBOX_SERVE_CONNECT_H
#define ROLLBOX_SERVE_CONNECT_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"

#define CONNECT_HEAD 5u
#define CONNECT_COMPRESSED 1u
#define CONNECT_END 2u
#define CONNECT_MESSAGE_MAX ((size_t)16 << 20)

/* Takes the next message off the front of `in`. 1: *ret_message is a new JSON object; 0: it is not
 * complete; -EBADMSG: it is malformed, compressed or too long. An end is skipped. */
int connect_take(struct buf *in, json_t **ret_message);
/* Appends a message. */
void connect_add(struct buf *to, unsigned flags, json_t *take_message);

/* The words of an error of the server's own ("code" of a problem): Connect's code, and its HTTP
 * status. `errno_value` is the problem's, or 0. */
const char *connect_code(const char *code, int errno_value, int *ret_status);
/* {"code", "message"} */
json_t *connect_error(const char *code, const char *message);

#endif
