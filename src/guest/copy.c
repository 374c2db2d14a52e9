/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of files of a sandbox, in the format of an overlay's upper directory.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "guest/internal.h"

#define OVERLAY "user.overlay."
#define ESCAPED OVERLAY "overlay."      /* an overlay's name for the guest's own "user.overlay.*" */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* The guest's attributes: not those that the overlay has set for itself, nor what only the host's root could set. */
static bool is_wanted(const char *name) {
    return begins(name, "user.") ? !begins(name, OVERLAY) || begins(name, ESCAPED) : begins(name, "system.posix_acl_");
}

int copy_attributes(int from, int to, const struct stat *st) {
    static char names[65536], value[65536];     /* the kernel's limits */

    if (fchown(to, st->st_uid, st->st_gid) < 0 || fchmod(to, st->st_mode & 07777) < 0)
        return -errno;
    ssize_t length = flistxattr(from, names, sizeof names);
    if (length < 0)
        return errno == EOPNOTSUPP ? 0 : -errno;
    for (const char *name = names; name < names + length; name += strlen(name) + 1) {
        if (!is_wanted(name))
            continue;
        ssize_t n = fgetxattr(from, name, value, sizeof value);
        if (n < 0 || fsetxattr(to, name, value, (size_t)n, 0) < 0)
            return -errno;
    }
    return 0;
}
