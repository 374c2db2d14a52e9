/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/box/volume_owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/many_ids.h"
#include "engine/core/spawn.h"
#include "policy/plan.h"
#include "store/volume.h"
#include "sys/id_range.h"

static int check_empty(int take_directory) {
    DIR *entries = take_directory < 0 ? NULL : fdopendir(take_directory);
    int r = 0;

    if (!entries) {
        r = -errno;
        close_fd(&take_directory);
        return r;
    }
    errno = 0;
    for (const struct dirent *entry; r == 0 && (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            r = -ENOTEMPTY;
    if (r == 0)
        r = -errno;
    closedir(entries);
    return r;
}

/* In a process of its own, which enters the user's ids: those of `namespace`, or new ones. */
static int give_to(int directory, int namespace, uid_t owner) {
    char problem[ID_RANGE_TEXT];
    struct id_range range;
    int r;

    if (namespace < 0)
        r = id_range_enter(&range, PLAN_MANY_FIRST, problem);
    else
        r = setns(namespace, CLONE_NEWUSER) < 0 ? -errno : 0;
    if (r < 0)
        return r;
    r = check_empty(
        openat(directory, VOLUME_FILES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (r == 0 && fchownat(directory, VOLUME_FILES, owner, owner, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    return r;
}

static int change_kind(int directory, int namespace, uid_t owner) {
    const int fds[] = { directory, namespace };
    int status = 0;
    pid_t pid = spawn_fork("rollbox-volume", fds, ARRAY_SIZE(fds));

    if (pid == 0)
        _exit(-give_to(directory, namespace, owner));
    if (pid < 0)
        return pid;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

int volume_owner_settle(struct engine *engine, const struct plan *plan, int directory,
    const char *name, struct rollbox_error *error) {
    const bool many = many_ids_has(plan);
    struct stat files;

    if (plan->flags & PLAN_AS_ROOT)
        return 0;
    if (fstatat(directory, VOLUME_FILES, &files, AT_SYMLINK_NOFOLLOW) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "volume",
            "the files of volume %s cannot be examined: %s", name, strerror(errno));
    if (files.st_uid == (many ? many_ids_range(engine)->uid_first : geteuid()))
        return 0;
    /* Sandboxes of the other kind have it mounted if they have this lock. */
    auto_close int users = openat(directory, "users", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    int r = -EBUSY;
    if (users >= 0 && flock(users, LOCK_EX | LOCK_NB) == 0)
        r = many ? change_kind(directory, many_ids_namespace(engine), PLAN_MANY_FIRST)
                 : change_kind(directory, -EBADF, 0);
    if (r == 0)
        return 0;
    if (r != -EBUSY && r != -ENOTEMPTY)
        return error_set(error, ROLLBOX_ERR_IO, -r, "volume",
            "volume %s cannot be given to the users of the sandbox: %s", name, strerror(-r));
    const char *state = r == -EBUSY ? "is in use by" : "has files of";
    const char *other = many ? "one" : "many";
    return error_set(error, ROLLBOX_ERR_CONFLICT, -r, "volume",
        "volume %s %s sandboxes with users %s, whose files an ordinary user cannot show to others; "
        "use users %s, or another volume",
        name, state, other, other);
}
