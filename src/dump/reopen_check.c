/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May a process open again, by its path, what it has open? What it opened before a mode was changed
 * it may have no right to by now, and who makes it anew has the guest's rights and no more: that
 * must be known before anything is given up for an image that nobody could go on from. We may open
 * more than it may, so modes are compared here, as the kernel does; lists of access are not looked
 * at.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dump/internal.h"

/* Of what /proc/PID/status says of its four user and group ids, that for files. */
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

bool access_is_given(const struct dump_process *s, const struct stat *st, unsigned wanted) {
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
    /* Many are in the same one. */
    if (c->reached_by == s && c->reached.length == length && !memcmp(c->reached.data, path, length))
        return true;
    for (size_t end = 0;; end += strcspn(path + end + 1, "/") + 1) {
        memcpy(directory, path, end);
        directory[end] = '\0';
        if (fstatat(s->root, end ? directory + 1 : "", &st,
                end ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH) < 0 ||
            !access_is_given(s, &st, ACCESS_ENTER))
            return false;
        if (end == length)
            break;
    }
    c->reached_by = s;
    c->reached.length = 0;
    buf_add(&c->reached, path, length);
    return true;
}
