/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The certificate authority of a store, in whose name the gateway answers for the hosts of rules
 * that terminate TLS. Sandboxes trust it, and nothing else does.
 *
 * It is valid from 1970 to 2199, as are its certificates, because a sandbox's clock may show any
 * time. One authority serves all engines of a store, since programs of a hibernated sandbox keep
 * its certificate in memory.
 */
#ifndef ROLLBOX_EGRESS_TLS_CA_H
#define ROLLBOX_EGRESS_TLS_CA_H

#include <openssl/ssl.h>

#include "base/buf.h"

/* Makes DIR/key.pem (0600), DIR/cert.pem and DIR/bundle.pem: the host's roots and cert.pem. An
 * authority that exists is kept; the bundle follows the host's roots. Prints what fails. Returns
 * the exit status. */
int ca_make(const char *directory);

struct ca;

/* From PEM. NULL: not an authority's key and certificate. */
struct ca *ca_new(const struct buf *key, const struct buf *certificate);
struct ca *ca_free(struct ca *ca);

/* The context of servers for a host's name, or address, with a certificate for it; owned by `ca`,
 * until other hosts replace it: SSL_new keeps it. `setup` is called once for each. NULL: out of
 * memory. */
SSL_CTX *ca_context(struct ca *ca, const char *name, void (*setup)(SSL_CTX *));

#endif
