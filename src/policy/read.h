/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads one value of a policy: the kinds of values, and the recording of problems.
 *
 * A reader knows its position in the text, so that a problem has its key and line. Each read_
 * function accepts a value of any type. For a wrong value it records a problem and leaves its
 * output unchanged.
 */
#ifndef ROLLBOX_POLICY_READ_H
#define ROLLBOX_POLICY_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/policy.h"

/* At most this many problems are reported. */
#define READ_MAX_PROBLEMS 100u

struct reader {
    const char *text;
    size_t length;
    struct policy *policy;
    struct policy_problems *problems;
    const char *key;    /* where the reading is: the key, ... */
    long index;         /* ... the element of its list or -1, ... */
    const char *member; /* ... and the member of that object ("requests[0].paths"), or NULL */
    bool readable_given, net_given;
    bool out_of_memory;
    bool bad;
};

/* Notes a problem with the value that is being read, or (line 0: no place) with the text as a
 * whole. `hint` may be "". */
__attribute__((format(printf, 3, 4))) void read_bad(
    struct reader *r, const char *hint, const char *format, ...);
__attribute__((format(printf, 4, 5))) void read_bad_text(
    struct reader *r, unsigned line, const char *hint, const char *format, ...);

/* "a list", "a string", ... */
const char *read_type(const json_t *value);

/* A copy for the caller to free; NULL after noting that memory is out. */
char *read_copy(struct reader *r, const char *text);

/* The text of a string that is not empty and has no NUL, owned by the value; NULL after noting what
 * is wrong. `what` it should be: "a path". */
const char *read_text(struct reader *r, const json_t *value, const char *what);

/* The absolute path without "//", "/./" and a "/" at its end, for the caller to free; NULL after
 * noting an error. ".." is refused, because its meaning depends on symbolic links. */
char *read_path(struct reader *r, const json_t *value);

/* Whether the value is an object of at most `most` of `what` ("volumes"). If not, it adds an error,
 * whose hint is `example`. */
bool read_is_object(
    struct reader *r, const json_t *value, const char *example, size_t most, const char *what);

/* Whether a path is `parent` or lies in it. Both as of read_path. */
bool read_is_in(const char *path, const char *parent);

/* The file system that every sandbox has of its own at this path or above it, such as "/proc";
 * NULL. */
const char *read_own_mount(const char *path);

void read_bool(struct reader *r, const json_t *value, bool *ret);

/* A whole number, written as one or as 20.0. */
void read_count(struct reader *r, const json_t *value, uint32_t min, uint32_t max, uint32_t *ret);

/* "512M" or a number of bytes. */
void read_size(
    struct reader *r, const json_t *value, uint64_t min, const char *min_text, uint64_t *ret);

/* The index of the word that the value is, or -1 after noting what is wrong. */
int read_word(struct reader *r, const json_t *value, const char *const *words, size_t n);

/* The word that is spelled most like this one, or NULL if none is much like it. */
const char *read_nearest(const char *word, const char *const *words, size_t n);

#endif
