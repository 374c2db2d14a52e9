/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/id_range.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/id_map.h"

#define FIRST_SUGGESTED 100000u /* as useradd begins */
#define MAX_NAME 64

static const char *const helpers[] = { "newuidmap", "newgidmap" };
static const char *const files[] = { "/etc/subuid", "/etc/subgid" };
static const char *const flags[] = { "--add-subuids", "--add-subgids" };
/* The environment of an engine is empty, and a program that is to have rights is not looked up in
 * directories that somebody names. The last one is of NixOS. */
static const char *const directories[] = { "/usr/bin", "/bin", "/usr/local/bin",
    "/run/wrappers/bin" };

/* ---- the files ---- */

struct line {
    char name[MAX_NAME];
    unsigned long first, count;
};

/* "NAME:FIRST:COUNT", or a number in place of the name. */
static bool parse_line(const char *text, struct line *ret_line) {
    char rest[2];

    return sscanf(text, "%63[^:]:%lu:%lu%1[^\n]", ret_line->name, &ret_line->first,
               &ret_line->count, rest) == 3 &&
           ret_line->first <= UINT32_MAX && ret_line->count <= UINT32_MAX - ret_line->first;
}

static bool is_ours(const struct line *line, const char *user) {
    char number[16];

    snprintf(number, sizeof number, "%u", (unsigned)geteuid());
    return !strcmp(line->name, user) || !strcmp(line->name, number);
}

/* Names are looked up in /etc/passwd alone: these programs are static and cannot load the modules
 * of other directories. */
static bool find_name(char ret_name[MAX_NAME]) {
    FILE *file = fopen("/etc/passwd", "re");
    bool found = false;

    for (struct passwd *entry; file && !found && (entry = fgetpwent(file));)
        if (entry->pw_uid == geteuid())
            found = snprintf(ret_name, MAX_NAME, "%s", entry->pw_name) < MAX_NAME;
    if (file)
        fclose(file);
    return found;
}

struct found {
    unsigned long first, largest; /* of the user: that of a range that is large enough; ids of the
                                     largest */
    unsigned long end;            /* of all lines */
    bool has_line;
};

static struct found read_ranges(const char *path, const char *user) {
    FILE *file = fopen(path, "re");
    struct found found = { .end = FIRST_SUGGESTED };
    char text[256];
    struct line line;

    while (file && fgets(text, sizeof text, file)) {
        if (!parse_line(text, &line))
            continue;
        found.end = MAX(found.end, line.first + line.count);
        if (!is_ours(&line, user))
            continue;
        found.has_line = true;
        found.largest = MAX(found.largest, line.count);
        if (line.count >= ID_RANGE_COUNT && !found.first)
            found.first = line.first;
    }
    if (file)
        fclose(file);
    return found;
}

/* ---- the programs ---- */

static bool find_helper(const char *name, char path[64]) {
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
        snprintf(path, 64, "%s/%s", directories[i], name);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

/* Some distributions give it capabilities in place of the bit. */
static bool has_rights(const char *path) {
    struct stat st;
    struct statvfs where;

    if (stat(path, &st) < 0 || statvfs(path, &where) < 0 || where.f_flag & ST_NOSUID)
        return false;
    return (st.st_mode & S_ISUID && st.st_uid == 0) ||
           getxattr(path, "security.capability", NULL, 0) > 0;
}

static int check_helpers(char problem[ID_RANGE_TEXT]) {
    char path[64];

    for (size_t i = 0; i < ARRAY_SIZE(helpers); i++) {
        if (!find_helper(helpers[i], path)) {
            snprintf(problem, ID_RANGE_TEXT,
                "%s is not installed; as root: apt-get install uidmap (or shadow-utils of other "
                "distributions)",
                helpers[i]);
            return -ENOTSUP;
        }
        if (!has_rights(path)) {
            snprintf(problem, ID_RANGE_TEXT,
                "%s is not set-user-id root, or its file system is mounted nosuid; as root: chmod "
                "u+s %s",
                path, path);
            return -ENOTSUP;
        }
    }
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) {
        snprintf(problem, ID_RANGE_TEXT,
            "no_new_privs is set for this process, so %s gets no rights; in a container: "
            "allowPrivilegeEscalation: true, or docker run without --security-opt "
            "no-new-privileges",
            helpers[0]);
        return -ENOTSUP;
    }
    return 0;
}

/* ---- the range ---- */

static int explain_range(const struct found *found, size_t which, unsigned long free_from,
    const char *user, char problem[ID_RANGE_TEXT]) {
    char why[80] = "has no line for this user";

    if (found->has_line)
        snprintf(why, sizeof why, "gives this user only %lu ids, and a sandbox needs 65536",
            found->largest);
    snprintf(problem, ID_RANGE_TEXT, "%s %s; as root: usermod %s %lu-%lu %s", files[which], why,
        flags[which], free_from, free_from + ID_RANGE_COUNT - 1, user);
    return -ENOTSUP;
}

int id_range_find(struct id_range *ret_range, char problem[ID_RANGE_TEXT]) {
    char user[MAX_NAME];
    uint32_t first[ARRAY_SIZE(files)];

    if (!find_name(user)) {
        snprintf(problem, ID_RANGE_TEXT,
            "user id %u is not in /etc/passwd, where newuidmap looks it up; as root: useradd -u %u "
            "NAME",
            (unsigned)geteuid(), (unsigned)geteuid());
        return -ENOTSUP;
    }
    const struct found found[] = { read_ranges(files[0], user), read_ranges(files[1], user) };
    const unsigned long free_from = MAX(found[0].end, found[1].end),
                        own[] = { geteuid(), getegid() };
    int r = check_helpers(problem);

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++) {
        first[i] = (uint32_t)found[i].first;
        if (!found[i].first)
            r = explain_range(&found[i], i, free_from, user, problem);
        else if (own[i] >= found[i].first && own[i] - found[i].first < ID_RANGE_COUNT) {
            snprintf(problem, ID_RANGE_TEXT,
                "the range of this user in %s contains his own id %lu; as root: give him another, "
                "usermod %s %lu-%lu %s",
                files[i], own[i], flags[i], free_from, free_from + ID_RANGE_COUNT - 1, user);
            r = -ENOTSUP;
        }
    }
    if (r == 0)
        *ret_range = (struct id_range){ first[0], first[1] };
    return r;
}

static bool do_meet(unsigned long first, unsigned long count, uint32_t ours) {
    return first < (unsigned long)ours + ID_RANGE_COUNT && ours < first + count;
}

const char *id_range_overlap(const struct id_range *range) {
    static char name[MAX_NAME];
    const uint32_t first[] = { range->uid_first, range->gid_first };
    char user[MAX_NAME] = "", text[256];
    struct line line;
    const char *met = NULL;

    (void)find_name(user);
    for (size_t i = 0; !met && i < ARRAY_SIZE(files); i++) {
        FILE *file = fopen(files[i], "re");

        while (file && !met && fgets(text, sizeof text, file))
            if (parse_line(text, &line) && !is_ours(&line, user) &&
                do_meet(line.first, line.count, first[i]))
                met = memcpy(name, line.name, sizeof name);
        if (file)
            fclose(file);
    }
    FILE *accounts = fopen("/etc/passwd", "re");
    for (struct passwd *entry; accounts && !met && (entry = fgetpwent(accounts));)
        if (do_meet(entry->pw_uid, 1, range->uid_first)) {
            snprintf(name, sizeof name, "%s", entry->pw_name);
            met = name;
        }
    if (accounts)
        fclose(accounts);
    return met;
}

/* ---- the namespace ---- */

struct mapping {
    const struct id_range *range;
    uint32_t inside;
    char *problem;
};

/* newuidmap PID 0 OWN 1 INSIDE FIRST 65536 */
static int run_helper(
    const struct mapping *mapping, int pid, size_t which, unsigned own, uint32_t first) {
    char path[64], words[6][16], *envp[] = { NULL };
    const unsigned numbers[] = { (unsigned)pid, own, mapping->inside, first, ID_RANGE_COUNT };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    int status = 0;
    pid_t helper;

    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        snprintf(words[i], sizeof words[i], "%u", numbers[i]);
    char *argv[] = { (char *)helpers[which], words[0], (char *)"0", words[1], (char *)"1", words[2],
        words[3], words[4], NULL };
    auto_close int said = memfd_create("rollbox-said", MFD_CLOEXEC);
    if (said < 0 || !find_helper(helpers[which], path))
        return -ENOENT;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, said, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int r = -posix_spawn(&helper, path, &actions, &attributes, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (r < 0)
        return r;
    while (waitpid(helper, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    if (status == 0)
        return 0;
    char text[200] = "";
    ssize_t n = pread(said, text, sizeof text - 1, 0);
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    snprintf(mapping->problem, ID_RANGE_TEXT, "%s has failed: %s", path,
        n > 0 ? text : "it has said nothing");
    return -ENOTSUP;
}

static int map_by_helpers(int process, int pid, const void *data) {
    const struct mapping *mapping = data;

    (void)process;
    int r = run_helper(mapping, pid, 0, (unsigned)geteuid(), mapping->range->uid_first);
    return r == 0 ? run_helper(mapping, pid, 1, (unsigned)getegid(), mapping->range->gid_first) : r;
}

int id_range_namespace(const struct id_range *range, uint32_t inside, char problem[ID_RANGE_TEXT]) {
    const struct mapping mapping = { range, inside, problem };
    auto_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    problem[0] = '\0';
    int r = root < 0 ? -errno : id_map_namespace_by(root, map_by_helpers, &mapping);
    if (r < 0 && !problem[0])
        snprintf(problem, ID_RANGE_TEXT, "a user namespace cannot be made: %s", strerror(-r));
    return r;
}

int id_range_enter(struct id_range *ret_range, uint32_t inside, char problem[ID_RANGE_TEXT]) {
    int r = id_range_find(ret_range, problem);
    auto_close int namespace = r < 0 ? r : id_range_namespace(ret_range, inside, problem);

    if (namespace < 0)
        return namespace;
    if (setns(namespace, CLONE_NEWUSER) == 0)
        return 0;
    r = -errno;
    snprintf(problem, ID_RANGE_TEXT, "its user namespace cannot be entered: %s", strerror(-r));
    return r;
}
