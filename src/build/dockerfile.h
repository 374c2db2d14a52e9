/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a Dockerfile: text in, a list of instructions out. Pure, no I/O.
 *
 * This part knows lines, continuations, comments, parser directives, flags, the JSON form of
 * arguments and heredocs (https://docs.docker.com/reference/dockerfile/). It does not know what an
 * instruction means, and replaces no variables (expand.h). The text is untrusted.
 */
#ifndef ROLLBOX_BUILD_DOCKERFILE_H
#define ROLLBOX_BUILD_DOCKERFILE_H

#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#define DOCKERFILE_MAX_BYTES (4u << 20)
#define DOCKERFILE_MAX_INSTRUCTIONS 10000

/* clang-format off */
#define INSTRUCTIONS(X) \
    X(ADD) X(ARG) X(CMD) X(COPY) X(ENTRYPOINT) X(ENV) X(EXPOSE) X(FROM) X(HEALTHCHECK) X(LABEL) \
    X(MAINTAINER) X(ONBUILD) X(RUN) X(SHELL) X(STOPSIGNAL) X(USER) X(VOLUME) X(WORKDIR)
/* clang-format on */

enum instruction_kind {
#define INSTRUCTION_ENUM(name) INSTRUCTION_##name,
    INSTRUCTIONS(INSTRUCTION_ENUM)
#undef INSTRUCTION_ENUM
};

/* A NULL-terminated list of strings. */
struct words {
    char **list;
    size_t n;
};

/* 0 or -ENOMEM. words_take consumes its text, also on failure; NULL is -ENOMEM. */
int words_take(struct words *words, char *take_text);
int words_add(struct words *words, const char *text, size_t length);
void words_done(struct words *words);

#define WORD_BLANKS " \t\v\f\r"

/* The length of the word that begins at `text`, up to a blank that is neither quoted nor escaped.
 */
size_t word_length(const char *text, char escape);

struct heredoc {
    char *name; /* the delimiter, without its quotes */
    char *body;
    bool is_literal; /* the delimiter was quoted: no variables are replaced */
};

struct instruction {
    enum instruction_kind kind;
    unsigned line;      /* the first one, from 1 */
    struct words flags; /* "from=build", without the dashes */
    char *arguments;    /* the rest, in one line; may be empty */
    struct words json;  /* the arguments in JSON form, if is_json */
    bool is_json;
    struct heredoc *heredocs;
    size_t n_heredocs;
};

struct dockerfile {
    char *name; /* for messages */
    char escape;
    struct instruction *items;
    size_t n;
};

/* Errors: INVALID_ARGUMENT, with "NAME:LINE: ..."; RESOURCE_EXHAUSTED. dockerfile_done frees the
 * result. */
int dockerfile_parse(const char *name, const char *text, size_t length,
    struct dockerfile *ret_dockerfile, struct rollbox_error *error);
void dockerfile_done(struct dockerfile *dockerfile);

/* "RUN". Static. */
const char *instruction_name(enum instruction_kind kind);

/* An error of a line: "NAME:LINE: ...". Returns -error_number. */
__attribute__((format(printf, 5, 6))) int dockerfile_refuse(struct rollbox_error *error,
    const struct dockerfile *dockerfile, unsigned line, enum rollbox_error_code code,
    const char *format, ...);

#endif
