/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns of file names: of COPY, of .dockerignore, and of ${NAME#pattern}. Pure.
 *
 * A match takes time in proportion to pattern times text, whatever both are.
 */
#ifndef ROLLBOX_BUILD_GLOB_H
#define ROLLBOX_BUILD_GLOB_H

#include <stdbool.h>
#include <stddef.h>

#include "build/dockerfile.h"

enum glob_kind {
    GLOB_PLAIN, /* * matches anything */
    GLOB_PATH,  /* * and ? match no slash, and ** matches any number of directories */
};

/* The whole text: *, ?, [a-z], [^a-z], and \ before a special character. */
bool glob_match(const char *pattern, const char *text, enum glob_kind kind);

/* The pattern has a special character. */
bool glob_is_pattern(const char *text);

/* A path without empty parts, "." and "..", which never leads above its beginning, and without a
 * slash at its ends; for free(). NULL: out of memory. */
char *glob_clean(const char *path);

struct ignore_rule {
    char *pattern;
    bool includes; /* "!pattern" */
};

/* The rules of a .dockerignore; the last one that matches a path or a directory above it counts. */
struct ignore {
    struct ignore_rule *rules;
    size_t n;
    bool has_includes;
};

/* 0 or -ENOMEM. */
int ignore_parse(const char *text, size_t length, struct ignore *ret_ignore);
int ignore_add(struct ignore *ignore, const char *pattern, size_t length);
void ignore_done(struct ignore *ignore);
bool ignore_matches(const struct ignore *ignore, const char *path);

#endif
