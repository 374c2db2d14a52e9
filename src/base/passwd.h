/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of /etc/passwd and /etc/group, which a guest may have written. Nothing here allocates; a
 * line that is not of the form is passed over. */
#ifndef ROLLBOX_BASE_PASSWD_H
#define ROLLBOX_BASE_PASSWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PASSWD_LAST_ID 65535u /* ids above it are of no use in a sandbox */
#define PASSWD_GROUPS 64      /* supplementary groups of a user; of more, the first */

/* A part of a text; not terminated. */
struct passwd_text {
    const char *data;
    size_t length;
};

struct passwd_user {
    uint32_t uid, gid;
    struct passwd_text name, home;
};

/* A number in decimal up to PASSWD_LAST_ID, and nothing else? */
bool passwd_number(struct passwd_text text, uint32_t *ret_number);

/* The first user of that name, or of that id. `file` is a passwd file. */
bool passwd_by_name(struct passwd_text file, struct passwd_text name, struct passwd_user *ret_user);
bool passwd_by_uid(struct passwd_text file, uint32_t uid, struct passwd_user *ret_user);

/* The first group of that name. `file` is a group file. */
bool passwd_group(struct passwd_text file, struct passwd_text name, uint32_t *ret_gid);
/* The groups that name the user among their members, in the order of the file. Returns their
 * number, at most PASSWD_GROUPS. */
size_t passwd_groups_of(
    struct passwd_text file, struct passwd_text user, uint32_t groups[PASSWD_GROUPS]);

#endif
