/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Empties a directory.
 *
 * A tree may be deeper than the limits on descriptors and stack. So no tree is descended into: a
 * directory two levels below the top is moved up into the top, under a new name, and removed later.
 * Two directories are open at any time. Each was opened from its parent's descriptor by one name
 * that is not a link, so nothing outside is ever reached.
 */
#include "base/remove_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The record of getdents64(2). C libraries give it different names. */
struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

#define CHMOD_AT 452 /* fchmodat2, Linux 6.6, which accepts a descriptor of O_PATH */
#define ROUNDS                                                                                     \
    (1u << 22)     /* each round removes a level at least; a directory that other processes keep   \
                      filling is given up in the end */
#define TRIES 1000 /* names */

int tree_open(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 || errno != EACCES)
        return fd < 0 ? -errno : fd;
    int path = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (path < 0)
        return -errno;
    long r = syscall(CHMOD_AT, path, "", 0700, AT_EMPTY_PATH);
    close(path);
    if (r < 0)
        return -EACCES;
    fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Readable does not mean that entries can be removed. */
static void make_writable(int directory) {
    (void)fchmod(directory, 0700);
}

static bool is_dot(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* Moves a directory up, under a free name. */
static int move_up(int from, const char *name, int top, unsigned *number) {
    char moved[24] = "rollbox-remove-";

    for (unsigned tries = 0; tries < TRIES; tries++) {
        unsigned n = (*number)++;
        for (int i = 22; i >= 15; i--, n >>= 4)
            moved[i] = "0123456789abcdef"[n & 15];
        if (syscall(SYS_renameat2, from, name, top, moved, 1 /* RENAME_NOREPLACE */) == 0)
            return 0;
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
}

/* One entry of `directory`. *ret_progress: it is gone from there. */
static int remove_one(
    int directory, const char *name, int top, unsigned *number, bool *ret_progress) {
    int r = unlinkat(directory, name, 0) == 0 ? 0 : -errno;

    if (r == -EISDIR || r == -EPERM)
        r = unlinkat(directory, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
    if ((r == -ENOTEMPTY || r == -EEXIST) && directory != top) {
        /* Renaming a directory elsewhere changes its "..": that takes the right to write to it. */
        int fd = tree_open(directory, name);
        if (fd >= 0) {
            make_writable(fd);
            close(fd);
        }
        r = move_up(directory, name, top, number);
    }
    *ret_progress |= r == 0;
    return r == -ENOENT ? 0 : r;
}

/* Empties one directory into nothing and the top. */
static int empty_one(int directory, int top, unsigned *number, bool *ret_progress) {
    _Alignas(struct entry) char entries[8192];
    int worst = 0;
    long n;

    make_writable(directory);
    if (lseek(directory, 0, SEEK_SET) < 0)
        return -errno;
    while ((n = syscall(SYS_getdents64, directory, entries, sizeof entries)) > 0) {
        for (long i = 0; i < n;) {
            const struct entry *entry = (const void *)(entries + i);

            i += entry->length;
            if (is_dot(entry->name))
                continue;
            int r = remove_one(directory, entry->name, top, number, ret_progress);
            if (directory == top && (r == -ENOTEMPTY || r == -EEXIST)) {
                int inner = tree_open(top, entry->name);
                r = inner < 0 ? inner : empty_one(inner, top, number, ret_progress);
                if (inner >= 0)
                    close(inner);
                if (r == 0 && unlinkat(top, entry->name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                    r = -errno;
            }
            if (r < 0 && !worst)
                worst = r;
        }
    }
    return n < 0 ? -errno : worst;
}

int tree_empty(int directory) {
    unsigned number = 0;
    int r = 0;

    /* A directory that is moved up while the top is being read may or may not appear in the same
     * reading. */
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool progress = false;

        r = empty_one(directory, directory, &number, &progress);
        if (!progress)
            return r;
    }
    return r < 0 ? r : -EBUSY;
}
