/* SPDX-License-Identifier: Apache-2.0 */
#include "store/layer_turns.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "store/digest.h"

#define OFFSET_DIGITS 15 /* 60 bits: offsets are signed */

int layer_turns_open(int store) {
    int fd = openat(store, "importing", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    return fd < 0 ? -errno : fd;
}

static off_t offset_of(const char *hex) {
    char digits[OFFSET_DIGITS + 1] = "";

    memcpy(digits, hex, OFFSET_DIGITS);
    return (off_t)strtoull(digits, NULL, 16);
}

static int lock_byte(int turns, off_t offset) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };

    while (fcntl(turns, F_OFD_SETLKW, &lock) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int layer_turns_take_name(int turns, const char *name) {
    struct digest digest;
    char hex[DIGEST_HEX + 1];

    digest_init(&digest);
    digest_add_sized(&digest, "rollbox image name", 18);
    digest_add_sized(&digest, name, strlen(name));
    digest_end_hex(&digest, hex);
    return lock_byte(turns, offset_of(hex));
}

static int compare_offsets(const void *a, const void *b) {
    const off_t x = *(const off_t *)a, y = *(const off_t *)b;

    return x < y ? -1 : x > y;
}

int layer_turns_take(int turns, char *const *diff_ids, size_t n) {
    auto_free off_t *offsets = calloc(n + 1, sizeof *offsets);
    int r = offsets ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < n; i++)
        offsets[i] = offset_of(diff_ids[i]);
    if (r == 0)
        qsort(offsets, n, sizeof *offsets, compare_offsets);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = lock_byte(turns, offsets[i]);
    return r;
}
