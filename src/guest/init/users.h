/* SPDX-License-Identifier: Apache-2.0 */
/* Users of a sandbox with users "many", as its own /etc/passwd and /etc/group name them. */
#ifndef ROLLBOX_GUEST_INIT_USERS_H
#define ROLLBOX_GUEST_INIT_USERS_H

#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/passwd.h"

#define USERS_N_VARIABLES 3

/* Whom a command runs as. */
struct users_identity {
    uint32_t uid, gid;
    uint32_t groups[PASSWD_GROUPS]; /* supplementary */
    size_t n_groups;
    char variables[USERS_N_VARIABLES][300]; /* "HOME=...", "USER=...", "LOGNAME=..." */
};

/* Looks up "USER[:GROUP[:GROUPS]]" (GUEST_USER): names or numbers, GROUPS with commas between. A
 * user without a group has the groups of the files. 0, or -ENOENT with the part that is not there
 * (0 the user, 1 the group, 2 one of the groups), -E2BIG for too many groups, or -ENOMEM. */
int users_find(const char *text, struct users_identity *ret_identity, unsigned *ret_part);

/* In a command's process: becomes the user for good. 0 or -errno. */
int users_become(const struct users_identity *identity);

/* In init: what it does to files is checked as if the user did it, and new files are the user's;
 * NULL: root again. 0 or -errno. */
int users_act_as(const struct users_identity *identity);

#endif
