/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_source.h"

#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/files.h"
#include "sys/syscalls.h"

#define BLOCK (256u << 10)
#define MAX_LINKS 8

void image_source_filters(struct archive *archive) {
    archive_read_support_filter_gzip(archive);
    archive_read_support_filter_bzip2(archive);
    archive_read_support_filter_xz(archive);
    archive_read_support_filter_lzma(archive);
    archive_read_support_filter_zstd(archive);
    archive_read_support_filter_lz4(archive);
}

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
}

static int bad_archive(struct archive *archive, struct rollbox_error *error) {
    const char *text = archive_error_string(archive);

    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
        "the archive cannot be read: %s; it may be truncated, or not a tar archive",
        text ? files_printable(text) : "unknown format");
}

static int open_tar(
    const struct image_source *source, struct archive **ret_archive, struct rollbox_error *error) {
    struct archive *archive = archive_read_new();

    if (!archive)
        return out_of_memory(error);
    image_source_filters(archive);
    archive_read_support_format_tar(archive);
    if (lseek(source->fd, 0, SEEK_SET) < 0 ||
        archive_read_open_fd(archive, source->fd, BLOCK) != ARCHIVE_OK) {
        int r = bad_archive(archive, error);
        archive_read_free(archive);
        return r;
    }
    *ret_archive = archive;
    return 0;
}

/* A member's name without "./"; NULL if it leads anywhere but down. */
static const char *plain_name(const char *name) {
    while (name && name[0] == '.' && name[1] == '/')
        name += 2;
    if (!name || !name[0] || name[0] == '/' || strcmp(name, "..") == 0 ||
        strncmp(name, "../", 3) == 0 || strstr(name, "/../") ||
        (strlen(name) > 3 && strcmp(name + strlen(name) - 3, "/..") == 0))
        return NULL;
    return name;
}

/* docker save writes a layer that it has already as "../ID/layer.tar": relative to the link's own
 * directory. */
static char *resolve_link(const char *name, const char *target) {
    const char *slash = strrchr(name, '/');
    size_t base = slash ? (size_t)(slash - name) : 0;
    auto_buf struct buf path = BUF_INIT;

    if (target[0] == '/')
        return NULL;
    buf_add(&path, name, base);
    for (const char *p = target; *p;) {
        size_t n = strcspn(p, "/");

        if (n == 2 && p[0] == '.' && p[1] == '.') {
            if (!path.length)
                return NULL;
            while (path.length && path.data[path.length - 1] != '/')
                path.length--;
            if (path.length)
                path.length--;
        } else if (n && !(n == 1 && p[0] == '.')) {
            if (path.length)
                buf_add(&path, "/", 1);
            buf_add(&path, p, n);
        }
        p += n + (p[n] == '/');
    }
    buf_add(&path, "", 1);
    return buf_failed(&path) ? NULL : strdup(path.data);
}

static int compare_members(const void *a, const void *b) {
    return strcmp(((const struct image_source_member *)a)->name,
        ((const struct image_source_member *)b)->name);
}

static int list_members(
    struct image_source *source, struct archive *archive, struct rollbox_error *error) {
    struct archive_entry *entry;
    size_t capacity = 0;
    int r;

    while ((r = archive_read_next_header(archive, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        const char *name = plain_name(archive_entry_pathname(entry)),
                   *link = archive_entry_symlink(entry), *hard = archive_entry_hardlink(entry);
        struct image_source_member member = {
            .size = archive_entry_size(entry) > 0 ? (uint64_t)archive_entry_size(entry) : 0
        };

        if (!name || (!hard && !link && archive_entry_filetype(entry) != AE_IFREG))
            continue;
        if (source->n_members == SOURCE_MAX_MEMBERS)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "import",
                "the archive has more than %d members, too many for an image", SOURCE_MAX_MEMBERS);
        if (source->n_members == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            struct image_source_member *more = realloc(source->members, capacity * sizeof *more);
            if (!more)
                return out_of_memory(error);
            source->members = more;
        }
        if (hard && plain_name(hard))
            member.target = strdup(plain_name(hard));
        else if (!hard && link)
            member.target = resolve_link(name, link);
        if ((hard || link) && !member.target)
            continue;
        member.name = strdup(name);
        source->members[source->n_members++] = member;
        if (!member.name)
            return out_of_memory(error);
    }
    if (r != ARCHIVE_EOF)
        return bad_archive(archive, error);
    if (source->n_members)
        qsort(source->members, source->n_members, sizeof *source->members, compare_members);
    return 0;
}

int image_source_open(int fd, struct image_source *ret_source, struct rollbox_error *error) {
    struct image_source source = { .fd = fd };
    struct archive *archive;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "import", "cannot examine the archive: %s",
            strerror(errno));
    source.is_directory = S_ISDIR(st.st_mode);
    if (!source.is_directory) {
        int r = open_tar(&source, &archive, error);

        if (r < 0)
            return r;
        r = list_members(&source, archive, error);
        archive_read_free(archive);
        if (r < 0) {
            image_source_done(&source);
            return r;
        }
    }
    *ret_source = source;
    return 0;
}

void image_source_done(struct image_source *source) {
    for (size_t i = 0; i < source->n_members; i++) {
        free(source->members[i].name);
        free(source->members[i].target);
    }
    free(source->members);
    *source = (struct image_source){ .fd = -EBADF };
}

/* Through links. NULL: not there, or they go round. */
static const struct image_source_member *find_member(
    const struct image_source *source, const char *name) {
    for (int i = 0; i < MAX_LINKS && source->n_members; i++) {
        const struct image_source_member key = { .name = (char *)(uintptr_t)name };
        const struct image_source_member *member =
            bsearch(&key, source->members, source->n_members, sizeof key, compare_members);

        if (!member || !member->target)
            return member;
        name = member->target;
    }
    return NULL;
}

static int open_file(const struct image_source *source, const char *name) {
    struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    struct stat st;

    auto_close int fd = sys_openat2(source->fd, name, &how);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -EINVAL;
    return TAKE_FD(fd);
}

bool image_source_has(const struct image_source *source, const char *name) {
    if (!source->is_directory)
        return find_member(source, name) != NULL;
    auto_close int fd = open_file(source, name);
    return fd >= 0;
}

uint64_t image_source_size(const struct image_source *source, const char *name) {
    struct stat st;

    if (!source->is_directory) {
        const struct image_source_member *member = find_member(source, name);
        return member ? member->size : 0;
    }
    auto_close int fd = open_file(source, name);
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static int fail_missing(const char *name, int error_number, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, error_number, "import",
        "the image is not complete: %s is missing or cannot be read (%s)", files_printable(name),
        strerror(error_number));
}

int stream_open(struct image_source *source, const char *name, struct stream *ret_stream,
    struct rollbox_error *error) {
    struct stream stream = { .source = source, .fd = -EBADF };
    struct archive_entry *entry;
    int r;

    digest_init(&stream.digest);
    if (source->is_directory) {
        stream.fd = open_file(source, name);
        if (stream.fd < 0)
            return fail_missing(name, -stream.fd, error);
        stream.buffer = malloc(BLOCK);
        if (!stream.buffer) {
            stream_close(&stream);
            return out_of_memory(error);
        }
        *ret_stream = stream;
        return 0;
    }
    const struct image_source_member *member = find_member(source, name);
    if (!member)
        return fail_missing(name, ENOENT, error);
    r = open_tar(source, &stream.archive, error);
    if (r < 0)
        return r;
    while (
        (r = archive_read_next_header(stream.archive, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        const char *there = plain_name(archive_entry_pathname(entry));

        if (there && archive_entry_filetype(entry) == AE_IFREG && !archive_entry_hardlink(entry) &&
            strcmp(there, member->name) == 0) {
            *ret_stream = stream;
            return 0;
        }
    }
    r = r == ARCHIVE_EOF ? fail_missing(name, ENOENT, error) : bad_archive(stream.archive, error);
    stream_close(&stream);
    return r;
}

ssize_t stream_read(struct stream *stream, const void **ret_data) {
    ssize_t n;

    if (stream->archive) {
        la_int64_t offset;
        size_t length = 0;
        int r;

        do
            r = archive_read_data_block(stream->archive, ret_data, &length, &offset);
        while ((r == ARCHIVE_OK || r == ARCHIVE_WARN) && !length);
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN && r != ARCHIVE_EOF)
            return -EBADMSG;
        n = r == ARCHIVE_EOF ? 0 : (ssize_t)length;
    } else {
        do
            n = read(stream->fd, stream->buffer, BLOCK);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return -errno;
        *ret_data = stream->buffer;
    }
    if (n > 0) {
        digest_add(&stream->digest, *ret_data, (size_t)n);
        stream->bytes += (uint64_t)n;
        if (stream->source->progress)
            stream->source->progress(stream->source->progress_context, (uint64_t)n);
    }
    return n;
}

void stream_close(struct stream *stream) {
    close_fd(&stream->fd);
    free(stream->buffer);
    stream->buffer = NULL;
    if (stream->archive)
        archive_read_free(stream->archive);
    stream->archive = NULL;
}

int image_source_text(
    struct image_source *source, const char *name, struct buf *to, struct rollbox_error *error) {
    struct stream stream;
    const void *data;
    ssize_t n;
    int r = stream_open(source, name, &stream, error);

    if (r < 0)
        return r;
    while ((n = stream_read(&stream, &data)) > 0) {
        buf_add(to, data, (size_t)n);
        if (to->length > SOURCE_MAX_TEXT || buf_failed(to))
            break;
    }
    stream_close(&stream);
    if (n < 0)
        return fail_missing(name, (int)-n, error);
    if (buf_failed(to))
        return out_of_memory(error);
    if (to->length > SOURCE_MAX_TEXT)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "import",
            "%s of the image has more than %u bytes", files_printable(name), SOURCE_MAX_TEXT);
    buf_add(to, "", 0);
    return 0;
}
