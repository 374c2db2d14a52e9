/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new volume is put together in tmp/ and gets its name by a rename, so that a killed command
 * leaves the whole volume or none. A removed one is moved to trash/ first, for the same reason.
 *
 * A copy (tree_copy.h) has all files with their owners, modes, attributes and times.
 */
#include "store/volume_job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/disk_usage.h"
#include "base/error.h"
#include "sys/syscalls.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/tree_copy.h"
#include "store/volume.h"

#ifndef RENAME_NOREPLACE
#    define RENAME_NOREPLACE 1
#endif

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
}

static int fail_volume(
    struct rollbox_error *error, int error_number, const char *doing, const char *name) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "store",
        "cannot %s volume %s: %s", doing, name, strerror(error_number));
}

static int check_name(const char *name, struct rollbox_error *error) {
    return policy_is_volume_name(name)
               ? 0
               : error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                     "%s is not a name of a volume: use 1 to 64 letters, digits and . _ -, and "
                     "begin with a letter or digit",
                     files_printable(name));
}

static int open_volume(
    int store, const char *name, int *ret_directory, struct rollbox_error *error) {
    int r = check_name(name, error);

    return r < 0 ? r : volume_open(store, name, ret_directory, error);
}

/* ---- copies ---- */

/* Root gives the files to their owners. Other callers have them already, or may not. */
static int give_name(const struct files_entry *entry, int parent, const char *name) {
    if (geteuid())
        return 0;
    return fchownat(parent, name, entry->st.st_uid, entry->st.st_gid, AT_SYMLINK_NOFOLLOW) < 0
               ? -errno
               : 0;
}

static int give(const struct files_entry *entry, int from, int to) {
    int r = files_copy_xattrs(from, to, true);

    if (r == 0 && !geteuid() && fchown(to, entry->st.st_uid, entry->st.st_gid) < 0)
        r = -errno;
    return r == 0 && fchmod(to, entry->st.st_mode & 07777) < 0 ? -errno : r;
}

static const struct tree_copy_rules rules = { .give = give, .give_name = give_name };

/* ---- made and removed ---- */

/* Fills tmp/WORK/v. `from`: a volume's files, or -EBADF. */
static int fill_volume(const struct work *work, int from, const char *name, uint64_t max_bytes,
    struct rollbox_error *error) {
    if (mkdirat(work->fd, "v", 0700) < 0)
        return fail_volume(error, errno, "make", name);
    auto_close int directory = openat(work->fd, "v", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || mkdirat(directory, VOLUME_FILES, 0755) < 0)
        return fail_volume(error, errno, "make", name);
    auto_close int files = openat(directory, VOLUME_FILES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (files < 0 || fchmod(files, 0755) < 0)
        return fail_volume(error, errno, "make", name);
    json_t *meta = json_pack("{s:i, s:s, s:I, s:I}", "version", 1, "name", name, "created",
        (json_int_t)time(NULL), "max_bytes", (json_int_t)max_bytes);
    auto_free char *text = meta ? json_dumps(meta, JSON_COMPACT) : NULL;
    json_decref(meta);
    if (!text)
        return out_of_memory(error);
    int r = layer_write_file(directory, "volume.json", text, error);
    if (r == 0)
        r = layer_write_file(directory, "users", "", error);
    if (r == 0)
        r = layer_write_file(directory, "writers", "", error);
    if (r == 0 && from >= 0)
        r = tree_copy(from, files, &rules, error);
    if (r == 0 && syncfs(directory) < 0)
        r = fail_volume(error, errno, "write", name);
    return r;
}

static int make_volume(
    int store, int from, const char *name, uint64_t max_bytes, struct rollbox_error *error) {
    struct work work = WORK_NONE;
    char path[sizeof VOLUMES_DIRECTORY + VOLUME_NAME_MAX + 2];
    int r = work_begin(store, &work, error);

    if (r < 0)
        return r;
    snprintf(path, sizeof path, VOLUMES_DIRECTORY "/%s", name);
    if (mkdirat(store, VOLUMES_DIRECTORY, 0700) < 0 && errno != EEXIST)
        r = fail_volume(error, errno, "make", name);
    if (r == 0)
        r = fill_volume(&work, from, name, max_bytes, error);
    if (r == 0 && syscall(SYS_renameat2, work.fd, "v", store, path, RENAME_NOREPLACE) < 0)
        r = errno == EEXIST
                ? error_set(error, ROLLBOX_ERR_CONFLICT, EEXIST, "store",
                      "there is a volume %s already; use another name, or remove it first", name)
                : fail_volume(error, errno, "make", name);
    if (r == 0) {
        auto_close int all = openat(store, VOLUMES_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        (void)fsync(all);
    }
    work_done(&work);
    return r;
}

int volume_create(int store, const char *name, uint64_t max_bytes, json_t **ret_json,
    struct rollbox_error *error) {
    int r = check_name(name, error);

    if (r == 0)
        r = make_volume(store, -EBADF, name, max_bytes, error);
    return r < 0 ? r : volume_inspect(store, name, ret_json, error);
}

int volume_copy(
    int store, const char *name, const char *to, json_t **ret_json, struct rollbox_error *error) {
    struct volume_lock lock = VOLUME_LOCK_NONE;
    struct volume_meta meta = { 0 };
    auto_close int directory = -EBADF;
    int r = check_name(to, error);

    if (r == 0)
        r = open_volume(store, name, &directory, error);
    /* As another writer would: then nobody changes the files meanwhile. */
    if (r == 0)
        r = volume_lock_take(store, directory, name, POLICY_VOLUME_EXCLUSIVE, &lock, error);
    if (r == 0 && (r = volume_read_meta(directory, &meta)) < 0)
        r = fail_volume(error, -r, "read", name);
    if (r == 0) {
        auto_close int files =
            openat(directory, VOLUME_FILES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        r = files < 0 ? fail_volume(error, errno, "read", name)
                      : make_volume(store, files, to, meta.max_bytes, error);
    }
    volume_lock_done(&lock);
    return r < 0 ? r : volume_inspect(store, to, ret_json, error);
}

int volume_remove(int store, const char *name, struct rollbox_error *error) {
    auto_close int directory = -EBADF;
    int r = open_volume(store, name, &directory, error);

    if (r < 0)
        return r;
    auto_close int users = openat(directory, "users", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (users >= 0 && flock(users, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? error_set(error, ROLLBOX_ERR_CONFLICT, EBUSY, "store",
                         "volume %s is in use by a sandbox; end that first (rollbox ps lists them)",
                         name)
                   : fail_volume(error, errno, "lock", name);
    r = layer_to_trash(store, VOLUMES_DIRECTORY, name);
    if (r == 0)
        r = layer_empty_trash(store);
    return r < 0 ? fail_volume(error, -r, "remove", name) : 0;
}

/* ---- shown ---- */

/* "free", "read" (or a private copy is written), "shared" or "exclusive". */
static const char *use_of(int directory) {
    auto_close int users = openat(directory, "users", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    auto_close int writers = openat(directory, "writers", O_RDWR | O_NOFOLLOW | O_CLOEXEC);

    if (users < 0 || writers < 0)
        return "damaged";
    if (flock(writers, LOCK_SH | LOCK_NB) < 0)
        return "exclusive";
    if (flock(writers, LOCK_EX | LOCK_NB) < 0)
        return "shared";
    return flock(users, LOCK_EX | LOCK_NB) < 0 ? "read" : "free";
}

static json_t *describe_volume(int store, int directory, const char *name, bool measures) {
    struct volume_meta meta = { 0 };
    struct disk_usage usage = {
        .max_bytes = UINT64_MAX, .max_entries = UINT64_MAX, .forces = geteuid() != 0
    };
    int r = volume_read_meta(directory, &meta);
    json_t *row = json_pack("{s:s, s:I, s:s, s:o}", "name", name, "created",
        (json_int_t)meta.created_s, "use", use_of(directory), "max_bytes",
        meta.max_bytes ? json_integer((json_int_t)meta.max_bytes) : json_null());

    (void)store;
    if (row && r < 0)
        json_object_set_new(row, "problem", json_string("volume.json is not valid"));
    if (!row || !measures)
        return row;
    int files = openat(directory, VOLUME_FILES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (files >= 0)
        (void)disk_usage_of(files, &usage);
    json_object_set_new(row, "bytes", json_integer((json_int_t)usage.bytes));
    json_object_set_new(row, "files", json_integer((json_int_t)usage.entries));
    return row;
}

int volume_inspect(int store, const char *name, json_t **ret_json, struct rollbox_error *error) {
    auto_close int directory = -EBADF;
    int r = open_volume(store, name, &directory, error);

    if (r < 0)
        return r;
    *ret_json = describe_volume(store, directory, name, true);
    return *ret_json ? 0 : out_of_memory(error);
}

int volume_list(int store, bool measures, json_t **ret_json, struct rollbox_error *error) {
    auto_close int all =
        openat(store, VOLUMES_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    json_t *rows = json_array();
    struct names names = { NULL, 0 };
    int r = all < 0 ? -errno : names_read(all, &names);

    r = r == -ENOENT ? 0 : r; /* no volume was made in this store yet */
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        auto_close int directory = -EBADF;

        if (volume_open(store, names.list[i], &directory, NULL) < 0)
            continue; /* removed meanwhile, or no volume */
        json_t *row = describe_volume(store, directory, names.list[i], measures);
        if (!row || json_array_append_new(rows, row) < 0)
            r = -ENOMEM;
    }
    names_done(&names);
    *ret_json = r < 0 ? NULL : json_pack("{s:o}", "volumes", rows);
    if (*ret_json)
        return 0;
    json_decref(r < 0 ? rows : NULL);
    return r < 0 && r != -ENOMEM ? fail_volume(error, -r, "list", "directories")
                                 : out_of_memory(error);
}

int volume_measure(int store, uint64_t *ret_n, uint64_t *ret_bytes, struct rollbox_error *error) {
    json_t *list = NULL;
    const json_t *row;
    size_t i;
    int r = volume_list(store, true, &list, error);

    *ret_n = *ret_bytes = 0;
    json_array_foreach(json_object_get(list, "volumes"), i, row) {
        *ret_bytes += (uint64_t)json_integer_value(json_object_get(row, "bytes"));
        ++*ret_n;
    }
    json_decref(list);
    return r;
}

int volume_check(int store, json_t *damaged, struct rollbox_error *error) {
    json_t *list = NULL;
    const json_t *row;
    size_t i;
    int r = volume_list(store, false, &list, error);

    json_array_foreach(json_object_get(list, "volumes"), i, row) {
        const char *problem = json_string_value(json_object_get(row, "problem"));

        if (!problem && !strcmp(json_string_value(json_object_get(row, "use")), "damaged"))
            problem = "its lock files are missing";
        if (problem)
            json_array_append_new(damaged,
                json_pack("{s:O, s:s}", "volume", json_object_get(row, "name"), "reason", problem));
    }
    json_decref(list);
    return r;
}
