/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares steps. Actions and observations are walked in the order in which they were written.
 * Contents are compared byte by byte as far as they were kept, and by digest beyond that.
 *
 * The guess at the cause of a difference uses the two values, the words around the first
 * difference, and the sources of randomness that the policy leaves open. It can be wrong: a counter
 * can look like a process id, and a random number like a time.
 */
#include "base/text.h"
#include "record/compare.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define EXCERPT_BEFORE 24u
#define EXCERPT 64u
#define MAX_SORT (1u << 20)
#define MAX_NOTE 600u
#define MAX_PATH 32768u
#define LONE_NUMBERS "two numbers without a label"

void divergence_done(struct divergence *divergence) {
    buf_done(&divergence->values[0]);
    buf_done(&divergence->values[1]);
    buf_done(&divergence->path);
}

/* ---- the guess ---- */

struct bytes {
    const char *data;
    size_t length;
};

static bool is_word(char c) {
    return isalnum((unsigned char)c) || (c && strchr("_.:-+", c));
}

/* The word around a byte. */
static struct bytes word_at(struct bytes text, size_t at) {
    size_t begin = at, end = at;

    while (begin && is_word(text.data[begin - 1]))
        begin--;
    while (end < text.length && is_word(text.data[end]))
        end++;
    return (struct bytes){ text.data + begin, end - begin };
}

static size_t count_characters(struct bytes word, int (*is)(int)) {
    size_t n = 0;

    for (size_t i = 0; i < word.length; i++)
        n += is((unsigned char)word.data[i]) != 0;
    return n;
}

static bool contains_word(struct bytes text, const char *word) {
    size_t length = strlen(word);

    for (size_t i = 0; i + length <= text.length; i++)
        if (!strncasecmp(text.data + i, word, length))
            return true;
    return false;
}

static bool holds_any(struct bytes text, const char *const *words) {
    for (; *words; words++)
        if (contains_word(text, *words))
            return true;
    return false;
}

/* The line up to the difference, and a little more. */
static struct bytes line_around(struct bytes text, size_t at) {
    size_t begin = at, end = at;

    while (begin && text.data[begin - 1] != '\n' && at - begin < 200)
        begin--;
    while (end < text.length && text.data[end] != '\n' && end - at < 200)
        end++;
    return (struct bytes){ text.data + begin, end - begin };
}

static int compare_lines(const void *a, const void *b) {
    const struct bytes *x = a, *y = b;
    int r = memcmp(x->data, y->data, MIN(x->length, y->length));

    return r ? r : (x->length > y->length) - (x->length < y->length);
}

static size_t split_bytes(struct bytes text, bool (*ends)(char), struct bytes *parts, size_t most) {
    size_t n = 0;

    for (size_t begin = 0, i = 0; i <= text.length; i++)
        if (i == text.length || ends(text.data[i])) {
            if (i > begin && n < most)
                parts[n++] = (struct bytes){ text.data + begin, i - begin };
            begin = i + 1;
        }
    return n;
}

static bool ends_line(char c) {
    return c == '\n';
}

static bool ends_item(char c) {
    return strchr(" \t\n,;[](){}'\"", c) != NULL;
}

/* The same parts, in another order. */
static bool same_parts(struct bytes a, struct bytes b, bool (*ends)(char)) {
    enum { MOST = 65536 };

    if (a.length != b.length || a.length > MAX_SORT)
        return false;
    auto_free struct bytes *parts = calloc(2 * MOST, sizeof *parts);
    if (!parts)
        return false;
    size_t n = split_bytes(a, ends, parts, MOST);
    if (n != split_bytes(b, ends, parts + MOST, MOST) || n == MOST)
        return false;
    qsort(parts, n, sizeof *parts, compare_lines);
    qsort(parts + MOST, n, sizeof *parts, compare_lines);
    for (size_t i = 0; i < n; i++)
        if (compare_lines(&parts[i], &parts[MOST + i]))
            return false;
    return true;
}

/* The part of a line around a word, up to commas and brackets: it says what the word means. */
static struct bytes phrase_around(struct bytes line, struct bytes word) {
    static const char ends[] = ",;(){}[]";

    if (word.data < line.data || word.data + word.length > line.data + line.length)
        return line; /* a word longer than the examined part of a line */
    size_t begin = (size_t)(word.data - line.data), end = begin + word.length;

    while (begin && !memchr(ends, line.data[begin - 1], sizeof ends - 1))
        begin--;
    while (end < line.length && !memchr(ends, line.data[end], sizeof ends - 1))
        end++;
    return (struct bytes){ line.data + begin, end - begin };
}

/* 2025-01-01 */
static bool begins_with_date(struct bytes word) {
    static const char shape[] = "dddd-dd-dd";

    for (size_t i = 0; i < sizeof shape - 1; i++)
        if (i >= word.length ||
            (shape[i] == 'd' ? !isdigit((unsigned char)word.data[i]) : word.data[i] != shape[i]))
            return false;
    return (word.data[0] == '1' && word.data[1] == '9') ||
           (word.data[0] == '2' && word.data[1] == '0');
}

/* 0.12s, 12.1 nsec, 3 ms, 1m3.5s: a number and a unit, with at most one blank between. Not minutes
 * alone, which could be metres. */
static bool is_duration(struct bytes word, struct bytes phrase) {
    static const char *const units[] = { "s", "ms", "us", "\xc2\xb5s", "ns", "sec", "secs",
        "second", "msec", "usec", "nsec" };
    const char *phrase_end = phrase.data + phrase.length, *at = word.data,
               *word_end = word.data + word.length;

    if (word.data < phrase.data || word_end > phrase_end)
        return false;
    while (at < word_end && isdigit((unsigned char)*at)) {
        while (at < word_end && (isdigit((unsigned char)*at) || *at == '.'))
            at++;
        if (at + 1 < word_end && strchr("hm", *at) && isdigit((unsigned char)at[1]))
            at++;
    }
    if (at == word.data || (at == word_end && at < phrase_end && *at == ' ' && ++at == phrase_end))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        size_t length = strlen(units[i]);

        if ((size_t)(phrase_end - at) >= length && !memcmp(at, units[i], length) &&
            (at + length == phrase_end ||
                !(isalnum((unsigned char)at[length]) || strchr("_-/+", at[length]))))
            return true;
    }
    return false;
}

static bool looks_like_time(struct bytes word, struct bytes phrase) {
    static const char *const words[] = { "time", "date", "elapsed", "seconds", " ms", "took", "UTC",
        "GMT", "real\t", NULL };
    size_t digits = count_characters(word, isdigit), colons = 0;

    for (size_t i = 1; i + 1 < word.length; i++)
        colons += word.data[i] == ':' && isdigit((unsigned char)word.data[i - 1]) &&
                  isdigit((unsigned char)word.data[i + 1]);
    if (begins_with_date(word) || (colons && digits >= 3 && digits + colons + 8 >= word.length))
        return true; /* 12:34:56, 2025-01-01T12:34:56Z */
    /* Seconds, milliseconds, ... since 1970, of the decades around now. */
    if (digits >= 10 && digits + 1 >= word.length && (word.data[0] == '1' || word.data[0] == '2') &&
        (digits == word.length ? digits <= 19 : true))
        return true;
    return digits && (holds_any(phrase, words) || is_duration(word, phrase));
}

static bool is_hex(struct bytes word) {
    size_t dashes = 0;

    for (size_t i = 0; i < word.length; i++)
        dashes += word.data[i] == '-';
    return word.length && dashes <= 4 && count_characters(word, isxdigit) + dashes == word.length;
}

static int class_of(char c) {
    return isdigit((unsigned char)c)   ? 'd'
           : isupper((unsigned char)c) ? 'u'
           : isalpha((unsigned char)c) ? 'l'
                                       : 0;
}

/* How often small and capital letters and digits follow each other in it as in no word that people
 * make: a capital before small letters is one of these. */
static size_t count_turns(struct bytes word) {
    size_t n = 0;

    for (size_t i = 1; i < word.length; i++) {
        int before = class_of(word.data[i - 1]), here = class_of(word.data[i]);

        n += before && here && before != here && !(before == 'u' && here == 'l');
    }
    return n;
}

/* Names of temporary files and tokens: the differing parts have the same length, differ nearly
 * everywhere, and are not words. */
static bool look_random(struct bytes a, struct bytes b) {
    size_t begin = 0, end = a.length, others = 0;

    if (a.length != b.length)
        return false;
    while (begin < end && a.data[begin] == b.data[begin])
        begin++;
    while (end > begin && a.data[end - 1] == b.data[end - 1])
        end--;
    const struct bytes x = { a.data + begin, end - begin }, y = { b.data + begin, end - begin };
    for (size_t i = 0; i < x.length; i++)
        others += x.data[i] != y.data[i];
    if (x.length < 5 || others * 4 < x.length * 3)
        return false;
    return contains_word(a, "tmp") ||
           (count_turns(x) + count_turns(y) >= 4 &&
               count_characters(x, isdigit) + count_characters(y, isdigit));
}

/* Of two words that differ, in their lines; NULL: they say nothing. */
static const char *guess_words(
    struct bytes a, struct bytes b, struct bytes line, struct bytes other, const char **ret_why) {
    static const char *const pids[] = { "pid", "process", "thread", "tid", "job ", NULL };
    const struct bytes phrase = phrase_around(line, a);
    bool numbers = a.length && b.length && count_characters(a, isdigit) == a.length &&
                   count_characters(b, isdigit) == b.length;

    if (numbers && a.length <= 7 && b.length <= 7 &&
        (holds_any(phrase, pids) || (a.data > line.data && a.data[-1] == '['))) {
        *ret_why = "a small number in a line that mentions a process";
        return "pid";
    }
    if (looks_like_time(a, phrase) && looks_like_time(b, phrase_around(other, b))) {
        *ret_why = "the difference is in what looks like a date, a clock's reading or a duration";
        return "time";
    }
    if ((contains_word(phrase, "0x") && is_hex(a)) || (a.length > 2 && contains_word(a, "0x"))) {
        *ret_why = "the difference is in what looks like an address (where things lie in memory is "
                   "random)";
        return "randomness";
    }
    if (look_random(a, b) || (is_hex(a) && is_hex(b) && a.length >= 8 &&
                                 count_characters(a, isalpha) + count_characters(b, isalpha))) {
        *ret_why = "the difference is in what looks like random letters and digits";
        return "randomness";
    }
    if (count_characters(a, isdigit) && count_characters(b, isdigit) &&
        (!count_characters(phrase, isalpha) || count_characters(a, isdigit) >= 12)) {
        *ret_why = LONE_NUMBERS;
        return "randomness";
    }
    return NULL;
}

/* The words after it in the same line, as far as they go in pairs. */
static const char *guess_line(struct bytes line, struct bytes other, const char **ret_why) {
    enum { MOST = 64 };
    struct bytes a[MOST], b[MOST];
    const char *found = NULL;
    size_t n = split_bytes(line, ends_item, a, MOST);

    if (n != split_bytes(other, ends_item, b, MOST))
        return NULL;
    for (size_t i = 0; i < n && !found; i++)
        if (compare_lines(&a[i], &b[i]))
            found = guess_words(a[i], b[i], line, other, ret_why);
    return found;
}

static bool is_inside_character(struct bytes text, size_t at) {
    return at < text.length && ((unsigned char)text.data[at] & 0xc0) == 0x80;
}

/* Of whole characters. */
static bool is_text(struct bytes text, size_t at, size_t n) {
    size_t begin = at, end = at + n, odd = 0;

    while (begin && is_inside_character(text, begin))
        begin--;
    while (end > begin && is_inside_character(text, end))
        end--;
    for (size_t i = begin; i < end; i++)
        odd += iscntrl((unsigned char)text.data[i]) && !isspace((unsigned char)text.data[i]);
    return utf8_valid(text.data + begin, end - begin) && !odd;
}

/* Bytes that are no text, and of which nearly all differ. */
static bool look_raw(struct bytes a, struct bytes b, size_t at) {
    enum { LOOKED_AT = 32, FEWEST = 4 };
    size_t n = MIN((size_t)LOOKED_AT, MIN(a.length, b.length) - at), others = 0;

    for (size_t i = at; i < at + n; i++)
        others += a.data[i] != b.data[i];
    return n >= FEWEST && others * 4 >= n * 3 && !is_text(a, at, n) && !is_text(b, at, n);
}

static const char *guess_values(
    struct bytes a, struct bytes b, size_t at, bool has_net, const char **ret_why) {
    static const char *const nets[] = { "connect", "resolve", "http", "socket", "network",
        "timed out", "refused", "unreachable", NULL };
    struct bytes line = line_around(a, MIN(at, a.length)),
                 other = line_around(b, MIN(at, b.length));

    if (same_parts(a, b, ends_line) || same_parts(a, b, ends_item)) {
        *ret_why = "both have the same parts in another order";
        return "order";
    }
    if (look_raw(a, b, at)) {
        *ret_why = "the difference is in binary data, and nearly all bytes differ";
        return "randomness";
    }
    if (has_net && (holds_any(line, nets) || holds_any(other, nets))) {
        *ret_why = "the line mentions a connection";
        return "network";
    }
    const char *found = guess_words(
        word_at(a, MIN(at, a.length)), word_at(b, MIN(at, b.length)), line, other, ret_why);
    return found ? found : guess_line(line, other, ret_why);
}

static bool is_port(struct bytes word) {
    return word.length >= 4 && word.length <= 5 && count_characters(word, isdigit) == word.length;
}

/* The guess by the values, and by the sources of randomness that the policy leaves open. */
static const char *guess_text(
    struct bytes a, struct bytes b, size_t at, const json_t *header, const char **ret_why) {
    const char *net =
        json_string_value(json_object_get(json_object_get(header, "isolation"), "net"));
    const json_t *seed = json_object_get(header, "random_seed");
    const bool has_net = !net || strcmp(net, "none"), is_host = net && !strcmp(net, "host"),
               seeded = seed && !json_is_null(seed);
    const char *found = guess_values(a, b, at, has_net, ret_why);
    const bool random = found && !strcmp(found, "randomness"),
               lone = random && !strcmp(*ret_why, LONE_NUMBERS);
    const struct bytes word = word_at(a, MIN(at, a.length)), other = word_at(b, MIN(at, b.length));

    /* Data from a network is text. A number that is not a port is no evidence of a network. */
    if (is_host &&
        ((!found && count_characters(word, isalpha) + count_characters(other, isalpha)) ||
            (random && seeded && !lone))) {
        *ret_why = "the values give no hint, but the policy allows the host's network, whose ports "
                   "and answers vary";
        return "network";
    }
    const bool are_ports = is_port(word) && is_port(other);
    if (net && has_net && (!found || lone) && are_ports) {
        *ret_why = "the numbers could be ports, which the kernel chooses";
        return "network";
    }
    if (random && seeded && json_is_string(json_object_get(header, "time_start"))) {
        *ret_why = "it looks random, but the policy has random_seed and time_start";
        return "unknown";
    }
    if (!found)
        *ret_why = "the values give no hint of their source";
    return found ? found : "unknown";
}

/* NULL is equal to NULL. */
static bool is_same_value(const json_t *a, const json_t *b) {
    return a == b || json_equal(a, b);
}

/* ---- differences ---- */

static int add_divergence(
    struct divergence *divergence, const char *where, const json_t *a, const json_t *b) {
    const json_t *values[2] = { a, b };

    snprintf(divergence->where, sizeof divergence->where, "%s", where);
    divergence->offset = -1;
    divergence->source = "unknown";
    divergence->why = "the values give no hint";
    for (int i = 0; i < 2; i++) {
        auto_free char *text = values[i]
                                   ? json_dumps(values[i], JSON_COMPACT | JSON_ENSURE_ASCII |
                                                               JSON_ENCODE_ANY | JSON_SORT_KEYS)
                                   : NULL;

        if (!text)
            buf_add_text(&divergence->values[i], "null");
        else if (strlen(text) <= MAX_NOTE)
            buf_add_text(&divergence->values[i], text);
        else
            buf_printf(&divergence->values[i], "\"%zu characters of JSON\"", strlen(text));
    }
    return 1;
}

static void add_excerpt(struct buf *to, struct bytes text, size_t at) {
    size_t begin = at > EXCERPT_BEFORE ? at - EXCERPT_BEFORE : 0,
           n = MIN((size_t)EXCERPT, text.length - MIN(begin, text.length));
    auto_buf struct buf clean = BUF_INIT;

    /* Moves the position to the start of a character, if the content is text. */
    while (begin && begin < text.length && begin > at - MIN(at, (size_t)EXCERPT_BEFORE + 3) &&
           ((unsigned char)text.data[begin] & 0xc0) == 0x80)
        begin--;
    n = MIN(n, text.length - MIN(begin, text.length));
    utf8_replace(&clean, text.data + begin, n);
    json_t *string =
        buf_failed(&clean) ? NULL : json_stringn(text_or(clean.data, ""), clean.length);
    auto_free char *json = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    json_decref(string);
    if (json)
        buf_add_text(to, json);
    else
        to->failed = true;
}

/* Two texts that differ at a byte. */
static int note_texts(
    struct divergence *divergence, const char *where, struct bytes a, struct bytes b, size_t at) {
    snprintf(divergence->where, sizeof divergence->where, "%s", where);
    divergence->offset = (int64_t)at;
    divergence->bytes[0] = at < a.length ? (unsigned char)a.data[at] : -1;
    divergence->bytes[1] = at < b.length ? (unsigned char)b.data[at] : -1;
    add_excerpt(&divergence->values[0], a, at);
    add_excerpt(&divergence->values[1], b, at);
    divergence->source = guess_text(a, b, at, divergence->header, &divergence->why);
    return 1;
}

static size_t first_difference(struct bytes a, struct bytes b) {
    size_t common = MIN(a.length, b.length), at = 0;

    while (at < common && a.data[at] == b.data[at])
        at++;
    return at;
}

static int compare_contents(
    const json_t *a, const json_t *b, const char *where, struct divergence *divergence) {
    const json_t *da = json_object_get(a, "sha256"), *db = json_object_get(b, "sha256");
    auto_buf struct buf ta = BUF_INIT;
    auto_buf struct buf tb = BUF_INIT;
    bool have_a = read_bytes(a, &ta) == 0, have_b = read_bytes(b, &tb) == 0;
    bool whole = have_a && have_b && !json_is_true(json_object_get(a, "truncated")) &&
                 !json_is_true(json_object_get(b, "truncated"));
    struct bytes xa = { ta.length ? ta.data : "", ta.length },
                 xb = { tb.length ? tb.data : "", tb.length };
    size_t at = have_a && have_b ? first_difference(xa, xb) : 0;

    if (buf_failed(&ta) || buf_failed(&tb))
        return -ENOMEM;
    if (have_a && have_b && (at < MIN(xa.length, xb.length) || (whole && xa.length != xb.length)))
        return note_texts(divergence, where, xa, xb, at);
    if (whole && da && db && is_same_value(json_object_get(a, "cut"), json_object_get(b, "cut")))
        return 0;
    if (!is_same_value(da, db) ||
        !is_same_value(json_object_get(a, "bytes"), json_object_get(b, "bytes")) ||
        !is_same_value(json_object_get(a, "cut"), json_object_get(b, "cut"))) {
        json_t *sa = json_pack("{s:O?, s:O?}", "bytes", json_object_get(a, "bytes"), "sha256", da),
               *sb = json_pack("{s:O?, s:O?}", "bytes", json_object_get(b, "bytes"), "sha256", db);

        add_divergence(divergence, where, sa, sb);
        divergence->why =
            "they differ after the part that was kept: record with a larger limit to see where";
        json_decref(sa);
        json_decref(sb);
        return 1;
    }
    return 0;
}

static bool is_content(const json_t *value) {
    return json_is_integer(json_object_get(value, "bytes")) &&
           (json_object_get(value, "sha256") || json_object_get(value, "withheld"));
}

static int compare_values(
    const json_t *a, const json_t *b, const char *where, struct divergence *divergence);

/* Keys may be a guest's words, of any length: other characters than plain ones become '?'. */
static void add_plain(char *to, size_t size, const char *text) {
    size_t at = strlen(to);

    for (; *text && at + 1 < size; text++)
        if (((unsigned char)*text & 0xc0) != 0x80)
            to[at++] = *text >= ' ' && *text < 127 ? *text : '?';
    to[at] = '\0';
}

static const char *path_below(const char *where, const char *key, char *path, size_t size) {
    path[0] = '\0';
    add_plain(path, size, where);
    add_plain(path, size, *where ? "." : "");
    add_plain(path, size, key);
    return path;
}

static int compare_objects(
    const json_t *a, const json_t *b, const char *where, struct divergence *divergence) {
    char path[sizeof divergence->where];
    const char *key;
    json_t *value;
    int r = 0;

    json_object_foreach((json_t *)a, key, value) {
        r = compare_values(
            value, json_object_get(b, key), path_below(where, key, path, sizeof path), divergence);
        if (r)
            return r;
    }
    json_object_foreach(
        (json_t *)b, key, value) if (!json_object_get(a, key)) return add_divergence(divergence,
        path_below(where, key, path, sizeof path), NULL, value);
    return 0;
}

static int compare_values(
    const json_t *a, const json_t *b, const char *where, struct divergence *divergence) {
    if (is_content(a) && is_content(b))
        return compare_contents(a, b, where, divergence);
    if (json_is_object(a) && json_is_object(b))
        return compare_objects(a, b, where, divergence);
    if (!json_is_array(a) || !json_is_array(b))
        return is_same_value(a, b) ? 0 : add_divergence(divergence, where, a, b);
    for (size_t i = 0; i < MAX(json_array_size(a), json_array_size(b)); i++) {
        char path[sizeof divergence->where];

        snprintf(path, sizeof path, "%.100s[%zu]", where, i);
        int r = compare_values(json_array_get(a, i), json_array_get(b, i), path, divergence);
        if (r)
            return r;
    }
    return 0;
}

/* ---- files ---- */

static void note_path(struct divergence *divergence, const json_t *change) {
    const json_t *path = json_object_get(change, "path");
    auto_free char *text =
        path ? json_dumps(path, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY) : NULL;

    if (text && !divergence->path.length && strlen(text) <= MAX_PATH)
        buf_add_text(&divergence->path, text);
}

/* The description of a file, with its first bytes if they are known. */
static json_t *file_of(const json_t *change, bool have, struct bytes text) {
    json_t *object = json_pack("{s:O?, s:O?}", "bytes", json_object_get(change, "size"), "sha256",
        json_object_get(change, "sha256"));
    auto_buf struct buf clean = BUF_INIT;

    utf8_replace(&clean, text.data, MIN(text.length, (size_t)EXCERPT));
    if (have && !buf_failed(&clean))
        json_object_set_new(
            object, "begins", json_stringn(clean.length ? clean.data : "", clean.length));
    return object;
}

/* Records contain only the digests of files. The content is known for sandboxes that existed a
 * moment ago. */
static int note_file(const struct step *a, const struct step *b, const json_t *change,
    const json_t *other, const char *where, struct divergence *divergence) {
    auto_buf struct buf ta = BUF_INIT;
    auto_buf struct buf tb = BUF_INIT;
    bool have_a = read_bytes(json_object_get(
                                 a->contents, json_string_value(json_object_get(change, "sha256"))),
                      &ta) == 0;
    bool have_b = read_bytes(json_object_get(
                                 b->contents, json_string_value(json_object_get(other, "sha256"))),
                      &tb) == 0;
    struct bytes xa = { ta.length ? ta.data : "", ta.length },
                 xb = { tb.length ? tb.data : "", tb.length };

    if (buf_failed(&ta) || buf_failed(&tb))
        return -ENOMEM;
    if (have_a && have_b)
        return note_texts(divergence, where, xa, xb, first_difference(xa, xb));
    json_t *sa = file_of(change, have_a, xa), *sb = file_of(other, have_b, xb);
    add_divergence(divergence, where, sa, sb);
    divergence->why = have_a || have_b ? "the content of one of the two is unknown, only its digest"
                                       : "the content of the two is unknown, only their digests";
    json_decref(sa);
    json_decref(sb);
    return 1;
}

static int compare_paths(
    const json_t *a, const json_t *b, const char *where, struct divergence *divergence) {
    struct bytes xa = { json_string_value(a), json_string_length(a) },
                 xb = { json_string_value(b), json_string_length(b) };

    if (is_same_value(a, b))
        return 0;
    add_divergence(divergence, where, a, b);
    if (xa.data && xb.data)
        divergence->source =
            guess_text(xa, xb, first_difference(xa, xb), divergence->header, &divergence->why);
    return 1;
}

static bool differs_inside(const json_t *a, const json_t *b) {
    const json_t *da = json_object_get(a, "sha256"), *db = json_object_get(b, "sha256");

    return json_is_string(da) && json_is_string(db) && !json_equal(da, db) &&
           is_same_value(json_object_get(a, "type"), json_object_get(b, "type")) &&
           is_same_value(json_object_get(a, "change"), json_object_get(b, "change"));
}

/* Changed files, which both have in the order of their paths. */
static int compare_changes(
    const struct step *a, const struct step *b, struct divergence *divergence) {
    const json_t *changes = json_object_get(a->observation, "changes"),
                 *others = json_object_get(b->observation, "changes");
    int r = 0;

    for (size_t i = 0; i < MAX(json_array_size(changes), json_array_size(others)) && r == 0; i++) {
        const json_t *change = json_array_get(changes, i), *other = json_array_get(others, i);
        char where[64], key[80];

        snprintf(where, sizeof where, "changes[%zu]", i);
        if (change && other)
            r = compare_paths(json_object_get(change, "path"), json_object_get(other, "path"),
                path_below(where, "path", key, sizeof key), divergence);
        if (r)
            return r;
        r = differs_inside(change, other)
                ? note_file(
                      a, b, change, other, path_below(where, "sha256", key, sizeof key), divergence)
                : compare_values(change, other, where, divergence);
        if (r > 0)
            note_path(divergence, change ? change : other);
    }
    return r;
}

/* Two steps, at most one of which describes files: no files were changed in the other. */
static void name_file(const struct step *step, struct divergence *divergence) {
    if (step && !strcmp(step->kind, "files"))
        note_path(divergence, json_array_get(json_object_get(step->observation, "changes"), 0));
}

/* ---- steps ---- */

/* Content that was left out: a secret's digest, files that are too large for a digest, or too many
 * files to list. */
static bool holds_unseen(const json_t *value) {
    const char *key;
    json_t *item;
    size_t i;

    if (json_is_true(json_object_get(value, "withheld")) ||
        json_is_true(json_object_get(value, "too_large")) ||
        json_integer_value(json_object_get(value, "omitted")))
        return true;
    json_object_foreach((json_t *)value, key, item) if (holds_unseen(item)) return true;
    json_array_foreach(value, i, item) if (holds_unseen(item)) return true;
    return false;
}

/* Files that could not be read. They are not equal only because both could not be read. */
static bool lacks_files(const struct step *step) {
    return !strcmp(step->kind, "files") && json_object_get(step->observation, "error") &&
           !json_is_null(json_object_get(step->observation, "error"));
}

bool compare_is_partial(const struct step *step) {
    return step &&
           (holds_unseen(step->action) || holds_unseen(step->observation) || lacks_files(step));
}

static bool is_cancelled(const struct step *step) {
    const char *code =
        json_string_value(json_object_get(json_object_get(step->observation, "error"), "code"));

    return code && !strcmp(code, "cancelled");
}

/* A time-out or a lack of memory is said of the program, but often comes from the machine. */
static void blame_machine(
    const struct step *a, const struct step *b, struct divergence *divergence) {
    const char *outcomes[2] = { json_string_value(json_object_get(a->observation, "outcome")),
        json_string_value(json_object_get(b->observation, "outcome")) };

    for (int i = 0; i < 2; i++)
        if (outcomes[i] && !strcmp(outcomes[i], "timeout")) {
            divergence->source = "time";
            divergence->why = "it reached its time-out, which is in real time";
        }
}

int compare_steps(const struct step *a, const struct step *b, struct divergence *ret_divergence) {
    struct divergence divergence = { .step = a ? a->number : b->number,
        .header = a ? a->header : b->header };
    int r;

    add_plain(divergence.kind, sizeof divergence.kind, a ? a->kind : b->kind);
    if (!a)
        r = add_divergence(&divergence, "step", NULL, b ? b->action : NULL);
    else if (!b)
        r = add_divergence(&divergence, "step", a->action, NULL);
    else if (a->number != b->number)
        r = add_divergence(&divergence, "step", json_object_get(a->json, "step"),
            json_object_get(b->json, "step"));
    else
        r = compare_objects(a->action, b->action, "action", &divergence);
    if (r == 0 && is_cancelled(a) && is_cancelled(b))
        return 0; /* by the client, at some moment: a replay does not repeat how far the processes
                     had come */
    /* A difference in a stream is more informative than the status that follows from it. */
    static const char *const first[] = { "stdout", "stderr" };
    for (size_t i = 0; i < ARRAY_SIZE(first) && r == 0; i++)
        r = compare_values(json_object_get(a->observation, first[i]),
            json_object_get(b->observation, first[i]), first[i], &divergence);
    if (r == 0)
        r = compare_changes(a, b, &divergence);
    if (r == 0)
        r = compare_objects(a->observation, b->observation, "", &divergence);
    if (r > 0 && a && b && strncmp(divergence.where, "action", 6))
        blame_machine(a, b, &divergence);
    if (r > 0 && (!strcmp(divergence.where, "step") || !strcmp(divergence.where, "action.kind"))) {
        name_file(a, &divergence);
        name_file(b, &divergence);
    }
    if (r > 0 && (buf_failed(&divergence.path) || buf_failed(&divergence.values[0]) ||
                     buf_failed(&divergence.values[1])))
        r = -ENOMEM;
    if (r > 0)
        *ret_divergence = divergence;
    else
        divergence_done(&divergence);
    return r;
}
