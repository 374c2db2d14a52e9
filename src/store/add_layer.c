/* SPDX-License-Identifier: Apache-2.0 */
#include "store/add_layer.h"

#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/remove_tree.h"
#include "store/confine.h"
#include "store/digest.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/parser_process.h"

#define TAR "layer.tar"
#define MAX_READABLE 64
#define MAX_DESCRIPTOR 4096 /* a build has a few for each layer */

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory");
}

static int fail_store(struct rollbox_error *error, int r, const char *doing) {
    return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build", "cannot %s: %s%s",
        doing, strerror(-r),
        r == -ENOSPC || r == -EDQUOT
            ? "; make room on the store's file system, or run rollbox store gc"
            : "");
}

/* ---- lists ---- */

static int list_room(struct layer_list *list, size_t n) {
    char **ids = reallocarray(list->ids, n + 1, sizeof *ids);
    if (ids)
        list->ids = ids;
    int *fs_fds = reallocarray(list->fs_fds, n + 1, sizeof *fs_fds);
    if (fs_fds)
        list->fs_fds = fs_fds;
    int *locks = reallocarray(list->locks, n + 1, sizeof *locks);
    if (locks)
        list->locks = locks;
    return ids && fs_fds && locks ? 0 : -ENOMEM;
}

/* Copies the id; takes the descriptors, also on failure. */
static int list_add(struct layer_list *list, const char *id, int take_fs_fd, int take_lock) {
    auto_close int fs_fd = take_fs_fd, lock = take_lock;
    auto_free char *copy = strdup(id);

    if (fs_fd < 0 || lock < 0)
        return fs_fd < 0 ? fs_fd : lock;
    if (!copy || list_room(list, list->n + 1) < 0)
        return -ENOMEM;
    list->ids[list->n] = TAKE_PTR(copy);
    list->fs_fds[list->n] = TAKE_FD(fs_fd);
    list->locks[list->n++] = TAKE_FD(lock);
    return 0;
}

static int duplicate(int fd) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

    return copy < 0 ? -errno : copy;
}

static int list_from(
    char *const *ids, const int *fs_fds, const int *locks, size_t n, struct layer_list *ret_list) {
    struct layer_list list = { 0 };
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++)
        r = list_add(&list, ids[i], duplicate(fs_fds[i]), duplicate(locks[i]));
    if (r < 0)
        layer_list_done(&list);
    else
        *ret_list = list;
    return r;
}

int layer_list_of(const struct store_image *image, struct layer_list *ret_list) {
    return list_from(
        image->manifest.layers, image->fs_fds, image->lock_fds, image->manifest.n_layers, ret_list);
}

int layer_list_copy(const struct layer_list *list, struct layer_list *ret_list) {
    return list_from(list->ids, list->fs_fds, list->locks, list->n, ret_list);
}

void layer_list_done(struct layer_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->ids[i]);
        close_fd(&list->fs_fds[i]);
        close_fd(&list->locks[i]);
    }
    free(list->ids);
    free(list->fs_fds);
    free(list->locks);
    *list = (struct layer_list){ 0 };
}

int layer_list_stack(const struct layer_list *list, struct stack *ret_stack) {
    struct stack stack = { .fds = calloc(list->n + 1, sizeof *stack.fds),
        .stats = calloc(list->n + 1, sizeof *stack.stats) };
    int r = stack.fds && stack.stats ? 0 : -ENOMEM;

    for (size_t i = list->n; r == 0 && i-- > 0;) {
        int fd = openat(list->fs_fds[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || fstat(fd, &stack.stats[stack.n]) < 0)
            r = -errno;
        if (fd >= 0)
            stack.fds[stack.n++] = fd;
        if (r == 0 && files_is_opaque(fd))
            break;
    }
    if (r < 0)
        stack_done(&stack);
    else
        *ret_stack = stack;
    return r;
}

/* ---- ids ---- */

static int add_owner(void *context, const struct files_entry *entry, struct rollbox_error *error) {
    auto_close int file = -EBADF;
    struct owner owner;
    int fd = entry->fd;

    (void)error;
    if (S_ISREG(entry->st.st_mode))
        fd = file = files_open(entry->parent, entry->name, 0);
    files_owner(fd, &entry->st, &owner);
    digest_add_sized(context, entry->path, entry->path_length);
    digest_add_u64(context, (uint64_t)owner.uid << 32 | owner.gid);
    digest_add_u64(context, owner.mode);
    /* A deletion's time is that of its unpacking. */
    if (!S_ISDIR(entry->st.st_mode) && !S_ISCHR(entry->st.st_mode)) {
        digest_add_u64(context, (uint64_t)entry->st.st_mtim.tv_sec);
        digest_add_u64(context, (uint64_t)entry->st.st_mtim.tv_nsec);
    }
    return 0;
}

/* A layer depends on those below it: directories without an entry of their own have their
 * attributes, and deletions are of their files. So the id covers theirs. */
static int choose_id(const struct layer_list *below, int root, struct layer_meta *meta,
    struct rollbox_error *error) {
    struct digest digest;
    int r = tree_digest(root, &meta->tree, error);

    if (r < 0)
        return r;
    digest_init(&digest);
    digest_add_sized(&digest, "rollbox built layer", 19);
    for (size_t i = 0; i < below->n; i++)
        digest_add(&digest, below->ids[i], LAYER_ID_LENGTH);
    digest_add(&digest, meta->tree.hex, DIGEST_HEX);
    r = files_walk(root, add_owner, &digest, error);
    digest_end_hex(&digest, meta->id);
    return r;
}

/* ---- publishing ---- */

/* tmp/WORK/DIRECTORY/fs becomes the next layer of the list, unless it is empty. */
static int publish_layer(const struct work *work, const char *directory, struct layer_list *list,
    struct rollbox_error *error) {
    struct layer_meta meta = { .kind = "image", .created_s = time(NULL) };
    auto_free char *path = NULL, *fs = NULL;
    struct names names;
    int lock = -EBADF;

    if (asprintf(&path, "%s/fs", directory) < 0)
        return out_of_memory(error);
    auto_close int root = openat(work->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return fail_store(error, -errno, "open the new layer");
    int r = names_read(root, &names);
    if (r < 0)
        return fail_store(error, r, "read the new layer");
    const bool is_empty = !names.n && !files_is_opaque(root);
    names_done(&names);
    if (is_empty)
        return 0;
    if (list->n >= MANIFEST_MAX_LAYERS)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "build",
            "the image has more than %u layers; combine steps", MANIFEST_MAX_LAYERS);
    r = choose_id(list, root, &meta, error);
    if (r == 0)
        r = layer_publish(work, directory, &meta, &lock, error);
    if (r < 0)
        return r;
    if (asprintf(&fs, "layers/%s/fs", meta.id) < 0) {
        close(lock);
        return out_of_memory(error);
    }
    int fd = openat(work->store, fs, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    r = list_add(list, meta.id, fd < 0 ? -errno : fd, lock);
    return r < 0 ? fail_store(error, r, "open the new layer") : 0;
}

int add_image(int store, const char *name, const struct layer_list *list, struct manifest *manifest,
    struct rollbox_error *error) {
    struct work work = WORK_NONE;
    struct manifest filled = *manifest;
    auto_free char *copy = strdup(name);

    if (!copy)
        return out_of_memory(error);
    int r = work_begin(store, &work, error);
    if (r < 0)
        return r;
    filled.kind = MANIFEST_IMAGE;
    filled.name = copy;
    filled.layers = list->ids;
    filled.n_layers = list->n;
    filled.created_s = time(NULL);
    if (filled.n_layers)
        filled.layers[filled.n_layers] = NULL;
    r = layer_publish_manifest(&work, &filled, error);
    work_done(&work);
    return r;
}

/* ---- a layer that is written here ---- */

struct writing {
    const struct layer_writer *writer;
    const struct layer_list *list;
    int store, work;
};

static int write_tar(
    const struct writing *writing, json_t **ret_extra, struct rollbox_error *error) {
    auto_close int fd = openat(writing->work, TAR, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail_store(error, -errno, "write to the store");
    struct archive *tar = archive_write_new();
    if (!tar)
        return out_of_memory(error);
    archive_write_set_format_pax_restricted(tar);
    archive_write_set_options(tar, "hdrcharset=BINARY");
    int r = archive_write_open_fd(tar, fd) == ARCHIVE_OK ? 0 : out_of_memory(error);
    if (r == 0)
        r = writing->writer->write(writing->writer->context, tar, ret_extra, error);
    if (r == 0 && archive_write_close(tar) != ARCHIVE_OK)
        r = fail_store(
            error, archive_errno(tar) > 0 ? -archive_errno(tar) : -EIO, "write to the store");
    if (r < 0)
        archive_write_fail(tar);
    archive_write_free(tar);
    return r;
}

static int write_in_child(void *context, json_t **ret_report, struct rollbox_error *error) {
    const struct writing *writing = context;
    const struct layer_writer *writer = writing->writer;
    struct image_source source = { .fd = writing->work, .is_directory = true };
    struct unpack_totals totals = { 0 };
    struct unpacked unpacked;
    int readable[MAX_READABLE + 1];
    struct stack below = { 0 };
    json_t *extra = NULL;
    bool landlock;

    auto_close int layers = openat(writing->store, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (layers < 0)
        return fail_store(error, -errno, "open the store's layers");
    int r = layer_list_stack(writing->list, &below);
    if (r < 0)
        return fail_store(error, r, "open the image's layers");
    const size_t n = MIN(writer->n_readable, (size_t)MAX_READABLE);
    if (n)
        memcpy(readable, writer->readable, n * sizeof *readable);
    readable[n] = layers;
    if (mkdirat(writing->work, "L0", 0700) < 0 || mkdirat(writing->work, "L0/fs", 0700) < 0)
        r = fail_store(error, -errno, "write to the store");
    auto_close int root = openat(writing->work, "L0/fs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct confine confine = { readable, n + 1, writing->work };
    if (r == 0)
        r = confine_enter(&confine, &landlock, error);
    if (r == 0)
        r = write_tar(writing, &extra, error);
    if (r == 0)
        r = unpack_layer(&source, TAR, root, &below, &writer->limits, &totals, &unpacked, error);
    if (r == 0) {
        *ret_report = json_pack("{s:o}", "report", extra ? extra : json_object());
        r = *ret_report ? 0 : out_of_memory(error);
    } else {
        json_decref(extra);
    }
    stack_done(&below);
    return r;
}

int add_written_layer(int store, struct layer_list *list, const struct layer_writer *writer,
    json_t **ret_report, struct rollbox_error *error) {
    struct writing writing = { .writer = writer, .list = list, .store = store };
    struct parser_process worker = WORKER_NONE;
    struct work work = WORK_NONE;
    json_t *report = NULL;
    int r = work_begin(store, &work, error);

    if (r < 0)
        return r;
    writing.work = work.fd;
    r = parser_process_start(write_in_child, &writing, &worker, &report, error);
    if (r == 0) {
        fault_point(FAULT_step_written);
        r = publish_layer(&work, "L0", list, error);
    }
    if (r == 0 && ret_report)
        *ret_report = json_incref(json_object_get(report, "report"));
    parser_process_end(&worker);
    json_decref(report);
    work_done(&work);
    return r;
}

/* ---- layers of a sandbox ---- */

struct taking {
    int archive, work;
};

/* The caller writes to the other end of the pipe. A copy of that in this process, which a fork has
 * made, would hide the end of the data, so that a failed export would never end here. */
static void close_other_ends(int archive) {
    struct stat ours, st;

    if (fstat(archive, &ours) < 0 || !S_ISFIFO(ours.st_mode))
        return;
    for (int fd = STDERR_FILENO + 1; fd < MAX_DESCRIPTOR; fd++)
        if (fd != archive && fstat(fd, &st) == 0 && st.st_dev == ours.st_dev &&
            st.st_ino == ours.st_ino)
            close(fd);
}

static int take_in_child(void *context, json_t **ret_report, struct rollbox_error *error) {
    const struct taking *taking = context;
    const struct unpack_limits limits = { .max_entries = FILES_MAX_ENTRIES,
        .max_bytes = 1ull << 50,
        .max_depth = FILES_MAX_DEPTH,
        .max_ratio = 1000000 };
    const struct confine confine = { .readable = NULL, .writable = taking->work };
    struct unpack_totals totals = { 0 };
    bool landlock;

    close_other_ends(taking->archive);
    int r = confine_enter(&confine, &landlock, error);
    return r < 0 ? r
                 : unpack_snapshot(
                       taking->archive, taking->work, &limits, &totals, true, ret_report, error);
}

/* Removes the paths that are empty files or directories. */
static void leave_out(int root, const struct layer_exclusions *exclusions) {
    for (size_t i = 0; i < exclusions->n_if_empty; i++) {
        const char *name;
        struct stat st;

        auto_close int parent = files_parent(root, exclusions->if_empty[i], &name);
        if (parent < 0 || fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            (void)unlinkat(parent, name, AT_REMOVEDIR);
        else if (S_ISREG(st.st_mode) && !st.st_size)
            (void)unlinkat(parent, name, 0);
    }
}

/* Removes the paths with all that is in them. 0 or -errno. */
static int drop(int root, const struct layer_exclusions *exclusions) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < exclusions->n_dropped; i++) {
        const char *path = exclusions->dropped[i], *name;

        auto_close int parent = files_parent(root, path + strspn(path, "/"), &name);
        if (parent < 0)
            continue;
        auto_close int tree = tree_open(parent, name);
        if (tree >= 0 && (r = tree_empty(tree)) < 0)
            return r;
        if (unlinkat(parent, name, tree >= 0 ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT)
            r = -errno;
    }
    return r;
}

/* The part of the root file system becomes the layer. 1: there is none. */
static int use_part(const struct work *work, const char *directory, const char *part,
    const struct layer_exclusions *exclusions, struct rollbox_error *error) {
    auto_free char *old = NULL, *fs = NULL;

    if (asprintf(&old, "%s/all/%s", directory, part) < 0)
        return out_of_memory(error);
    if (asprintf(&fs, "%s/fs", directory) < 0)
        return out_of_memory(error);
    char *all = strndup(old, strlen(old) - strlen(part) - 1);
    if (!all)
        return out_of_memory(error);
    int r = renameat(work->fd, fs, work->fd, all) < 0 ? -errno : 0;
    if (r == 0 && renameat(work->fd, old, work->fd, fs) < 0)
        r = -errno;
    if (r == 0 || r == -ENOENT) {
        auto_close int top = tree_open(work->fd, all);

        if (top >= 0 && tree_empty(top) == 0)
            (void)unlinkat(work->fd, all, AT_REMOVEDIR);
    }
    free(all);
    if (r == -ENOENT)
        return 1;
    if (r < 0)
        return fail_store(error, r, "write to the store");
    auto_close int root = openat(work->fd, fs, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    r = root >= 0 ? drop(root, exclusions) : 0;
    if (r < 0)
        return fail_store(error, r, "write to the store");
    if (root >= 0)
        leave_out(root, exclusions);
    return 0;
}

static const char *root_part(const json_t *manifest) {
    const json_t *place;
    size_t i;

    json_array_foreach(json_object_get(manifest, "places"), i, place) {
        const char *path = json_string_value(json_object_get(place, "path")),
                   *part = json_string_value(json_object_get(place, "part"));

        const bool is_root = path && strcmp(path, "/") == 0;
        const bool is_name =
            part && strlen(part) > 1 && strspn(part, "p0123456789") == strlen(part);

        if (is_root && is_name)
            return part;
    }
    return NULL;
}

int add_exported_layers(int store, struct layer_list *list, int archive,
    const struct layer_exclusions *exclusions, struct rollbox_error *error) {
    struct taking taking = { .archive = archive };
    struct parser_process worker = WORKER_NONE;
    struct work work = WORK_NONE;
    json_t *manifest = NULL;
    int r = work_begin(store, &work, error);

    if (r < 0)
        return r;
    taking.work = work.fd;
    r = parser_process_start(take_in_child, &taking, &worker, &manifest, error);
    const char *part = r == 0 ? root_part(manifest) : NULL;
    if (r == 0 && !part)
        r = error_set(error, ROLLBOX_ERR_INTERNAL, EBADMSG, "build",
            "the sandbox's export does not have the root file system");
    const size_t n = json_array_size(json_object_get(manifest, "layers"));
    if (r == 0)
        fault_point(FAULT_step_exported);
    for (size_t i = 0; r == 0 && i < n; i++) {
        char directory[24];

        snprintf(directory, sizeof directory, "L%zu", i);
        r = use_part(&work, directory, part, exclusions, error);
        if (r == 0)
            r = publish_layer(&work, directory, list, error);
        r = MIN(r, 0);
    }
    parser_process_end(&worker);
    json_decref(manifest);
    work_done(&work);
    return r;
}

/* ---- a sandbox as an image ---- */

const char *const layer_mount_points[] = { "etc/hosts", "etc/hostname", "etc/resolv.conf", "dev",
    "proc", "sys", NULL };

/* The manifest of the image that the sandbox has, as the store had it. */
static int read_image(
    const json_t *manifest, struct manifest *ret_image, struct rollbox_error *error) {
    auto_free char *text = json_dumps(json_object_get(manifest, "image"), JSON_COMPACT);
    int r = text ? manifest_parse(text, strlen(text), MANIFEST_IMAGE, ret_image, error) : -EBADMSG;

    return r == -EBADMSG ? error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "import",
                               "the export does not say which image the sandbox has")
                         : r;
}

/* The layers of the image are in the store, from which the sandbox has them. */
static int list_stored(
    int store, const struct manifest *image, struct layer_list *list, struct rollbox_error *error) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < image->n_layers; i++) {
        auto_free char *path = NULL;
        int lock = -EBADF, fd = -EBADF;

        auto_free char *damage = store_layer_damage(store, image->layers[i]);
        if (damage || store_layer_lock(store, image->layers[i], &lock) < 0)
            return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "import",
                "layer %.12s of the image %s is %s; the export has only the sandbox's changes, "
                "because it was written to a pipe: export it to a file, or pull the image first",
                image->layers[i], image->name, damage ? damage : "not in the store");
        if (asprintf(&path, "layers/%s/fs", image->layers[i]) < 0) {
            close(lock);
            return out_of_memory(error);
        }
        fd = openat(store, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = list_add(list, image->layers[i], fd < 0 ? -errno : fd, lock);
        if (r < 0)
            return fail_store(error, r, "open a layer of the image");
    }
    return 0;
}

/* Makes layer `i` of the export the next one of the image. */
static int add_part(const struct work *work, size_t i, bool is_root, const char *part,
    struct layer_list *list, struct rollbox_error *error) {
    const struct layer_exclusions exclusions = { .if_empty = layer_mount_points,
        .n_if_empty = ARRAY_SIZE(layer_mount_points) - 1 };
    char directory[24];
    int r = 0;

    snprintf(directory, sizeof directory, "L%zu", i);
    if (!is_root)
        r = use_part(work, directory, part, &exclusions, error);
    return r == 0 ? publish_layer(work, directory, list, error) : MIN(r, 0);
}

static int describe_image(int store, const char *name, const struct layer_list *list,
    size_t n_known, json_t **ret_json, struct rollbox_error *error) {
    uint64_t bytes = 0, files = 0;

    for (size_t i = n_known; i < list->n; i++) {
        struct layer_meta meta;

        if (layer_meta_read(store, list->ids[i], &meta) < 0)
            continue;
        bytes += meta.tree.bytes;
        files += meta.tree.files;
    }
    *ret_json = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", name, "kind", "image", "layers",
        (json_int_t)list->n, "new_layers", (json_int_t)(list->n - n_known), "bytes",
        (json_int_t)bytes, "files", (json_int_t)files);
    return *ret_json ? 0 : out_of_memory(error);
}

int add_exported_image(const struct work *work, const json_t *manifest, const char *name,
    json_t **ret_json, struct rollbox_error *error) {
    const json_t *rows = json_object_get(manifest, "layers"), *row;
    const char *part = root_part(manifest);
    struct layer_list list = { 0 };
    struct manifest image = { 0 };
    size_t i, n_known;
    int r = read_image(manifest, &image, error);

    if (r < 0)
        return r;
    if (!part)
        r = error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "import",
            "the export does not have the root of the sandbox");
    if (r == 0 && !json_is_true(json_object_get(json_array_get(rows, 0), "root")))
        r = list_stored(work->store, &image, &list, error);
    n_known = list.n;
    json_array_foreach(rows, i, row) if (r == 0) r =
        add_part(work, i, json_is_true(json_object_get(row, "root")), part, &list, error);
    /* The manifest is of other layers now. */
    manifest_strings_free(image.layers);
    image.layers = NULL;
    free(image.name);
    image.name = NULL;
    if (image.reference)
        image.reference[0] = '\0';
    if (image.digest)
        image.digest[0] = '\0';
    if (r == 0)
        r = add_image(work->store, name, &list, &image, error);
    if (r == 0)
        r = describe_image(work->store, name, &list, n_known, ret_json, error);
    layer_list_done(&list);
    manifest_done(&image);
    return r;
}

int add_committed_image(
    int store, int archive, const char *name, json_t **ret_json, struct rollbox_error *error) {
    struct taking taking = { .archive = archive };
    struct parser_process worker = WORKER_NONE;
    struct work work = WORK_NONE;
    json_t *manifest = NULL;
    int r = work_begin(store, &work, error);

    if (r < 0)
        return r;
    taking.work = work.fd;
    r = parser_process_start(take_in_child, &taking, &worker, &manifest, error);
    if (r == 0 && !json_object_get(manifest, "image"))
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the sandbox has no image, so its files are no image; rollbox export writes them to a "
            "file");
    if (r == 0)
        r = add_exported_image(&work, manifest, name, ret_json, error);
    parser_process_end(&worker);
    json_decref(manifest);
    work_done(&work);
    return r;
}
