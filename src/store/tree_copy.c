/* SPDX-License-Identifier: Apache-2.0 */
#include "store/tree_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"

/* A new directory. Its times change while it is filled, and only its owner may fill it. */
struct directory {
    char *path;
    mode_t mode;
    struct timespec times[2];
};

struct copy {
    const struct tree_copy_rules *rules;
    int to;
    struct inodes inodes;
    struct directory *directories;
    size_t n_directories;
};

static int copy_regular(
    const struct copy *copy, const struct files_entry *entry, int parent, const char *name) {
    const struct timespec times[] = { entry->st.st_atim, entry->st.st_mtim };
    auto_close int from = files_open(entry->parent, entry->name, 0);
    auto_close int to =
        from < 0 ? from
                 : openat(parent, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = 0;

    if (from < 0)
        return from;
    if (to < 0)
        return -errno;
    if (ioctl(to, FICLONE, from) < 0)
        r = files_copy_data(from, to, (uint64_t)entry->st.st_size);
    if (r == 0)
        r = copy->rules->give(entry, from, to);
    return r == 0 && futimens(to, times) < 0 ? -errno : r;
}

static int copy_directory(
    struct copy *copy, const struct files_entry *entry, int parent, const char *name) {
    struct stat st;

    if (entry->path_length && mkdirat(parent, name, 0700) < 0)
        return -errno;
    auto_close int to = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = to < 0 ? -errno : copy->rules->give(entry, entry->fd, to);
    if (r < 0)
        return r;
    struct directory *more =
        array_add(&copy->directories, copy->n_directories, sizeof *copy->directories);
    if (!more)
        return -ENOMEM;
    if (fstat(to, &st) < 0 || fchmod(to, (st.st_mode & 07777) | 0700) < 0)
        return -errno;
    *more = (struct directory){ strdup(entry->path), st.st_mode & 07777,
        { entry->st.st_atim, entry->st.st_mtim } };
    if (!more->path)
        return -ENOMEM;
    copy->n_directories++;
    return 0;
}

/* Links, FIFOs and whiteouts. */
static int copy_other(
    const struct copy *copy, const struct files_entry *entry, int parent, const char *name) {
    const struct timespec times[] = { entry->st.st_atim, entry->st.st_mtim };
    const mode_t mode = entry->st.st_mode & 0777;
    auto_free char *target = NULL;
    int r;

    if (S_ISLNK(entry->st.st_mode)) {
        target = files_link(entry->parent, entry->name, &entry->st);
        r = !target || symlinkat(target, parent, name) < 0 ? -errno : 0;
    } else {
        r = mknodat(parent, name, (entry->st.st_mode & S_IFMT) | mode, entry->st.st_rdev) < 0
                ? -errno
                : 0;
    }
    if (r == 0)
        r = copy->rules->give_name(entry, parent, name);
    if (r == 0 && !target && fchmodat(parent, name, mode, 0) < 0)
        r = -errno;
    return r == 0 && utimensat(parent, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : r;
}

/* 1: it is another name of a file that was copied, and linked to it. */
static int link_known(
    struct copy *copy, const struct files_entry *entry, int parent, const char *name) {
    struct inode *inode = NULL;
    const char *first_name;
    bool found = false;
    int r = inodes_note(&copy->inodes, &entry->st, entry->path, &inode, &found);

    if (r < 0 || !found)
        return r;
    auto_close int first = files_parent(copy->to, inode->path, &first_name);
    if (first < 0)
        return first;
    return linkat(first, first_name, parent, name, 0) < 0 ? -errno : 1;
}

static int copy_entry(void *context, const struct files_entry *entry, struct rollbox_error *error) {
    struct copy *copy = context;
    const char *name;

    if (files_is_left_out(&entry->st))
        return 0;
    auto_close int parent = files_parent(copy->to, entry->path, &name);
    int r = MIN(parent, 0);
    if (r == 0 && S_ISDIR(entry->st.st_mode))
        r = copy_directory(copy, entry, parent, name);
    else if (r == 0 && S_ISREG(entry->st.st_mode)) {
        r = entry->st.st_nlink > 1 ? link_known(copy, entry, parent, name) : 0;
        if (r == 0)
            r = copy_regular(copy, entry, parent, name);
    } else if (r == 0)
        r = copy_other(copy, entry, parent, name);
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
                       "cannot copy %s: %s", files_printable(entry->path), strerror(-r))
                 : 0;
}

/* The deepest first: a directory that is not searchable any more must be left alone. */
static int finish_directories(const struct copy *copy, struct rollbox_error *error) {
    for (size_t i = copy->n_directories; i--;) {
        const struct directory *one = &copy->directories[i];
        const char *name;

        auto_close int parent = files_parent(copy->to, one->path, &name);
        if (parent < 0 || utimensat(parent, name, one->times, AT_SYMLINK_NOFOLLOW) < 0 ||
            fchmodat(parent, name, one->mode, 0) < 0) {
            int number = parent < 0 ? -parent : errno;

            return error_set(error, error_code_of(number, ROLLBOX_ERR_IO), number, "store",
                "cannot set the mode and times of the copy of %s: %s", files_printable(one->path),
                strerror(number));
        }
    }
    return 0;
}

int tree_copy(int from, int to, const struct tree_copy_rules *rules, struct rollbox_error *error) {
    struct copy copy = { .rules = rules, .to = to };
    int r = files_walk(from, copy_entry, &copy, error);

    if (r == 0)
        r = finish_directories(&copy, error);
    inodes_done(&copy.inodes);
    for (size_t i = 0; i < copy.n_directories; i++)
        free(copy.directories[i].path);
    free(copy.directories);
    return r;
}
