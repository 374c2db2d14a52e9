/* SPDX-License-Identifier: Apache-2.0 */
#include "store/oci_layer.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/files.h"

#define CHUNK (256u << 10)
#define HOLES_FROM (1ull << 30)

static const struct compression {
    const char *name, *media_type;
} compressions[] = {
    [OCI_GZIP] = { "gzip", "application/vnd.oci.image.layer.v1.tar+gzip" },
    [OCI_ZSTD] = { "zstd", "application/vnd.oci.image.layer.v1.tar+zstd" },
    [OCI_UNCOMPRESSED] = { "none", "application/vnd.oci.image.layer.v1.tar" },
};

const char *oci_layer_media_type(enum oci_compression compression) {
    return compressions[compression].media_type;
}

int oci_compression_parse(
    const char *text, enum oci_compression *ret_compression, struct rollbox_error *error) {
    for (size_t i = 0; i < ARRAY_SIZE(compressions); i++)
        if (!text || strcmp(text, compressions[i].name) == 0) {
            *ret_compression = (enum oci_compression)i;
            return 0;
        }
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "--compression %s: must be gzip, zstd or none", files_printable(text));
}

struct writer {
    struct archive *tar, *packer; /* tar -> packer -> file */
    int to;
    struct digest diff_id, digest;
    uint64_t bytes;
    int write_error; /* errno of the file; the archives in between know none */
    const char *prefix;
    struct inodes inodes;
    char *chunk;
    struct rollbox_error *error;
};

static int bad_write(struct writer *writer, struct archive *archive) {
    const int number = writer->write_error ? writer->write_error : EIO;
    const char *text = archive_error_string(archive);

    return error_set(writer->error, error_code_of(number, ROLLBOX_ERR_IO), number, "export",
        "cannot write a layer: %s",
        writer->write_error ? strerror(number)
        : text              ? files_printable(text)
                            : "unknown");
}

static int bad_read(struct writer *writer, int r, const char *path) {
    return error_set(writer->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "export",
        "cannot read %s of the layer: %s", files_printable(path), strerror(-r));
}

static la_ssize_t write_file(
    struct archive *archive, void *context, const void *data, size_t length) {
    struct writer *writer = context;
    int r = fd_write_all(writer->to, data, length);

    if (r < 0) {
        writer->write_error = -r;
        archive_set_error(archive, -r, "%s", strerror(-r));
        return -1;
    }
    digest_add(&writer->digest, data, length);
    writer->bytes += length;
    return (la_ssize_t)length;
}

static la_ssize_t write_packed(
    struct archive *archive, void *context, const void *data, size_t length) {
    struct writer *writer = context;

    digest_add(&writer->diff_id, data, length);
    if (archive_write_data(writer->packer, data, length) != (la_ssize_t)length) {
        archive_set_error(archive, EIO, "the layer cannot be compressed");
        return -1;
    }
    return (la_ssize_t)length;
}

static int open_archives(struct writer *writer, enum oci_compression compression) {
    struct archive_entry *entry = archive_entry_new();

    writer->packer = archive_write_new();
    writer->tar = archive_write_new();
    writer->chunk = malloc(CHUNK);
    if (!entry || !writer->packer || !writer->tar || !writer->chunk) {
        archive_entry_free(entry);
        return bad_read(writer, -ENOMEM, "the beginning");
    }
    archive_write_set_format_raw(writer->packer);
    if (compression == OCI_GZIP)
        archive_write_add_filter_gzip(writer->packer);
    if (compression == OCI_ZSTD)
        archive_write_add_filter_zstd(writer->packer);
    if (compression == OCI_GZIP) /* the time would make equal layers different */
        archive_write_set_options(writer->packer, "gzip:!timestamp,gzip:compression-level=6");
    archive_write_set_bytes_in_last_block(writer->packer, 1);
    archive_entry_set_filetype(entry, AE_IFREG);
    int r = archive_write_open(writer->packer, writer, NULL, write_file, NULL) == ARCHIVE_OK &&
                    archive_write_header(writer->packer, entry) == ARCHIVE_OK
                ? 0
                : bad_write(writer, writer->packer);
    archive_entry_free(entry);
    archive_write_set_format_pax_restricted(writer->tar);
    archive_write_set_options(writer->tar, "hdrcharset=BINARY");
    archive_write_set_bytes_in_last_block(writer->tar, 1);
    if (r == 0 && archive_write_open(writer->tar, writer, NULL, write_packed, NULL) != ARCHIVE_OK)
        r = bad_write(writer, writer->tar);
    return r;
}

/* ---- entries ---- */

static int write_header(struct writer *writer, struct archive_entry *entry) {
    return archive_write_header(writer->tar, entry) < ARCHIVE_WARN ? bad_write(writer, writer->tar)
                                                                   : 0;
}

/* PREFIX/PATH; "./" for the root of the image. */
static int name_entry(const struct writer *writer, const char *path, struct buf *to) {
    buf_add_text(to, writer->prefix);
    if (writer->prefix[0] && path[0])
        buf_add_text(to, "/");
    buf_add_text(to, path);
    if (!to->length)
        buf_add_text(to, "./");
    return buf_failed(to) ? -ENOMEM : 0;
}

/* An empty file with a name that means a deletion. */
static int write_mark(
    struct writer *writer, const char *directory, const char *leaf, const char *name) {
    struct archive_entry *entry = archive_entry_new();
    auto_buf struct buf path = BUF_INIT;

    buf_printf(&path, "%s%s%s%s", directory, directory[0] ? "/" : "", leaf, name);
    if (!entry || buf_failed(&path)) {
        archive_entry_free(entry);
        return bad_read(writer, -ENOMEM, name);
    }
    archive_entry_copy_pathname(entry, path.data);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, 0);
    archive_entry_set_mtime(entry, 0, 0);
    int r = write_header(writer, entry);
    archive_entry_free(entry);
    return r;
}

static int add_attribute(void *context, const char *name, const void *value, size_t length) {
    if (strcmp(name, XATTR_OPAQUE) != 0 && strcmp(name, XATTR_KEPT_CAPABILITY) != 0)
        archive_entry_xattr_add_entry(context, name, value, length);
    return 0;
}

static int add_attributes(struct archive_entry *entry, int fd, bool regular) {
    char value[CAPABILITY_OF_HOST_BYTES + 1];
    int r = files_xattrs(fd, add_attribute, entry);
    ssize_t n = regular ? fgetxattr(fd, XATTR_CAPABILITY, value, sizeof value) : -1;

    if (regular && n < 0) /* an ordinary user's store records it */
        n = fgetxattr(fd, XATTR_KEPT_CAPABILITY, value, sizeof value);
    if (n == CAPABILITY_OF_HOST_BYTES)
        archive_entry_xattr_add_entry(entry, XATTR_CAPABILITY, value, (size_t)n);
    return r;
}

static int write_content(struct writer *writer, int fd, const struct files_entry *entry) {
    uint64_t left = (uint64_t)entry->st.st_size, offset = 0;

    while (left) {
        ssize_t n = pread(fd, writer->chunk, (size_t)MIN(left, (uint64_t)CHUNK), (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return bad_read(writer, n < 0 ? -errno : -EAGAIN, entry->path);
        if (archive_write_data(writer->tar, writer->chunk, (size_t)n) != n)
            return bad_write(writer, writer->tar);
        left -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* A layer has no place for holes: a file of terabytes without data must not become one with. */
static int check_holes(struct writer *writer, const struct files_entry *entry) {
    const uint64_t size = (uint64_t)entry->st.st_size, data = (uint64_t)entry->st.st_blocks * 512;

    return size <= 4 * data + HOLES_FROM
               ? 0
               : error_set(writer->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "export",
                     "%s has too many holes to be exported; remove it, or copy it densely inside "
                     "the sandbox",
                     files_printable(entry->path));
}

static int describe_entry(
    struct writer *writer, const struct files_entry *entry, int fd, struct archive_entry *to) {
    auto_free char *target = NULL;
    struct owner owner;
    int r = 0;

    archive_entry_copy_stat(to, &entry->st);
    archive_entry_unset_atime(to);
    archive_entry_unset_ctime(to);
    archive_entry_unset_birthtime(to);
    archive_entry_set_size(to, S_ISREG(entry->st.st_mode) ? entry->st.st_size : 0);
    files_image_owner(fd, &entry->st, &owner);
    archive_entry_set_uid(to, owner.uid);
    archive_entry_set_gid(to, owner.gid);
    archive_entry_set_perm(to, (__LA_MODE_T)owner.mode);
    if (S_ISLNK(entry->st.st_mode)) {
        target = files_link(entry->parent, entry->name, &entry->st);
        if (!target)
            return bad_read(writer, -errno, entry->path);
        archive_entry_copy_symlink(to, target);
    }
    if (fd >= 0)
        r = add_attributes(to, fd, S_ISREG(entry->st.st_mode));
    return r < 0 ? bad_read(writer, r, entry->path) : 0;
}

static int write_entry(struct writer *writer, const struct files_entry *entry, const char *name,
    struct archive_entry *to) {
    const bool regular = S_ISREG(entry->st.st_mode);
    struct inode *inode = NULL;
    bool found = false;
    int r = 0;

    auto_close int file = regular ? files_open(entry->parent, entry->name, 0) : -EBADF;
    if (regular && file < 0)
        return bad_read(writer, file, entry->path);
    if (entry->st.st_nlink > 1 && !S_ISDIR(entry->st.st_mode))
        r = inodes_note(&writer->inodes, &entry->st, name, &inode, &found);
    if (r < 0)
        return bad_read(writer, r, entry->path);
    archive_entry_copy_pathname(to, name);
    if (found) {
        /* Docker and podman give the owner and mode of a link's entry to the file. */
        if ((r = describe_entry(writer, entry, regular ? file : entry->fd, to)) < 0)
            return r;
        archive_entry_copy_symlink(to, NULL);
        archive_entry_set_filetype(to, regular ? AE_IFREG : AE_IFLNK);
        archive_entry_set_size(to, 0);
        archive_entry_copy_hardlink(to, inode->path);
        return write_header(writer, to);
    }
    r = regular ? check_holes(writer, entry) : 0;
    if (r == 0)
        r = describe_entry(writer, entry, regular ? file : entry->fd, to);
    if (r == 0)
        r = write_header(writer, to);
    return r == 0 && regular ? write_content(writer, file, entry) : r;
}

static int visit(void *context, const struct files_entry *entry, struct rollbox_error *error) {
    struct writer *writer = context;
    auto_buf struct buf name = BUF_INIT;

    (void)error;
    if (files_is_left_out(&entry->st))
        return 0;
    if (name_entry(writer, entry->path, &name) < 0)
        return bad_read(writer, -ENOMEM, entry->path);
    /* A guest may have made a file whose name would mean a deletion. */
    if (strncmp(entry->name, ".wh.", 4) == 0 && entry->path_length)
        return error_set(writer->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "export",
            "%s cannot be a file of an OCI image, in which its name means a deletion; rename it",
            files_printable(entry->path));
    if (files_is_whiteout(&entry->st)) {
        char *slash = strrchr(name.data, '/');

        if (slash)
            *slash = '\0';
        return write_mark(writer, slash ? name.data : "", ".wh.", entry->name);
    }
    struct archive_entry *to = archive_entry_new();
    int r = to ? write_entry(writer, entry, name.data, to) : bad_read(writer, -ENOMEM, entry->path);
    archive_entry_free(to);
    if (r == 0 && S_ISDIR(entry->st.st_mode) && files_is_opaque(entry->fd))
        r = write_mark(writer, strcmp(name.data, "./") == 0 ? "" : name.data, ".wh.", ".wh..opq");
    return r;
}

int oci_layer_write(const struct oci_tree *trees, size_t n, enum oci_compression compression,
    int to, struct oci_layer *ret_layer, struct rollbox_error *error) {
    struct writer writer = { .to = to, .error = error, .prefix = "" };

    digest_init(&writer.diff_id);
    digest_init(&writer.digest);
    int r = open_archives(&writer, compression);
    for (size_t i = 0; r == 0 && i < n; i++) {
        writer.prefix = trees[i].path;
        r = files_walk(trees[i].root, visit, &writer, error);
    }
    if (r == 0 && archive_write_close(writer.tar) != ARCHIVE_OK)
        r = bad_write(&writer, writer.tar);
    if (r == 0 && archive_write_close(writer.packer) != ARCHIVE_OK)
        r = bad_write(&writer, writer.packer);
    if (r < 0 && writer.tar)
        archive_write_fail(writer.tar);
    if (r < 0 && writer.packer)
        archive_write_fail(writer.packer);
    if (writer.tar)
        archive_write_free(writer.tar);
    if (writer.packer)
        archive_write_free(writer.packer);
    inodes_done(&writer.inodes);
    free(writer.chunk);
    if (r == 0) {
        digest_end_hex(&writer.diff_id, ret_layer->diff_id);
        digest_end_hex(&writer.digest, ret_layer->digest);
        ret_layer->bytes = writer.bytes;
    }
    return r;
}
