/* SPDX-License-Identifier: Apache-2.0 */
#include "store/unpack.h"

#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/remove_tree.h"
#include "base/text.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/manifest.h"

#define WHITEOUT ".wh."
#define OPAQUE ".wh..wh..opq"
#define RATIO_FROM (256ull << 20)

/* A directory whose attributes are set at the end. */
struct pending {
    char *path;
    struct owner owner;
    struct timespec mtime;
    uint64_t number; /* the later entry of one name counts */
    bool implied;    /* it has no entry of its own */
};

struct texts {
    char **list;
    size_t n, capacity;
};

struct unpack {
    struct image_source *source;
    const char *member;
    int root;
    const struct stack *below;
    const struct unpack_limits *limits;
    struct unpack_totals *totals;
    struct rollbox_error *error;
    /* Reading: member -> filters -> tar. */
    struct stream stream;
    struct archive *filtered, *tar;
    struct digest digest;
    uint64_t unpacked;
    int read_error; /* negative errno; the archives in between know no errno */
    bool too_much, ended;
    size_t layer; /* of a snapshot file */
    bool exact;   /* a snapshot file: whiteouts, opaque directories and holes as in the layer */
    bool keeps_rights; /* set-id bits and capabilities of programs: of images */
    /* Writing. */
    char *parent_path; /* of parent_fd; NULL: not open */
    int parent_fd;
    struct pending *pending;
    size_t n_pending, pending_capacity;
    struct texts whiteouts, opaques;
    uint64_t entries;
    bool depends;
};

static int refuse_entry(
    struct unpack *unpack, int error_number, const char *path, const char *why) {
    return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, error_number, "import",
        "%s: entry %s %s; the image is refused", unpack->member, files_printable(path), why);
}

static int fail_unpack(struct unpack *unpack, int r, const char *path) {
    if (r == -ENAMETOOLONG)
        return refuse_entry(unpack, ENAMETOOLONG, path, "has a name that is too long");
    return error_set(unpack->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "import",
        "cannot unpack %s: %s%s", path[0] ? files_printable(path) : "the layer", strerror(-r),
        r == -ENOSPC || r == -EDQUOT ? "; make room on the store's file system" : "");
}

/* ---- reading ---- */

static la_ssize_t read_member(struct archive *archive, void *context, const void **ret_data) {
    struct unpack *unpack = context;
    ssize_t n = stream_read(&unpack->stream, ret_data);

    if (n < 0) {
        unpack->read_error = (int)n;
        archive_set_error(archive, (int)-n, "the archive is truncated or cannot be read");
    }
    return n < 0 ? -1 : n;
}

/* The next part of the tar; NULL data at its end. */
static la_ssize_t read_filtered(struct archive *archive, void *context, const void **ret_data) {
    struct unpack *unpack = context;
    la_int64_t offset;
    size_t length = 0;
    int r;

    do
        r = archive_read_data_block(unpack->filtered, ret_data, &length, &offset);
    while ((r == ARCHIVE_OK || r == ARCHIVE_WARN) && !length);
    if (r == ARCHIVE_EOF) {
        unpack->ended = true;
        return 0;
    }
    if (r != ARCHIVE_OK && r != ARCHIVE_WARN) {
        const char *text = archive_error_string(unpack->filtered);

        archive_set_error(archive, EBADMSG, "%s", text ? text : "the compressed data is not valid");
        return -1;
    }
    digest_add(&unpack->digest, *ret_data, length);
    unpack->unpacked += length;
    /* The tar itself is slightly larger than its contents. */
    if (unpack->unpacked > unpack->limits->max_bytes + unpack->limits->max_bytes / 4 + RATIO_FROM ||
        (unpack->unpacked > RATIO_FROM &&
            unpack->unpacked / unpack->limits->max_ratio > unpack->stream.bytes)) {
        unpack->too_much = true;
        archive_set_error(archive, EFBIG, "it unpacks to too many bytes");
        return -1;
    }
    return (la_ssize_t)length;
}

static int bad_tar(struct unpack *unpack, struct archive *archive) {
    const char *text = archive_error_string(archive);

    if (unpack->too_much)
        return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "import",
            "%s unpacks to more than %u times its size or more than the limit; the image is "
            "refused (--max-ratio and --max-bytes set the limits)",
            unpack->member, unpack->limits->max_ratio);
    if (unpack->read_error && unpack->read_error != -EBADMSG)
        return fail_unpack(unpack, unpack->read_error, unpack->member);
    return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
        "%s cannot be unpacked: %s; it is truncated, or not a tar archive", unpack->member,
        text ? files_printable(text) : "unknown format");
}

static int open_member(struct unpack *unpack) {
    struct archive_entry *entry;
    int r = stream_open(unpack->source, unpack->member, &unpack->stream, unpack->error);

    if (r < 0)
        return r;
    unpack->filtered = archive_read_new();
    unpack->tar = archive_read_new();
    if (!unpack->filtered || !unpack->tar)
        return fail_unpack(unpack, -ENOMEM, "");
    image_source_filters(unpack->filtered);
    archive_read_support_format_raw(unpack->filtered);
    if (archive_read_open(unpack->filtered, unpack, NULL, read_member, NULL) != ARCHIVE_OK ||
        archive_read_next_header(unpack->filtered, &entry) != ARCHIVE_OK)
        return bad_tar(unpack, unpack->filtered);
    archive_read_support_format_tar(unpack->tar);
    if (archive_read_open(unpack->tar, unpack, NULL, read_filtered, NULL) != ARCHIVE_OK)
        return bad_tar(unpack, unpack->tar);
    return 0;
}

/* Data after the tar's end belongs to the digests as well. */
static int read_to_end(struct unpack *unpack) {
    const void *data;
    ssize_t n = 1;

    while (!unpack->ended)
        if (read_filtered(unpack->filtered, unpack, &data) < 0)
            return bad_tar(unpack, unpack->filtered);
    while (n > 0)
        n = stream_read(&unpack->stream, &data);
    return n < 0 ? fail_unpack(unpack, (int)n, unpack->member) : 0;
}

/* ---- names ---- */

char *unpack_name(const char *name) {
    char *plain = malloc(strlen(name) + 1), *to = plain;

    if (!plain)
        return NULL;
    while (*name) {
        size_t n = strcspn(name, "/");

        if (n == 2 && name[0] == '.' && name[1] == '.') {
            free(plain);
            errno = EINVAL;
            return NULL;
        }
        if (n && !(n == 1 && name[0] == '.')) {
            if (to > plain)
                *to++ = '/';
            memcpy(to, name, n);
            to += n;
        }
        name += n + (name[n] == '/');
    }
    *to = '\0';
    return plain;
}

static int texts_add(struct texts *texts, const char *text) {
    if (texts->n == texts->capacity) {
        texts->capacity = texts->capacity ? 2 * texts->capacity : 16;
        char **more = realloc(texts->list, texts->capacity * sizeof *more);
        if (!more)
            return -ENOMEM;
        texts->list = more;
    }
    texts->list[texts->n] = strdup(text);
    return texts->list[texts->n++] ? 0 : -ENOMEM;
}

static void texts_done(struct texts *texts) {
    for (size_t i = 0; i < texts->n; i++)
        free(texts->list[i]);
    free(texts->list);
}

static void forget_parent(struct unpack *unpack) {
    close_fd(&unpack->parent_fd);
    free(unpack->parent_path);
    unpack->parent_path = NULL;
}

static int add_pending(struct unpack *unpack, const char *path, const struct owner *owner,
    struct timespec mtime, bool implied) {
    if (unpack->n_pending == unpack->pending_capacity) {
        size_t capacity = unpack->pending_capacity ? 2 * unpack->pending_capacity : 64;
        struct pending *more = realloc(unpack->pending, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        unpack->pending = more;
        unpack->pending_capacity = capacity;
    }
    unpack->pending[unpack->n_pending] =
        (struct pending){ strdup(path), *owner, mtime, unpack->n_pending, implied };
    return unpack->pending[unpack->n_pending++].path ? 0 : -ENOMEM;
}

/* Makes the parent directories of an entry that have no entry of their own. */
static int make_parents(struct unpack *unpack, const char *path) {
    auto_free char *part = strdup(path);
    const struct owner owner = { 0, 0, 0755 };
    const char *leaf;

    if (!part)
        return -ENOMEM;
    for (char *p = strchr(part, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        auto_close int at = files_parent(unpack->root, part, &leaf);
        if (at < 0)
            return at;
        if (mkdirat(at, leaf, 0700) == 0) {
            int r = add_pending(unpack, part, &owner, (struct timespec){ 0, 0 }, true);
            if (r < 0)
                return r;
        } else if (errno != EEXIST) {
            return -errno;
        }
        *p = '/';
    }
    return 0;
}

/* The parent directory of an entry (borrowed until the next call), and its last component. */
static int open_parent(struct unpack *unpack, const char *path, const char **ret_leaf) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    *ret_leaf = slash ? slash + 1 : path;
    if (unpack->parent_path && strlen(unpack->parent_path) == length &&
        memcmp(unpack->parent_path, path, length) == 0)
        return unpack->parent_fd;
    forget_parent(unpack);
    int fd = files_parent(unpack->root, path, ret_leaf);
    if (fd == -ENOENT) {
        int r = make_parents(unpack, path);
        fd = r < 0 ? r : files_parent(unpack->root, path, ret_leaf);
    }
    if (fd < 0)
        return fd;
    unpack->parent_fd = fd;
    unpack->parent_path = strndup(path, length);
    return unpack->parent_path ? fd : -ENOMEM;
}

/* ---- entries ---- */

/* A later entry replaces an earlier one of its name. */
static int clear_way(struct unpack *unpack, int at, const char *leaf) {
    if (unlinkat(at, leaf, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    auto_close int directory = tree_open(at, leaf);
    if (directory < 0)
        return directory;
    int r = tree_empty(directory);
    if (r == 0 && unlinkat(at, leaf, AT_REMOVEDIR) < 0)
        r = -errno;
    if (r == 0) {
        /* The parent that is kept open may have been in there; `at` may be it, so it stays open. */
        free(unpack->parent_path);
        unpack->parent_path = NULL;
    }
    return r;
}

static int set_attributes(struct unpack *unpack, struct archive_entry *entry, int fd) {
    const char *name;
    const void *value;
    size_t length;

    archive_entry_xattr_reset(entry);
    while (archive_entry_xattr_next(entry, &name, &value, &length) == ARCHIVE_OK) {
        if (strcmp(name, XATTR_CAPABILITY) == 0)
            continue; /* set_capability() */
        if (strncmp(name, "user.", 5) != 0 || strncmp(name, "user.overlay.", 13) == 0 ||
            strncmp(name, "user.rollbox.", 13) == 0) {
            bool opaque = unpack->exact && strcmp(name, XATTR_OPAQUE) == 0 && length == 1 &&
                          *(const char *)value == 'y';

            unpack->totals->attributes += !opaque;
            if (!opaque)
                continue;
        }
        if (fsetxattr(fd, name, value, length, 0) < 0) {
            /* One that is too large for the file system is no reason to do without the image. */
            if (errno != ENOSPC && errno != E2BIG && errno != ERANGE && errno != EOPNOTSUPP &&
                errno != EINVAL)
                return -errno;
            unpack->totals->attributes++;
        }
    }
    return 0;
}

/* Capabilities of a program, which a change of its owner would remove. Like set-user-id bits they
 * are kept where the owner is; in sandboxes they are of that sandbox's root, within its bounds. */
static int set_capability(struct unpack *unpack, struct archive_entry *entry, int fd) {
    const char *name;
    const void *value;
    size_t length;

    archive_entry_xattr_reset(entry);
    while (archive_entry_xattr_next(entry, &name, &value, &length) == ARCHIVE_OK) {
        if (strcmp(name, XATTR_CAPABILITY) != 0)
            continue;
        /* Revision 2, without the id of a namespace's root; another is not of this host. */
        if (geteuid() == 0 && unpack->keeps_rights && length == CAPABILITY_OF_HOST_BYTES &&
            ((const uint8_t *)value)[3] == 2 && fsetxattr(fd, name, value, length, 0) == 0)
            continue;
        /* Not in effect, but there for the layer's copy with owners. */
        if (geteuid() != 0 && unpack->keeps_rights && length == CAPABILITY_OF_HOST_BYTES &&
            ((const uint8_t *)value)[3] == 2 &&
            fsetxattr(fd, XATTR_KEPT_CAPABILITY, value, length, 0) == 0)
            continue;
        unpack->totals->attributes++;
    }
    return 0;
}

static struct timespec mtime_of(struct archive_entry *entry) {
    long nanoseconds = archive_entry_mtime_is_set(entry) ? archive_entry_mtime_nsec(entry) : 0;

    return (struct timespec){ archive_entry_mtime_is_set(entry) ? archive_entry_mtime(entry) : 0,
        nanoseconds >= 0 && nanoseconds < 1000000000 ? nanoseconds : 0 };
}

static struct owner owner_of(struct archive_entry *entry) {
    la_int64_t uid = archive_entry_uid(entry), gid = archive_entry_gid(entry);

    return (struct owner){ uid >= 0 && uid < UINT32_MAX ? (uint32_t)uid : 65534,
        gid >= 0 && gid < UINT32_MAX ? (uint32_t)gid : 65534, archive_entry_perm(entry) & 07777 };
}

static int write_data(struct unpack *unpack, const char *path, int fd, uint64_t size) {
    la_int64_t offset;
    const void *data;
    size_t length;
    int r;

    while ((r = archive_read_data_block(unpack->tar, &data, &length, &offset)) == ARCHIVE_OK ||
           r == ARCHIVE_WARN) {
        if (offset < 0 || (uint64_t)offset > size || length > size - (uint64_t)offset)
            return refuse_entry(unpack, EFBIG, path, "has more data than its header says");
        for (const char *p = data; length;) {
            ssize_t n = pwrite(fd, p, length, offset);

            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return fail_unpack(unpack, -errno, path);
            p += n;
            offset += n;
            length -= (size_t)n;
        }
    }
    if (r != ARCHIVE_EOF)
        return bad_tar(unpack, unpack->tar);
    return ftruncate(fd, (off_t)size) < 0 ? fail_unpack(unpack, -errno, path) : 0;
}

/* "SIZE;OFFSET,LENGTH;...": where the member's data belongs. The text is not terminated. */
static int parse_sparse(const char *text, size_t length, uint64_t member_size, uint64_t *ret_size,
    struct segment **ret_segments, size_t *ret_n) {
    auto_free char *copy = text_copy(text, MIN(length, (size_t)65536));
    auto_free struct segment *list = calloc(length / 4 + 1, sizeof *list);
    uint64_t data = 0, end = 0;
    size_t n = 0;
    char *p;

    if (!copy || !list)
        return -ENOMEM;
    errno = 0;
    uint64_t size = strtoull(copy, &p, 10);
    while (*p == ';' && p > copy && !errno) {
        uint64_t offset = strtoull(p + 1, &p, 10);
        uint64_t part = *p == ',' ? strtoull(p + 1, &p, 10) : 0;

        if (!part || offset < end || offset > size || part > size - offset)
            return -EINVAL;
        list[n++] = (struct segment){ offset, part };
        end = offset + part;
        data += part;
    }
    if (*p || p == copy || errno || size > INT64_MAX || data != member_size)
        return -EINVAL;
    *ret_size = size;
    *ret_segments = TAKE_PTR(list);
    *ret_n = n;
    return 0;
}

static int write_segments(struct unpack *unpack, const char *path, int fd, uint64_t size,
    const struct segment *segments, size_t n) {
    char data[16384];

    for (size_t i = 0; i < n; i++)
        for (uint64_t done = 0; done < segments[i].length;) {
            la_ssize_t got = archive_read_data(
                unpack->tar, data, (size_t)MIN(segments[i].length - done, (uint64_t)sizeof data));

            if (got <= 0)
                return bad_tar(unpack, unpack->tar);
            for (la_ssize_t written = 0; written < got;) {
                ssize_t w = pwrite(fd, data + written, (size_t)(got - written),
                    (off_t)(segments[i].offset + done) + written);

                if (w < 0 && errno != EINTR)
                    return fail_unpack(unpack, -errno, path);
                written += MAX(w, 0);
            }
            done += (uint64_t)got;
        }
    return ftruncate(fd, (off_t)size) < 0 ? fail_unpack(unpack, -errno, path) : 0;
}

/* 1: the file was one with holes, and is written. */
static int write_sparse(
    struct unpack *unpack, struct archive_entry *entry, const char *path, int fd) {
    auto_free struct segment *segments = NULL;
    const char *name;
    const void *value;
    uint64_t size = 0;
    size_t length, n = 0;

    archive_entry_xattr_reset(entry);
    while (archive_entry_xattr_next(entry, &name, &value, &length) == ARCHIVE_OK) {
        if (strcmp(name, XATTR_SPARSE) != 0)
            continue;
        int r =
            parse_sparse(value, length, (uint64_t)archive_entry_size(entry), &size, &segments, &n);
        if (r == -EINVAL)
            return refuse_entry(unpack, EINVAL, path, "has an invalid list of holes");
        if (r < 0)
            return fail_unpack(unpack, r, path);
        r = write_segments(unpack, path, fd, size, segments, n);
        return r < 0 ? r : 1;
    }
    return 0;
}

static int unpack_file(struct unpack *unpack, struct archive_entry *entry, const char *path, int at,
    const char *leaf) {
    struct timespec times[2] = { mtime_of(entry), mtime_of(entry) };
    struct owner owner = owner_of(entry);
    la_int64_t size = archive_entry_size(entry);

    if (size < 0 || (uint64_t)size > unpack->limits->max_bytes - unpack->totals->bytes)
        return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "import",
            "the image unpacks to more than %llu bytes; it is refused (--max-bytes sets the limit)",
            (unsigned long long)unpack->limits->max_bytes);
    unpack->totals->bytes += (uint64_t)size;
    int made = openat(at, leaf, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (made < 0 && errno == EEXIST) {
        int cleared = clear_way(unpack, at, leaf);
        if (cleared < 0)
            return fail_unpack(unpack, cleared, path);
        made = openat(at, leaf, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    auto_close int fd = made;
    if (fd < 0)
        return fail_unpack(unpack, -errno, path);
    int r = unpack->exact ? write_sparse(unpack, entry, path, fd) : 0;
    if (r == 0)
        r = write_data(unpack, path, fd, (uint64_t)size);
    if (r < 0)
        return r;
    r = set_attributes(unpack, entry, fd);
    if (r == 0)
        r = files_set_owner(fd, &owner, false, unpack->keeps_rights);
    if (r > 0) {
        unpack->totals->setid++;
        r = 0;
    }
    if (r == 0)
        r = set_capability(unpack, entry, fd);
    if (r == 0 && futimens(fd, times) < 0 && errno != EINVAL)
        r = -errno;
    return r < 0 ? fail_unpack(unpack, r, path) : 0;
}

/* "12/a/b" -> "a/b", and 12. NULL: it does not begin with a number. */
static const char *split_layer(const char *name, size_t *ret_layer) {
    char *end;

    if (name[0] < '0' || name[0] > '9')
        return NULL;
    errno = 0;
    unsigned long layer = strtoul(name, &end, 10);
    if (errno || layer >= MANIFEST_MAX_LAYERS || *end != '/')
        return NULL;
    *ret_layer = layer;
    return end + 1;
}

static int unpack_hard_link(struct unpack *unpack, struct archive_entry *entry, const char *path,
    int at, const char *leaf) {
    const char *named = archive_entry_hardlink(entry), *target_leaf;
    struct stat st;
    size_t layer = 0;

    if (unpack->exact) {
        named = split_layer(named, &layer);
        if (!named || layer != unpack->layer)
            return refuse_entry(unpack, EINVAL, path, "is a hard link that leads out of its layer");
    }
    auto_free char *target = unpack_name(named);

    if (!target && errno == ENOMEM)
        return fail_unpack(unpack, -ENOMEM, path);
    if (!target || !target[0])
        return refuse_entry(unpack, EINVAL, path, "is a hard link that leads out of the layer");
    if (strcmp(target, path) == 0)
        return 0;
    auto_close int from = files_parent(unpack->root, target, &target_leaf);
    if (from == -ELOOP || from == -ENOTDIR)
        return refuse_entry(unpack, -from, path, "is a hard link through a symbolic link");
    if (from < 0 || fstatat(from, target_leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return refuse_entry(
            unpack, ENOENT, path, "is a hard link to a file that is not in its layer");
    if (S_ISDIR(st.st_mode))
        return refuse_entry(unpack, EISDIR, path, "is a hard link to a directory");
    int r = clear_way(unpack, at, leaf);
    if (r == 0 && linkat(from, target_leaf, at, leaf, 0) < 0)
        r = -errno;
    if (r < 0) {
        return r == -ENOENT ? refuse_entry(unpack, ENOENT, path,
                                  "is a hard link to the file that it replaces")
                            : fail_unpack(unpack, r, path);
    }
    return 0;
}

static int unpack_other(struct unpack *unpack, struct archive_entry *entry, const char *path,
    int at, const char *leaf) {
    struct timespec times[2] = { mtime_of(entry), mtime_of(entry) };
    struct owner owner = owner_of(entry);
    const char *target = archive_entry_symlink(entry);
    int r = 0;

    if (archive_entry_filetype(entry) == AE_IFLNK) {
        if (!target || !target[0])
            return refuse_entry(unpack, EINVAL, path, "is a symbolic link to nothing");
        r = symlinkat(target, at, leaf) < 0 ? -errno : 0;
    } else {
        r = mkfifoat(at, leaf, 0600) < 0 || fchmodat(at, leaf, owner.mode & 0777, 0) < 0 ? -errno
                                                                                         : 0;
    }
    if (r == 0)
        r = files_give(at, leaf, owner.uid, owner.gid);
    if (r == 0 && utimensat(at, leaf, times, AT_SYMLINK_NOFOLLOW) < 0 && errno != EINVAL)
        r = -errno;
    return r < 0 ? fail_unpack(unpack, r, path) : 0;
}

static int unpack_directory(struct unpack *unpack, struct archive_entry *entry, const char *path,
    int at, const char *leaf) {
    struct owner owner = owner_of(entry);
    struct stat st;
    int r = 0;

    if (path[0] && mkdirat(at, leaf, 0700) < 0) {
        if (errno != EEXIST || fstatat(at, leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return fail_unpack(unpack, -errno, path);
        if (!S_ISDIR(st.st_mode)) {
            r = clear_way(unpack, at, leaf);
            if (r == 0 && mkdirat(at, leaf, 0700) < 0)
                r = -errno;
        }
    }
    if (r == 0)
        r = add_pending(unpack, path, &owner, mtime_of(entry), false);
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    auto_close int fd = -EBADF;
    if (r == 0)
        fd = path[0] ? openat(at, leaf, flags) : openat(unpack->root, ".", flags);
    if (r == 0)
        r = fd < 0 ? -errno : set_attributes(unpack, entry, fd);
    return r < 0 ? fail_unpack(unpack, r, path) : 0;
}

/* 1: it was a deletion. */
static int note_deletion(struct unpack *unpack, const char *path) {
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    size_t base = (size_t)(leaf - path);
    int r;

    if (strncmp(leaf, WHITEOUT, strlen(WHITEOUT)) != 0)
        return 0;
    auto_free char *deleted = strdup(path);
    if (!deleted)
        return fail_unpack(unpack, -ENOMEM, path);
    if (strcmp(leaf, OPAQUE) == 0) {
        deleted[base ? base - 1 : 0] = '\0';
        r = texts_add(&unpack->opaques, deleted);
    } else if (strncmp(leaf, WHITEOUT WHITEOUT, 2 * strlen(WHITEOUT)) == 0) {
        return 1; /* internal files of other union file systems */
    } else {
        const char *name = leaf + strlen(WHITEOUT);

        if (!name[0] || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            return refuse_entry(unpack, EINVAL, path, "deletes an invalid name");
        memmove(deleted + base, name, strlen(name) + 1);
        r = texts_add(&unpack->whiteouts, deleted);
    }
    unpack->depends = true;
    return r < 0 ? fail_unpack(unpack, r, path) : 1;
}

static bool is_left_out(mode_t type) {
    return type == AE_IFCHR || type == AE_IFBLK || type == AE_IFSOCK;
}

static bool is_known_type(mode_t type) {
    return type == AE_IFREG || type == AE_IFLNK || type == AE_IFIFO || type == AE_IFDIR;
}

static int unpack_entry(struct unpack *unpack, struct archive_entry *entry, const char *name) {
    const char *leaf = "";
    unsigned depth = 0;
    int at = -EBADF, r;

    if (!name)
        return refuse_entry(unpack, EINVAL, "?", "has no name");
    auto_free char *path = unpack_name(name);
    if (!path)
        return errno == ENOMEM
                   ? fail_unpack(unpack, -ENOMEM, name)
                   : refuse_entry(unpack, EINVAL, name, "leads out of the layer by \"..\"");
    for (const char *p = path; *p; p++)
        depth += *p == '/';
    if (depth > unpack->limits->max_depth)
        return refuse_entry(
            unpack, ELOOP, path, "is in too many directories (--max-depth sets the limit)");
    r = unpack->exact ? 0 : note_deletion(unpack, path);
    if (r)
        return MIN(r, 0);
    mode_t type = archive_entry_filetype(entry);
    bool hard = archive_entry_hardlink(entry) != NULL;
    bool whiteout = unpack->exact && !hard && type == AE_IFCHR && archive_entry_rdev(entry) == 0;
    if (!hard && !whiteout && is_left_out(type)) {
        unpack->totals->devices++;
        return 0;
    }
    if (!hard && !whiteout && !is_known_type(type))
        return refuse_entry(unpack, EINVAL, path, "has an unknown type");
    if (!path[0] && (hard || type != AE_IFDIR))
        return refuse_entry(unpack, EINVAL, name, "takes the place of the layer's top directory");
    unpack->entries++;
    if (path[0]) {
        at = open_parent(unpack, path, &leaf);
        if (at == -ELOOP)
            return refuse_entry(unpack, ELOOP, path, "goes through a symbolic link");
        if (at == -ENOTDIR)
            return refuse_entry(
                unpack, ENOTDIR, path, "goes through a file that is not a directory");
        if (at < 0)
            return fail_unpack(unpack, at, path);
    }
    if (hard)
        return unpack_hard_link(unpack, entry, path, at, leaf);
    if (type == AE_IFDIR)
        return unpack_directory(unpack, entry, path, at, leaf);
    if (type == AE_IFREG)
        return unpack_file(unpack, entry, path, at, leaf);
    r = clear_way(unpack, at, leaf);
    if (r == 0 && whiteout && mknodat(at, leaf, S_IFCHR, makedev(0, 0)) < 0)
        r = -errno;
    if (r < 0)
        return fail_unpack(unpack, r, path);
    return whiteout ? 0 : unpack_other(unpack, entry, path, at, leaf);
}

/* ---- deletions ---- */

/* The entry of the layers below at a path. Free `ret_found` if it exists. */
static int find_below(const struct stack *below, const char *path, struct found *ret_found) {
    auto_free char *part = strdup(path);
    struct found found = { 0 };
    const struct stack *at = below;
    char *p = part;

    if (!part)
        return -ENOMEM;
    if (!part[0])
        return -EINVAL;
    for (;;) {
        size_t n = strcspn(p, "/");
        bool last = !p[n];
        struct found next = { 0 };

        p[n] = '\0';
        int r = stack_find(at, p, &next);
        found_done(&found);
        if (r < 0)
            return r;
        found = next;
        if (last || !found.there || !S_ISDIR(found.st.st_mode))
            break;
        at = &found.below;
        p += n + 1;
        if (!*p)
            break;
        continue;
    }
    if (found.there && p + strlen(p) != part + strlen(path)) {
        /* Something that is no directory is on the way. */
        found_done(&found);
        found = (struct found){ 0 };
    }
    *ret_found = found;
    return 0;
}

/* Deletes a path of the layers below; an entry of the layer itself stays and hides it. */
static int apply_deletion(struct unpack *unpack, const char *path, bool opaque) {
    const char *leaf;
    struct found found = { 0 };
    struct stat st;
    int r = path[0] ? find_below(unpack->below, path, &found) : 0;

    if (r < 0)
        return fail_unpack(unpack, r, path);
    bool there = path[0] ? found.there : unpack->below->n > 0,
         directory = path[0] ? found.there && S_ISDIR(found.st.st_mode) : there;
    found_done(&found);
    if (!there || (opaque && !directory)) {
        unpack->totals->dropped++;
        return 0;
    }
    int at = path[0] ? open_parent(unpack, path, &leaf) : unpack->root;
    if (at == -ELOOP || at == -ENOTDIR) {
        /* The layer has something else on the way, which hides it already. */
        unpack->totals->dropped++;
        return 0;
    }
    if (at < 0)
        return fail_unpack(unpack, at, path);
    if (!path[0])
        leaf = ".";
    bool ours = fstatat(at, leaf, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (opaque && !ours) {
        const struct owner owner = { 0, 0, 0755 };

        r = mkdirat(at, leaf, 0700) < 0
                ? -errno
                : add_pending(unpack, path, &owner, (struct timespec){ 0, 0 }, true);
        if (r < 0)
            return fail_unpack(unpack, r, path);
        ours = true;
        st.st_mode = S_IFDIR;
    }
    if (ours) {
        if (!S_ISDIR(st.st_mode) || !directory)
            return 0;
        auto_close int fd = openat(at, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 || fsetxattr(fd, XATTR_OPAQUE, "y", 1, 0) < 0
                   ? fail_unpack(unpack, -errno, path)
                   : 0;
    }
    /* A directory that hides everything below needs no further deletions. */
    auto_free char *up = strdup(path);
    if (!up)
        return fail_unpack(unpack, -ENOMEM, path);
    for (char *slash = strrchr(up, '/');; slash = strrchr(up, '/')) {
        const char *name;

        if (slash)
            *slash = '\0';
        else
            up[0] = '\0';
        auto_close int parent = files_parent(unpack->root, up, &name);
        auto_close int fd =
            parent < 0 ? parent
                       : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && files_is_opaque(fd)) {
            unpack->totals->dropped++;
            return 0;
        }
        if (!up[0])
            break;
    }
    if (mknodat(at, leaf, S_IFCHR | 0000, makedev(0, 0)) < 0)
        return fail_unpack(unpack, -errno, path);
    return 0;
}

/* Deepest first, of one path the latest. */
static int compare_pending(const void *a, const void *b) {
    const struct pending *x = a, *y = b;
    int order = strcmp(y->path, x->path);

    if (order)
        return order;
    return x->number < y->number ? 1 : -1;
}

static int set_directory(struct unpack *unpack, struct pending *pending) {
    const char *leaf;
    struct found found = { 0 };

    auto_close int at = files_parent(unpack->root, pending->path, &leaf);
    auto_close int fd =
        at < 0 ? at : openat(at, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return 0; /* a later entry took its place */
    if (pending->implied && !unpack->exact) {
        /* It must not hide the owner and mode that the directory has below. */
        int r = pending->path[0] ? find_below(unpack->below, pending->path, &found) : 0;
        if (r < 0)
            return fail_unpack(unpack, r, pending->path);
        const struct stack *same = pending->path[0] ? &found.below : unpack->below;
        unpack->depends |= pending->path[0] || same->n;
        if (same->n) {
            char text[64];

            files_owner(same->fds[0], &same->stats[0], &pending->owner);
            /* As the image has it, not as this user's copy has it. */
            if (geteuid() != 0 && fgetxattr(same->fds[0], XATTR_OWNER, text, sizeof text) < 0)
                pending->owner.uid = pending->owner.gid = 0;
            pending->mtime = same->stats[0].st_mtim;
        }
        found_done(&found);
    }
    struct timespec times[2] = { pending->mtime, pending->mtime };
    int r = files_set_owner(fd, &pending->owner, true, unpack->keeps_rights);
    if (r == 0 && futimens(fd, times) < 0 && errno != EINVAL)
        r = -errno;
    return r < 0 ? fail_unpack(unpack, r, pending->path) : 0;
}

static int finish_unpack(struct unpack *unpack) {
    int r = 0;

    forget_parent(unpack);
    for (size_t i = 0; r == 0 && i < unpack->opaques.n; i++)
        r = apply_deletion(unpack, unpack->opaques.list[i], true);
    for (size_t i = 0; r == 0 && i < unpack->whiteouts.n; i++)
        r = apply_deletion(unpack, unpack->whiteouts.list[i], false);
    forget_parent(unpack);
    if (unpack->n_pending)
        qsort(unpack->pending, unpack->n_pending, sizeof *unpack->pending, compare_pending);
    for (size_t i = 0; r == 0 && i < unpack->n_pending; i++)
        if (!i || strcmp(unpack->pending[i].path, unpack->pending[i - 1].path) != 0)
            r = set_directory(unpack, &unpack->pending[i]);
    return r;
}

static int unpack_entries(struct unpack *unpack) {
    struct archive_entry *entry;
    int r;

    while ((r = archive_read_next_header(unpack->tar, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        if (++unpack->totals->entries > unpack->limits->max_entries)
            return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "import",
                "the image has more than %llu entries; it is refused (--max-entries sets the "
                "limit)",
                (unsigned long long)unpack->limits->max_entries);
        r = unpack_entry(unpack, entry, archive_entry_pathname(entry));
        if (r < 0)
            return r;
        if (unpack->entries == 3)
            fault_point(FAULT_layer_half);
    }
    return r == ARCHIVE_EOF ? 0 : bad_tar(unpack, unpack->tar);
}

int unpack_layer(struct image_source *source, const char *name, int root, const struct stack *below,
    const struct unpack_limits *limits, struct unpack_totals *totals, struct unpacked *ret_unpacked,
    struct rollbox_error *error) {
    struct unpack unpack = { .source = source,
        .member = name,
        .root = root,
        .below = below,
        .limits = limits,
        .totals = totals,
        .error = error,
        .stream.fd = -EBADF,
        .parent_fd = -EBADF,
        .keeps_rights = true };
    int r;

    digest_init(&unpack.digest);
    const struct owner owner = { 0, 0, 0755 };
    r = add_pending(&unpack, "", &owner, (struct timespec){ 0, 0 }, true);
    if (r < 0)
        fail_unpack(&unpack, r, "");
    if (r == 0)
        r = open_member(&unpack);
    if (r == 0)
        r = unpack_entries(&unpack);
    if (r == 0)
        r = read_to_end(&unpack);
    if (r == 0)
        r = finish_unpack(&unpack);
    if (r == 0) {
        digest_end_hex(&unpack.stream.digest, ret_unpacked->packed);
        digest_end_hex(&unpack.digest, ret_unpacked->diff_id);
        ret_unpacked->entries = unpack.entries;
        ret_unpacked->depends = unpack.depends;
    }
    if (unpack.tar)
        archive_read_free(unpack.tar);
    if (unpack.filtered)
        archive_read_free(unpack.filtered);
    stream_close(&unpack.stream);
    forget_parent(&unpack);
    for (size_t i = 0; i < unpack.n_pending; i++)
        free(unpack.pending[i].path);
    free(unpack.pending);
    texts_done(&unpack.whiteouts);
    texts_done(&unpack.opaques);
    return r;
}

/* ---- snapshot files ---- */

static int bad_snapshot(struct rollbox_error *error, const char *what) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
        "this is not a snapshot that rollbox exported: %s", what);
}

static int read_snapshot_manifest(struct unpack *unpack, json_t **ret_manifest) {
    auto_free char *text = NULL;
    struct archive_entry *entry;

    if (archive_read_next_header(unpack->tar, &entry) < ARCHIVE_WARN)
        return bad_tar(unpack, unpack->tar);
    const char *name = archive_entry_pathname(entry);
    la_int64_t size = archive_entry_size(entry);
    if (!name || strcmp(name, "manifest.json") != 0 || archive_entry_filetype(entry) != AE_IFREG ||
        size <= 0 || size > MANIFEST_MAX_BYTES)
        return bad_snapshot(unpack->error, "it does not begin with manifest.json");
    text = malloc((size_t)size);
    if (!text)
        return fail_unpack(unpack, -ENOMEM, "manifest.json");
    if (archive_read_data(unpack->tar, text, (size_t)size) != size)
        return bad_tar(unpack, unpack->tar);
    json_t *manifest = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, NULL);
    const char *format = json_string_value(json_object_get(manifest, "format"));
    json_int_t version = json_integer_value(json_object_get(manifest, "version"));
    bool good = format && strcmp(format, "rollbox-snapshot") == 0 &&
                json_is_array(json_object_get(manifest, "layers")) &&
                json_is_array(json_object_get(manifest, "places"));
    int r = 0;
    if (!good)
        r = bad_snapshot(unpack->error, "its manifest.json is not valid");
    else if (version != 1)
        r = error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, EPROTONOSUPPORT, "import",
            "the snapshot has version %lld of its format; this rollbox knows version 1",
            (long long)version);
    else if (json_array_size(json_object_get(manifest, "layers")) > MANIFEST_MAX_LAYERS)
        r = bad_snapshot(unpack->error, "it has too many layers");
    if (r < 0)
        json_decref(manifest);
    else
        *ret_manifest = manifest;
    return r;
}

/* Ends one layer's unpacking and begins the next one's. */
static int next_layer(struct unpack *unpack, int work, int *root, size_t layer) {
    char directory[24], path[32];
    const struct owner owner = { 0, 0, 0755 };
    int r = 0;

    if (unpack->root >= 0)
        r = finish_unpack(unpack);
    for (size_t i = 0; i < unpack->n_pending; i++)
        free(unpack->pending[i].path);
    unpack->n_pending = 0;
    if (r < 0)
        return r;
    snprintf(directory, sizeof directory, "L%zu", layer);
    snprintf(path, sizeof path, "%s/fs", directory);
    if (mkdirat(work, directory, 0700) < 0 || mkdirat(work, path, 0700) < 0)
        return fail_unpack(unpack, -errno, "");
    close_fd(root);
    *root = openat(work, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    unpack->root = *root;
    unpack->layer = layer;
    if (*root < 0)
        return fail_unpack(unpack, -errno, "");
    return add_pending(unpack, "", &owner, (struct timespec){ 0, 0 }, true) < 0
               ? fail_unpack(unpack, -ENOMEM, "")
               : 0;
}

static int unpack_layers(struct unpack *unpack, int work, size_t n) {
    struct archive_entry *entry;
    auto_close int root = -EBADF;
    size_t begun = 0;
    int r;

    while ((r = archive_read_next_header(unpack->tar, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        const char *name = archive_entry_pathname(entry);
        size_t layer;

        if (++unpack->totals->entries > unpack->limits->max_entries)
            return error_set(unpack->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "import",
                "the snapshot has more than %llu entries; it is refused (--max-entries sets the "
                "limit)",
                (unsigned long long)unpack->limits->max_entries);
        name = name ? split_layer(name, &layer) : NULL;
        if (!name || layer >= n || layer + 1 < begun)
            return bad_snapshot(
                unpack->error, "an entry belongs to no layer, or its layers are not in order");
        while (begun <= layer) {
            r = next_layer(unpack, work, &root, begun++);
            if (r < 0)
                return r;
        }
        r = unpack_entry(unpack, entry, name);
        if (r < 0)
            return r;
        if (unpack->entries == 3)
            fault_point(FAULT_snapshot_half);
    }
    if (r != ARCHIVE_EOF)
        return bad_tar(unpack, unpack->tar);
    while (begun < n) {
        r = next_layer(unpack, work, &root, begun++);
        if (r < 0)
            return r;
    }
    return unpack->root >= 0 ? finish_unpack(unpack) : 0;
}

bool snapshot_has_many_users(const json_t *manifest) {
    const char *users = json_string_value(json_object_get(manifest, "users"));

    return users && strcmp(users, "many") == 0;
}

int unpack_snapshot(int archive, int work, const struct unpack_limits *limits,
    struct unpack_totals *totals, bool is_image, json_t **ret_manifest,
    struct rollbox_error *error) {
    static const struct stack nothing = { 0 };
    struct unpack unpack = { .member = "the snapshot",
        .root = -EBADF,
        .below = &nothing,
        .limits = limits,
        .totals = totals,
        .error = error,
        .stream.fd = -EBADF,
        .parent_fd = -EBADF,
        .exact = true,
        .keeps_rights = is_image };
    json_t *manifest = NULL;
    int r = 0;

    unpack.tar = archive_read_new();
    if (!unpack.tar)
        return fail_unpack(&unpack, -ENOMEM, "");
    image_source_filters(unpack.tar);
    archive_read_support_format_tar(unpack.tar);
    if (archive_read_open_fd(unpack.tar, archive, 1u << 18) != ARCHIVE_OK)
        r = bad_tar(&unpack, unpack.tar);
    if (r == 0)
        r = read_snapshot_manifest(&unpack, &manifest);
    if (r == 0) {
        unpack.keeps_rights |=
            snapshot_has_many_users(manifest) || json_object_get(manifest, "image");
        r = unpack_layers(&unpack, work, json_array_size(json_object_get(manifest, "layers")));
    }
    archive_read_free(unpack.tar);
    forget_parent(&unpack);
    for (size_t i = 0; i < unpack.n_pending; i++)
        free(unpack.pending[i].path);
    free(unpack.pending);
    if (r < 0)
        json_decref(manifest);
    else
        *ret_manifest = manifest;
    return r;
}
