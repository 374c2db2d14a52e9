/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that a client has compressed (Content-Encoding: gzip), by zlib. */
#ifndef ROLLBOX_SERVE_INFLATE_H
#define ROLLBOX_SERVE_INFLATE_H

#include <stddef.h>

#include "base/buf.h"

/* Appends at most that many bytes. 0; -EBADMSG: it is malformed or incomplete; -EFBIG: it has more
 * bytes; -ENOMEM. */
int inflate_gzip(const void *data, size_t length, size_t most, struct buf *to);

#endif
