/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

bool multipart_open(struct multipart *parts, const char *type, const char *body, size_t length) {
    const char *value = type ? strcasestr(type, "boundary=") : NULL;
    size_t n;

    if (!value || strncasecmp(type, "multipart/form-data", 19) != 0 || !body)
        return false;
    value += 9;
    if (*value == '"') {
        value++;
        n = strcspn(value, "\"");
    } else {
        n = strcspn(value, "; \t");
    }
    if (!n || n > MULTIPART_BOUNDARY_MAX)
        return false;
    (void)snprintf(parts->delimiter, sizeof parts->delimiter, "\r\n--%.*s", (int)n, value);
    n += 2;
    parts->end = body + length;
    /* The first has no end of a line before it. */
    if (length < n || memcmp(body, parts->delimiter + 2, n) != 0)
        return false;
    parts->at = body + n;
    return true;
}

/* The value of name="..." of a Content-Disposition line. */
static bool take_name(const char *line, size_t length, char name[MULTIPART_NAME_MAX + 1]) {
    static const char key[] = "; name=\"";
    const char *at = memmem(line, length, key, sizeof key - 1);
    const char *from = at ? at + sizeof key - 1 : NULL;
    const char *to = from ? memchr(from, '"', (size_t)(line + length - from)) : NULL;

    if (!to || (size_t)(to - from) > MULTIPART_NAME_MAX)
        return false;
    memcpy(name, from, (size_t)(to - from));
    name[to - from] = '\0';
    return true;
}

bool multipart_next(struct multipart *parts, struct multipart_part *ret) {
    static const char header[] = "Content-Disposition:";
    size_t n_delimiter = strlen(parts->delimiter);
    bool has_name = false;

    if (parts->end - parts->at < 2 || memcmp(parts->at, "\r\n", 2) != 0)
        return false; /* "--": the end */
    for (parts->at += 2;;) {
        char *end = memmem(parts->at, (size_t)(parts->end - parts->at), "\r\n", 2);

        if (!end)
            return false;
        size_t n = (size_t)(end - parts->at);
        const char *line = parts->at;
        parts->at = end + 2;
        if (!n)
            break;
        if (n >= sizeof header - 1 && !strncasecmp(line, header, sizeof header - 1))
            has_name = take_name(line, n, ret->name);
    }
    char *end = memmem(parts->at, (size_t)(parts->end - parts->at), parts->delimiter, n_delimiter);
    if (!end || !has_name)
        return false;
    ret->data = parts->at;
    ret->length = (size_t)(end - parts->at);
    parts->at = end + n_delimiter;
    return true;
}
