/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of tar archives (POSIX.1-2001 ustar with pax records; GNU's long names are read too). Only
 * files, directories, symbolic and hard links are known. Data and its padding are the caller's.
 */
#ifndef ROLLBOX_BASE_TAR_H
#define ROLLBOX_BASE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define TAR_BLOCK 512u
#define TAR_TEXT_MAX 4096u          /* a path or a link's target, with its NUL */
#define TAR_RECORDS_MAX (64u << 10) /* of one pax or GNU head */

enum tar_type {
    TAR_FILE = '0',
    TAR_HARDLINK = '1',
    TAR_SYMLINK = '2',
    TAR_DIRECTORY = '5',
};

struct tar_entry {
    enum tar_type type;
    unsigned mode; /* permission bits */
    uint64_t size; /* of a file */
    int64_t mtime_ns;
    char path[TAR_TEXT_MAX], target[TAR_TEXT_MAX];
};

/* Appends the head of an entry. */
void tar_add_head(struct buf *to, const struct tar_entry *entry);
/* Zeros that are missing to a whole block. */
size_t tar_padding(uint64_t size);

/* Reads exactly this many bytes: 0, or -errno, which ends the reading. */
typedef int tar_reader(void *userdata, void *data, size_t length);
/* The next entry: 1, 0 at the archive's end, -EBADMSG if it is malformed, -EOPNOTSUPP for another
 * type of file (`path` says which), or the reader's error. */
int tar_next(tar_reader *read, void *userdata, struct tar_entry *ret);

#endif
