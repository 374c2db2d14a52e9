/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May a process open a file again, by its path, that it has open?
 *
 * The mode of the file may have changed since the process opened it. Restore opens the file with
 * the guest's rights only, so the answer must be known before the processes are given up for an
 * image that could not be restored. The dump worker may open more than the process, so it compares
 * modes as the kernel does. It does not read access control lists.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dump/internal.h"

/* The last of the four user or group ids in /proc/PID/status, which applies to files. */
static uint32_t id_of(const struct dump_process *s, const char *name) {
    const char *at = dump_field(s->status.data, name);
    char *end = NULL;
    uint32_t id = UINT32_MAX;

    for (unsigned i = 0; i < 4; i++, at = end)
        id = (uint32_t)strtoul(at, &end, 10);
    return id;
}

static bool is_in_group(const struct dump_process *s, gid_t group) {
    const char *at = dump_field(s->status.data, "\nGroups:\t"), *line_end = strchr(at, '\n');
    char *end = NULL;

    if (id_of(s, "\nGid:\t") == group)
        return true;
    for (; line_end && at < line_end; at = end) {
        unsigned long one = strtoul(at, &end, 10);

        if (end == at || end > line_end)
            return false;
        if (one == group)
            return true;
    }
    return false;
}

bool access_is_owner(const struct dump_process *s, const struct stat *st) {
    return st->st_uid == id_of(s, "\nUid:\t");
}

/* Root of a sandbox with many users has rights over files of all ids of the sandbox; to the others,
 * which are the host's, it is one of the others. */
static bool is_given_root(const struct dump *c, const struct stat *st, unsigned wanted) {
    return credentials_owns(c, st) || (st->st_mode & wanted) == wanted;
}

bool access_is_given(
    const struct dump *c, const struct dump_process *s, const struct stat *st, unsigned wanted) {
    if (c->options->many_users)
        return is_given_root(c, st, wanted);
    mode_t mode = access_is_owner(s, st)       ? st->st_mode >> 6
                  : is_in_group(s, st->st_gid) ? st->st_mode >> 3
                                               : st->st_mode;

    return (mode & wanted) == wanted;
}

bool access_reaches(struct dump *c, const struct dump_process *s, const char *path) {
    const size_t length = (size_t)(strrchr(path, '/') - path);
    char directory[4096];
    struct stat st;

    if (length >= sizeof directory)
        return false;
    /* Many files are in the same directory. */
    if (c->reached_by == s && c->reached.length == length && !memcmp(c->reached.data, path, length))
        return true;
    for (size_t end = 0;; end += strcspn(path + end + 1, "/") + 1) {
        memcpy(directory, path, end);
        directory[end] = '\0';
        if (fstatat(s->root, end ? directory + 1 : "", &st,
                end ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH) < 0 ||
            !access_is_given(c, s, &st, ACCESS_ENTER))
            return false;
        if (end == length)
            break;
    }
    c->reached_by = s;
    c->reached.length = 0;
    buf_add(&c->reached, path, length);
    return true;
}
