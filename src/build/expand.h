/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces the variables of a word of a Dockerfile, and removes its quotes. Pure.
 *
 * Forms: $NAME, ${NAME}, ${NAME:-word}, ${NAME-word}, ${NAME:+word}, ${NAME+word}, ${NAME:?word},
 * ${NAME?word}, ${NAME#pattern}, ${NAME##pattern}, ${NAME%pattern}, ${NAME%%pattern},
 * ${NAME/pattern/word}, ${NAME//pattern/word}. Words may have variables themselves.
 */
#ifndef ROLLBOX_BUILD_EXPAND_H
#define ROLLBOX_BUILD_EXPAND_H

#include <stdbool.h>
#include <stddef.h>

#include "build/dockerfile.h"

#define EXPAND_MAX_BYTES (128u << 10) /* as much as one variable of a program may have */

struct expand_scope {
    /* The value of a variable; NULL: it is not set. */
    const char *(*find)(void *context, const char *name);
    void *context;
    char escape;
};

enum expand_quotes {
    EXPAND_REMOVES_QUOTES,
    EXPAND_KEEPS_QUOTES, /* in the body of a heredoc, quotes are nothing special */
};

#define EXPAND_WHY 200

/* *ret_text, for free(). -EINVAL with the reason in `ret_why`, or -ENOMEM. */
int expand_word(const struct expand_scope *scope, const char *word, enum expand_quotes quotes,
    char **ret_text, char ret_why[EXPAND_WHY]);

/* The words of a text, split at blanks that are neither quoted nor escaped; quotes are kept.
 * -ENOMEM. */
int expand_split(const char *text, char escape, struct words *ret_words);

#endif
