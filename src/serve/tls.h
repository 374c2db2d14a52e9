/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of the server's TCP connections, by OpenSSL: 1.2 and 1.3, without renegotiation.
 *
 * A `struct tls` is a certificate with its key, and the authorities whose client certificates are
 * accepted. tls_reload reads the files again; sessions that exist keep what they have. Client
 * certificates are checked in every handshake: there is no resumption where they are accepted, so
 * an expired one cannot come back by a ticket.
 */
#ifndef ROLLBOX_SERVE_TLS_H
#define ROLLBOX_SERVE_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls;
struct tls_session;

struct tls_files {
    const char *certificate; /* PEM, with its chain */
    const char *key;
    const char *client_ca; /* NULL: no client certificates */
    bool client_required;  /* a client without a certificate is refused */
};

/* 0, or -EINVAL with *ret_why, a text for the operator that the caller frees. */
int tls_new(const struct tls_files *files, struct tls **ret_tls, char **ret_why);
/* The same for a running server. On failure the server keeps its certificates. */
int tls_reload(struct tls *tls, char **ret_why);

/* The session of an accepted, non-blocking socket; NULL when out of memory. */
struct tls_session *tls_session_new(struct tls *tls, int fd);
struct tls_session *tls_session_free(struct tls_session *session);
/* Bytes, 0 at the end, -EAGAIN (see tls_wants_write), or -EPROTO. The first reads do the
 * handshake. */
ssize_t tls_read(struct tls_session *session, void *to, size_t length);
ssize_t tls_write(struct tls_session *session, const void *data, size_t length);
/* Tells the client that nothing more follows. */
void tls_end(struct tls_session *session);
/* Whether the last tls_read waits for room to write. */
bool tls_wants_write(const struct tls_session *session);

/* Calls `name` with each "DNS:NAME", "URI:NAME" and "email:NAME" of the client's verified
 * certificate until one call returns true. False: none did, or there is no certificate. */
bool tls_peer_is(
    struct tls_session *session, bool (*name)(const char *name, void *data), void *data);

#endif
