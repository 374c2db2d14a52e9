/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Returns the length of the sequence at p, and sets *ret_ok. An ill-formed sequence has the length
 * of its longest part that could begin a well-formed one (at least 1). Unicode recommends to
 * replace that part by one character. */
static size_t sequence_length(const unsigned char *p, size_t left, bool *ret_ok) {
    unsigned char low = 0x80, high = 0xbf;
    size_t n;

    *ret_ok = true;
    if (p[0] < 0x80)
        return 1;
    *ret_ok = false;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        n = 2;
    else if (p[0] >= 0xe0 && p[0] <= 0xef)
        n = 3;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        n = 4;
    else
        return 1;
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    for (size_t i = 1; i < n; i++) {
        if (i >= left || p[i] < low || p[i] > high)
            return i;
        low = 0x80;
        high = 0xbf;
    }
    *ret_ok = true;
    return n;
}

bool utf8_valid(const void *data, size_t length) {
    const unsigned char *p = data;
    bool ok = true;

    for (size_t i = 0; i < length && ok;)
        i += sequence_length(p + i, length - i, &ok);
    return ok;
}

void utf8_replace(struct buf *to, const void *data, size_t length) {
    const unsigned char *p = data;
    size_t start = 0;

    for (size_t i = 0; i < length;) {
        bool ok;
        size_t n = sequence_length(p + i, length - i, &ok);

        if (!ok) {
            buf_add(to, p + start, i - start);
            buf_add(to, "\xef\xbf\xbd", 3);
            start = i + n;
        }
        i += n;
    }
    buf_add(to, p + start, length - start);
}

void base64_encode(struct buf *to, const void *data, size_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;

    for (size_t i = 0; i < length; i += 3) {
        uint32_t word = (uint32_t)p[i] << 16 | (i + 1 < length ? (uint32_t)p[i + 1] << 8 : 0) |
                        (i + 2 < length ? p[i + 2] : 0);
        char out[4] = { digits[word >> 18], digits[word >> 12 & 63],
            i + 1 < length ? digits[word >> 6 & 63] : '=',
            i + 2 < length ? digits[word & 63] : '=' };
        buf_add(to, out, 4);
    }
}

/* ---- control characters of terminals ---- */

/* The character of a well-formed sequence. */
static uint32_t character_of(const unsigned char *p, size_t n) {
    uint32_t c = n == 1 ? p[0] : p[0] & (0xff >> (n + 1));

    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3f);
    return c;
}

/* Unicode's characters for right-to-left text and its line separators other than the line feed.
 * They change how the surrounding text is displayed. */
static bool is_layout(uint32_t c) {
    static const uint32_t ranges[][2] = { { 0x61c, 0x61c }, { 0x200e, 0x200f }, { 0x2028, 0x202e },
        { 0x2066, 0x206f }, { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb } };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

static bool is_control(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0);
}

/* All control and layout characters begin with one of these bytes, so text without them is not
 * examined. */
static bool may_act(unsigned char byte) {
    switch (byte) {
    case 0x7f:
    case 0xc2:
    case 0xd8:
    case 0xe2:
    case 0xef:
        return true;
    default:
        return byte < 0x20;
    }
}

void utf8_shown(struct buf *to, const void *text, size_t length, const char *allowed) {
    const unsigned char *p = text;

    for (size_t i = 0; i < length;) {
        bool ok;
        size_t n = sequence_length(p + i, length - i, &ok);
        uint32_t c = ok ? character_of(p + i, n) : 0;

        if (!ok)
            for (size_t k = 0; k < n; k++)
                buf_printf(to, "\\x%02x", p[i + k]);
        else if (is_control(c) && !(c && c < 0x80 && strchr(allowed, (int)c)))
            buf_printf(to, "\\x%02x", (unsigned)c);
        else if (is_layout(c))
            buf_printf(to, "\\u%04x", (unsigned)c);
        else
            buf_add(to, p + i, n);
        i += n;
    }
}

/* ---- JSON ---- */

static void json_escape(struct buf *to, unsigned char c) {
    static const char hex[] = "0123456789abcdef";
    char text[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
    size_t length = 2;

    switch (c) {
    case '"':
    case '\\':
        text[1] = (char)c;
        break;
    case '\n':
        text[1] = 'n';
        break;
    case '\t':
        text[1] = 't';
        break;
    case '\r':
        text[1] = 'r';
        break;
    default:
        length = sizeof text;
        break;
    }
    buf_add(to, text, length);
}

/* The length of the character at p if it must be written as an escape, else 0. p is valid UTF-8. */
static size_t control_sequence_length(const unsigned char *p, uint32_t *ret_c) {
    bool ok;
    size_t n = may_act(*p) ? sequence_length(p, 4, &ok) : 0;

    if (!n || n > 3)
        return 0;
    *ret_c = character_of(p, n);
    return is_layout(*ret_c) || (is_control(*ret_c) && *ret_c >= 0x7f) ? n : 0;
}

static void escape_character(struct buf *to, uint32_t c) {
    static const char hex[] = "0123456789abcdef";
    char text[6] = { '\\', 'u', hex[c >> 12 & 15], hex[c >> 8 & 15], hex[c >> 4 & 15],
        hex[c & 15] };

    buf_add(to, text, sizeof text);
}

/* `data` is valid UTF-8. */
static void json_quote(struct buf *to, const unsigned char *data, size_t length) {
    size_t start = 0;

    buf_add(to, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = data[i];
        uint32_t character;
        size_t n;

        if (c < 0x20 || c == '"' || c == '\\') {
            buf_add(to, data + start, i - start);
            json_escape(to, c);
            start = i + 1;
        } else if (c >= 0x7f && (n = control_sequence_length(data + i, &character))) {
            buf_add(to, data + start, i - start);
            escape_character(to, character);
            start = i + n;
            i += n - 1;
        }
    }
    if (start < length)
        buf_add(to, data + start, length - start);
    buf_add(to, "\"", 1);
}

void utf8_json_shown(struct buf *to, const void *text, size_t length) {
    const unsigned char *p = text;

    for (size_t i = 0; i < length;) {
        bool ok;
        size_t n = sequence_length(p + i, length - i, &ok);
        uint32_t c = ok ? character_of(p + i, n) : 0xfffd;

        if (!ok || is_layout(c) || (c >= 0x7f && is_control(c)))
            escape_character(to, c);
        else
            buf_add(to, p + i, n);
        i += n;
    }
}

bool utf8_json(struct buf *to, const void *data, size_t length) {
    auto_buf struct buf replaced = BUF_INIT;

    if (!length || utf8_valid(data, length)) {
        json_quote(to, data, length);
        return true;
    }
    utf8_replace(&replaced, data, length);
    if (buf_failed(&replaced))
        to->failed = true;
    else
        json_quote(to, (const unsigned char *)replaced.data, replaced.length);
    return false;
}

void json_add_string(struct buf *to, const void *data, size_t length) {
    if (data)
        (void)utf8_json(to, data, length);
    else
        buf_add_text(to, "null");
}

static int digit_value(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+')
        return 62;
    return c == '/' ? 63 : -1;
}

int base64_decode(const char *text, size_t length, struct buf *to) {
    if (length % 4)
        return -EBADMSG;
    for (size_t i = 0; i < length; i += 4) {
        unsigned padding = text[i + 3] == '=';
        uint32_t bits = 0;

        if (padding && text[i + 2] == '=')
            padding = 2;
        if (padding && i + 4 != length)
            return -EBADMSG;
        for (unsigned k = 0; k < 4; k++) {
            int value = k >= 4 - padding ? 0 : digit_value(text[i + k]);

            if (value < 0)
                return -EBADMSG;
            bits = bits << 6 | (uint32_t)value;
        }
        const unsigned char bytes[3] = { (unsigned char)(bits >> 16), (unsigned char)(bits >> 8),
            (unsigned char)bits };
        buf_add(to, bytes, 3 - padding);
    }
    return buf_failed(to) ? -ENOMEM : 0;
}
