/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of passwd(5), "name:password:uid:gid:comment:home:shell", and of group(5),
 * "name:password:gid:member,member". */
#include "base/passwd.h"

#include <string.h>

#define FIELDS 7

/* The part before the next `end`, which is taken off `rest` with it. False: nothing is left. */
static bool next_part(struct passwd_text *rest, char end, struct passwd_text *ret_part) {
    if (!rest->data)
        return false;
    const char *at = memchr(rest->data, end, rest->length);

    *ret_part = (struct passwd_text){ rest->data, at ? (size_t)(at - rest->data) : rest->length };
    *rest = at ? (struct passwd_text){ at + 1, rest->length - ret_part->length - 1 }
               : (struct passwd_text){ NULL, 0 };
    return true;
}

static bool is_same(struct passwd_text a, struct passwd_text b) {
    return a.length == b.length && !memcmp(a.data, b.data, a.length);
}

bool passwd_number(struct passwd_text text, uint32_t *ret_number) {
    uint32_t number = 0;

    if (!text.length)
        return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
        number = number * 10 + (uint32_t)(text.data[i] - '0');
        if (number > PASSWD_LAST_ID)
            return false;
    }
    *ret_number = number;
    return true;
}

/* The next line with at least `n` fields, or false. */
static bool next_line(struct passwd_text *rest, size_t n, struct passwd_text fields[FIELDS]) {
    struct passwd_text line;

    while (next_part(rest, '\n', &line)) {
        size_t found = 0;

        while (found < FIELDS && next_part(&line, ':', &fields[found]))
            found++;
        if (found >= n && fields[0].length)
            return true;
    }
    return false;
}

static bool next_user(struct passwd_text *rest, struct passwd_user *ret_user) {
    struct passwd_text fields[FIELDS];

    while (next_line(rest, 6, fields))
        if (passwd_number(fields[2], &ret_user->uid) && passwd_number(fields[3], &ret_user->gid)) {
            ret_user->name = fields[0];
            ret_user->home = fields[5];
            return true;
        }
    return false;
}

bool passwd_by_name(
    struct passwd_text file, struct passwd_text name, struct passwd_user *ret_user) {
    struct passwd_user user;

    while (next_user(&file, &user))
        if (is_same(user.name, name)) {
            *ret_user = user;
            return true;
        }
    return false;
}

bool passwd_by_uid(struct passwd_text file, uint32_t uid, struct passwd_user *ret_user) {
    struct passwd_user user;

    while (next_user(&file, &user))
        if (user.uid == uid) {
            *ret_user = user;
            return true;
        }
    return false;
}

bool passwd_group(struct passwd_text file, struct passwd_text name, uint32_t *ret_gid) {
    struct passwd_text fields[FIELDS];
    uint32_t gid;

    while (next_line(&file, 3, fields))
        if (is_same(fields[0], name) && passwd_number(fields[2], &gid)) {
            *ret_gid = gid;
            return true;
        }
    return false;
}

size_t passwd_groups_of(
    struct passwd_text file, struct passwd_text user, uint32_t groups[PASSWD_GROUPS]) {
    struct passwd_text fields[FIELDS], member;
    size_t n = 0;

    while (n < PASSWD_GROUPS && next_line(&file, 4, fields)) {
        if (!passwd_number(fields[2], &groups[n]))
            continue;
        while (next_part(&fields[3], ',', &member))
            if (is_same(member, user)) {
                n++;
                break;
            }
    }
    return n;
}
