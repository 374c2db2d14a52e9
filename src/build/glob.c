/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pattern is a list of tokens. The matcher keeps the set of tokens that it may be at, and moves
 * all of them by one character of the text, so that no input makes it go back.
 */
#include "build/glob.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/text.h"

#define MAX_TOKENS 4096

enum token_kind {
    TOKEN_CHARACTER,
    TOKEN_ANY,
    TOKEN_CLASS,
    TOKEN_STAR,       /* any characters of a name */
    TOKEN_EVERYTHING, /* any characters */
    TOKEN_DIRECTORIES /* nothing, or any directories with their slash */
};

struct token {
    enum token_kind kind;
    char character;
    const char *class; /* after the bracket */
    size_t class_length;
};

static size_t class_length(const char *text) {
    size_t n = text[0] == '^' || text[0] == '!';

    if (text[n] == ']')
        n++;
    while (text[n] && text[n] != ']')
        n += text[n] == '\\' && text[n + 1] ? 2 : 1;
    return text[n] ? n : SIZE_MAX;
}

static bool class_has(const struct token *token, char c) {
    const char *at = token->class, *end = at + token->class_length;
    const bool negated = *at == '^' || *at == '!';
    bool found = false;

    at += negated;
    while (at < end) {
        at += *at == '\\' && at + 1 < end;
        unsigned char low = (unsigned char)*at++, high = low;
        if (at + 1 < end && *at == '-') {
            at++;
            at += *at == '\\' && at + 1 < end;
            high = (unsigned char)*at++;
        }
        found |= (unsigned char)c >= low && (unsigned char)c <= high;
    }
    return found != negated;
}

/* Stars in a pattern of paths: "**" followed by a slash, "**", "*". Returns its length. */
static size_t star_token(const char *at, bool first, enum glob_kind kind, struct token *token) {
    size_t n = strspn(at, "*");

    if (kind == GLOB_PLAIN) {
        token->kind = TOKEN_EVERYTHING;
        return n;
    }
    token->kind = n == 1 ? TOKEN_STAR : TOKEN_EVERYTHING;
    if (n >= 2 && first && at[n] == '/') {
        token->kind = TOKEN_DIRECTORIES;
        n++;
    }
    return n;
}

static size_t tokenize(const char *pattern, enum glob_kind kind, struct token *tokens) {
    size_t n = 0;
    const char *at = pattern;

    while (*at && n < MAX_TOKENS) {
        struct token *token = &tokens[n++];

        *token = (struct token){ TOKEN_CHARACTER, *at, NULL, 0 };
        if (*at == '*') {
            at += star_token(at, at == pattern || at[-1] == '/', kind, token);
        } else if (*at == '?') {
            token->kind = TOKEN_ANY;
            at++;
        } else if (*at == '[' && class_length(at + 1) != SIZE_MAX) {
            token->kind = TOKEN_CLASS;
            token->class = at + 1;
            token->class_length = class_length(at + 1);
            at += token->class_length + 2;
        } else {
            at += *at == '\\' && at[1];
            token->character = *at++;
        }
    }
    return *at ? SIZE_MAX : n;
}

/* Adds a place, and those that are reached from it without a character. */
static void enter(const struct token *tokens, size_t n, uint8_t *set, size_t at) {
    for (; !set[at]; at++) {
        set[at] = 1;
        if (at == n || tokens[at].kind < TOKEN_STAR)
            return;
    }
}

static void step(const struct token *tokens, size_t n, const uint8_t *from, uint8_t *to,
    enum glob_kind kind, char c) {
    const bool is_slash = kind == GLOB_PATH && c == '/';

    for (size_t i = 0; i < n; i++) {
        if (!from[i])
            continue;
        switch (tokens[i].kind) {
        case TOKEN_CHARACTER:
            if (tokens[i].character == c)
                enter(tokens, n, to, i + 1);
            break;
        case TOKEN_ANY:
            if (!is_slash)
                enter(tokens, n, to, i + 1);
            break;
        case TOKEN_CLASS:
            if (!is_slash && class_has(&tokens[i], c))
                enter(tokens, n, to, i + 1);
            break;
        case TOKEN_STAR:
            if (!is_slash)
                enter(tokens, n, to, i);
            break;
        case TOKEN_EVERYTHING:
            enter(tokens, n, to, i);
            break;
        case TOKEN_DIRECTORIES:
            to[i] |= 2; /* within a directory's name: what follows is not reached yet */
            if (is_slash)
                enter(tokens, n, to, i + 1);
            break;
        }
    }
}

bool glob_match(const char *pattern, const char *text, enum glob_kind kind) {
    const size_t room = MIN(strlen(pattern), (size_t)MAX_TOKENS) + 1;
    auto_free struct token *tokens = calloc(room, sizeof *tokens);
    auto_free uint8_t *sets = calloc(2, room);
    uint8_t *now = sets, *next = sets + room;

    size_t n = tokens && sets ? tokenize(pattern, kind, tokens) : SIZE_MAX;
    if (n == SIZE_MAX)
        return false;
    enter(tokens, n, now, 0);
    for (; *text; text++) {
        uint8_t *swapped = now;

        memset(next, 0, n + 1);
        step(tokens, n, now, next, kind, *text);
        now = next;
        next = swapped;
    }
    return now[n] != 0;
}

bool glob_is_pattern(const char *text) {
    return strpbrk(text, "*?[\\") != NULL;
}

char *glob_clean(const char *path) {
    char *clean = malloc(strlen(path) + 2), *to = clean;

    if (!clean)
        return NULL;
    while (*path) {
        size_t n = strcspn(path, "/");

        if (n == 2 && path[0] == '.' && path[1] == '.') {
            while (to > clean && *--to != '/')
                ;
        } else if (n && !(n == 1 && path[0] == '.')) {
            if (to > clean)
                *to++ = '/';
            memcpy(to, path, n);
            to += n;
        }
        path += n + (path[n] == '/');
    }
    *to = '\0';
    return clean;
}

/* ---- .dockerignore ---- */

int ignore_add(struct ignore *ignore, const char *pattern, size_t length) {
    while (length && strchr(" \t\r", pattern[length - 1]))
        length--;
    size_t blanks = 0;
    while (blanks < length && strchr(" \t", pattern[blanks]))
        blanks++;
    pattern += blanks;
    length -= blanks;
    const bool includes = length && pattern[0] == '!';
    auto_free char *text = text_copy(pattern + includes, length - includes);
    char *clean = text ? glob_clean(text + strspn(text, " \t")) : NULL;

    if (!clean)
        return -ENOMEM;
    /* "." and "/" leave nothing, and mean nothing in Docker's implementation either. */
    struct ignore_rule *rule = clean[0] ? array_add(&ignore->rules, ignore->n, sizeof *rule) : NULL;
    if (!rule) {
        int r = clean[0] ? -ENOMEM : 0;

        free(clean);
        return r;
    }
    *rule = (struct ignore_rule){ clean, includes };
    ignore->n++;
    ignore->has_includes |= includes;
    return 0;
}

int ignore_parse(const char *text, size_t length, struct ignore *ret_ignore) {
    struct ignore ignore = { 0 };
    const char *end = text + length;
    int r = 0;

    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (r == 0 && text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = newline ? (size_t)(newline - text) : (size_t)(end - text);

        if (n && text[0] != '#')
            r = ignore_add(&ignore, text, n);
        text += n + (newline != NULL);
    }
    if (r < 0)
        ignore_done(&ignore);
    else
        *ret_ignore = ignore;
    return r;
}

void ignore_done(struct ignore *ignore) {
    for (size_t i = 0; i < ignore->n; i++)
        free(ignore->rules[i].pattern);
    free(ignore->rules);
    *ignore = (struct ignore){ 0 };
}

/* The path, or a directory that it lies in. */
static bool rule_matches(const char *pattern, const char *path, char *copy) {
    size_t length = strlen(path);

    memcpy(copy, path, length + 1);
    for (;;) {
        if (glob_match(pattern, copy, GLOB_PATH))
            return true;
        char *slash = strrchr(copy, '/');
        if (!slash)
            return false;
        *slash = '\0';
    }
}

bool ignore_matches(const struct ignore *ignore, const char *path) {
    auto_free char *copy = malloc(strlen(path) + 1);
    bool ignored = false;

    for (size_t i = 0; copy && i < ignore->n; i++)
        if (ignored == ignore->rules[i].includes &&
            rule_matches(ignore->rules[i].pattern, path, copy))
            ignored = !ignore->rules[i].includes;
    return ignored;
}
