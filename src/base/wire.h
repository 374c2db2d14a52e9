/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between engine, client and init.
 *
 * A message is one SOCK_SEQPACKET datagram: a header, then fields {tag, length, bytes}, each padded
 * to 8 bytes. Texts include their NUL, so a receiver can point into the message. Fields that exceed
 * WIRE_INLINE bytes travel in a sealed memory file, which is then the message's first descriptor
 * (WIRE_BODY_IN_FD). Reading allocates nothing and is safe on hostile bytes: the guest layer uses
 * it too. Both ends run on one machine, so integers are in host order.
 */
#ifndef ROLLBOX_BASE_WIRE_H
#define ROLLBOX_BASE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/fd.h"

#define WIRE_INLINE 32768        /* the largest datagram, header included */
#define WIRE_BODY_MAX (1u << 30) /* the largest body in a memory file */
#define WIRE_BODY_IN_FD 1u

struct wire_header {
    uint32_t type;
    uint32_t flags;
    uint64_t serial; /* a reply has the serial number of its request */
};

struct wire_field {
    uint32_t tag;
    uint32_t length;
    const void *data;
};

/* Appends a header; it must be the first thing in the buffer. */
void wire_begin(struct buf *to, uint32_t type, uint64_t serial);
void wire_add(struct buf *to, uint32_t tag, const void *data, size_t length);
void wire_add_text(struct buf *to, uint32_t tag, const char *text);
void wire_add_u64(struct buf *to, uint32_t tag, uint64_t value);

/* Sends the message in `buf` with descriptors (borrowed). Moves the fields into a memory file if
 * needed. 0 or -errno; -ENOMEM if the buffer failed. */
int wire_send(int socket, struct buf *buf, const int *fds, size_t n_fds);
/* As fd_send_patiently. */
int wire_send_patiently(int socket, struct buf *buf, const int *fds, size_t n_fds);

/* The next field. 1: *ret_field is filled; 0: the end; -EBADMSG: malformed. Start with *position =
 * 0; `data` is what follows the header (or the body in the memory file). */
int wire_next(const void *data, size_t length, size_t *position, struct wire_field *ret_field);

/* The field as a text: NULL if it is empty, has no final NUL, or has one inside. */
const char *wire_text(const struct wire_field *field);

/* The field as an integer. 0 or -EBADMSG. */
int wire_u64(const struct wire_field *field, uint64_t *ret_value);

/* A received message with its descriptors. */
struct wire_message {
    struct wire_header header;
    const void *data; /* the fields */
    size_t length;
    int fds[FD_MESSAGE_MAX_FDS]; /* the caller's to take (set to -EBADF) or leave; the body's own
                                    descriptor is not among them */
    size_t n_fds;
    void *mapping; /* the mapped body, or NULL */
    size_t mapping_length;
    _Alignas(8) char bytes[WIRE_INLINE];
};

/* Receives one message. 1: received; 0: the peer closed the socket; -EAGAIN: no message; -EBADMSG:
 * malformed (dropped); -EMFILE: no room for its descriptors, only the header is valid; or another
 * -errno. wire_message_done unmaps the body and closes descriptors that were not taken. */
int wire_receive(int socket, struct wire_message *message);
void wire_message_done(struct wire_message *message);
int wire_take_fd(struct wire_message *message, size_t index);

#endif
