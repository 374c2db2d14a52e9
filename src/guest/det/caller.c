/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/det/caller.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/det/det.h"
#include "sys/syscalls.h"

#define MAX_GROUPS 64 /* with more, the kernel makes the call */
#define BIT(capability) (UINT64_C(1) << (capability))
/* Rights over files that root has in a sandbox. */
#define OVER_FILES (BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID))

struct rights {
    uint32_t uids[4], gids[4]; /* real, effective, saved, of files */
    uint32_t groups[MAX_GROUPS];
    size_t n_groups;
    uint64_t effective;
};

static struct rights rights;
static bool acts;

/* The numbers of a line of /proc/PID/status: how many there are, at most `most` are stored. */
static size_t read_numbers(const char *at, uint32_t *to, size_t most) {
    size_t n = 0;

    for (; *at && *at != '\n'; n++) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);

        if (end == at)
            break;
        if (n < most)
            to[n] = (uint32_t)value;
        at = end + strspn(end, " \t");
    }
    return n;
}

/* The text after a heading at the start of a line. The first line has the process's name, in which
 * the kernel writes a line feed as two characters. */
static const char *find_line(const char *text, const char *heading) {
    const size_t length = strlen(heading);

    while (text && strncmp(text, heading, length) != 0) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    return text ? text + length : NULL;
}

static int read_rights(pid_t pid) {
    static char text[8192];
    int fd = process_open(pid, "/status", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    if (n < 0)
        return -ESRCH;
    text[n] = '\0';
    const char *uids = find_line(text, "Uid:\t"), *gids = find_line(text, "Gid:\t"),
               *groups = find_line(text, "Groups:\t"), *caps = find_line(text, "CapEff:\t");
    if (!uids || !gids || !groups || !caps)
        return -EIO;
    if (read_numbers(uids, rights.uids, 4) != 4 || read_numbers(gids, rights.gids, 4) != 4)
        return -EIO;
    rights.n_groups = read_numbers(groups, rights.groups, MAX_GROUPS);
    rights.effective = strtoul(caps, NULL, 16);
    return rights.n_groups > MAX_GROUPS ? -E2BIG : 0;
}

/* Root of the sandbox, as init is. Init has at least the rights of any other. */
static bool is_root(void) {
    return !rights.uids[1] && !rights.gids[1] && !rights.n_groups;
}

static int take_rights(uint64_t of_root) {
    if (rights.uids[1] != rights.uids[3] || rights.gids[1] != rights.gids[3])
        return -EPERM;
    if (!rights.uids[1] && (rights.effective & OVER_FILES) != (of_root & OVER_FILES))
        return -EPERM;
    if (is_root())
        return 0;
    acts = true;
    int r = sys_setgroups(rights.n_groups, rights.groups);
    return r < 0 ? r : box_act_as(rights.uids[1], rights.gids[1]);
}

int caller_begin(const struct plan *plan, int listener, const struct seccomp_notif *question) {
    if (!(plan->flags & PLAN_MANY_USERS))
        return 0;
    int r = read_rights((pid_t)question->pid);
    /* The caller may have been killed, and its id may be another's, with other rights. */
    if (r == 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &question->id) < 0)
        r = -ESRCH;
    if (r == 0)
        r = take_rights(plan->capabilities);
    if (r < 0)
        caller_end(plan);
    return r;
}

void caller_end(const struct plan *plan) {
    if (!(plan->flags & PLAN_MANY_USERS) || !acts)
        return;
    acts = false;
    /* Init cannot continue with the rights of a guest, nor without the signal that ends it. */
    if (box_act_as_root() < 0 || sys_setgroups(0, NULL) < 0)
        _exit(1);
}

bool caller_has_root(const struct plan *plan, const struct seccomp_notif *question) {
    static struct uapi_statx own;
    static bool has_own;
    struct uapi_statx theirs;
    char path[32], *at = guest_put_number(path, question->pid);

    if (!(plan->flags & PLAN_MANY_USERS))
        return true;
    memcpy(at, "/root", 6);
    if (!has_own)
        has_own =
            sys_call5(__NR_statx, AT_FDCWD, "/", 0, UAPI_STATX_BASIC | UAPI_STATX_MOUNT, &own) == 0;
    return has_own &&
           sys_call5(__NR_statx, determinism_proc, path, 0, UAPI_STATX_BASIC | UAPI_STATX_MOUNT,
               &theirs) == 0 &&
           own.mount == theirs.mount && own.inode == theirs.inode;
}
