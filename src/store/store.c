/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"

#define META_MAX_BYTES 65536
#define DAMAGE_MAX_BYTES 400

/* The home directory; the engine has no HOME in its environment. fgetpwent reads that one file:
 * unlike getpwuid it loads no name service, which a static program could not. */
static char *home_directory(void) {
    const char *home = secure_getenv("HOME");
    char *found = NULL;

    if (home && home[0] == '/')
        return strdup(home);
    FILE *file = fopen("/etc/passwd", "re");
    for (struct passwd *entry; file && !found && (entry = fgetpwent(file));)
        if (entry->pw_uid == geteuid() && entry->pw_dir[0] == '/')
            found = strdup(entry->pw_dir);
    if (file)
        fclose(file);
    return found;
}

int store_default_path(char **ret_path, struct rollbox_error *error) {
    const char *named = secure_getenv("ROLLBOX_STORE"), *data = secure_getenv("XDG_DATA_HOME");
    char *path = NULL;

    if (named && named[0]) {
        if (named[0] != '/')
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "store",
                "ROLLBOX_STORE is %s: it must be an absolute path", named);
        path = strdup(named);
    } else if (geteuid() == 0) {
        path = strdup("/var/lib/rollbox/store");
    } else if (data && data[0] == '/') {
        if (asprintf(&path, "%s/rollbox/store", data) < 0)
            path = NULL;
    } else {
        auto_free char *home = home_directory();

        if (!home)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENOENT, "store",
                "no home directory to keep the store in; set ROLLBOX_STORE to a directory");
        if (asprintf(&path, "%s/.local/share/rollbox/store", home) < 0)
            path = NULL;
    }
    if (!path)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    *ret_path = path;
    return 0;
}

int store_open(const char *path, int *ret_fd, struct rollbox_error *error) {
    auto_buf struct buf version = BUF_INIT;
    struct stat st;

    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "store",
            "there is no store at %s yet; import an image first, or set ROLLBOX_STORE", path);
    if (fd < 0)
        return error_set(error,
            errno == ELOOP || errno == ENOTDIR || errno == EACCES
                ? ROLLBOX_ERR_PATH_DENIED
                : error_code_of(errno, ROLLBOX_ERR_IO),
            errno, "store", "the store %s cannot be opened: %s%s", path, strerror(errno),
            errno == ELOOP || errno == ENOTDIR ? " (it must be a directory, not a link)" : "");
    if (fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "store",
            "the store %s cannot be examined: %s", path, strerror(errno));
    if (st.st_uid != geteuid())
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EPERM, "store",
            "the store %s belongs to user %u, not to the caller; set ROLLBOX_STORE to a directory "
            "of your own",
            path, st.st_uid);
    if (st.st_mode & 077)
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EPERM, "store",
            "the store %s is open to other users; chmod 700 it after making sure that nobody has "
            "changed it",
            path);
    auto_close int file = openat(fd, "version", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int r = file < 0 ? -errno : fd_read_all(file, 64, &version);
    if (r < 0)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, -r, "store",
            "%s is not a store: its file \"version\" cannot be read: %s", path, strerror(-r));
    if (!version.data || strcmp(version.data, STORE_VERSION_TEXT) != 0)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, EPROTONOSUPPORT, "store",
            "the store %s is not of version %d, which this rollbox knows; set ROLLBOX_STORE to "
            "another directory",
            path, STORE_VERSION);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

const char *store_manifest_directory(enum manifest_kind kind) {
    return kind == MANIFEST_IMAGE ? "images" : "snapshots";
}

/* layers/ID/LEAF; LEAF "" is the layer's directory. */
struct layer_path {
    char text[sizeof "layers/" + LAYER_ID_LENGTH + 16];
};

static struct layer_path layer_path(const char *id, const char *leaf) {
    struct layer_path path;

    snprintf(path.text, sizeof path.text, "layers/%.*s/%s", LAYER_ID_LENGTH, id, leaf);
    return path;
}

int store_layer_lock(int store, const char *id, int *ret_lock) {
    struct layer_path path = layer_path(id, "meta.json");
    struct stat held, there;

    auto_close int fd = openat(store, path.text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* Only a process that is about to remove a layer holds the exclusive lock; after the removal,
     * the name refers to another file. */
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -ENOENT : -errno;
    if (fstat(fd, &held) < 0)
        return -errno;
    if (fstatat(store, path.text, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (held.st_ino != there.st_ino || held.st_dev != there.st_dev)
        return -ENOENT;
    *ret_lock = TAKE_FD(fd);
    return 0;
}

char *store_layer_damage(int store, const char *id) {
    auto_buf struct buf text = BUF_INIT;
    auto_close int fd =
        openat(store, layer_path(id, "damaged").text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        return NULL;
    if (fd < 0 || fd_read_all(fd, DAMAGE_MAX_BYTES, &text) < 0 || !text.data || !text.length)
        return strdup("the reason cannot be read");
    for (char *p = text.data; *p; p++)
        if (*p == '\n')
            *p = *(p + 1) ? ' ' : '\0';
    return buf_take(&text);
}

int store_manifest(int store, enum manifest_kind kind, const char *name,
    struct manifest *ret_manifest, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    auto_free char *file = NULL;
    auto_free char *path = NULL;
    const char *what = kind == MANIFEST_IMAGE ? "image" : "snapshot";
    struct rollbox_error inner = { 0 };

    if (!manifest_name_ok(name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "store",
            "%.200s is not a name of an %s: use letters, digits and . _ : @ / + -, and begin with "
            "a letter or digit",
            name, what);
    file = manifest_file_name(name);
    if (!file || asprintf(&path, "%s/%s", store_manifest_directory(kind), file) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    auto_close int fd = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "store",
            "there is no %s %s; rollbox image ls lists them", what, name);
    int r = fd < 0 ? -errno : fd_read_all(fd, MANIFEST_MAX_BYTES, &text);
    if (r < 0)
        return error_set(error,
            error_code_of(-r, r == -EFBIG ? ROLLBOX_ERR_DAMAGED : ROLLBOX_ERR_IO), -r, "store",
            "the manifest of %s %s cannot be read: %s", what, name, strerror(-r));
    r = manifest_parse(text.data ? text.data : "", text.length, kind, ret_manifest, &inner);
    if (r == 0 && strcmp(ret_manifest->name, name) != 0) {
        r = error_set(
            &inner, ROLLBOX_ERR_DAMAGED, EBADMSG, "store", "it names %s", ret_manifest->name);
        manifest_done(ret_manifest);
    }
    if (r < 0)
        return error_set(error, inner.code, inner.error_number, "store",
            "%s %s is damaged: %s; import it again", what, name, inner.message);
    return 0;
}

static int layer_check_meta(int lock, const char *id) {
    auto_buf struct buf text = BUF_INIT;
    int r = fd_read_all(lock, META_MAX_BYTES, &text);

    if (r < 0)
        return r == -EFBIG ? -EBADMSG : r;
    json_t *meta =
        json_loadb(text.data ? text.data : "", text.length, JSON_REJECT_DUPLICATES, NULL);
    const char *said = json_string_value(json_object_get(meta, "id"));
    bool good =
        said && strcmp(said, id) == 0 && json_integer_value(json_object_get(meta, "version")) == 1;
    json_decref(meta);
    return good ? 0 : -EBADMSG;
}

int store_layers_lock(
    int store, const struct manifest *manifest, int **ret_locks, struct rollbox_error *error) {
    int *locks = calloc(manifest->n_layers + 1, sizeof *locks);
    int r = 0;

    if (!locks)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    for (size_t i = 0; i < manifest->n_layers; i++)
        locks[i] = -EBADF;
    for (size_t i = 0; r == 0 && i < manifest->n_layers; i++) {
        const char *id = manifest->layers[i];
        auto_free char *damage = store_layer_damage(store, id);

        if (damage || store_layer_lock(store, id, &locks[i]) < 0)
            r = error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store", "layer %.12s of %s is %s",
                id, manifest->name, damage ? damage : "missing");
    }
    if (r < 0)
        store_layers_unlock(manifest, locks);
    else
        *ret_locks = locks;
    return r;
}

void store_layers_unlock(const struct manifest *manifest, int *take_locks) {
    for (size_t i = 0; take_locks && i < manifest->n_layers; i++)
        close_fd(&take_locks[i]);
    free(take_locks);
}

static int take_layer(
    int store, struct store_image *image, size_t i, const char *what, struct rollbox_error *error) {
    const char *id = image->manifest.layers[i], *name = image->manifest.name;
    int r = store_layer_lock(store, id, &image->lock_fds[i]);

    if (r == -ENOENT)
        return error_set(error, ROLLBOX_ERR_DAMAGED, ENOENT, "store",
            "layer %.12s of %s %s is missing; import it again", id, what, name);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "layer %.12s of %s %s cannot be locked: %s", id, what, name, strerror(-r));
    auto_free char *damage = store_layer_damage(store, id);
    if (damage)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store",
            "layer %.12s of %s %s is damaged: %s; remove it and import it again", id, what, name,
            damage);
    r = layer_check_meta(image->lock_fds[i], id);
    if (r < 0)
        return error_set(error,
            r == -EBADMSG ? ROLLBOX_ERR_DAMAGED : error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "meta.json of layer %.12s of %s %s is not valid: %s; import it again", id, what, name,
            strerror(-r));
    image->fs_fds[i] =
        openat(store, layer_path(id, "fs").text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (image->fs_fds[i] < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_DAMAGED), errno, "store",
            "the files of layer %.12s of %s %s cannot be opened: %s", id, what, name,
            strerror(errno));
    return 0;
}

/* The time of change of a manifest's file is that of its last use, which gc looks at. A store on a
 * full or read-only file system works without. */
static void note_use(int store, enum manifest_kind kind, const char *name) {
    auto_free char *file = manifest_file_name(name);
    auto_free char *path = NULL;

    if (file && asprintf(&path, "%s/%s", store_manifest_directory(kind), file) >= 0)
        (void)utimensat(store, path, NULL, AT_SYMLINK_NOFOLLOW);
}

bool store_layer_owned(
    int store, const char *id, const struct id_range *range, char ret_id[LAYER_ID_LENGTH + 1]) {
    auto_buf struct buf text = BUF_INIT;
    unsigned long uid, gid;
    char found[LAYER_ID_LENGTH + 1];
    auto_close int fd =
        openat(store, layer_path(id, LAYER_OWNED_NAME).text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fd_read_all(fd, META_MAX_BYTES, &text) < 0 || !text.data ||
        sscanf(text.data, "%lu %lu %64[0-9a-f]", &uid, &gid, found) != 3 || !layer_id_ok(found) ||
        uid != range->uid_first || gid != range->gid_first)
        return false;
    memcpy(ret_id, found, sizeof found);
    return true;
}

/* Replaces the layers by their copies. */
static int choose_owned(int store, const struct id_range *range, struct manifest *manifest,
    struct rollbox_error *error) {
    char id[LAYER_ID_LENGTH + 1];
    struct layer_path path;

    for (size_t i = 0; range && i < manifest->n_layers; i++) {
        if (store_layer_owned(store, manifest->layers[i], range, id))
            path = layer_path(id, "meta.json");
        else
            path.text[0] = '\0';
        if (!path.text[0] || faccessat(store, path.text, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            return error_set(error, ROLLBOX_ERR_NOT_FOUND, ESTALE, "store",
                "layer %.12s has no copy with owners yet", manifest->layers[i]);
        memcpy(manifest->layers[i], id, sizeof id);
    }
    return 0;
}

static int look_up(const char *store_path, enum manifest_kind kind, const char *name,
    const struct id_range *range, struct store_image **ret_image, struct rollbox_error *error) {
    auto_free char *path = NULL;
    auto_close int store = -EBADF;
    int r = store_path ? 0 : store_default_path(&path, error);

    if (r == 0)
        r = store_open(store_path ? store_path : path, &store, error);
    if (r < 0)
        return r;
    struct store_image *image = calloc(1, sizeof *image);
    if (!image)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    r = store_manifest(store, kind, name, &image->manifest, error);
    size_t n = image->manifest.n_layers;
    if (r == 0 && !(image->text = manifest_text(&image->manifest)))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    if (r == 0)
        r = choose_owned(store, range, &image->manifest, error);
    if (r == 0) {
        image->fs_fds = calloc(n + 1, sizeof *image->fs_fds);
        image->lock_fds = calloc(n + 1, sizeof *image->lock_fds);
        if (!image->fs_fds || !image->lock_fds)
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    }
    for (size_t i = 0; image->fs_fds && image->lock_fds && i < n; i++)
        image->fs_fds[i] = image->lock_fds[i] = -EBADF;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = take_layer(store, image, i, kind == MANIFEST_IMAGE ? "image" : "snapshot", error);
    if (r < 0) {
        store_image_free(image);
        return r;
    }
    note_use(store, kind, name);
    *ret_image = image;
    return 0;
}

int store_image(const char *store_path, const char *name, struct store_image **ret_image,
    struct rollbox_error *error) {
    return look_up(store_path, MANIFEST_IMAGE, name, NULL, ret_image, error);
}

int store_image_owned(const char *store_path, const char *name, const struct id_range *range,
    struct store_image **ret_image, struct rollbox_error *error) {
    const size_t prefix = strlen(STORE_SNAPSHOT);

    if (strncmp(name, STORE_SNAPSHOT, prefix) == 0)
        return look_up(store_path, MANIFEST_SNAPSHOT, name + prefix, range, ret_image, error);
    return look_up(store_path, MANIFEST_IMAGE, name, range, ret_image, error);
}

int store_snapshot(const char *store_path, const char *name, struct store_image **ret_snapshot,
    struct rollbox_error *error) {
    return look_up(store_path, MANIFEST_SNAPSHOT, name, NULL, ret_snapshot, error);
}

struct store_image *store_image_free(struct store_image *image) {
    if (!image)
        return NULL;
    if (image->fs_fds && image->lock_fds)
        for (size_t i = 0; i < image->manifest.n_layers; i++) {
            close_fd(&image->fs_fds[i]);
            close_fd(&image->lock_fds[i]);
        }
    free(image->fs_fds);
    free(image->lock_fds);
    free(image->text);
    manifest_done(&image->manifest);
    free(image);
    return NULL;
}

struct store_identity store_identity_of(const char *store_path, const char *name) {
    const size_t prefix = strlen(STORE_SNAPSHOT);
    const bool is_snapshot = strncmp(name, STORE_SNAPSHOT, prefix) == 0;
    auto_free char *file = manifest_file_name(is_snapshot ? name + prefix : name);
    auto_free char *path = NULL;
    struct statx st;

    if (!file ||
        asprintf(&path, "%s/%s/%s", store_path,
            store_manifest_directory(is_snapshot ? MANIFEST_SNAPSHOT : MANIFEST_IMAGE), file) < 0 ||
        statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &st) < 0)
        return (struct store_identity){ 0 };
    return (struct store_identity){ (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor, st.stx_ino,
        st.stx_btime.tv_sec * INT64_C(1000000000) + st.stx_btime.tv_nsec };
}
