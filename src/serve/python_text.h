/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as text by the names that Python has for encodings and error handlers. */
#ifndef ROLLBOX_SERVE_PYTHON_TEXT_H
#define ROLLBOX_SERVE_PYTHON_TEXT_H

#include "base/buf.h"

enum python_text_fault {
    PYTHON_TEXT_OK,
    PYTHON_TEXT_UNKNOWN, /* the encoding, or the error handler */
    PYTHON_TEXT_INVALID, /* the bytes, with the handler "strict" */
};

/* Appends the text as UTF-8. Encodings: utf-8, ascii, latin-1. Handlers: strict, replace, ignore,
 * backslashreplace. */
enum python_text_fault python_text_decode(
    struct buf *to, const char *data, size_t length, const char *encoding, const char *errors);

#endif
