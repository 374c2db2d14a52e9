/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hibernated_gc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/hibernated_read.h"
#include "store/hibernated_check.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/hibernate.h"

static int fail_gc(struct rollbox_error *error, int r, const char *what) {
    return error_set(
        error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store", "cannot %s: %s", what, strerror(-r));
}

static int open_sleeper(int store, const char *directory, const char *id) {
    char path[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + 1];

    snprintf(path, sizeof path, "%s/%s", directory, id);
    int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* ---- df ---- */

/* A file that several have is counted once. */
struct measuring {
    int store;
    const char *directory;
    struct inodes inodes;
    uint64_t sleepers, bytes;
};

static int measure_one(void *context, const char *id) {
    struct measuring *measuring = context;
    auto_close int directory = open_sleeper(measuring->store, measuring->directory, id);
    struct names names;
    int r = directory < 0 ? directory : names_read(directory, &names);

    if (r < 0)
        return r == -ENOENT ? 0 : r;
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        struct inode *inode;
        struct stat st;
        bool found = false;

        if (fstatat(directory, names.list[i], &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        r = st.st_nlink > 1 ? inodes_note(&measuring->inodes, &st, names.list[i], &inode, &found)
                            : 0;
        measuring->bytes += found ? 0 : (uint64_t)st.st_size;
    }
    names_done(&names);
    measuring->sleepers++;
    return r;
}

int hibernated_gc_measure(int store, struct hibernated_usage *ret_hibernated,
    struct hibernated_usage *ret_woken, struct rollbox_error *error) {
    struct measuring measuring = { .store = store, .directory = HIBERNATED_DIRECTORY };
    int r = hibernated_each(store, measuring.directory, measure_one, &measuring);
    struct hibernated_usage asleep = { measuring.sleepers, measuring.bytes };

    measuring.directory = WOKEN_DIRECTORY;
    if (r == 0)
        r = hibernated_each(store, measuring.directory, measure_one, &measuring);
    inodes_done(&measuring.inodes);
    if (r < 0)
        return fail_gc(error, r, "examine the hibernated sandboxes");
    *ret_hibernated = asleep;
    *ret_woken =
        (struct hibernated_usage){ measuring.sleepers - asleep.n, measuring.bytes - asleep.bytes };
    return 0;
}

/* ---- gc ---- */

struct collecting {
    int store;
    const char *directory;
    uint64_t removed, freed;
    json_t *kept; /* unreadable data, as a row of fsck's */
};

/* Counts only files without another link. */
static uint64_t bytes_in(int directory) {
    uint64_t bytes = 0;
    struct names names;

    if (directory < 0 || names_read(directory, &names) < 0)
        return 0;
    for (size_t i = 0; i < names.n; i++) {
        struct stat st;

        if (fstatat(directory, names.list[i], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && st.st_nlink == 1)
            bytes += (uint64_t)st.st_size;
    }
    names_done(&names);
    return bytes;
}

static int add_row(
    json_t *list, const char *id, const json_t *whole, const char *file, const char *reason) {
    const char *name = json_string_value(json_object_get(json_object_get(whole, "record"), "name"));
    json_t *row = json_pack(
        "{s:s, s:s?, s:s, s:s}", "asleep", id, "sandbox", name, "file", file, "reason", reason);

    return row && json_array_append_new(list, row) == 0 ? 0 : -ENOMEM;
}

/* The sandbox was to end with its engine. One whose record cannot be read is kept: a flipped bit,
 * or a newer version's record, does not mean that it is unwanted. */
static int is_left_over(
    const struct collecting *collecting, const char *id, int lock, bool *ret_is) {
    struct rollbox_error inner = { 0 };
    json_t *whole = NULL;
    int r = hibernated_read_unchecked(lock, &whole, &inner);

    *ret_is =
        r == 0 && json_is_false(json_object_get(json_object_get(whole, "record"), "detached"));
    if (r < 0)
        r = add_row(collecting->kept, id, NULL, "record.json",
            inner.code == ROLLBOX_ERR_DAMAGED ? "it was changed, or is of another version"
                                              : strerror(inner.error_number));
    json_decref(whole);
    return r;
}

static int collect_one(void *context, const char *id) {
    struct collecting *collecting = context;
    bool sleeps = strcmp(collecting->directory, HIBERNATED_DIRECTORY) == 0, is_removed = true;
    auto_close int lock = -EBADF;

    if (hibernated_lock(collecting->store, collecting->directory, id, &lock) < 0)
        return 0; /* it is locked, or it has no record, which fsck reports */
    int r = sleeps ? is_left_over(collecting, id, lock, &is_removed) : 0;
    if (r < 0 || !is_removed)
        return r;
    auto_close int directory = open_sleeper(collecting->store, collecting->directory, id);
    uint64_t bytes = bytes_in(directory);
    r = hibernated_remove(collecting->store, collecting->directory, id);
    if (r < 0)
        return r;
    collecting->removed += sleeps;
    collecting->freed += bytes;
    fault_point(FAULT_gc_sleeper_trashed);
    return 0;
}

int hibernated_gc_collect(
    int store, json_t *kept, uint64_t *ret_removed, uint64_t *freed, struct rollbox_error *error) {
    struct collecting collecting = {
        .store = store, .directory = HIBERNATED_DIRECTORY, .kept = kept
    };
    int r = hibernated_each(store, collecting.directory, collect_one, &collecting);

    collecting.directory = WOKEN_DIRECTORY;
    if (r == 0)
        r = hibernated_each(store, collecting.directory, collect_one, &collecting);
    if (r < 0)
        return fail_gc(error, r, "remove a hibernated sandbox");
    *ret_removed = collecting.removed;
    *freed += collecting.freed;
    return 0;
}

/* ---- fsck ---- */

struct checking {
    int store;
    json_t *damaged;
    uint64_t checked;
};

/* It was not woken and removed meanwhile. */
static bool is_still_there(const struct checking *checking, const char *id, int directory) {
    auto_close int now = open_sleeper(checking->store, HIBERNATED_DIRECTORY, id);
    struct stat was, is;

    return now >= 0 && fstat(directory, &was) == 0 && fstat(now, &is) == 0 &&
           was.st_ino == is.st_ino && was.st_dev == is.st_dev;
}

static int record_damage(const struct checking *checking, const char *id, const json_t *whole,
    const char *file, const char *reason) {
    return add_row(checking->damaged, id, whole, file, reason);
}

static int check_files(
    const struct checking *checking, const char *id, int directory, const json_t *whole) {
    char file[HIBERNATED_FILE_NAME];
    const json_t *row;
    int r = 0;

    for (size_t i = 0; r == 0 && (row = hibernated_file(whole, i, file)); i++) {
        const char *reason = NULL;

        r = hibernate_check_file(directory, file, row, &reason);
        if (r == 0 && reason && is_still_there(checking, id, directory))
            r = record_damage(checking, id, whole, file, reason);
    }
    return r;
}

static int check_one(void *context, const char *id) {
    struct checking *checking = context;
    auto_close int directory = open_sleeper(checking->store, HIBERNATED_DIRECTORY, id);
    auto_close int file = directory < 0
                              ? directory
                              : openat(directory, "record.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct rollbox_error inner = { 0 };
    json_t *whole = NULL;
    int r = 0;

    if (directory == -ENOENT)
        return 0;
    if (directory < 0)
        return directory;
    checking->checked++;
    if (file < 0)
        r = errno == ENOENT
                ? (is_still_there(checking, id, directory)
                          ? record_damage(checking, id, NULL, "record.json", "it is missing")
                          : 0)
                : -errno;
    else if (hibernated_read_unchecked(file, &whole, &inner) < 0)
        r = inner.code == ROLLBOX_ERR_DAMAGED
                ? record_damage(checking, id, NULL, "record.json",
                      "its content is not the one that was written, or it has another version")
                : -inner.error_number;
    else if (hibernated_check(whole, &inner) < 0)
        r = inner.code == ROLLBOX_ERR_DAMAGED
                ? record_damage(checking, id, whole, "record.json", inner.message)
                : -inner.error_number;
    else
        r = check_files(checking, id, directory, whole);
    json_decref(whole);
    return r;
}

int hibernated_gc_check(
    int store, json_t *damaged, uint64_t *ret_checked, struct rollbox_error *error) {
    struct checking checking = { .store = store, .damaged = damaged };
    int r = hibernated_each(store, HIBERNATED_DIRECTORY, check_one, &checking);

    if (r < 0)
        return fail_gc(error, r, "check the hibernated sandboxes");
    *ret_checked = checking.checked;
    return 0;
}
