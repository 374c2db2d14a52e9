/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/side.h"

#include <errno.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

#define PIECE (16u << 10) /* TLS's largest record */

void side_init(struct side *side, int take_fd, SSL *take_ssl) {
    memset(side, 0, sizeof *side);
    side->source.fd = -1;
    side->fd = take_fd;
    side->ssl = take_ssl;
}

void side_done(struct loop *loop, struct side *side) {
    loop_remove(loop, &side->source);
    /* OpenSSL takes a session for bad whose connection ends without the notice. */
    if (side->ssl != NULL)
        SSL_set_shutdown(side->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(side->ssl);
    side->ssl = NULL;
    close_fd(&side->fd);
    if (side->out.data != NULL)
        explicit_bzero(side->out.data, side->out.capacity); /* injected headers */
    buf_done(&side->in);
    buf_done(&side->out);
}

static bool is_again(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Returns bytes, 0 for "not now", or a negative number with the state set. */
static ssize_t read_tls(struct side *side, void *to, size_t length) {
    size_t n = 0;

    ERR_clear_error();
    side->wants_write = false;
    if (SSL_read_ex(side->ssl, to, length, &n) == 1)
        return (ssize_t)n;
    switch (SSL_get_error(side->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_WANT_WRITE:
        side->wants_write = true;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        side->state = SIDE_EOF;
        return -1;
    default:
        side->state = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING
                          ? SIDE_CUT
                          : SIDE_BROKEN;
        return -1;
    }
}

static ssize_t read_plain(struct side *side, void *to, size_t length) {
    ssize_t n = read(side->fd, to, length);

    if (n > 0)
        return n;
    if (n < 0 && is_again(errno))
        return 0;
    side->state = n == 0 ? SIDE_EOF : SIDE_BROKEN;
    return -1;
}

bool side_read(struct side *side) {
    bool any = false;

    while (side->state == SIDE_OPEN && side->in.length < SIDE_IN) {
        void *to = buf_reserve(&side->in, PIECE);
        ssize_t n;

        if (to == NULL) {
            side->state = SIDE_BROKEN;
            break;
        }
        n = side->ssl != NULL ? read_tls(side, to, PIECE) : read_plain(side, to, PIECE);
        if (n <= 0)
            return any || n < 0;
        side->in.length += (size_t)n;
        side->received += (size_t)n;
        any = true;
    }
    return any;
}

static ssize_t write_tls(struct side *side, const void *data, size_t length) {
    size_t n = 0;
    int error;

    ERR_clear_error();
    if (SSL_write_ex(side->ssl, data, length, &n) == 1)
        return (ssize_t)n;
    error = SSL_get_error(side->ssl, 0);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static ssize_t write_plain(struct side *side, const void *data, size_t length) {
    ssize_t n = send(side->fd, data, length, MSG_NOSIGNAL);

    return n < 0 && is_again(errno) ? 0 : n;
}

bool side_write(struct side *side) {
    bool any = false;

    while (!side->cannot_send && side_unsent(side) > 0) {
        const char *data = side->out.data + side->sent;
        size_t length = MIN(side_unsent(side), (size_t)(4 * PIECE));
        ssize_t n =
            side->ssl != NULL ? write_tls(side, data, length) : write_plain(side, data, length);

        if (n < 0)
            side->cannot_send = true;
        if (n <= 0)
            break;
        side->sent += (size_t)n;
        side->written += (size_t)n;
        any = true;
    }
    if (side->cannot_send || side_unsent(side) == 0)
        side->sent = side->out.length = 0;
    else if (side->sent >= SIDE_OUT) {
        memmove(side->out.data, side->out.data + side->sent, side_unsent(side));
        side->out.length -= side->sent;
        side->sent = 0;
    }
    return any;
}

void side_consume(struct side *side, size_t length) {
    if (length == 0)
        return;
    memmove(side->in.data, side->in.data + length, side->in.length - length);
    side->in.length -= length;
}

bool side_has_pending(const struct side *side) {
    return side->ssl != NULL && side->state == SIDE_OPEN && SSL_has_pending(side->ssl);
}

void side_set_reset(struct side *side, bool resets) {
    const struct linger linger = { .l_onoff = resets, .l_linger = 0 };

    (void)setsockopt(side->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

void side_shutdown(struct side *side, bool with_notice) {
    if (with_notice && side->ssl != NULL && SSL_is_init_finished(side->ssl) &&
        side->state != SIDE_BROKEN) {
        ERR_clear_error();
        (void)SSL_shutdown(side->ssl);
    }
    (void)shutdown(side->fd, SHUT_WR);
}
