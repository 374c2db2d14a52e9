/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending and receiving a tree. transfer.h has the model.
 *
 * Sending: a file that changes meanwhile is skipped if it is gone, or sent up to the size that it
 * had when it was opened. Unreadable files are reported (SKIPPED), and sending continues. Receiving
 * ends at the first failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h> /* renameat */
#include <string.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/transfer.h"

#define NAMES_TRIED 100
#define MAGIC_PROC 0x9fa0
#define MAGIC_SYSFS 0x62656572

static int64_t ns_of(struct timespec t) {
    return (int64_t)((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

static void times_of(int64_t ns, struct timespec times[2]) {
    int64_t s = ns / 1000000000, rest = ns % 1000000000;

    times[0] = (struct timespec){ .tv_nsec = UTIME_NOW };
    times[1] =
        rest < 0 ? (struct timespec){ s - 1, rest + 1000000000 } : (struct timespec){ s, rest };
}

static int report_progress(struct transfer *t) {
    return t->tick ? t->tick(t) : 0;
}

static void set_name(struct transfer *t, const char *name) {
    memcpy(t->name, name, strlen(name) + 1);
}

static void note_skipped(struct transfer *t, const char *path, int error) {
    if (t->skipped++)
        return;
    t->skipped_error = error;
    memcpy(t->skipped_path, path, strlen(path) + 1);
}

/* ---- sending ---- */

static int send_skipped(struct transfer *t, const char *name, int error) {
    char *path = t->out; /* nothing else is in it between two entries */

    transfer_stack_path(&t->stack, name, path, TRANSFER_TEXT_MAX);
    note_skipped(t, path, error);
    return transfer_send(t,
        (struct transfer_record){ .type = TRANSFER_SKIPPED, .number = (uint64_t)error }, path, NULL,
        0);
}

/* Finds the next data of a sparse file. 1, or 0 if there is none before `size`. */
static int next_extent(int fd, uint64_t *start, uint64_t size, uint64_t *ret_end) {
    off_t data = lseek(fd, (off_t)*start, SEEK_DATA);

    if (data < 0 && errno == ENXIO)
        return 0;
    if (data >= 0)
        *start = (uint64_t)data;
    off_t end = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    *ret_end = end < 0 ? size : MIN((uint64_t)end, size);
    return *start < size;
}

/* Sends the rest of a file up to its size. Size 0: up to its end, because files of /proc have no
 * size. */
static int send_rest(
    struct transfer *t, int fd, uint64_t position, uint64_t size, bool sparse, uint64_t most) {
    bool endless = size == 0;
    struct stat st;
    int r = 0;

    while (r == 0 && (endless || position < size)) {
        uint64_t start = position, end = endless ? UINT64_MAX : size;
        if (sparse && next_extent(fd, &start, size, &end) == 0)
            break;
        ssize_t n = pread(fd, t->out, MIN(end - start, (uint64_t)TRANSFER_DATA_MAX), (off_t)start);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        if (start + (uint64_t)n > most)
            return -EFBIG;
        position = start + (uint64_t)n;
        t->bytes += (uint64_t)n;
        r = transfer_send(t, (struct transfer_record){ .type = TRANSFER_DATA, .number = start },
            NULL, t->out, (size_t)n);
        if (r == 0)
            r = report_progress(t);
    }
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return -errno;
    size = endless ? position : MAX(position, MIN(size, (uint64_t)st.st_size));
    return transfer_send(t,
        (struct transfer_record){
            .type = TRANSFER_FILE_END, .size = size, .mtime_ns = ns_of(st.st_mtim) },
        NULL, NULL, 0);
}

static int send_file(struct transfer *t, int fd, const struct stat *st, const char *name,
    uint64_t flags, uint64_t most) {
    uint64_t size = (uint64_t)st->st_size,
             wanted = size ? MIN(size, (uint64_t)TRANSFER_DATA_MAX) : TRANSFER_DATA_MAX;
    bool sparse = (uint64_t)st->st_blocks * 512 < size;
    struct transfer_record record = { .type = TRANSFER_FILE,
        .mode = st->st_mode & 07777,
        .size = size,
        .number = flags,
        .mtime_ns = ns_of(st->st_mtim) };
    ssize_t n = 0;

    if (size > most)
        return -EFBIG;
    if (!sparse) {
        n = pread(fd, t->out, wanted, 0);
        if (n < 0)
            return -errno;
        if ((uint64_t)n > most)
            return -EFBIG;
    }
    if (!sparse && (size ? (uint64_t)n < wanted || (uint64_t)n == size : n == 0)) {
        record.number |= TRANSFER_FILE_COMPLETE;
        record.size = (uint64_t)n;
    }
    t->files++;
    t->bytes += (uint64_t)n;
    int r = transfer_send(t, record, name, t->out, (size_t)n);
    if (r == 0)
        r = report_progress(t);
    return r < 0 || record.number & TRANSFER_FILE_COMPLETE
               ? r
               : send_rest(t, fd, (uint64_t)n, size, sparse, most);
}

int transfer_send_file(struct transfer *transfer, int fd, const char *name, uint64_t most) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode)   ? send_file(transfer, fd, &st, name, 0, most)
           : S_ISDIR(st.st_mode) ? -EISDIR
                                 : -EINVAL;
}

/* Looks for a file that was sent under another name. 1: found, and which; 0: it is remembered from
 * now on; -ENOSPC: there is no room to remember it. */
static int find_link(
    struct transfer *t, const struct stat *st, const char *name, uint32_t *ret_index) {
    uint64_t hash = ((uint64_t)st->st_dev * 31 + st->st_ino) * 0x9e3779b97f4a7c15u;
    size_t b = (size_t)(hash >> 32) % ARRAY_SIZE(t->buckets),
           room = sizeof t->texts - t->texts_length;

    for (; t->buckets[b]; b = (b + 1) % ARRAY_SIZE(t->buckets)) {
        uint32_t i = t->buckets[b] - 1u;
        if (t->links[i].device == st->st_dev && t->links[i].inode == st->st_ino) {
            *ret_index = i;
            return 1;
        }
    }
    const struct transfer_level *level = transfer_stack_level(&t->stack);
    if (t->n_links == TRANSFER_LINKS_MAX || room < TRANSFER_TEXT_MAX || !level->named ||
        level->path_length + strlen(name) + 2 > TRANSFER_TEXT_MAX)
        return -ENOSPC;
    t->links[t->n_links].device = st->st_dev;
    t->links[t->n_links].inode = st->st_ino;
    t->links[t->n_links].text = t->texts_length;
    transfer_stack_path(&t->stack, name, t->texts + t->texts_length, TRANSFER_TEXT_MAX);
    t->texts_length += (uint32_t)strlen(t->texts + t->texts_length) + 1;
    t->buckets[b] = (uint16_t)++t->n_links;
    return 0;
}

static int send_regular(struct transfer *t, int directory, const char *name) {
    auto_close int fd =
        openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    uint64_t flags = 0;
    uint32_t index;

    if (fd < 0)
        return errno == ENOENT ? 0 : send_skipped(t, name, errno);
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return 0;
    if (st.st_nlink > 1) {
        int r = find_link(t, &st, name, &index);
        if (r == 1) {
            const char *text = t->texts + t->links[index].text;
            t->files++;
            return transfer_send(t,
                (struct transfer_record){ .type = TRANSFER_HARDLINK, .number = index }, name, text,
                strlen(text) + 1);
        }
        if (r == 0)
            flags = TRANSFER_FILE_LINKED;
    }
    int r = send_file(t, fd, &st, name, flags, UINT64_MAX);
    /* The first block could not be read. Nothing of the file was sent, so the other end must not
     * receive a link to it. */
    if ((r == -EIO || r == -EACCES || r == -EPERM) && !flags)
        r = send_skipped(t, name, -r);
    return r;
}

static int send_symlink(
    struct transfer *t, int directory, const char *name, const struct stat *st) {
    ssize_t n = readlinkat(directory, name, t->out, TRANSFER_TEXT_MAX);

    if (n < 0)
        return errno == ENOENT ? 0 : send_skipped(t, name, errno);
    if (n == 0 || n == TRANSFER_TEXT_MAX)
        return send_skipped(t, name, ENAMETOOLONG);
    t->out[n] = '\0';
    t->files++;
    return transfer_send(t,
        (struct transfer_record){ .type = TRANSFER_SYMLINK, .mtime_ns = ns_of(st->st_mtim) }, name,
        t->out, (size_t)n + 1);
}

/* The kernel's own views are no files to take along. */
static bool is_view(int fd) {
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 &&
           ((uint32_t)fs.f_type == MAGIC_PROC || (uint32_t)fs.f_type == MAGIC_SYSFS);
}

/* 1: went down into it; 0: it is not sent. */
static int enter_directory(struct transfer *t, int directory, const char *name) {
    auto_close int fd =
        openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return errno == ENOENT ? 0 : send_skipped(t, name, errno);
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_dev != transfer_stack_level(&t->stack)->device && is_view(fd))
        return 0;
    int r = transfer_stack_enter(&t->stack, TAKE_FD(fd), name);
    if (r == -ELOOP)
        return send_skipped(t, name, ELOOP);
    if (r == 0)
        r = transfer_send(t,
            (struct transfer_record){ .type = TRANSFER_ENTER, .mode = st.st_mode & 07777 }, name,
            NULL, 0);
    return r < 0 ? r : 1;
}

static int send_entry(struct transfer *t, int directory, const char *name) {
    struct stat st;

    set_name(t, name);
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : send_skipped(t, name, errno);
    if (S_ISDIR(st.st_mode))
        return enter_directory(t, directory, name);
    return S_ISREG(st.st_mode)   ? send_regular(t, directory, name)
           : S_ISLNK(st.st_mode) ? send_symlink(t, directory, name, &st)
                                 : 0;
}

/* Continues with the directory at the top of the stack. 1: entered a directory below it; 0: reached
 * its end. */
static int send_directory(struct transfer *t) {
    _Alignas(8) char entries[4096];
    struct transfer_level *level = transfer_stack_level(&t->stack);
    int directory = transfer_stack_top(&t->stack);
    long n;

    if (lseek(directory, level->offset, SEEK_SET) < 0)
        return -errno;
    while ((n = transfer_read_entries(directory, entries, sizeof entries)) > 0) {
        const char *name;

        for (long at = 0; (name = transfer_next_entry(entries, n, &at, &level->offset));) {
            int r = send_entry(t, directory, name);
            if (r == 0)
                r = report_progress(t);
            if (r)
                return r;
        }
    }
    return n == -ENOENT ? 0 : (int)n;
}

int transfer_send_tree(struct transfer *transfer, int take_fd) {
    auto_close int fd = take_fd;
    struct transfer_stack *stack = &transfer->stack;
    struct stat st;
    int r;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISREG(st.st_mode)) {
        r = send_file(transfer, fd, &st, "", 0, UINT64_MAX);
        return r < 0 ? r
                     : transfer_send(transfer, (struct transfer_record){ .type = TRANSFER_DONE },
                           NULL, NULL, 0);
    }
    if (!S_ISDIR(st.st_mode))
        return -EINVAL;
    r = transfer_stack_enter(stack, TAKE_FD(fd), "");
    if (r == 0)
        r = transfer_send(transfer,
            (struct transfer_record){ .type = TRANSFER_ENTER, .mode = st.st_mode & 07777 }, NULL,
            NULL, 0);
    while (r >= 0 && stack->depth) {
        r = send_directory(transfer);
        if (r)
            continue;
        if (fstat(transfer_stack_top(stack), &st) < 0)
            return -errno;
        struct transfer_record leave = {
            .type = TRANSFER_LEAVE, .mode = st.st_mode & 07777, .mtime_ns = ns_of(st.st_mtim)
        };
        r = transfer_send(transfer, leave, NULL, NULL, 0);
        if (r == 0)
            r = transfer_stack_leave(stack);
    }
    return r < 0 ? r
                 : transfer_send(
                       transfer, (struct transfer_record){ .type = TRANSFER_DONE }, NULL, NULL, 0);
}

/* ---- taking ---- */

void transfer_take_begin(struct transfer *transfer, const struct transfer_target *target) {
    transfer->target = *target;
}

/* The directory that the entry at work is in. */
static int current_directory(const struct transfer *t) {
    return t->stack.depth        ? t->stack.fds[(t->stack.depth - 1) % TRANSFER_OPEN_MAX]
           : t->target.into >= 0 ? t->target.into
                                 : t->target.parent;
}

void transfer_done(struct transfer *transfer) {
    if (transfer->file >= 0)
        (void)unlinkat(current_directory(transfer), transfer->temporary, 0);
    close_fd(&transfer->file);
    close_fd(&transfer->root);
    transfer_stack_done(&transfer->stack);
}

/* Names that others cannot well foresee; if they do, another one is tried. */
static void next_temporary(struct transfer *t) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t n =
        ((uint64_t)ns_of(now) ^ (uint64_t)getpid() << 40 ^ (uintptr_t)t) * 0x9e3779b97f4a7c15u +
        t->n_temporary++;
    memcpy(t->temporary, ".rollbox-", 9);
    for (int i = 0; i < 16; i++, n >>= 4)
        t->temporary[9 + i] = "0123456789abcdef"[n & 15];
    t->temporary[25] = '\0';
}

/* A new entry, which no other has opened yet. */
static int give_to_owner(const struct transfer *t, int directory, const char *name) {
    return t->target.has_owner && fchownat(directory, name, t->target.owner, t->target.group,
                                      AT_SYMLINK_NOFOLLOW) < 0
               ? -errno
               : 0;
}

int transfer_make_temporary(struct transfer *transfer, int directory, mode_t mode) {
    for (int i = 0; i < NAMES_TRIED; i++) {
        next_temporary(transfer);
        int fd = openat(directory, transfer->temporary,
            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return -errno;
        if (!transfer->target.has_owner ||
            fchown(fd, transfer->target.owner, transfer->target.group) == 0)
            return fd;
        int r = -errno;
        (void)unlinkat(directory, transfer->temporary, 0);
        close(fd);
        return r;
    }
    return -EEXIST;
}

int transfer_write_at(int fd, const char *data, size_t length, int64_t offset) {
    while (length) {
        ssize_t n = pwrite(fd, data, length, offset);

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            data += n;
            length -= (size_t)n;
            offset += n;
        }
    }
    return 0;
}

/* A rename over a device, FIFO or socket removes it. In a sandbox these files are the guest's and
 * can be replaced. On the host they are kept: root could otherwise lose /dev/null by one command.
 */
static bool is_kept_special_file(const struct transfer *t) {
    struct stat st;

    return !t->target.replaces &&
           fstatat(current_directory(t), t->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode);
}

/* An entry begins: its name is found, and whether it may come now. */
static int begin_file(struct transfer *t, const struct transfer_message *m) {
    if (t->complete || t->file >= 0 || (t->stack.depth == 0) != !*m->name)
        return -EBADMSG;
    if (t->stack.depth)
        set_name(t, m->name);
    else
        set_name(t, t->target.into < 0                 ? t->target.name
                    : m->record.type == TRANSFER_ENTER ? ""
                                                       : t->target.inner_name);
    t->begun = true;
    return is_kept_special_file(t) ? -EINVAL : 0;
}

/* An entry is over. */
static void end_file(struct transfer *t) {
    t->complete = t->stack.depth == 0;
}

/* Renames the file from its temporary name to its own. */
static int name_it(struct transfer *t, int r) {
    int directory = current_directory(t);

    if (r == 0 && renameat(directory, t->temporary, directory, t->name) < 0)
        r = -errno;
    if (r == 0) {
        t->files++;
        end_file(t);
    }
    return r;
}

static int finish_file(struct transfer *t, uint64_t size, int64_t mtime_ns) {
    struct timespec times[2];
    struct stat st;
    int r = 0;

    if (size > INT64_MAX || (int64_t)size < t->position)
        return -EBADMSG;
    times_of(mtime_ns, times);
    if ((int64_t)size > t->position && ftruncate(t->file, (off_t)size) < 0)
        r = -errno;
    (void)futimens(t->file, times);
    if (t->file_linked && fstat(t->file, &st) == 0) {
        t->links[t->n_links].device = st.st_dev;
        t->links[t->n_links++].inode = st.st_ino;
    }
    r = name_it(t, r);
    if (r == 0)
        close_fd(&t->file);
    return r;
}

static int take_data(struct transfer *t, const struct transfer_message *m, uint64_t offset) {
    if (t->file < 0 || offset > INT64_MAX - TRANSFER_DATA_MAX || (int64_t)offset < t->position)
        return -EBADMSG;
    t->position = (int64_t)offset + m->record.data_length;
    t->bytes += m->record.data_length;
    return transfer_write_at(t->file, m->data, m->record.data_length, (int64_t)offset);
}

static int take_file(struct transfer *t, const struct transfer_message *m) {
    int r = begin_file(t, m);

    if (r == 0 && m->record.number & TRANSFER_FILE_LINKED &&
        (t->n_links == TRANSFER_LINKS_MAX || !t->stack.depth))
        r = -EBADMSG;
    if (r < 0)
        return r;
    int fd = transfer_make_temporary(t, current_directory(t), m->record.mode);
    if (fd < 0)
        return fd;
    t->file = fd;
    t->file_linked = m->record.number & TRANSFER_FILE_LINKED;
    t->position = 0;
    r = m->record.data_length ? take_data(t, m, 0) : 0;
    /* On the host the caller's umask was applied; in a sandbox it is 0. */
    return r == 0 && m->record.number & TRANSFER_FILE_COMPLETE
               ? finish_file(t, m->record.size, m->record.mtime_ns)
               : r;
}

static int take_symlink(struct transfer *t, const struct transfer_message *m) {
    struct timespec times[2];
    int r = begin_file(t, m), directory = current_directory(t);

    for (int i = 0; r == 0; i++) {
        next_temporary(t);
        if (symlinkat(m->data, directory, t->temporary) == 0)
            break;
        if (errno != EEXIST || i == NAMES_TRIED)
            r = -errno;
    }
    if (r < 0)
        return r;
    times_of(m->record.mtime_ns, times);
    r = give_to_owner(t, directory, t->temporary);
    (void)utimensat(directory, t->temporary, times, AT_SYMLINK_NOFOLLOW);
    if (r == 0)
        r = name_it(t, 0);
    if (r < 0)
        (void)unlinkat(directory, t->temporary, 0);
    return r;
}

static int copy_entry(
    struct transfer *t, int from_directory, const char *name, uint64_t device, uint64_t inode) {
    auto_close int from =
        openat(from_directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct timespec times[2] = { { .tv_nsec = UTIME_NOW } };
    struct stat st;
    int64_t at = 0;
    ssize_t n;

    if (from < 0 || fstat(from, &st) < 0)
        return -errno;
    if (st.st_dev != device || st.st_ino != inode)
        return -ESTALE;
    auto_close int to = transfer_make_temporary(t, current_directory(t), st.st_mode);
    if (to < 0)
        return to;
    while ((n = pread(from, t->out, TRANSFER_DATA_MAX, at)) > 0) {
        int r = transfer_write_at(to, t->out, (size_t)n, at);
        if (r < 0)
            return r;
        at += n;
    }
    times[1] = st.st_mtim;
    (void)futimens(to, times);
    return n < 0 ? -errno : 0;
}

/* The directory of a path from the root, one component at a time and through no link; *ret_name is
 * its last one. */
static int find_directory(struct transfer *t, char *path, const char **ret_name) {
    auto_close int fd = openat(t->root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

    for (char *slash; fd >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        *slash = '\0';
        if (!transfer_is_name(path))
            return -EBADMSG;
        int inner = openat(fd, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close_fd(&fd);
        fd = inner;
    }
    if (fd < 0)
        return -errno;
    *ret_name = path;
    return transfer_is_name(path) ? TAKE_FD(fd) : -EBADMSG;
}

static int take_hardlink(struct transfer *t, const struct transfer_message *m) {
    char *path = t->out;
    const char *name = NULL;
    struct stat st;
    int r = begin_file(t, m);

    if (r < 0 || m->record.number >= t->n_links || t->root < 0)
        return -EBADMSG;
    memcpy(path, m->data, m->record.data_length);
    auto_close int directory = find_directory(t, path, &name);
    if (directory < 0)
        return directory;
    uint64_t device = t->links[m->record.number].device, inode = t->links[m->record.number].inode;
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (st.st_dev != device || st.st_ino != inode)
        return -ESTALE;
    next_temporary(t);
    if (linkat(directory, name, current_directory(t), t->temporary, 0) < 0) {
        if (errno != EXDEV && errno != EPERM && errno != EMLINK && errno != EOPNOTSUPP)
            return -errno;
        r = copy_entry(t, directory, name, device, inode);
    } else if (fstatat(current_directory(t), t->temporary, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
               st.st_dev != device || st.st_ino != inode) {
        r = -ESTALE;
    }
    r = name_it(t, r);
    /* Renaming one name of a file over another does nothing. */
    (void)unlinkat(current_directory(t), t->temporary, 0);
    return r;
}

static int make_directory(struct transfer *t, uint32_t mode, bool *ret_made) {
    int directory = current_directory(t);

    for (int i = 0; i < 3; i++) {
        *ret_made = mkdirat(directory, t->name, (mode & 01777) | 0700) == 0;
        if (!*ret_made && errno != EEXIST)
            return -errno;
        int fd = openat(directory, t->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && *ret_made && t->target.has_owner &&
            fchown(fd, t->target.owner, t->target.group) < 0) {
            int r = -errno;
            close(fd);
            return r;
        }
        if (fd >= 0)
            return fd;
        if (errno != ENOTDIR && errno != ELOOP)
            return -errno;
        if (!t->target.replaces || !t->stack.depth)
            return -ENOTDIR;
        if (unlinkat(directory, t->name, 0) < 0 && errno != ENOENT)
            return -errno;
    }
    return -ENOTDIR;
}

static int take_enter(struct transfer *t, const struct transfer_message *m) {
    bool made = false, is_root = t->stack.depth == 0;
    int r = begin_file(t, m);

    if (r < 0)
        return r;
    int fd = is_root && t->target.into >= 0
                 ? openat(t->target.into, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                 : make_directory(t, m->record.mode, &made);
    if (fd < 0)
        return is_root && t->target.into >= 0 ? -errno : fd;
    if (is_root && (t->root = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        r = -errno;
        close(fd);
        return r;
    }
    r = transfer_stack_enter(&t->stack, fd, is_root ? "" : t->name);
    if (r == 0)
        transfer_stack_level(&t->stack)->made = made;
    return r;
}

static int take_leave(struct transfer *t, const struct transfer_message *m) {
    if (!t->stack.depth || t->file >= 0)
        return -EBADMSG;
    if (transfer_stack_level(&t->stack)->made) {
        int fd = transfer_stack_top(&t->stack);
        struct timespec times[2];
        struct stat st;

        if (fstat(fd, &st) < 0)
            return -errno;
        mode_t mode = st.st_mode & (m->record.mode | 06000) & 07777;
        if (mode != (st.st_mode & 07777) && fchmod(fd, mode) < 0)
            return -errno;
        times_of(m->record.mtime_ns, times);
        (void)futimens(fd, times);
    }
    int r = transfer_stack_leave(&t->stack);
    if (r == 0)
        end_file(t);
    return r;
}

static int take_message(struct transfer *t, const struct transfer_message *m) {
    switch ((int)m->record.type) {
    case TRANSFER_FILE:
        return take_file(t, m);
    case TRANSFER_DATA:
        return take_data(t, m, m->record.number);
    case TRANSFER_FILE_END:
        return t->file < 0 ? -EBADMSG : finish_file(t, m->record.size, m->record.mtime_ns);
    case TRANSFER_SYMLINK:
        return take_symlink(t, m);
    case TRANSFER_HARDLINK:
        return take_hardlink(t, m);
    case TRANSFER_ENTER:
        return take_enter(t, m);
    case TRANSFER_LEAVE:
        return take_leave(t, m);
    case TRANSFER_SKIPPED:
        note_skipped(t, m->name, (int)m->record.number);
        return 0;
    case TRANSFER_DONE:
        return t->complete ? 1 : -EBADMSG;
    default:
        return -EBADMSG;
    }
}

int transfer_take(struct transfer *transfer, const struct transfer_message *message) {
    int r = take_message(transfer, message);

    return r == 0 ? report_progress(transfer) : r;
}
