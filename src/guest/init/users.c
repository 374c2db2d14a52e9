/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests write /etc/passwd and /etc/group: no link at their end is followed, what is no regular
 * file is as good as none, and at most FILE_MAX bytes are read.
 */
#include "guest/init/users.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "sys/syscalls.h"

#define FILE_MAX (1u << 20)

/* Reads what there is of the file into the buffer, of FILE_MAX bytes. */
static struct passwd_text read_file(const char *path, char *buffer) {
    struct passwd_text text = { buffer, 0 };
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return text;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        for (ssize_t n = 1; n > 0 && text.length < FILE_MAX;) {
            n = read(fd, buffer + text.length, FILE_MAX - text.length);
            text.length += n > 0 ? (size_t)n : 0;
        }
    close(fd);
    return text;
}

static struct passwd_text take_part(const char **rest, char end) {
    const char *at = *rest;
    const char stops[2] = { end, '\0' };
    size_t length = strcspn(at, stops);

    *rest = at[length] ? at + length + 1 : at + length;
    return (struct passwd_text){ at, length };
}

static bool is_root(struct passwd_text name) {
    return name.length == 4 && !memcmp(name.data, "root", 4);
}

static void set_variable(char variable[300], const char *name, struct passwd_text value) {
    size_t length = strlen(name);

    if (value.length > 300 - length - 1)
        value = (struct passwd_text){ "/", 1 };
    memcpy(variable, name, length);
    memcpy(variable + length, value.data, value.length);
    variable[length + value.length] = '\0';
}

static int find_group(struct passwd_text file, struct passwd_text name, uint32_t *ret_gid) {
    return passwd_number(name, ret_gid) || passwd_group(file, name, ret_gid) ? 0 : -ENOENT;
}

static int add_groups(struct passwd_text file, const char *names, struct users_identity *identity) {
    while (*names) {
        if (identity->n_groups == PASSWD_GROUPS)
            return -E2BIG;
        int r = find_group(file, take_part(&names, ','), &identity->groups[identity->n_groups]);
        if (r < 0)
            return r;
        identity->n_groups++;
    }
    return 0;
}

static int look_up(
    const char *text, char *buffer, struct users_identity *identity, unsigned *ret_part) {
    struct passwd_text file = read_file("/etc/passwd", buffer), name = take_part(&text, ':'),
                       group = take_part(&text, ':');
    struct passwd_user user = { .name = name, .home = { "/", 1 } };
    bool is_known = passwd_number(name, &user.uid) ? passwd_by_uid(file, user.uid, &user)
                                                   : passwd_by_name(file, name, &user);

    *ret_part = 0;
    if (!is_known && !is_root(name) && !passwd_number(name, &user.uid))
        return -ENOENT;
    identity->uid = user.uid;
    identity->gid = user.gid;
    set_variable(identity->variables[0], "HOME=", user.home);
    set_variable(identity->variables[1], "USER=", user.name);
    set_variable(identity->variables[2], "LOGNAME=", user.name);
    /* The user's name is needed once more, and the buffer is for the next file. */
    const struct passwd_text own = { identity->variables[1] + 5,
        strlen(identity->variables[1] + 5) };
    file = read_file("/etc/group", buffer);
    *ret_part = 1;
    if (group.length && find_group(file, group, &identity->gid) < 0)
        return -ENOENT;
    *ret_part = 2;
    if (!group.length && !*text)
        identity->n_groups = is_known ? passwd_groups_of(file, own, identity->groups) : 0;
    return add_groups(file, text, identity);
}

int users_find(const char *text, struct users_identity *ret_identity, unsigned *ret_part) {
    char *buffer = mmap(NULL, FILE_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ret_identity->n_groups = 0;
    *ret_part = 0;
    if (buffer == MAP_FAILED)
        return -ENOMEM;
    int r = look_up(text, buffer, ret_identity, ret_part);
    munmap(buffer, FILE_MAX);
    return r;
}

int users_become(const struct users_identity *identity) {
    int r = sys_setgroups(identity->n_groups, identity->groups);

    if (r == 0)
        r = sys_setresgid(identity->gid, identity->gid, identity->gid);
    return r < 0 ? r : sys_setresuid(identity->uid, identity->uid, identity->uid);
}

int users_act_as(const struct users_identity *identity) {
    static const struct users_identity root;

    identity = identity ? identity : &root;
    int r = sys_setgroups(identity->n_groups, identity->groups);
    (void)sys_call1(__NR_setfsgid, identity->gid);
    (void)sys_call1(__NR_setfsuid, identity->uid);
    if (r < 0 || sys_call1(__NR_setfsuid, -1) != (long)identity->uid ||
        sys_call1(__NR_setfsgid, -1) != (long)identity->gid)
        return -EPERM;
    /* The kernel clears it with each change of an id. */
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ? -errno : 0;
}
