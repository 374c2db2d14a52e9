/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What COPY reads from and writes over: the build's context, or the merged layers of an image.
 *
 * Paths are resolved here, one name at a time, and links are followed inside the source alone, as
 * if its top were "/". Nothing in a source is trusted.
 */
#ifndef ROLLBOX_BUILD_SOURCE_H
#define ROLLBOX_BUILD_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "build/dockerfile.h"
#include "build/glob.h"
#include "store/files.h"
#include "store/job.h"

struct source {
    struct stack top;            /* of a directory: one layer */
    const struct ignore *ignore; /* NULL: nothing is left out */
};

/* Borrows nothing. 0 or -errno. */
int source_of_directory(int fd, struct source *ret_source);
void source_done(struct source *source);

enum source_tail {
    SOURCE_TAIL_FOLLOWED, /* a link at the end is followed */
    SOURCE_TAIL_KEPT,     /* a link at the end is the result */
};

/* The path without links, for free(), without a slash at its ends. With `ret_found` NULL the end
 * of the path may be missing. -ENOENT, -ENOTDIR, -ELOOP, -errno. found_done frees *ret_found. */
int source_resolve(const struct source *source, const char *path, enum source_tail tail,
    char **ret_path, struct found *ret_found);

/* Finds the file at a path without links. -ENOENT. */
int source_find(const struct source *source, const char *path, struct found *ret_found);

/* Opens a regular file at a path without links for reading. */
int source_open_file(const struct source *source, const char *path);

/* Reads a small file, links followed; its text, for free(). -errno. */
int source_read(const struct source *source, const char *path, size_t limit, char **ret_text);

struct source_entry {
    const char *path; /* below the start of the walk; "" is the start */
    struct stat st;
    struct owner owner;
    int fd;             /* of a regular file or directory; else -EBADF */
    const char *target; /* of a link */
};

/* Returns 0 or -errno, with the error set. */
typedef int (*source_visitor)(
    void *context, const struct source_entry *entry, struct rollbox_error *error);

/* Visits the file at a path without links, or its tree: directories before their entries, names
 * sorted. Leaves out ignored files, and files below the start that `excluded` (may be NULL)
 * matches. */
int source_walk(const struct source *source, const char *path, const struct ignore *excluded,
    source_visitor visit, void *context, struct rollbox_error *error);

/* Adds the paths that a pattern matches to `paths`, sorted. -errno. */
int source_glob(const struct source *source, const char *pattern, struct words *paths);

#endif
