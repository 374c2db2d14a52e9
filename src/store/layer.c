/* SPDX-License-Identifier: Apache-2.0 */
#include "store/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/remove_tree.h"
#include "store/fault.h"

#define META_MAX_BYTES 65536

static int io_error(
    struct rollbox_error *error, int error_number, const char *doing, const char *what) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "store",
        "cannot %s %s: %s%s", doing, what, strerror(error_number),
        error_number == ENOSPC || error_number == EDQUOT
            ? "; make room on the store's file system, or run rollbox store gc"
            : "");
}

void layer_random(char *ret_text, size_t digits) {
    uint8_t bytes[32];

    /* mkdir refuses a random name that exists, so only availability depends on this. */
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        memset(bytes, (int)getpid() & 255, sizeof bytes);
    for (size_t i = 0; i < digits; i++)
        ret_text[i] = "0123456789abcdef"[bytes[i % sizeof bytes] >> (i / sizeof bytes * 4) & 15];
    ret_text[digits] = '\0';
}

/* mkdir -p with mode 0700 for new directories. */
static int make_directories(const char *path, struct rollbox_error *error) {
    auto_free char *copy = strdup(path);

    if (!copy)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    for (char *p = copy + 1;; p++) {
        char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
            return io_error(error, errno, "make the directory", copy);
        *p = c;
        if (!c)
            return 0;
    }
}

/* Whiteouts and opaque directories must be possible here. */
static int try_overlay(int store, struct rollbox_error *error) {
    char name[24] = "tmp/try-";
    bool good;

    layer_random(name + strlen(name), 8);
    if (mkdirat(store, name, 0700) < 0)
        return io_error(error, errno, "write to", "the store");
    auto_close int fd = openat(store, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    good = fd >= 0 && fsetxattr(fd, XATTR_OPAQUE, "y", 1, 0) == 0 &&
           mknodat(fd, "w", S_IFCHR, makedev(0, 0)) == 0;
    int saved = errno;
    if (fd >= 0)
        (void)unlinkat(fd, "w", 0);
    (void)unlinkat(store, name, AT_REMOVEDIR);
    if (good)
        return 0;
    if (error_code_of(saved, ROLLBOX_ERR_IO) != ROLLBOX_ERR_IO)
        return io_error(error, saved, "write to", "the store");
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, saved, "store",
        "the store's file system cannot keep layers: it has no user attributes or no device files "
        "(%s); set ROLLBOX_STORE to a directory on ext4, xfs or btrfs (in a container: to a "
        "volume)",
        strerror(saved));
}

static int create_directory(const char *path, struct rollbox_error *error) {
    static const char *const directories[] = { "layers", "images", "snapshots", "tmp", "trash" };
    int r = make_directories(path, error);

    if (r < 0)
        return r;
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return io_error(error, errno, "open", path);
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077)
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EPERM, "store",
            "%s is not a private directory of the caller (mode 0700); set ROLLBOX_STORE to another",
            path);
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
        if (mkdirat(fd, directories[i], 0700) < 0 && errno != EEXIST)
            return io_error(error, errno, "make a directory in", path);
    auto_close int lock = openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return io_error(error, errno, "make a file in", path);
    fault_point(FAULT_store_created);
    /* A sweep of tmp/ treats its unlocked entries as leftovers. */
    auto_close int held = layer_store_lock(fd, LOCK_SH);
    if (held < 0)
        return io_error(error, -held, "lock", path);
    r = try_overlay(fd, error);
    /* Several may make it at once: each writes a file of its own, and all say the same. */
    char name[24] = "tmp/version-";
    layer_random(name + strlen(name), 8);
    if (r == 0)
        r = layer_write_file(fd, name, STORE_VERSION_TEXT, error);
    if (r == 0 && renameat(fd, name, fd, "version") < 0)
        r = io_error(error, errno, "write to", path);
    return r;
}

int layer_store_open(const char *path, bool create_it, int *ret_fd, struct rollbox_error *error) {
    auto_free char *found = NULL;
    struct rollbox_error inner = { 0 };
    struct stat st;
    int r = path ? 0 : store_default_path(&found, error);

    if (r < 0)
        return r;
    path = path ? path : found;
    r = store_open(path, ret_fd, &inner);
    if (r == 0 || !create_it || inner.code != ROLLBOX_ERR_NOT_FOUND ||
        inner.error_number == EPROTONOSUPPORT) {
        if (r < 0 && error)
            *error = inner;
        return r;
    }
    /* Only an empty directory, or an unfinished store, becomes a store. */
    auto_close int there = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct names names = { 0 };
    if (there >= 0 && names_read(there, &names) == 0 && names.n &&
        fstatat(there, "trash", &st, AT_SYMLINK_NOFOLLOW) < 0) {
        bool ours = names.n <= 4;
        for (size_t i = 0; i < names.n; i++)
            ours =
                ours && (!strcmp(names.list[i], "layers") || !strcmp(names.list[i], "images") ||
                            !strcmp(names.list[i], "snapshots") || !strcmp(names.list[i], "tmp"));
        if (!ours) {
            names_done(&names);
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENOTEMPTY, "store",
                "%s has other files in it; set ROLLBOX_STORE to an empty directory or one that is "
                "not there yet",
                path);
        }
    }
    names_done(&names);
    r = create_directory(path, error);
    return r < 0 ? r : store_open(path, ret_fd, error);
}

int layer_write_file(
    int directory, const char *name, const char *text, struct rollbox_error *error) {
    auto_close int fd =
        openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));

    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    return r < 0 ? io_error(error, -r, "write", name) : 0;
}

static int sync_directory(int store, const char *path) {
    auto_close int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int layer_store_lock(int store, int operation) {
    auto_close int fd = openat(store, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    while (flock(fd, operation) < 0)
        if (errno != EINTR)
            return -errno;
    return TAKE_FD(fd);
}

/* Empties and removes a directory by name; no link is followed. */
static int remove_tree(int at, const char *name) {
    auto_close int fd = tree_open(at, name);

    if (fd == -ENOTDIR || fd == -ELOOP)
        return unlinkat(at, name, 0) < 0 ? -errno : 0;
    if (fd < 0)
        return fd;
    int r = tree_empty(fd);
    if (r == 0 && unlinkat(at, name, AT_REMOVEDIR) < 0)
        r = -errno;
    return r == -ENOENT ? 0 : r;
}

int layer_to_trash(int store, const char *directory, const char *name) {
    auto_free char *from = NULL;
    char to[48] = "trash/";

    layer_random(to + strlen(to), 24);
    if (asprintf(&from, "%s/%s", directory, name) < 0)
        return -ENOMEM;
    return renameat(store, from, store, to) < 0 ? -errno : 0;
}

int layer_empty_trash(int store) {
    struct names names;
    int worst = 0;

    auto_close int trash = openat(store, "trash", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = trash < 0 ? -errno : names_read(trash, &names);
    if (r < 0)
        return r;
    for (size_t i = 0; i < names.n; i++) {
        fault_point(FAULT_gc_deleting);
        r = remove_tree(trash, names.list[i]);
        if (r < 0 && r != -ENOENT)
            worst = r;
    }
    names_done(&names);
    return worst;
}

int layer_sweep_work(int store, unsigned *ret_removed) {
    struct names names;
    unsigned removed = 0;

    auto_close int tmp = openat(store, "tmp", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = tmp < 0 ? -errno : names_read(tmp, &names);
    if (r < 0)
        return r;
    for (size_t i = 0; i < names.n; i++) {
        auto_close int fd = openat(tmp, names.list[i], O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
            continue;
        if (layer_to_trash(store, "tmp", names.list[i]) == 0)
            removed++;
    }
    names_done(&names);
    *ret_removed = removed;
    return 0;
}

int layer_sweep_leftovers(int store) {
    int lock = layer_store_lock(store, LOCK_EX | LOCK_NB);
    unsigned removed;

    if (lock >= 0) {
        (void)layer_sweep_work(store, &removed);
        close(lock);
    }
    return lock;
}

int work_begin(int store, struct work *ret_work, struct rollbox_error *error) {
    struct work work = { .store = store, .fd = -EBADF };
    char path[64];

    if (layer_sweep_leftovers(store) >= 0)
        (void)layer_empty_trash(store);
    auto_close int held = layer_store_lock(store, LOCK_SH);
    if (held < 0)
        return io_error(error, -held, "lock", "the store");
    snprintf(work.name, sizeof work.name, "%d-", (int)getpid());
    layer_random(work.name + strlen(work.name), 12);
    snprintf(path, sizeof path, "tmp/%s", work.name);
    if (mkdirat(store, path, 0700) < 0)
        return io_error(error, errno, "make a directory in", "the store");
    auto_close int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return io_error(error, errno, "lock a directory of", "the store");
    fault_point(FAULT_work_made);
    work.fd = TAKE_FD(fd);
    *ret_work = work;
    return 0;
}

void work_done(struct work *work) {
    auto_close int tmp = -EBADF;

    if (work->fd < 0)
        return;
    tmp = openat(work->store, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tmp >= 0)
        (void)remove_tree(tmp, work->name);
    close_fd(&work->fd);
}

static char *meta_text(const struct layer_meta *meta) {
    json_t *root = json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:s}", "version", 1, "id", meta->id,
        "kind", meta->kind, "bytes", (json_int_t)meta->tree.bytes, "files",
        (json_int_t)meta->tree.files, "created", (json_int_t)meta->created_s, "tree",
        meta->tree.hex);

    if (root && meta->diff_id[0])
        json_object_set_new(root, "diff_id", json_string(meta->diff_id));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

int layer_meta_read(int store, const char *id, struct layer_meta *ret_meta) {
    auto_buf struct buf text = BUF_INIT;
    auto_free char *path = NULL;
    struct layer_meta meta = { 0 };

    if (asprintf(&path, "layers/%s/meta.json", id) < 0)
        return -ENOMEM;
    auto_close int fd = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, META_MAX_BYTES, &text);
    if (r < 0)
        return r == -EFBIG ? -EBADMSG : r;
    json_t *root =
        json_loadb(text.data ? text.data : "", text.length, JSON_REJECT_DUPLICATES, NULL);
    const char *said = json_string_value(json_object_get(root, "id")),
               *tree = json_string_value(json_object_get(root, "tree"));
    const char *kind = json_string_value(json_object_get(root, "kind")),
               *diff_id = json_string_value(json_object_get(root, "diff_id"));
    json_int_t bytes = json_integer_value(json_object_get(root, "bytes")),
               files = json_integer_value(json_object_get(root, "files"));

    if (json_integer_value(json_object_get(root, "version")) != 1 || !said ||
        strcmp(said, id) != 0 || !tree || !layer_id_ok(tree) || !kind ||
        strlen(kind) >= sizeof meta.kind || bytes < 0 || files < 0 ||
        (diff_id && !layer_id_ok(diff_id))) {
        json_decref(root);
        return -EBADMSG;
    }
    snprintf(meta.id, sizeof meta.id, "%s", id);
    snprintf(meta.kind, sizeof meta.kind, "%s", kind);
    snprintf(meta.diff_id, sizeof meta.diff_id, "%s", diff_id ? diff_id : "");
    snprintf(meta.tree.hex, sizeof meta.tree.hex, "%s", tree);
    meta.tree.bytes = (uint64_t)bytes;
    meta.tree.files = (uint64_t)files;
    meta.created_s = json_integer_value(json_object_get(root, "created"));
    json_decref(root);
    *ret_meta = meta;
    return 0;
}

/* The name exists: it belongs to another import, which was faster, or to a damaged layer, which
 * this one replaces unless it is in use. */
static int take_place(const struct work *work, const char *directory, const char *id,
    const char *target, int *lock, struct rollbox_error *error) {
    auto_free char *damage = store_layer_damage(work->store, id);
    struct layer_meta there;
    auto_close int other = -EBADF;
    int r = store_layer_lock(work->store, id, &other);

    if (r == 0 && !damage && layer_meta_read(work->store, id, &there) == 0) {
        close_fd(lock);
        *lock = TAKE_FD(other);
        return 0;
    }
    if (r == 0 && flock(other, LOCK_EX | LOCK_NB) < 0)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBUSY, "store",
            "layer %.12s of the store is damaged and in use; end the sandboxes that use it and "
            "import again",
            id);
    r = layer_to_trash(work->store, "layers", id);
    if (r == 0 && renameat(work->fd, directory, work->store, target) < 0)
        r = -errno;
    return r < 0 ? io_error(error, -r, "replace the damaged layer", id) : 0;
}

int layer_publish(const struct work *work, const char *directory, const struct layer_meta *meta,
    int *ret_lock, struct rollbox_error *error) {
    auto_free char *text = meta_text(meta);
    auto_free char *path = NULL;
    auto_free char *target = NULL;

    if (!text || asprintf(&path, "%s/meta.json", directory) < 0 ||
        asprintf(&target, "layers/%s", meta->id) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    /* Syncs all earlier writes at once, then writes meta.json, which marks the layer as complete.
     */
    if (syncfs(work->fd) < 0)
        return io_error(error, errno, "sync", "the store");
    int r = layer_write_file(work->fd, path, text, error);
    if (r < 0)
        return r;
    fault_point(FAULT_meta_written);
    auto_close int lock = openat(work->fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int there =
        openat(work->fd, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* Locked before it is anybody's to collect. */
    if (lock < 0 || there < 0 || fsync(there) < 0 || flock(lock, LOCK_SH) < 0)
        return io_error(error, errno, "write to", "the store");
    auto_close int held = layer_store_lock(work->store, LOCK_SH);
    if (held < 0)
        return io_error(error, -held, "lock", "the store");
    if (renameat(work->fd, directory, work->store, target) < 0) {
        if (errno != EEXIST && errno != ENOTEMPTY)
            return io_error(error, errno, "write to", "the store");
        r = take_place(work, directory, meta->id, target, &lock, error);
        if (r < 0)
            return r;
    }
    r = sync_directory(work->store, "layers");
    if (r < 0)
        return io_error(error, -r, "write to", "the store");
    fault_point(FAULT_layer_published);
    *ret_lock = TAKE_FD(lock);
    return 0;
}

int layer_publish_manifest(
    const struct work *work, const struct manifest *manifest, struct rollbox_error *error) {
    const char *directory = store_manifest_directory(manifest->kind);
    auto_free char *text = manifest_text(manifest);
    auto_free char *file = manifest_file_name(manifest->name);
    auto_free char *target = NULL;
    struct manifest again;

    if (!text || !file || asprintf(&target, "%s/%s", directory, file) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    /* A manifest that cannot be read back must not be written. */
    int r = manifest_parse(text, strlen(text), manifest->kind, &again, error);
    if (r < 0) {
        if (error)
            error->code = ROLLBOX_ERR_INVALID_ARGUMENT;
        return r;
    }
    manifest_done(&again);
    r = layer_write_file(work->fd, "manifest.json", text, error);
    if (r < 0)
        return r;
    fault_point(FAULT_manifest_written);
    auto_close int held = layer_store_lock(work->store, LOCK_SH);
    if (held < 0)
        return io_error(error, -held, "lock", "the store");
    if (renameat(work->fd, "manifest.json", work->store, target) < 0)
        return io_error(error, errno, "write", target);
    r = sync_directory(work->store, directory);
    if (r < 0)
        return io_error(error, -r, "write", target);
    fault_point(FAULT_manifest_published);
    return 0;
}
