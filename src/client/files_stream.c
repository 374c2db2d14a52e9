/* SPDX-License-Identifier: Apache-2.0 */
/* Files and trees as streams; files_stream.h has the model. */
#include "client/files_stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/tar.h"
#include "client/files_agent.h"

#define ZEROS_BYTES ((size_t)64 << 10)
#define MODE_DIRECTORY 0755

static const char zeros[ZEROS_BYTES];

/* A call with one agent, or more while there is no room for any. */
static int with_agent(struct rollbox_sandbox *sandbox, const char *path,
    const struct rollbox_file_options *options,
    int (*call)(struct files *files, void *data, struct rollbox_error *error), void *data,
    struct rollbox_error *error) {
    const int64_t since_ns = clock_now_ns();
    unsigned tries = 0;
    bool again;
    int r;

    do {
        struct files files;

        if (error)
            error->code = ROLLBOX_OK;
        r = files_agent_open(&files, sandbox, error);
        if (r >= 0) {
            files.user = options ? options->user : NULL;
            files.owner = options ? options->owner : NULL;
            r = files_set_path(&files, path, error);
        }
        if (r >= 0)
            r = call(&files, data, error);
        again = files_try_again(r, since_ns, &tries);
        files_done(&files);
    } while (again);
    return r;
}

static int is_cancelled(int r, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_CANCELLED, -r, "files",
        "the other end of the stream is gone: %s", strerror(-r));
}

/* ---- reading ---- */

struct reading {
    int fd;
    uint64_t offset; /* bytes of the present file that are written */
};

static int write_out(
    const struct reading *reading, const void *data, size_t length, struct rollbox_error *error) {
    int r = length ? fd_write_all(reading->fd, data, length) : 0;

    return r < 0 ? is_cancelled(r, error) : 0;
}

/* Zeros up to an offset. */
static int fill(struct reading *reading, uint64_t offset, struct rollbox_error *error) {
    int r = 0;

    while (r == 0 && reading->offset < offset) {
        size_t n = (size_t)MIN(offset - reading->offset, (uint64_t)ZEROS_BYTES);

        r = write_out(reading, zeros, n, error);
        reading->offset += n;
    }
    return r;
}

/* One message of a file. `ret_ends`: the file is complete. */
static int take_piece(const struct files *files, struct reading *reading,
    const struct transfer_message *m, bool *ret_ends, struct rollbox_error *error) {
    const struct transfer_record *record = &m->record;
    bool is_first = record->type == TRANSFER_FILE;
    uint64_t offset = is_first ? 0 : record->number;

    *ret_ends =
        record->type == TRANSFER_FILE_END || (is_first && record->number & TRANSFER_FILE_COMPLETE);
    if (is_first)
        reading->offset = 0;
    if (record->type == TRANSFER_FILE_END)
        offset = record->size;
    if (offset < reading->offset || offset > (uint64_t)INT64_MAX / 2)
        return files_agent_lost(files, -EBADMSG, error);
    int r = fill(reading, offset, error);
    if (r == 0 && record->type != TRANSFER_FILE_END) {
        r = write_out(reading, m->data, record->data_length, error);
        reading->offset += record->data_length;
    }
    return r;
}

static int read_file(struct files *files, void *data, struct rollbox_error *error) {
    struct reading *reading = data;
    const struct transfer_record request = { .type = TRANSFER_READ, .size = INT64_MAX / 4 };
    struct transfer_message m;
    bool begun = false, ended = false;
    int r = files_send_request(files, request, NULL, 0, error);

    while (r == 0 && (r = files_next_message(files, "read", &m, error)) == 0) {
        if (m.record.type == TRANSFER_DONE && ended)
            return 0;
        bool is_expected =
            m.record.type == TRANSFER_FILE
                ? !begun
                : begun && !ended &&
                      (m.record.type == TRANSFER_DATA || m.record.type == TRANSFER_FILE_END);
        if (!is_expected)
            return files_agent_lost(files, -EBADMSG, error);
        begun = true;
        r = take_piece(files, reading, &m, &ended, error);
    }
    return r;
}

int files_stream_read(
    struct rollbox_sandbox *sandbox, const char *path, int fd, struct rollbox_error *error) {
    struct reading reading = { .fd = fd };

    return with_agent(sandbox, path, NULL, read_file, &reading, error);
}

/* ---- archives ---- */

struct archive {
    struct reading reading;
    struct tar_entry entry;  /* the last one */
    char path[TAR_TEXT_MAX]; /* of the present directory, with a slash at its end */
    size_t depth, lengths[TRANSFER_DEPTH_MAX]; /* of the paths of the directories above */
    uint64_t announced;                        /* the size of the present file */
    bool in_file, has_root;
};

/* The head of an entry in the present directory. */
static int write_head(struct archive *archive, const struct transfer_message *m, enum tar_type type,
    const char *end, struct rollbox_error *error) {
    struct tar_entry *entry = &archive->entry;
    const char *name = archive->has_root || m->name[0] ? m->name : "";
    auto_buf struct buf head = BUF_INIT;

    entry->type = type;
    entry->mode = m->record.mode;
    entry->mtime_ns = m->record.mtime_ns;
    entry->size = m->record.size;
    if (type != TAR_SYMLINK && type != TAR_HARDLINK)
        entry->target[0] = '\0';
    size_t length = strlen(archive->path);
    if (length + strlen(name) + strlen(end) >= sizeof entry->path)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENAMETOOLONG, "files",
            "a path in the tree is too long for an archive");
    memcpy(entry->path, archive->path, length);
    memcpy(entry->path + length, name, strlen(name));
    memcpy(entry->path + length + strlen(name), end, strlen(end) + 1);
    tar_add_head(&head, entry);
    return buf_failed(&head)
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "files", "out of memory")
               : write_out(&archive->reading, head.data, head.length, error);
}

/* A file has its length in its head, and may be changed while it is read: it is cut, or filled up
 * with zeros. */
static int archive_file(const struct files *files, struct archive *archive,
    const struct transfer_message *m, struct rollbox_error *error) {
    struct transfer_message piece = *m;
    bool ends = false;
    int r = 0;

    if (m->record.type == TRANSFER_FILE) {
        r = write_head(archive, m, TAR_FILE, archive->has_root ? "" : "file", error);
        archive->announced = m->record.size;
        archive->in_file = true;
    }
    if (piece.record.type == TRANSFER_FILE_END)
        piece.record.size = MIN(piece.record.size, archive->announced);
    else if (piece.record.type == TRANSFER_FILE || piece.record.number <= archive->announced)
        piece.record.data_length = (uint32_t)MIN((uint64_t)piece.record.data_length,
            archive->announced - (piece.record.type == TRANSFER_FILE ? 0 : piece.record.number));
    else
        return 0;
    if (piece.record.type == TRANSFER_FILE_END && piece.record.size < archive->reading.offset)
        piece.record.size = archive->reading.offset;
    if (r == 0)
        r = take_piece(files, &archive->reading, &piece, &ends, error);
    if (r < 0 || !ends)
        return r;
    archive->in_file = false;
    r = fill(&archive->reading, archive->announced, error);
    return r < 0 ? r : write_out(&archive->reading, zeros, tar_padding(archive->announced), error);
}

static int archive_link(
    struct archive *archive, const struct transfer_message *m, struct rollbox_error *error) {
    bool is_symlink = m->record.type == TRANSFER_SYMLINK;
    size_t length = strnlen(m->data, m->record.data_length);

    if (length >= sizeof archive->entry.target)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENAMETOOLONG, "files",
            "a link's target is too long for an archive");
    memcpy(archive->entry.target, m->data, length);
    archive->entry.target[length] = '\0';
    struct transfer_message head = *m;
    head.record.mode = is_symlink ? 0777 : 0644;
    return write_head(archive, &head, is_symlink ? TAR_SYMLINK : TAR_HARDLINK, "", error);
}

static int archive_enter(const struct files *files, struct archive *archive,
    const struct transfer_message *m, struct rollbox_error *error) {
    size_t length = strlen(archive->path);
    int r;

    if (archive->depth == TRANSFER_DEPTH_MAX)
        return files_agent_lost(files, -EBADMSG, error);
    if (!archive->has_root) {
        archive->has_root = true;
        archive->lengths[archive->depth++] = 0;
        return 0; /* the archive's root has no entry */
    }
    r = write_head(archive, m, TAR_DIRECTORY, "/", error);
    if (r < 0)
        return r;
    archive->lengths[archive->depth++] = length;
    memcpy(archive->path, archive->entry.path, sizeof archive->path);
    return 0;
}

static int archive_message(const struct files *files, struct archive *archive,
    const struct transfer_message *m, struct rollbox_error *error) {
    bool is_of_file = m->record.type == TRANSFER_DATA || m->record.type == TRANSFER_FILE_END;

    if (is_of_file != archive->in_file)
        return files_agent_lost(files, -EBADMSG, error);
    switch ((int)m->record.type) {
    case TRANSFER_FILE:
    case TRANSFER_DATA:
    case TRANSFER_FILE_END:
        return archive_file(files, archive, m, error);
    case TRANSFER_SYMLINK:
    case TRANSFER_HARDLINK:
        return archive_link(archive, m, error);
    case TRANSFER_ENTER:
        return archive_enter(files, archive, m, error);
    case TRANSFER_LEAVE:
        if (!archive->depth)
            return files_agent_lost(files, -EBADMSG, error);
        archive->path[archive->lengths[--archive->depth]] = '\0';
        return 0;
    case TRANSFER_SKIPPED:
        return 0;
    default:
        return files_agent_lost(files, -EBADMSG, error);
    }
}

static int archive_tree(struct files *files, void *data, struct rollbox_error *error) {
    struct archive *archive = data;
    struct transfer_message m;
    int r =
        files_send_request(files, (struct transfer_record){ .type = TRANSFER_GET }, NULL, 0, error);

    while (r == 0 && (r = files_next_message(files, "read", &m, error)) == 0) {
        if (m.record.type == TRANSFER_DONE)
            return write_out(&archive->reading, zeros, (size_t)2 * TAR_BLOCK, error);
        r = archive_message(files, archive, &m, error);
    }
    return r;
}

int files_stream_archive(
    struct rollbox_sandbox *sandbox, const char *path, int fd, struct rollbox_error *error) {
    auto_free struct archive *archive = calloc(1, sizeof *archive);

    if (!archive)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "files", "out of memory");
    archive->reading.fd = fd;
    return with_agent(sandbox, path, NULL, archive_tree, archive, error);
}

/* ---- writing ---- */

/* A trajectory has the content of what is written, and a stream is not kept. 0, or the error. */
static int check_unrecorded(const struct files *files, struct rollbox_error *error) {
    if (!files->is_recorded)
        return 0;
    files_give_up(files);
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "files",
        "the sandbox is recorded, and its trajectory would miss a stream: send files of at most 8 "
        "MiB, or use rollbox cp or Sandbox.upload");
}

struct writing {
    int fd;
    uint64_t size;
    unsigned mode;
    char piece[TRANSFER_DATA_MAX];
};

static int read_in(void *userdata, void *data, size_t length) {
    const struct writing *writing = userdata;

    for (size_t done = 0; done < length;) {
        ssize_t n = read(writing->fd, (char *)data + done, length - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

/* What the agent says after it did not take everything, or everything. */
static int end_writing(const struct files *files, int r, struct rollbox_error *error) {
    if (r == 0 || files_is_of_socket(r))
        return r == -ETIMEDOUT ? files_agent_lost(files, r, error)
                               : files_expect_done(files, "write", error);
    files_give_up(files);
    return r == -ENODATA ? is_cancelled(-EPIPE, error) : is_cancelled(r, error);
}

static int write_file(struct files *files, void *data, struct rollbox_error *error) {
    struct writing *writing = data;
    struct transfer *t = files->transfer;
    const struct transfer_record request = {
        .type = TRANSFER_WRITE, .mode = writing->mode, .size = writing->size
    };
    int r = files_send_request(files, request, NULL, 0, error);

    if (r == 0)
        r = check_unrecorded(files, error);
    if (r < 0)
        return r;
    t->listens = true;
    for (uint64_t at = 0; r == 0 && at < writing->size;) {
        size_t n = (size_t)MIN(writing->size - at, (uint64_t)sizeof writing->piece);

        r = read_in(writing, writing->piece, n);
        if (r == 0)
            r = transfer_send(t, (struct transfer_record){ .type = TRANSFER_DATA, .number = at },
                NULL, writing->piece, n);
        at += n;
    }
    t->listens = false;
    return end_writing(files, r, error);
}

int files_stream_write(struct rollbox_sandbox *sandbox, const char *path, int fd, uint64_t size,
    const struct rollbox_file_options *options, struct rollbox_error *error) {
    auto_free struct writing *writing = malloc(sizeof *writing);

    if (!writing)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "files", "out of memory");
    writing->fd = fd;
    writing->size = size;
    writing->mode = options->mode ? options->mode : 0644;
    return with_agent(sandbox, path, options, write_file, writing, error);
}

/* ---- extraction ---- */

struct extraction {
    struct writing writing;
    struct tar_entry entry;
    char path[TAR_TEXT_MAX]; /* of the directory that is entered, without a slash at its end */
    unsigned depth;
    uint16_t modes[TAR_TEXT_MAX];  /* of the directories that are entered */
    char fault[TAR_TEXT_MAX + 80]; /* of the archive */
};

static int send(struct files *files, struct transfer_record record, const char *name) {
    return transfer_send(files->transfer, record, name, NULL, 0);
}

/* Whether the path has only names; "." and slashes at both ends are taken away. */
static bool plain_path(char *path) {
    char *to = path;
    const char *from = path;

    while (*from) {
        size_t n = strcspn(from, "/");
        bool is_name = n && !(n == 1 && from[0] == '.');

        if ((n == 2 && !memcmp(from, "..", 2)) || n >= TRANSFER_NAME_MAX)
            return false;
        if (is_name && to != path)
            *to++ = '/';
        if (is_name) {
            memmove(to, from, n);
            to += n;
        }
        from += n + (from[n] == '/');
    }
    *to = '\0';
    return true;
}

static int leave(struct files *files, struct extraction *extraction) {
    char *slash = strrchr(extraction->path, '/');

    *(slash ? slash : extraction->path) = '\0';
    extraction->depth--;
    return send(files,
        (struct transfer_record){ .type = TRANSFER_LEAVE,
            .mode = extraction->modes[extraction->depth],
            .mtime_ns = clock_real_ns() },
        NULL);
}

static int enter(
    struct files *files, struct extraction *extraction, const char *name, size_t n, unsigned mode) {
    char text[TRANSFER_NAME_MAX];
    size_t length = strlen(extraction->path);

    memcpy(text, name, n);
    text[n] = '\0';
    if (length)
        extraction->path[length++] = '/';
    memcpy(extraction->path + length, text, n + 1);
    extraction->modes[extraction->depth++] = (uint16_t)mode;
    return send(files, (struct transfer_record){ .type = TRANSFER_ENTER, .mode = mode }, text);
}

/* Goes to the directory of a path of `length` bytes. */
static int go_to(
    struct files *files, struct extraction *extraction, const char *path, size_t length) {
    int r = 0;

    for (size_t n; r == 0 && (n = strlen(extraction->path));) {
        if (n <= length && !memcmp(extraction->path, path, n) && (n == length || path[n] == '/'))
            break;
        r = leave(files, extraction);
    }
    while (r == 0) {
        size_t at = strlen(extraction->path);

        at += at && at < length;
        if (at >= length)
            break;
        r = enter(files, extraction, path + at, MIN(strcspn(path + at, "/"), length - at),
            MODE_DIRECTORY);
    }
    return r;
}

static int extract_file(struct files *files, struct extraction *extraction, const char *name) {
    const struct tar_entry *entry = &extraction->entry;
    struct writing *writing = &extraction->writing;
    struct transfer *t = files->transfer;
    int r = send(files,
        (struct transfer_record){ .type = TRANSFER_FILE,
            .mode = entry->mode & 01777,
            .size = entry->size,
            .mtime_ns = entry->mtime_ns },
        name);

    for (uint64_t at = 0; r == 0 && at < entry->size;) {
        size_t n = (size_t)MIN(entry->size - at, (uint64_t)sizeof writing->piece);

        r = read_in(writing, writing->piece, n);
        if (r == 0)
            r = transfer_send(t, (struct transfer_record){ .type = TRANSFER_DATA, .number = at },
                NULL, writing->piece, n);
        at += n;
    }
    if (r == 0)
        r = read_in(writing, writing->piece, tar_padding(entry->size));
    return r < 0 ? r
                 : send(files,
                       (struct transfer_record){ .type = TRANSFER_FILE_END,
                           .size = entry->size,
                           .mtime_ns = entry->mtime_ns },
                       NULL);
}

/* Hard links would need the order of the transfer's files; archives of this kind are refused. */
static int extract_entry(struct files *files, struct extraction *extraction) {
    struct tar_entry *entry = &extraction->entry;

    if (!plain_path(entry->path) || entry->type == TAR_HARDLINK) {
        (void)snprintf(extraction->fault, sizeof extraction->fault, "%s: %.2000s",
            entry->type == TAR_HARDLINK ? "hard links are not taken" : "the path leads outside",
            entry->path);
        return -EOPNOTSUPP;
    }
    if (!entry->path[0])
        return entry->type == TAR_DIRECTORY ? 0 : -EBADMSG;
    const char *slash = strrchr(entry->path, '/');
    const char *name = slash ? slash + 1 : entry->path;
    int r = go_to(files, extraction, entry->path, slash ? (size_t)(slash - entry->path) : 0);
    if (r < 0)
        return r;
    switch (entry->type) {
    case TAR_DIRECTORY:
        return enter(files, extraction, name, strlen(name), entry->mode & 01777);
    case TAR_SYMLINK:
        return transfer_send(files->transfer,
            (struct transfer_record){ .type = TRANSFER_SYMLINK, .mtime_ns = entry->mtime_ns }, name,
            entry->target, strlen(entry->target) + 1);
    case TAR_FILE:
    case TAR_HARDLINK:
        break;
    }
    return extract_file(files, extraction, name);
}

/* What follows the end of an archive, such as padding of records, is read and dropped. */
static void drain(const struct extraction *extraction) {
    char rest[4096];

    while (read(extraction->writing.fd, rest, sizeof rest) > 0)
        ;
}

static int extract_tree(struct files *files, void *data, struct rollbox_error *error) {
    struct extraction *extraction = data;
    int r = files_send_request(
        files, (struct transfer_record){ .type = TRANSFER_PUT }, "tree", 5, error);

    if (r == 0)
        r = check_unrecorded(files, error);
    if (r < 0)
        return r;
    files->transfer->listens = true;
    r = send(files, (struct transfer_record){ .type = TRANSFER_ENTER, .mode = MODE_DIRECTORY }, "");
    while (r == 0) {
        r = tar_next(read_in, &extraction->writing, &extraction->entry);
        if (r <= 0)
            break;
        r = extract_entry(files, extraction);
    }
    if (r == 0)
        r = go_to(files, extraction, "", 0);
    if (r == 0)
        r = send(files,
            (struct transfer_record){
                .type = TRANSFER_LEAVE, .mode = MODE_DIRECTORY, .mtime_ns = clock_real_ns() },
            NULL);
    if (r == 0)
        r = send(files, (struct transfer_record){ .type = TRANSFER_DONE }, NULL);
    files->transfer->listens = false;
    if (r == -EBADMSG || r == -EOPNOTSUPP) {
        files_give_up(files);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, -r, "files", "the tar archive %s%s",
            r == -EBADMSG ? "is malformed, or not a tar archive" : "cannot be taken: ",
            r == -EBADMSG          ? ""
            : extraction->fault[0] ? extraction->fault
                                   : extraction->entry.path);
    }
    if (r == 0)
        drain(extraction);
    return end_writing(files, r, error);
}

int files_stream_extract(struct rollbox_sandbox *sandbox, const char *path, int fd,
    const struct rollbox_file_options *options, struct rollbox_error *error) {
    auto_free struct extraction *extraction = calloc(1, sizeof *extraction);

    if (!extraction)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "files", "out of memory");
    extraction->writing.fd = fd;
    return with_agent(sandbox, path, options, extract_tree, extraction, error);
}
