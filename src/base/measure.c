/* SPDX-License-Identifier: Apache-2.0 */
#include "base/measure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/tree.h"

static bool add_up(int take_directory, unsigned depth, struct measure *m) {
    DIR *list = fdopendir(take_directory);
    struct dirent *entry;
    bool fits = true;

    if (!list) {
        close(take_directory);
        return true;
    }
    while (fits && (entry = readdir(list))) {
        struct stat st;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || fstatat(dirfd(list), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        m->bytes += (uint64_t)st.st_blocks * 512 / (S_ISDIR(st.st_mode) ? 1 : MAX(st.st_nlink, (nlink_t)1));
        m->entries++;
        fits = m->bytes <= m->most_bytes && m->entries <= m->most_entries;
        if (fits && S_ISDIR(st.st_mode)) {
            m->is_deep |= depth + 1 >= MEASURE_DEPTH;
            int inner = m->is_deep ? -EMLINK : m->forces ? tree_open(dirfd(list), entry->d_name) : openat(dirfd(list), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            fits = !m->is_deep && (inner < 0 || add_up(inner, depth + 1, m));
        }
    }
    closedir(list);
    return fits;
}

bool measure_directory(int take_directory, struct measure *m) {
    return add_up(take_directory, 0, m);
}
