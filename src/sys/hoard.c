/* SPDX-License-Identifier: Apache-2.0 */
/* Counting the kernel memory of a sandbox: see hoard.h for the model. Formats: proc(5). */
#include "sys/hoard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/proc.h"

#define FILES_LISTED                                                                               \
    2048 /* descriptors of a process up to which each is examined; of more, a random sample */
#define FILES_SAMPLED 1024
#define FILES_COMPARED                                                                             \
    64 /* random descriptors that are compared with those of another process, if it has more */
#define MAPPING_BYTES                                                                              \
    256 /* of one: its structure, its place in the tree, half a page of it in each table */
#define INHERITED_BYTES 64 /* for each process above that it was inherited from */
#define MAX_GENERATIONS 32
#define NAME_BYTES 512u       /* of a long name in a list */
#define LIST_BYTES (8u << 20) /* of 16,384 such, or 80,000 short ones */
#define MAX_NAMES (1u << 16)
#define LOCKS_TEXT (HOARD_LOCKS * 80u)

static ssize_t read_at(int dir_fd, const char *path, char *text, size_t size) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    return n;
}

static uint64_t subtract_saturated(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static uint64_t number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);

    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* ---- the host ---- */

int hoard_read_host(int file_nr, int meminfo, struct hoard_host *ret_host) {
    char text[4096];
    ssize_t n = pread(file_nr, text, sizeof text - 1, 0);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    struct hoard_host host = { .files = strtoull(text, NULL, 10) };
    if ((n = pread(meminfo, text, sizeof text - 1, 0)) < 0)
        return -errno;
    text[n] = '\0';
    host.kernel_bytes =
        (number_after(text, "\nSUnreclaim:") + number_after(text, "\nVmallocUsed:")) * 1024;
    *ret_host = host;
    return 0;
}

static int by_pid(const void *a, const void *b) {
    const struct hoard_lock *one = a, *other = b;

    return (one->pid > other->pid) - (one->pid < other->pid);
}

int hoard_read_locks(struct hoard_locks *ret_locks) {
    auto_close int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    auto_free char *text = malloc(LOCKS_TEXT + 1);
    size_t length = 0;
    ssize_t n = 1;

    ret_locks->n = 0;
    if (fd < 0 || !text)
        return fd < 0 ? -errno : -ENOMEM;
    while (length < LOCKS_TEXT && (n = read(fd, text + length, LOCKS_TEXT - length)) > 0)
        length += (size_t)n;
    text[length] = '\0';
    for (char *line = text, *end; ret_locks->n < HOARD_LOCKS && (end = strchr(line, '\n'));
         line = end + 1) {
        struct hoard_lock *lock = &ret_locks->locks[ret_locks->n];
        int pid;

        *end = '\0';
        /* "1: POSIX  ADVISORY  WRITE 123 00:2f:5 0 EOF"; what waits for another has "->" before its
         * kind. */
        const char *at = strchr(line, ':'), *waits = strstr(line, "-> ");
        if (!at || sscanf(waits ? waits + 3 : at + 1, "%*s %*s %*s %d %*x:%*x:%" SCNu64, &pid,
                       &lock->inode) != 2)
            continue;
        /* A process that shared its descriptors with others may be gone, its locks not. */
        lock->pid = pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH) ? pid : -1;
        ret_locks->n++;
    }
    qsort(ret_locks->locks, ret_locks->n, sizeof *ret_locks->locks, by_pid);
    return 0;
}

/* ---- the things of a process ---- */

struct count {
    const struct hoard_locks *locks;
    size_t n_of_files; /* locks at the start of the sample of which only the file is known */
    uint64_t filters;  /* of init */
    uint64_t max_files, max_mapping_bytes;
    struct hoard hoard;
};

static size_t locks_from(const struct hoard_locks *locks, pid_t pid) {
    size_t low = 0, high = locks->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (locks->locks[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The facts of a descriptor from its directory entry. */
struct seen {
    uint64_t files, list_bytes, locks;
};

/* A socket has files that are on their way to it: "scm_fds:", since Linux 5.12. */
static uint64_t on_their_way(int process_fd, const char *name) {
    char path[32], text[1024];

    snprintf(path, sizeof path, "fdinfo/%.16s", name);
    return read_at(process_fd, path, text, sizeof text) > 0 ? number_after(text, "scm_fds:") : 0;
}

/* The most memory of a directory's list of names, which only writable overlays keep. It has as many
 * names as the file system can have files, or as an ordinary directory of a lower layer has. */
static uint64_t list_of(int fds, const char *name) {
    auto_close int fd = openat(fds, name, O_PATH | O_CLOEXEC);
    struct statfs where;

    if (fd < 0 || fstatfs(fd, &where) < 0 || where.f_type != OVERLAYFS_SUPER_MAGIC ||
        where.f_flags & ST_RDONLY)
        return 0;
    return MAX(
        MIN((uint64_t)where.f_files, (uint64_t)MAX_NAMES) * NAME_BYTES, (uint64_t)LIST_BYTES);
}

static void look_at_one(
    const struct count *count, int process_fd, int fds, const char *name, struct seen *seen) {
    struct stat st;

    if (fstatat(fds, name, &st, 0) < 0)
        return;
    seen->files++;
    if (S_ISSOCK(st.st_mode))
        seen->files += on_their_way(process_fd, name);
    else if (S_ISDIR(st.st_mode))
        seen->list_bytes += list_of(fds, name);
    else if (S_ISREG(st.st_mode) && count->n_of_files)
        for (size_t i = 0; i < count->n_of_files; i++)
            seen->locks += count->locks->locks[i].inode == st.st_ino;
}

static void look_at_all(const struct count *count, int process_fd, int fds, struct seen *seen) {
    int copy = fcntl(fds, F_DUPFD_CLOEXEC, 0);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;

    if (!list && copy >= 0)
        close(copy);
    while (list && (entry = readdir(list)))
        if (entry->d_name[0] != '.')
            look_at_one(count, process_fd, fds, entry->d_name, seen);
    if (list)
        closedir(list);
}

static uint64_t random_below(uint64_t below) {
    return ((uint64_t)random() << 16 ^ (uint64_t)random()) % MAX(below, 1u);
}

/* Random numbers, so that a guest cannot avoid them. */
static void look_at_some(const struct count *count, int process_fd, int fds, uint64_t table,
    uint64_t in_all, struct seen *seen) {
    uint64_t hits = 0;

    for (unsigned i = 0; i < 16 * FILES_SAMPLED && hits < FILES_SAMPLED; i++) {
        uint64_t before = seen->files;
        char name[24];

        snprintf(name, sizeof name, "%" PRIu64, random_below(table));
        look_at_one(count, process_fd, fds, name, seen);
        hits += seen->files > before;
    }
    if (!hits)
        seen->files = hits = 1;
    seen->files = MAX(seen->files * in_all / hits, in_all);
    seen->list_bytes = seen->list_bytes / hits * in_all;
}

static bool is_same(pid_t pid, pid_t other, unsigned long fd) {
    return syscall(SYS_kcmp, pid, other, KCMP_FILE, fd, fd) == 0;
}

/* Of so many descriptors, those that are not another process's files as well, by the same number:
 * what is inherited is no file more. */
static uint64_t own_of(pid_t pid, pid_t other, uint64_t in_all, uint64_t table) {
    unsigned n = 0, own = 0;

    if (in_all <= 4 * FILES_COMPARED || other <= 0)
        return in_all;
    for (unsigned i = 0; i < 16 * FILES_COMPARED && n < FILES_COMPARED; i++) {
        unsigned long fd = (unsigned long)random_below(table);

        if (is_same(pid, pid, fd)) {
            n++;
            own += !is_same(pid, other, fd);
        }
    }
    return n ? in_all * own / n : in_all;
}

/* The kernel tells the number of descriptors as the size of their directory, to everybody, since
 * Linux 6.2. */
static void count_files(struct count *count, int task_fd, pid_t tid, pid_t other, uint64_t table) {
    struct seen seen = { 0 };
    struct stat st;

    if (fstatat(task_fd, "fd", &st, 0) < 0)
        return;
    uint64_t in_all = (uint64_t)st.st_size;
    auto_close int fds = openat(task_fd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fds < 0) /* one that an ordinary user may not look into: any of them may be one */
        seen = (struct seen){ .files = in_all, .list_bytes = in_all * LIST_BYTES };
    else if (in_all <= FILES_LISTED)
        look_at_all(count, task_fd, fds, &seen);
    else
        look_at_some(count, task_fd, fds, table, in_all, &seen);
    count->hoard.files +=
        MIN(seen.files, own_of(tid, other, in_all, table) + subtract_saturated(seen.files, in_all));
    count->hoard.list_bytes += seen.list_bytes;
    count->hoard.locks += seen.locks;
}

/* A file that is mapped is open, whether or not it has a descriptor. */
static uint64_t count_mappings(int process_fd, uint64_t space_bytes, uint64_t *ret_files) {
    auto_close int fd = openat(process_fd, "maps", O_RDONLY | O_CLOEXEC);
    uint64_t n = 0, files = 0;
    char text[16384];
    ssize_t length;

    if (fd < 0) /* as many as there can be: a page each, and no more than vm.max_map_count */
        return *ret_files = MIN(space_bytes / 4096, 65530u);
    while ((length = read(fd, text, sizeof text)) > 0) /* whole lines */
        for (const char *at = text, *end; (end = memchr(at, '\n', (size_t)(text + length - at)));
             at = end + 1) {
            files += memchr(at, '/', (size_t)(end - at)) != NULL;
            n++;
        }
    *ret_files = files;
    return n;
}

static void look_at_mappings(
    struct count *count, int process_fd, uint64_t space_bytes, unsigned generation) {
    bool wants_files = count->max_files != UINT64_MAX && count->hoard.files <= count->max_files;
    uint64_t files;

    if (!space_bytes || (!wants_files && count->hoard.mapping_bytes >= count->max_mapping_bytes))
        return;
    uint64_t n = count_mappings(process_fd, space_bytes, &files);
    if (count->max_mapping_bytes)
        count->hoard.mapping_bytes +=
            n * (MAPPING_BYTES + INHERITED_BYTES * MIN(generation, (unsigned)MAX_GENERATIONS));
    if (wants_files)
        count->hoard.files += files;
}

static bool has_own_files(pid_t before, pid_t tid) {
    return syscall(SYS_kcmp, before, tid, KCMP_FILES, 0ul, 0ul) != 0;
}

/* `other`: a process that may have the same files; `before`: the thread before it, whose
 * descriptors may be its own, or 0. */
static void count_thread(
    struct count *count, int task_fd, pid_t tid, pid_t before, pid_t other, unsigned generation) {
    char status[4096];

    if (read_at(task_fd, "status", status, sizeof status) <= 0)
        return;
    uint64_t filters = number_after(status, "\nSeccomp_filters:"),
             space = number_after(status, "\nVmSize:") * 1024;
    if (filters > count->filters)
        count->hoard.filters += filters - count->filters;
    if (!before || has_own_files(before, tid))
        count_files(
            count, task_fd, tid, before ? before : other, number_after(status, "\nFDSize:"));
    if (!before)
        look_at_mappings(count, task_fd, space, generation);
}

/* A thread may have filters of its own, and descriptors (unshare). */
static void count_process(
    struct count *count, pid_t pid, pid_t other, unsigned generation, pid_t *tids) {
    ssize_t n = proc_threads(pid, tids, PROC_SCAN_MAX);

    for (ssize_t i = 0; i < n; i++) {
        char path[48];

        snprintf(path, sizeof path, "/proc/%d/task/%d", (int)pid, (int)tids[i]);
        auto_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
            count_thread(count, fd, tids[i], i ? tids[i - 1] : 0, other, generation);
    }
    size_t at = locks_from(count->locks, pid);
    while (at < count->locks->n && count->locks->locks[at].pid == pid) {
        count->hoard.locks++;
        at++;
    }
}

/* The processes below an init, in the order that they were found in. */
struct family {
    pid_t pids[PROC_SCAN_MAX];
    pid_t parents[PROC_SCAN_MAX];        /* 0: init */
    unsigned generations[PROC_SCAN_MAX]; /* from 0 */
    ssize_t n;
};

static int find_family(struct family *family, pid_t init) {
    family->n = proc_children(init, family->pids, PROC_SCAN_MAX);
    for (ssize_t i = 0; i < family->n; i++) {
        ssize_t more = MAX(proc_children(family->pids[i], family->pids + family->n,
                               PROC_SCAN_MAX - (size_t)family->n),
            (ssize_t)0);

        for (ssize_t k = family->n; k < family->n + more; k++) {
            family->parents[k] = family->pids[i];
            family->generations[k] = family->generations[i] + 1;
        }
        family->n += more;
    }
    return (int)MIN(family->n, (ssize_t)0);
}

/* A process that may have the same open files: its parent, or a neighbour if the parent is gone. */
static pid_t relative_pid(const struct family *family, ssize_t i) {
    if (family->parents[i])
        return family->parents[i];
    return i ? family->pids[i - 1] : 0;
}

/* Of main threads alone: a fraction of the time that looking at each file takes. */
static uint64_t files_at_least(const struct family *family) {
    uint64_t in_all = 0;

    for (ssize_t i = 0; i < family->n; i++) {
        char path[32], status[4096];
        struct stat st;

        snprintf(path, sizeof path, "/proc/%d/fd", (int)family->pids[i]);
        if (stat(path, &st) < 0)
            continue;
        snprintf(path, sizeof path, "/proc/%d/status", (int)family->pids[i]);
        if (read_at(AT_FDCWD, path, status, sizeof status) > 0)
            in_all += own_of(family->pids[i], relative_pid(family, i), (uint64_t)st.st_size,
                number_after(status, "\nFDSize:"));
    }
    return in_all;
}

int hoard_count(pid_t init, const struct hoard_locks *locks, uint64_t max_files,
    uint64_t max_mapping_bytes, struct hoard *ret_hoard) {
    struct count count = { .locks = locks,
        .max_files = max_files,
        .max_mapping_bytes = max_mapping_bytes,
        .n_of_files = locks_from(locks, 0) };
    auto_free struct family *family = calloc(1, sizeof *family);
    auto_free pid_t *tids = malloc(PROC_SCAN_MAX * sizeof *tids);
    char path[32], status[4096];

    if (!family || !tids)
        return -ENOMEM;
    snprintf(path, sizeof path, "/proc/%d/status", (int)init);
    if (read_at(AT_FDCWD, path, status, sizeof status) <= 0)
        return -ESRCH;
    /* A command has one filter more than init, or two (policy/plan.h): its own are beyond that. */
    count.filters = number_after(status, "\nSeccomp_filters:") + 2;
    int r = find_family(family, init);
    if (r < 0)
        return r;
    if (max_files != UINT64_MAX)
        count.hoard.files = files_at_least(family);
    if (max_files == UINT64_MAX || count.hoard.files <= max_files) {
        count.hoard.files = 0;
        for (ssize_t i = 0; i < family->n; i++)
            count_process(
                &count, family->pids[i], relative_pid(family, i), family->generations[i], tids);
    }
    *ret_hoard = count.hoard;
    return 0;
}
