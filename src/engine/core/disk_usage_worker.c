/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/disk_usage_worker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/disk_usage.h"
#include "engine/core/log.h"
#include "policy/plan.h"
#include "sys/id_range.h"
#include "sys/limits.h"
#include "sys/proc.h"

#define MAX_PROCESSES                                                                              \
    32768 /* whose open files are looked at; with their children, while there is room; and threads \
             of each */
#define MAX_REMOVED 65536 /* files that were removed and are open */

/* ---- what has no name ---- */

/* A file that takes room until the last process that has it open closes it. */
struct removed {
    dev_t device;
    ino_t inode;
    uint64_t bytes;
};

static bool is_in_memory(int at, const char *name) {
    auto_close int fd = openat(at, name, O_PATH | O_CLOEXEC);
    struct statfs where;

    return fd < 0 || fstatfs(fd, &where) < 0 || where.f_type == TMPFS_MAGIC ||
           where.f_type == HUGETLBFS_MAGIC;
}

static size_t find_one(int at, const char *name, struct removed *files, size_t n) {
    struct stat st;

    if (n >= MAX_REMOVED || fstatat(at, name, &st, 0) < 0 ||
        (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) || st.st_nlink || is_in_memory(at, name))
        return n;
    files[n] = (struct removed){ st.st_dev, st.st_ino, (uint64_t)st.st_blocks * 512 };
    return n + 1;
}

/* Directories, too: one keeps the blocks that it had when it was large. */
static size_t find_removed(pid_t thread, struct removed *files, size_t n) {
    char path[32];

    snprintf(path, sizeof path, "/proc/%d/fd", (int)thread);
    DIR *list = opendir(path);
    struct dirent *entry;
    while (list && n < MAX_REMOVED && (entry = readdir(list)))
        if (entry->d_name[0] != '.')
            n = find_one(dirfd(list), entry->d_name, files, n);
    if (list)
        closedir(list);
    snprintf(path, sizeof path, "/proc/%d/cwd", (int)thread);
    return find_one(AT_FDCWD, path, files, n);
}

/* A thread may have descriptors of its own (unshare), and a main thread that has ended shows none.
 */
static size_t find_removed_of_threads(pid_t pid, pid_t *tids, struct removed *files, size_t n) {
    ssize_t n_tids = proc_threads(pid, tids, MAX_PROCESSES);

    for (ssize_t i = 0; i < n_tids; i++)
        if (!i || syscall(SYS_kcmp, tids[i - 1], tids[i], KCMP_FILES, 0ul, 0ul) ||
            syscall(SYS_kcmp, tids[i - 1], tids[i], KCMP_FS, 0ul, 0ul))
            n = find_removed(tids[i], files, n);
    return n;
}

static int by_inode(const void *a, const void *b) {
    const struct removed *one = a, *other = b;

    if (one->inode != other->inode) {
        return one->inode < other->inode ? -1 : 1;
    }
    if (one->device != other->device) {
        return one->device < other->device ? -1 : 1;
    }
    return 0;
}

/* Of all processes below an init, each file once; as far as they are visible. */
static void add_removed(pid_t init, struct disk_usage *m) {
    auto_free pid_t *pids = malloc(MAX_PROCESSES * sizeof *pids);
    auto_free pid_t *tids = malloc(MAX_PROCESSES * sizeof *tids);
    auto_free struct removed *files = malloc(MAX_REMOVED * sizeof *files);
    size_t n_files = 0;

    ssize_t n = pids && tids && files ? proc_children(init, pids, MAX_PROCESSES) : 0;
    for (ssize_t i = 0; i < n; i++) {
        n_files = find_removed_of_threads(pids[i], tids, files, n_files);
        n += MAX(proc_children(pids[i], pids + n, MAX_PROCESSES - (size_t)n), (ssize_t)0);
    }
    if (n_files)
        qsort(files, n_files, sizeof *files, by_inode);
    for (size_t i = 0; i < n_files; i++)
        if (!i || by_inode(&files[i - 1], &files[i])) {
            m->bytes += files[i].bytes;
            m->entries++;
        }
}

/* ---- the walker ---- */

static int write_text(const char *path, const char *text) {
    auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

int disk_usage_overrule(void) {
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char line[48], problem[ID_RANGE_TEXT];
    struct id_range range;

    /* Sandboxes of many users have files of the user's range, if he has one. */
    if (uid && id_range_enter(&range, PLAN_MANY_FIRST, problem) == 0)
        return 0;
    int r = uid && unshare(CLONE_NEWUSER) < 0 ? -errno : 0;

    if (!uid || r < 0)
        return r;
    snprintf(line, sizeof line, "0 %u 1", uid);
    if ((r = write_text("/proc/self/setgroups", "deny")) < 0 ||
        (r = write_text("/proc/self/uid_map", line)) < 0)
        return r;
    snprintf(line, sizeof line, "0 %u 1", gid);
    return write_text("/proc/self/gid_map", line);
}

struct walked {
    struct disk_usage measure;
    bool has_moved;
};

static int open_upper(int uppers, uint64_t number) {
    char name[24];

    snprintf(name, sizeof name, "%" PRIu64, number);
    return openat(uppers, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* A process of its own for an ordinary user: one that may look into every directory may not look at
 * guests. */
_Noreturn static void walk_uppers(int socket, int uppers) {
    struct disk_usage_request request;

    (void)limits_raise_open_files();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || disk_usage_overrule() < 0)
        _exit(1);
    while (recv(socket, &request, sizeof request, 0) == sizeof request) {
        struct walked walked = { .measure = {
                                     .max_bytes = UINT64_MAX, .max_entries = UINT64_MAX } };
        int64_t began = clock_coarse_ns();

        int directory = open_upper(uppers, request.number);
        if (directory >= 0)
            (void)disk_usage_of(directory, &walked.measure);
        if (request.checks && (directory = open_upper(uppers, request.number)) >= 0)
            walked.has_moved = disk_usage_has_moved(directory, began);
        if (send(socket, &walked, sizeof walked, MSG_NOSIGNAL) != sizeof walked)
            _exit(1);
    }
    _exit(0);
}

/* ---- the measurer ---- */

_Noreturn void disk_usage_serve(int socket, int uppers) {
    struct disk_usage_request request;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        _exit(1);
    pid_t walker = fork();
    if (walker == 0) {
        close(socket);
        close(pair[0]);
        walk_uppers(pair[1], uppers);
    }
    close(pair[1]);
    for (;;) {
        ssize_t n = recv(socket, &request, sizeof request, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof request)
            _exit(n < 0);
        struct walked walked;
        int64_t began = clock_now_ns();

        if (send(pair[0], &request, sizeof request, MSG_NOSIGNAL) < 0 ||
            recv(pair[0], &walked, sizeof walked, 0) != sizeof walked)
            _exit(1);
        if (request.init > 0)
            add_removed((pid_t)request.init, &walked.measure);
        struct disk_usage_reply answer = { request.number, walked.measure.bytes,
            walked.measure.entries, clock_now_ns() - began, walked.measure.is_deep, request.checks,
            walked.has_moved };
        if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            _exit(1);
    }
}
