/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Empty directories of a sandbox's own: the keys `tmpfs` and `shm_size` of a policy.
 *
 * They are places like /tmp: their files lie in the sandbox's private file system, so snapshots,
 * forks, resets and hibernation keep them, and one limit, max_disk, holds for all of it. A size is
 * the least that this limit must be, and results tell so ("limits").
 */
#ifndef ROLLBOX_POLICY_TMPFS_H
#define ROLLBOX_POLICY_TMPFS_H

#include "policy/policy.h"

#define TMPFS_MAX 64 /* of one policy */

struct policy_tmpfs {
    char *path;          /* as of struct policy_path */
    uint64_t size_bytes; /* 0: not said */
    uint32_t mode;       /* permission bits of the directory */
    bool no_exec;
};

/* All sizes together, at most INT64_MAX. */
uint64_t policy_tmpfs_bytes(const struct policy *policy);
/* Does every sandbox have this directory without being asked? Then an entry is a size alone. */
bool policy_tmpfs_is_there(const struct policy *policy, const char *path);
void policy_tmpfs_done(struct policy_tmpfs_list *list);

#endif
