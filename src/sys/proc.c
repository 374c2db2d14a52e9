/* SPDX-License-Identifier: Apache-2.0 */
/* Reading /proc: see proc.h for the model. Formats: proc(5), Documentation/filesystems/proc.rst. */
#include "sys/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define MAX_MEMORY_FILES 65536
#define HIDING_PLACE                                                                               \
    (16u << 20) /* address space from which on a process's mappings are looked through */

/* ---- small reads ---- */

/* The start of a file as a string. */
static ssize_t read_text(int dir_fd, const char *path, char *text, size_t size) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;

    if (fd < 0)
        return -errno;
    while (length < size - 1) {
        ssize_t n = read(fd, text + length, size - 1 - length);

        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        length += (size_t)n;
    }
    text[length] = '\0';
    return (ssize_t)length;
}

/* The number behind "Key:" at the start of a line; 0 if there is none. */
static uint64_t line_value(const char *text, const char *key) {
    size_t length = strlen(key);

    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0)
            return strtoull(line + length, NULL, 10);
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return 0;
}

struct stat_line {
    uint64_t ticks; /* utime + stime + cutime + cstime */
    uint32_t threads;
    int64_t start_time;
    char state;
};

/* /proc/PID/stat. The name in parentheses is the process's to choose: the last parenthesis ends it.
 */
static int parse_stat(const char *text, struct stat_line *ret) {
    const char *p = strrchr(text, ')');
    uint64_t utime, stime;
    int64_t cutime, cstime, threads, start;
    char state;

    if (p == NULL || sscanf(p + 1,
                         " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64
                         " %" SCNd64 " %" SCNd64 " %*d %*d %" SCNd64 " %*d %" SCNd64,
                         &state, &utime, &stime, &cutime, &cstime, &threads, &start) != 7)
        return -EBADMSG;
    *ret = (struct stat_line){ .ticks = utime + stime + (uint64_t)cutime + (uint64_t)cstime,
        .threads = (uint32_t)threads,
        .start_time = start,
        .state = state };
    return 0;
}

/* Classifies a failed read. 0: the process is gone or must not be read. -errno: descriptors or
 * memory are short, so the result may be incomplete. */
static int errno_of_shortage(int error_number) {
    return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM
               ? -error_number
               : 0;
}

typedef int child_call(void *data, pid_t pid);

/* The children of one thread: numbers, each followed by a space. 0, or what `call` returns that is
 * not 0. */
static int each_child_of_thread(int dir_fd, const char *path, child_call *call, void *data) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    char text[4096];
    pid_t pid = 0;
    ssize_t n;
    int r = 0;

    if (fd < 0)
        return errno_of_shortage(errno);
    while (r == 0 && (n = read(fd, text, sizeof(text))) > 0)
        for (ssize_t i = 0; i < n && r == 0; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 0)
                r = call(data, pid);
            pid = 0;
        }
    return r != 0 || n == 0 ? r : errno_of_shortage(errno);
}

/* NULL: it cannot be opened, and why is in errno. */
static DIR *open_directory(int dir_fd, const char *path) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (dir != NULL)
        (void)TAKE_FD(fd);
    return dir;
}

/* tasks: the directory of its threads. */
static int each_child(int dir_fd, const char *tasks, child_call *call, void *data) {
    const struct dirent *entry;
    DIR *dir = open_directory(dir_fd, tasks);
    int r = 0;

    if (dir == NULL)
        return errno_of_shortage(errno);
    while (r == 0 && (errno = 0, entry = readdir(dir)) != NULL) {
        char path[300];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/children", entry->d_name);
        r = each_child_of_thread(dirfd(dir), path, call, data);
    }
    if (r == 0)
        r = errno_of_shortage(errno);
    closedir(dir);
    return r;
}

struct some {
    pid_t *pids;
    size_t n, most;
};

/* 1: there is room for no more. */
static int take_some(void *data, pid_t pid) {
    struct some *some = data;

    if (some->n == some->most)
        return 1;
    some->pids[some->n++] = pid;
    return 0;
}

ssize_t proc_children(pid_t pid, pid_t *pids, size_t most) {
    struct some some = { .pids = pids, .most = most };
    char tasks[32];

    snprintf(tasks, sizeof tasks, "/proc/%d/task", (int)pid);
    int r = each_child(AT_FDCWD, tasks, take_some, &some);
    return r < 0 ? r : (ssize_t)some.n;
}

ssize_t proc_threads(pid_t pid, pid_t *tids, size_t most) {
    char tasks[32];
    size_t n = 0;

    snprintf(tasks, sizeof tasks, "/proc/%d/task", (int)pid);
    DIR *threads = open_directory(AT_FDCWD, tasks);
    if (!threads)
        return errno_of_shortage(errno);
    errno = 0;
    for (const struct dirent *entry; n < most && (entry = readdir(threads));)
        if (entry->d_name[0] != '.')
            tids[n++] = (pid_t)strtol(entry->d_name, NULL, 10);
    int r = errno_of_shortage(errno);
    closedir(threads);
    return r < 0 ? r : (ssize_t)n;
}

int64_t proc_start_time(pid_t pid) {
    char path[32], text[1024];
    struct stat_line line;
    ssize_t n;
    int r;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    n = read_text(AT_FDCWD, path, text, sizeof(text));
    if (n < 0)
        return n == -ENOENT ? -ESRCH : n;
    r = parse_stat(text, &line);
    if (r < 0)
        return r;
    return line.state == 'Z' || line.state == 'X' ? -ESRCH : line.start_time;
}

pid_t proc_parent(pid_t pid) {
    char path[32], text[1024];
    int parent;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    ssize_t n = read_text(AT_FDCWD, path, text, sizeof(text));
    if (n < 0)
        return n == -ENOENT ? -ESRCH : (pid_t)n;
    const char *p = strrchr(text, ')');
    return p && sscanf(p + 1, " %*c %d", &parent) == 1 ? parent : -EBADMSG;
}

/* In our own user namespace; processes that may not be inspected are left out. */
static bool is_beside_us(int process_fd) {
    char ours[64], theirs[64];
    ssize_t n = readlink("/proc/self/ns/user", ours, sizeof ours);

    return n > 0 && readlinkat(process_fd, "ns/user", theirs, sizeof theirs) == n &&
           memcmp(ours, theirs, (size_t)n) == 0;
}

int proc_is_sandboxed(pid_t pid) {
    char path[32], text[4096];
    unsigned inside, outside, count;
    int end = 0;

    snprintf(path, sizeof path, "/proc/%d", pid);
    auto_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read_text(fd, "status", text, sizeof text);
    if (n < 0)
        return (int)n;
    /* Behind the groups, of which there may be more than there is room for: then the map decides.
     */
    if (strstr(text, "\nNoNewPrivs:\t0\n") ||
        (strstr(text, "\nCapBnd:\t") && !strstr(text, "\nCapBnd:\t0000000000000000\n")))
        return 0;
    if ((n = read_text(fd, "uid_map", text, sizeof text)) < 0)
        return (int)n;
    return sscanf(text, "%u %u %u %n", &inside, &outside, &count, &end) == 3 && count == 1 &&
           end == n && !is_beside_us(fd);
}

int64_t proc_oom_kill_count(void) {
    char text[16384];
    ssize_t n = read_text(AT_FDCWD, "/proc/vmstat", text, sizeof(text));
    const char *line;

    if (n < 0)
        return n;
    line = strstr(text, "\noom_kill ");
    return line == NULL ? -ENOENT : (int64_t)strtoull(line + strlen("\noom_kill "), NULL, 10);
}

int proc_memory_available(uint64_t *ret_available_bytes, uint64_t *ret_total_bytes) {
    char text[512]; /* both are among the first lines */
    ssize_t n = read_text(AT_FDCWD, "/proc/meminfo", text, sizeof(text));

    if (n < 0)
        return (int)n;
    *ret_available_bytes = line_value(text, "MemAvailable:") * 1024;
    if (ret_total_bytes != NULL)
        *ret_total_bytes = line_value(text, "MemTotal:") * 1024;
    return 0;
}

/* ---- the walk ---- */

/* Processes in the order they were found; those from `next` on are still to be looked at. */
struct queue {
    pid_t *pids;
    size_t n, capacity, next;
    bool truncated;
};

static int queue_add(struct queue *queue, pid_t pid) {
    if (queue->n == PROC_SCAN_MAX) {
        queue->truncated = true;
        return 0;
    }
    if (queue->n == queue->capacity) {
        size_t capacity = MAX(queue->capacity * 2, (size_t)64);
        pid_t *pids = reallocarray(queue->pids, capacity, sizeof(*pids));

        if (pids == NULL)
            return -ENOMEM;
        queue->pids = pids;
        queue->capacity = capacity;
    }
    queue->pids[queue->n++] = pid;
    return 0;
}

static int queue_child(void *data, pid_t pid) {
    return queue_add(data, pid);
}

struct memory_file {
    uint64_t device, inode, bytes;
};

struct scan {
    struct proc_usage usage;
    struct queue queue;
    bool exact;
    uint64_t shared_bytes; /* of exact: shared memory that is mapped */
    struct memory_file *files;
    size_t n_files, files_capacity;
};

static int add_memory_file(struct scan *scan, uint64_t device, uint64_t inode, uint64_t bytes) {
    if (scan->n_files == MAX_MEMORY_FILES)
        return 0;
    if (scan->n_files == scan->files_capacity) {
        size_t capacity = MAX(scan->files_capacity * 2, (size_t)64);
        struct memory_file *files = reallocarray(scan->files, capacity, sizeof(*files));

        if (files == NULL)
            return -ENOMEM;
        scan->files = files;
        scan->files_capacity = capacity;
    }
    scan->files[scan->n_files++] = (struct memory_file){ device, inode, bytes };
    return 0;
}

/* By default, or by the name that the process gave it (PR_SET_VMA_ANON_NAME). Of a file's path
 * either may be a part: whose process maps such a file counts more than it has. */
static bool is_shared_anonymous(const char *line) {
    return strstr(line, " /dev/zero (deleted)") != NULL || strstr(line, " [anon_shmem:") != NULL;
}

/* Shared anonymous memory keeps its pages when a process drops them from its tables
 * (MADV_DONTNEED), where no counter shows them: what is mapped is taken for used, as far as it
 * reaches into the file behind it. -EACCES: the mappings may not be looked at. */
static int add_shared_mappings(struct scan *scan, int process_fd) {
    int fd = openat(process_fd, "maps", O_RDONLY | O_CLOEXEC), r = 0;
    char line[512], page[4096];
    FILE *file;

    if (fd < 0)
        return errno == EACCES || errno == EPERM ? -EACCES : errno_of_shortage(errno);
    file = fdopen(fd, "r");
    if (file == NULL) {
        close(fd);
        return -ENOMEM;
    }
    setvbuf(file, page, _IOFBF,
        sizeof(page)); /* the size that the kernel returns at once; the default is a quarter of it,
                         and each read searches for its place again */
    while (r == 0 && fgets(line, sizeof(line), file) != NULL) {
        uint64_t start, end, offset, inode;
        unsigned major, minor;

        if (is_shared_anonymous(line) &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %*4c %" SCNx64 " %x:%x %" SCNu64, &start, &end,
                &offset, &major, &minor, &inode) == 6)
            r = add_memory_file(scan, makedev(major, minor), inode, offset + (end - start));
    }
    fclose(file);
    return r;
}

static int add_memory_files(struct scan *scan, int process_fd) {
    const struct dirent *entry;
    DIR *dir = open_directory(process_fd, "fd");
    int r = 0;

    if (dir == NULL)
        return errno_of_shortage(errno);
    while (r == 0 && (entry = readdir(dir)) != NULL && scan->n_files < MAX_MEMORY_FILES) {
        char link[16];
        struct stat st;

        if (readlinkat(dirfd(dir), entry->d_name, link, sizeof(link)) < 7 ||
            memcmp(link, "/memfd:", 7) != 0 || fstatat(dirfd(dir), entry->d_name, &st, 0) < 0)
            continue;
        r = add_memory_file(scan, st.st_dev, st.st_ino, (uint64_t)st.st_blocks * 512);
    }
    closedir(dir);
    return r;
}

static int compare_files(const void *a, const void *b) {
    const struct memory_file *x = a, *y = b;

    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static int compare_files_and_sizes(const void *a, const void *b) {
    const struct memory_file *x = a, *y = b;
    int order = compare_files(a, b);

    if (order)
        return order;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The same file may be open, or mapped in pieces, many times: the largest figure counts. */
static uint64_t sum_memory_files(struct scan *scan) {
    uint64_t bytes = 0;

    if (scan->n_files == 0)
        return 0;
    qsort(scan->files, scan->n_files, sizeof(*scan->files), compare_files_and_sizes);
    for (size_t i = 0; i < scan->n_files; i++)
        if (i + 1 == scan->n_files || compare_files(&scan->files[i], &scan->files[i + 1]) != 0)
            bytes += scan->files[i].bytes;
    return bytes;
}

/* task_fd: the directory of a process, or of one of its threads. 0: it has no memory (any more). */
static int add_memory_of(struct scan *scan, int task_fd, bool is_init) {
    char text[4096], status[4096] = "";
    ssize_t n = read_text(task_fd, "status", status, sizeof(status));

    if (n < 0 && errno_of_shortage((int)-n) < 0)
        return (int)n;
    uint64_t size = line_value(status, "VmSize:"), shared = line_value(status, "RssShmem:");
    if (size == 0)
        return 0;
    scan->usage.anon_bytes += line_value(status, "VmPTE:") * 1024;
    if (scan->exact && read_text(task_fd, "smaps_rollup", text, sizeof(text)) > 0) {
        scan->usage.anon_bytes +=
            (line_value(text, "Pss_Anon:") + line_value(text, "SwapPss:")) * 1024;
        scan->shared_bytes += line_value(text, "Pss_Shmem:") * 1024;
    } else {
        scan->usage.anon_bytes +=
            (line_value(status, "RssAnon:") + line_value(status, "VmSwap:")) * 1024;
        scan->shared_bytes += shared * 1024;
    }
    int r = scan->exact || size * 1024 > HIDING_PLACE ? add_shared_mappings(scan, task_fd) : 0;
    /* A process can see to it that an ordinary user may not look (PR_SET_DUMPABLE, a program that
     * cannot be read): then all that is mapped and cannot be private memory is taken for shared,
     * and used. init is not the guest's. */
    if (r == -EACCES) {
        uint64_t seen = line_value(status, "VmData:") + shared;

        if (!is_init && size * 1024 > HIDING_PLACE && size > seen)
            scan->shared_bytes += (size - seen) * 1024;
        r = 0;
    }
    if (r == 0 && scan->exact)
        r = add_memory_files(scan, task_fd);
    return r < 0 ? r : 1;
}

/* A main thread that has ended (pthread_exit) shows no memory, which its process has all the same,
 * as long as another thread lives. */
static int add_memory(struct scan *scan, int process_fd, unsigned threads, bool is_init) {
    int r = add_memory_of(scan, process_fd, is_init);
    const struct dirent *entry;

    if (r != 0 || threads < 2)
        return MIN(r, 0);
    DIR *dir = open_directory(process_fd, "task");
    if (dir == NULL)
        return errno_of_shortage(errno);
    while (r == 0 && (errno = 0, entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        auto_close int fd = openat(dirfd(dir), entry->d_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        r = fd < 0 ? errno_of_shortage(errno) : add_memory_of(scan, fd, is_init);
    }
    if (r == 0)
        r = errno_of_shortage(errno);
    closedir(dir);
    return MIN(r, 0);
}

/* 0 also if the process is gone by now. */
static int scan_process(struct scan *scan, pid_t pid) {
    char path[32], text[1024];
    struct stat_line line;
    int r;

    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    auto_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -errno : read_text(fd, "stat", text, sizeof(text));
    if (n < 0 || parse_stat(text, &line) < 0)
        return n < 0 ? errno_of_shortage((int)-n) : 0;
    scan->usage.processes++;
    scan->usage.threads += line.threads;
    scan->usage.cpu_ns += line.ticks; /* turned into nanoseconds at the end */
    if (line.threads > 1)
        r = each_child(fd, "task", queue_child, &scan->queue);
    else {
        snprintf(path, sizeof(path), "task/%d/children", (int)pid);
        r = each_child_of_thread(fd, path, queue_child, &scan->queue);
    }
    return r == 0 ? add_memory(scan, fd, line.threads, pid == scan->queue.pids[0]) : r;
}

static int scan_from(pid_t init_pid, bool exact, struct proc_usage *ret_usage) {
    struct scan scan = { .exact = exact };
    int r = queue_add(&scan.queue, init_pid);

    while (r == 0 && scan.queue.next < scan.queue.n)
        r = scan_process(&scan, scan.queue.pids[scan.queue.next++]);
    if (r == 0 && scan.usage.processes == 0)
        r = -ESRCH;
    if (r == 0) {
        scan.usage.anon_bytes += MAX(scan.shared_bytes, sum_memory_files(&scan));
        scan.usage.cpu_ns *= UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK);
        scan.usage.truncated = scan.queue.truncated;
        *ret_usage = scan.usage;
    }
    free(scan.queue.pids);
    free(scan.files);
    return r;
}

int proc_scan(pid_t init_pid, struct proc_usage *ret_usage) {
    return scan_from(init_pid, false, ret_usage);
}

int proc_scan_exact(pid_t init_pid, struct proc_usage *ret_usage) {
    return scan_from(init_pid, true, ret_usage);
}

/* ---- files for a sandbox ---- */

/* The line at `line`, its newline included. */
static size_t line_length(const char *line, const char *end) {
    const char *newline = memchr(line, '\n', (size_t)(end - line));

    return newline != NULL ? (size_t)(newline - line) + 1 : (size_t)(end - line);
}

static bool line_is(const char *line, size_t length, const char *key) {
    size_t n = strlen(key);

    return length > n && memcmp(line, key, n) == 0 &&
           (line[n] == ':' || line[n] == '\t' || line[n] == ' ');
}

/* "key\t: number" cut down to at most `most`; other text stays as it is. */
static void add_count_line(struct buf *to, const char *line, size_t length, unsigned most) {
    const char *colon = memchr(line, ':', length);
    unsigned long value = 0;
    size_t i;

    if (colon == NULL) {
        buf_add(to, line, length);
        return;
    }
    for (i = (size_t)(colon - line) + 1; i < length && line[i] == ' '; i++)
        ;
    for (; i < length && line[i] >= '0' && line[i] <= '9' && value < UINT32_MAX; i++)
        value = value * 10 + (unsigned long)(line[i] - '0');
    buf_add(to, line, (size_t)(colon - line) + 1);
    buf_printf(to, " %lu\n", MIN(value, (unsigned long)most));
}

int proc_fake_cpuinfo(const char *host, size_t length, unsigned cpus, struct buf *to) {
    const char *end = host + length;
    unsigned seen = 0;

    for (const char *line = host; line < end;) {
        size_t n = line_length(line, end);

        if (line_is(line, n, "processor") && seen++ == cpus)
            break;
        if (line_is(line, n, "siblings") || line_is(line, n, "cpu cores"))
            add_count_line(to, line, n, cpus);
        else
            buf_add(to, line, n);
        line += n;
    }
    return buf_failed(to) ? -ENOMEM : 0;
}

int proc_fake_stat(unsigned cpus, int64_t boot_time_s, struct buf *to) {
    const unsigned idle = 100; /* not 0: readers divide by the total */

    buf_printf(to, "cpu  0 0 0 %u 0 0 0 0 0 0\n", idle * cpus);
    for (unsigned i = 0; i < cpus; i++)
        buf_printf(to, "cpu%u 0 0 0 %u 0 0 0 0 0 0\n", i, idle);
    buf_printf(to,
        "intr 0\nctxt 0\nbtime %" PRId64
        "\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        boot_time_s);
    return buf_failed(to) ? -ENOMEM : 0;
}

int proc_fake_meminfo(const char *host, size_t length, uint64_t limit_bytes, struct buf *to) {
    static const char *const all_of_it[] = { "MemTotal", "MemFree", "MemAvailable", "CommitLimit" };
    static const char *const kept[] = { "Hugepagesize", "VmallocTotal" };
    const char *end = host + length;
    uint64_t total_kib = limit_bytes / 1024;

    for (const char *line = host; line < end;) {
        size_t n = line_length(line, end);
        const char *colon = memchr(line, ':', n);
        bool kib = n >= 4 && memcmp(line + n - 4, " kB\n", 4) == 0;
        bool full = false, keep = false;
        uint64_t value = 0;

        if (colon == NULL)
            return -EBADMSG;
        for (const char *p = colon + 1;
             p < line + n && (*p == ' ' || (*p >= '0' && *p <= '9')) && value < UINT64_MAX / 100;
             p++)
            value = *p == ' ' ? value : value * 10 + (uint64_t)(*p - '0');
        for (size_t i = 0; i < ARRAY_SIZE(all_of_it); i++)
            full = full || line_is(line, n, all_of_it[i]);
        for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
            keep = keep || line_is(line, n, kept[i]);
        if (line_is(line, n, "MemTotal") && (total_kib == 0 || total_kib > value))
            total_kib = value;
        if (keep)
            buf_add(to, line, n);
        else {
            int label = (int)(colon - line) + 1;

            /* The kernel aligns the numbers in a column of their own. */
            buf_printf(to, "%-16.*s%8" PRIu64, label, line, full ? total_kib : 0);
            buf_add_text(to, kib ? " kB\n" : "\n");
        }
        line += n;
    }
    return buf_failed(to) ? -ENOMEM : 0;
}

int proc_fake_vmstat(uint64_t limit_bytes, struct buf *to) {
    static const char *const names[] = {
        "nr_inactive_anon",
        "nr_active_anon",
        "nr_inactive_file",
        "nr_active_file",
        "nr_anon_pages",
        "nr_mapped",
        "nr_file_pages",
        "nr_dirty",
        "nr_writeback",
        "nr_shmem",
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "pgfree",
        "pgactivate",
        "pgdeactivate",
        "pgfault",
        "pgmajfault",
        "oom_kill",
    };

    buf_printf(to, "nr_free_pages %llu\n", (unsigned long long)(limit_bytes / 4096));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        buf_printf(to, "%s 0\n", names[i]);
    return buf_failed(to) ? -ENOMEM : 0;
}

int proc_fake_loadavg(struct buf *to) {
    buf_add_text(to, "0.00 0.00 0.00 1/1 1\n");
    return buf_failed(to) ? -ENOMEM : 0;
}

/* ---- the caller itself ---- */

char *proc_own_program(void) {
    static const char removed[] = " (deleted)"; /* proc_pid_exe(5) */
    char text[4096];
    char *path = realpath("/proc/self/exe", NULL);

    if (path)
        return path;
    ssize_t n = readlink("/proc/self/exe", text, sizeof text);
    size_t end = sizeof removed - 1;
    if (n <= (ssize_t)end || (size_t)n == sizeof text || text[0] != '/' ||
        memcmp(text + n - end, removed, end) != 0)
        return NULL;
    return strndup(text, (size_t)n - end);
}
