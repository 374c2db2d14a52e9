/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which users' sockets and directories rollbox trusts.
 *
 * The process that serves an engine's socket sees the policy, environment and files of each run,
 * and decides its result. So a client connects only to an engine of its own user or of root, and an
 * engine accepts only clients of the same kind. ROLLBOX_TRUST_UID names further users ("1000" or
 * "1000,1001") whose engines a client trusts.
 *
 * In a user namespace, all users without an id there appear as one, the overflow id (65534). That
 * id identifies no user. It is trusted only where the namespace maps it, or where ROLLBOX_TRUST_UID
 * names it.
 */
#ifndef ROLLBOX_SYS_TRUST_H
#define ROLLBOX_SYS_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

/* The users that are trusted in addition to root and the process's own user. */
struct trust {
    uid_t uids[16];
    unsigned n;
};

/* Reads ROLLBOX_TRUST_UID. Returns 0, or -EINVAL if it is not a list of ids. */
int trust_read(struct trust *ret_trust, struct rollbox_error *error);

/* Whether an id, as the kernel reports it for a peer or an owner, is root's, our own or a trusted
 * user's. `trust` may be NULL. */
bool trust_user(const struct trust *trust, uid_t uid);

/*
 * Checks the socket and all directories and symbolic links on its path. Returns 0 if no other user
 * can replace the socket, or if it does not exist (connecting reports that). Returns -EACCES with
 * ENGINE_UNTRUSTED if a directory belongs to another user, if others can write to a directory that
 * is not sticky, or if the socket or a link belongs to another user.
 */
int trust_path(const struct trust *trust, const char *path, struct rollbox_error *error);

#endif
