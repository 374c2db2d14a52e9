/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer as one file: the private files of a hibernated sandbox (docs/reference/
 * hibernation-format.md).
 *
 * Unlike a snapshot file it is for the same machine and keeps everything: sockets, the whole range
 * of ids, access lists, times, holes and hard links. It is a sequence of entries, parents before
 * children: a struct pack_entry, its texts, its segments, its data.
 */
#ifndef ROLLBOX_STORE_PACK_H
#define ROLLBOX_STORE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "store/digest.h"

enum pack_kind {
    PACK_FILE = 1,
    PACK_DIRECTORY,
    PACK_SYMLINK,
    PACK_FIFO,
    PACK_SOCKET,
    PACK_WHITEOUT,
    PACK_LINK,
    PACK_END
};

#define PACK_MAX_TEXT 65536u /* a path: 1000 levels may be longer than PATH_MAX */
#define PACK_MAX_ATTRIBUTES (1u << 20)
#define PACK_MAX_SEGMENTS (1u << 20)

struct pack_entry {
    uint32_t kind, mode; /* 07777 */
    uint32_t uid, gid;   /* in the sandbox's user namespace */
    uint64_t size;       /* FILE: with its holes */
    int64_t times[4];    /* access and change of content: seconds, nanoseconds */
    uint32_t path,
        target; /* bytes with their NUL; target: of SYMLINK, and the earlier path of LINK */
    uint32_t attributes; /* bytes: name NUL, length (u32), value */
    uint32_t n_segments; /* struct segment, then their data */
};

/* The data after an entry is as the entry says: a path of components that are neither empty nor "."
 * nor "..", below one of a layer's parts. `texts` has path, target and attributes. */
bool pack_is_sound(const struct pack_entry *entry, const char *texts, size_t length);

/* Writes the content of the layer (a directory's descriptor) to `to`, with its digest. */
int pack_write(int layer, int to, char ret_digest[DIGEST_HEX + 1], uint64_t *ret_bytes,
    struct rollbox_error *error);

/* Checks that a pack is complete and that nothing follows it. -EBADMSG. */
int pack_check(int from);

/* The other way, into an empty one. Call it once the file's digest has been found right. */
int pack_read(int from, int layer, struct rollbox_error *error);

#endif
