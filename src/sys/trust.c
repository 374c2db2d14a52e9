/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/trust.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"

#define VARIABLE "ROLLBOX_TRUST_UID"
#define MAX_LINKS 40u /* as the kernel's own limit */

int trust_read(struct trust *ret_trust, struct rollbox_error *error) {
    const char *at = secure_getenv(VARIABLE);
    struct trust trust = { 0 };

    while (at && *at) {
        char *end;

        errno = 0;
        unsigned long uid = strtoul(at, &end, 10);
        const bool is_number = *at >= '0' && *at <= '9' && !errno && uid < UINT_MAX;
        const bool is_at_end = !*end || *end == ',';
        if (!is_number || !is_at_end || trust.n == ARRAY_SIZE(trust.uids))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "connect",
                VARIABLE " is %.100s: it must be user ids with commas between, at most %zu",
                secure_getenv(VARIABLE), ARRAY_SIZE(trust.uids));
        trust.uids[trust.n++] = (uid_t)uid;
        at = *end ? end + 1 : end;
    }
    *ret_trust = trust;
    return 0;
}

static unsigned long overflow_id(void) {
    auto_buf struct buf text = BUF_INIT;

    if (fd_read_file("/proc/sys/kernel/overflowuid", 16, &text) < 0 ||
        (buf_add(&text, "", 1), buf_failed(&text)))
        return 65534;
    return strtoul(text.data, NULL, 10);
}

/* Without /proc the answer is unknown, which counts as no. */
static bool is_mapped(uid_t uid) {
    auto_buf struct buf text = BUF_INIT;

    if (fd_read_file("/proc/self/uid_map", 65536, &text) < 0 ||
        (buf_add(&text, "", 1), buf_failed(&text)))
        return false;
    for (const char *line = text.data; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned first, outside, count;

        if (sscanf(line, "%u %u %u", &first, &outside, &count) == 3 && uid >= first &&
            uid - first < count)
            return true;
    }
    return false;
}

/* The overflow id, where no user has it. */
static bool is_nobody(uid_t uid) {
    return uid == overflow_id() && !is_mapped(uid);
}

bool trust_user(const struct trust *trust, uid_t uid) {
    for (unsigned i = 0; trust && i < trust->n; i++)
        if (trust->uids[i] == uid)
            return true;
    return uid == 0 || (uid == geteuid() && !is_nobody(uid));
}

/* ---- paths ---- */

/* In a container, the upper directories may belong to the host's root, who has no id there. The
 * server of the socket is checked in any case; this is a second check. */
static bool may_own(const struct trust *trust, const struct stat *st) {
    return trust_user(trust, st->st_uid) || (S_ISDIR(st->st_mode) && is_nobody(st->st_uid));
}

/* "write" means that other users may replace entries of the directory. */
static bool others_may_write(const struct stat *st) {
    if (st->st_mode & S_ISVTX)
        return false;
    return st->st_mode & S_IWOTH ||
           (st->st_mode & S_IWGRP && st->st_gid != 0 && st->st_gid != getegid());
}

static int look_at(
    const struct trust *trust, const char *at, const struct stat *st, struct rollbox_error *error) {
    const char *kind = S_ISDIR(st->st_mode)   ? "directory"
                       : S_ISLNK(st->st_mode) ? "link"
                                              : "socket";

    if (!may_own(trust, st))
        return error_set(error, ROLLBOX_ERR_ENGINE_UNTRUSTED, EACCES, "connect",
            "the %s %.300s, of the path of the engine's socket, belongs to user %u, who could pose "
            "as the engine; "
            "use a socket in a directory of your own, or set " VARIABLE
            "=%u if you trust that user",
            kind, at, (unsigned)st->st_uid, (unsigned)st->st_uid);
    if (S_ISDIR(st->st_mode) && others_may_write(st))
        return error_set(error, ROLLBOX_ERR_ENGINE_UNTRUSTED, EACCES, "connect",
            "the directory %.300s, of the path of the engine's socket, may be written to by other "
            "users, who could pose as the "
            "engine; chmod go-w it, or use a socket in a directory of your own",
            at);
    return 0;
}

/* Replaces the link in `text` by its target. */
static int follow_link(char text[PATH_MAX], size_t begin, size_t end) {
    char target[PATH_MAX], next[PATH_MAX];
    ssize_t n = readlink(text, target, sizeof target - 1);

    if (n <= 0)
        return n < 0 ? -errno : -ENOENT;
    target[n] = '\0';
    int length = snprintf(next, sizeof next, "%.*s%s/%s", target[0] == '/' ? 0 : (int)begin, text,
        target, text + end);
    if (length < 0 || (size_t)length >= sizeof next)
        return -ENAMETOOLONG;
    memcpy(text, next, (size_t)length + 1);
    return 0;
}

static int walk_path(
    const struct trust *trust, char text[PATH_MAX], unsigned n_links, struct rollbox_error *error) {
    size_t end = 0;
    struct stat st;

    if (lstat("/", &st) == 0) {
        int r = look_at(trust, "/", &st, error);
        if (r < 0)
            return r;
    }
    for (;;) {
        size_t begin = end + strspn(text + end, "/");

        end = begin + strcspn(text + begin, "/");
        if (begin == end)
            return 0;
        /* ".." was examined already, like all directories above. */
        const char after = text[end];
        text[end] = '\0';
        int r = lstat(text, &st) < 0 ? 1 : look_at(trust, text, &st, error);
        if (r == 0 && S_ISLNK(st.st_mode)) {
            if (n_links == MAX_LINKS || follow_link(text, begin, end + (after != '\0')) < 0)
                return 0; /* connecting fails as well */
            return walk_path(trust, text, n_links + 1, error);
        }
        if (r)
            return MIN(r, 0);
        text[end] = after;
    }
}

int trust_path(const struct trust *trust, const char *path, struct rollbox_error *error) {
    char text[PATH_MAX];
    auto_free char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    int n = snprintf(text, sizeof text, "%s/%s", here ? here : "", path);

    if (n < 0 || (size_t)n >= sizeof text || (path[0] != '/' && !here))
        return 0; /* nothing that can be connected to */
    return walk_path(trust, text, 0, error);
}
