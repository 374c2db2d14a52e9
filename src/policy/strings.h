/* SPDX-License-Identifier: Apache-2.0 */
/* A list of texts. */
#ifndef ROLLBOX_POLICY_STRINGS_H
#define ROLLBOX_POLICY_STRINGS_H

#include <stddef.h>

struct policy_strings {
    char **items; /* NULL-terminated, or NULL if empty */
    size_t n;
};

#endif
