/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes a sandbox's changes to a host directory.
 *
 * The new version is built beside the old one, in a directory of its own (.rollbox-commit-XXXX).
 * Unchanged files are hard links to the host's files; changed files are copied from the layers.
 * When the new version has reached the disk, renameat2(RENAME_EXCHANGE) swaps the two, so the path
 * never lacks a version. The old version is removed last. A crash leaves the old or the new
 * version, and perhaps the extra directory. The engine or its janitor removes that (rollbox-store
 * sweep), as does the next commit: its lock is then free, and no other program can have made the
 * mark in it.
 *
 * A guest wrote the layers, so set-user-id bits and devices are not published. Every file gets the
 * owner of the host's file, or else of the host's directory.
 */
#include "store/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/remove_tree.h"
#include "store/digest.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/layer.h"
#include "sys/syscalls.h"

#define MARK "rollbox commit 1\n"
#define TRIES 16
#define MAX_NAMED 5 /* paths in the message about conflicts */

/* The state of a host directory at the time of reading. */
struct seen {
    char *path;
    struct stat st;
};

struct commit {
    const struct job *job;
    const struct job_place *place;
    struct rollbox_error *error;
    char *path;              /* the base, resolved */
    const char *name;        /* its last component */
    int parent, base, stage; /* descriptors; base -EBADF for a place that is a file */
    char stage_name[40];
    struct stat base_st, new_st; /* the old file, and, for a directory, the new one */
    /* Changes. */
    uint64_t n_changes, n_conflicts;
    struct buf conflicts;
    /* While building. */
    struct buf at;
    unsigned depth;
    uint64_t n_built;
    struct seen *seen;
    size_t n_seen, seen_capacity;
    struct inodes copied; /* layers' files with several names -> the first in the new tree */
};

static int fail_commit(struct commit *commit, int r, const char *doing, const char *what) {
    r = -r;
    return error_set(commit->error,
        r == EACCES || r == EPERM || r == EROFS ? ROLLBOX_ERR_PATH_DENIED
                                                : error_code_of(r, ROLLBOX_ERR_IO),
        r, "commit", "cannot %s %s: %s%s", doing, files_printable(what), strerror(r),
        r == EXDEV    ? " (another file system is mounted in it)"
        : r == ENOSPC ? "; nothing was changed"
                      : "");
}

static int64_t timespec_ns(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* ---- leftovers ---- */

/* The mark is trustworthy: a regular file of ours in a directory of ours that no other user may
 * enter. */
static bool is_ours(int directory) {
    auto_buf struct buf text = BUF_INIT;
    struct stat st;

    if (fstat(directory, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 07777) != 0700)
        return false;
    auto_close int mark = openat(directory, "mark", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (mark < 0) {
        /* A crash between mkdir and the mark: empty, and that is all that is removed. */
        struct names names;
        bool empty = names_read(directory, &names) == 0 && names.n == 0;
        names_done(&names);
        return empty;
    }
    return fstat(mark, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           fd_read_all(mark, 64, &text) == 0 && text.data && strcmp(text.data, MARK) == 0;
}

/* The mark is removed last, so that an interrupted removal can be continued. */
static int remove_stage(int parent, const char *name, int stage) {
    int r = 0;

    auto_close int tree = tree_open(stage, "new");
    if (tree >= 0)
        r = tree_empty(tree);
    fault_point(FAULT_commit_removing);
    if (tree >= 0 && r == 0 && unlinkat(stage, "new", AT_REMOVEDIR) < 0)
        r = -errno;
    else if (tree < 0 && tree != -ENOENT && unlinkat(stage, "new", 0) < 0 && errno != ENOENT)
        r = -errno;
    if (r == 0 && unlinkat(stage, "mark", 0) < 0 && errno != ENOENT)
        r = -errno;
    if (r == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        r = -errno;
    return r;
}

static void sweep_leftovers(int parent) {
    struct names names;

    if (names_read(parent, &names) < 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        if (strncmp(names.list[i], COMMIT_PREFIX, strlen(COMMIT_PREFIX)) != 0)
            continue;
        auto_close int stage =
            openat(parent, names.list[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (stage >= 0 && flock(stage, LOCK_EX | LOCK_NB) == 0 && is_ours(stage))
            (void)remove_stage(parent, names.list[i], stage);
    }
    names_done(&names);
}

int commit_sweep(const char *path, struct rollbox_error *error) {
    auto_free char *copy = strdup(path);
    char *slash = copy ? strrchr(copy, '/') : NULL;

    if (!slash)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s must be an absolute path", files_printable(path));
    slash[slash == copy] = '\0';
    auto_close int parent = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return errno == ENOENT
                   ? 0
                   : error_set(error, ROLLBOX_ERR_PATH_DENIED, errno, "commit",
                         "%s cannot be opened: %s", files_printable(copy), strerror(errno));
    sweep_leftovers(parent);
    return 0;
}

/* Sandboxes continue to see the replaced directory, and must not lose it: the owner of the socket
 * gets its lock, and has it swept when these sandboxes are gone. The descriptor is sent along. */
static bool hand_over(const struct commit *commit) {
    const struct commit_exchange exchange = { commit->base_st.st_dev, commit->base_st.st_ino,
        commit->new_st.st_dev, commit->new_st.st_ino };
    auto_buf struct buf text = BUF_INIT;
    const char *slash = strrchr(commit->path, '/');

    buf_add(&text, &exchange, sizeof exchange);
    buf_add(&text, commit->path, strlen(commit->path) + 1);
    buf_add(&text, commit->path, (size_t)(slash - commit->path) + 1);
    buf_add(&text, commit->stage_name, strlen(commit->stage_name) + 1);
    return !buf_failed(&text) &&
           fd_send(commit->job->kept, text.data, text.length, &commit->stage, 1) == 0;
}

/* A new directory is unlocked for a moment, in which another process may sweep it. */
static int make_stage(struct commit *commit) {
    int r = -EBUSY;

    for (int i = 0; i < TRIES && (r == -EBUSY || r == -ENOENT); i++) {
        struct stat ours, there;

        snprintf(commit->stage_name, sizeof commit->stage_name, COMMIT_PREFIX);
        layer_random(commit->stage_name + strlen(commit->stage_name), 12);
        if (mkdirat(commit->parent, commit->stage_name, 0700) < 0)
            return fail_commit(commit, -errno, "write beside", commit->path);
        auto_close int stage = openat(
            commit->parent, commit->stage_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (stage < 0 || fchmod(stage, 0700) < 0 || flock(stage, LOCK_EX | LOCK_NB) < 0 ||
            fstat(stage, &ours) < 0 ||
            fstatat(commit->parent, commit->stage_name, &there, AT_SYMLINK_NOFOLLOW) < 0)
            r = errno == EWOULDBLOCK ? -EBUSY : -errno;
        else if (ours.st_ino != there.st_ino)
            r = -EBUSY;
        else {
            r = layer_write_file(stage, "mark", MARK, commit->error);
            fault_point(FAULT_commit_staged);
            commit->stage = TAKE_FD(stage);
            return r;
        }
        (void)unlinkat(commit->parent, commit->stage_name, AT_REMOVEDIR);
    }
    return fail_commit(commit, r, "write beside", commit->path);
}

/* ---- conflicts ---- */

/* The result of the sandbox's earlier commit counts as the present state: does it still exist? */
static bool host_differs(const struct commit *commit, const struct change *change) {
    struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS };
    auto_free char *parent_path = strdup(change->path);
    char *slash = parent_path ? strrchr(parent_path, '/') : NULL;
    struct stat st;

    if (!parent_path || commit->place->is_file || !change->path[0])
        return !parent_path;
    if (slash)
        *slash = '\0';
    auto_close int parent = sys_openat2(commit->base, slash ? parent_path : ".", &how);
    return parent < 0 || fstatat(parent, change->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
           (st.st_mode & S_IFMT) != (change->old->st_mode & S_IFMT) ||
           (!S_ISDIR(st.st_mode) &&
               changes_differ(change->name, parent, &st, change->old_parent, change->old) != 0);
}

static int count_change(void *context, const struct change *change, struct rollbox_error *error) {
    struct commit *commit = context;
    int64_t since = commit->job->since_ns;

    (void)error;
    commit->n_changes++;
    bool conflict =
        change->vanished || (since && change->old &&
                                (change->old_is_host ? timespec_ns(&change->old->st_ctim) > since
                                                     : host_differs(commit, change)));
    if (!conflict)
        return 0;
    if (commit->n_conflicts++ < MAX_NAMED)
        buf_printf(&commit->conflicts, "%s%s%s", commit->conflicts.length ? ", " : "",
            change->path[0] ? files_printable(change->path) : commit->name,
            change->vanished ? " (removed)" : "");
    return 0;
}

static int changed_meanwhile(struct commit *commit, const char *path) {
    return error_set(commit->error, ROLLBOX_ERR_CONFLICT, EBUSY, "commit",
        "%s was changed on the host while it was being committed; nothing was changed, try again",
        files_printable(path));
}

static int check_conflicts(struct commit *commit) {
    int r = changes_of_place(commit->job, commit->place, commit->job->since_ns != 0, count_change,
        commit, commit->error);

    if (r < 0 || !commit->n_conflicts || commit->job->force)
        return r;
    return error_set(commit->error, ROLLBOX_ERR_CONFLICT, EBUSY, "commit",
        "files of the host that the commit to %s would replace have changed: %s%s; nothing was "
        "changed (force overrides)",
        files_printable(commit->path), commit->conflicts.data ? commit->conflicts.data : "?",
        commit->n_conflicts > MAX_NAMED ? ", ..." : "");
}

/* ---- building ---- */

static int note_seen(struct commit *commit, const struct stat *st) {
    if (commit->n_seen == commit->seen_capacity) {
        size_t capacity = commit->seen_capacity ? 2 * commit->seen_capacity : 64;
        struct seen *more = realloc(commit->seen, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        commit->seen = more;
        commit->seen_capacity = capacity;
    }
    struct seen *seen = &commit->seen[commit->n_seen];
    seen->path = strdup(commit->at.data ? commit->at.data : "");
    seen->st = *st;
    if (!seen->path)
        return -ENOMEM;
    commit->n_seen++;
    return 0;
}

/* All attributes of a directory of the host's, access control lists among them, as far as the
 * caller may. */
static void copy_host_attributes(int from, int to) {
    char names[4096], value[4096];
    ssize_t n = flistxattr(from, names, sizeof names);

    for (const char *p = names; n > 0 && p < names + n; p += strlen(p) + 1) {
        ssize_t length = fgetxattr(from, p, value, sizeof value);

        if (length >= 0)
            (void)fsetxattr(to, p, value, (size_t)length, 0);
    }
}

static int set_owner(int fd, uid_t uid, gid_t gid, mode_t mode) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if ((st.st_uid != uid || st.st_gid != gid) && fchown(fd, uid, gid) < 0)
        return -errno;
    return fchmod(fd, mode) < 0 ? -errno : 0;
}

/* The host's entry with a name, if it exists: `below` of the last source, if that is the host. */
static bool host_has(const struct stack *stack, const char *name, struct stat *ret_st) {
    return stack->with_base &&
           fstatat(stack->fds[stack->n - 1], name, ret_st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A file or link from a layer. `host`: the host's entry; NULL: none. */
static int build_from_layer(struct commit *commit, int layer, const char *name,
    const struct stat *st, const struct stat *host, int to) {
    uid_t uid = host ? host->st_uid : commit->base_st.st_uid;
    gid_t gid = host ? host->st_gid : commit->base_st.st_gid;

    if (S_ISLNK(st->st_mode)) {
        auto_free char *target = files_link(layer, name, st);

        if (!target || symlinkat(target, to, name) < 0)
            return -errno;
        return geteuid() == 0 && fchownat(to, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    }
    if (S_ISFIFO(st->st_mode)) {
        if (mkfifoat(to, name, 0600) < 0 || fchownat(to, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
        return fchmodat(to, name, st->st_mode & 0777, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    }
    if (!S_ISREG(st->st_mode))
        return 0; /* sockets and devices are nothing to publish */
    if (st->st_nlink > 1) {
        struct inode *first;
        bool found;
        int r = inodes_note(&commit->copied, st, commit->at.data, &first, &found);

        if (r < 0)
            return r;
        if (found) {
            const char *leaf;
            auto_close int tree = openat(commit->stage, "new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            auto_close int parent = tree < 0 ? -errno : files_parent(tree, first->path, &leaf);
            /* If it has come to be something else there, it is copied once more. */
            if (parent >= 0 && linkat(parent, leaf, to, name, 0) == 0)
                return 0;
        }
    }
    auto_close int from = files_open(layer, name, 0);
    if (from < 0)
        return from;
    auto_close int file =
        openat(to, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return -errno;
    int r = files_copy_data(from, file, (uint64_t)st->st_size);
    if (r == 0)
        r = files_copy_xattrs(from, file, false);
    if (r == 0)
        r = set_owner(file, uid, gid, st->st_mode & 01777);
    struct timespec times[2] = { st->st_atim, st->st_mtim };
    if (r == 0 && futimens(file, times) < 0)
        r = -errno;
    fault_point(FAULT_commit_half);
    return r;
}

static int build_directory(struct commit *commit, const struct stack *stack, int to);

static int build_name(struct commit *commit, const struct stack *stack, const char *name, int to) {
    auto_close int made = -EBADF;
    struct found found = { 0 };
    struct stat host;
    int r = stack_find(stack, name, &found);

    if (r < 0 || !found.there) {
        r = r < 0 ? fail_commit(commit, r, "read", commit->at.data) : 0;
        goto out;
    }
    bool has_host = host_has(stack, name, &host),
         from_host = has_host && found.source == stack->n - 1;
    commit->n_built++;
    if (!S_ISDIR(found.st.st_mode)) {
        /* A layer's copy that is as the host's is the host's. */
        if (!from_host && has_host && S_ISREG(found.st.st_mode) && S_ISREG(host.st_mode) &&
            host.st_size == found.st.st_size &&
            (host.st_mode & 07777) == (found.st.st_mode & 07777)) {
            auto_close int a = files_open(stack->fds[found.source], name, 0);
            auto_close int b = files_open(stack->fds[stack->n - 1], name, 0);
            from_host = a >= 0 && b >= 0 && content_same(a, b, (uint64_t)host.st_size) == 1;
        }
        if (from_host)
            r = linkat(stack->fds[stack->n - 1], name, to, name, 0) < 0 ? -errno : 0;
        else
            r = build_from_layer(
                commit, stack->fds[found.source], name, &found.st, has_host ? &host : NULL, to);
        if (r < 0)
            r = fail_commit(commit, r, from_host ? "keep" : "write", commit->at.data);
        goto out;
    }
    if (++commit->depth > FILES_MAX_DEPTH) {
        r = error_set(commit->error, ROLLBOX_ERR_INVALID_ARGUMENT, ELOOP, "commit",
            "%s: the tree is deeper than %d directories", files_printable(commit->at.data),
            FILES_MAX_DEPTH);
        goto out;
    }
    made = mkdirat(to, name, 0700) < 0
               ? -errno
               : openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    r = made < 0 ? fail_commit(commit, -errno, "make", commit->at.data)
                 : build_directory(commit, &found.below, made);
    commit->depth--;
    /* Its attributes last: it may not be writable. */
    has_host = has_host && S_ISDIR(host.st_mode);
    if (r == 0) {
        struct timespec times[2] = { found.st.st_atim, found.st.st_mtim };

        if (found.below.with_base)
            copy_host_attributes(found.below.fds[found.below.n - 1], made);
        if (!from_host)
            r = files_copy_xattrs(found.below.fds[0], made, false);
        if (r == 0)
            r = set_owner(made, has_host ? host.st_uid : commit->base_st.st_uid,
                has_host ? host.st_gid : commit->base_st.st_gid,
                from_host ? host.st_mode & 07777
                          : (found.st.st_mode & 01777) | (has_host ? host.st_mode & 02000 : 0));
        if (r == 0 && futimens(made, times) < 0)
            r = -errno;
        if (r < 0)
            r = fail_commit(commit, r, "set the owner and mode of", commit->at.data);
    }
out:
    found_done(&found);
    return r;
}

static int build_directory(struct commit *commit, const struct stack *stack, int to) {
    size_t base = commit->at.length;
    struct names names;
    int r = 0;

    /* Noted before reading: later changes are found at the end. */
    if (stack->with_base)
        r = note_seen(commit, &stack->stats[stack->n - 1]);
    if (r == 0)
        r = stack_names(stack, &names);
    if (r < 0)
        return fail_commit(commit, r, "read", base ? commit->at.data : commit->path);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        if (base)
            buf_add(&commit->at, "/", 1);
        buf_add_text(&commit->at, names.list[i]);
        r = buf_failed(&commit->at) ? fail_commit(commit, -ENOMEM, "write", commit->path)
                                    : build_name(commit, stack, names.list[i], to);
        commit->at.length = base;
        if (commit->at.data)
            commit->at.data[base] = '\0';
    }
    names_done(&names);
    return r;
}

/* No directory of the host's has got, lost or changed a name since it was read. */
static int check_seen(struct commit *commit) {
    for (size_t i = 0; i < commit->n_seen; i++) {
        const struct seen *seen = &commit->seen[i];
        const char *leaf;
        struct stat st;

        auto_close int parent = files_parent(commit->base, seen->path, &leaf);
        if (parent < 0 || fstatat(parent, leaf, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            st.st_ino != seen->st.st_ino ||
            timespec_ns(&st.st_mtim) != timespec_ns(&seen->st.st_mtim) ||
            timespec_ns(&st.st_ctim) != timespec_ns(&seen->st.st_ctim))
            return changed_meanwhile(commit, seen->path[0] ? seen->path : commit->path);
    }
    return 0;
}

static int build_tree(struct commit *commit) {
    struct stack upper = { 0 }, below = { 0 }, all = { 0 };
    auto_close int made = -EBADF;
    bool closed;
    int r = place_open(commit->job, commit->place, &upper, &below, &closed, commit->error);

    if (r < 0)
        return r;
    /* One stack, the topmost first. It borrows. */
    size_t n = upper.n + (closed ? 0 : below.n);
    auto_free int *fds = calloc(n + 1, sizeof *fds);
    auto_free struct stat *stats = calloc(n + 1, sizeof *stats);
    if (!fds || !stats) {
        r = fail_commit(commit, -ENOMEM, "write", commit->path);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        fds[i] = i < upper.n ? upper.fds[i] : below.fds[i - upper.n];
        stats[i] = i < upper.n ? upper.stats[i] : below.stats[i - upper.n];
    }
    all = (struct stack){ fds, stats, n, n > upper.n && below.with_base };
    made = mkdirat(commit->stage, "new", 0700) < 0
               ? -errno
               : openat(commit->stage, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (made < 0) {
        r = fail_commit(commit, -errno, "write beside", commit->path);
        goto out;
    }
    r = build_directory(commit, &all, made);
    if (r == 0) {
        copy_host_attributes(commit->base, made);
        /* The top keeps the host's mode: the host decides on access. */
        r = set_owner(
            made, commit->base_st.st_uid, commit->base_st.st_gid, commit->base_st.st_mode & 07777);
        if (r < 0)
            r = fail_commit(commit, r, "set the owner of", commit->path);
    }
out:
    stack_done(&upper);
    stack_done(&below);
    return r;
}

/* ---- the two kinds of place ---- */

static int check_base(struct commit *commit, int fd) {
    const struct job_place *place = commit->place;

    if (fstat(fd, &commit->base_st) < 0)
        return fail_commit(commit, -errno, "look at", commit->path);
    if (commit->job->force || (!place->base_ino && !place->base_dev))
        return 0;
    if (commit->base_st.st_ino != place->base_ino || commit->base_st.st_dev != place->base_dev)
        return error_set(commit->error, ROLLBOX_ERR_CONFLICT, ESTALE, "commit",
            "%s is not the %s that the sandbox was made from: it was replaced; nothing was changed "
            "(force overrides)",
            files_printable(commit->path), place->is_file ? "file" : "directory");
    return 0;
}

static int publish_directory(struct commit *commit) {
    struct stat now;
    int r = build_tree(commit);

    if (r < 0)
        return r;
    fault_point(FAULT_commit_built);
    if (syncfs(commit->stage) < 0)
        return fail_commit(commit, -errno, "sync", commit->path);
    fault_point(FAULT_commit_synced);
    r = check_seen(commit);
    if (r < 0)
        return r;
    if (fstatat(commit->parent, commit->name, &now, AT_SYMLINK_NOFOLLOW) < 0 ||
        now.st_ino != commit->base_st.st_ino || now.st_dev != commit->base_st.st_dev)
        return changed_meanwhile(commit, commit->path);
    if (fstatat(commit->stage, "new", &commit->new_st, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_commit(commit, -errno, "look at", commit->path);
    if (renameat2(commit->parent, commit->name, commit->stage, "new", RENAME_EXCHANGE) < 0)
        return errno == EBUSY ? error_set(commit->error, ROLLBOX_ERR_PATH_DENIED, EBUSY, "commit",
                                    "%s is a mount point, which cannot be exchanged; grant a "
                                    "directory in it instead",
                                    files_printable(commit->path))
                              : fail_commit(commit, -errno, "exchange", commit->path);
    (void)fsync(commit->parent);
    fault_point(FAULT_commit_exchanged);
    return 0;
}

static int copy_file(void *context, const struct change *change, struct rollbox_error *error) {
    struct commit *commit = context;
    int made = -EBADF;

    (void)error;
    auto_close int from = files_open(change->new_parent, change->name, 0);
    if (from >= 0)
        made =
            openat(commit->stage, "new", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    auto_close int to = made;
    int r = from < 0 ? from
            : to < 0 ? -errno
                     : files_copy_data(from, to, (uint64_t)change->new->st_size);
    if (r == 0)
        r = files_copy_xattrs(from, to, false);
    if (r == 0)
        r = set_owner(
            to, commit->base_st.st_uid, commit->base_st.st_gid, change->new->st_mode & 01777);
    if (r == 0 && fsync(to) < 0)
        r = -errno;
    return r < 0 ? fail_commit(commit, r, "write", commit->path) : 0;
}

static int publish_file(struct commit *commit) {
    int r = changes_of_place(commit->job, commit->place, false, copy_file, commit, commit->error);

    if (r < 0)
        return r;
    fault_point(FAULT_commit_built);
    if (renameat(commit->stage, "new", commit->parent, commit->name) < 0)
        return fail_commit(commit, -errno, "replace", commit->path);
    (void)fsync(commit->parent);
    fault_point(FAULT_commit_exchanged);
    return 0;
}

static int publish_commit(struct commit *commit, struct stat *ret_now) {
    int r = 0;

    commit->path = realpath(commit->place->base, NULL);
    if (!commit->path)
        return error_set(commit->error,
            errno == ENOENT || errno == ENOTDIR ? ROLLBOX_ERR_CONFLICT : ROLLBOX_ERR_PATH_DENIED,
            errno, "commit", "%s cannot be found on the host any more: %s",
            files_printable(commit->place->base), strerror(errno));
    char *slash = strrchr(commit->path, '/');
    if (!slash[1])
        return error_set(commit->error, ROLLBOX_ERR_PATH_DENIED, EBUSY, "commit",
            "the root directory cannot be committed to; grant a directory in it instead");
    commit->name = slash + 1;
    *slash = '\0';
    commit->parent =
        open(slash == commit->path ? "/" : commit->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (commit->parent < 0)
        return fail_commit(commit, -errno, "open the directory of", commit->path);
    commit->base = openat(commit->parent, commit->name,
        (commit->place->is_file ? O_NONBLOCK : O_DIRECTORY) | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (commit->base < 0)
        return error_set(commit->error,
            errno == ENOENT || errno == ENOTDIR ? ROLLBOX_ERR_CONFLICT : ROLLBOX_ERR_PATH_DENIED,
            errno, "commit", "%s cannot be opened: %s", files_printable(commit->path),
            strerror(errno));
    r = check_base(commit, commit->base);
    if (r == 0)
        r = check_conflicts(commit);
    if (r < 0)
        return r;
    sweep_leftovers(commit->parent);
    if (commit->n_changes) {
        r = make_stage(commit);
        if (r == 0)
            r = commit->place->is_file ? publish_file(commit) : publish_directory(commit);
        bool kept =
            r == 0 && commit->job->kept >= 0 && !commit->place->is_file && hand_over(commit);
        if (commit->stage >= 0 && !kept) {
            int removed = remove_stage(commit->parent, commit->stage_name, commit->stage);
            /* It is published; the leftovers are removed by the next commit. */
            (void)removed;
        }
    }
    if (r == 0 && fstatat(commit->parent, commit->name, ret_now, AT_SYMLINK_NOFOLLOW) < 0)
        r = fail_commit(commit, -errno, "look at", commit->path);
    return r;
}

static int publish_place(const struct job *job, const struct job_place *place, json_t *committed,
    struct rollbox_error *error) {
    struct commit commit = { .job = job,
        .place = place,
        .error = error,
        .parent = -EBADF,
        .base = -EBADF,
        .stage = -EBADF,
        .conflicts = BUF_INIT,
        .at = BUF_INIT };
    struct stat st;
    int r = publish_commit(&commit, &st);

    if (r == 0 && json_array_append_new(
                      committed, json_pack("{s:s, s:I, s:I, s:I}", "path", place->path, "changes",
                                     (json_int_t)commit.n_changes, "base_dev",
                                     (json_int_t)st.st_dev, "base_ino", (json_int_t)st.st_ino)) < 0)
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "commit", "out of memory");
    for (size_t i = 0; i < commit.n_seen; i++)
        free(commit.seen[i].path);
    free(commit.seen);
    free(commit.path);
    inodes_done(&commit.copied);
    buf_done(&commit.conflicts);
    buf_done(&commit.at);
    close_fd(&commit.parent);
    close_fd(&commit.base);
    close_fd(&commit.stage);
    return r;
}

int commit_places(
    const struct job *job, const char *part, json_t **ret_json, struct rollbox_error *error) {
    json_t *committed = json_array();
    struct timespec now;
    bool found = false;
    int r = 0;

    for (size_t i = 0; i < job->n_places && r == 0; i++) {
        const struct job_place *place = &job->places[i];

        if (!place->base || (part && strcmp(place->part, part)))
            continue;
        found = true;
        r = publish_place(job, place, committed, error);
    }
    if (r == 0 && !found) {
        const char *kind = part ? "the place " : "the sandbox";

        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s%s has no directory on the host to commit to: the policy needs it in fs_writable "
            "(--writable)",
            kind, part ? part : "");
    }
    clock_gettime(CLOCK_REALTIME, &now);
    if (r == 0 && !(*ret_json = json_pack("{s:O, s:I}", "committed", committed, "since_ns",
                        (json_int_t)timespec_ns(&now))))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "commit", "out of memory");
    json_decref(committed);
    return r;
}
