/* SPDX-License-Identifier: Apache-2.0 */
#include "build/copy.h"

#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"

#define CHUNK (256u << 10)
#define WHITEOUT ".wh."
#define RATIO_FROM (256ull << 20)

void copy_done(struct copy_step *step) {
    for (size_t i = 0; i < step->n_inputs; i++) {
        free(step->inputs[i].path);
        free(step->inputs[i].name);
    }
    free(step->inputs);
    free(step->destination);
    ignore_done(&step->excluded);
    *step = (struct copy_step){ 0 };
}

static int fail_copy(struct rollbox_error *error, int r, const char *doing, const char *path) {
    return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build", "cannot %s %s: %s",
        doing, files_printable(path), strerror(-r));
}

/* ---- the digest ---- */

struct digesting {
    struct digest *digest;
    bool has_mode;
};

static int digest_entry(
    void *context, const struct source_entry *entry, struct rollbox_error *error) {
    const struct digesting *digesting = context;
    uint8_t content[DIGEST_BYTES];

    digest_add_sized(digesting->digest, entry->path, strlen(entry->path));
    digest_add_u64(digesting->digest, entry->st.st_mode & S_IFMT);
    digest_add_u64(digesting->digest, digesting->has_mode ? 0 : entry->owner.mode);
    if (entry->target)
        digest_add_sized(digesting->digest, entry->target, strlen(entry->target));
    if (!S_ISREG(entry->st.st_mode))
        return 0;
    int r = content_of(entry->fd, (uint64_t)entry->st.st_size, content);
    if (r < 0)
        return fail_copy(error, r, "read", entry->path);
    digest_add(digesting->digest, content, sizeof content);
    return 0;
}

static int digest_fd(struct digest *digest, int fd, struct rollbox_error *error) {
    uint8_t content[DIGEST_BYTES];
    struct stat st;
    int r = fstat(fd, &st) < 0 ? -errno : content_of(fd, (uint64_t)st.st_size, content);

    if (r < 0)
        return fail_copy(error, r, "read", "the downloaded file");
    digest_add(digest, content, sizeof content);
    return 0;
}

int copy_digest(const struct copy_step *step, struct digest *digest, struct rollbox_error *error) {
    const struct digesting digesting = { digest, step->has_mode };
    int r = 0;

    digest_add_sized(digest, step->destination, strlen(step->destination));
    digest_add_u64(digest, (uint64_t)step->into_directory << 3 | (uint64_t)step->unpacks << 2 |
                               (uint64_t)step->has_owner << 1 | (uint64_t)step->has_mode);
    digest_add_u64(digest, (uint64_t)step->uid << 32 | step->gid);
    digest_add_u64(digest, step->mode);
    digest_add_sized(digest, text_or(step->from_key, ""), text_size(step->from_key));
    for (size_t i = 0; i < step->excluded.n; i++)
        digest_add_sized(
            digest, step->excluded.rules[i].pattern, strlen(step->excluded.rules[i].pattern));
    for (size_t i = 0; r == 0 && i < step->n_inputs; i++) {
        const struct copy_input *input = &step->inputs[i];

        digest_add_u64(digest, input->is_directory);
        digest_add_sized(digest, input->name ? input->name : "", text_size(input->name));
        if (input->source && step->from_key)
            digest_add_sized(digest, input->path, strlen(input->path));
        else if (input->source)
            r = source_walk(input->source, input->path, &step->excluded, digest_entry,
                (void *)(uintptr_t)&digesting, error);
        else if (input->fd >= 0)
            r = digest_fd(digest, input->fd, error);
        else
            digest_add_sized(digest, input->data, input->length);
    }
    return r;
}

/* ---- the tar ---- */

struct copying {
    const struct copy_step *step;
    const struct copy_input *input;
    struct archive *tar;
    struct rollbox_error *error;
    char *to; /* the destination of the input's start, without links */
    struct inodes inodes;
    char *chunk;
    time_t now;
    uint64_t bytes, entries; /* of the step */
    uint64_t bytes_before;   /* of the archive that is unpacked */
    /* Of an archive that is unpacked. */
    char *parent, *resolved; /* the latest parent directory, and where it is */
};

static int fail_write(struct copying *copying, const char *path) {
    const int number = archive_errno(copying->tar);

    return error_set(copying->error, error_code_of(number, ROLLBOX_ERR_IO),
        number > 0 ? number : EIO, "build", "cannot write %s to the store: %s",
        files_printable(path),
        number > 0 ? strerror(number) : text_or(archive_error_string(copying->tar), "unknown"));
}

/* The limits hold before the tar is written: a sparse file of the context takes no room there, but
 * its size in the tar. */
static int count_entry(struct copying *copying, const char *path, uint64_t size) {
    const struct unpack_limits *limits = &copying->step->limits;

    if (++copying->entries > limits->max_entries)
        return error_set(copying->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
            "%s: the step has more than %llu files and directories (--max-entries sets the limit)",
            files_printable(path), (unsigned long long)limits->max_entries);
    if (size > limits->max_bytes - copying->bytes)
        return error_set(copying->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
            "%s: the step has more than %llu bytes (--max-bytes sets the limit); leave large files "
            "out in .dockerignore",
            files_printable(path), (unsigned long long)limits->max_bytes);
    copying->bytes += size;
    return 0;
}

/* Deletions are files of these names in a layer's tar. */
static int check_name(struct copying *copying, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    if (strncmp(name, WHITEOUT, strlen(WHITEOUT)) != 0)
        return 0;
    return error_set(copying->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "build",
        "%s: names that begin with .wh. mean deletions in images, so such a file cannot be copied",
        files_printable(path));
}

/* Refuses an entry that the image's file at the path conflicts with. */
static int check_place(struct copying *copying, const char *path, bool is_directory) {
    struct found found;
    int r = source_find(copying->step->base, path, &found);

    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    if (r < 0)
        return fail_copy(copying->error, r, "read", path);
    const bool was_directory = S_ISDIR(found.st.st_mode);
    found_done(&found);
    if (was_directory == is_directory || (!is_directory && !was_directory))
        return 0;
    return error_set(copying->error, ROLLBOX_ERR_CONFLICT, is_directory ? ENOTDIR : EISDIR, "build",
        is_directory ? "cannot copy a directory over /%s, which is no directory"
                     : "cannot copy a file over the directory /%s",
        files_printable(path));
}

static struct archive_entry *new_entry(
    const struct copying *copying, const char *path, mode_t type, const struct owner *owner) {
    const struct copy_step *step = copying->step;
    struct archive_entry *entry = archive_entry_new();

    if (!entry)
        return NULL;
    archive_entry_copy_pathname(entry, path);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_uid(entry, step->has_owner ? step->uid : owner->uid);
    archive_entry_set_gid(entry, step->has_owner ? step->gid : owner->gid);
    archive_entry_set_perm(entry, (__LA_MODE_T)(owner->mode & 07777));
    archive_entry_set_mtime(entry, copying->now, 0);
    archive_entry_set_size(entry, 0);
    return entry;
}

static int put_header(struct copying *copying, struct archive_entry *take_entry, const char *path) {
    int r = take_entry && archive_write_header(copying->tar, take_entry) >= ARCHIVE_WARN
                ? 0
                : fail_write(copying, path);

    archive_entry_free(take_entry);
    return r;
}

/* Directories above a path that the image does not have. */
static int put_parents(struct copying *copying, const char *path) {
    const struct owner owner = { 0, 0, 0755 };
    auto_free char *part = strdup(path);
    int r = 0;

    if (!part)
        return fail_copy(copying->error, -ENOMEM, "write", path);
    for (char *slash = strchr(part, '/'); r == 0 && slash; slash = strchr(slash + 1, '/')) {
        struct found found;

        *slash = '\0';
        int there = source_find(copying->step->base, part, &found);
        if (there == 0) {
            const bool is_directory = S_ISDIR(found.st.st_mode);

            found_done(&found);
            if (!is_directory)
                r = check_place(copying, part, true);
        } else if (there == -ENOENT) {
            r = put_header(copying, new_entry(copying, part, AE_IFDIR, &owner), part);
        } else {
            r = fail_copy(copying->error, there, "read", part);
        }
        *slash = '/';
    }
    return r;
}

static int put_content(struct copying *copying, int fd, uint64_t size, const char *path) {
    for (uint64_t done = 0; done < size;) {
        ssize_t n =
            pread(fd, copying->chunk, (size_t)MIN(size - done, (uint64_t)CHUNK), (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? fail_copy(copying->error, -errno, "read", path)
                         : error_set(copying->error, ROLLBOX_ERR_CONFLICT, EAGAIN, "build",
                               "%s became shorter while it was read; try again",
                               files_printable(path));
        if (archive_write_data(copying->tar, copying->chunk, (size_t)n) != n)
            return fail_write(copying, path);
        done += (uint64_t)n;
    }
    return 0;
}

static int add_attribute(void *context, const char *name, const void *value, size_t length) {
    archive_entry_xattr_add_entry(context, name, value, length);
    return 0;
}

/* Attributes and capabilities are taken from images, not from the context. */
static int put_attributes(
    const struct copying *copying, const struct source_entry *from, struct archive_entry *to) {
    char value[CAPABILITY_OF_HOST_BYTES];

    if (from->fd < 0 || copying->input->source->ignore)
        return 0;
    if (S_ISREG(from->st.st_mode) &&
        fgetxattr(from->fd, XATTR_CAPABILITY, value, sizeof value) == (ssize_t)sizeof value)
        archive_entry_xattr_add_entry(to, XATTR_CAPABILITY, value, sizeof value);
    return files_xattrs(from->fd, add_attribute, to);
}

static mode_t entry_type(const struct source_entry *entry) {
    switch (entry->st.st_mode & S_IFMT) {
    case S_IFDIR:
        return AE_IFDIR;
    case S_IFLNK:
        return AE_IFLNK;
    case S_IFIFO:
        return AE_IFIFO;
    default:
        return AE_IFREG;
    }
}

/* A second name of a file in this step. 1: written. */
static int put_hard_link(
    struct copying *copying, const struct source_entry *entry, const char *path) {
    struct inode *inode = NULL;
    bool found = false;

    if (!S_ISREG(entry->st.st_mode) || entry->st.st_nlink < 2)
        return 0;
    int r = inodes_note(&copying->inodes, &entry->st, path, &inode, &found);
    if (r < 0)
        return fail_copy(copying->error, r, "copy", path);
    if (!found)
        return 0;
    struct archive_entry *to = new_entry(copying, path, AE_IFREG, &entry->owner);
    if (to)
        archive_entry_copy_hardlink(to, inode->path);
    r = put_header(copying, to, path);
    return r < 0 ? r : 1;
}

static int put_entry(void *context, const struct source_entry *entry, struct rollbox_error *error) {
    struct copying *copying = context;
    const struct copy_step *step = copying->step;
    const bool is_directory = S_ISDIR(entry->st.st_mode);
    struct owner owner = entry->owner;
    auto_free char *path = NULL;

    /* The caller's files are root's; those of an image keep their owners. */
    if (copying->input->source->ignore)
        owner.uid = owner.gid = 0;
    if (asprintf(&path, "%s%s%s", copying->to, copying->to[0] && entry->path[0] ? "/" : "",
            entry->path) < 0)
        return fail_copy(error, -ENOMEM, "copy", entry->path);
    int r = check_name(copying, path);
    if (r == 0)
        r = check_place(copying, path, is_directory);
    if (r < 0)
        return r;
    /* The top of a copied directory is the destination, which keeps what it has if it is there. */
    struct found there;
    if (is_directory && !entry->path[0] && source_find(step->base, path, &there) == 0) {
        found_done(&there);
        return 0;
    }
    r = put_hard_link(copying, entry, path);
    if (r)
        return MIN(r, 0);
    if (step->has_mode && !entry->target)
        owner.mode = step->mode;
    r = count_entry(copying, path, S_ISREG(entry->st.st_mode) ? (uint64_t)entry->st.st_size : 0);
    if (r < 0)
        return r;
    struct archive_entry *to = new_entry(copying, path, entry_type(entry), &owner);
    if (!to)
        return fail_copy(error, -ENOMEM, "copy", path);
    archive_entry_set_mtime(to, entry->st.st_mtim.tv_sec, entry->st.st_mtim.tv_nsec);
    if (entry->target)
        archive_entry_copy_symlink(to, entry->target);
    if (S_ISREG(entry->st.st_mode))
        archive_entry_set_size(to, entry->st.st_size);
    r = put_attributes(copying, entry, to);
    if (r < 0) {
        archive_entry_free(to);
        return fail_copy(error, r, "read", path);
    }
    if (S_ISREG(entry->st.st_mode))
        copying->bytes += (uint64_t)entry->st.st_size;
    if (copying->bytes > step->limits.max_bytes) {
        archive_entry_free(to);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
            "the step copies more than %llu bytes (--max-bytes sets the limit)",
            (unsigned long long)step->limits.max_bytes);
    }
    r = put_header(copying, to, path);
    return r == 0 && S_ISREG(entry->st.st_mode)
               ? put_content(copying, entry->fd, (uint64_t)entry->st.st_size, path)
               : r;
}

/* ---- files that are in no source ---- */

static int put_data(struct copying *copying, const char *path) {
    const struct copy_input *input = copying->input;
    struct owner owner = { 0, 0, input->fd >= 0 ? 0600 : 0644 };
    struct stat st = { .st_size = (off_t)input->length };
    int r = check_name(copying, path);

    if (r == 0)
        r = check_place(copying, path, false);
    if (r == 0 && input->fd >= 0 && fstat(input->fd, &st) < 0)
        r = fail_copy(copying->error, -errno, "read", path);
    if (r == 0)
        r = count_entry(copying, path, (uint64_t)st.st_size);
    if (r < 0)
        return r;
    if (copying->step->has_mode)
        owner.mode = copying->step->mode;
    struct archive_entry *to = new_entry(copying, path, AE_IFREG, &owner);
    if (to)
        archive_entry_set_size(to, st.st_size);
    r = put_header(copying, to, path);
    if (r == 0 && input->fd >= 0)
        return put_content(copying, input->fd, (uint64_t)st.st_size, path);
    if (r == 0 &&
        archive_write_data(copying->tar, input->data, input->length) != (la_ssize_t)input->length)
        r = fail_write(copying, path);
    return r;
}

/* ---- archives ---- */

static int refuse_archive(struct copying *copying, const char *why) {
    return error_set(copying->error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "build",
        "the archive %s cannot be unpacked: %s",
        files_printable(text_or(copying->input->name, copying->input->path)), why);
}

/* Resolves an entry's directory in the image. Links of the image are followed. */
static int resolve_parent(struct copying *copying, const char *path, const char **ret_directory) {
    const char *slash = strrchr(path, '/');
    auto_free char *parent = slash ? strndup(path, (size_t)(slash - path)) : strdup("");

    if (!parent)
        return -ENOMEM;
    if (!copying->parent || strcmp(parent, copying->parent) != 0) {
        char *resolved;
        int r = source_resolve(copying->step->base, parent, SOURCE_TAIL_FOLLOWED, &resolved, NULL);

        if (r < 0)
            return r;
        free(copying->parent);
        free(copying->resolved);
        copying->parent = TAKE_PTR(parent);
        copying->resolved = resolved;
    }
    *ret_directory = copying->resolved;
    return 0;
}

/* The place of a name of the archive, for free(). */
static int place_of(struct copying *copying, const char *name, char **ret_path) {
    auto_free char *plain = name ? unpack_name(name) : NULL, *path = NULL;
    const char *directory;

    if (!plain)
        return refuse_archive(copying, "an entry has no name, or one that leads out by \"..\"");
    if (asprintf(&path, "%s%s%s", copying->to, copying->to[0] && plain[0] ? "/" : "", plain) < 0)
        return fail_copy(copying->error, -ENOMEM, "unpack", name);
    int r = check_name(copying, path);
    if (r < 0)
        return r;
    r = resolve_parent(copying, path, &directory);
    if (r < 0)
        return fail_copy(copying->error, r, "unpack", name);
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    if (asprintf(ret_path, "%s%s%s", directory, directory[0] && leaf[0] ? "/" : "", leaf) < 0)
        return fail_copy(copying->error, -ENOMEM, "unpack", name);
    return 0;
}

/* A directory of the archive that the image has, perhaps by a link: it stays. */
static bool is_there(const struct copying *copying, const char *path) {
    auto_free char *plain = NULL;
    struct found found;

    if (source_resolve(copying->step->base, path, SOURCE_TAIL_FOLLOWED, &plain, &found) < 0)
        return false;
    const bool is_directory = S_ISDIR(found.st.st_mode);
    found_done(&found);
    return is_directory && strcmp(plain, path) != 0;
}

static int check_amount(struct copying *copying, struct archive *from, int64_t size) {
    const struct unpack_limits *limits = &copying->step->limits;
    const uint64_t packed = (uint64_t)MAX(archive_filter_bytes(from, -1), (la_int64_t)1);

    if (++copying->entries > limits->max_entries)
        return refuse_archive(copying, "it has too many entries (--max-entries sets the limit)");
    if (size < 0 || (uint64_t)size > limits->max_bytes - copying->bytes)
        return refuse_archive(copying, "it has too many bytes (--max-bytes sets the limit)");
    copying->bytes += (uint64_t)size;
    const uint64_t unpacked = copying->bytes - copying->bytes_before;
    if (unpacked > RATIO_FROM && unpacked / limits->max_ratio > packed + RATIO_FROM)
        return refuse_archive(
            copying, "it unpacks to too many times its size (--max-ratio sets the limit)");
    return 0;
}

static int copy_data(
    struct copying *copying, struct archive *from, uint64_t size, const char *path) {
    uint64_t done = 0;

    while (done < size) {
        la_ssize_t n =
            archive_read_data(from, copying->chunk, (size_t)MIN(size - done, (uint64_t)CHUNK));

        if (n < 0)
            return refuse_archive(copying, text_or(archive_error_string(from), "it is damaged"));
        if (n == 0)
            return refuse_archive(copying, "it is truncated");
        if (archive_write_data(copying->tar, copying->chunk, (size_t)n) != n)
            return fail_write(copying, path);
        done += (uint64_t)n;
        const uint64_t packed = (uint64_t)MAX(archive_filter_bytes(from, -1), (la_int64_t)1);
        const uint64_t unpacked = copying->bytes - copying->bytes_before - size + done;
        if (unpacked > RATIO_FROM && unpacked / copying->step->limits.max_ratio > packed)
            return refuse_archive(
                copying, "it unpacks to too many times its size (--max-ratio sets the limit)");
    }
    return 0;
}

static int unpack_entry(
    struct copying *copying, struct archive *from, struct archive_entry *entry) {
    const mode_t type = archive_entry_filetype(entry);
    const char *link = archive_entry_hardlink(entry);
    const int64_t size = link || type != AE_IFREG ? 0 : archive_entry_size(entry);
    const la_int64_t uid = archive_entry_uid(entry), gid = archive_entry_gid(entry);
    const struct owner owner = { uid >= 0 && uid <= 65534 ? (uint32_t)uid : 65534,
        gid >= 0 && gid <= 65534 ? (uint32_t)gid : 65534, archive_entry_perm(entry) };
    auto_free char *path = NULL, *target = NULL;
    const char *symlink = archive_entry_symlink(entry);

    int r = check_amount(copying, from, size);
    if (r == 0)
        r = place_of(copying, archive_entry_pathname(entry), &path);
    if (r == 0 && link)
        r = place_of(copying, link, &target);
    if (r < 0)
        return r;
    const bool is_kept =
        link || type == AE_IFREG || type == AE_IFLNK || type == AE_IFIFO || type == AE_IFDIR;
    if (!is_kept || (type == AE_IFDIR && !link && (!path[0] || is_there(copying, path))))
        return 0; /* devices, and directories that are there */
    /* Missing directories are made when the layer is unpacked. A link of the archive is none. */
    struct archive_entry *to = new_entry(copying, path, link ? AE_IFREG : type, &owner);
    if (!to)
        return fail_copy(copying->error, -ENOMEM, "unpack", path);
    archive_entry_set_mtime(to, archive_entry_mtime(entry), archive_entry_mtime_nsec(entry));
    archive_entry_set_size(to, size);
    if (link)
        archive_entry_copy_hardlink(to, target);
    else if (type == AE_IFLNK)
        archive_entry_copy_symlink(to, text_or(symlink, ""));
    r = put_header(copying, to, path);
    return r == 0 && size ? copy_data(copying, from, (uint64_t)size, path) : r;
}

/* 1: the file is an archive, and is unpacked; 0: it is none. */
static int unpack_file(struct copying *copying, int fd) {
    struct archive *from = archive_read_new();
    struct archive_entry *entry;
    int r;

    if (!from)
        return fail_copy(copying->error, -ENOMEM, "unpack", copying->to);
    image_source_filters(from);
    archive_read_support_format_tar(from);
    const bool opens =
        lseek(fd, 0, SEEK_SET) >= 0 && archive_read_open_fd(from, fd, CHUNK) == ARCHIVE_OK;
    const int first = opens ? archive_read_next_header(from, &entry) : ARCHIVE_FATAL;
    /* A file of zeros is an archive without entries to libarchive, and a file to everybody else. */
    if (first < ARCHIVE_WARN || first == ARCHIVE_EOF) {
        archive_read_free(from);
        return 0;
    }
    int status = ARCHIVE_OK;
    copying->bytes_before = copying->bytes;
    r = put_parents(copying, copying->to);
    struct found there;
    if (r == 0 && copying->to[0] && source_find(copying->step->base, copying->to, &there) == 0) {
        found_done(&there);
    } else if (r == 0 && copying->to[0]) {
        const struct owner owner = { 0, 0, 0755 };

        r = put_header(copying, new_entry(copying, copying->to, AE_IFDIR, &owner), copying->to);
    }
    while (r == 0 && status >= ARCHIVE_WARN && status != ARCHIVE_EOF) {
        r = unpack_entry(copying, from, entry);
        if (r == 0)
            status = archive_read_next_header(from, &entry);
    }
    if (r == 0 && status < ARCHIVE_WARN)
        r = refuse_archive(copying, text_or(archive_error_string(from), "it is damaged"));
    archive_read_free(from);
    free(copying->parent);
    free(copying->resolved);
    copying->parent = copying->resolved = NULL;
    return r < 0 ? r : 1;
}

/* ---- inputs ---- */

/* The input's path in the image: inside the destination if the destination is a directory. */
static int choose_place(
    struct copying *copying, const struct copy_input *input, bool as_directory, char **ret_path) {
    const struct copy_step *step = copying->step;
    auto_free char *directory = NULL;
    struct found found;
    int r = source_resolve(step->base, step->destination, SOURCE_TAIL_FOLLOWED, &directory, NULL);

    if (r < 0)
        return fail_copy(copying->error, r, "find", step->destination);
    bool into = step->into_directory;
    if (source_find(step->base, directory, &found) == 0) {
        into |= S_ISDIR(found.st.st_mode);
        found_done(&found);
    }
    if (as_directory || !into) {
        *ret_path = TAKE_PTR(directory);
        return 0;
    }
    if (asprintf(ret_path, "%s%s%s", directory, directory[0] ? "/" : "",
            text_or(input->name, "file")) < 0)
        return fail_copy(copying->error, -ENOMEM, "find", step->destination);
    return 0;
}

/* 1: it was an archive. */
static int try_archive(struct copying *copying, const struct copy_input *input) {
    if (!copying->step->unpacks || input->is_directory || !input->source)
        return 0;
    auto_close int fd = source_open_file(input->source, input->path);
    if (fd < 0)
        return fd == -EINVAL ? 0 : fail_copy(copying->error, fd, "read", input->path);
    int r = choose_place(copying, input, true, &copying->to);
    if (r == 0)
        r = unpack_file(copying, fd);
    if (r <= 0) {
        free(copying->to);
        copying->to = NULL;
    }
    return r;
}

static int write_input(struct copying *copying, const struct copy_input *input) {
    copying->input = input;
    int r = try_archive(copying, input);
    if (r)
        return MIN(r, 0);
    r = choose_place(copying, input, input->is_directory, &copying->to);
    if (r == 0)
        r = put_parents(copying, copying->to);
    if (r == 0)
        r = input->source ? source_walk(input->source, input->path, &copying->step->excluded,
                                put_entry, copying, copying->error)
                          : put_data(copying, copying->to);
    return r;
}

/* WORKDIR: the directory alone. */
static int write_directory(struct copying *copying) {
    const struct owner owner = { 0, 0, 0755 };
    struct found found;
    int r = choose_place(copying, NULL, true, &copying->to);

    if (r == 0)
        r = put_parents(copying, copying->to);
    if (r < 0)
        return r;
    if (source_find(copying->step->base, copying->to, &found) == 0) {
        const bool is_directory = S_ISDIR(found.st.st_mode);

        found_done(&found);
        return is_directory ? 0 : check_place(copying, copying->to, true);
    }
    return put_header(copying, new_entry(copying, copying->to, AE_IFDIR, &owner), copying->to);
}

int copy_write(const struct copy_step *step, struct archive *tar, json_t **ret_report,
    struct rollbox_error *error) {
    struct copying copying = {
        .step = step, .tar = tar, .error = error, .chunk = malloc(CHUNK), .now = time(NULL)
    };
    char hex[DIGEST_HEX + 1];
    struct digest digest;
    int r = copying.chunk ? 0 : fail_copy(error, -ENOMEM, "copy", step->destination);

    if (r == 0 && !step->n_inputs)
        r = write_directory(&copying);
    for (size_t i = 0; r == 0 && i < step->n_inputs; i++) {
        free(copying.to);
        copying.to = NULL;
        r = write_input(&copying, &step->inputs[i]);
        inodes_done(&copying.inodes);
    }
    inodes_done(&copying.inodes);
    free(copying.to);
    free(copying.chunk);
    digest_init(&digest);
    if (r == 0)
        r = copy_digest(step, &digest, error);
    digest_end_hex(&digest, hex);
    if (r == 0)
        *ret_report = json_pack("{s:s}", "digest", hex);
    return r;
}
