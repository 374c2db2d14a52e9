/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose sockets and directories are trusted.
 *
 * Who serves an engine's socket sees the policy, the environment and the files of each run, and
 * says what came of it. So a client speaks to an engine of its own user or of root only, and an
 * engine listens to the same. ROLLBOX_TRUST_UID names other users ("1000" or "1000,1001") whose
 * engines a client speaks to.
 *
 * In a user namespace, users without an id there all show as one (the overflow id, 65534). That id
 * is nobody's: it is trusted only where the namespace maps it, or ROLLBOX_TRUST_UID names it.
 */
#ifndef ROLLBOX_SYS_TRUST_H
#define ROLLBOX_SYS_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

/* Users that are trusted besides root and the process' own. */
struct trust {
    uid_t uids[16];
    unsigned n;
};

/* Those of ROLLBOX_TRUST_UID. 0 or -EINVAL: it is no list of ids. */
int trust_read(struct trust *ret_trust, struct rollbox_error *error);

/* Is this id, as the kernel tells of a peer or an owner, root's, our own or a trusted one's?
 * `trust` may be NULL. */
bool trust_user(const struct trust *trust, uid_t uid);

/*
 * Looks at the directories and symbolic links that a socket's path leads through, and at the
 * socket. 0: nobody else can put another socket there, or there is none (connecting tells). -EACCES
 * and ENGINE_UNTRUSTED: a directory belongs to another user, or may be written to by others and is
 * not sticky, or the socket or a link belongs to another user.
 */
int trust_path(const struct trust *trust, const char *path, struct rollbox_error *error);

#endif
