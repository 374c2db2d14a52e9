/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a message into a line. Text that did not come from rollbox (arguments, paths, streams)
 * passes the redaction rules before any other processing, hashing included, because a digest of a
 * secret would help to guess it.
 *
 * A content is {"bytes", "sha256", "text" or "base64"}. "truncated" marks content longer than the
 * kept part. "withheld" replaces content to which the rules could not be applied.
 */
#include <errno.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "base/wire.h"
#include "record/record.h"

#define MAX_DEPTH 8
#define MAX_REDACT (64u << 20) /* larger contents are withheld where there are rules */
#define MAX_HASH                                                                                   \
    (1ull << 30) /* larger contents have no digest, because computing it would delay other lines   \
                  */
#define CHUNK 65536

static json_t *text_or_base64(const char *data, size_t length) {
    auto_buf struct buf encoded = BUF_INIT;

    if (utf8_valid(data, length))
        return json_stringn_nocheck(length ? data : "", length);
    base64_encode(&encoded, data, length);
    return buf_failed(&encoded) ? NULL : json_pack("{s:s}", "base64", encoded.data);
}

static json_t *others_text(const struct line_options *options, const char *data, size_t length) {
    auto_buf struct buf clean = BUF_INIT;

    if (!rules_any(options->rules))
        return text_or_base64(data, length);
    int r = rules_apply(options->rules, data, length, false, &clean);
    if (r == -EFBIG)
        return json_string("[withheld]");
    return r < 0 || buf_failed(&clean) ? NULL : text_or_base64(clean.data, clean.length);
}

/* UTF-8 that does not take more room as text, with its control characters escaped, than in base64.
 */
static bool is_mostly_text(const char *data, size_t length) {
    size_t escaped = 0;

    for (size_t i = 0; i < length; i++)
        escaped +=
            ((unsigned char)data[i] < ' ' && data[i] != '\n' && data[i] != '\t') || data[i] == 127;
    return escaped * 16 <= length + 64 && utf8_valid(data, length);
}

/* The first bytes, up to a character's end. */
static void add_kept(json_t *content, const char *data, size_t length, bool truncated) {
    auto_buf struct buf encoded = BUF_INIT;

    for (size_t back = 0; truncated && back < 4 && back < length; back++)
        if (utf8_valid(data, length - back)) {
            length -= back;
            break;
        }
    if (is_mostly_text(data, length)) {
        json_object_set_new(content, "text", json_stringn_nocheck(length ? data : "", length));
    } else {
        base64_encode(&encoded, data, length);
        json_object_set_new(
            content, "base64", buf_failed(&encoded) ? NULL : json_string(encoded.data));
    }
    if (truncated)
        json_object_set_new(content, "truncated", json_true());
}

static json_t *content_of(const struct line_options *options, const char *data, size_t length) {
    json_t *content = json_pack("{s:I}", "bytes", (json_int_t)length);
    char hex[RECORD_DIGEST_HEX + 1];

    if (!content)
        return NULL;
    digest_hex(length ? data : "", length, hex);
    json_object_set_new(content, "sha256", json_string(hex));
    add_kept(content, data, (size_t)MIN((uint64_t)length, options->most), length > options->most);
    return content;
}

static json_t *withheld_value(uint64_t length) {
    return json_pack(
        "{s:I, s:b}", "bytes", (json_int_t)MIN(length, (uint64_t)INT64_MAX), "withheld", 1);
}

static json_t *clean_content(
    const struct line_options *options, const char *data, size_t length, bool is_cut) {
    auto_buf struct buf clean = BUF_INIT;

    if (!rules_any(options->rules))
        return content_of(options, data, length);
    int r =
        length > MAX_REDACT ? -EFBIG : rules_apply(options->rules, data, length, is_cut, &clean);
    if (r == -EFBIG)
        return withheld_value(length);
    return r < 0 || buf_failed(&clean) ? NULL : content_of(options, clean.data, clean.length);
}

/* Uses pread, because other processes share the descriptor's offset and may truncate the file. */
static json_t *content_of_fd(
    const struct line_options *options, int fd, uint64_t length, bool is_cut) {
    auto_buf struct buf head = BUF_INIT;
    struct sha256_ctx context;
    char hex[RECORD_DIGEST_HEX + 1];
    static char chunk[CHUNK];
    uint64_t done = 0, most = rules_any(options->rules) ? MAX_REDACT : options->most;
    ssize_t n = 0;

    sha256_init(&context);
    while (done < length && done < MAX_HASH &&
           (n = pread(fd, chunk, (size_t)MIN(length - done, (uint64_t)CHUNK), (off_t)done)) > 0) {
        sha256_update(&context, (size_t)n, (const uint8_t *)chunk);
        if (done < most)
            buf_add(&head, chunk, (size_t)MIN((uint64_t)n, most - done));
        done += (uint64_t)n;
    }
    if (buf_failed(&head))
        return NULL;
    if (n < 0 || done >= MAX_HASH || (rules_any(options->rules) && done > MAX_REDACT))
        return withheld_value(length == UINT64_MAX ? done : length);
    if (rules_any(options->rules))
        return clean_content(options, head.data, head.length, is_cut);
    json_t *content = json_pack("{s:I}", "bytes", (json_int_t)done);
    if (!content)
        return NULL;
    digest_end(&context, hex);
    json_object_set_new(content, "sha256", json_string(hex));
    add_kept(content, head.data, head.length, done > head.length);
    return content;
}

static json_t *clean_object(const struct line_options *options, json_t *object) {
    json_t *clean = json_object(), *item;
    const char *key;

    json_object_foreach(object, key, item) {
        json_t *name = others_text(options, key, strlen(key)),
               *value = line_clean(options, json_incref(item));

        /* A key that is no longer text, or was withheld, is not written. */
        if (!clean || !name || !value ||
            json_object_set_new(clean,
                json_string_value(name) ? json_string_value(name) : "[redacted]", value) < 0) {
            json_decref(clean);
            clean = NULL;
        }
        json_decref(name);
        if (!clean)
            break;
    }
    return clean;
}

static json_t *clean_array(const struct line_options *options, const json_t *array) {
    json_t *clean = json_array(), *item;
    size_t i;

    json_array_foreach(array, i,
        item) if (clean &&
                  json_array_append_new(clean, line_clean(options, json_incref(item))) < 0) {
        json_decref(clean);
        clean = NULL;
    }
    return clean;
}

/* At every depth that its parser allows. */
json_t *line_clean(const struct line_options *options, json_t *take_value) {
    json_t *clean;

    if (!take_value || !rules_any(options->rules))
        return take_value;
    if (json_is_string(take_value))
        clean = others_text(options, json_string_value(take_value), json_string_length(take_value));
    else if (json_is_object(take_value))
        clean = clean_object(options, take_value);
    else if (json_is_array(take_value))
        clean = clean_array(options, take_value);
    else
        return take_value;
    json_decref(take_value);
    return clean;
}

void line_shorten(json_t *line) {
    const char *key;
    json_t *item;
    size_t i;

    if (json_object_get(line, "sha256") && json_object_get(line, "bytes") &&
        (json_object_get(line, "text") || json_object_get(line, "base64"))) {
        json_object_set_new(line, "text", json_string(""));
        json_object_del(line, "base64");
        json_object_set_new(line, "truncated", json_true());
    }
    json_object_foreach(line, key, item) line_shorten(item);
    json_array_foreach(line, i, item) line_shorten(item);
}

/* The open objects and lists. A value goes into an object under the last key, or to the end of a
 * list. */
struct tree {
    json_t *open[MAX_DEPTH];
    size_t depth;
    struct buf key; /* of the value that comes next */
    bool has_key, is_cut;
};

static int put_value(struct tree *tree, json_t *take_value) {
    json_t *into = tree->open[tree->depth];

    if (!take_value)
        return -ENOMEM;
    if (json_is_array(into))
        return json_array_append_new(into, take_value) < 0 ? -ENOMEM : 0;
    if (!tree->has_key) {
        json_decref(take_value);
        return -EBADMSG;
    }
    tree->has_key = false;
    return json_object_set_new_nocheck(into, tree->key.data, take_value) < 0 ? -ENOMEM : 0;
}

/* Names of variables are keys, and may be any bytes. */
static int take_key(struct tree *tree, const char *text) {
    if (!text)
        return -EBADMSG;
    tree->key.length = 0;
    utf8_replace(&tree->key, text, strlen(text));
    buf_add(&tree->key, "", 0);
    tree->has_key = true;
    return buf_failed(&tree->key) || !tree->key.data ? -ENOMEM : 0;
}

static int open_one(struct tree *tree, json_t *made) {
    if (tree->depth + 1 == MAX_DEPTH) {
        json_decref(made);
        return -EBADMSG;
    }
    json_t *borrowed = made;
    int r = put_value(tree, made);
    if (r == 0)
        tree->open[++tree->depth] = borrowed;
    return r;
}

static int put_number(struct tree *tree, const struct wire_field *field) {
    uint64_t number;

    if (wire_u64(field, &number) < 0)
        return -EBADMSG;
    switch (field->tag) {
    case RECORD_NUMBER:
        return put_value(tree, json_integer((json_int_t)number));
    case RECORD_MILLISECONDS:
        return put_value(tree, json_real((double)number / 1e6));
    default:
        return put_value(tree, json_boolean(number));
    }
}

static int put_field(const struct line_options *options, struct tree *tree,
    const struct wire_field *field, const int *fds, size_t n_fds, size_t *next_fd) {
    const char *text = wire_text(field);
    const bool is_cut = tree->is_cut;
    uint64_t number;

    tree->is_cut = field->tag == RECORD_CUT;
    switch (field->tag) {
    case RECORD_KEY:
        return take_key(tree, text);
    case RECORD_WORD:
        return text ? put_value(tree, json_string(text)) : -EBADMSG;
    case RECORD_JSON:
        return text ? put_value(tree, json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL))
                    : -EBADMSG;
    case RECORD_DATA:
        return text ? put_value(tree, line_clean(options,
                                          json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)))
                    : -EBADMSG;
    case RECORD_TEXT:
        return put_value(tree, others_text(options, field->data, field->length));
    case RECORD_NUMBER:
    case RECORD_MILLISECONDS:
    case RECORD_FLAG:
        return put_number(tree, field);
    case RECORD_NONE:
        return put_value(tree, json_null());
    case RECORD_OBJECT:
        return open_one(tree, json_object());
    case RECORD_LIST:
        return open_one(tree, json_array());
    case RECORD_UP:
        if (!tree->depth)
            return -EBADMSG;
        tree->depth--;
        return 0;
    case RECORD_CONTENT:
        return put_value(tree, clean_content(options, field->data, field->length, is_cut));
    case RECORD_CONTENT_FD:
        if (wire_u64(field, &number) < 0 || *next_fd >= n_fds)
            return -EBADMSG;
        return put_value(tree, content_of_fd(options, fds[(*next_fd)++], number, is_cut));
    default:
        return 0; /* of the message, not of the line */
    }
}

int line_build(const struct line_options *options, const void *data, size_t length, const int *fds,
    size_t n_fds, json_t **ret_line) {
    struct tree tree = { .open = { json_object() } };
    struct wire_field field;
    size_t position = 0, next_fd = 0;
    int r = tree.open[0] ? 0 : -ENOMEM;

    while (r == 0 && (r = wire_next(data, length, &position, &field)) > 0)
        r = put_field(options, &tree, &field, fds, n_fds, &next_fd);
    if (r == 0 && tree.depth)
        r = -EBADMSG;
    buf_done(&tree.key);
    if (r < 0)
        json_decref(tree.open[0]);
    else
        *ret_line = tree.open[0];
    return r;
}

/* ---- as text ---- */

static void write_escape(uint32_t unit, struct buf *to) {
    static const char digits[] = "0123456789abcdef";
    const char escape[6] = { '\\', 'u', digits[unit >> 12 & 15], digits[unit >> 8 & 15],
        digits[unit >> 4 & 15], digits[unit & 15] };

    buf_add(to, escape, sizeof escape);
}

/* A character of valid UTF-8 that is not ASCII; how long it is. */
static size_t write_character(const unsigned char *at, struct buf *to) {
    size_t length = 2 + (*at >= 0xe0) + (*at >= 0xf0);
    uint32_t character = *at & (0xffu >> (length + 1));

    for (size_t i = 1; i < length; i++)
        character = character << 6 | (at[i] & 0x3fu);
    if (character < 0x10000) {
        write_escape(character, to);
    } else {
        write_escape(0xd800 + ((character - 0x10000) >> 10), to);
        write_escape(0xdc00 + ((character - 0x10000) & 0x3ff), to);
    }
    return length;
}

/* jansson takes seventy nanoseconds for each character that it escapes, and guests choose how many
 * those are. */
static void write_string(const char *text, size_t length, struct buf *to) {
    size_t run = 0, i = 0;

    buf_add(to, "\"", 1);
    while (i < length) {
        unsigned char c = (unsigned char)text[i];

        if (c >= ' ' && c < 127 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        buf_add(to, text + run, i - run);
        if (c >= 0x80)
            i += write_character((const unsigned char *)text + i, to);
        else {
            if (c == '"' || c == '\\')
                buf_add(to, c == '"' ? "\\\"" : "\\\\", 2);
            else if (c == '\n')
                buf_add(to, "\\n", 2);
            else
                write_escape(c, to);
            i++;
        }
        run = i;
    }
    buf_add(to, text + run, i - run);
    buf_add(to, "\"", 1);
}

static void write_value(const json_t *value, struct buf *to) {
    const char *between = "", *key;
    json_t *item;
    size_t i;

    switch (json_typeof(value)) {
    case JSON_STRING:
        write_string(json_string_value(value), json_string_length(value), to);
        return;
    case JSON_OBJECT:
        buf_add(to, "{", 1);
        json_object_foreach((json_t *)value, key, item) {
            buf_add_text(to, between);
            write_string(key, strlen(key), to);
            buf_add(to, ":", 1);
            write_value(item, to);
            between = ",";
        }
        buf_add(to, "}", 1);
        return;
    case JSON_ARRAY:
        buf_add(to, "[", 1);
        json_array_foreach(value, i, item) {
            buf_add_text(to, between);
            write_value(item, to);
            between = ",";
        }
        buf_add(to, "]", 1);
        return;
    case JSON_INTEGER:
    case JSON_REAL:
    case JSON_TRUE:
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    auto_free char *text =
        json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(RECORD_REAL_DIGITS));
    to->failed |= !text;
    buf_add_text(to, text ? text : "");
}

int line_write(const json_t *line, struct buf *to) {
    write_value(line, to);
    buf_add(to, "\n", 1);
    return buf_failed(to) ? -ENOMEM : 0;
}
