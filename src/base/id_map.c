/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user namespace begins with a process. A short-lived child that shares the caller's memory is
 * that process: its maps are written from outside, with rights that no process inside has, and it
 * is killed once its namespace is open. Nothing here allocates or formats: the guest layer uses it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/id_map.h"

#define STACK_BYTES 4096
#define STACK_ALIGN 64

static char *put_number(char *at, uint32_t value) {
    char digits[12];
    size_t n = 0;

    do
        digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n)
        *at++ = digits[--n];
    return at;
}

char *id_map_line(char *at, uint32_t inside, uint32_t outside, uint32_t count) {
    at = put_number(at, inside);
    *at++ = ' ';
    at = put_number(at, outside);
    *at++ = ' ';
    at = put_number(at, count);
    *at++ = '\n';
    *at = '\0';
    return at;
}

void id_map_owner(char text[ID_MAP_TEXT], uint32_t owner, uint32_t id, uint32_t others) {
    char *at = text;

    if (owner > 0)
        at = id_map_line(at, 0, others, owner);
    at = id_map_line(at, owner, id, 1);
    if (owner < ID_MAP_LAST_OWNER)
        (void)id_map_line(at, owner + 1, others + owner + 1, ID_MAP_LAST_OWNER - owner);
}

/* It ends with its maker, also if that was killed before this line. */
static int first_process(void *maker) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && getppid() == *(pid_t *)maker)
        for (;;)
            pause();
    _exit(1);
}

static int write_map(int process, const char *name, const char *map) {
    int fd = openat(process, name, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = write(fd, map, strlen(map)) < 0 ? -errno : 0;
    close(fd);
    return r;
}

int id_map_namespace_by(
    int root, int (*map)(int process, int pid, const void *data), const void *data) {
    static _Alignas(STACK_ALIGN) char stack[STACK_BYTES];
    char path[32] = "proc/";
    pid_t maker = getpid(), pid = clone(first_process, stack + sizeof stack,
                                CLONE_VM | CLONE_NEWUSER | SIGCHLD, &maker);

    if (pid < 0)
        return -errno;
    *put_number(path + strlen(path), (uint32_t)pid) = '\0';
    int fd = -1, process = openat(root, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = process < 0 ? -errno : map(process, pid, data);
    if (r == 0 && (fd = openat(process, "ns/user", O_RDONLY | O_CLOEXEC)) < 0)
        r = -errno;
    if (process >= 0)
        close(process);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, __WALL);
    return r < 0 ? r : fd;
}

struct maps {
    const char *uid, *gid;
};

static int write_maps(int process, int pid, const void *data) {
    const struct maps *maps = data;

    (void)pid;
    int r = write_map(process, "uid_map", maps->uid);
    return r == 0 ? write_map(process, "gid_map", maps->gid) : r;
}

int id_map_namespace(int root, const char *uid_map, const char *gid_map) {
    return id_map_namespace_by(root, write_maps, &(struct maps){ uid_map, gid_map });
}
