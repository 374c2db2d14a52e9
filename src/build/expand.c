/* SPDX-License-Identifier: Apache-2.0 */
#include "build/expand.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "build/glob.h"

#define MAX_DEPTH 20 /* of words in words */

struct expand {
    const struct expand_scope *scope;
    const char *at;
    bool keeps_quotes;
    unsigned depth;
    char *why;
};

static int expand_until(struct expand *expand, const char *stops, struct buf *out);

static int refuse(struct expand *expand, const char *reason, const char *object) {
    snprintf(expand->why, EXPAND_WHY, "%s%.100s", reason, object);
    return -EINVAL;
}

static bool is_first(char c) {
    return isalpha((unsigned char)c) || c == '_';
}

static size_t name_length(const char *text) {
    size_t n = 0;

    if (isdigit((unsigned char)text[0]))
        return 1;
    while (is_first(text[n]) || (n && isdigit((unsigned char)text[n])))
        n++;
    return n;
}

/* ---- patterns ---- */

/* The length of the shortest or longest part of the value, at its beginning or end, that the
 * pattern matches; SIZE_MAX: none. */
static size_t match_part(const char *value, const char *pattern, bool at_end, bool longest) {
    size_t length = strlen(value), best = SIZE_MAX;

    for (size_t i = 0; i <= length; i++) {
        size_t n = longest ? length - i : i;
        auto_free char *part = strndup(at_end ? value + length - n : value, n);

        if (part && glob_match(pattern, part, GLOB_PLAIN)) {
            best = n;
            break;
        }
    }
    return best;
}

static void remove_part(struct buf *out, const char *value, const char *pattern, const char *form) {
    const bool at_end = form[0] == '%';
    size_t n = match_part(value, pattern, at_end, form[1] == form[0]), length = strlen(value);

    if (n == SIZE_MAX)
        n = 0;
    buf_add(out, at_end ? value : value + n, length - n);
}

static void replace_parts(
    struct buf *out, const char *value, const char *pattern, const char *by, bool all) {
    while (*value) {
        size_t n = match_part(value, pattern, false, true);

        if (n == SIZE_MAX || !n) {
            buf_add(out, value++, 1);
            continue;
        }
        buf_add_text(out, by);
        value += n;
        if (!all)
            break;
    }
    buf_add_text(out, value);
}

/* ---- variables ---- */

static int nested_word(struct expand *expand, const char *stops, char **ret_word) {
    auto_buf struct buf word = BUF_INIT;

    if (++expand->depth > MAX_DEPTH)
        return refuse(expand, "its variables are nested too deeply", "");
    int r = expand_until(expand, stops, &word);
    expand->depth--;
    buf_add(&word, "", 1);
    if (r == 0 && !(*ret_word = buf_failed(&word) ? NULL : buf_take(&word)))
        r = -ENOMEM;
    return r;
}

static int require_end(struct expand *expand, const char *name) {
    if (*expand->at != '}')
        return refuse(expand, "a } is missing after ${", name);
    expand->at++;
    return 0;
}

/* ${NAME-...}, with ":" if it concerns empty values, too. */
static int choose(struct expand *expand, struct buf *out, const char *name, const char *value) {
    const bool colon = *expand->at == ':';
    const char form = expand->at[colon];
    auto_free char *word = NULL;

    expand->at += colon + 1;
    int r = nested_word(expand, "}", &word);
    if (r == 0)
        r = require_end(expand, name);
    if (r < 0)
        return r;
    const bool is_set = value && (!colon || value[0]);
    if (form == '?' && !is_set)
        return refuse(expand, word[0] ? word : "a variable is not set: ", word[0] ? "" : name);
    if (form == '+')
        buf_add_text(out, is_set ? word : "");
    else
        buf_add_text(out, is_set ? value : form == '-' ? word : "");
    return 0;
}

static int cut(struct expand *expand, struct buf *out, const char *name, const char *value) {
    const char form = *expand->at;
    const char shown[3] = { form, expand->at[1] == form ? form : '\0', '\0' };
    auto_free char *pattern = NULL, *by = NULL;

    expand->at += strlen(shown);
    int r = nested_word(expand, form == '/' ? "/}" : "}", &pattern);
    if (r == 0 && form == '/' && *expand->at == '/') {
        expand->at++;
        r = nested_word(expand, "}", &by);
    }
    if (r == 0)
        r = require_end(expand, name);
    if (r < 0)
        return r;
    if (form == '/')
        replace_parts(out, value ? value : "", pattern, by ? by : "", shown[1]);
    else
        remove_part(out, value ? value : "", pattern, shown);
    return 0;
}

static int braced(struct expand *expand, struct buf *out) {
    size_t n = name_length(expand->at);
    auto_free char *name = strndup(expand->at, n);

    if (!name)
        return -ENOMEM;
    if (!n)
        return refuse(expand, "${ is not followed by the name of a variable", "");
    const char *value = expand->scope->find(expand->scope->context, name);
    expand->at += n;
    switch (*expand->at) {
    case '}':
        expand->at++;
        buf_add_text(out, value ? value : "");
        return 0;
    case ':':
        if (!expand->at[1] || !strchr("-+?", expand->at[1]))
            return refuse(expand, "after : of a variable there must be -, + or ?: ", name);
        return choose(expand, out, name, value);
    case '-':
    case '+':
    case '?':
        return choose(expand, out, name, value);
    case '#':
    case '%':
    case '/':
        return cut(expand, out, name, value);
    default:
        return refuse(expand, "unsupported form of a variable, or a } is missing: ${", name);
    }
}

static int variable(struct expand *expand, struct buf *out) {
    expand->at++;
    if (*expand->at == '{') {
        expand->at++;
        return braced(expand, out);
    }
    size_t n = name_length(expand->at);
    if (!n) {
        buf_add(out, "$", 1);
        return 0;
    }
    auto_free char *name = strndup(expand->at, n);
    if (!name)
        return -ENOMEM;
    const char *value = expand->scope->find(expand->scope->context, name);
    expand->at += n;
    buf_add_text(out, value ? value : "");
    return 0;
}

/* ---- quotes ---- */

static int single_quoted(struct expand *expand, struct buf *out) {
    const char *end = strchr(++expand->at, '\'');

    if (!end)
        return refuse(expand, "a single quote is not closed", "");
    buf_add(out, expand->at, (size_t)(end - expand->at));
    expand->at = end + 1;
    return 0;
}

static int double_quoted(struct expand *expand, struct buf *out) {
    const char escape = expand->scope->escape;
    int r = 0;

    for (expand->at++; r == 0 && *expand->at != '"';) {
        if (!*expand->at)
            return refuse(expand, "a double quote is not closed", "");
        if (*expand->at == '$') {
            r = variable(expand, out);
            continue;
        }
        const char next = expand->at[1];
        if (*expand->at == escape && (next == '"' || next == '$' || next == escape))
            expand->at++;
        buf_add(out, expand->at++, 1);
    }
    expand->at += r == 0;
    return r;
}

static int expand_until(struct expand *expand, const char *stops, struct buf *out) {
    const char escape = expand->scope->escape;
    int r = 0;

    while (r == 0 && *expand->at && !strchr(stops, *expand->at)) {
        const char c = *expand->at;

        if (out->length > EXPAND_MAX_BYTES)
            return refuse(expand, "it becomes longer than 128 KiB", "");
        if (c == '$') {
            r = variable(expand, out);
        } else if (c == '\'' && !expand->keeps_quotes) {
            r = single_quoted(expand, out);
        } else if (c == '"' && !expand->keeps_quotes) {
            r = double_quoted(expand, out);
        } else if (c == escape && expand->at[1] &&
                   (!expand->keeps_quotes || expand->at[1] == '$')) {
            buf_add(out, expand->at + 1, 1);
            expand->at += 2;
        } else {
            buf_add(out, expand->at++, 1);
        }
    }
    return r;
}

int expand_word(const struct expand_scope *scope, const char *word, enum expand_quotes quotes,
    char **ret_text, char ret_why[EXPAND_WHY]) {
    struct expand expand = {
        .scope = scope, .at = word, .keeps_quotes = quotes == EXPAND_KEEPS_QUOTES, .why = ret_why
    };
    auto_buf struct buf out = BUF_INIT;
    int r = expand_until(&expand, "", &out);

    if (r == 0 && out.length > EXPAND_MAX_BYTES && quotes == EXPAND_REMOVES_QUOTES)
        r = refuse(&expand, "it becomes longer than 128 KiB", "");
    buf_add(&out, "", 1);
    if (r == 0 && !(*ret_text = buf_failed(&out) ? NULL : buf_take(&out)))
        r = -ENOMEM;
    return r;
}

int expand_split(const char *text, char escape, struct words *ret_words) {
    struct words words = { 0 };

    for (;;) {
        text += strspn(text, WORD_BLANKS);
        if (!*text)
            break;
        size_t n = word_length(text, escape);
        if (words_add(&words, text, n) < 0) {
            words_done(&words);
            return -ENOMEM;
        }
        text += n;
    }
    *ret_words = words;
    return 0;
}
