/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a process to its image.
 *
 * Its memory is told by /proc/PID/maps and, page by page, by /proc/PID/pagemap: only pages of its own are saved, those that it has written to or that never came from a file. What it has of files is named, with what tells them from others
 * (inode, size, time of change), and mapped again where it is restored, from the files that are at these paths there. A private mapping of a file of which it has changed pages is saved whole and
 * becomes memory without a file: such are the data of programs and libraries, and so each restored process has them without reading or copying anything.
 */
#include "snapshot/capture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "snapshot/trace.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define MAX_TEXT (4u << 20)
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)
#define PAGEMAP_EXCLUSIVE (1ull << 56)  /* mapped by this process alone: no longer shared with those that have it by fork */
#define CHUNK_PAGES 256u
#define SIGNAL_SET 8            /* bytes of the kernel's */

struct capture {
    const struct capture_options *options;
    struct rollbox_error *error;
    struct trace trace;
    int fd, proc, root, pagemap;
    struct image image;
    struct buf areas, runs, texts, page_entries, smaps;
    struct buf xstate, auxv;
    uint64_t saved;             /* bytes of pages */
};

__attribute__((format(printf, 3, 4))) static int refuse(struct capture *c, int error_number, const char *format, ...) {
    char what[400];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(c->error, error_number == ENOTSUP ? ROLLBOX_ERR_FEATURE_MISSING : error_code_of(error_number, ROLLBOX_ERR_SETUP_FAILED), error_number, "snapshot",
                     "process %d cannot be captured: %s", (int)c->options->pid, what);
}

static int fail(struct capture *c, const char *what, int r) {
    return refuse(c, -r, "%s: %s", what, strerror(-r));
}

static int read_proc(const struct capture *c, const char *name, struct buf *to) {
    auto_close int fd = openat(c->proc, name, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, MAX_TEXT, to);

    buf_add(to, "", 1);
    return r < 0 ? r : buf_failed(to) ? -ENOMEM : 0;
}

/* ---- what the process is ------------------------------------------------------------------------------------------------ */

/* The line of /proc/PID/status that begins so, past that. */
static const char *status_field(const char *status, const char *name) {
    const char *at = strstr(status, name);

    return at ? at + strlen(name) : "";
}

static int count_entries(const struct capture *c, const char *name, uint64_t *ret_highest) {
    auto_close int fd = openat(c->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    int n = 0;

    if (!directory)
        return -errno;
    (void)TAKE_FD(fd);
    *ret_highest = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.') {
            *ret_highest = MAX(*ret_highest, (uint64_t)strtoul(entry->d_name, NULL, 10));
            n++;
        }
    closedir(directory);
    return n;
}

/* Also what it has let go of could share its memory. */
static int check_alone(struct capture *c) {
    pid_t found[2];

    if (proc_children(c->options->pid, found, 1))
        return refuse(c, ENOTSUP, "it has children");
    if (c->options->parent && (proc_children(c->options->parent, found, ARRAY_SIZE(found)) != 1 || found[0] != c->options->pid))
        return refuse(c, ENOTSUP, "it is not alone");
    return 0;
}

static int check_simple(struct capture *c) {
    auto_buf struct buf status = BUF_INIT;
    auto_buf struct buf timers = BUF_INIT;
    uint64_t highest;
    int r = read_proc(c, "status", &status);

    if (r < 0)
        return fail(c, "its status", r);
    int n = count_entries(c, "task", &highest);
    if (n != 1)
        return n < 0 ? fail(c, "its threads", n) : refuse(c, ENOTSUP, "it has %d threads", n);
    n = count_entries(c, "fd", &highest);
    if (n < 0)
        return fail(c, "its descriptors", n);
    if (highest > c->options->highest_fd)
        return refuse(c, ENOTSUP, "it has descriptor %llu open", (unsigned long long)highest);
    if (strtoull(status_field(status.data, "\nSigPnd:\t"), NULL, 16) || strtoull(status_field(status.data, "\nShdPnd:\t"), NULL, 16))
        return refuse(c, ENOTSUP, "signals are pending");
    if ((r = check_alone(c)) < 0)
        return r;
    if (read_proc(c, "timers", &timers) == 0 && timers.data[0])
        return refuse(c, ENOTSUP, "it has timers");
    c->image.process.umask = (uint32_t)strtoul(status_field(status.data, "\nUmask:\t"), NULL, 8);
    /* "NSpid:" has its pid in each namespace, the innermost last. */
    const char *inner = status_field(status.data, "\nNSpid:");
    const char *end = strchr(inner, '\n');
    while (end && end > inner && end[-1] != '\t')
        end--;
    c->image.process.pid = end ? (uint32_t)strtoul(end, NULL, 10) : 0;
    return c->image.process.pid ? 0 : refuse(c, ENOTSUP, "its pid cannot be told");
}

/* Field `n` of /proc/PID/stat, counted from 1 as in proc(5), past the name. */
static uint64_t stat_field(const char *stat, unsigned n) {
    const char *at = strrchr(stat, ')');

    for (unsigned field = 2; at && field < n; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static int look_at_layout(struct capture *c) {
    struct image_layout *layout = &c->image.process.layout;
    auto_buf struct buf stat = BUF_INIT;
    auto_buf struct buf name = BUF_INIT;
    const uint64_t zero = 0;
    int64_t brk;
    int r = read_proc(c, "stat", &stat);

    if (r == 0)
        r = read_proc(c, "auxv", &c->auxv);
    if (r == 0)
        r = read_proc(c, "comm", &name);
    if (r == 0)
        r = trace_call(&c->trace, SYS_brk, &zero, 1, NULL, 0, &brk);
    if (r < 0)
        return fail(c, "its layout", r);
    *layout = (struct image_layout){
        .start_code = stat_field(stat.data, 26), .end_code = stat_field(stat.data, 27), .start_data = stat_field(stat.data, 45), .end_data = stat_field(stat.data, 46),
        .start_brk = stat_field(stat.data, 47), .brk = (uint64_t)brk, .start_stack = stat_field(stat.data, 28), .arg_start = stat_field(stat.data, 48),
        .arg_end = stat_field(stat.data, 49), .env_start = stat_field(stat.data, 50), .env_end = stat_field(stat.data, 51),
    };
    snprintf(c->image.process.name, sizeof c->image.process.name, "%.*s", (int)strcspn(name.data, "\n"), name.data);
    c->auxv.length--;           /* the NUL */
    return 0;
}

static int look_at_signals(struct capture *c) {
    struct image_process *process = &c->image.process;
    int64_t result;

    for (uint64_t number = 1; number <= IMAGE_SIGNALS; number++) {
        uint64_t arguments[] = { number, 0, trace_scratch(&c->trace), SIGNAL_SET };
        int r = trace_call(&c->trace, SYS_rt_sigaction, arguments, ARRAY_SIZE(arguments), &process->actions[number - 1], sizeof process->actions[0], &result);

        if (r < 0 || result < 0)
            return fail(c, "its signal handlers", r < 0 ? r : (int)result);
    }
    uint64_t arguments[] = { 0, trace_scratch(&c->trace) };
    int r = trace_call(&c->trace, SYS_sigaltstack, arguments, ARRAY_SIZE(arguments), process->alternate_stack, sizeof process->alternate_stack, &result);
    if (r == 0 && result < 0)
        r = (int)result;
    if (r == 0)
        r = trace_signal_mask(&c->trace, &process->signal_mask);
    return r < 0 ? fail(c, "its signal mask", r) : 0;
}

static int look_at_thread(struct capture *c) {
    struct image_process *process = &c->image.process;
    uint64_t section = 0;
    size_t length;
    long list, list_length;

    process->registers = c->trace.registers;
    void *xstate = buf_reserve(&c->xstate, IMAGE_MAX_XSTATE);
    int r = xstate ? trace_xstate(&c->trace, xstate, IMAGE_MAX_XSTATE, &length, &process->xstate_features) : -ENOMEM;
    if (r < 0)
        return fail(c, "its vector registers", r);
    c->xstate.length = length;
    if (syscall(SYS_get_robust_list, c->options->pid, &list, &list_length) < 0)
        return fail(c, "its robust futexes", -errno);
    process->robust_list = (uint64_t)list;
    process->robust_length = (uint64_t)list_length;
    r = trace_rseq(&c->trace, &process->rseq, &process->rseq_length, &process->rseq_signature);
    if (r < 0)
        return fail(c, "its restartable sequences", r);
    /* Where a sequence is under way, struct rseq (linux/rseq.h) says so. */
    if (process->rseq && trace_read(&c->trace, process->rseq + 8, &section, sizeof section) != sizeof section)
        return fail(c, "its restartable sequences", -EFAULT);
    return section ? refuse(c, ENOTSUP, "it is in a restartable sequence") : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

static uint64_t add_text(struct capture *c, const char *text) {
    const char *end = c->texts.data + c->texts.length;

    for (const char *known = c->texts.data; known < end; known += strlen(known) + 1)
        if (!strcmp(known, text))
            return (uint64_t)(known - c->texts.data);
    uint64_t at = c->texts.length;
    buf_add(&c->texts, text, strlen(text) + 1);
    return at;
}

/* The entries of the pages from one address to another, in c->page_entries. */
static int read_pagemap(struct capture *c, uint64_t start, uint64_t end) {
    size_t length = (size_t)((end - start) / IMAGE_PAGE * sizeof(uint64_t)), done = 0;

    c->page_entries.length = 0;
    char *to = buf_reserve(&c->page_entries, length);
    if (!to)
        return -ENOMEM;
    while (done < length) {
        ssize_t n = pread(c->pagemap, to + done, length - done, (off_t)(start / IMAGE_PAGE * sizeof(uint64_t) + done));

        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    c->page_entries.length = length;
    return 0;
}

static bool is_own(uint64_t entry) {
    return entry & PAGEMAP_SWAPPED || (entry & PAGEMAP_PRESENT && !(entry & PAGEMAP_FILE));
}

static bool has_own_pages(const struct capture *c) {
    const uint64_t *entries = (const void *)c->page_entries.data;

    for (size_t i = 0; i < c->page_entries.length / sizeof *entries; i++)
        if (is_own(entries[i]))
            return true;
    return false;
}

static bool is_zero(const char *page) {
    return !page[0] && !memcmp(page, page + 1, IMAGE_PAGE - 1);
}

/* Runs end with their area. */
static int save_page(struct capture *c, const struct map_line *map, uint64_t address, const char *page) {
    struct image_run *last = c->runs.length ? (struct image_run *)(void *)(c->runs.data + c->runs.length - sizeof *last) : NULL;

    if (last && last->address >= map->start && last->address + last->length == address) {
        last->length += IMAGE_PAGE;
    } else {
        struct image_run run = { .address = address, .length = IMAGE_PAGE, .at = c->saved };

        buf_add(&c->runs, &run, sizeof run);
        if (c->runs.length / sizeof run > IMAGE_MAX_RUNS)
            return -E2BIG;
    }
    c->saved += IMAGE_PAGE;
    return fd_write_all(c->fd, page, IMAGE_PAGE);
}

/* All pages of the area that have anything, or only the process' own. Past the end of a file there is nothing. */
static int save_pages(struct capture *c, const struct map_line *map, bool all) {
    static char chunk[CHUNK_PAGES * IMAGE_PAGE];
    const uint64_t *entries = (const void *)c->page_entries.data;
    size_t n = (size_t)((map->end - map->start) / IMAGE_PAGE);

    for (size_t i = 0; i < n; i += CHUNK_PAGES) {
        size_t m = MIN(n - i, (size_t)CHUNK_PAGES), wanted = 0;

        for (size_t k = 0; k < m; k++)
            wanted += all || is_own(entries[i + k]);
        ssize_t got = wanted ? trace_read(&c->trace, map->start + i * IMAGE_PAGE, chunk, m * IMAGE_PAGE) : 0;
        if (got < 0 && !all)
            return (int)got;
        for (size_t k = 0; k < m && (ssize_t)((k + 1) * IMAGE_PAGE) <= got; k++) {
            const char *page = chunk + k * IMAGE_PAGE;

            if ((!all && !is_own(entries[i + k])) || is_zero(page))
                continue;
            if (c->saved >= c->options->most_bytes)
                return -E2BIG;
            int r = save_page(c, map, map->start + (i + k) * IMAGE_PAGE, page);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int identify(struct capture *c, const struct map_line *map, struct image_area *area) {
    struct stat st;
    size_t length = strlen(map->path);

    if (length > 10 && !strcmp(map->path + length - 10, " (deleted)"))
        return refuse(c, ENOTSUP, "it maps a file that is deleted, %.200s", map->path);
    /* Its root is its own: what is looked at is a name and nothing behind it. */
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
    auto_close int fd = sys_openat2(c->root, map->path, &how);
    if (fd < 0 || fstat(fd, &st) < 0)
        return refuse(c, fd < 0 ? -fd : errno, "it maps %.200s, which cannot be found: %s", map->path, strerror(fd < 0 ? -fd : errno));
    if (!S_ISREG(st.st_mode))
        return refuse(c, ENOTSUP, "it maps %.200s, which is no file", map->path);
    area->kind = IMAGE_FILE;
    area->path = add_text(c, map->path);
    area->offset = map->offset;
    area->is_shared = map->is_shared;
    area->inode = st.st_ino;
    area->size = (uint64_t)st.st_size;
    area->mtime_s = st.st_mtim.tv_sec;
    area->mtime_ns = st.st_mtim.tv_nsec;
    return 0;
}

/* By the flags in /proc/PID/smaps, which has a paragraph for each mapping, beginning with the line that it has in maps. */
static uint64_t forgets(const struct capture *c, uint64_t start) {
    char address[32];

    snprintf(address, sizeof address, "\n%08llx-", (unsigned long long)start);
    const char *at = strstr(c->smaps.data, address), *flags = at ? strstr(at, "\nVmFlags:") : NULL;
    if (!flags)
        return 0;
    const char *end = strchr(flags + 1, '\n'), *wiped = strstr(flags, " wf"), *dropped = strstr(flags, " dp");
    return dropped && dropped < end ? IMAGE_DROPPABLE : wiped && wiped < end ? IMAGE_WIPED : 0;
}

static int save_area(struct capture *c, const struct map_line *map) {
    struct image_area area = { .start = map->start, .end = map->end, .protection = map->protection, .kind = IMAGE_ANONYMOUS, .forgets = forgets(c, map->start) };
    bool is_file = map->path[0] == '/';
    int r = 0;

    if (map->start >= IMAGE_HIGHEST)
        return 0;               /* [vsyscall], the same in all processes */
    if (map->start < IMAGE_LOWEST)
        return refuse(c, ENOTSUP, "it has memory at 0x%llx", (unsigned long long)map->start);
    if (!strncmp(map->path, "[vvar", 5) || !strcmp(map->path, "[vdso]")) {
        area.kind = map->path[2] == 'v' ? IMAGE_VVAR : IMAGE_VDSO;
        buf_add(&c->areas, &area, sizeof area);
        return 0;
    }
    if (map->is_shared && (!is_file || map->protection & PROT_WRITE))
        return refuse(c, ENOTSUP, "it shares writable memory, %.200s", is_file ? map->path : "without a file");
    if (map->end - map->start > IMAGE_MAX_BYTES)
        return refuse(c, ENOTSUP, "it has a mapping of %llu bytes", (unsigned long long)(map->end - map->start));
    if (!map->is_shared && (r = read_pagemap(c, map->start, map->end)) < 0)
        return fail(c, "its pages", r);
    bool is_touched = !map->is_shared && !area.forgets && has_own_pages(c);
    if (area.forgets && is_file)
        return refuse(c, ENOTSUP, "it maps %.200s so that it is forgotten", map->path);
    if (is_file && !is_touched && map->protection) {
        r = identify(c, map, &area);
        if (r < 0)
            return r;
    } else if (is_touched) {
        r = save_pages(c, map, is_file);
        if (r < 0)
            return r == -E2BIG ? refuse(c, E2BIG, "it has more than %llu bytes of memory", (unsigned long long)c->options->most_bytes) : fail(c, "its memory", r);
    }
    if (!strcmp(map->path, "[stack]"))
        area.kind = IMAGE_STACK;
    buf_add(&c->areas, &area, sizeof area);
    return c->areas.length / sizeof area <= IMAGE_MAX_AREAS ? 0 : refuse(c, E2BIG, "it has more than %u mappings", IMAGE_MAX_AREAS);
}

static int save_memory(struct capture *c) {
    auto_buf struct buf maps = BUF_INIT;
    char *rest = NULL, executable[4096];
    int r = read_proc(c, "maps", &maps);

    buf_add(&c->smaps, "\n", 1);
    if (r == 0)
        r = read_proc(c, "smaps", &c->smaps);
    if (r < 0)
        return fail(c, "its mappings", r);
    ssize_t n = readlinkat(c->proc, "exe", executable, sizeof executable - 1);
    if (n < 0)
        return fail(c, "its program", -errno);
    executable[n] = '\0';
    c->image.process.executable = add_text(c, executable);
    for (char *line = strtok_r(maps.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        struct map_line map;

        r = map_line_parse(line, &map);
        if (r < 0)
            return refuse(c, EBADMSG, "a line of its mappings makes no sense");
        r = save_area(c, &map);
        if (r < 0)
            return r;
    }
    return buf_failed(&c->areas) || buf_failed(&c->runs) || buf_failed(&c->texts) ? fail(c, "its mappings", -ENOMEM) : 0;
}

/* ---- the file ----------------------------------------------------------------------------------------------------------- */

static uint64_t place(const struct buf *buf, uint64_t *at) {
    uint64_t offset = *at;

    *at = (offset + buf->length + 63) & ~63ull;
    return offset;
}

/* The pages are in the file already, from its beginning: the rest follows them, and the header, which has moved everything, comes last. */
static int finish(struct capture *c) {
    struct image *image = &c->image;
    uint64_t at = c->saved;
    struct image_area *areas = (void *)c->areas.data;

    image->n_areas = c->areas.length / sizeof *areas;
    image->n_runs = c->runs.length / sizeof(struct image_run);
    image->areas = place(&c->areas, &at);
    image->runs = place(&c->runs, &at);
    image->process.auxv = place(&c->auxv, &at);
    image->process.auxv_length = c->auxv.length;
    image->process.xstate = place(&c->xstate, &at);
    image->process.xstate_length = c->xstate.length;
    image->texts = place(&c->texts, &at);
    image->process.executable += image->texts;
    for (size_t i = 0; i < image->n_areas; i++)
        if (areas[i].kind == IMAGE_FILE)
            areas[i].path += image->texts;
    image->length = at + sizeof *image;
    image->magic = IMAGE_MAGIC;     /* with the header, which comes last */
    const struct { const struct buf *buf; uint64_t at; } parts[] = {
        { &c->areas, image->areas }, { &c->runs, image->runs }, { &c->auxv, image->process.auxv }, { &c->xstate, image->process.xstate }, { &c->texts, image->texts },
    };
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (pwrite(c->fd, parts[i].buf->data, parts[i].buf->length, (off_t)parts[i].at) != (ssize_t)parts[i].buf->length)
            return fail(c, "its image", errno ? -errno : -ENOSPC);
    return pwrite(c->fd, image, sizeof *image, (off_t)at) == sizeof *image ? 0 : fail(c, "its image", errno ? -errno : -ENOSPC);
}

static int open_proc(struct capture *c) {
    char path[32];

    snprintf(path, sizeof path, "/proc/%d", (int)c->options->pid);
    c->proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (c->proc < 0 || (c->root = openat(c->proc, "root", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 || (c->pagemap = openat(c->proc, "pagemap", O_RDONLY | O_CLOEXEC)) < 0)
        return fail(c, "/proc", -errno);
    return 0;
}

static void close_all(struct capture *c) {
    struct buf *all[] = { &c->areas, &c->runs, &c->texts, &c->page_entries, &c->smaps, &c->xstate, &c->auxv };

    close_fd(&c->proc);
    close_fd(&c->root);
    close_fd(&c->pagemap);
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        buf_done(all[i]);
}

int capture_process(const struct capture_options *options, int fd, struct rollbox_error *error) {
    struct capture c = { .options = options, .error = error, .fd = fd, .proc = -EBADF, .root = -EBADF, .pagemap = -EBADF };
    int r = open_proc(&c);

    if (r == 0) {
        r = trace_begin(&c.trace, options->pid, options->call);
        if (r < 0)
            r = r == -EBUSY ? refuse(&c, ENOTSUP, "it does not wait in the system call that it should") : fail(&c, "ptrace", r);
        else {
            r = check_simple(&c);
            if (r == 0)
                r = look_at_thread(&c);
            if (r == 0)
                r = look_at_signals(&c);
            if (r == 0)
                r = look_at_layout(&c);
            if (r == 0)
                r = save_memory(&c);
            if (r == 0)
                r = check_alone(&c);
            if (r == 0)
                r = finish(&c);
            trace_end(&c.trace);
        }
    }
    close_all(&c);
    return r;
}

/* ---- what it touches ---------------------------------------------------------------------------------------------------- */

/* Runs of pages, of one area, that it has its own copies of, or, of a file, looked at. */
static int add_touches(struct capture *c, const struct image_area *area, struct buf *to) {
    bool is_file = area->kind == IMAGE_FILE;
    struct image_touch touch = { .is_written = !is_file };
    int r = read_pagemap(c, area->start, area->end);
    const uint64_t *entries = (const void *)c->page_entries.data;
    size_t n = c->page_entries.length / sizeof *entries;

    for (size_t i = 0; i <= n && r == 0; i++) {
        bool touched = i < n && entries[i] & PAGEMAP_PRESENT && (is_file || entries[i] & PAGEMAP_EXCLUSIVE);

        if (touched && !touch.length)
            touch.address = area->start + i * IMAGE_PAGE;
        if (touched)
            touch.length += IMAGE_PAGE;
        else if (touch.length)
            buf_add(to, &touch, sizeof touch);
        if (!touched)
            touch.length = 0;
    }
    return r;
}

static int find_touches(struct capture *c, const char *whole, size_t length) {
    const struct image *image = (const void *)(whole + length - sizeof *image);
    const struct image_area *areas = image_at(whole, image->areas, struct image_area);
    auto_buf struct buf touches = BUF_INIT;
    int r = 0;

    for (uint64_t i = 0; i < image->n_areas && r == 0; i++)
        if (areas[i].protection && areas[i].kind <= IMAGE_FILE && (areas[i].kind == IMAGE_FILE || areas[i].protection & PROT_WRITE))
            r = add_touches(c, &areas[i], &touches);
    if (r == 0 && buf_failed(&touches))
        r = -ENOMEM;
    return r < 0 ? fail(c, "its pages", r) : (r = fd_write_all(c->fd, touches.data, touches.length)) < 0 ? fail(c, "what it touches", r) : 0;
}

int capture_touched(pid_t pid, int image, int fd, struct rollbox_error *error) {
    struct capture_options options = { .pid = pid };
    struct capture c = { .options = &options, .error = error, .fd = fd, .proc = -EBADF, .root = -EBADF, .pagemap = -EBADF };
    struct stat st;
    int r = open_proc(&c);
    const char *whole = r == 0 && fstat(image, &st) == 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, image, 0) : MAP_FAILED;

    if (r == 0)
        r = whole == MAP_FAILED ? fail(&c, "its image", -errno) : find_touches(&c, whole, (size_t)st.st_size);
    if (whole != MAP_FAILED)
        munmap((void *)(uintptr_t)whole, (size_t)st.st_size);
    close_all(&c);
    return r;
}
