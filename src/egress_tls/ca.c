/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/ca.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/list.h"
#include "egress_tls/java_store.h"

#define MAX_ROOTS (16u << 20)
#define MAX_CONTEXTS 512 /* a few kilobytes each */

static const char *const root_files[] = {
    "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Alpine */
    "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
    "/etc/ssl/ca-bundle.pem",             /* SUSE */
    "/etc/ssl/cert.pem",
};

static bool set_validity(X509 *certificate) {
    return ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), "700101000000Z") == 1 &&
           ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), "21991231235959Z") == 1;
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value) {
    X509V3_CTX context;
    X509_EXTENSION *extension;
    int result;

    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    if (extension == NULL)
        return false;
    result = X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    return result == 1;
}

static bool set_serial(X509 *certificate) {
    unsigned char bytes[16];
    BIGNUM *number;
    bool done;

    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    bytes[0] &= 0x7f;
    number = BN_bin2bn(bytes, sizeof bytes, NULL);
    done = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return done;
}

/* Begins a certificate, of an authority or of a leaf. */
static X509 *begin_certificate(EVP_PKEY *key, const char *common_name) {
    X509 *certificate = X509_new();
    X509_NAME *name = certificate != NULL ? X509_get_subject_name(certificate) : NULL;

    if (name != NULL && X509_set_version(certificate, X509_VERSION_3) == 1 &&
        set_serial(certificate) && set_validity(certificate) &&
        X509_set_pubkey(certificate, key) == 1 &&
        X509_NAME_add_entry_by_txt(
            name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name, -1, -1, 0) == 1)
        return certificate;
    X509_free(certificate);
    return NULL;
}

static X509 *make_authority(EVP_PKEY *key) {
    X509 *certificate = begin_certificate(key, "rollbox sandbox CA");

    if (certificate != NULL &&
        X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
        add_extension(
            certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
        X509_sign(certificate, key, EVP_sha256()) > 0)
        return certificate;
    X509_free(certificate);
    return NULL;
}

/* Writes a file of a directory and syncs it: an engine that starts after a crash must not find half
 * a key. */
static int write_file(int directory, const char *name, mode_t mode, const char *data, size_t n) {
    auto_close int fd =
        openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    int result = fd < 0 ? -errno : fd_write_all(fd, data, n);

    if (result == 0 && fsync(fd) < 0)
        result = -errno;
    return result;
}

static int write_pem(int directory, const char *name, mode_t mode, BIO *pem) {
    char *data;
    long length = BIO_get_mem_data(pem, &data);

    return write_file(directory, name, mode, data, (size_t)length);
}

static int fill_directory(int directory) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = key != NULL ? make_authority(key) : NULL;
    BIO *key_pem = BIO_new(BIO_s_secmem()), *certificate_pem = BIO_new(BIO_s_mem());
    int result = -ENOMEM;

    if (certificate != NULL && key_pem != NULL && certificate_pem != NULL &&
        PEM_write_bio_PKCS8PrivateKey(key_pem, key, NULL, NULL, 0, NULL, NULL) == 1 &&
        PEM_write_bio_X509(certificate_pem, certificate) == 1) {
        result = write_pem(directory, "key.pem", 0600, key_pem);
        if (result == 0)
            result = write_pem(directory, "cert.pem", 0644, certificate_pem);
    }
    BIO_free(key_pem);
    BIO_free(certificate_pem);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return result;
}

static void remove_half(int parent, const char *name) {
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (directory >= 0) {
        (void)unlinkat(directory, "key.pem", 0);
        (void)unlinkat(directory, "cert.pem", 0);
        close(directory);
    }
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

/* The directory is complete when it has its name. Of two processes that make one, the first to
 * rename wins. */
static int make_directory(const char *path) {
    auto_free char *half = NULL;
    auto_close int directory = -EBADF;
    int result;

    if (asprintf(&half, "%s.%d", path, (int)getpid()) < 0)
        return -ENOMEM;
    remove_half(AT_FDCWD, half);
    if (mkdir(half, 0755) < 0)
        return -errno;
    directory = open(half, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    result = directory < 0 ? -errno : fill_directory(directory);
    if (result == 0 && rename(half, path) < 0 && errno != ENOTEMPTY && errno != EEXIST)
        result = -errno;
    remove_half(AT_FDCWD, half);
    return result;
}

static int read_roots(struct buf *to) {
    for (size_t i = 0; i < ARRAY_SIZE(root_files); i++)
        if (fd_read_file(root_files[i], MAX_ROOTS, to) == 0)
            return 0;
    return 0; /* a host without roots can still reach hosts with "to" */
}

/* The file has its name when it is complete. */
static int replace_file(int directory, const char *name, const struct buf *content) {
    auto_free char *half = NULL;
    int result;

    if (asprintf(&half, "%s.%d", name, (int)getpid()) < 0)
        return -ENOMEM;
    result = write_file(directory, half, 0644, content->data, content->length);
    if (result == 0 && renameat(directory, half, directory, name) < 0)
        result = -errno;
    if (result < 0)
        (void)unlinkat(directory, half, 0);
    return result;
}

static int write_bundles(int directory, const struct buf *pem) {
    auto_buf struct buf java = BUF_INIT;
    int result = java_store_write(pem, &java);

    if (result == 0)
        result = replace_file(directory, "bundle.jks", &java);
    return result == 0 ? replace_file(directory, "bundle.pem", pem) : result;
}

static int write_bundle(int directory) {
    auto_buf struct buf bundle = BUF_INIT, before = BUF_INIT;
    auto_close int certificate = openat(directory, "cert.pem", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    auto_close int old = openat(directory, "bundle.pem", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int result = certificate < 0 ? -errno : read_roots(&bundle);

    if (result == 0 && bundle.length > 0 && bundle.data[bundle.length - 1] != '\n')
        buf_add(&bundle, "\n", 1);
    if (result == 0)
        result = fd_read_all(certificate, MAX_ROOTS, &bundle);
    if (result < 0)
        return result;
    if (old >= 0 && faccessat(directory, "bundle.jks", F_OK, 0) == 0 &&
        fd_read_all(old, MAX_ROOTS * 2, &before) == 0 && before.length == bundle.length &&
        memcmp(before.data, bundle.data, bundle.length) == 0)
        return 0;
    return write_bundles(directory, &bundle);
}

int ca_make(const char *path) {
    auto_close int directory = -EBADF;
    int result = 0;

    umask(022);
    directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (directory < 0 || faccessat(directory, "cert.pem", F_OK, 0) < 0) {
        close_fd(&directory);
        result = make_directory(path);
        directory = result == 0 ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : -1;
    }
    if (result == 0 && directory < 0)
        result = -errno;
    if (result == 0)
        result = write_bundle(directory);
    if (result < 0)
        fprintf(stderr, "rollbox-egress-tls: cannot make the certificate authority %s: %s\n", path,
            strerror(-result));
    return result < 0;
}

struct context {
    struct list node;
    char *name;
    SSL_CTX *ssl;
};

struct ca {
    EVP_PKEY *key;
    X509 *certificate;
    /* All leaves have one key: an attacker with it controls the process, and so has the authority's
     * key. */
    EVP_PKEY *leaf_key;
    struct list contexts; /* the last used first */
    size_t n_contexts;
};

static struct context *context_free(struct context *context) {
    list_remove(&context->node);
    SSL_CTX_free(context->ssl);
    free(context->name);
    free(context);
    return NULL;
}

struct ca *ca_free(struct ca *ca) {
    if (ca == NULL)
        return NULL;
    while (!list_empty(&ca->contexts))
        context_free(container_of(ca->contexts.next, struct context, node));
    EVP_PKEY_free(ca->key);
    EVP_PKEY_free(ca->leaf_key);
    X509_free(ca->certificate);
    free(ca);
    return NULL;
}

struct ca *ca_new(const struct buf *key, const struct buf *certificate) {
    struct ca *ca = calloc(1, sizeof *ca);
    BIO *key_pem = BIO_new_mem_buf(key->data, (int)key->length);
    BIO *certificate_pem = BIO_new_mem_buf(certificate->data, (int)certificate->length);

    if (ca != NULL) {
        list_init(&ca->contexts);
        ca->key = PEM_read_bio_PrivateKey(key_pem, NULL, NULL, NULL);
        ca->certificate = PEM_read_bio_X509(certificate_pem, NULL, NULL, NULL);
        ca->leaf_key = EVP_EC_gen("P-256");
    }
    BIO_free(key_pem);
    BIO_free(certificate_pem);
    if (ca != NULL && (ca->key == NULL || ca->certificate == NULL || ca->leaf_key == NULL ||
                          X509_check_private_key(ca->certificate, ca->key) != 1))
        return ca_free(ca);
    return ca;
}

static X509 *make_leaf(struct ca *ca, const char *name) {
    unsigned char address[16];
    bool is_address =
        inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
    auto_free char *alternative = NULL;
    X509 *leaf;

    /* A common name has 64 characters at the most; clients look at the alternative name alone. */
    leaf = begin_certificate(ca->leaf_key, strlen(name) <= 64 ? name : "rollbox");
    if (leaf == NULL)
        return NULL;
    if (asprintf(&alternative, "%s:%s", is_address ? "IP" : "DNS", name) > 0 &&
        X509_set_issuer_name(leaf, X509_get_subject_name(ca->certificate)) == 1 &&
        add_extension(leaf, ca->certificate, NID_subject_alt_name, alternative) &&
        add_extension(leaf, ca->certificate, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(leaf, ca->certificate, NID_key_usage, "critical,digitalSignature") &&
        add_extension(leaf, ca->certificate, NID_ext_key_usage, "serverAuth") &&
        add_extension(leaf, ca->certificate, NID_authority_key_identifier, "keyid:always") &&
        X509_sign(leaf, ca->key, EVP_sha256()) > 0)
        return leaf;
    X509_free(leaf);
    return NULL;
}

static SSL_CTX *make_context(struct ca *ca, const char *name, void (*setup)(SSL_CTX *)) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    X509 *leaf = make_leaf(ca, name);
    bool done = context != NULL && leaf != NULL && SSL_CTX_use_certificate(context, leaf) == 1 &&
                SSL_CTX_use_PrivateKey(context, ca->leaf_key) == 1 &&
                SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1;

    X509_free(leaf);
    if (done) {
        setup(context);
        return context;
    }
    SSL_CTX_free(context);
    return NULL;
}

SSL_CTX *ca_context(struct ca *ca, const char *name, void (*setup)(SSL_CTX *)) {
    struct context *context;

    list_for_each(node, &ca->contexts) {
        context = container_of(node, struct context, node);
        if (strcmp(context->name, name) != 0)
            continue;
        list_remove(&context->node);
        list_add_tail(ca->contexts.next, &context->node);
        return context->ssl;
    }
    context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    list_add_tail(ca->contexts.next, &context->node);
    context->name = strdup(name);
    context->ssl = context->name != NULL ? make_context(ca, name, setup) : NULL;
    if (context->ssl == NULL) {
        context_free(context);
        return NULL;
    }
    if (++ca->n_contexts > MAX_CONTEXTS) {
        context_free(container_of(ca->contexts.prev, struct context, node));
        ca->n_contexts--;
    }
    return context->ssl;
}
