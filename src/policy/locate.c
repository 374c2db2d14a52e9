/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/locate.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A place in the text. It never moves past the end, so a text that is not valid after all gives a
 * wrong line and nothing worse. */
struct cursor {
    const char *p, *end;
    unsigned line;
};

static char peek_char(const struct cursor *c) {
    return c->p < c->end ? *c->p : 0;
}

static void step_char(struct cursor *c) {
    if (c->p < c->end)
        c->line += *c->p++ == '\n';
}

static void skip_space(struct cursor *c) {
    while (
        peek_char(c) == ' ' || peek_char(c) == '\t' || peek_char(c) == '\n' || peek_char(c) == '\r')
        step_char(c);
}

static void skip_string(struct cursor *c) {
    step_char(c);
    while (c->p < c->end && *c->p != '"') {
        if (*c->p == '\\')
            step_char(c);
        step_char(c);
    }
    step_char(c);
}

/* A value of any depth, without recursion. */
static void skip_value(struct cursor *c) {
    size_t depth = 0;

    do {
        skip_space(c);
        switch (peek_char(c)) {
        case '"':
            skip_string(c);
            break;
        case '{':
        case '[':
            depth++;
            step_char(c);
            break;
        case '}':
        case ']':
            depth--;
            step_char(c);
            break;
        default:
            step_char(c);
        }
        if (depth == 0) /* the rest of a number or a word */
            while (c->p < c->end && strchr(",]} \t\r\n:", *c->p) == NULL)
                step_char(c);
    } while (depth > 0 && c->p < c->end);
}

/* Is the string literal [from, to) this key? One with escapes is decoded. */
static bool is_key(const char *from, const char *to, const char *key) {
    size_t length = strlen(key);

    if (memchr(from, '\\', (size_t)(to - from)) != NULL) {
        json_t *decoded = json_loadb(from, (size_t)(to - from), JSON_DECODE_ANY, NULL);
        bool same = decoded != NULL && json_string_length(decoded) == length &&
                    memcmp(json_string_value(decoded), key, length) == 0;
        json_decref(decoded);
        return same;
    }
    return (size_t)(to - from) == length + 2 && memcmp(from + 1, key, length) == 0;
}

/* Moves into the object at the cursor, to the value of `key`, and returns the key's line; 0 (and
 * the cursor anywhere) if it is not there. */
static unsigned find_key(struct cursor *c, const char *key) {
    skip_space(c);
    if (peek_char(c) != '{')
        return 0;
    do {
        step_char(c);
        skip_space(c);
        if (peek_char(c) != '"')
            return 0;

        const char *from = c->p;
        unsigned line = c->line;
        skip_string(c);
        bool found = is_key(from, c->p, key);
        skip_space(c);
        step_char(c); /* : */
        skip_space(c);
        if (found)
            return line;
        skip_value(c);
        skip_space(c);
    } while (peek_char(c) == ',');
    return 0;
}

static unsigned find_element(struct cursor *c, long index) {
    if (peek_char(c) != '[')
        return 0;
    do {
        step_char(c);
        skip_space(c);
        if (index-- == 0)
            return c->line;
        skip_value(c);
        skip_space(c);
    } while (peek_char(c) == ',');
    return 0;
}

/* The line of the first name of a path such as "requests[0].paths". */
static unsigned find_member(struct cursor *c, const char *member) {
    struct cursor again = *c;
    char name[64];
    unsigned line = find_key(c, member);

    if (line > 0)
        return line;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(member, ".["), member);
    return find_key(&again, name);
}

unsigned locate_line(
    const char *text, size_t length, const char *key, long index, const char *member) {
    struct cursor c = { text, text + length, 1 };
    unsigned line = find_key(&c, key), deeper = 0;

    if (line > 0 && index >= 0 && (deeper = find_element(&c, index)) > 0)
        line = deeper;
    if (line > 0 && member != NULL && (deeper = find_member(&c, member)) > 0)
        line = deeper;
    return line;
}
