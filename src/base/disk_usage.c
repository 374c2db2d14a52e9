/* SPDX-License-Identifier: Apache-2.0 */
#include "base/disk_usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/remove_tree.h"

static bool add_up(int take_directory, unsigned depth, struct disk_usage *m) {
    DIR *list = fdopendir(take_directory);
    struct dirent *entry;
    bool fits = true;

    if (!list) {
        close(take_directory);
        return true;
    }
    while (fits && (entry = readdir(list))) {
        struct stat st;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            fstatat(dirfd(list), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        m->bytes +=
            (uint64_t)st.st_blocks * 512 / (S_ISDIR(st.st_mode) ? 1 : MAX(st.st_nlink, (nlink_t)1));
        m->entries++;
        fits = m->bytes <= m->max_bytes && m->entries <= m->max_entries;
        if (fits && S_ISDIR(st.st_mode)) {
            m->is_deep |= depth + 1 >= MEASURE_DEPTH;
            int inner = m->is_deep  ? -EMLINK
                        : m->forces ? tree_open(dirfd(list), entry->d_name)
                                    : openat(dirfd(list), entry->d_name,
                                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            fits = !m->is_deep && (inner < 0 || add_up(inner, depth + 1, m));
        }
    }
    closedir(list);
    return fits;
}

bool disk_usage_of(int take_directory, struct disk_usage *m) {
    return add_up(take_directory, 0, m);
}

static int64_t changed_ns(int fd) {
    struct stat st;

    return fstat(fd, &st) < 0 ? INT64_MAX
                              : (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
}

/* A directory is examined after everything below it. A process that moves one of these directories,
 * before or after it is examined, changes a directory that is not yet examined, or moves that one
 * as well; and so on up to the top directory, which no process can move. */
static bool has_moved(int take_directory, unsigned depth, int64_t since_ns) {
    DIR *list = fdopendir(take_directory);
    struct dirent *entry;

    if (!list) {
        close(take_directory);
        return true;
    }
    bool moved = depth >= MEASURE_DEPTH;
    while (!moved && (entry = readdir(list))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
            continue;
        int inner = openat(dirfd(list), entry->d_name,
            O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        bool is_none =
            inner < 0 && entry->d_type == DT_UNKNOWN && (errno == ENOTDIR || errno == ELOOP);
        moved = !is_none && (inner < 0 || has_moved(inner, depth + 1, since_ns));
    }
    moved = moved || changed_ns(dirfd(list)) >= since_ns;
    closedir(list);
    return moved;
}

bool disk_usage_has_moved(int take_directory, int64_t since_ns) {
    return has_moved(take_directory, 0, since_ns);
}
