/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of the type multipart/form-data (RFC 7578) with the names of files, which are complete. */
#ifndef ROLLBOX_SERVE_UPLOAD_FORM_H
#define ROLLBOX_SERVE_UPLOAD_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct form {
    const char *data; /* borrowed */
    size_t length, at;
    struct buf boundary; /* with the two dashes before it */
};

struct form_part {
    struct buf name, filename; /* empty: none */
    const char *data;          /* within the body */
    size_t length;
};

/* False: the type is another one, or has no valid boundary. */
bool form_open(struct form *form, const char *type, const void *data, size_t length);
void form_done(struct form *form);
/* 1: *ret_part is the next part (form_part_done); 0: there is none; -EBADMSG. */
int form_next(struct form *form, struct form_part *ret_part);
void form_part_done(struct form_part *part);

#endif
