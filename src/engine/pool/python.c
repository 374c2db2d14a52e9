/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's files that an interpreter of the policy (`python`) needs.
 *
 * A Python finds its modules by its own place: beside itself (an installation, a conda environment,
 * pyenv's), or where a pyvenv.cfg above it says (a virtual environment, which uses the standard
 * library of its base installation). Its path often has links. So the places are those of the path
 * as it is spelled, of each link on the way, and of `home` in a pyvenv.cfg. Of each place only the
 * parts of an installation are granted, and never the whole directory, which may be a home
 * directory.
 */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/log.h"
#include "engine/pool/profile.h"

#define MAX_LINKS 40
#define MAX_CONFIG 65536

static const char *const parts[] = { "bin", "lib", "lib32", "lib64", "libexec", "include", "share",
    "ssl", "etc", "conda-meta", "pyvenv.cfg" };

/* The path without its last names, for free(): "" above the root; NULL when out of memory. */
static char *path_above(const char *path, int names) {
    size_t length = strlen(path);

    for (; names > 0; names--)
        while (length > 0 && path[--length] != '/')
            ;
    return strndup(path, length);
}

static int grant_prefix(struct policy *policy, const char *prefix) {
    /* The defaults grant the system's own. */
    if (!prefix[0])
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        auto_free char *path = NULL;

        if (asprintf(&path, "%s/%s", prefix, parts[i]) < 0) {
            path = NULL;
            return -ENOMEM;
        }
        if (access(path, F_OK) == 0 && policy_grant(policy, path) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* The value of a line `home = DIRECTORY`, in place; NULL of any other line. */
static char *home_of(char *line) {
    line += strspn(line, " \t");
    size_t n = strcspn(line, " \t=");
    char *value = line + n + strspn(line + n, " \t");

    if (n != 4 || memcmp(line, "home", 4) != 0 || *value != '=')
        return NULL;
    value += 1 + strspn(value + 1, " \t");
    value[strcspn(value, "\r")] = '\0';
    return value[0] == '/' ? value : NULL;
}

/* The installation that a virtual environment was made of: `home` is the directory of its programs.
 */
static int grant_home(struct policy *policy, const char *prefix) {
    auto_buf struct buf path = BUF_INIT, text = BUF_INIT;

    buf_printf(&path, "%s/pyvenv.cfg", prefix);
    if (buf_failed(&path))
        return -ENOMEM;
    if (fd_read_file(path.data, MAX_CONFIG, &text) < 0 || !text.data)
        return 0;
    buf_add(&text, "", 1);
    if (buf_failed(&text))
        return -ENOMEM;
    for (char *line = text.data, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        const char *home = home_of(line);
        if (!home)
            continue;
        auto_free char *spelled = path_above(home, 1), *resolved = realpath(home, NULL),
                       *real = resolved ? path_above(resolved, 1) : NULL;
        if (!spelled || (resolved && !real) || grant_prefix(policy, spelled) < 0 ||
            (real && grant_prefix(policy, real) < 0))
            return -ENOMEM;
    }
    return 0;
}

/* The installation that a program is in the bin directory of. */
static int grant_installation(struct policy *policy, const char *program) {
    auto_free char *prefix = path_above(program, 2);

    if (!prefix || grant_prefix(policy, prefix) < 0)
        return -ENOMEM;
    return grant_home(policy, prefix);
}

/* The target of a link, for free(). NULL: not a link, or out of memory. */
static char *next_of(const char *path) {
    auto_buf struct buf target = BUF_INIT;
    char *to = buf_reserve(&target, PATH_MAX), *next = NULL;
    ssize_t n = to ? readlink(path, to, PATH_MAX - 1) : -1;

    if (n <= 0)
        return NULL;
    to[n] = '\0';
    auto_free char *directory = to[0] == '/' ? strdup("") : path_above(path, 1);
    if (!directory || asprintf(&next, "%s%s%s", directory, to[0] == '/' ? "" : "/", to) < 0)
        return NULL;
    return next;
}

int python_grant(struct policy *policy, struct rollbox_error *error) {
    struct stat st;

    /* One of an image needs nothing of the host. */
    if (!policy->python || policy->image)
        return 0;
    auto_free char *resolved = realpath(policy->python, NULL);
    if (!resolved || stat(resolved, &st) < 0)
        return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND, errno, "policy", "python: %s: %s",
            policy->python, strerror(errno));
    if (!S_ISREG(st.st_mode) || !(st.st_mode & 0111))
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EACCES, "policy",
            "python: %s is not a program; name the interpreter itself, such as "
            "DIRECTORY/bin/python",
            policy->python);
    int r = grant_installation(policy, resolved);
    char *path = strdup(policy->python);
    for (int links = 0; r == 0 && path && links < MAX_LINKS; links++) {
        r = grant_installation(policy, path);
        char *next = next_of(path);
        free(path);
        path = next;
    }
    free(path);
    return r < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory")
               : 0;
}
