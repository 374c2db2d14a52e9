/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of tar archives, as a client of the server sends them. Each entry's data is skipped; its
 * path and target end, its size is not negative, and an entry written again is read the same.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/tar.h"

struct bytes {
    const char *data;
    size_t length, at;
};

static int take(void *userdata, void *data, size_t length) {
    struct bytes *bytes = userdata;

    if (length > bytes->length - bytes->at)
        return -ENODATA;
    memcpy(data, bytes->data + bytes->at, length);
    bytes->at += length;
    return 0;
}

static void write_again(const struct tar_entry *entry) {
    static struct tar_entry again;
    struct buf head = BUF_INIT;

    tar_add_head(&head, entry);
    struct bytes bytes = { head.data, head.length, 0 };
    int r = tar_next(take, &bytes, &again);
    /* A path with a slash at its end, or none, is another type or no path for a reader. */
    if (entry->path[0] && (r != 1 || strcmp(again.path, entry->path) != 0 ||
                              strcmp(again.target, entry->target) != 0 ||
                              (again.type == entry->type && again.size != entry->size)))
        abort();
    buf_done(&head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tar_entry entry;
    struct bytes bytes = { (const char *)data, size, 0 };

    while (tar_next(take, &bytes, &entry) == 1) {
        if (memchr(entry.path, 0, sizeof entry.path) == NULL ||
            memchr(entry.target, 0, sizeof entry.target) == NULL || entry.size > INT64_MAX ||
            (entry.type != TAR_FILE && entry.size))
            abort();
        write_again(&entry);
        size_t left = bytes.length - bytes.at;
        if (entry.size > left || tar_padding(entry.size) > left - entry.size)
            break;
        bytes.at += (size_t)entry.size + tar_padding(entry.size);
    }
    return 0;
}
