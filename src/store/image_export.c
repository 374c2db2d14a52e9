/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_export.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/remove_tree.h"
#include "base/text.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/image_config.h"
#include "store/layer.h"
#include "store/maintenance.h"
#include "store/registry_reference.h"
#include "store/skopeo.h"
#include "store/store.h"

#define LAYOUT "layout"
#define BLOBS "blobs/sha256"
#define MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"
#define CONFIG_TYPE "application/vnd.oci.image.config.v1+json"
#define PUSH_S 86400 /* skopeo shows no progress of a push */
#define CHUNK (256u << 10)

struct export {
    int store;
    const struct export_options *options;
    struct manifest manifest;
    int *locks;
    int layout, blobs; /* the directory that is filled */
    const char *tag;
    json_t *layers, *diff_ids;
    uint64_t bytes;
    char digest[DIGEST_HEX + 1]; /* of the manifest */
    struct rollbox_error *error;
};

static int fail_memory(struct export *export) {
    return error_set(
        export->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");
}

static int fail_write(struct export *export, int error_number, const char *path) {
    return error_set(export->error,
        error_number == ENOENT   ? ROLLBOX_ERR_NOT_FOUND
        : error_number == EACCES ? ROLLBOX_ERR_PATH_DENIED
                                 : error_code_of(error_number, ROLLBOX_ERR_IO),
        error_number, "export", "cannot write %s: %s", files_printable(path),
        strerror(error_number));
}

/* ---- the image and its layers ---- */

/* Finds the image or snapshot, and locks its layers. */
static int open_image(struct export *export) {
    const char *name = export->options->name;
    const enum manifest_kind kind = maintenance_kind_of(&name);
    int r = store_manifest(export->store, kind, name, &export->manifest, export->error);

    return r < 0
               ? r
               : store_layers_lock(export->store, &export->manifest, &export->locks, export->error);
}

/* The trees of a layer: an image's is one, and a snapshot's has one for each place. */
static int open_trees(struct export *export, size_t i, struct oci_tree **ret_trees, size_t *ret_n) {
    const json_t *places = export->manifest.places;
    const size_t room = places ? json_array_size(places) : 1;
    struct oci_tree *trees = calloc(room + 1, sizeof *trees);
    auto_buf struct buf path = BUF_INIT;
    size_t n = 0;

    if (!trees)
        return fail_memory(export);
    for (size_t j = 0; j < room; j++) {
        const json_t *place = places ? json_array_get(places, j) : NULL;
        const char *part = json_string_value(json_object_get(place, "part")),
                   *where = json_string_value(json_object_get(place, "path"));

        path.length = 0;
        buf_printf(&path, "layers/%s/fs/%s", export->manifest.layers[i], text_or(part, "."));
        if (buf_failed(&path))
            break;
        int fd = openat(export->store, path.data, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue; /* the layer changes nothing there */
        if (fd < 0) {
            *ret_trees = trees;
            *ret_n = n;
            return fail_write(export, errno, text_or(where, "the layer"));
        }
        trees[n++] = (struct oci_tree){ fd, where ? where + 1 : "" };
    }
    *ret_trees = trees;
    *ret_n = n;
    return buf_failed(&path) ? fail_memory(export) : 0;
}

/* Gives a written blob its name. */
static int name_blob(struct export *export, const char *temporary, const char *hex) {
    return renameat(export->blobs, temporary, export->blobs, hex) < 0
               ? fail_write(export, errno, hex)
               : 0;
}

static int write_layer(struct export *export, size_t i) {
    static const char temporary[] = "layer.part";
    struct oci_tree *trees = NULL;
    struct oci_layer layer;
    size_t n = 0;

    auto_close int to = openat(
        export->blobs, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (to < 0)
        return fail_write(export, errno, temporary);
    int r = open_trees(export, i, &trees, &n);
    if (r == 0)
        r = oci_layer_write(trees, n, export->options->compression, to, &layer, export->error);
    for (size_t j = 0; j < n; j++)
        close(trees[j].root);
    free(trees);
    if (r == 0)
        r = name_blob(export, temporary, layer.digest);
    if (r < 0)
        return r;
    fault_point(FAULT_layout_half);
    export->bytes += layer.bytes;
    json_array_append_new(export->diff_ids, json_sprintf("sha256:%s", layer.diff_id));
    json_array_append_new(export->layers,
        json_pack("{s:s, s:o, s:I}", "mediaType",
            oci_layer_media_type(export->options->compression), "digest",
            json_sprintf("sha256:%s", layer.digest), "size", (json_int_t)layer.bytes));
    return 0;
}

/* ---- the texts ---- */

static int write_text(struct export *export, int directory, const char *name, const char *text) {
    auto_close int fd =
        openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));

    return r < 0 ? fail_write(export, -r, name) : 0;
}

/* A JSON object as a blob. *ret_size is its size. */
static int write_object(
    struct export *export, const json_t *object, char ret_hex[DIGEST_HEX + 1], size_t *ret_size) {
    auto_free char *text = object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    struct digest digest;

    if (!text)
        return fail_memory(export);
    *ret_size = strlen(text);
    digest_init(&digest);
    digest_add(&digest, text, *ret_size);
    digest_end_hex(&digest, ret_hex);
    return write_text(export, export->blobs, ret_hex, text);
}

/* One entry for each layer. The image's own steps are kept if there are as many: else they are
 * about other layers. Builders refuse an image whose history has another number, even none. */
static void set_history(json_t *config, size_t n_layers) {
    json_t *history = json_object_get(config, "history"), *step;
    size_t i, n = 0;

    json_array_foreach(history, i, step) n += !json_is_true(json_object_get(step, "empty_layer"));
    if (n == n_layers && n)
        return;
    history = json_array();
    for (i = 0; i < n_layers; i++)
        json_array_append_new(history, json_pack("{s:s}", "created_by", "rollbox image export"));
    json_object_set_new(config, "history", history);
}

/* The configuration: the image's own, or that of another image. */
static int make_config(struct export *export, json_t **ret_config) {
    struct manifest other = { 0 };
    const struct manifest *from = &export->manifest;

    if (export->options->config_of) {
        int r = store_manifest(
            export->store, MANIFEST_IMAGE, export->options->config_of, &other, export->error);
        if (r < 0)
            return r;
        from = &other;
    }
    json_t *config = image_config_of(from);
    manifest_done(&other);
    if (!config)
        return fail_memory(export);
    set_history(config, json_array_size(export->diff_ids));
    json_object_set_new(
        config, "rootfs", json_pack("{s:s, s:O}", "type", "layers", "diff_ids", export->diff_ids));
    *ret_config = config;
    return 0;
}

static int write_manifest(struct export *export, const json_t *config) {
    char hex[DIGEST_HEX + 1];
    size_t size = 0;
    int r = write_object(export, config, hex, &size);

    if (r < 0)
        return r;
    json_t *manifest = json_pack("{s:i, s:s, s:{s:s, s:s+, s:I}, s:O}", "schemaVersion", 2,
        "mediaType", MANIFEST_TYPE, "config", "mediaType", CONFIG_TYPE, "digest", "sha256:", hex,
        "size", (json_int_t)size, "layers", export->layers);
    r = write_object(export, manifest, export->digest, &size);
    json_decref(manifest);
    if (r < 0)
        return r;
    json_t *top = json_pack("{s:s, s:s+, s:I, s:{s:s, s:s}, s:{s:s}}", "mediaType", MANIFEST_TYPE,
        "digest", "sha256:", export->digest, "size", (json_int_t)size, "platform", "os",
        text_or(json_string_value(json_object_get(config, "os")), "linux"), "architecture",
        text_or(json_string_value(json_object_get(config, "architecture")), "unknown"),
        "annotations", "org.opencontainers.image.ref.name", export->tag);
    json_t *index = json_pack("{s:i, s:[o]}", "schemaVersion", 2, "manifests", top);
    auto_free char *text = index ? json_dumps(index, JSON_COMPACT) : NULL;
    json_decref(index);
    if (!text)
        return fail_memory(export);
    r = write_text(export, export->layout, "index.json", text);
    return r < 0 ? r
                 : write_text(export, export->layout, "oci-layout",
                       "{\"imageLayoutVersion\": \"1.0.0\"}\n");
}

/* Fills an empty directory. */
static int write_layout(struct export *export) {
    json_t *config = NULL;
    int r = mkdirat(export->layout, "blobs", 0755) < 0 || mkdirat(export->layout, BLOBS, 0755) < 0
                ? fail_write(export, errno, BLOBS)
                : open_image(export);

    export->layers = json_array();
    export->diff_ids = json_array();
    if (r == 0) {
        export->blobs = openat(export->layout, BLOBS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = export->blobs < 0 ? fail_write(export, errno, BLOBS) : 0;
    }
    for (size_t i = 0; r == 0 && i < export->manifest.n_layers; i++)
        r = write_layer(export, i);
    if (r == 0)
        r = make_config(export, &config);
    if (r == 0)
        r = write_manifest(export, config);
    json_decref(config);
    return r;
}

static void export_done(struct export *export) {
    store_layers_unlock(&export->manifest, export->locks);
    manifest_done(&export->manifest);
    json_decref(export->layers);
    json_decref(export->diff_ids);
    close_fd(&export->layout);
    close_fd(&export->blobs);
}

static int describe_export(struct export *export, const char *to, json_t **ret_json) {
    *ret_json = json_pack("{s:s, s:s, s:s+, s:I, s:I}", "name", export->options->name, "to",
        files_printable(to), "digest", "sha256:", export->digest, "layers",
        (json_int_t) export->manifest.n_layers, "bytes", (json_int_t) export->bytes);
    return *ret_json ? 0 : fail_memory(export);
}

/* ---- to a file ---- */

static int pack_file(struct export *export, struct archive *tar, const struct files_entry *entry) {
    struct archive_entry *to = archive_entry_new();
    auto_free char *chunk = malloc(CHUNK);
    ssize_t n = 0;

    auto_close int fd =
        S_ISREG(entry->st.st_mode) ? files_open(entry->parent, entry->name, 0) : -EBADF;
    if (!to || !chunk) {
        archive_entry_free(to);
        return fail_memory(export);
    }
    archive_entry_copy_pathname(to, entry->path);
    archive_entry_set_filetype(to, entry->st.st_mode & S_IFMT);
    archive_entry_set_perm(to, S_ISDIR(entry->st.st_mode) ? 0755 : 0644);
    archive_entry_set_size(to, S_ISREG(entry->st.st_mode) ? entry->st.st_size : 0);
    bool good = archive_write_header(tar, to) >= ARCHIVE_WARN;
    archive_entry_free(to);
    while (good && fd >= 0 && (n = read(fd, chunk, CHUNK)) > 0)
        good = archive_write_data(tar, chunk, (size_t)n) == n;
    if (n < 0)
        return fail_write(export, errno, entry->path);
    if (good)
        return 0;
    return fail_write(
        export, archive_errno(tar) > 0 ? archive_errno(tar) : EIO, export->options->to);
}

struct pack {
    struct export *export;
    struct archive *tar;
};

static int pack_visit(void *context, const struct files_entry *entry, struct rollbox_error *error) {
    const struct pack *pack = context;

    (void)error;
    return entry->path_length ? pack_file(pack->export, pack->tar, entry) : 0;
}

/* The layout as a tar. Its layers are compressed already. */
static int pack_layout(struct export *export, int to) {
    struct pack pack = { export, archive_write_new() };

    if (!pack.tar)
        return fail_memory(export);
    archive_write_set_format_pax_restricted(pack.tar);
    int r = archive_write_open_fd(pack.tar, to) == ARCHIVE_OK ? 0 : fail_memory(export);
    if (r == 0)
        r = files_walk(export->layout, pack_visit, &pack, export->error);
    if (r == 0 && archive_write_close(pack.tar) != ARCHIVE_OK)
        r = fail_write(export, archive_errno(pack.tar), export->options->to);
    if (r < 0)
        archive_write_fail(pack.tar);
    archive_write_free(pack.tar);
    return r == 0 && fsync(to) < 0 ? fail_write(export, errno, export->options->to) : r;
}

/* The destination of an export: a name in a directory. */
struct target {
    int parent;
    char *leaf;
    char temporary[40]; /* in the same directory */
};

static int open_target(struct export *export, const char *path, struct target *ret_target) {
    struct target target = { .parent = -EBADF, .temporary = ".rollbox-export-" };
    auto_free char *copy = strdup(path);
    size_t length = text_size(copy);

    if (!copy)
        return fail_memory(export);
    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = '\0';
    char *slash = strrchr(copy, '/');
    const char *directory = slash ? copy : ".";
    if (slash == copy)
        directory = "/";
    target.leaf = strdup(slash ? slash + 1 : copy);
    if (slash)
        *slash = '\0';
    layer_random(target.temporary + strlen(target.temporary), 12);
    if (!target.leaf)
        return fail_memory(export);
    target.parent = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target.parent < 0 || !target.leaf[0] || strcmp(target.leaf, "..") == 0) {
        free(target.leaf);
        return fail_write(export, target.parent < 0 ? errno : EISDIR, path);
    }
    *ret_target = target;
    return 0;
}

static void target_done(struct target *target, bool remove) {
    auto_close int left = remove ? tree_open(target->parent, target->temporary) : -EBADF;

    if (left >= 0)
        (void)tree_empty(left);
    if (remove)
        (void)unlinkat(target->parent, target->temporary, left >= 0 ? AT_REMOVEDIR : 0);
    free(target->leaf);
    close_fd(&target->parent);
}

static int publish_target(struct export *export, struct target *target, const char *path) {
    fault_point(FAULT_layout_written);
    return renameat(target->parent, target->temporary, target->parent, target->leaf) < 0
               ? fail_write(export, errno, path)
               : 0;
}

/* Removes an empty directory that the user has made for the export; rename replaces it. */
static int export_directory(struct export *export, const char *path) {
    struct target target;
    int r = open_target(export, path, &target);

    if (r < 0)
        return r;
    if (mkdirat(target.parent, target.temporary, 0755) < 0)
        r = fail_write(export, errno, path);
    if (r == 0) {
        export->layout = openat(
            target.parent, target.temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = export->layout < 0 ? fail_write(export, errno, path) : write_layout(export);
    }
    if (r == 0 && syncfs(export->layout) < 0)
        r = fail_write(export, errno, path);
    if (r == 0)
        r = publish_target(export, &target, path);
    target_done(&target, r < 0);
    return r;
}

/* A directory of this process in the store, in which the layout is made. */
static int make_work_layout(struct export *export, struct work *ret_work) {
    int r = work_begin(export->store, ret_work, export->error);

    if (r < 0)
        return r;
    if (mkdirat(ret_work->fd, LAYOUT, 0700) < 0)
        return fail_write(export, errno, LAYOUT);
    export->layout = openat(ret_work->fd, LAYOUT, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return export->layout < 0 ? fail_write(export, errno, LAYOUT) : write_layout(export);
}

static int export_archive(struct export *export, const char *path) {
    struct work work = WORK_NONE;
    struct target target;
    int r = open_target(export, path, &target);

    if (r < 0)
        return r;
    r = make_work_layout(export, &work);
    auto_close int to = r < 0 ? -EBADF
                              : openat(target.parent, target.temporary,
                                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (r == 0 && to < 0)
        r = fail_write(export, errno, path);
    if (r == 0)
        r = pack_layout(export, to);
    if (r == 0)
        r = publish_target(export, &target, path);
    target_done(&target, r < 0);
    work_done(&work);
    return r;
}

static bool is_directory_path(const char *path) {
    struct stat st;

    if (!path[0])
        return false;
    return path[strlen(path) - 1] == '/' || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* oci:DIRECTORY, oci-archive:FILE, or a path. */
static int read_target(struct export *export, struct registry_reference *ret_reference) {
    const char *to = export->options->to;
    const bool named = strncmp(to, "oci:", 4) == 0 || strncmp(to, "oci-archive:", 12) == 0;

    if (named)
        return registry_reference_parse(to, ret_reference, export->error);
    struct registry_reference reference = {
        .kind = is_directory_path(to) ? REFERENCE_LAYOUT : REFERENCE_ARCHIVE, .path = strdup(to)
    };
    *ret_reference = reference;
    return reference.path ? 0 : fail_memory(export);
}

int image_export(int store, const struct export_options *options, json_t **ret_json,
    struct rollbox_error *error) {
    struct export export = {
        .store = store, .options = options, .layout = -EBADF, .blobs = -EBADF, .error = error
    };
    struct registry_reference reference = { 0 };
    int r = read_target(&export, &reference);

    export.tag = text_or(reference.tag, "latest");
    if (r == 0)
        r = reference.kind == REFERENCE_LAYOUT ? export_directory(&export, reference.path)
                                               : export_archive(&export, reference.path);
    if (r == 0)
        r = describe_export(&export, reference.path, ret_json);
    registry_reference_done(&reference);
    export_done(&export);
    return r;
}

/* ---- to a registry ---- */

static int read_digest(struct export *export, int work) {
    auto_buf struct buf text = BUF_INIT;
    auto_close int fd = openat(work, "digest", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fd_read_all(fd, 200, &text) < 0 || text_size(text.data) < 7 + DIGEST_HEX)
        return error_set(export->error, ROLLBOX_ERR_IO, EIO, "push",
            "skopeo did not say which manifest the registry has now");
    snprintf(export->digest, sizeof export->digest, "%.64s", text.data + 7);
    return 0;
}

static int send_layout(struct export *export, struct skopeo *skopeo, const char *tagged) {
    auto_buf struct buf text = BUF_INIT, to = BUF_INIT;

    buf_printf(&to, "docker://%s", tagged);
    if (buf_failed(&to))
        return fail_memory(export);
    const char *const arguments[] = { "copy", "--quiet", "--retry-times=2", "--digestfile=digest",
        "oci:" LAYOUT ":latest", to.data, NULL };
    int r = skopeo_run(skopeo, arguments, NULL, NULL, &text, export->error);
    return r < 0 ? r : read_digest(export, skopeo->work);
}

int image_push(int store, const struct export_options *options, json_t **ret_json,
    struct rollbox_error *error) {
    struct export export = { .store = store,
        .options = options,
        .layout = -EBADF,
        .blobs = -EBADF,
        .tag = "latest",
        .error = error };
    const char *to = text_or(options->to, options->name);
    struct skopeo skopeo = { .insecure = options->insecure,
        .stall_s = options->stall_s ? options->stall_s : PUSH_S,
        .subject = to,
        .verb = "push" };
    struct registry_reference reference = { 0 };
    struct work work = WORK_NONE;
    int r = registry_reference_parse(to, &reference, error);

    if (r == 0 && (reference.kind != REFERENCE_REGISTRY || reference.digest[0]))
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s is not a name with a tag of a registry; image export writes files",
            files_printable(to));
    if (r == 0)
        r = skopeo_find(&skopeo, error);
    if (r == 0)
        r = make_work_layout(&export, &work);
    skopeo.work = work.fd;
    skopeo.insecure |= r == 0 && registry_reference_is_local(&reference);
    if (r == 0)
        r = skopeo_authorize(&skopeo, options->authfile, options->creds, reference.host, error);
    if (r == 0)
        r = send_layout(&export, &skopeo, reference.tagged);
    if (r == 0)
        r = describe_export(&export, to, ret_json);
    skopeo_done(&skopeo);
    registry_reference_done(&reference);
    export_done(&export);
    work_done(&work);
    return r;
}
