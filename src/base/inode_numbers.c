/* SPDX-License-Identifier: Apache-2.0 */
#include "base/inode_numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define DIGITS 4
_Static_assert(NUMBERS_HIGHEST < 1 << 4 * DIGITS, "a waiting file's name has the whole number");

/* FNV-1a */
static uint64_t hash_data(const void *data, size_t length) {
    uint64_t found = 0xcbf29ce484222325;

    for (const unsigned char *at = data, *end = at + length; at < end; at++)
        found = (found ^ *at) * 0x100000001b3;
    return found;
}

uint32_t inode_numbers_name(const char *name, size_t length) {
    return (uint32_t)hash_data(name, length);
}

struct number inode_numbers_of(uint32_t directory, const char *name, const struct stat *st) {
    const int64_t stamp[] = { st->st_ctim.tv_sec, st->st_ctim.tv_nsec, st->st_mtim.tv_sec,
        st->st_mtim.tv_nsec, st->st_size };

    return (struct number){ st->st_ino,
        (uint64_t)directory << 32 | inode_numbers_name(name, strlen(name)),
        hash_data(stamp, sizeof stamp) };
}

/* The stamp is the moment when the processes were paused. After that, in a layer, a kept number
 * belongs to the file. Files that were made or copied at one moment have the same stamp; for files
 * with the same name, the directory decides. */
uint64_t inode_numbers_wanted(const struct inode_numbers *numbers, const struct inode_numbers *kept,
    uint32_t directory, const char *name, const struct stat *st) {
    struct number own = numbers->n ? inode_numbers_of(directory, name, st) : (struct number){ 0 };
    bool is_kept = numbers->n && inode_numbers_has(kept, own.number);
    uint64_t found = 0;
    int best = 0;

    for (uint32_t i = 0; i < numbers->n; i++) {
        const struct number *wanted = &numbers->list[i];
        bool same_name =
            directory ? wanted->name == own.name : (uint32_t)wanted->name == (uint32_t)own.name;
        bool same_number = wanted->number == own.number, same_stamp = wanted->stamp == own.stamp;
        int rank = 0;

        if (same_name && same_stamp)
            rank = 2 + same_number;
        else if (same_number &&
                 (same_name ? is_kept
                            : st->st_nlink > 1 &&
                                  (is_kept || same_stamp))) /* a file with several names may have
                                                               been opened by another name */
            rank = 1;
        if (rank > best) {
            best = rank;
            found = wanted->number;
        }
    }
    return found;
}

void inode_numbers_add(struct inode_numbers *numbers, struct number number) {
    uint32_t at = numbers->n;

    if (!number.number || number.number > NUMBERS_HIGHEST || numbers->n == NUMBERS_MAX)
        return;
    for (; at > 0 && numbers->list[at - 1].number >= number.number; at--)
        if (numbers->list[at - 1].number == number.number &&
            numbers->list[at - 1].name == number.name)
            return;
    memmove(&numbers->list[at + 1], &numbers->list[at], (numbers->n - at) * sizeof number);
    numbers->list[at] = number;
    numbers->n++;
}

void inode_numbers_add_all(struct inode_numbers *numbers, const void *data, size_t length) {
    struct number number;

    for (size_t at = 0; length - at >= sizeof number; at += sizeof number) {
        memcpy(&number, (const char *)data + at, sizeof number);
        inode_numbers_add(numbers, number);
    }
}

bool inode_numbers_has(const struct inode_numbers *numbers, uint64_t number) {
    for (uint32_t i = 0; i < numbers->n; i++)
        if (numbers->list[i].number == number)
            return true;
    return false;
}

void inode_numbers_load(struct inode_numbers *numbers, int top) {
    struct number list[NUMBERS_MAX];
    ssize_t n = fgetxattr(top, NUMBERS_LIST, list, sizeof list);

    inode_numbers_add_all(numbers, list, n < 0 ? 0 : (size_t)n);
}

void inode_numbers_save(const struct inode_numbers *numbers, int top) {
    if (numbers->n)
        (void)fsetxattr(top, NUMBERS_LIST, numbers->list, numbers->n * sizeof numbers->list[0], 0);
}

/* ---- files that wait ---- */

struct waiting {
    char name[1 + DIGITS + 1];
};

/* "n01ab": no part of a layer's. */
static struct waiting waiting(uint64_t number) {
    struct waiting file = { "n" };

    for (unsigned i = DIGITS; i > 0; i--, number >>= 4)
        file.name[i] = "0123456789abcdef"[number & 15];
    return file;
}

/* The number of a new file; 0: none. */
static uint64_t number_of(int fd) {
    struct stat st;
    uint64_t number = fd >= 0 && fstat(fd, &st) == 0 ? st.st_ino : 0;

    if (fd >= 0)
        close(fd);
    return number;
}

static int open_nameless_file(int top) {
    return openat(top, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
}

void inode_numbers_reserve(struct inode_numbers *numbers, int top) {
    struct statfs system;

    if (numbers->n && (fstatfs(top, &system) < 0 || system.f_type != TMPFS_MAGIC))
        numbers->n = 0;
    if (!numbers->n)
        return;
    uint64_t last = number_of(open_nameless_file(top));
    for (uint32_t i = 0; last && i < numbers->n; i++) {
        uint64_t number = numbers->list[i].number;

        if (number <= last)
            continue; /* another name of the file, or its number was assigned already */
        for (; last < number - 1; last++) {
            int fd = open_nameless_file(top);

            if (fd < 0)
                return;
            close(fd);
        }
        struct waiting file = waiting(number);
        last = number_of(openat(top, file.name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (last != number)
            (void)unlinkat(top, file.name, 0);
    }
}

int inode_numbers_take(int top, uint64_t number, int directory, const char *name) {
    struct waiting file = waiting(number);

    return renameat(top, file.name, directory, name) < 0 ? -errno : 0;
}

int inode_numbers_give_back(int top, uint64_t number, int directory, const char *name) {
    struct waiting file = waiting(number);

    return renameat(directory, name, top, file.name) < 0 ? -errno : 0;
}

void inode_numbers_release(const struct inode_numbers *numbers, int top) {
    for (uint32_t i = 0; i < numbers->n; i++) {
        struct waiting file = waiting(numbers->list[i].number);

        (void)unlinkat(top, file.name, 0);
    }
}
