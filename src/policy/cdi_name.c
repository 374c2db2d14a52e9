/* SPDX-License-Identifier: Apache-2.0 */
/* Names of CDI, apart from the parser, which needs a library that clients do not have. */
#include <ctype.h>
#include <string.h>

#include "policy/cdi.h"

#define MAX_NAME 128

static bool is_name(const char *text, size_t length, const char *also) {
    if (!length || length > MAX_NAME || !isalnum((unsigned char)text[0]) ||
        !isalnum((unsigned char)text[length - 1]))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isascii(text[i]) || (!isalnum((unsigned char)text[i]) && !strchr(also, text[i])))
            return false;
    return true;
}

bool cdi_is_kind(const char *text, size_t length) {
    const char *slash = memchr(text, '/', length);

    return slash && is_name(text, (size_t)(slash - text), ".-_") &&
           is_name(slash + 1, length - (size_t)(slash + 1 - text), "-_");
}

bool cdi_is_name(const char *text, size_t length) {
    return is_name(text, length, "-_.:");
}

size_t cdi_kind_length(const char *name) {
    const char *equals = strchr(name, '=');

    return equals && cdi_is_kind(name, (size_t)(equals - name)) &&
                   cdi_is_name(equals + 1, strlen(equals + 1))
               ? (size_t)(equals - name)
               : 0;
}
