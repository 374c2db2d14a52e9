/* SPDX-License-Identifier: Apache-2.0 */
#include "net/client_hello.h"

#include <errno.h>
#include <string.h>

#include "net/names.h"

#define RECORD_HEADER 5u
#define RECORD_MAX 16384u
#define HANDSHAKE_HEADER 4u
#define TYPE_CLIENT_HELLO 1
#define EXTENSION_NAME 0u
#define EXTENSION_ECH 0xfe0du

/* The unread rest of a structure. A failed read makes it empty and bad. */
struct view {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static const uint8_t *take(struct view *view, size_t n) {
    if (view->bad || n > view->left) {
        *view = (struct view){ NULL, 0, true };
        return NULL;
    }
    const uint8_t *at = view->at;
    view->at += n;
    view->left -= n;
    return at;
}

static unsigned take_number(struct view *view, unsigned bytes) {
    const uint8_t *at = take(view, bytes);
    unsigned number = 0;

    for (unsigned i = 0; at && i < bytes; i++)
        number = number << 8 | at[i];
    return number;
}

/* A vector with its length before it. */
static struct view take_vector(struct view *view, unsigned length_bytes) {
    size_t length = take_number(view, length_bytes);
    const uint8_t *at = take(view, length);

    return (struct view){ at, at ? length : 0, !at };
}

/* Puts the payload of the records together. Returns 0 when the message is complete. */
static int join_records(struct view wire, uint8_t *message, size_t *ret_length) {
    size_t n = 0, total = HANDSHAKE_HEADER;

    while (wire.left) {
        if (wire.at[0] != CLIENT_HELLO_FIRST_BYTE)
            return -EBADMSG;
        if (wire.left > 1 && wire.at[1] != 3)
            return -EBADMSG;
        if (wire.left < RECORD_HEADER)
            return -EAGAIN;
        size_t length = (size_t)wire.at[3] << 8 | wire.at[4];
        if (!length || length > RECORD_MAX)
            return -EBADMSG;
        wire.at += RECORD_HEADER;
        wire.left -= RECORD_HEADER;
        size_t here = length < wire.left ? length : wire.left;
        if (here > CLIENT_HELLO_MAX - n)
            return -EMSGSIZE;
        memcpy(message + n, wire.at, here);
        n += here;
        if (n && message[0] != TYPE_CLIENT_HELLO)
            return -EBADMSG;
        if (n >= HANDSHAKE_HEADER)
            total = HANDSHAKE_HEADER + ((size_t)message[1] << 16 | message[2] << 8 | message[3]);
        if (total > CLIENT_HELLO_MAX)
            return -EMSGSIZE;
        if (n >= HANDSHAKE_HEADER && n >= total) {
            /* Early data (0-RTT) may follow, but in records of its own. */
            *ret_length = total;
            return n == total && here == length ? 0 : -EBADMSG;
        }
        wire.at += here;
        wire.left -= here;
    }
    return -EAGAIN;
}

static int read_name(struct view extension, char *ret_name) {
    struct view list = take_vector(&extension, 2);

    if (extension.bad || extension.left || !list.left)
        return -EBADMSG;
    unsigned type = take_number(&list, 1);
    struct view host = take_vector(&list, 2);
    if (list.bad || list.left || type != 0)
        return -EBADMSG; /* servers differ about lists of several names */
    if (!host.left || host.left > NAMES_MAX_LENGTH + 1 || memchr(host.at, 0, host.left))
        return -EBADMSG;
    for (size_t i = 0; i < host.left; i++) {
        char c = (char)host.at[i];

        ret_name[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    size_t length = host.left;
    if (ret_name[length - 1] == '.')
        length--;
    ret_name[length] = '\0';
    return length ? 0 : -EBADMSG;
}

static int read_extensions(struct view list, struct client_hello *ret_hello) {
    bool has_name = false;

    while (list.left) {
        unsigned type = take_number(&list, 2);
        struct view extension = take_vector(&list, 2);

        if (list.bad)
            return -EBADMSG;
        if (type == EXTENSION_ECH)
            ret_hello->has_ech = true;
        if (type != EXTENSION_NAME)
            continue;
        if (has_name || read_name(extension, ret_hello->name) < 0)
            return -EBADMSG;
        has_name = true;
    }
    return 0;
}

int client_hello_read(const void *data, size_t length, struct client_hello *ret_hello) {
    uint8_t bytes[CLIENT_HELLO_MAX];
    size_t n = 0;

    ret_hello->name[0] = '\0';
    ret_hello->has_ech = false;
    int r = join_records((struct view){ data, length, false }, bytes, &n);
    if (r == -EAGAIN && length >= CLIENT_HELLO_WIRE)
        return -EMSGSIZE;
    if (r < 0)
        return r;
    struct view message = { bytes + HANDSHAKE_HEADER, n - HANDSHAKE_HEADER, false };
    take(&message, 2 + 32); /* version, random */
    take_vector(&message, 1);
    struct view ciphers = take_vector(&message, 2);
    struct view compressions = take_vector(&message, 1);
    if (message.bad || !ciphers.left || !compressions.left)
        return -EBADMSG;
    if (!message.left)
        return 0; /* no extensions: TLS 1.2 and before may do without */
    struct view extensions = take_vector(&message, 2);
    if (message.bad || message.left)
        return -EBADMSG;
    return read_extensions(extensions, ret_hello);
}
