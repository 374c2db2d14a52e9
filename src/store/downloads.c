/* SPDX-License-Identifier: Apache-2.0 */
#include "store/downloads.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "store/files.h"

#define DIRECTORY "downloads"
#define KEPT_S 86400

int downloads_open(int store) {
    if (mkdirat(store, DIRECTORY, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(store, DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int downloads_sweep(int store, uint64_t *freed) {
    const time_t now = time(NULL);
    struct names names;
    struct stat st;

    auto_close int fd = openat(store, DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = names_read(fd, &names);
    if (r < 0)
        return r;
    for (size_t i = 0; i < names.n; i++) {
        if (fstatat(fd, names.list[i], &st, AT_SYMLINK_NOFOLLOW) < 0 || now - st.st_mtime < KEPT_S)
            continue;
        if (unlinkat(fd, names.list[i], 0) == 0 && st.st_nlink == 1)
            *freed += (uint64_t)st.st_size;
    }
    names_done(&names);
    return 0;
}
