/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Magic, version, number of entries; for each one its tag, alias, date, type and DER; a digest.
 * Numbers are big-endian (sun.security.provider.JavaKeyStore). Only a program with a password
 * compares the digest: it is that of "changeit", which Java's own list has.
 */
#include "egress_tls/java_store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

#define MAGIC 0xfeedfeedu
#define VERSION 2
#define TRUSTED 2
#define DATE_MS 946684800000ull /* the same file each time */

static void add_number(struct buf *to, uint32_t value) {
    value = htonl(value);
    buf_add(to, &value, sizeof value);
}

static void add_text(struct buf *to, const char *text) {
    uint16_t length = htons((uint16_t)strlen(text));

    buf_add(to, &length, sizeof length);
    buf_add_text(to, text);
}

static void add_certificate(struct buf *to, uint32_t number, const unsigned char *der, int n) {
    char alias[32];

    snprintf(alias, sizeof alias, "root-%u", number);
    add_number(to, TRUSTED);
    add_text(to, alias);
    add_number(to, (uint32_t)(DATE_MS >> 32));
    add_number(to, (uint32_t)DATE_MS);
    add_text(to, "X.509");
    add_number(to, (uint32_t)n);
    buf_add(to, der, (size_t)n);
}

static int add_digest(struct buf *to, size_t begin) {
    static const char password[] = "\0c\0h\0a\0n\0g\0e\0i\0t", word[] = "Mighty Aphrodite";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool done = context != NULL && EVP_DigestInit_ex(context, EVP_sha1(), NULL) == 1 &&
                EVP_DigestUpdate(context, password, sizeof password - 1) == 1 &&
                EVP_DigestUpdate(context, word, sizeof word - 1) == 1;

    done = done && EVP_DigestUpdate(context, to->data + begin, to->length - begin) == 1 &&
           EVP_DigestFinal_ex(context, digest, &length) == 1;
    EVP_MD_CTX_free(context);
    buf_add(to, digest, length);
    return done ? 0 : -ENOMEM;
}

int java_store_write(const struct buf *pem, struct buf *to) {
    BIO *from = BIO_new_mem_buf(pem->data != NULL ? pem->data : "", (int)pem->length);
    auto_buf struct buf entries = BUF_INIT;
    size_t begin = to->length;
    uint32_t n = 0;
    X509 *root;

    while (from != NULL && (root = PEM_read_bio_X509_AUX(from, NULL, NULL, NULL)) != NULL) {
        unsigned char *der = NULL;
        int length = i2d_X509(root, &der);

        if (length > 0)
            add_certificate(&entries, ++n, der, length);
        OPENSSL_free(der);
        X509_free(root);
    }
    BIO_free(from);
    ERR_clear_error();
    add_number(to, MAGIC);
    add_number(to, VERSION);
    add_number(to, n);
    buf_add(to, entries.data, entries.length);
    if (buf_failed(&entries) || buf_failed(to))
        return -ENOMEM;
    return add_digest(to, begin);
}
