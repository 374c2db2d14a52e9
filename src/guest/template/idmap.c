/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User namespaces whose purpose is their id maps.
 *
 * 1. U0, which the launcher enters, has a range of host ids that nothing else uses. The host's root
 * makes it. 2. Namespaces for idmapped mounts of granted directories, also made by the host's root.
 * A guest of a root caller is an unprivileged id of the host and would own nothing in the
 * directories that it may write to. On an idmapped mount the files of the directory's owner belong
 * to the guest, and new files of the guest belong to that owner. All other ids are moved, one to
 * one, to ids that no process has, so that an overlay can still copy such files up. 3. One for each
 * sandbox with layers, made inside U0. The kernel counts pipes, descriptors in transit, watches and
 * other objects by user, so every sandbox runs with an id of its own. But a layer outlives its
 * sandbox and is used by others. So all files are stored with one id, the plan's, and each
 * sandbox's mounts show them as its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/internal.h"
#include "guest/template/template.h"
#include "sys/syscalls.h"

#define LAST_ID 65535u

uint32_t idmap_base;

static char *put_number(char *at, uint32_t value, char after) {
    at = guest_put_number(at, value);
    *at++ = after;
    return at;
}

/* The first process of a namespace. It ends with the launcher, also if that was killed before this
 * line. */
static int stand_in_namespace(void *launcher) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && getppid() == *(pid_t *)launcher)
        for (;;)
            pause();
    _exit(1);
}

/* Makes a user namespace with these maps, which only the descriptor keeps alive. The maps are
 * written from outside, with rights that no process inside has. */
static int new_namespace(int host, const char *uid_map, const char *gid_map) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[4096];
    char path[32] = "proc/";
    pid_t launcher = getpid(),
          pid = clone(stand_in_namespace, stack + sizeof stack, CLONE_VM | CLONE_NEWUSER | SIGCHLD,
              &launcher); /* shares the launcher's memory */

    if (pid < 0)
        return -errno;
    put_number(path + 5, (uint32_t)pid, '\0');
    int fd = -1, process = openat(host, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = process < 0 ? -errno : guest_write(process, "uid_map", uid_map);
    if (r == 0)
        r = guest_write(process, "gid_map", gid_map);
    if (r == 0 && (fd = openat(process, "ns/user", O_RDONLY | O_CLOEXEC)) < 0)
        r = -errno;
    if (process >= 0)
        close(process);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, __WALL);
    return r < 0 ? r : fd;
}

/* "inside outside count": the ids below the owner, the owner itself (the guest's id is 1 in U0),
 * the ids above it. */
static void owner_map(char *text, uint32_t owner) {
    char *at = text;

    if (owner > 0)
        at = put_number(
            put_number(put_number(at, 0, ' '), idmap_base + GUEST_ID_OTHERS, ' '), owner, '\n');
    at = put_number(put_number(put_number(at, owner, ' '), idmap_base + 1, ' '), 1, '\n');
    if (owner < LAST_ID)
        at = put_number(put_number(put_number(at, owner + 1, ' '),
                            idmap_base + GUEST_ID_OTHERS + owner + 1, ' '),
            LAST_ID - owner, '\n');
    at[-1] = '\0';
}

int idmap_for_owner(int host, uid_t uid, gid_t gid) {
    char uid_map[128], gid_map[128];

    if (uid > LAST_ID || gid > LAST_ID)
        return -EOVERFLOW;
    owner_map(uid_map, uid);
    owner_map(gid_map, gid);
    return new_namespace(host, uid_map, gid_map);
}

int idmap_for_files(int root, uint32_t stored, uint32_t id) {
    char map[64], *at = map;

    /* U0's root creates the directories of the files, and mounts need a known owner. */
    at = put_number(put_number(put_number(at, 0, ' '), 0, ' '), 1, '\n');
    put_number(put_number(put_number(at, stored, ' '), id, ' '), 1, '\0');
    return new_namespace(root, map, map);
}

int idmap_for_launcher(int host) {
    char map[64];

    put_number(put_number(put_number(map, 0, ' '), idmap_base, ' '), GUEST_ID_RANGE, '\0');
    return new_namespace(host, map, map);
}
