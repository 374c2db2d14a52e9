/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules by which secrets are taken out before anything is hashed or written.
 *
 * A name stands for the value that a variable of that name has in any command: wherever the same bytes occur, "[redacted:NAME]" takes their place. A pattern is an extended regular expression over bytes, matched line by line as grep
 * does, without back references: glibc matches such in time that grows with the text alone, and the text is the guest's. What encodes a secret (base64, one character a line) is not found.
 */
#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "record/record.h"

#define SECRET_LEAST 4          /* bytes: shorter ones are everywhere */
#define SECRETS_MOST 256
#define LINE_MOST (1u << 20)

struct secret {
    char *name, *value;
};

struct rules {
    char *names[RECORD_RULES_MOST];
    regex_t patterns[RECORD_RULES_MOST];
    struct secret secrets[SECRETS_MOST];
    size_t n_names, n_patterns, n_secrets;
};

int rules_new(struct rules **ret_rules) {
    *ret_rules = calloc(1, sizeof **ret_rules);
    return *ret_rules ? 0 : -ENOMEM;
}

struct rules *rules_free(struct rules *rules) {
    if (!rules)
        return NULL;
    for (size_t i = 0; i < rules->n_names; i++)
        free(rules->names[i]);
    for (size_t i = 0; i < rules->n_patterns; i++)
        regfree(&rules->patterns[i]);
    for (size_t i = 0; i < rules->n_secrets; i++) {
        free(rules->secrets[i].name);
        free(rules->secrets[i].value);
    }
    free(rules);
    return NULL;
}

int rules_add_name(struct rules *rules, const char *name) {
    if (rules->n_names == ARRAY_SIZE(rules->names))
        return -E2BIG;
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    rules->names[rules->n_names++] = copy;
    return 0;
}

static bool has_back_reference(const char *pattern) {
    for (; *pattern; pattern++)
        if (*pattern == '\\' && *++pattern >= '1' && *pattern <= '9')
            return true;
        else if (!*pattern)
            break;
    return false;
}

int rules_add_pattern(struct rules *rules, const char *pattern, struct rollbox_error *error) {
    char why[200];

    if (rules->n_patterns == ARRAY_SIZE(rules->patterns) || strlen(pattern) > RECORD_RULE_MOST)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments", "redaction: at most %d patterns of %d bytes", RECORD_RULES_MOST, RECORD_RULE_MOST);
    if (!*pattern || has_back_reference(pattern))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "redaction: the pattern \"%.100s\" %s", pattern, *pattern ? "has a back reference, which takes the guest's word for how long it takes" : "is empty");
    int r = regcomp(&rules->patterns[rules->n_patterns], pattern, REG_EXTENDED);
    if (r) {
        regerror(r, &rules->patterns[rules->n_patterns], why, sizeof why);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "redaction: \"%.100s\" is no extended regular expression (regex(7)): %s", pattern, why);
    }
    rules->n_patterns++;
    return 0;
}

int rules_learn(struct rules *rules, const char *variable) {
    size_t length = strcspn(variable, "=");
    const char *value = variable + length + (variable[length] == '=');

    if (strlen(value) < SECRET_LEAST)
        return 0;
    for (size_t i = 0; i < rules->n_names; i++) {
        if (strlen(rules->names[i]) != length || memcmp(rules->names[i], variable, length))
            continue;
        for (size_t k = 0; k < rules->n_secrets; k++)
            if (!strcmp(rules->secrets[k].value, value))
                return 0;
        if (rules->n_secrets == ARRAY_SIZE(rules->secrets))
            return -E2BIG;
        struct secret secret = { strdup(rules->names[i]), strdup(value) };
        if (!secret.name || !secret.value) {
            free(secret.name);
            free(secret.value);
            return -ENOMEM;
        }
        /* The longest first: one may be in another. */
        size_t at = rules->n_secrets++;
        for (; at && strlen(rules->secrets[at - 1].value) < strlen(value); at--)
            rules->secrets[at] = rules->secrets[at - 1];
        rules->secrets[at] = secret;
        return 0;
    }
    return 0;
}

bool rules_any(const struct rules *rules) {
    return rules && (rules->n_secrets || rules->n_patterns);
}

static void take_out(const struct secret *secret, const struct buf *from, struct buf *to) {
    const char *at = from->data, *end = from->data + from->length;
    size_t length = strlen(secret->value);

    for (const char *found; (found = memmem(at, (size_t)(end - at), secret->value, length)); at = found + length) {
        buf_add(to, at, (size_t)(found - at));
        buf_printf(to, "[redacted:%s]", secret->name);
    }
    buf_add(to, at, (size_t)(end - at));
}

static void match_line(const regex_t *pattern, const char *line, size_t length, struct buf *to) {
    size_t at = 0;

    while (at < length) {
        regmatch_t match = { .rm_so = (regoff_t)at, .rm_eo = (regoff_t)length };

        if (regexec(pattern, line, 1, &match, REG_STARTEND | (at ? REG_NOTBOL : 0)))
            break;
        size_t start = (size_t)match.rm_so, end = (size_t)match.rm_eo;
        buf_add(to, line + at, start - at);
        if (end > start) {
            buf_add_text(to, "[redacted]");
            at = end;
        } else if (end < length) {
            buf_add(to, line + end, 1);
            at = end + 1;
        } else {
            return;
        }
    }
    buf_add(to, line + at, length - at);
}

static int match_lines(const regex_t *pattern, const struct buf *from, struct buf *to) {
    const char *line = from->data, *end = from->data + from->length;

    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = newline ? (size_t)(newline - line) : (size_t)(end - line);

        if (length > LINE_MOST)
            return -EFBIG;
        match_line(pattern, line, length, to);
        if (newline)
            buf_add(to, "\n", 1);
        line += length + (newline != NULL);
    }
    return 0;
}

int rules_apply(const struct rules *rules, const char *data, size_t length, struct buf *to) {
    struct buf now = BUF_INIT;
    int r = 0;

    buf_add(&now, length ? data : "", length);
    for (size_t i = 0; i < rules->n_secrets + rules->n_patterns && r == 0 && !buf_failed(&now) && now.length; i++) {
        struct buf next = BUF_INIT;

        if (i < rules->n_secrets)
            take_out(&rules->secrets[i], &now, &next);
        else
            r = match_lines(&rules->patterns[i - rules->n_secrets], &now, &next);
        buf_done(&now);
        now = next;
    }
    if (r == 0 && buf_failed(&now))
        r = -ENOMEM;
    if (r == 0)
        buf_add(to, now.length ? now.data : "", now.length);
    buf_done(&now);
    return r;
}
