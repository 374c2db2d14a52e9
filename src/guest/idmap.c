/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User namespaces for idmapped mounts.
 *
 * Run by root, a guest is an unprivileged id of the host and would own nothing in the directories it may write to. On an idmapped mount what belongs to the
 * owner of the granted directory belongs to the guest, and what the guest makes there belongs to that owner; all other ids are moved to where no
 * process has them, one to one, so that a copy-on-write layer can still copy such files up.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

#define LAST_ID 65535u

uint32_t idmap_base;

static char *put(char *at, uint32_t value, char after) {
    char digits[10];
    int n = 0;

    do
        digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n)
        *at++ = digits[--n];
    *at++ = after;
    return at;
}

/* "inside outside count": those below the owner, the owner itself (the guest's id is 1 in U0), those above it. */
static int write_map(int process, const char *file, uint32_t owner) {
    char text[128], *at = text;

    if (owner > LAST_ID)
        return -EOVERFLOW;
    if (owner > 0)
        at = put(put(put(at, 0, ' '), idmap_base + GUEST_ID_OTHERS, ' '), owner, '\n');
    at = put(put(put(at, owner, ' '), idmap_base + 1, ' '), 1, '\n');
    if (owner < LAST_ID)
        at = put(put(put(at, owner + 1, ' '), idmap_base + GUEST_ID_OTHERS + owner + 1, ' '), LAST_ID - owner, '\n');
    at[-1] = '\0';
    return guest_write(process, file, text);
}

int idmap_for_owner(int host, uid_t uid, gid_t gid) {
    char path[32] = "proc/";
    struct clone_args args = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
    pid_t pid = (pid_t)sys_clone3(&args, sizeof args);

    if (pid == 0)
        for (;;)
            pause();
    if (pid < 0)
        return pid;
    put(path + 5, (uint32_t)pid, '\0');
    int fd = -1, process = openat(host, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = process < 0 ? -errno : write_map(process, "uid_map", uid);
    if (r == 0)
        r = write_map(process, "gid_map", gid);
    if (r == 0 && (fd = openat(process, "ns/user", O_RDONLY | O_CLOEXEC)) < 0)
        r = -errno;
    if (process >= 0)
        close(process);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, __WALL);
    return r < 0 ? r : fd;
}
