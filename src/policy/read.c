/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/read.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "policy/locate.h"

/* ---- problems ---- */

/* The text as one line that a terminal shows as text (utf8_shown), for the caller to free; NULL
 * when out of memory. */
static char *one_line(const char *text) {
    struct buf buf = BUF_INIT;

    utf8_shown(&buf, text, strlen(text), "");
    buf_add_text(&buf, "");
    return buf_take(&buf);
}

__attribute__((format(printf, 5, 0))) static void add_problem(struct reader *r, unsigned line,
    const char *key, const char *hint, const char *format, va_list arguments) {
    struct policy_problems *problems = r->problems;
    auto_free char *message = NULL;
    struct policy_problem problem = { .line = line };

    r->bad = true;
    if (problems->n > READ_MAX_PROBLEMS)
        return;
    if (problems->n == READ_MAX_PROBLEMS) {
        line = problem.line = 0;
        key = hint = "";
        if (asprintf(&message, "there are more than %u problems; the others are not listed",
                READ_MAX_PROBLEMS) < 0)
            message = NULL;
    } else if (vasprintf(&message, format, arguments) < 0)
        message = NULL;

    struct policy_problem *items =
        message == NULL ? NULL : reallocarray(problems->items, problems->n + 1, sizeof(*items));
    if (items == NULL) {
        r->out_of_memory = true;
        return;
    }
    problems->items = items;
    problem.key = one_line(key);
    problem.message = one_line(message);
    problem.hint = one_line(hint);
    if (problem.key == NULL || problem.message == NULL || problem.hint == NULL)
        r->out_of_memory = true;
    items[problems->n++] = problem;
}

void read_bad_text(struct reader *r, unsigned line, const char *hint, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    add_problem(r, line, "", hint, format, arguments);
    va_end(arguments);
}

void read_bad(struct reader *r, const char *hint, const char *format, ...) {
    struct buf key = BUF_INIT;
    unsigned line = r->problems->n <= READ_MAX_PROBLEMS
                        ? locate_line(r->text, r->length, r->key, r->index, r->member)
                        : 0;
    va_list arguments;

    buf_printf(&key, "%.100s", r->key);
    if (r->index >= 0)
        buf_printf(&key, "[%ld]", r->index);
    if (r->member != NULL)
        buf_printf(&key, ".%.100s", r->member);
    va_start(arguments, format);
    add_problem(r, line, buf_failed(&key) ? r->key : key.data, hint, format, arguments);
    va_end(arguments);
    buf_done(&key);
}

/* ---- values ---- */

const char *read_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

char *read_copy(struct reader *r, const char *text) {
    char *s = strdup(text);

    if (s == NULL)
        r->out_of_memory = true;
    return s;
}

const char *read_text(struct reader *r, const json_t *value, const char *what) {
    if (!json_is_string(value)) {
        read_bad(r, "", "must be %s, not %s", what, read_type(value));
        return NULL;
    }
    if (json_string_length(value) != strlen(json_string_value(value))) {
        read_bad(r, "", "must not contain a NUL character");
        return NULL;
    }
    if (json_string_length(value) == 0) {
        read_bad(r, "", "must not be empty");
        return NULL;
    }
    return json_string_value(value);
}

void read_bool(struct reader *r, const json_t *value, bool *ret) {
    if (json_is_boolean(value))
        *ret = json_is_true(value);
    else
        read_bad(r, "", "must be true or false, not %s", read_type(value));
}

/* Reads a whole number, written as 20 or as 20.0. Returns false after noting an error. */
static bool read_integer(
    struct reader *r, const json_t *value, uint64_t min, uint64_t max, uint64_t *ret) {
    double number = json_number_value(value);

    if (!json_is_number(value)) {
        read_bad(r, "", "must be a number, not %s", read_type(value));
        return false;
    }
    if (number != floor(number)) {
        read_bad(r, "", "must be a whole number");
        return false;
    }
    if (number < (double)min || number > (double)max) {
        read_bad(r, "", "is %.15g: must be from %" PRIu64 " to %" PRIu64, number, min, max);
        return false;
    }
    *ret = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    return true;
}

void read_count(struct reader *r, const json_t *value, uint32_t min, uint32_t max, uint32_t *ret) {
    uint64_t number;

    if (read_integer(r, value, min, max, &number))
        *ret = (uint32_t)number;
}

void read_size(
    struct reader *r, const json_t *value, uint64_t min, const char *min_text, uint64_t *ret) {
    uint64_t bytes = 0;
    int result = 0;

    if (json_is_string(value)) {
        const char *text = read_text(r, value, "a size");
        if (text == NULL)
            return;
        result = policy_parse_size(text, &bytes);
        if (result == -EINVAL) {
            read_bad(r,
                *text == '-' ? ""
                : strchr(text, '.') != NULL
                    ? "write a fraction in the next smaller unit: \"1536M\" for 1.5G"
                    : "write \"512M\"; the units are K, M, G and T, powers of 1024",
                "\"%.40s\" is not a size", text);
            return;
        }
        if (result == -ERANGE || bytes > INT64_MAX) {
            read_bad(r, "", "\"%.40s\" is too large: sizes end at 2^63 - 1 bytes", text);
            return;
        }
    } else if (json_is_integer(value)) {
        if (json_integer_value(value) < 0) {
            read_bad(r, "", "is %" JSON_INTEGER_FORMAT ": a size cannot be negative",
                json_integer_value(value));
            return;
        }
        bytes = (uint64_t)json_integer_value(value);
    } else {
        read_bad(r, "write \"512M\" or a whole number of bytes", "must be a size, not %s",
            json_is_real(value) ? "a fraction" : read_type(value));
        return;
    }
    if (bytes < min)
        read_bad(r, "a bare number is bytes; write \"512M\" for mebibytes",
            "is %" PRIu64 " bytes: must be at least %s", bytes, min_text);
    else
        *ret = bytes;
}

/* ---- the nearest word ---- */

#define MAX_WORD 32u

/* Levenshtein's distance; words longer than MAX_WORD are far from everything. */
static unsigned edit_distance(const char *a, const char *b) {
    size_t n = strlen(b);
    unsigned row[MAX_WORD + 1];

    if (strlen(a) > MAX_WORD || n > MAX_WORD)
        return MAX_WORD;
    for (size_t j = 0; j <= n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != 0; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned changed = diagonal + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
            diagonal = row[j];
            row[j] = MIN(changed, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

const char *read_nearest(const char *word, const char *const *words, size_t n) {
    const char *best = NULL;
    unsigned length = (unsigned)strlen(word);
    /* With as many edits as it has letters, a word becomes any other of its length. */
    unsigned best_distance = MIN(MAX(2u, length / 3) + 1, length);

    for (size_t i = 0; i < n; i++) {
        unsigned d = edit_distance(word, words[i]);
        if (d < best_distance) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}

int read_word(struct reader *r, const json_t *value, const char *const *words, size_t n) {
    struct buf all = BUF_INIT, hint = BUF_INIT;
    const char *text = json_is_string(value) ? json_string_value(value) : NULL, *near;
    int found = -1;

    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_text(&all, i + 1 == n ? " or " : ", ");
        buf_printf(&all, "\"%s\"", words[i]);
        if (text != NULL && strcmp(text, words[i]) == 0 &&
            json_string_length(value) == strlen(text))
            found = (int)i;
    }
    if (buf_failed(&all))
        r->out_of_memory = true;
    else if (found < 0 && text == NULL)
        read_bad(r, "", "must be %s, not %s", all.data, read_type(value));
    else if (found < 0) {
        near = read_nearest(text, words, n);
        if (near != NULL)
            buf_printf(&hint, "did you mean \"%s\"?", near);
        read_bad(r, near != NULL && !buf_failed(&hint) ? hint.data : "",
            "\"%.40s\" is none of its values: must be %s", text, all.data);
    }
    buf_done(&all);
    buf_done(&hint);
    return found;
}

/* ---- paths ---- */
char *read_path(struct reader *r, const json_t *value) {
    const char *text = read_text(r, value, "a path");
    char *path;
    size_t n = 0;

    if (text == NULL)
        return NULL;
    if (*text != '/') {
        read_bad(r,
            *text == '~'   ? "~ is not expanded: write the home directory out"
            : *text == '$' ? "variables are not expanded: write the path out"
                           : "write it from / on",
            "\"%.80s\" is not an absolute path", text);
        return NULL;
    }
    if (strlen(text) >= 4096) {
        read_bad(r, "", "is %zu bytes long: a path has at most 4095", strlen(text));
        return NULL;
    }
    path = malloc(strlen(text) + 2);
    if (path == NULL) {
        r->out_of_memory = true;
        return NULL;
    }
    for (const char *p = text; *p != 0;) {
        size_t length = strcspn(p, "/");

        if (length == 2 && p[0] == '.' && p[1] == '.') {
            read_bad(r, "write the path without it", "\"%.80s\" contains \"..\"", text);
            free(path);
            return NULL;
        }
        if (length > 255) {
            read_bad(r, "", "\"%.80s...\" has a name of %zu bytes: a name has at most 255", text,
                length);
            free(path);
            return NULL;
        }
        if (length > 0 && !(length == 1 && *p == '.')) {
            path[n++] = '/';
            memcpy(path + n, p, length);
            n += length;
        }
        p += length + (p[length] == '/');
    }
    if (n == 0)
        path[n++] = '/';
    path[n] = 0;
    return path;
}

bool read_is_object(
    struct reader *r, const json_t *value, const char *example, size_t most, const char *what) {
    if (!json_is_object(value))
        read_bad(r, example, "must be an object, not %s", read_type(value));
    else if (json_object_size(value) > most)
        read_bad(r, "", "has %zu %s: at most %zu", json_object_size(value), what, most);
    else
        return true;
    return false;
}

bool read_is_in(const char *path, const char *parent) {
    size_t n = strlen(parent);

    return !strncmp(path, parent, n) && (!path[n] || path[n] == '/');
}

const char *read_own_mount(const char *path) {
    static const char *const own[] = { "/proc", "/dev", "/sys", "/.rollbox" };

    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (read_is_in(path, own[i]))
            return own[i];
    return NULL;
}
