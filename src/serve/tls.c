/* SPDX-License-Identifier: Apache-2.0 */
/* TLS sessions; tls.h has the model. */
#include "serve/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct tls {
    struct tls_files files;
    SSL_CTX *context;
};

struct tls_session {
    SSL *ssl;
    bool wants_write, is_broken;
};

/* HTTP/1.1 is the only protocol. A client that offers others alone is refused. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_length,
    const unsigned char *in, unsigned in_length, void *data) {
    static const unsigned char known[] = "\x08http/1.1";
    unsigned char *chosen;

    (void)ssl;
    (void)data;
    if (SSL_select_next_proto(&chosen, out_length, known, sizeof known - 1, in, in_length) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int fail(SSL_CTX *context, const char *what, const char *path, char **ret_why) {
    unsigned long code = ERR_peek_last_error();
    const char *reason = ERR_GET_LIB(code) == ERR_LIB_SYS ? strerror(ERR_GET_REASON(code))
                                                          : ERR_reason_error_string(code);

    if (ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH)
        reason = "it does not belong to the certificate";
    if (asprintf(ret_why, "%s %s: %s", what, path, reason ? reason : "out of memory") < 0)
        *ret_why = NULL;
    ERR_clear_error();
    SSL_CTX_free(context);
    return -EINVAL;
}

/* An encrypted key has no one who could type its password: it is refused. */
static int no_password(char *to, int size, int writes, void *data) {
    (void)to;
    (void)size;
    (void)writes;
    (void)data;
    return -1;
}

static int load(const struct tls_files *files, SSL_CTX **ret_context, char **ret_why) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());

    *ret_why = NULL;
    ERR_clear_error();
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1)
        return fail(context, "cannot set up TLS with", files->certificate, ret_why);
    SSL_CTX_set_options(
        context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* Without buffers an idle connection takes a third of its memory. */
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(context, no_password);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    if (SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1)
        return fail(context, "cannot use the certificate", files->certificate, ret_why);
    if (SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) != 1)
        return fail(context, "cannot use the key", files->key, ret_why);
    if (SSL_CTX_check_private_key(context) != 1)
        return fail(context, "cannot use the certificate", files->certificate, ret_why);
    if (files->client_ca) {
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(files->client_ca);

        if (!names || SSL_CTX_load_verify_locations(context, files->client_ca, NULL) != 1) {
            sk_X509_NAME_pop_free(names, X509_NAME_free);
            return fail(
                context, "cannot use the authorities of clients", files->client_ca, ret_why);
        }
        SSL_CTX_set_client_CA_list(context, names);
        SSL_CTX_set_verify(context,
            SSL_VERIFY_PEER | (files->client_required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
        SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(context, 0);
    }
    *ret_context = context;
    return 0;
}

int tls_new(const struct tls_files *files, struct tls **ret_tls, char **ret_why) {
    struct tls *tls = calloc(1, sizeof *tls);

    *ret_why = NULL;
    if (!tls)
        return -ENOMEM;
    tls->files = *files;
    int r = load(files, &tls->context, ret_why);
    if (r < 0)
        free(tls);
    else
        *ret_tls = tls;
    return r;
}

int tls_reload(struct tls *tls, char **ret_why) {
    SSL_CTX *context;
    int r = load(&tls->files, &context, ret_why);

    if (r < 0)
        return r;
    /* Sessions have their own references. */
    SSL_CTX_free(tls->context);
    tls->context = context;
    return 0;
}

struct tls_session *tls_session_new(struct tls *tls, int fd) {
    struct tls_session *session = calloc(1, sizeof *session);

    if (session)
        session->ssl = SSL_new(tls->context);
    if (!session || !session->ssl || SSL_set_fd(session->ssl, fd) != 1)
        return tls_session_free(session);
    SSL_set_accept_state(session->ssl);
    return session;
}

struct tls_session *tls_session_free(struct tls_session *session) {
    if (session)
        SSL_free(session->ssl);
    free(session);
    return NULL;
}

ssize_t tls_read(struct tls_session *session, void *to, size_t length) {
    size_t n = 0;

    ERR_clear_error();
    session->wants_write = false;
    if (SSL_read_ex(session->ssl, to, length, &n) == 1)
        return (ssize_t)n;
    switch (SSL_get_error(session->ssl, 0)) {
    case SSL_ERROR_WANT_WRITE:
        session->wants_write = true;
        return -EAGAIN;
    case SSL_ERROR_WANT_READ:
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        session->is_broken = true;
        ERR_clear_error();
        return -EPROTO;
    }
}

ssize_t tls_write(struct tls_session *session, const void *data, size_t length) {
    size_t n = 0;

    ERR_clear_error();
    if (SSL_write_ex(session->ssl, data, length, &n) == 1)
        return (ssize_t)n;
    int error = SSL_get_error(session->ssl, 0);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    session->is_broken = true;
    ERR_clear_error();
    return -EPROTO;
}

void tls_end(struct tls_session *session) {
    if (!session->is_broken && SSL_is_init_finished(session->ssl))
        (void)SSL_shutdown(session->ssl);
    ERR_clear_error();
}

bool tls_wants_write(const struct tls_session *session) {
    return session->wants_write;
}

static const ASN1_IA5STRING *text_of(const GENERAL_NAME *name, const char **ret_kind) {
    switch (name->type) {
    case GEN_DNS:
        *ret_kind = "DNS";
        return name->d.dNSName;
    case GEN_URI:
        *ret_kind = "URI";
        return name->d.uniformResourceIdentifier;
    case GEN_EMAIL:
        *ret_kind = "email";
        return name->d.rfc822Name;
    default:
        return NULL;
    }
}

bool tls_peer_is(
    struct tls_session *session, bool (*name)(const char *name, void *data), void *data) {
    X509 *certificate = SSL_get0_peer_certificate(session->ssl);
    bool found = false;

    if (!certificate || SSL_get_verify_result(session->ssl) != X509_V_OK)
        return false;
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names && !found && i < sk_GENERAL_NAME_num(names); i++) {
        const char *kind;
        const ASN1_IA5STRING *text = text_of(sk_GENERAL_NAME_value(names, i), &kind);
        const char *bytes = text ? (const char *)ASN1_STRING_get0_data(text) : NULL;
        auto_free char *one = NULL;

        /* A NUL within would make two names of one. */
        if (bytes &&
            strnlen(bytes, (size_t)ASN1_STRING_length(text)) == (size_t)ASN1_STRING_length(text) &&
            asprintf(&one, "%s:%.*s", kind, ASN1_STRING_length(text), bytes) >= 0)
            found = name(one, data);
    }
    GENERAL_NAMES_free(names);
    return found;
}
