/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping descriptors.
 *
 * Several descriptors, of several processes, can refer to one open file description, with its
 * offset, flags or end of a pipe. kcmp(2) tells whether they do. Each description is dumped once.
 * The content of a pipe is copied by tee(2), which leaves it there.
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
#include "dump/internal.h"
#include "sys/syscalls.h"

#define GET_SEALS 1034    /* F_GET_SEALS */
#define GET_OWNER_UIDS 17 /* F_GETOWNER_UIDS */
#define MEMORY_DEVICES 1  /* major number of null, zero, full, random and urandom */

struct open_file {
    int number;
    char name[4096]; /* a link in /proc is at most a page long */
    struct stat st;
    struct buf info; /* text of fdinfo */
    uint64_t flags, offset;
};

static uint64_t field_number(const struct open_file *file, const char *name, int base) {
    return strtoull(dump_field(file->info.data, name), NULL, base);
}

/* Opens the file again, with a separate offset. */
static int open_again(const struct dump_process *s, const struct open_file *file, int flags) {
    char path[32];

    snprintf(path, sizeof path, "fd/%d", file->number);
    int fd = openat(s->proc, path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int refuse_file(struct dump *c, const struct open_file *file, const char *why) {
    return dump_refuse(
        c, ENOTSUP, "its descriptor %d is %.200s: %s", file->number, file->name, why);
}

static int fail_file(struct dump *c, const struct open_file *file, int r) {
    return dump_fail(c, file->name, r);
}

/* ---- kinds of files ---- */

/* Does the pipe hold a packet? Reading one byte of a packet discards the rest of it. */
static bool is_packet(int from, const int ends[2], size_t length) {
    int left = 0;
    char byte;

    return tee(from, ends[1], length, SPLICE_F_NONBLOCK) != (ssize_t)length ||
           read(ends[0], &byte, 1) != 1 || ioctl(ends[0], FIONREAD, &left) < 0 ||
           (size_t)left != length - 1;
}

/* The content of a pipe, without taking it out. -ENOTSUP: packets (O_DIRECT of pipe(2)), because
 * their boundaries cannot be seen. */
static int dump_content(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_pipe *to) {
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
    ssize_t n = r == 0 ? tee(from, ends[1], (size_t)waiting, SPLICE_F_NONBLOCK) : 0,
            taken = n > 0 ? read(ends[0], data, (size_t)n) : 0;
    if (taken < 0)
        r = -errno;
    else if (r == 0 && n > 0 && (taken != n || is_packet(from, ends, (size_t)n)))
        r = -ENOTSUP;
    if (r == 0 && n != waiting)
        r = n < 0 ? -errno : -EIO;
    if (r == 0) {
        to->data = dump_blob(c, data, (size_t)n);
        to->length = (uint64_t)n;
    }
    close(ends[0]);
    close(ends[1]);
    return r;
}

static bool is_known_inode(const struct dump *c, const struct open_file *file) {
    for (size_t i = 0; i < dump_count(&c->known, struct known_file); i++) {
        const struct known_file *known = dump_entry(&c->known, i, struct known_file);

        if (known->device == file->st.st_dev && known->inode == file->st.st_ino)
            return true;
    }
    return false;
}

static unsigned wanted_of(const struct open_file *file) {
    static const unsigned wanted[O_ACCMODE + 1] = {
        [O_RDONLY] = ACCESS_READ, [O_WRONLY] = ACCESS_WRITE, [O_RDWR] = ACCESS_READ | ACCESS_WRITE
    };

    return wanted[file->flags & O_ACCMODE];
}

/* /proc/PID/maps and similar files, also of threads. */
static bool is_of_memory(const char *path) {
    static const char *const names[] = { "auxv", "environ", "maps", "mem", "numa_maps", "pagemap",
        "smaps", "smaps_rollup" };
    const char *name = strrchr(path, '/') + 1;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(name, names[i]))
            return !strncmp(path, "/proc/", 6) && path[6] >= '1' && path[6] <= '9';
    return false;
}

/* Is a directory listing in progress? The files are copied for the snapshot and listed in another
 * order there, so a position in the middle has no meaning. */
static bool is_listed_in_part(const struct dump_process *s, const struct open_file *file) {
    auto_close int fd = file->offset ? open_again(s, file, O_RDONLY | O_DIRECTORY) : -EBADF;
    char entries[512];
    struct statfs system;

    if (fd < 0 || fstatfs(fd, &system) < 0 || system.f_flags & ST_RDONLY ||
        (system.f_type != OVERLAYFS_SUPER_MAGIC && system.f_type != TMPFS_MAGIC))
        return false;
    return lseek(fd, (off_t)file->offset, SEEK_SET) >= 0 &&
           syscall(SYS_getdents64, fd, entries, sizeof entries) > 0;
}

/* Only for a path that begins at the root. */
static struct number number_of(const char *path, const struct stat *st) {
    const char *name = strrchr(path, '/') + 1, *end = name - 1, *directory = end;

    while (directory > path && directory[-1] != '/')
        directory--;
    return inode_numbers_of(inode_numbers_name(directory, (size_t)(end - directory)), name, st);
}

static int dump_path(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    struct stat st;

    if (S_ISCHR(file->st.st_mode) && major(file->st.st_rdev) != MEMORY_DEVICES)
        return refuse_file(c, file, "a device");
    if (S_ISSOCK(file->st.st_mode) || S_ISBLK(file->st.st_mode))
        return refuse_file(c, file, "not a file");
    int r = memory_find_path(s, file->name, &st);
    if (r == -EACCES || (r == 0 && !access_reaches(c, s, file->name)))
        return refuse_file(c, file, "the process may no longer enter a directory of its path");
    if (r < 0 || st.st_dev != file->st.st_dev || st.st_ino != file->st.st_ino)
        return refuse_file(c, file, "the path no longer leads to this file");
    if (is_of_memory(file->name))
        return refuse_file(
            c, file, "a /proc file of a process's memory, which a restore cannot open again");
    if (!access_is_given(c, s, &st, wanted_of(file)) &&
        !((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) && access_is_owner(s, &st)))
        return refuse_file(c, file, "a file of another user, which the process may no longer open");
    if (S_ISDIR(file->st.st_mode) && is_listed_in_part(s, file)) {
        (void)refuse_file(c, file, "a directory that is being listed");
        return -EAGAIN; /* most checks take no time */
    }
    if (S_ISFIFO(file->st.st_mode) && !is_known_inode(c, file)) {
        struct image_pipe pipe = { 0 };

        r = dump_content(c, s, file, &pipe);
        if (r < 0)
            return fail_file(c, file, r);
        to->data = pipe.data;
        to->data_length = pipe.length;
    }
    if (S_ISREG(st.st_mode))
        inode_numbers_add(&c->numbers, number_of(file->name, &st));
    to->kind = IMAGE_FILE_PATH;
    to->path = dump_text(c, file->name);
    to->offset = file->offset;
    return 0;
}

/* The dump worker may read more than the process. If the process has opened a file of another user
 * for writing only, dumping its content would let the restored process read it. */
static bool may_be_read(const struct dump_process *s, const struct open_file *file) {
    struct stat st;

    return (file->flags & O_ACCMODE) != O_WRONLY ||
           (fstat(s->proc, &st) == 0 && st.st_uid == file->st.st_uid);
}

/* A memory file, or a file without a name. */
static int dump_memory(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    bool is_memory_file = !strncmp(file->name, "/memfd:", 7);
    auto_close int fd = open_again(s, file, O_RDONLY | O_NONBLOCK);

    if (!S_ISREG(file->st.st_mode))
        return refuse_file(c, file, "deleted");
    if (!c->options->many_users && !may_be_read(s, file))
        return refuse_file(c, file, "a deleted file of another user, open for writing only");
    if (fd < 0)
        return fail_file(c, file, fd);
    to->kind = IMAGE_FILE_MEMORY;
    to->is_nameless = !is_memory_file;
    if (c->options->many_users)
        credentials_owner(c, &file->st, &to->owner, &to->group);
    to->length = (uint64_t)file->st.st_size;
    to->offset = file->offset;
    if (is_memory_file) {
        int seals = fcntl(fd, GET_SEALS);
        char name[256];

        snprintf(name, sizeof name, "%.*s", (int)(strcspn(file->name + 7, " ")), file->name + 7);
        to->path = dump_text(c, name);
        to->seals = seals < 0 ? 0 : (uint64_t)seals;
    }
    int r = memory_save_file(c, fd, to->length, &to->runs);
    return r == -E2BIG ? dump_refuse(c, E2BIG, "the processes have more than %llu bytes of memory",
                             (unsigned long long)c->options->max_bytes)
           : r < 0     ? fail_file(c, file, r)
                       : 0;
}

static bool is_external(const struct dump *c, uint64_t inode, uint64_t *ret_number) {
    for (size_t i = 0; i < c->options->n_externals; i++)
        if (c->options->externals[i] == inode) {
            *ret_number = i;
            return true;
        }
    return false;
}

static int dump_pipe(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    const uint64_t *inodes = (const void *)c->pipe_inodes.data;
    size_t n = dump_count(&c->pipe_inodes, uint64_t);
    const uint64_t inode = file->st.st_ino;

    if (is_external(c, inode, &to->value)) {
        to->kind = IMAGE_FILE_EXTERNAL;
        return 0;
    }
    if ((file->flags & O_ACCMODE) == O_RDWR)
        return refuse_file(c, file, "a pipe that is open for reading and writing (O_RDWR)");
    to->kind = IMAGE_FILE_PIPE;
    for (to->value = 0; to->value < n; to->value++)
        if (inodes[to->value] == inode)
            return 0;
    struct image_pipe pipe = { 0 };
    int r = dump_content(c, s, file, &pipe);
    if (r < 0)
        return r == -ENOTSUP ? refuse_file(c, file, "a pipe with unread packets (O_DIRECT)")
                             : fail_file(c, file, r);
    buf_add(&c->pipes, &pipe, sizeof pipe);
    buf_add(&c->pipe_inodes, &inode, sizeof inode);
    return 0;
}

/* The kernel names the watched file by the descriptor number at the time it was added, in a process
 * that need not be this one. The number may be reused or closed by now. Several entries can have
 * one number; this is the one that `n` others precede. */
static bool is_watched(const struct dump_process *s, int epoll, int fd, uint32_t n) {
    struct kcmp_epoll_slot slot = { .efd = (uint32_t)epoll, .tfd = (uint32_t)fd, .toff = n };

    return syscall(SYS_kcmp, s->pid, s->pid, KCMP_EPOLL_TFD, fd, &slot) == 0;
}

static uint32_t count_targets(const struct dump *c, size_t from, int fd) {
    uint32_t n = 0;

    for (size_t i = from; i < dump_count(&c->targets, struct image_target); i++)
        n += dump_entry(&c->targets, i, struct image_target)->fd == (uint32_t)fd;
    return n;
}

static int dump_epoll(struct dump *c, const struct dump_process *s, const struct open_file *file,
    struct image_file *to) {
    size_t before = dump_count(&c->targets, struct image_target);

    for (const char *at = file->info.data; (at = strstr(at, "\ntfd:")); at++) {
        struct image_target target = { 0 };
        unsigned long long data;
        int fd;

        if (sscanf(at, "\ntfd: %d events: %x data: %llx", &fd, &target.events, &data) != 3)
            return fail_file(c, file, -EBADMSG);
        if (!is_watched(s, file->number, fd, count_targets(c, before, fd)))
            return refuse_file(
                c, file, "it watches a descriptor that the process has closed or never had");
        target.fd = (uint32_t)fd;
        target.data = data;
        buf_add(&c->targets, &target, sizeof target);
    }
    to->kind = IMAGE_FILE_EPOLL;
    to->value = s->inner_pid;
    to->targets = dump_range(&c->targets, before, sizeof(struct image_target));
    return 0;
}

static int dump_timer(struct dump *c, const struct open_file *file, struct image_file *to) {
    uint64_t value[2], interval[2];

    if (sscanf(dump_field(file->info.data, "\nit_value: "), "(%" SCNu64 ", %" SCNu64 ")", &value[0],
            &value[1]) != 2 ||
        sscanf(dump_field(file->info.data, "\nit_interval: "), "(%" SCNu64 ", %" SCNu64 ")",
            &interval[0], &interval[1]) != 2)
        return fail_file(c, file, -EBADMSG);
    to->kind = IMAGE_FILE_TIMER;
    to->value = field_number(file, "\nclockid: ", 10);
    if (quiesce_is_marked(c, interval, value[0])) {
        to->length = interval[0]; /* init keeps its time */
        return 0;
    }
    to->ticks = field_number(file, "\nticks: ", 10);
    /* The timer expires at a time of day, and pauses do not delay it. In a sandbox with a policy
     * for that clock, the time continues where it was paused. */
    if (to->value == CLOCK_REALTIME &&
        field_number(file, "\nsettime flags: ", 8) & TFD_TIMER_ABSTIME && (value[0] || value[1]) &&
        !c->options->still) {
        struct timespec now;

        to->seals = field_number(file, "\nsettime flags: ", 8);
        (void)clock_gettime(CLOCK_REALTIME, &now);
        to->offset =
            ((uint64_t)now.tv_sec + value[0]) * 1000000000u + (uint64_t)now.tv_nsec + value[1];
    }
    for (size_t i = 0; i < 2; i++) {
        to->timer[i] = interval[i];
        to->timer[2 + i] = value[i];
    }
    return 0;
}

/* The pidfd of a process that ends soon after is identified by pid, so only pidfds of dumped
 * processes are accepted. */
static int dump_pidfd(struct dump *c, const struct open_file *file, struct image_file *to) {
    to->kind = IMAGE_FILE_PIDFD;
    to->value = dump_innermost(file->info.data, "\nNSpid:");
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart && c->dump_processes[i]->inner_pid == to->value)
            return 0;
    return refuse_file(c, file, "the pidfd of a process that has ended");
}

/* Attributes that need a copy of the descriptor. */
static int dump_copied(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    const char *why = NULL;
    auto_close int process = sys_pidfd_open(s->pid, 0);
    auto_close int fd = process < 0 ? process : sys_pidfd_getfd(process, file->number, 0);
    int r = fd;

    if (fd >= 0 && terminals_is_one(&file->st))
        r = terminals_dump(c, s, &file->st, TAKE_FD(fd), to, &why);
    else if (fd >= 0)
        r = S_ISSOCK(file->st.st_mode)
                ? sockets_dump(c, fd, file->st.st_ino, to, &why)
                : inotify_dump(c, s, file->number, fd, file->info.data, to, &why);
    if (why)
        return dump_refuse(c, r == -EAGAIN ? EAGAIN : ENOTSUP, "its descriptor %d is %.200s: %s",
            file->number, file->name, why);
    return r < 0 ? fail_file(c, file, r) : 0;
}

static int dump_other(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    if (!strcmp(file->name, "anon_inode:[eventfd]")) {
        to->kind = IMAGE_FILE_EVENT;
        to->value = field_number(file, "\neventfd-count:", 16);
        to->ticks = field_number(file, "\neventfd-semaphore:", 10);
        return 0;
    }
    if (!strcmp(file->name, "anon_inode:[eventpoll]"))
        return dump_epoll(c, s, file, to);
    if (!strcmp(file->name, "anon_inode:[timerfd]"))
        return dump_timer(c, file, to);
    if (!strcmp(file->name, "anon_inode:inotify"))
        return dump_copied(c, s, file, to);
    if (!strcmp(file->name, "anon_inode:[signalfd]")) {
        to->kind = IMAGE_FILE_SIGNAL;
        to->value = field_number(file, "\nsigmask:", 16);
        return 0;
    }
    if (!strcmp(file->name, "anon_inode:[pidfd]") || !strncmp(file->name, "pidfd:", 6))
        return dump_pidfd(c, file, to);
    if (!strncmp(file->name, "socket:", 7))
        return dump_copied(c, s, file, to);
    return refuse_file(c, file, "descriptors of this type are not supported");
}

static int dump_description(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    *to = (struct image_file){ .flags = (uint32_t)(file->flags & ~(uint64_t)O_CLOEXEC),
        .mode = file->st.st_mode };
    if (!strncmp(file->name, "pipe:[", 6))
        return dump_pipe(c, s, file, to);
    if (file->name[0] != '/')
        return dump_other(c, s, file, to);
    if (terminals_is_one(&file->st))
        return dump_copied(c, s, file, to);
    if (quiesce_is_page(c, file->st.st_ino, file->name)) {
        to->kind = IMAGE_FILE_CLOCK;
        return 0;
    }
    if (!strncmp(file->name, "/memfd:", 7) || !file->st.st_nlink)
        return dump_memory(c, s, file, to);
    return dump_path(c, s, file, to);
}

/* ---- signals to its owner ---- */

/* The pid inside; 0: the owner has ended. */
static int32_t find_signalled(const struct dump *c, const struct f_owner_ex *owner) {
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        const struct dump_process *s = c->dump_processes[i];

        if (s->is_apart)
            continue;
        if (owner->type == F_OWNER_PID && s->pid == owner->pid)
            return (int32_t)s->inner_pid;
        if (owner->type == F_OWNER_PGRP && s->outer_group == (uint32_t)owner->pid)
            return (int32_t)s->group;
    }
    return 0;
}

/* The kernel sends the signals with the credentials of the process that set the owner. */
static bool has_named_owner(const struct dump_process *s, int fd) {
    const char *at = dump_field(s->status.data, "\nUid:\t");
    uint32_t uids[2];
    char *end;
    const uint32_t real = (uint32_t)strtoul(at, &end, 10),
                   effective = (uint32_t)strtoul(end, NULL, 10);

    return fcntl(fd, GET_OWNER_UIDS, uids) == 0 && uids[0] == real && uids[1] == effective;
}

static int dump_signals(
    struct dump *c, struct dump_process *s, const struct open_file *file, struct image_file *to) {
    struct f_owner_ex owner = { 0 };
    auto_close int process = sys_pidfd_open(s->pid, 0);
    auto_close int fd = process < 0 ? process : sys_pidfd_getfd(process, file->number, 0);

    to->flags &= ~(uint32_t)O_ASYNC;
    if (fd < 0)
        return fail_file(c, file, fd);
    const int number = fcntl(fd, F_GETSIG);
    if (number < 0 || fcntl(fd, F_GETOWN_EX, &owner) < 0)
        return fail_file(c, file, -errno);
    to->signaller = s->index + 1;
    to->signal = (uint32_t)number;
    if (!owner.pid)
        return 0;
    to->signalled_type = owner.type;
    to->signalled = find_signalled(c, &owner);
    if (!to->signalled)
        return refuse_file(c, file, "it signals an owner that has ended, or a thread (O_ASYNC)");
    return has_named_owner(s, fd) ? 0
                                  : refuse_file(c, file,
                                        "it signals an owner that another user has named "
                                        "(O_ASYNC)");
}

/* ---- which ones ---- */

static bool is_same(
    const struct known_file *known, const struct dump_process *s, const struct open_file *file) {
    return known->device == file->st.st_dev && known->inode == file->st.st_ino &&
           known->number >= 0 &&
           syscall(SYS_kcmp, known->pid, s->pid, KCMP_FILE, known->number, file->number) == 0;
}

static int find_or_add(
    struct dump *c, struct dump_process *s, const struct open_file *file, uint32_t *ret_file) {
    size_t n = dump_count(&c->known, struct known_file);
    struct image_file image;

    for (size_t i = 0; i < n; i++)
        if (is_same(dump_entry(&c->known, i, struct known_file), s, file)) {
            *ret_file = (uint32_t)i;
            return 0;
        }
    /* A memory file that is open twice or is mapped shares its pages. */
    for (size_t i = 0; i < n && file->name[0] == '/' && !file->st.st_nlink &&
                       !quiesce_is_page(c, file->st.st_ino, file->name);
         i++) {
        const struct known_file *known = dump_entry(&c->known, i, struct known_file);

        if (known->device == file->st.st_dev && known->inode == file->st.st_ino &&
            known->number >= 0)
            return refuse_file(c, file, "a deleted file that is open twice");
        if (known->inode == file->st.st_ino && known->number < 0)
            return refuse_file(c, file, "memory that another process has mapped");
    }
    if (n == IMAGE_MAX_FILES)
        return dump_refuse(c, E2BIG, "the processes have more than %u open files", IMAGE_MAX_FILES);
    int r = dump_description(c, s, file, &image);
    if (r == 0 && file->flags & O_ASYNC)
        r = dump_signals(c, s, file, &image);
    if (r < 0)
        return r;
    struct known_file known = { .pid = s->pid,
        .number = file->number,
        .device = file->st.st_dev,
        .inode = file->st.st_ino,
        .kind = image.kind };
    buf_add(&c->files, &image, sizeof image);
    buf_add(&c->known, &known, sizeof known);
    *ret_file = (uint32_t)n;
    return buf_failed(&c->files) || buf_failed(&c->known) ? dump_fail(c, "its descriptors", -ENOMEM)
                                                          : 0;
}

/* "lock:\t1: POSIX  ADVISORY  WRITE 7 00:2a:1234 0 EOF" */
static int dump_locks(struct dump *c, const struct open_file *file) {
    for (const char *at = file->info.data; (at = strstr(at, "\nlock:")); at++) {
        struct image_lock lock = { .fd = (uint32_t)file->number };
        char kind[12], how[12], access[12], end[24];
        unsigned long long start;

        if (sscanf(at, "\nlock: %*d: %11s %11s %11s %*d %*s %llu %23s", kind, how, access, &start,
                end) != 5)
            return refuse_file(c, file, "its lock has an unknown type");
        lock.kind = !strcmp(kind, "FLOCK")    ? IMAGE_LOCK_FLOCK
                    : !strcmp(kind, "POSIX")  ? IMAGE_LOCK_POSIX
                    : !strcmp(kind, "OFDLCK") ? IMAGE_LOCK_OFD
                                              : 0;
        lock.is_write = !strcmp(access, "WRITE");
        lock.start = start;
        lock.length = strcmp(end, "EOF") ? strtoull(end, NULL, 10) - start + 1 : 0;
        if (!lock.kind)
            return refuse_file(c, file, "it has a lease (F_SETLEASE)");
        buf_add(&c->locks, &lock, sizeof lock);
    }
    return 0;
}

/* A terminal opened through its master keeps its own close-on-exec flag in the file, and fdinfo
 * shows that one. Only the process knows the descriptor's. */
static int is_closed_on_exec(
    struct dump *c, struct dump_process *s, const struct open_file *file, uint32_t *ret_answer) {
    struct trace *trace = &tree_main(c, s)->trace;
    const uint64_t arguments[] = { (uint64_t)file->number, F_GETFD };
    int64_t result = !!(file->flags & O_CLOEXEC);

    if (result && terminals_is_one(&file->st)) {
        cow_fork_made(c, s);
        int r = trace_call(
            trace, &s->tools, SYS_fcntl, arguments, ARRAY_SIZE(arguments), NULL, 0, &result);
        if (r == 0)
            r = trace_put_back(trace);
        if (r < 0 || result < 0)
            return fail_file(c, file, r < 0 ? r : (int)result);
    }
    *ret_answer = result & FD_CLOEXEC;
    return 0;
}

static int dump_one(
    struct dump *c, struct dump_process *s, int directory, int number, struct open_file *file) {
    char name[16], path[32];
    struct image_fd fd = { .number = (uint32_t)number };

    file->number = number;
    snprintf(name, sizeof name, "%d", number);
    snprintf(path, sizeof path, "fdinfo/%d", number);
    ssize_t n = readlinkat(directory, name, file->name, sizeof file->name - 1);
    if (n < 0 || fstatat(directory, name, &file->st, 0) < 0)
        return dump_fail(c, "its descriptors", -errno);
    file->name[n] = '\0';
    file->info.length = 0;
    buf_add(&file->info, "\n", 1);
    int r = dump_read(c, s, path, &file->info);
    if (r < 0)
        return dump_fail(c, "its descriptors", r);
    file->flags = field_number(file, "\nflags:", 8);
    file->offset = field_number(file, "\npos:", 10);
    if (file->flags & O_PATH)
        return refuse_file(c, file, "opened with O_PATH");
    r = find_or_add(c, s, file, &fd.file);
    if (r == 0)
        r = dump_locks(c, file);
    if (r == 0)
        r = is_closed_on_exec(c, s, file, &fd.is_closed_on_exec);
    buf_add(&c->fds, &fd, sizeof fd);
    return r;
}

static int by_number(const void *a, const void *b) {
    const struct image_fd *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

int files_dump(struct dump *c, struct dump_process *s, struct image_process *process) {
    size_t before = dump_count(&c->fds, struct image_fd),
           locks_before = dump_count(&c->locks, struct image_lock);
    struct open_file *file = calloc(1, sizeof *file);
    int directory = openat(s->proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *list = directory < 0 ? NULL : fdopendir(directory);

    if (!file || !list)
        r = dump_fail(c, "its descriptors", file ? -errno : -ENOMEM);
    for (const struct dirent *entry; r == 0 && (errno = 0, entry = readdir(list));)
        if (entry->d_name[0] != '.')
            r = dump_one(c, s, dirfd(list), (int)strtol(entry->d_name, NULL, 10), file);
    if (r == 0 && errno)
        r = dump_fail(c, "its descriptors", -errno);
    if (list)
        closedir(list);
    else
        close_fd(&directory);
    if (file)
        buf_done(&file->info);
    free(file);
    process->fds = dump_range(&c->fds, before, sizeof(struct image_fd));
    process->locks = dump_range(&c->locks, locks_before, sizeof(struct image_lock));
    if (r == 0 && (buf_failed(&c->fds) || dump_count(&c->fds, struct image_fd) > IMAGE_MAX_FDS))
        return dump_fail(c, "its descriptors", -E2BIG);
    if (process->fds.n)
        qsort(dump_entry(&c->fds, before, struct image_fd), process->fds.n, sizeof(struct image_fd),
            by_number);
    return r;
}

/* The kernel shows mapped files to privileged callers only (/proc/PID/map_files). Without
 * privileges the memory is read as the process sees it. */
int files_memory(
    struct dump *c, struct dump_process *s, const struct map_line *map, uint32_t *ret_file) {
    struct image_file image = {
        .kind = IMAGE_FILE_MEMORY, .mode = S_IFREG | 0600, .flags = O_RDWR
    };
    char path[64];
    struct stat st;
    int r;

    for (size_t i = 0; i < dump_count(&c->known, struct known_file); i++) {
        const struct known_file *known = dump_entry(&c->known, i, struct known_file);
        const struct image_file *file = dump_entry(&c->files, i, struct image_file);

        if (known->inode == map->inode && known->kind == IMAGE_FILE_CLOCK) {
            *ret_file = (uint32_t)i;
            return 0;
        }
        if (known->inode != map->inode || known->kind != IMAGE_FILE_MEMORY)
            continue;
        if (map->offset + (map->end - map->start) > image_up_to(file->length, IMAGE_PAGE))
            return dump_refuse(c, ENOTSUP,
                "it maps more of the shared memory at 0x%llx than other processes do",
                (unsigned long long)map->start);
        *ret_file = (uint32_t)i;
        return 0;
    }
    if (dump_count(&c->known, struct known_file) == IMAGE_MAX_FILES)
        return dump_refuse(c, E2BIG, "the processes have more than %u open files", IMAGE_MAX_FILES);
    snprintf(path, sizeof path, "map_files/%llx-%llx", (unsigned long long)map->start,
        (unsigned long long)map->end);
    auto_close int fd = openat(s->proc, path, O_RDONLY | O_CLOEXEC);
    image.path = dump_text(c, "shared");
    if (quiesce_is_page(c, map->inode, map->path)) {
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
        return r == -E2BIG || c->error->code ? r : dump_fail(c, "its shared memory", r);
    struct known_file known = {
        .pid = s->pid, .number = -1, .inode = map->inode, .kind = image.kind
    };
    *ret_file = (uint32_t)dump_count(&c->files, struct image_file);
    buf_add(&c->files, &image, sizeof image);
    buf_add(&c->known, &known, sizeof known);
    return buf_failed(&c->files) || buf_failed(&c->known)
               ? dump_fail(c, "its shared memory", -ENOMEM)
               : 0;
}
