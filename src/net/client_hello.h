/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first message of a TLS client (RFC 8446, section 4.1.2): the name that it asks for (RFC 6066)
 * and whether that name is encrypted (ECH).
 *
 * The reader looks at all bytes that have come so far, from the first one, and consumes none: they
 * stay in the socket for the program that continues. A ClientHello may be split over records and
 * packets at any place; all records are put together before a byte of it is judged.
 */
#ifndef ROLLBOX_NET_CLIENT_HELLO_H
#define ROLLBOX_NET_CLIENT_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_HELLO_MAX 16384u /* longer ones are refused; a long one has 2 KiB */
/* As many bytes as the longest can have on the wire: records of one byte each would have six times
 * as many, so records have an average of at least 16 bytes. */
#define CLIENT_HELLO_WIRE 24576u
#define CLIENT_HELLO_FIRST_BYTE 22

struct client_hello {
    char name[256]; /* lower case, without a final dot; "": none */
    bool has_ech;
};

/* 0: complete; -EAGAIN: more bytes are needed; -EMSGSIZE: too long; -EBADMSG: not a ClientHello. */
int client_hello_read(const void *data, size_t length, struct client_hello *ret_hello);

#endif
