/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan operations.
 *
 * `root` is "/", of the launcher or of the sandbox; `host` is the host's root while the template is built. The sources of binds are real paths of the
 * host; they are opened without following any symbolic link, so that a link put there after the engine resolved the path leads nowhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

static const char *below(const char *path) {
    return path[1] ? path + 1 : ".";
}

static int open_strictly(int directory, const char *path, uint64_t flags) {
    struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };

    return sys_openat2(directory, path, &how);
}

/* Makes the parents of an absolute path below root. */
static int make_parents(int root, const char *path) {
    char prefix[4096];
    size_t length = strlen(path);

    if (length >= sizeof prefix)
        return -ENAMETOOLONG;
    for (size_t i = 1; i < length; i++) {
        if (path[i] == '/') {
            prefix[i - 1] = '\0';
            if (mkdirat(root, prefix, 0755) < 0 && errno != EEXIST && errno != EROFS)
                return -errno;
        }
        prefix[i - 1] = path[i];
    }
    return 0;
}

/* Makes a directory, with its parents where they are missing; fine if it is there. */
static int make_directories(int root, const char *path, mode_t mode) {
    if (mkdirat(root, below(path), mode) == 0 || errno == EEXIST)
        return 0;
    if (errno != ENOENT)
        return -errno;
    int r = make_parents(root, path);
    return r == 0 && mkdirat(root, below(path), mode) < 0 && errno != EEXIST ? -errno : r;
}

/* A new file, open for writing. (The umask is 0 while operations run.) */
static int create_file(int root, const char *path, mode_t mode) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(root, below(path), flags, mode);

    if (fd >= 0 || errno != ENOENT)
        return fd < 0 ? -errno : fd;
    int r = make_parents(root, path);
    if (r < 0)
        return r;
    fd = openat(root, below(path), flags, mode);
    return fd < 0 ? -errno : fd;
}

static int make_file(int root, const char *path, const char *content, size_t length, mode_t mode) {
    int fd = create_file(root, path, mode);

    if (fd < 0)
        return fd;
    int r = length ? fd_write_all(fd, content, length) : 0;
    close(fd);
    return r;
}

/* Whatever is to be covered at path exists afterwards, as directory or file like the source. */
static int make_target(int root, const char *path, mode_t type) {
    if (S_ISDIR(type))
        return make_directories(root, path, 0755);
    int r = make_file(root, path, NULL, 0, 0644);
    return r == -EEXIST || r == -EROFS ? 0 : r;
}

static int bind_from_host(int root, int host, const struct plan *plan, const struct plan_op *op) {
    struct mount_attr attributes = { .attr_set = op->mode };
    unsigned recursive = op->kind == PLAN_OP_BIND ? AT_RECURSIVE : 0;
    struct stat st;
    int target = -EBADF, tree = -EBADF, ids = -EBADF, r;

    int source = open_strictly(host, below(plan_text(plan, op->source)), O_PATH);
    if (source < 0)
        return source;
    if (fstat(source, &st) < 0)
        r = -errno;
    else
        r = make_target(root, plan_text(plan, op->path), st.st_mode);
    if (r == 0)
        r = tree = sys_open_tree(source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | recursive);
    if (r >= 0 && plan->flags & PLAN_AS_ROOT && op->value & PLAN_BIND_IDMAP) {
        r = ids = idmap_for_owner(host, st.st_uid, st.st_gid);
        attributes.attr_set |= MOUNT_ATTR_IDMAP;
        attributes.userns_fd = (uint64_t)ids;
    }
    if (r >= 0)
        r = sys_mount_setattr(tree, "", AT_EMPTY_PATH | recursive, &attributes);
    if (r >= 0)
        r = target = open_strictly(root, below(plan_text(plan, op->path)), O_PATH);
    if (r >= 0)
        r = sys_move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    if (ids >= 0)
        close(ids);
    if (target >= 0)
        close(target);
    if (tree >= 0)
        close(tree);
    close(source);
    return r;
}

static int give_to_guest(uint32_t outer_id, int fd) {
    return fchown(fd, outer_id, outer_id) < 0 ? -errno : 0;
}

static int make_private(int root, uint32_t outer_id, const struct plan *plan, const struct plan_op *op) {
    int r = make_directories(root, plan_text(plan, op->path), 0700);

    if (r < 0)
        return r;
    int fd = open_strictly(root, below(plan_text(plan, op->path)), O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fd;
    r = give_to_guest(outer_id, fd);
    if (r == 0 && fchmod(fd, op->mode) < 0)
        r = -errno;
    close(fd);
    return r;
}

/* A private copy of one file, for the guest to write to. */
static int copy_file(int root, uint32_t outer_id, const struct plan *plan, const struct plan_op *op) {
    struct stat st;
    int to = -1, r = 0;
    int from = open_strictly(root, below(plan_text(plan, op->source)), O_RDONLY);

    if (from < 0)
        return from;
    if (fstat(from, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode))
        r = -EINVAL;
    if (r == 0 && (to = create_file(root, plan_text(plan, op->path), 0600)) < 0)
        r = to;
    for (ssize_t n = 1; r == 0 && n > 0;) {
        n = sendfile(to, from, NULL, 1 << 30);
        if (n < 0)
            r = -errno;
    }
    if (r == 0)
        r = give_to_guest(outer_id, to);
    if (r == 0 && fchmod(to, (st.st_mode & 0777) | 0600) < 0)
        r = -errno;
    if (to >= 0)
        close(to);
    close(from);
    return r;
}

static int run_one(const struct plan *plan, uint32_t outer_id, const struct plan_op *op, int root, int host) {
    const char *path = plan_text(plan, op->path), *source = plan_text(plan, op->source);
    struct mount_attr attributes = { .attr_set = op->mode };
    int r;

    switch ((enum plan_op_kind)op->kind) {
    case PLAN_OP_MKDIR:
        return make_directories(root, path, op->mode);
    case PLAN_OP_FILE:
        r = make_file(root, path, source, op->value, op->mode);
        return r == -EEXIST && !op->value ? 0 : r;     /* a place to mount on, which the grant around it may have already */
    case PLAN_OP_SYMLINK:
        if (symlinkat(source, root, below(path)) == 0 || errno == EEXIST)
            return 0;
        r = errno == ENOENT ? make_parents(root, path) : -errno;
        return r == 0 && symlinkat(source, root, below(path)) < 0 ? -errno : r;
    case PLAN_OP_BIND:
    case PLAN_OP_BIND_ONE:
        return bind_from_host(root, host, plan, op);
    case PLAN_OP_TMPFS:
        return mount("rollbox", path, "tmpfs", MS_NOSUID | MS_NODEV, source) < 0 ? -errno : 0;
    case PLAN_OP_PRIVATE:
        return make_private(root, outer_id, plan, op);
    case PLAN_OP_COVER:
    case PLAN_OP_COVER_IF:
        if (mount(source, path, NULL, MS_BIND | MS_REC, NULL) < 0)
            return errno == ENOENT && op->kind == PLAN_OP_COVER_IF ? 0 : -errno;
        return op->mode ? sys_mount_setattr(AT_FDCWD, path, 0, &attributes) : 0;
    case PLAN_OP_OVERLAY:
        return mount("rollbox", path, "overlay", MS_NOSUID | MS_NODEV, source) < 0 ? -errno : 0;
    case PLAN_OP_COPY:
        return copy_file(root, outer_id, plan, op);
    case PLAN_OP_PROC:
        return mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL) < 0 ? -errno : 0;
    case PLAN_OP_DEVPTS:
        return mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, source) < 0 ? -errno : 0;
    }
    return -EINVAL;
}

int ops_run(const struct plan *plan, uint32_t outer_id, struct plan_array which, int root, int host, struct guest_fault *fault) {
    const struct plan_op *ops = (const void *)((const char *)plan + which.offset);

    for (uint32_t i = 0; i < which.n; i++) {
        int r = run_one(plan, outer_id, &ops[i], root, host);
        if (r < 0) {
            fault->operation = i;
            return r;
        }
    }
    return 0;
}
