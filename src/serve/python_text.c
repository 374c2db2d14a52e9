/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/python_text.h"

#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/utf8.h"

enum handler { HANDLER_STRICT, HANDLER_REPLACE, HANDLER_IGNORE, HANDLER_BACKSLASH };
enum encoding { ENCODING_UTF8, ENCODING_ASCII, ENCODING_LATIN1 };

static const char *const handlers[] = { "strict", "replace", "ignore", "backslashreplace" };
static const struct {
    const char *name;
    enum encoding encoding;
} encodings[] = { { "utf-8", ENCODING_UTF8 }, { "utf8", ENCODING_UTF8 },
    { "ascii", ENCODING_ASCII }, { "us-ascii", ENCODING_ASCII }, { "latin-1", ENCODING_LATIN1 },
    { "latin1", ENCODING_LATIN1 }, { "iso-8859-1", ENCODING_LATIN1 } };

/* The length of a character at the beginning; 0: it is not valid. */
static size_t character(enum encoding encoding, const char *data, size_t length) {
    if (!((unsigned char)*data & 0x80) || encoding == ENCODING_LATIN1)
        return 1;
    for (size_t n = 2; encoding == ENCODING_UTF8 && n <= MIN(length, (size_t)4); n++)
        if (utf8_valid(data, n))
            return n;
    return 0;
}

static void add(struct buf *to, enum encoding encoding, const char *data, size_t n) {
    unsigned char c = (unsigned char)*data;

    if (encoding == ENCODING_LATIN1 && c & 0x80)
        buf_add(to, (char[]){ (char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)) }, 2);
    else
        buf_add(to, data, n);
}

enum python_text_fault python_text_decode(
    struct buf *to, const char *data, size_t length, const char *encoding, const char *errors) {
    size_t handler = 0, which = 0;

    while (handler < ARRAY_SIZE(handlers) && strcmp(handlers[handler], errors) != 0)
        handler++;
    while (which < ARRAY_SIZE(encodings) && strcasecmp(encodings[which].name, encoding) != 0)
        which++;
    if (handler == ARRAY_SIZE(handlers) || which == ARRAY_SIZE(encodings))
        return PYTHON_TEXT_UNKNOWN;
    if (encodings[which].encoding == ENCODING_UTF8 && utf8_valid(data, length)) {
        buf_add(to, data, length);
        return PYTHON_TEXT_OK;
    }
    if (encodings[which].encoding == ENCODING_UTF8 && handler == HANDLER_REPLACE) {
        utf8_replace(to, data, length);
        return PYTHON_TEXT_OK;
    }
    for (size_t i = 0; i < length;) {
        size_t n = character(encodings[which].encoding, data + i, length - i);

        if (n)
            add(to, encodings[which].encoding, data + i, n);
        else if (handler == HANDLER_STRICT)
            return PYTHON_TEXT_INVALID;
        else if (handler == HANDLER_REPLACE)
            buf_add_text(to, "\xef\xbf\xbd");
        else if (handler == HANDLER_BACKSLASH)
            buf_printf(to, "\\x%02x", (unsigned char)data[i]);
        i += n ? n : 1;
    }
    return PYTHON_TEXT_OK;
}
