/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a multipart/form-data body (RFC 7578), which is complete in memory. */
#ifndef ROLLBOX_SERVE_MULTIPART_H
#define ROLLBOX_SERVE_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#define MULTIPART_BOUNDARY_MAX 70u
#define MULTIPART_NAME_MAX 127u

struct multipart {
    char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CRLF -- BOUNDARY */
    const char *at, *end;
};

struct multipart_part {
    char name[MULTIPART_NAME_MAX + 1];
    const char *data;
    size_t length;
};

/* False: the type is another, or the body does not begin with its boundary. */
bool multipart_open(struct multipart *parts, const char *type, const char *body, size_t length);
/* False: there is no further part, or it is malformed. */
bool multipart_next(struct multipart *parts, struct multipart_part *ret);

#endif
