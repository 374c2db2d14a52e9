/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshot files: a tar (zstd). Its first member is manifest.json with the digest of each layer's
 * tree. The layers' trees follow, bottom first, under 0/, 1/, ...
 *
 * A whiteout is a character device 0:0, and an opaque directory has the attribute
 * user.overlay.opaque, as on disk. A sparse file is a member with its data alone and the attribute
 * user.rollbox.sparse="SIZE;OFFSET,LENGTH;...". tar's own sparse format would make the writer read
 * the holes, which a guest can make arbitrarily large.
 *
 * Digests are computed in a first pass and again while writing. If they differ, a layer was changed
 * meanwhile and the file does not appear. An import unpacks in a confined process, as for images,
 * and computes the digests again.
 */
#include "store/snapshot.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/add_layer.h"
#include "store/confine.h"
#include "store/digest.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/parser_process.h"

#define DESCRIPTOR "/proc/self/fd/"
#define MAX_SPARSE_SEGMENTS                                                                        \
    1500 /* the limit of an attribute; a file with more is written with its holes as zeros */
#define CHUNK (256u << 10)

/* ---- export ---- */

struct export {
    const struct job *job;
    struct archive *archive;
    struct rollbox_error *error;
    size_t layer;
    uint32_t id_base; /* of the layer; 0: owners are as they are */
    struct digest digest;
    struct inodes inodes;
    uint64_t files;
    char *chunk;
};

static int bad_write(struct export *export, const char *path) {
    const char *text = archive_error_string(export->archive);
    int number = archive_errno(export->archive);

    return error_set(export->error, error_code_of(number, ROLLBOX_ERR_IO),
        number > 0 ? number : EIO, "export", "cannot write %s to the snapshot: %s",
        files_printable(path), text ? files_printable(text) : "unknown");
}

static int bad_read(struct export *export, int r, const char *path) {
    return error_set(export->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "export",
        "cannot read %s of the snapshot: %s", files_printable(path), strerror(-r));
}

/* The sandbox's id of an owner; 65534 for an id that is none of its own. */
static uint32_t inner_id(const struct export *export, uint32_t id) {
    if (export->id_base)
        id -= export->id_base;
    return MIN(id, 65534u);
}

/* Capabilities that the sandbox's root has given to a program become those of any root. */
static void add_capability(const struct export *export, int fd, struct archive_entry *to) {
    char value[CAPABILITY_IN_NAMESPACE_BYTES];
    uint32_t root;

    if (!export->job->many && !export->job->image)
        return;
    ssize_t n = fgetxattr(fd, XATTR_CAPABILITY, value, sizeof value);
    if (n < 0 && !export->job->many) /* of an ordinary user's store */
        n = fgetxattr(fd, XATTR_KEPT_CAPABILITY, value, sizeof value);
    if (!export->id_base && n == CAPABILITY_OF_HOST_BYTES && value[3] == 2)
        archive_entry_xattr_add_entry(to, XATTR_CAPABILITY, value, CAPABILITY_OF_HOST_BYTES);
    if (!export->id_base || n != CAPABILITY_IN_NAMESPACE_BYTES)
        return;
    memcpy(&root, value + CAPABILITY_OF_HOST_BYTES, sizeof root);
    if (value[3] != 3 || root != export->id_base)
        return;
    value[3] = 2;
    archive_entry_xattr_add_entry(to, XATTR_CAPABILITY, value, CAPABILITY_OF_HOST_BYTES);
}

static int add_attribute(void *context, const char *name, const void *value, size_t length) {
    archive_entry_xattr_add_entry(context, name, value, length);
    return 0;
}

/* With many users, add_capability() adds the capability in effect. */
static int add_other_attribute(void *context, const char *name, const void *value, size_t length) {
    return strcmp(name, XATTR_KEPT_CAPABILITY) == 0 ? 0
                                                    : add_attribute(context, name, value, length);
}

/* The data of a file, and its digest. `dense`: with its holes as zeros. */
static int write_content(struct export *export, int fd, const struct files_entry *entry,
    const struct segment *segments, size_t n, bool dense, uint8_t digest[DIGEST_BYTES]) {
    const struct segment whole = { 0, (uint64_t)entry->st.st_size };
    struct content content;

    if (dense) {
        segments = &whole;
        n = 1;
    }
    content_init(&content, (uint64_t)entry->st.st_size);
    for (size_t i = 0; i < n; i++)
        for (uint64_t done = 0; done < segments[i].length;) {
            size_t part = (size_t)MIN(segments[i].length - done, (uint64_t)CHUNK);
            ssize_t got = pread(fd, export->chunk, part, (off_t)(segments[i].offset + done));

            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return bad_read(export, got < 0 ? -errno : -EAGAIN, entry->path);
            content_add(&content, segments[i].offset + done, export->chunk, (size_t)got);
            if (archive_write_data(export->archive, export->chunk, (size_t)got) != got)
                return bad_write(export, entry->path);
            done += (uint64_t)got;
            if (entry->path_length)
                fault_point(FAULT_export_half);
        }
    content_end(&content, digest);
    return 0;
}

static int write_file(struct export *export, struct archive_entry *to,
    const struct files_entry *entry, int fd, uint8_t digest[DIGEST_BYTES]) {
    auto_free struct segment *segments = NULL;
    auto_buf struct buf sparse = BUF_INIT;
    uint64_t data = 0, size = (uint64_t)entry->st.st_size;
    size_t n = 0;
    int r = segments_of(fd, size, &segments, &n);

    if (r < 0)
        return bad_read(export, r, entry->path);
    for (size_t i = 0; i < n; i++)
        data += segments[i].length;
    bool dense = data == size || n > MAX_SPARSE_SEGMENTS;
    if (dense && size > 2 * data + (1ull << 30))
        return error_set(export->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "export",
            "%s has too many holes to be exported; copy it densely inside the sandbox or remove it",
            files_printable(entry->path));
    if (!dense) {
        buf_printf(&sparse, "%" PRIu64, size);
        for (size_t i = 0; i < n; i++)
            buf_printf(&sparse, ";%" PRIu64 ",%" PRIu64, segments[i].offset, segments[i].length);
        if (buf_failed(&sparse))
            return bad_read(export, -ENOMEM, entry->path);
        archive_entry_xattr_add_entry(to, XATTR_SPARSE, sparse.data, sparse.length);
    }
    archive_entry_set_size(to, (la_int64_t)(dense ? size : data));
    if (archive_write_header(export->archive, to) < ARCHIVE_WARN)
        return bad_write(export, entry->path);
    return write_content(export, fd, entry, segments, n, dense, digest);
}

/* A layer's directory contains more than the places' parts: the overlays' work files. */
static bool is_part(const void *context, const char *name) {
    const struct job *job = context;

    for (size_t i = 0; i < job->n_places; i++)
        if (strcmp(job->places[i].part, name) == 0)
            return true;
    return false;
}

/* The owner of a change in a sandbox of one user: that user, unless an ordinary user's store has
 * recorded an owner of the image's file. */
static void own_change(
    const struct export *export, int fd, const struct files_entry *entry, struct owner *ret_owner) {
    const bool is_top = !strchr(entry->path, '/'); /* the layer, or the root of the sandbox */
    char text[64];

    files_image_owner(fd, &entry->st, ret_owner);
    if (fd < 0 || fgetxattr(fd, XATTR_OWNER, text, sizeof text) < 0)
        ret_owner->uid = ret_owner->gid = is_top ? 0 : export->job->owner;
}

static int export_visit(
    void *context, const struct files_entry *entry, struct rollbox_error *error) {
    struct export *export = context;
    auto_buf struct buf name = BUF_INIT;
    auto_free char *target = NULL;
    auto_close int fd = -EBADF;
    uint8_t digest[DIGEST_BYTES];
    bool regular = S_ISREG(entry->st.st_mode), found = false;
    struct inode *inode = NULL;
    struct owner owner;
    int r = 0;

    (void)error;
    if (files_is_left_out(&entry->st))
        return 0;
    const bool is_root = export->layer < export->job->n_root;
    if (!is_root && entry->path_length && !strchr(entry->path, '/') &&
        !is_part(export->job, entry->name))
        return FILES_SKIP;
    struct archive_entry *to = archive_entry_new();
    buf_printf(&name, "%zu/%s", export->layer, entry->path);
    if (!to || buf_failed(&name)) {
        archive_entry_free(to);
        return bad_read(export, -ENOMEM, entry->path);
    }
    if (regular) {
        fd = files_open(entry->parent, entry->name, 0);
        r = fd < 0 ? fd : 0;
    } else if (S_ISLNK(entry->st.st_mode)) {
        target = files_link(entry->parent, entry->name, &entry->st);
        r = target ? 0 : -errno;
    }
    if (r == 0 && regular && entry->st.st_nlink > 1)
        r = inodes_note(&export->inodes, &entry->st, name.data, &inode, &found);
    int attributes = regular ? fd : entry->fd;
    archive_entry_copy_stat(to, &entry->st);
    archive_entry_copy_pathname(to, name.data);
    archive_entry_set_size(to, 0);
    archive_entry_set_uname(to, NULL);
    const bool exact = export->job->many || export->job->image;
    if (export->job->many)
        files_owner(attributes, &entry->st, &owner);
    else if (export->job->image && !is_root)
        own_change(export, attributes, entry, &owner);
    else
        files_image_owner(attributes, &entry->st, &owner);
    archive_entry_set_uid(to, inner_id(export, owner.uid));
    archive_entry_set_gid(to, inner_id(export, owner.gid));
    archive_entry_set_perm(to, (__LA_MODE_T)owner.mode);
    if (target)
        archive_entry_copy_symlink(to, target);
    if (r == 0 && attributes >= 0 && !found)
        r = files_xattrs(attributes, exact ? add_other_attribute : add_attribute, to);
    if (r == 0 && regular && !found)
        add_capability(export, fd, to);
    if (r < 0) {
        r = bad_read(export, r, entry->path);
    } else if (found) {
        archive_entry_copy_hardlink(to, inode->path);
        memcpy(digest, inode->content, sizeof digest);
        r = archive_write_header(export->archive, to) < ARCHIVE_WARN
                ? bad_write(export, entry->path)
                : 0;
    } else if (regular) {
        r = write_file(export, to, entry, fd, digest);
        if (r == 0 && inode)
            memcpy(inode->content, digest, sizeof digest);
    } else {
        r = archive_write_header(export->archive, to) < ARCHIVE_WARN
                ? bad_write(export, entry->path)
                : 0;
    }
    archive_entry_free(to);
    if (r == 0) {
        r = tree_digest_entry(
            &export->digest, entry, attributes, regular ? digest : NULL, target, exact);
        if (r < 0)
            r = bad_read(export, r, entry->path);
    }
    export->files += entry->path_length > 0;
    return r;
}

static int layer_at(const struct job *job, size_t i) {
    return i < job->n_lower ? job->lower[i] : job->upper[i - job->n_lower];
}

static int write_manifest(struct export *export, const json_t *manifest) {
    auto_free char *text = json_dumps(manifest, JSON_COMPACT);
    struct archive_entry *to = text ? archive_entry_new() : NULL;
    int r = 0;

    if (!to)
        return bad_read(export, -ENOMEM, "manifest.json");
    archive_entry_copy_pathname(to, "manifest.json");
    archive_entry_set_filetype(to, AE_IFREG);
    archive_entry_set_perm(to, 0644);
    archive_entry_set_size(to, (la_int64_t)strlen(text));
    if (archive_write_header(export->archive, to) < ARCHIVE_WARN ||
        archive_write_data(export->archive, text, strlen(text)) != (la_ssize_t)strlen(text))
        r = bad_write(export, "manifest.json");
    archive_entry_free(to);
    return r;
}

static json_t *manifest_of(const struct job *job, struct tree_digest *digests, size_t n) {
    json_t *layers = json_array(), *places = json_array();

    for (size_t i = 0; i < n; i++) {
        json_t *row = json_pack("{s:s, s:I, s:I}", "tree", digests[i].hex, "bytes",
            (json_int_t)digests[i].bytes, "files", (json_int_t)digests[i].files);

        if (i < job->n_root)
            json_object_set_new(row, "root", json_true());
        json_array_append_new(layers, row);
    }
    for (size_t i = 0; i < job->n_places; i++)
        json_array_append_new(places,
            json_pack("{s:s, s:s, s:s}", "part", job->places[i].part, "path", job->places[i].path,
                "kind", job->places[i].is_file ? "file" : "directory"));
    json_t *manifest = json_pack("{s:s, s:i, s:I, s:o, s:o}", "format", "rollbox-snapshot",
        "version", 1, "created", (json_int_t)time(NULL), "places", places, "layers", layers);
    if (job->many)
        json_object_set_new(manifest, "users", json_string("many"));
    if (job->image)
        json_object_set(manifest, "image", job->image);
    return manifest;
}

static int write_layers(
    struct export *export, const struct job *job, const struct tree_digest *digests, size_t n) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        char hex[DIGEST_HEX + 1];

        export->layer = i;
        tree_digest_begin(&export->digest);
        export->id_base = job->stored_ids;
        if (job->many && i >= job->n_stored)
            r = files_many_ids(layer_at(job, i), &export->id_base);
        if (r < 0)
            return bad_read(export, r, "the layer");
        r = files_walk(layer_at(job, i), export_visit, export, export->error);
        inodes_done(&export->inodes);
        digest_end_hex(&export->digest, hex);
        if (r == 0 && strcmp(hex, digests[i].hex) != 0)
            r = error_set(export->error, ROLLBOX_ERR_CONFLICT, EAGAIN, "export",
                "layer %zu was changed while it was being exported; try again", i);
    }
    return r;
}

/* A pipe's reader unpacks at once, or compresses as it likes. */
static bool is_pipe(int fd) {
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

static int write_archive(
    const struct job *job, int fd, uint64_t *ret_files, struct rollbox_error *error) {
    size_t n = job->n_lower + job->n_upper;
    struct export export = {
        .job = job, .archive = archive_write_new(), .error = error, .chunk = malloc(CHUNK)
    };
    auto_free struct tree_digest *digests = calloc(n + 1, sizeof *digests);
    json_t *manifest = NULL;
    int r =
        export.archive && export.chunk && digests
            ? 0
            : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");

    /* Outside of the namespace of these ids, all owners look the same. */
    if (r == 0 && job->many && geteuid() != 0)
        r = error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "export",
            "the owners of a sandbox of many users cannot be kept for an ordinary user yet: build "
            "images as root");

    for (size_t i = 0; r == 0 && i < n; i++)
        r = tree_digest_some(layer_at(job, i), i < job->n_root ? NULL : is_part, job,
            job->many || job->image, &digests[i], error);
    if (r == 0 && !(manifest = manifest_of(job, digests, n)))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");
    if (r == 0) {
        archive_write_set_format_pax(export.archive);
        archive_write_set_options(export.archive, "hdrcharset=BINARY");
        /* Without zeros after the compressed data, which a pipe's reader would stumble over. */
        archive_write_set_bytes_in_last_block(export.archive, 1);
        if (!is_pipe(fd) && archive_write_add_filter_zstd(export.archive) != ARCHIVE_OK)
            archive_write_add_filter_gzip(export.archive);
        r = archive_write_open_fd(export.archive, fd) == ARCHIVE_OK
                ? 0
                : bad_write(&export, "the file");
    }
    if (r == 0)
        r = write_manifest(&export, manifest);
    if (r == 0)
        r = write_layers(&export, job, digests, n);
    if (r == 0 && archive_write_close(export.archive) != ARCHIVE_OK)
        r = bad_write(&export, "the end");
    if (r < 0 && export.archive)
        archive_write_fail(export.archive);
    if (export.archive)
        archive_write_free(export.archive);
    free(export.chunk);
    json_decref(manifest);
    *ret_files = export.files;
    return r;
}

/* The sender of the descriptor completes or removes this file. */
static int export_to_descriptor(
    const struct job *job, const char *path, json_t **ret_json, struct rollbox_error *error) {
    uint64_t files = 0;
    struct stat st;

    /* Of a pipe the writing end alone: with a reading end too, a reader that leaves would not be
     * noticed. That is an error (EPIPE), and not the end of this process without a word. */
    (void)signal(SIGPIPE, SIG_IGN);
    bool is_file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    auto_close int fd = open(path, (is_file ? O_RDWR : O_WRONLY) | O_CLOEXEC);
    if (fd < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "export", "cannot write %s: %s",
            files_printable(path), strerror(errno));
    int r = write_archive(job, fd, &files, error);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "export", "cannot examine %s: %s",
            files_printable(path), strerror(errno));
    *ret_json = json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)st.st_size, "layers",
        (json_int_t)(job->n_lower + job->n_upper), "files", (json_int_t)files);
    return *ret_json ? 0
                     : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export",
                           "out of memory");
}

int snapshot_export(
    const struct job *job, const char *path, json_t **ret_json, struct rollbox_error *error) {
    auto_free char *copy = strdup(path);
    char *slash = copy ? strrchr(copy, '/') : NULL;
    const char *leaf = slash ? slash + 1 : path;
    char temporary[40] = ".rollbox-export-";
    uint64_t files = 0;
    struct stat st;

    if (!copy)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");
    if (!leaf[0])
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EISDIR, "export",
            "%s is not a file name", files_printable(path));
    if (strncmp(path, DESCRIPTOR, strlen(DESCRIPTOR)) == 0)
        return export_to_descriptor(job, path, ret_json, error);
    if (slash)
        *slash = '\0';
    auto_close int parent = open(!slash    ? "."
                                 : copy[0] ? copy
                                           : "/",
        O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    layer_random(temporary + strlen(temporary), 12);
    auto_close int fd = parent < 0 ? -EBADF
                                   : openat(parent, temporary,
                                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(error,
            errno == ENOENT   ? ROLLBOX_ERR_NOT_FOUND
            : errno == EACCES ? ROLLBOX_ERR_PATH_DENIED
                              : error_code_of(errno, ROLLBOX_ERR_IO),
            errno, "export", "cannot write %s: %s", files_printable(path), strerror(errno));
    int r = write_archive(job, fd, &files, error);
    if (r == 0 && (fsync(fd) < 0 || fstat(fd, &st) < 0))
        r = error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "export",
            "cannot write %s: %s", files_printable(path), strerror(errno));
    if (r == 0)
        fault_point(FAULT_export_written);
    if (r == 0 && renameat(parent, temporary, parent, leaf) < 0)
        r = error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "export",
            "cannot write %s: %s", files_printable(path), strerror(errno));
    if (r < 0) {
        (void)unlinkat(parent, temporary, 0);
        return r;
    }
    (void)fsync(parent);
    *ret_json = json_pack("{s:s, s:I, s:I, s:I}", "path", path, "bytes", (json_int_t)st.st_size,
        "layers", (json_int_t)(job->n_lower + job->n_upper), "files", (json_int_t)files);
    return *ret_json ? 0
                     : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export",
                           "out of memory");
}

/* ---- import ---- */

struct importing {
    const struct unpack_limits *limits;
    int archive, work;
};

/* In the child: {"manifest", "landlock"}. */
static int read_in_child(void *context, json_t **ret_report, struct rollbox_error *error) {
    const struct importing *importing = context;
    const struct confine confine = { &importing->archive, 1, importing->work };
    struct unpack_totals totals = { 0 };
    json_t *manifest = NULL;
    bool landlock;
    int r = confine_enter(&confine, &landlock, error);

    if (r == 0)
        r = unpack_snapshot(importing->archive, importing->work, importing->limits, &totals, false,
            &manifest, error);
    if (r < 0)
        return r;
    *ret_report = json_pack("{s:o, s:b}", "manifest", manifest, "landlock", landlock);
    return *ret_report ? 0
                       : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import",
                             "out of memory");
}

static int add_owner(void *context, const struct files_entry *entry, struct rollbox_error *error) {
    const bool is_file = S_ISREG(entry->st.st_mode);
    auto_close int file = is_file ? files_open(entry->parent, entry->name, 0) : -EBADF;
    const int fd = is_file ? file : entry->fd;
    char value[CAPABILITY_IN_NAMESPACE_BYTES];
    struct digest *digest = context;
    struct owner owner;

    if (is_file && file < 0)
        return error_set(error, ROLLBOX_ERR_IO, -file, "import", "cannot open %s: %s",
            files_printable(entry->path), strerror(-file));
    files_owner(fd, &entry->st, &owner);
    digest_add_sized(digest, entry->path, entry->path_length);
    digest_add_u64(digest, owner.uid);
    digest_add_u64(digest, owner.gid);
    digest_add_u64(digest, owner.mode);
    ssize_t n = is_file ? fgetxattr(fd, XATTR_CAPABILITY, value, sizeof value) : 0;
    if (is_file && n <= 0)
        n = fgetxattr(fd, XATTR_KEPT_CAPABILITY, value, sizeof value);
    digest_add_sized(digest, value, n > 0 ? (size_t)n : 0);
    return 0;
}

static int wrong_tree(
    size_t i, const char *found, const char *wanted, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "import",
        "layer %zu of the snapshot has the digest %.16s..., not %.16s...: the file is damaged; it "
        "is refused",
        i, found, wanted ? wanted : "?");
}

/* The id of a layer of many users: a tree's digest leaves out the owners, so it would be the id of
 * a layer with other owners, too. */
static int digest_owners(
    int root, const char *tree, char ret_id[LAYER_ID_LENGTH + 1], struct rollbox_error *error) {
    struct digest digest;

    digest_init(&digest);
    digest_add_sized(&digest, "rollbox snapshot layer with owners 1", 36);
    digest_add_sized(&digest, tree, strlen(tree));
    int r = files_walk(root, add_owner, &digest, error);
    digest_end_hex(&digest, ret_id);
    return r;
}

/* Compares the trees of a sandbox's image and changes with the manifest, before they become layers
 * of an image. */
static int check_trees(const struct work *work, const json_t *rows, struct rollbox_error *error) {
    const json_t *row;
    size_t i;

    json_array_foreach(rows, i, row) {
        const char *wanted = json_string_value(json_object_get(row, "tree"));
        struct tree_digest found;
        char path[40];

        snprintf(path, sizeof path, "L%zu/fs", i);
        auto_close int root =
            openat(work->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (root < 0)
            return error_set(error, ROLLBOX_ERR_IO, errno, "import",
                "cannot open an unpacked layer: %s", strerror(errno));
        int r = tree_digest_some(root, NULL, NULL, true, &found, error);
        if (r < 0)
            return r;
        if (!wanted || strcmp(wanted, found.hex) != 0)
            return wrong_tree(i, found.hex, wanted, error);
    }
    return 0;
}

/* Publishes an unpacked layer, if its tree matches the manifest. */
static int take_layer(const struct work *work, size_t i, const json_t *row, bool many,
    char **ret_id, int *ret_lock, struct layer_meta *ret_meta, bool *ret_new,
    struct rollbox_error *error) {
    struct layer_meta meta = { .kind = "snapshot", .created_s = time(NULL) };
    struct tree_digest exported;
    const char *wanted = json_string_value(json_object_get(row, "tree"));
    char directory[24], path[32];

    snprintf(directory, sizeof directory, "L%zu", i);
    snprintf(path, sizeof path, "%s/fs", directory);
    auto_close int root = openat(work->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "import",
            "cannot open an unpacked layer: %s", strerror(errno));
    int r = tree_digest(root, &meta.tree, error);
    if (r < 0)
        return r;
    exported = meta.tree;
    if (many && (r = tree_digest_some(root, NULL, NULL, true, &exported, error)) < 0)
        return r;
    if (!wanted || strcmp(wanted, exported.hex) != 0)
        return wrong_tree(i, exported.hex, wanted, error);
    /* The id is the tree's digest, so a layer that two snapshots share is stored once. */
    snprintf(meta.id, sizeof meta.id, "%s", meta.tree.hex);
    if (many && (r = digest_owners(root, meta.tree.hex, meta.id, error)) < 0)
        return r;
    *ret_id = strdup(meta.id);
    if (!*ret_id)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    *ret_meta = meta;
    struct layer_meta there;
    auto_free char *damage = store_layer_damage(work->store, meta.id);
    *ret_new = damage || layer_meta_read(work->store, meta.id, &there) < 0;
    return layer_publish(work, directory, &meta, ret_lock, error);
}

/* Of a sandbox with an image. A file of an older version has the changes without the image. */
static bool has_root(const json_t *places) {
    const json_t *place;
    size_t i;

    json_array_foreach(places, i, place) {
        const char *path = json_string_value(json_object_get(place, "path"));

        if (path && strcmp(path, "/") == 0)
            return true;
    }
    return false;
}

static int refuse_root(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
        "the snapshot has the changes of a sandbox with an image, without that image: export the "
        "sandbox again, to a file");
}

static int publish_snapshot(const struct work *work, const char *name, const json_t *report,
    json_t **ret_json, struct rollbox_error *error) {
    const json_t *from = json_object_get(report, "manifest"),
                 *rows = json_object_get(from, "layers");
    size_t n = json_array_size(rows), n_locks = 0, n_new = 0;
    struct manifest manifest = { .kind = MANIFEST_SNAPSHOT,
        .name = strdup(name),
        .created_s = time(NULL),
        .places = json_incref(json_object_get(from, "places")) };
    auto_free int *locks = calloc(n + 1, sizeof *locks);
    uint64_t bytes = 0, files = 0;
    int r = has_root(manifest.places) ? refuse_root(error) : 0;
    const bool many = snapshot_has_many_users(from);

    manifest.layers = calloc(n + 1, sizeof *manifest.layers);
    if (r == 0 && (!manifest.name || !manifest.layers || !locks))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct layer_meta meta = { 0 };
        bool is_new = false;

        locks[i] = -EBADF;
        n_locks = i + 1;
        r = take_layer(work, i, json_array_get(rows, i), many, &manifest.layers[i], &locks[i],
            &meta, &is_new, error);
        manifest.n_layers = i + (manifest.layers[i] != NULL);
        n_new += is_new;
        bytes += meta.tree.bytes;
        files += meta.tree.files;
    }
    /* Twice the same: see image.c. */
    for (size_t i = 0; r == 0 && i < manifest.n_layers; i++)
        for (size_t j = i + 1; j < manifest.n_layers; j++)
            if (strcmp(manifest.layers[i], manifest.layers[j]) == 0) {
                free(manifest.layers[i]);
                memmove(manifest.layers + i, manifest.layers + i + 1,
                    (manifest.n_layers - i) * sizeof *manifest.layers);
                manifest.n_layers--;
                i--;
                break;
            }
    if (r == 0) {
        fault_point(FAULT_snapshot_checked);
        r = layer_publish_manifest(work, &manifest, error);
    }
    if (r == 0) {
        *ret_json = json_pack("{s:s, s:I, s:I, s:I, s:I, s:{s:b, s:b}}", "name", name, "layers",
            (json_int_t)manifest.n_layers, "new_layers", (json_int_t)n_new, "bytes",
            (json_int_t)bytes, "files", (json_int_t)files, "isolation", "landlock",
            json_is_true(json_object_get(report, "landlock")), "seccomp", 1);
        if (!*ret_json)
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    }
    for (size_t i = 0; i < n_locks; i++)
        close_fd(&locks[i]);
    manifest_done(&manifest);
    return r;
}

/* An export of a sandbox with an image becomes an image. */
static int publish_image(const struct work *work, const char *name, const json_t *report,
    json_t **ret_json, struct rollbox_error *error) {
    const json_t *from = json_object_get(report, "manifest");
    int r = check_trees(work, json_object_get(from, "layers"), error);

    if (r < 0)
        return r;
    fault_point(FAULT_snapshot_checked);
    r = add_exported_image(work, from, name, ret_json, error);
    if (r == 0)
        json_object_set_new(*ret_json, "isolation",
            json_pack("{s:b, s:b}", "landlock", json_is_true(json_object_get(report, "landlock")),
                "seccomp", 1));
    return r;
}

int snapshot_import(int store, const char *path, const char *name,
    const struct unpack_limits *limits, json_t **ret_json, struct rollbox_error *error) {
    struct importing importing = { .limits = limits };
    struct work work = WORK_NONE;
    struct parser_process worker = WORKER_NONE;
    json_t *report = NULL;
    struct stat st;

    if (!manifest_name_ok(name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not a snapshot name: use letters, digits and . _ : @ / + -, and begin with "
            "a letter or digit",
            name);
    auto_close int archive = files_open_archive(path, &st, error);
    if (archive < 0)
        return archive;
    if (!S_ISREG(st.st_mode))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "%s is not a regular file", files_printable(path));
    int r = work_begin(store, &work, error);
    if (r < 0)
        return r;
    importing.archive = archive;
    importing.work = work.fd;
    r = parser_process_start(read_in_child, &importing, &worker, &report, error);
    if (r == 0 && json_object_get(json_object_get(report, "manifest"), "image"))
        r = publish_image(&work, name, report, ret_json, error);
    else if (r == 0)
        r = publish_snapshot(&work, name, report, ret_json, error);
    parser_process_end(&worker);
    json_decref(report);
    work_done(&work);
    return r;
}
