/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing descriptors.
 *
 * What several descriptors, of several processes, have in common is the open file description (its offset, flags, the end of a pipe): kcmp(2) tells whether two are one. A description is captured once. What is in a pipe is
 * copied out by tee(2), which leaves it there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "snapshot/internal.h"
#include "sys/syscalls.h"

#define GET_SEALS 1034          /* F_GET_SEALS */
#define MEMORY_DEVICES 1        /* major: null, zero, full, random, urandom */

struct open_file {
    int number;
    char name[4096];            /* the kernel tells no more than a page of a link in /proc */
    struct stat st;
    struct buf info;            /* of fdinfo */
    uint64_t flags, offset;
};

static uint64_t field_number(const struct open_file *file, const char *name, int base) {
    return strtoull(capture_field(file->info.data, name), NULL, base);
}

/* Opens it anew, with an offset of its own. */
static int open_again(const struct subject *s, const struct open_file *file, int flags) {
    char path[32];

    snprintf(path, sizeof path, "fd/%d", file->number);
    int fd = openat(s->proc, path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int refuse(struct capture *c, const struct open_file *file, const char *why) {
    return capture_refuse(c, ENOTSUP, "its descriptor %d is %.200s: %s", file->number, file->name, why);
}

static int fail(struct capture *c, const struct open_file *file, int r) {
    return capture_fail(c, file->name, r);
}

/* ---- what it can be ----------------------------------------------------------------------------------------------------- */

/* Whether what is read at once is one: whatever is past the first byte is gone with that, then. */
static bool is_packet(int from, const int ends[2], size_t length) {
    int left = 0;
    char byte;

    return tee(from, ends[1], length, SPLICE_F_NONBLOCK) != (ssize_t)length || read(ends[0], &byte, 1) != 1 || ioctl(ends[0], FIONREAD, &left) < 0 || (size_t)left != length - 1;
}

/* What is in it, without taking it out. -ENOTSUP: packets (O_DIRECT of pipe(2)), of which a read takes one, whatever room it has. */
static int capture_content(struct capture *c, struct subject *s, const struct open_file *file, struct image_pipe *to) {
    auto_close int from = open_again(s, file, O_RDONLY | O_NONBLOCK);
    int ends[2], waiting = 0, r = 0;

    if (from < 0)
        return from;
    if (ioctl(from, FIONREAD, &waiting) < 0)
        return -errno;
    to->capacity = (uint64_t)fcntl(from, F_GETPIPE_SZ);
    if (!waiting)
        return 0;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    auto_free char *data = malloc((size_t)waiting);
    if (!data)
        r = -ENOMEM;
    if (r == 0 && fcntl(ends[1], F_SETPIPE_SZ, (int)to->capacity) < 0 && errno != EPERM)
        r = -errno;
    ssize_t n = r == 0 ? tee(from, ends[1], (size_t)waiting, SPLICE_F_NONBLOCK) : 0, taken = n > 0 ? read(ends[0], data, (size_t)n) : 0;
    if (taken < 0)
        r = -errno;
    else if (r == 0 && n > 0 && (taken != n || is_packet(from, ends, (size_t)n)))
        r = -ENOTSUP;
    if (r == 0 && n != waiting)
        r = n < 0 ? -errno : -EIO;
    if (r == 0) {
        to->data = capture_blob(c, data, (size_t)n);
        to->length = (uint64_t)n;
    }
    close(ends[0]);
    close(ends[1]);
    return r;
}

static bool is_known_inode(const struct capture *c, const struct open_file *file) {
    for (size_t i = 0; i < capture_count(&c->known, struct known_file); i++) {
        const struct known_file *known = capture_entry(&c->known, i, struct known_file);

        if (known->device == file->st.st_dev && known->inode == file->st.st_ino)
            return true;
    }
    return false;
}

static unsigned wanted_of(const struct open_file *file) {
    static const unsigned wanted[O_ACCMODE + 1] = { [O_RDONLY] = ACCESS_READ, [O_WRONLY] = ACCESS_WRITE, [O_RDWR] = ACCESS_READ | ACCESS_WRITE };

    return wanted[file->flags & O_ACCMODE];
}

/* /proc/PID/maps and its like, of threads, too. */
static bool is_of_memory(const char *path) {
    static const char *const names[] = { "auxv", "environ", "maps", "mem", "numa_maps", "pagemap", "smaps", "smaps_rollup" };
    const char *name = strrchr(path, '/') + 1;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(name, names[i]))
            return !strncmp(path, "/proc/", 6) && path[6] >= '1' && path[6] <= '9';
    return false;
}

/* Is there more of it to be listed? What the sandbox has written is copied, and listed in another order then; so positions in the middle are told by nothing. */
static bool is_listed_in_part(const struct subject *s, const struct open_file *file) {
    auto_close int fd = file->offset ? open_again(s, file, O_RDONLY | O_DIRECTORY) : -EBADF;
    char entries[512];
    struct statfs system;

    if (fd < 0 || fstatfs(fd, &system) < 0 || system.f_flags & ST_RDONLY || (system.f_type != OVERLAYFS_SUPER_MAGIC && system.f_type != TMPFS_MAGIC))
        return false;
    return lseek(fd, (off_t)file->offset, SEEK_SET) >= 0 && syscall(SYS_getdents64, fd, entries, sizeof entries) > 0;
}

/* By a path from the root. */
static struct number number_of(const char *path, const struct stat *st) {
    const char *name = strrchr(path, '/') + 1, *end = name - 1, *directory = end;

    while (directory > path && directory[-1] != '/')
        directory--;
    return numbers_of(numbers_name(directory, (size_t)(end - directory)), name, st);
}

static int capture_path(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    struct stat st;

    if (S_ISCHR(file->st.st_mode) && major(file->st.st_rdev) != MEMORY_DEVICES)
        return refuse(c, file, "a device");
    if (S_ISSOCK(file->st.st_mode) || S_ISBLK(file->st.st_mode))
        return refuse(c, file, "not a file");
    int r = memory_find_path(s, file->name, &st);
    if (r == -EACCES || (r == 0 && !access_reaches(c, s, file->name)))
        return refuse(c, file, "below a directory that it may not enter any more");
    if (r < 0 || st.st_dev != file->st.st_dev || st.st_ino != file->st.st_ino)
        return refuse(c, file, "at that name there is another file, or none, by now");
    if (is_of_memory(file->name))
        return refuse(c, file, "tells of the memory of a process, and cannot be opened before that goes on");
    if (!access_is_given(s, &st, wanted_of(file)) && !((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) && access_is_owner(s, &st)))
        return refuse(c, file, "another's, and it may not open that any more");
    if (S_ISDIR(file->st.st_mode) && is_listed_in_part(s, file)) {
        (void)refuse(c, file, "a directory that is being listed");
        return -EAGAIN;         /* for most that takes no time */
    }
    if (S_ISFIFO(file->st.st_mode) && !is_known_inode(c, file)) {
        struct image_pipe pipe = { 0 };

        r = capture_content(c, s, file, &pipe);
        if (r < 0)
            return fail(c, file, r);
        to->data = pipe.data;
        to->data_length = pipe.length;
    }
    if (S_ISREG(st.st_mode))
        numbers_add(&c->numbers, number_of(file->name, &st));
    to->kind = IMAGE_FILE_PATH;
    to->path = capture_text(c, file->name);
    to->offset = file->offset;
    return 0;
}

/* We may read more than it may: what it has opened for writing alone, and is not its own, its copy would get to read. */
static bool may_be_read(const struct subject *s, const struct open_file *file) {
    struct stat st;

    return (file->flags & O_ACCMODE) != O_WRONLY || (fstat(s->proc, &st) == 0 && st.st_uid == file->st.st_uid);
}

/* A memory file, or what has no name any more. */
static int capture_memory(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    bool is_memory_file = !strncmp(file->name, "/memfd:", 7);
    auto_close int fd = open_again(s, file, O_RDONLY | O_NONBLOCK);

    if (!S_ISREG(file->st.st_mode))
        return refuse(c, file, "deleted");
    if (!may_be_read(s, file))
        return refuse(c, file, "deleted, another's, and open for writing alone");
    if (fd < 0)
        return fail(c, file, fd);
    to->kind = IMAGE_FILE_MEMORY;
    to->is_nameless = !is_memory_file;
    to->length = (uint64_t)file->st.st_size;
    to->offset = file->offset;
    if (is_memory_file) {
        int seals = fcntl(fd, GET_SEALS);
        char name[256];

        snprintf(name, sizeof name, "%.*s", (int)(strcspn(file->name + 7, " ")), file->name + 7);
        to->path = capture_text(c, name);
        to->seals = seals < 0 ? 0 : (uint64_t)seals;
    }
    int r = memory_save_file(c, fd, to->length, &to->runs);
    return r == -E2BIG ? capture_refuse(c, E2BIG, "there are more than %llu bytes of memory", (unsigned long long)c->options->most_bytes) : r < 0 ? fail(c, file, r) : 0;
}

static bool is_external(const struct capture *c, uint64_t inode, uint64_t *ret_number) {
    for (size_t i = 0; i < c->options->n_externals; i++)
        if (c->options->externals[i] == inode) {
            *ret_number = i;
            return true;
        }
    return false;
}

static int capture_pipe(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    const uint64_t *inodes = (const void *)c->pipe_inodes.data;
    size_t n = capture_count(&c->pipe_inodes, uint64_t);
    const uint64_t inode = file->st.st_ino;

    if (is_external(c, inode, &to->value)) {
        to->kind = IMAGE_FILE_EXTERNAL;
        return 0;
    }
    if ((file->flags & O_ACCMODE) == O_RDWR)
        return refuse(c, file, "both ends of a pipe in one");
    to->kind = IMAGE_FILE_PIPE;
    for (to->value = 0; to->value < n; to->value++)
        if (inodes[to->value] == inode)
            return 0;
    struct image_pipe pipe = { 0 };
    int r = capture_content(c, s, file, &pipe);
    if (r < 0)
        return r == -ENOTSUP ? refuse(c, file, "in which packets wait") : fail(c, file, r);
    buf_add(&c->pipes, &pipe, sizeof pipe);
    buf_add(&c->pipe_inodes, &inode, sizeof inode);
    return 0;
}

/* What it watches is told by the number that it had when it was added, of a process that need not be this one, and may be another file's by now, or nobody's. Of several by one number it is the one that `n` others precede. */
static bool is_watched(const struct subject *s, int epoll, int fd, uint32_t n) {
    struct kcmp_epoll_slot slot = { .efd = (uint32_t)epoll, .tfd = (uint32_t)fd, .toff = n };

    return syscall(SYS_kcmp, s->pid, s->pid, KCMP_EPOLL_TFD, fd, &slot) == 0;
}

static uint32_t count_targets(const struct capture *c, size_t from, int fd) {
    uint32_t n = 0;

    for (size_t i = from; i < capture_count(&c->targets, struct image_target); i++)
        n += capture_entry(&c->targets, i, struct image_target)->fd == (uint32_t)fd;
    return n;
}

static int capture_epoll(struct capture *c, const struct subject *s, const struct open_file *file, struct image_file *to) {
    size_t before = capture_count(&c->targets, struct image_target);

    for (const char *at = file->info.data; (at = strstr(at, "\ntfd:")); at++) {
        struct image_target target = { 0 };
        unsigned long long data;
        int fd;

        if (sscanf(at, "\ntfd: %d events: %x data: %llx", &fd, &target.events, &data) != 3)
            return fail(c, file, -EBADMSG);
        if (!is_watched(s, file->number, fd, count_targets(c, before, fd)))
            return refuse(c, file, "and watches what was closed here, or never was open");
        target.fd = (uint32_t)fd;
        target.data = data;
        buf_add(&c->targets, &target, sizeof target);
    }
    to->kind = IMAGE_FILE_EPOLL;
    to->value = s->inner_pid;
    to->targets = capture_range(&c->targets, before, sizeof(struct image_target));
    return 0;
}

static int capture_timer(struct capture *c, const struct open_file *file, struct image_file *to) {
    uint64_t value[2], interval[2];

    if (sscanf(capture_field(file->info.data, "\nit_value: "), "(%" SCNu64 ", %" SCNu64 ")", &value[0], &value[1]) != 2 || sscanf(capture_field(file->info.data, "\nit_interval: "), "(%" SCNu64 ", %" SCNu64 ")", &interval[0], &interval[1]) != 2)
        return fail(c, file, -EBADMSG);
    to->kind = IMAGE_FILE_TIMER;
    to->value = field_number(file, "\nclockid: ", 10);
    if (still_is_marked(c, interval, value[0])) {
        to->length = interval[0];       /* init keeps its time */
        return 0;
    }
    to->ticks = field_number(file, "\nticks: ", 10);
    /* Until a moment of the day, however long nobody runs. Where the policy governs that, it goes on from where it stood. */
    if (to->value == CLOCK_REALTIME && field_number(file, "\nsettime flags: ", 8) & TFD_TIMER_ABSTIME && (value[0] || value[1]) &&
        !c->options->still) {
        struct timespec now;

        to->seals = field_number(file, "\nsettime flags: ", 8);
        (void)clock_gettime(CLOCK_REALTIME, &now);
        to->offset = ((uint64_t)now.tv_sec + value[0]) * 1000000000u + (uint64_t)now.tv_nsec + value[1];
    }
    for (size_t i = 0; i < 2; i++) {
        to->timer[i] = interval[i];
        to->timer[2 + i] = value[i];
    }
    return 0;
}

/* Descriptors of processes that end soon after are told by number, so only of one that is captured. */
static int capture_pidfd(struct capture *c, const struct open_file *file, struct image_file *to) {
    to->kind = IMAGE_FILE_PIDFD;
    to->value = capture_innermost(file->info.data, "\nNSpid:");
    for (size_t i = 0; i < c->n_subjects; i++)
        if (!c->subjects[i]->is_apart && c->subjects[i]->inner_pid == to->value)
            return 0;
    return refuse(c, file, "of a process that has ended");
}

/* What only a descriptor of our own tells. */
static int capture_copied(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    const char *why = NULL;
    auto_close int process = sys_pidfd_open(s->pid, 0);
    auto_close int fd = process < 0 ? process : sys_pidfd_getfd(process, file->number, 0);
    int r = fd;

    if (fd >= 0 && terminals_is_one(&file->st))
        r = terminals_capture(c, s, &file->st, TAKE_FD(fd), to, &why);
    else if (fd >= 0)
        r = S_ISSOCK(file->st.st_mode) ? sockets_capture(c, fd, file->st.st_ino, to, &why) : notify_capture(c, s, file->number, fd, file->info.data, to, &why);
    return why ? capture_refuse(c, r == -EAGAIN ? EAGAIN : ENOTSUP, "its descriptor %d is %.200s: %s", file->number, file->name, why) : r < 0 ? fail(c, file, r) : 0;
}

static int capture_other(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    if (!strcmp(file->name, "anon_inode:[eventfd]")) {
        to->kind = IMAGE_FILE_EVENT;
        to->value = field_number(file, "\neventfd-count:", 16);
        to->ticks = field_number(file, "\neventfd-semaphore:", 10);
        return 0;
    }
    if (!strcmp(file->name, "anon_inode:[eventpoll]"))
        return capture_epoll(c, s, file, to);
    if (!strcmp(file->name, "anon_inode:[timerfd]"))
        return capture_timer(c, file, to);
    if (!strcmp(file->name, "anon_inode:inotify"))
        return capture_copied(c, s, file, to);
    if (!strcmp(file->name, "anon_inode:[signalfd]")) {
        to->kind = IMAGE_FILE_SIGNAL;
        to->value = field_number(file, "\nsigmask:", 16);
        return 0;
    }
    if (!strcmp(file->name, "anon_inode:[pidfd]") || !strncmp(file->name, "pidfd:", 6))
        return capture_pidfd(c, file, to);
    if (!strncmp(file->name, "socket:", 7))
        return capture_copied(c, s, file, to);
    return refuse(c, file, "of a kind that is not captured");
}

static int capture_description(struct capture *c, struct subject *s, const struct open_file *file, struct image_file *to) {
    *to = (struct image_file){ .flags = (uint32_t)(file->flags & ~(uint64_t)O_CLOEXEC), .mode = file->st.st_mode };
    if (!strncmp(file->name, "pipe:[", 6))
        return capture_pipe(c, s, file, to);
    if (file->name[0] != '/')
        return capture_other(c, s, file, to);
    if (terminals_is_one(&file->st))
        return capture_copied(c, s, file, to);
    if (still_is_page(c, file->st.st_ino, file->name)) {
        to->kind = IMAGE_FILE_CLOCK;
        return 0;
    }
    if (!strncmp(file->name, "/memfd:", 7) || !file->st.st_nlink)
        return capture_memory(c, s, file, to);
    return capture_path(c, s, file, to);
}

/* ---- which ones --------------------------------------------------------------------------------------------------------- */

static bool is_same(const struct known_file *known, const struct subject *s, const struct open_file *file) {
    return known->device == file->st.st_dev && known->inode == file->st.st_ino && known->number >= 0 && syscall(SYS_kcmp, known->pid, s->pid, KCMP_FILE, known->number, file->number) == 0;
}

static int find_or_add(struct capture *c, struct subject *s, const struct open_file *file, uint32_t *ret_file) {
    size_t n = capture_count(&c->known, struct known_file);
    struct image_file image;

    for (size_t i = 0; i < n; i++)
        if (is_same(capture_entry(&c->known, i, struct known_file), s, file)) {
            *ret_file = (uint32_t)i;
            return 0;
        }
    /* A memory file that is open twice, or mapped, has its pages in common. */
    for (size_t i = 0; i < n && file->name[0] == '/' && !file->st.st_nlink && !still_is_page(c, file->st.st_ino, file->name); i++) {
        const struct known_file *known = capture_entry(&c->known, i, struct known_file);

        if (known->device == file->st.st_dev && known->inode == file->st.st_ino && known->number >= 0)
            return refuse(c, file, "a file without a name that is opened twice");
        if (known->inode == file->st.st_ino && known->number < 0)
            return refuse(c, file, "memory that another process maps");
    }
    if (n == IMAGE_MAX_FILES)
        return capture_refuse(c, E2BIG, "there are more than %u open files", IMAGE_MAX_FILES);
    int r = capture_description(c, s, file, &image);
    if (r < 0)
        return r;
    struct known_file known = { .pid = s->pid, .number = file->number, .device = file->st.st_dev, .inode = file->st.st_ino, .kind = image.kind };
    buf_add(&c->files, &image, sizeof image);
    buf_add(&c->known, &known, sizeof known);
    *ret_file = (uint32_t)n;
    return buf_failed(&c->files) || buf_failed(&c->known) ? capture_fail(c, "its descriptors", -ENOMEM) : 0;
}

/* "lock:\t1: POSIX  ADVISORY  WRITE 7 00:2a:1234 0 EOF" */
static int capture_locks(struct capture *c, const struct open_file *file) {
    for (const char *at = file->info.data; (at = strstr(at, "\nlock:")); at++) {
        struct image_lock lock = { .fd = (uint32_t)file->number };
        char kind[12], how[12], access[12], end[24];
        unsigned long long start;

        if (sscanf(at, "\nlock: %*d: %11s %11s %11s %*d %*s %llu %23s", kind, how, access, &start, end) != 5)
            return refuse(c, file, "locked in a way that is not known");
        lock.kind = !strcmp(kind, "FLOCK") ? IMAGE_LOCK_FLOCK : !strcmp(kind, "POSIX") ? IMAGE_LOCK_POSIX : !strcmp(kind, "OFDLCK") ? IMAGE_LOCK_OFD : 0;
        lock.is_write = !strcmp(access, "WRITE");
        lock.start = start;
        lock.length = strcmp(end, "EOF") ? strtoull(end, NULL, 10) - start + 1 : 0;
        if (!lock.kind)
            return refuse(c, file, "locked by a lease");
        buf_add(&c->locks, &lock, sizeof lock);
    }
    return 0;
}

/* What was opened through its master has the flag itself, if it was opened with it, and fdinfo tells of that: only the process knows. */
static int is_closed_on_exec(struct capture *c, struct subject *s, const struct open_file *file, uint32_t *ret_answer) {
    struct trace *trace = &tree_main(c, s)->trace;
    const uint64_t arguments[] = { (uint64_t)file->number, F_GETFD };
    int64_t result = !!(file->flags & O_CLOEXEC);

    if (result && terminals_is_one(&file->st)) {
        twin_made(c, s);
        int r = trace_call(trace, &s->tools, SYS_fcntl, arguments, ARRAY_SIZE(arguments), NULL, 0, &result);
        if (r == 0)
            r = trace_put_back(trace);
        if (r < 0 || result < 0)
            return fail(c, file, r < 0 ? r : (int)result);
    }
    *ret_answer = result & FD_CLOEXEC;
    return 0;
}

static int capture_one(struct capture *c, struct subject *s, int directory, int number, struct open_file *file) {
    char name[16], path[32];
    struct image_fd fd = { .number = (uint32_t)number };

    file->number = number;
    snprintf(name, sizeof name, "%d", number);
    snprintf(path, sizeof path, "fdinfo/%d", number);
    ssize_t n = readlinkat(directory, name, file->name, sizeof file->name - 1);
    if (n < 0 || fstatat(directory, name, &file->st, 0) < 0)
        return capture_fail(c, "its descriptors", -errno);
    file->name[n] = '\0';
    file->info.length = 0;
    buf_add(&file->info, "\n", 1);
    int r = capture_read(c, s, path, &file->info);
    if (r < 0)
        return capture_fail(c, "its descriptors", r);
    file->flags = field_number(file, "\nflags:", 8);
    file->offset = field_number(file, "\npos:", 10);
    if (file->flags & O_PATH)
        return refuse(c, file, "opened by O_PATH");
    if (file->flags & O_ASYNC)
        return refuse(c, file, "of which a signal tells its owner (O_ASYNC)");
    r = find_or_add(c, s, file, &fd.file);
    if (r == 0)
        r = capture_locks(c, file);
    if (r == 0)
        r = is_closed_on_exec(c, s, file, &fd.is_closed_on_exec);
    buf_add(&c->fds, &fd, sizeof fd);
    return r;
}

static int by_number(const void *a, const void *b) {
    const struct image_fd *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

int files_capture(struct capture *c, struct subject *s, struct image_process *process) {
    size_t before = capture_count(&c->fds, struct image_fd), locks_before = capture_count(&c->locks, struct image_lock);
    struct open_file *file = calloc(1, sizeof *file);
    int directory = openat(s->proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *list = directory < 0 ? NULL : fdopendir(directory);

    if (!file || !list)
        r = capture_fail(c, "its descriptors", file ? -errno : -ENOMEM);
    for (const struct dirent *entry; r == 0 && (errno = 0, entry = readdir(list));)
        if (entry->d_name[0] != '.')
            r = capture_one(c, s, dirfd(list), (int)strtol(entry->d_name, NULL, 10), file);
    if (r == 0 && errno)
        r = capture_fail(c, "its descriptors", -errno);
    if (list)
        closedir(list);
    else
        close_fd(&directory);
    if (file)
        buf_done(&file->info);
    free(file);
    process->fds = capture_range(&c->fds, before, sizeof(struct image_fd));
    process->locks = capture_range(&c->locks, locks_before, sizeof(struct image_lock));
    if (r == 0 && (buf_failed(&c->fds) || capture_count(&c->fds, struct image_fd) > IMAGE_MAX_FDS))
        return capture_fail(c, "its descriptors", -E2BIG);
    if (process->fds.n)
        qsort(capture_entry(&c->fds, before, struct image_fd), process->fds.n, sizeof(struct image_fd), by_number);
    return r;
}

/* What is mapped the kernel shows to privileged callers only (/proc/PID/map_files); else it is read as the process sees it. */
int files_memory(struct capture *c, struct subject *s, const struct map_line *map, uint32_t *ret_file) {
    struct image_file image = { .kind = IMAGE_FILE_MEMORY, .mode = S_IFREG | 0600, .flags = O_RDWR };
    char path[64];
    struct stat st;
    int r;

    for (size_t i = 0; i < capture_count(&c->known, struct known_file); i++) {
        const struct known_file *known = capture_entry(&c->known, i, struct known_file);
        const struct image_file *file = capture_entry(&c->files, i, struct image_file);

        if (known->inode == map->inode && known->kind == IMAGE_FILE_CLOCK) {
            *ret_file = (uint32_t)i;
            return 0;
        }
        if (known->inode != map->inode || known->kind != IMAGE_FILE_MEMORY)
            continue;
        if (map->offset + (map->end - map->start) > image_up_to(file->length, IMAGE_PAGE))
            return capture_refuse(c, ENOTSUP, "it shares more of the memory at 0x%llx than others do", (unsigned long long)map->start);
        *ret_file = (uint32_t)i;
        return 0;
    }
    if (capture_count(&c->known, struct known_file) == IMAGE_MAX_FILES)
        return capture_refuse(c, E2BIG, "there are more than %u open files", IMAGE_MAX_FILES);
    snprintf(path, sizeof path, "map_files/%llx-%llx", (unsigned long long)map->start, (unsigned long long)map->end);
    auto_close int fd = openat(s->proc, path, O_RDONLY | O_CLOEXEC);
    image.path = capture_text(c, "shared");
    if (still_is_page(c, map->inode, map->path)) {
        image.kind = IMAGE_FILE_CLOCK;
        r = 0;
    } else if (fd >= 0 && fstat(fd, &st) == 0) {
        image.length = (uint64_t)st.st_size;
        r = memory_save_file(c, fd, image.length, &image.runs);
    } else {
        image.length = map->offset + (map->end - map->start);
        r = memory_save_shared(c, s, map, &image.runs);
    }
    if (r < 0)
        return r == -E2BIG || c->error->code ? r : capture_fail(c, "its shared memory", r);
    struct known_file known = { .pid = s->pid, .number = -1, .inode = map->inode, .kind = image.kind };
    *ret_file = (uint32_t)capture_count(&c->files, struct image_file);
    buf_add(&c->files, &image, sizeof image);
    buf_add(&c->known, &known, sizeof known);
    return buf_failed(&c->files) || buf_failed(&c->known) ? capture_fail(c, "its shared memory", -ENOMEM) : 0;
}
