/* SPDX-License-Identifier: Apache-2.0 */
#include "store/disk_uppers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/disk_usage.h"
#include "store/files.h"
#include "store/layer.h"

typedef int (*box_visitor)(int store, const char *name, int directory, void *context);

/* Calls for each engine's directory. A store may have no boxes/. */
static int each_box(int store, box_visitor visit, void *context) {
    struct names names;

    auto_close int boxes =
        openat(store, BOXES_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (boxes < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = names_read(boxes, &names);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        auto_close int fd =
            openat(boxes, names.list[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd >= 0)
            r = visit(store, names.list[i], fd, context);
    }
    names_done(&names);
    return r;
}

static int collect_one(int store, const char *name, int directory, void *context) {
    uint64_t *removed = context;

    if (flock(directory, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 0 : -errno;
    int r = layer_to_trash(store, BOXES_DIRECTORY, name);
    *removed += r == 0;
    return r == -ENOENT ? 0 : r;
}

int disk_uppers_collect(int store, uint64_t *ret_removed, struct rollbox_error *error) {
    uint64_t removed = 0;
    int r = each_box(store, collect_one, &removed);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot remove the private files of ended engines in " BOXES_DIRECTORY ": %s",
            strerror(-r));
    *ret_removed = removed;
    return 0;
}

struct total {
    uint64_t engines;
    struct disk_usage measure;
};

static int measure_one(int store, const char *name, int directory, void *context) {
    struct total *total = context;

    (void)store;
    (void)name;
    total->engines++;
    total->measure.is_deep = false;
    int fd = fcntl(directory, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    (void)disk_usage_of(fd, &total->measure);
    return 0;
}

int disk_uppers_measure(
    int store, uint64_t *ret_engines, uint64_t *ret_bytes, struct rollbox_error *error) {
    struct total total = { .measure = { .max_bytes = UINT64_MAX, .max_entries = UINT64_MAX } };
    int r = each_box(store, measure_one, &total);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot measure " BOXES_DIRECTORY " of the store: %s", strerror(-r));
    *ret_engines = total.engines;
    *ret_bytes = total.measure.bytes;
    return 0;
}
