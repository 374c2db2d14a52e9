/* SPDX-License-Identifier: Apache-2.0 */
#include "build/dockerfile.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

static const char *const names[] = {
#define INSTRUCTION_NAME(name) [INSTRUCTION_##name] = #name,
    INSTRUCTIONS(INSTRUCTION_NAME)
#undef INSTRUCTION_NAME
};

const char *instruction_name(enum instruction_kind kind) {
    return names[kind];
}

int words_take(struct words *words, char *take_text) {
    char **more = take_text ? reallocarray(words->list, words->n + 2, sizeof *words->list) : NULL;

    if (!more) {
        free(take_text);
        return -ENOMEM;
    }
    words->list = more;
    words->list[words->n++] = take_text;
    words->list[words->n] = NULL;
    return 0;
}

int words_add(struct words *words, const char *text, size_t length) {
    return words_take(words, text_copy(text, length));
}

void words_done(struct words *words) {
    for (size_t i = 0; i < words->n; i++)
        free(words->list[i]);
    free(words->list);
    *words = (struct words){ 0 };
}

static void instruction_done(struct instruction *instruction) {
    for (size_t i = 0; i < instruction->n_heredocs; i++) {
        free(instruction->heredocs[i].name);
        free(instruction->heredocs[i].body);
    }
    free(instruction->heredocs);
    words_done(&instruction->flags);
    words_done(&instruction->json);
    free(instruction->arguments);
}

void dockerfile_done(struct dockerfile *dockerfile) {
    for (size_t i = 0; i < dockerfile->n; i++)
        instruction_done(&dockerfile->items[i]);
    free(dockerfile->items);
    free(dockerfile->name);
    *dockerfile = (struct dockerfile){ 0 };
}

int dockerfile_refuse(struct rollbox_error *error, const struct dockerfile *dockerfile,
    unsigned line, enum rollbox_error_code code, const char *format, ...) {
    auto_buf struct buf shown = BUF_INIT;
    char text[700];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    utf8_shown(&shown, text, strlen(text), "");
    buf_add(&shown, "", 1);
    return error_set(error, code, EINVAL, "build", "%.200s:%u: %s", dockerfile->name, line,
        buf_failed(&shown) ? "" : shown.data);
}

/* ---- lines ---- */

struct reader {
    struct dockerfile *file;
    struct rollbox_error *error;
    const char *at, *end;
    unsigned line; /* of the last line read */
};

struct line {
    const char *text;
    size_t length; /* without the end of the line */
};

static bool read_line(struct reader *reader, struct line *ret_line) {
    if (reader->at >= reader->end)
        return false;
    const char *newline = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
    const char *stop = newline ? newline : reader->end;

    *ret_line = (struct line){ reader->at, (size_t)(stop - reader->at) };
    if (ret_line->length && stop[-1] == '\r')
        ret_line->length--;
    reader->at = newline ? newline + 1 : reader->end;
    reader->line++;
    return true;
}

static size_t skip_blanks(const char *text, size_t length) {
    size_t n = 0;

    while (n < length && strchr(WORD_BLANKS, text[n]))
        n++;
    return n;
}

static size_t trimmed_length(const char *text, size_t length) {
    while (length && strchr(WORD_BLANKS, text[length - 1]))
        length--;
    return length;
}

static bool is_comment_or_empty(const struct line *line) {
    size_t n = skip_blanks(line->text, line->length);

    return n == line->length || line->text[n] == '#';
}

/* A line that ends with one escape character continues on the next line; a line that ends with two
 * does not. Returns the length without the escape character, or SIZE_MAX for a line that ends. */
static size_t continued_length(const struct line *line, char escape) {
    size_t n = trimmed_length(line->text, line->length);

    if (!n || line->text[n - 1] != escape)
        return SIZE_MAX;
    return n >= 2 && line->text[n - 2] == escape ? SIZE_MAX : n - 1;
}

static int out_of_memory(struct reader *reader) {
    return error_set(
        reader->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory");
}

__attribute__((format(printf, 3, 4))) static int refuse_line(
    struct reader *reader, unsigned line, const char *format, ...) {
    char text[600];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return dockerfile_refuse(
        reader->error, reader->file, line, ROLLBOX_ERR_INVALID_ARGUMENT, "%s", text);
}

/* ---- directives ---- */

static bool is_key(const char *text, size_t length, const char *key) {
    return strlen(key) == length && strncasecmp(text, key, length) == 0;
}

/* Reads a directive, "# key=value". Returns 1, or 0 if the line is no directive, or an error. */
static int read_directive(struct reader *reader, const struct line *line, bool *has_escape) {
    size_t at = skip_blanks(line->text, line->length);

    if (at == line->length || line->text[at] != '#')
        return 0;
    at++;
    at += skip_blanks(line->text + at, line->length - at);
    const char *key = line->text + at;
    size_t key_length = 0;
    while (at + key_length < line->length && isalnum((unsigned char)key[key_length]))
        key_length++;
    at += key_length;
    at += skip_blanks(line->text + at, line->length - at);
    if (!key_length || at == line->length || line->text[at] != '=')
        return 0;
    at++;
    at += skip_blanks(line->text + at, line->length - at);
    const char *value = line->text + at;
    size_t value_length = trimmed_length(value, line->length - at);
    if (!value_length)
        return 0;
    if (is_key(key, key_length, "escape")) {
        if (*has_escape)
            return refuse_line(reader, reader->line, "escape is given twice");
        if (value_length != 1 || (value[0] != '\\' && value[0] != '`'))
            return refuse_line(reader, reader->line, "escape must be \\ or `");
        reader->file->escape = value[0];
        *has_escape = true;
        return 1;
    }
    /* `syntax` and `check` have no effect: this program has one syntax and no optional checks. */
    return is_key(key, key_length, "syntax") || is_key(key, key_length, "check");
}

static int read_directives(struct reader *reader) {
    bool has_escape = false;

    for (;;) {
        struct reader before = *reader;
        struct line line;

        if (!read_line(reader, &line))
            return 0;
        int r = read_directive(reader, &line, &has_escape);
        if (r <= 0) {
            *reader = before;
            return r;
        }
    }
}

/* ---- heredocs ---- */

size_t word_length(const char *text, char escape) {
    char quote = '\0';
    size_t n = 0;

    for (; text[n]; n++) {
        if (text[n] == escape && quote != '\'' && text[n + 1])
            n++;
        else if (quote)
            quote = text[n] == quote ? '\0' : quote;
        else if (text[n] == '"' || text[n] == '\'')
            quote = text[n];
        else if (strchr(WORD_BLANKS, text[n]))
            break;
    }
    return n;
}

/* Reads the head of a heredoc: "<<NAME", "<<-NAME" or "<<'NAME'". A descriptor's number may precede
 * it, and in RUN the rest of a shell command may follow it. Returns 1 and the heredoc without its
 * body, or 0 if the word is no heredoc, or -ENOMEM. */
static int find_heredoc(
    const char *word, size_t length, struct heredoc *ret_heredoc, bool *ret_strips) {
    static const char ends[] = ";&|<>()";
    size_t at = 0;
    char quote = '\0';

    while (at < length && isdigit((unsigned char)word[at]))
        at++;
    if (length - at < 3 || word[at] != '<' || word[at + 1] != '<' || word[at + 2] == '<')
        return 0;
    at += 2;
    *ret_strips = word[at] == '-';
    at += *ret_strips;
    if (at < length && (word[at] == '"' || word[at] == '\''))
        quote = word[at++];
    size_t begin = at;
    while (at < length && (quote ? word[at] != quote : !strchr(ends, word[at])))
        at++;
    if (at == begin || (quote && at == length))
        return 0;
    *ret_heredoc = (struct heredoc){ .name = text_copy(word + begin, at - begin),
        .is_literal = quote != '\0' };
    return ret_heredoc->name ? 1 : -ENOMEM;
}

static int read_body(struct reader *reader, struct heredoc *heredoc, bool strips, unsigned first) {
    auto_buf struct buf body = BUF_INIT;
    size_t name_length = strlen(heredoc->name);
    struct line line;

    while (read_line(reader, &line)) {
        while (strips && line.length && line.text[0] == '\t') {
            line.text++;
            line.length--;
        }
        if (line.length == name_length && memcmp(line.text, heredoc->name, name_length) == 0) {
            buf_add(&body, "", 1);
            heredoc->body = buf_failed(&body) ? NULL : buf_take(&body);
            return heredoc->body ? 0 : out_of_memory(reader);
        }
        buf_add(&body, line.text, line.length);
        buf_add(&body, "\n", 1);
    }
    return refuse_line(
        reader, first, "the heredoc has no end: a line %.100s is missing", heredoc->name);
}

static int read_heredocs(struct reader *reader, struct instruction *instruction) {
    const char *at = instruction->arguments;

    while (*at) {
        size_t length = word_length(at, reader->file->escape);
        struct heredoc found;
        bool strips;
        int r = find_heredoc(at, length, &found, &strips);

        if (r > 0) {
            struct heredoc *added = array_add(
                &instruction->heredocs, instruction->n_heredocs, sizeof *instruction->heredocs);

            if (!added) {
                free(found.name);
                return out_of_memory(reader);
            }
            *added = found;
            instruction->n_heredocs++;
            r = read_body(reader, added, strips, instruction->line);
        } else if (r == -ENOMEM) {
            return out_of_memory(reader);
        }
        if (r < 0)
            return r;
        at += length;
        at += strspn(at, WORD_BLANKS);
    }
    return 0;
}

/* ---- instructions ---- */

static bool may_be_json(enum instruction_kind kind) {
    switch ((int)kind) {
    case INSTRUCTION_ADD:
    case INSTRUCTION_CMD:
    case INSTRUCTION_COPY:
    case INSTRUCTION_ENTRYPOINT:
    case INSTRUCTION_RUN:
    case INSTRUCTION_SHELL:
    case INSTRUCTION_VOLUME:
        return true;
    default:
        return false;
    }
}

/* Reads the exec form, a JSON array of strings. Any other text is the shell form, as in Docker. */
static int read_json(struct reader *reader, struct instruction *instruction) {
    json_t *array, *item;
    int r = 0;
    size_t i;

    if (instruction->arguments[0] != '[')
        return 0;
    array = json_loads(instruction->arguments, JSON_REJECT_DUPLICATES, NULL);
    bool good = json_is_array(array);
    json_array_foreach(array, i, item) good = good && json_is_string(item);
    if (good) {
        instruction->is_json = true;
        json_array_foreach(array, i, item) if (r == 0) r =
            words_take(&instruction->json, strdup(json_string_value(item)));
    }
    json_decref(array);
    return r < 0 ? out_of_memory(reader) : 0;
}

/* Reads the flags at the beginning: "--name=value" and "--name". */
static int take_flags(struct reader *reader, struct instruction *instruction, const char **at) {
    while (strncmp(*at, "--", 2) == 0) {
        size_t length = word_length(*at, reader->file->escape);

        if (length > 2 && words_add(&instruction->flags, *at + 2, length - 2) < 0)
            return out_of_memory(reader);
        *at += length;
        *at += strspn(*at, WORD_BLANKS);
        if (length == 2)
            break;
    }
    return 0;
}

static int parse_instruction(struct reader *reader, const char *text, unsigned line) {
    size_t length = strcspn(text, WORD_BLANKS), kind;
    const char *at = text + length + strspn(text + length, WORD_BLANKS);

    for (kind = 0; kind < ARRAY_SIZE(names); kind++)
        if (is_key(text, length, names[kind]))
            break;
    if (kind == ARRAY_SIZE(names))
        return refuse_line(reader, line, "%.*s is no instruction of a Dockerfile",
            (int)MIN(length, (size_t)60), text);
    if (reader->file->n == DOCKERFILE_MAX_INSTRUCTIONS)
        return refuse_line(
            reader, line, "there are more than %u instructions", DOCKERFILE_MAX_INSTRUCTIONS);
    struct instruction *instruction =
        array_add(&reader->file->items, reader->file->n, sizeof *instruction);
    if (!instruction)
        return out_of_memory(reader);
    reader->file->n++;
    instruction->kind = (enum instruction_kind)kind;
    instruction->line = line;
    int r = take_flags(reader, instruction, &at);
    if (r < 0)
        return r;
    instruction->arguments = strdup(at);
    if (!instruction->arguments)
        return out_of_memory(reader);
    if (may_be_json(instruction->kind))
        r = read_json(reader, instruction);
    bool has_heredocs =
        kind == INSTRUCTION_RUN || kind == INSTRUCTION_COPY || kind == INSTRUCTION_ADD;
    if (r == 0 && has_heredocs && !instruction->is_json)
        r = read_heredocs(reader, instruction);
    if (r == 0 && !instruction->arguments[0] && kind != INSTRUCTION_CMD &&
        kind != INSTRUCTION_ENTRYPOINT)
        r = refuse_line(reader, line, "%s needs an argument", names[kind]);
    return r;
}

/* Joins the lines of the next instruction. Returns 1, or 0 at the end of the file, or an error. */
static int read_instruction(struct reader *reader, struct buf *text, unsigned *ret_line) {
    const char escape = reader->file->escape;
    struct line line;

    do
        if (!read_line(reader, &line))
            return 0;
    while (is_comment_or_empty(&line));
    *ret_line = reader->line;
    size_t blanks = skip_blanks(line.text, line.length);
    line.text += blanks;
    line.length -= blanks;
    text->length = 0;
    for (;;) {
        size_t continued = continued_length(&line, escape);

        buf_add(text, line.text, continued == SIZE_MAX ? line.length : continued);
        if (continued == SIZE_MAX)
            break;
        bool more;
        while ((more = read_line(reader, &line)) && is_comment_or_empty(&line))
            ;
        if (!more)
            break;
    }
    while (text->length && strchr(WORD_BLANKS, text->data[text->length - 1]))
        text->length--;
    buf_add(text, "", 1);
    return buf_failed(text) ? out_of_memory(reader) : 1;
}

static int check_text(
    const char *name, const char *text, size_t length, struct rollbox_error *error) {
    if (length > DOCKERFILE_MAX_BYTES)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
            "%.200s has more than %u bytes", name, DOCKERFILE_MAX_BYTES);
    if (memchr(text, '\0', length) || !utf8_valid(text, length))
        return error_set(
            error, ROLLBOX_ERR_INVALID_ARGUMENT, EILSEQ, "build", "%.200s is not UTF-8 text", name);
    return 0;
}

int dockerfile_parse(const char *name, const char *text, size_t length,
    struct dockerfile *ret_dockerfile, struct rollbox_error *error) {
    struct dockerfile file = { .name = strdup(name), .escape = '\\' };
    struct reader reader = { .file = &file, .error = error, .at = text, .end = text + length };
    auto_buf struct buf logical = BUF_INIT;
    unsigned line = 0;

    int r = file.name ? check_text(name, text, length, error) : out_of_memory(&reader);
    if (r == 0 && length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        reader.at += 3;
    if (r == 0)
        r = read_directives(&reader);
    while (r >= 0 && (r = read_instruction(&reader, &logical, &line)) > 0)
        r = parse_instruction(&reader, logical.data, line);
    if (r == 0 && !file.n)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "build",
            "%.200s has no instructions", name);
    if (r < 0) {
        dockerfile_done(&file);
        return r;
    }
    *ret_dockerfile = file;
    return 0;
}
