/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates in the form in which each Java program reads those that it trusts: a file of the
 * type JKS, which needs no password to be read. */
#ifndef ROLLBOX_EGRESS_TLS_JAVA_STORE_H
#define ROLLBOX_EGRESS_TLS_JAVA_STORE_H

#include "base/buf.h"

/* Appends all certificates of the PEM text. 0 or -ENOMEM. */
int java_store_write(const struct buf *pem, struct buf *to);

#endif
