/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rights of a process that init answers for, in a sandbox of many users.
 *
 * With one user, init has exactly the rights of the processes whose calls it makes. With many, init
 * is the sandbox's root, and would show and change what the caller may not. So init takes the
 * caller's user, group and groups before it follows the caller's path or makes the caller's call,
 * and goes back to root afterwards. Where it cannot have the same rights or the same view, the
 * kernel makes the call: times are then the kernel's, but no check is left out.
 */
#ifndef ROLLBOX_GUEST_DET_CALLER_H
#define ROLLBOX_GUEST_DET_CALLER_H

#include <stdbool.h>

#include "guest/internal.h"

struct seccomp_notif;

/* Takes the rights of the caller, if the plan has many users. 0, and caller_end() is due; or
 * -errno: the kernel has to make the call. */
int caller_begin(const struct plan *plan, int listener, const struct seccomp_notif *question);
void caller_end(const struct plan *plan);

/* Does a path that begins with "/" mean the same to the caller as to init? Not in a chroot, which
 * only sandboxes of many users have. */
bool caller_has_root(const struct plan *plan, const struct seccomp_notif *question);

#endif
