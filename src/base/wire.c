/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/fd.h"

struct field_header {
    uint32_t tag;
    uint32_t length;
};

static size_t padded_length(size_t length) {
    return (length + 7) & ~(size_t)7;
}

void wire_begin(struct buf *to, uint32_t type, uint64_t serial) {
    struct wire_header header = { .type = type, .serial = serial };

    buf_add(to, &header, sizeof header);
}

void wire_add(struct buf *to, uint32_t tag, const void *data, size_t length) {
    struct field_header header = { tag, (uint32_t)length };
    static const char zeros[8];

    if (length > WIRE_BODY_MAX) {
        to->failed = true;
        return;
    }
    buf_add(to, &header, sizeof header);
    buf_add(to, data, length);
    buf_add(to, zeros, padded_length(length) - length);
}

void wire_add_text(struct buf *to, uint32_t tag, const char *text) {
    wire_add(to, tag, text, strlen(text) + 1);
}

void wire_add_u64(struct buf *to, uint32_t tag, uint64_t value) {
    wire_add(to, tag, &value, sizeof value);
}

typedef int send_function(
    int socket, const void *data, size_t length, const int *fds, size_t n_fds);

static int send_by(send_function *send, int socket, struct buf *buf, const int *fds, size_t n_fds) {
    if (buf_failed(buf))
        return -ENOMEM;
    if (buf->length <= WIRE_INLINE)
        return send(socket, buf->data, buf->length, fds, n_fds);

    struct wire_header header;
    int all[FD_MESSAGE_MAX_FDS];

    memcpy(&header, buf->data, sizeof header);
    header.flags |= WIRE_BODY_IN_FD;
    if (buf->length - sizeof header > WIRE_BODY_MAX || n_fds + 1 > ARRAY_SIZE(all))
        return -EMSGSIZE;
    auto_close int body =
        fd_memory_file("rollbox-message", buf->data + sizeof header, buf->length - sizeof header);
    if (body < 0)
        return body;
    all[0] = body;
    for (size_t i = 0; i < n_fds; i++)
        all[i + 1] = fds[i];
    return send(socket, &header, sizeof header, all, n_fds + 1);
}

int wire_send(int socket, struct buf *buf, const int *fds, size_t n_fds) {
    return send_by(fd_send, socket, buf, fds, n_fds);
}

int wire_send_patiently(int socket, struct buf *buf, const int *fds, size_t n_fds) {
    return send_by(fd_send_patiently, socket, buf, fds, n_fds);
}

int wire_next(const void *data, size_t length, size_t *position, struct wire_field *ret_field) {
    struct field_header header;
    size_t left;

    if (*position == length)
        return 0;
    if (*position > length || (left = length - *position) < sizeof header)
        return -EBADMSG;
    memcpy(&header, (const char *)data + *position, sizeof header);
    left -= sizeof header;
    if (header.length > left || padded_length(header.length) > left)
        return -EBADMSG;
    ret_field->tag = header.tag;
    ret_field->length = header.length;
    ret_field->data = (const char *)data + *position + sizeof header;
    *position += sizeof header + padded_length(header.length);
    return 1;
}

const char *wire_text(const struct wire_field *field) {
    const char *text = field->data;

    if (!field->length || text[field->length - 1] || memchr(text, '\0', field->length - 1))
        return NULL;
    return text;
}

int wire_u64(const struct wire_field *field, uint64_t *ret_value) {
    if (field->length != sizeof *ret_value)
        return -EBADMSG;
    memcpy(ret_value, field->data, sizeof *ret_value);
    return 0;
}

int wire_receive(int socket, struct wire_message *message) {
    ssize_t n =
        fd_receive(socket, message->bytes, sizeof message->bytes, message->fds, &message->n_fds);

    message->mapping = NULL;
    if (n <= 0) {
        message->n_fds = 0;
        if (n == -EMFILE)
            memcpy(&message->header, message->bytes, sizeof message->header);
        return n == -EMSGSIZE ? -EBADMSG : (int)n;
    }
    if ((size_t)n < sizeof message->header)
        goto malformed;
    memcpy(&message->header, message->bytes, sizeof message->header);
    message->data = message->bytes + sizeof message->header;
    message->length = (size_t)n - sizeof message->header;
    if (message->header.flags & WIRE_BODY_IN_FD) {
        if (message->length || !message->n_fds)
            goto malformed;
        auto_close int body = message->fds[0];
        message->n_fds--;
        memmove(message->fds, message->fds + 1, message->n_fds * sizeof message->fds[0]);
        int r =
            fd_map_memory_file(body, WIRE_BODY_MAX, &message->mapping, &message->mapping_length);
        if (r == -ENOMEM) {
            wire_message_done(message);
            return r;
        }
        if (r < 0)
            goto malformed;
        message->data = message->mapping;
        message->length = message->mapping_length;
    }
    return 1;

malformed:
    wire_message_done(message);
    return -EBADMSG;
}

void wire_message_done(struct wire_message *message) {
    for (size_t i = 0; i < message->n_fds; i++)
        close_fd(&message->fds[i]);
    message->n_fds = 0;
    if (message->mapping)
        munmap(message->mapping, message->mapping_length);
    message->mapping = NULL;
}

int wire_take_fd(struct wire_message *message, size_t index) {
    return index < message->n_fds ? TAKE_FD(message->fds[index]) : -EBADF;
}
