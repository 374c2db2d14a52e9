/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping memory.
 *
 * /proc/PID/maps lists the areas of a process, and /proc/PID/pagemap describes each page. Only the
 * process's own pages are saved: those that it has written to, and those that never came from a
 * file. An unchanged mapping of a file is recorded by path, with inode, size and modification time,
 * and restore maps the file at that path again. A private mapping of a file with changed pages is
 * saved in full and restored as anonymous memory. The data segments of programs and libraries are
 * of this kind, so restored processes share their pages with the image and nothing has to be read
 * or copied.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "dump/internal.h"

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_EXCLUSIVE (1ull << 56) /* mapped by this process alone, not shared with a fork */

/* ---- what has changed ---- */

/* An area that continues an area of the parent image. */
struct since {
    struct dump *c;
    const struct dump_process *s;
    const struct image_area *before;
    size_t first_run;
    bool is_file;
    uint64_t end; /* is_file: the pages up to here are handled */
};

/* Pages of a file that the process has no copy of may have changed in the file since the parent
 * image. */
static int save_rest(struct since *since, uint64_t end) {
    uint64_t from = since->end;

    since->end = end;
    return since->is_file && end > from ? pages_save(since->c, since->s, since->first_run, from,
                                              (end - from) / IMAGE_PAGE, true)
                                        : 0;
}

static int save_written(void *data, uint64_t address, uint64_t n, enum dirty_pages_since what) {
    struct since *since = data;

    if (what != DIRTY_PAGES_KEPT && since->is_file)
        return 0; /* save_rest() saves these pages, with the missing ones before them */
    if (what == DIRTY_PAGES_WRITTEN)
        return pages_save_own(since->c, since->s, &since->first_run, address, n);
    if (what == DIRTY_PAGES_UNSURE)
        return pages_each_own(since->c, since->s, address, address + n * IMAGE_PAGE, pages_save_own,
            &since->first_run);
    int r = save_rest(since, address);
    since->end = address + n * IMAGE_PAGE;
    return r < 0 ? r : dirty_pages_keep(since->c, since->before, address, n);
}

/* Tracking holds only where the two areas overlap. Outside, the pages belonged to another area of
 * the parent image, which has been merged with this one since. */
static int save_since(struct dump *c, const struct dump_process *s, const struct image_area *area,
    const struct image_area *before, size_t first_run, bool is_file) {
    struct since since = { c, s, before, first_run, is_file, area->start };
    const uint64_t from = MAX(area->start, before->start), to = MIN(area->end, before->end);
    int r =
        save_written(&since, area->start, (from - area->start) / IMAGE_PAGE, DIRTY_PAGES_UNSURE);

    if (r == 0)
        r = dirty_pages_each(s, from, to, is_file, save_written, &since);
    if (r == 0)
        r = save_written(&since, to, (area->end - to) / IMAGE_PAGE, DIRTY_PAGES_UNSURE);
    return r < 0 ? r : save_rest(&since, area->end);
}

/* ---- areas ---- */

/* The file at the path of a mapping. If error is set, nothing else is. */
struct note {
    int error;
    mode_t mode;
    bool may_be_read, may_be_written;
    uint64_t inode, size;
    struct timespec mtime;
    bool is_fixed; /* no process in the sandbox can write to it */
    bool is_saved; /* the mapped pages are in the image already: */
    struct image_range runs;
};

/* An inaccessible mapping is often only padding between the segments of a library. It is dumped as
 * plain memory where its file cannot be identified. */
static bool may_be_found(const struct note *note, const struct map_line *map) {
    return note->error == 0 && S_ISREG(note->mode) && note->may_be_read &&
           !mappings_ends_with(map->path, " (deleted)");
}

static int identify_area(
    struct dump *c, const struct note *note, const struct map_line *map, struct image_area *area) {
    if (mappings_ends_with(map->path, " (deleted)"))
        return dump_refuse(c, ENOTSUP, "it maps the deleted file %.200s", map->path);
    if (note->error < 0)
        return dump_refuse(c, note->error == -ENOENT ? ENOTSUP : -note->error,
            "it maps %.200s, which cannot be found: %s", map->path, strerror(-note->error));
    if (!S_ISREG(note->mode))
        return dump_refuse(c, ENOTSUP, "it maps %.200s, which is not a regular file", map->path);
    if (!note->may_be_read ||
        (!note->may_be_written && map->is_shared && map->protection & PROT_WRITE))
        return dump_refuse(c, ENOTSUP, "it maps %.200s, which it may no longer open", map->path);
    area->kind = IMAGE_FILE;
    area->path = dump_text(c, map->path);
    area->offset = map->offset;
    area->is_shared = map->is_shared;
    area->is_written = map->is_shared && map->protection & PROT_WRITE;
    area->inode = note->inode;
    area->size = note->size;
    area->mtime_s = note->mtime.tv_sec;
    area->mtime_ns = note->mtime.tv_nsec;
    return 0;
}

/* Flags come from /proc/PID/smaps. It has a paragraph for each mapping, which begins with its line
 * of maps. */
/* Does the area have pages of the process's own, swapped ones included? -1: smaps does not say. */
static int has_own(const char *paragraph, const char *end) {
    static const char *const names[] = { "\nAnonymous:", "\nSwap:" };
    int has = 0;

    for (size_t i = 0; i < ARRAY_SIZE(names) && has >= 0; i++) {
        const char *found = strstr(paragraph, names[i]);

        has =
            !found || found >= end ? -1 : has | (strtoull(found + strlen(names[i]), NULL, 10) > 0);
    }
    return has;
}

static void add_flags(
    const char **at, struct image_area *area, bool *ret_may_write, int *ret_has_own) {
    char address[32], line[256];

    snprintf(address, sizeof address, "\n%08llx-", (unsigned long long)area->start);
    const char *found = strstr(*at, address), *flags = found ? strstr(found, "\nVmFlags:") : NULL;
    *ret_may_write = true;
    *ret_has_own = flags ? has_own(found, flags) : -1;
    if (!flags)
        return;
    /* Copies one line, because the rest of the text is long and would be searched each time. */
    snprintf(line, sizeof line, "%.*s", (int)strcspn(flags + 1, "\n"), flags + 1);
    area->forgets = strstr(line, " wf") ? IMAGE_WIPED : 0;
    if (strstr(line, " dp"))
        area->forgets = IMAGE_DROPPABLE;
    area->flags = strstr(line, " dc") ? IMAGE_NOT_FORKED : 0;
    if (strstr(line, " gd"))
        area->kind = IMAGE_STACK;
    *ret_may_write = strstr(line, " mw") != NULL;
    *at = flags;
}

static int fail_memory(struct dump *c, int r) {
    if (c->error->code)
        return r;
    return r == -E2BIG ? dump_refuse(c, E2BIG, "the processes have more than %llu bytes of memory",
                             (unsigned long long)c->options->max_bytes)
                       : dump_fail(c, "its memory", r);
}

/* An image that serves as a command's start must not share memory, except for the page of the
 * virtual clock, which each sandbox has. */
static bool is_refused(const struct dump *c, const struct map_line *map) {
    return c->options->is_command && !quiesce_is_page(c, map->inode, map->path);
}

static int save_area(struct dump *c, struct dump_process *s, const struct map_line *map,
    const struct note *note, const char **flags_at) {
    struct image_area area = {
        .start = map->start, .end = map->end, .protection = map->protection, .kind = IMAGE_ANONYMOUS
    };
    bool is_file = map->path[0] == '/', may_write;
    int told; /* result of has_own() */
    size_t first_run = dump_count(&c->runs, struct image_run),
           first_kept = dump_count(&c->kept, struct image_kept);
    const struct image_area *before = NULL;
    int r = 0;

    if (mappings_is_nobodys(s, map))
        return 0;
    if (map->start < IMAGE_LOWEST)
        return dump_refuse(c, ENOTSUP, "it maps memory at 0x%llx, too low for a restore",
            (unsigned long long)map->start);
    add_flags(flags_at, &area, &may_write, &told);
    if (!strncmp(map->path, "[vvar", 5) || !strcmp(map->path, "[vdso]")) {
        area.kind = map->path[2] == 'v' ? IMAGE_VVAR : IMAGE_VDSO;
    } else if (segments_is_one(map)) {
        uint32_t segment = 0;

        r = segments_find(c, map, &segment);
        area.kind = IMAGE_SEGMENT;
        area.path = segment;
        area.offset = map->offset;
        area.is_shared = 1;
        area.flags |= !may_write ? IMAGE_READ_ONLY : 0;
    } else if (mappings_is_nameless(map)) {
        uint32_t file = 0;

        r = is_refused(c, map) ? dump_refuse(c, ENOTSUP, "it shares memory")
                               : files_memory(c, s, map, &file);
        area.kind = IMAGE_MEMORY;
        area.path = file;
        area.offset = map->offset;
        area.is_shared = 1;
        area.flags |= !may_write ? IMAGE_READ_ONLY : 0;
    } else if (map->is_shared && c->options->is_command && map->protection & PROT_WRITE) {
        r = dump_refuse(c, ENOTSUP, "it shares writable memory, %.200s", map->path);
    } else if (area.forgets && is_file) {
        r = dump_refuse(c, ENOTSUP, "it maps %.200s so that it is forgotten", map->path);
    } else if (map->is_shared) {
        r = is_file ? identify_area(c, note, map, &area)
                    : dump_refuse(c, ENOTSUP, "it shares memory, %.200s", map->path);
    } else if (!area.forgets && !note->is_saved) {
        int own = !is_file    ? 0
                  : told >= 0 ? told
                              : pages_each_own(c, s, map->start, map->end, pages_is_there, NULL);

        if (own >= 0 && (!is_file || own))
            before = track_area(c, s, &area);
        if (own < 0)
            r = own;
        else if (is_file && !own && (map->protection || may_be_found(note, map)))
            r = identify_area(c, note, map, &area);
        else if (before)
            r = save_since(c, s, &area, before, first_run, is_file);
        else if (is_file)
            r = own ? pages_save(
                          c, s, first_run, map->start, (map->end - map->start) / IMAGE_PAGE, true)
                    : 0;
        else
            r = pages_each_own(c, s, map->start, map->end, pages_save_own, &first_run);
    }
    if (r < 0)
        return fail_memory(c, r);
    if (area.kind <= IMAGE_STACK)
        area.runs =
            note->is_saved ? note->runs : dump_range(&c->runs, first_run, sizeof(struct image_run));
    area.kept = dump_range(&c->kept, first_kept, sizeof(struct image_kept));
    r = guard_pages_take(c, &area);
    if (r < 0)
        return r;
    buf_add(&c->areas, &area, sizeof area);
    return dump_count(&c->areas, struct image_area) <= IMAGE_MAX_AREAS
               ? 0
               : dump_refuse(c, E2BIG, "the processes have more than %u mappings", IMAGE_MAX_AREAS);
}

static void identify_path(
    const struct dump *c, const struct dump_process *s, const char *path, struct note *ret_note) {
    auto_close int fd = mappings_open_path(s, path);
    struct statvfs system;
    struct stat st;

    ret_note->error = MIN(fd, 0);
    if (fd >= 0 && (fstat(fd, &st) < 0 || fstatvfs(fd, &system) < 0))
        ret_note->error = -errno;
    if (ret_note->error == 0)
        *ret_note = (struct note){ .mode = st.st_mode,
            .may_be_read = access_is_given(c, s, &st, ACCESS_READ),
            .may_be_written = access_is_given(c, s, &st, ACCESS_WRITE),
            .inode = st.st_ino,
            .size = (uint64_t)st.st_size,
            .mtime = st.st_mtim,
            .is_fixed = system.f_flag & ST_RDONLY };
}

/* A private file mapping is saved in full if the process has changed pages of it. Its other pages
 * still belong to the file, also in the copy-on-write fork, so they are saved now. */
static int save_mapped(
    struct dump *c, struct dump_process *s, const struct map_line *map, struct note *note) {
    size_t before = dump_count(&c->runs, struct image_run);
    int r = pages_each_own(c, s, map->start, map->end, pages_is_there, NULL);

    if (r <= 0)
        return r;
    r = pages_save(c, s, before, map->start, (map->end - map->start) / IMAGE_PAGE, true);
    note->is_saved = true;
    note->runs = dump_range(&c->runs, before, sizeof(struct image_run));
    return r;
}

static int identify_line(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data) {
    struct note note = { .error = -ENOENT },
                *last = s->notes.length ? dump_entry(&s->notes,
                                              dump_count(&s->notes, struct note) - 1, struct note)
                                        : NULL;
    bool has_path =
        mappings_is_looked_at(s, map) && !mappings_is_nameless(map) && map->path[0] == '/';
    char *last_path = data;

    (void)c;
    if (has_path && last && !strcmp(map->path, last_path))
        note = *last;
    else if (has_path && !mappings_ends_with(map->path, " (deleted)"))
        identify_path(c, s, map->path, &note);
    snprintf(last_path, MAX_LINE, "%s", map->path);
    buf_add(&s->notes, &note, sizeof note);
    return 0;
}

int memory_identify(struct dump *c, struct dump_process *s) {
    char last_path[MAX_LINE] = "";
    int r = mappings_each(c, s, identify_line, last_path);

    return r < 0                   ? fail_memory(c, r)
           : buf_failed(&s->notes) ? dump_fail(c, "its mappings", -ENOMEM)
                                   : 0;
}

static int note_line(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data) {
    size_t *n = data;
    struct note *note = dump_entry(&s->notes, (*n)++, struct note);
    uint32_t file;
    int r = 0;

    if (mappings_is_looked_at(s, map) && mappings_is_nameless(map) && !segments_is_one(map))
        r = is_refused(c, map) ? 0 : files_memory(c, s, map, &file);
    if (r == 0 && s->cow_fork.pid > 0 && map->path[0] == '/' && !map->is_shared && !note->is_fixed)
        r = save_mapped(c, s, map, note);
    return r;
}

int memory_note(struct dump *c, struct dump_process *s) {
    size_t n = 0;
    int r = mappings_each(c, s, note_line, &n);

    return r < 0 ? fail_memory(c, r) : 0;
}

struct lines {
    const char *flags_at; /* position in its smaps */
    size_t n;
};

static int save_line(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data) {
    struct lines *lines = data;

    return save_area(c, s, map, dump_entry(&s->notes, lines->n++, struct note), &lines->flags_at);
}

void memory_begin(struct dump_process *s) {
    async_read_begin(s, openat(s->proc, "smaps", O_RDONLY | O_CLOEXEC));
}

static int read_flags(struct dump *c, struct dump_process *s) {
    c->smaps.length = 0;
    buf_add(&c->smaps, "\n", 1);
    if (async_read_take(s, &c->smaps))
        return 0;
    c->smaps.length = 1;
    auto_close int smaps = openat(s->pages.proc, "smaps", O_RDONLY | O_CLOEXEC);
    return smaps < 0 ? -errno : fd_read_all(smaps, DUMP_MAX_TEXT, &c->smaps);
}

int memory_dump(struct dump *c, struct dump_process *s) {
    size_t before = dump_count(&c->areas, struct image_area);
    struct image_process *process = dump_entry(&c->processes, s->index, struct image_process);

    c->current = s;
    int r = read_flags(c, s);
    if (r < 0)
        return dump_fail(c, "its mappings", r);
    r = guard_pages_find(c, s);
    if (r < 0)
        return dump_fail(c, "its guards", r);
    struct lines lines = { .flags_at = c->smaps.data };
    r = mappings_each(c, s, save_line, &lines);
    process->areas = dump_range(&c->areas, before, sizeof(struct image_area));
    for (size_t i = before; r == 0 && i < before + process->areas.n; i++)
        if (dump_entry(&c->areas, i, struct image_area)->kind == IMAGE_VDSO)
            r = quiesce_look_at_vdso(c, s, dump_entry(&c->areas, i, struct image_area), process);
    return r < 0 ? r
           : buf_failed(&c->areas) || buf_failed(&c->runs) || buf_failed(&c->texts)
               ? dump_fail(c, "its mappings", -ENOMEM)
               : 0;
}

static int keep_promise(
    struct dump *c, const struct promise *promise, void (*written)(struct dump *c, uint64_t end)) {
    char *chunk = pages_chunk();

    for (uint64_t done = 0, length; done < promise->n * IMAGE_PAGE; done += length) {
        length = MIN(promise->n * IMAGE_PAGE - done, (uint64_t)CHUNK_PAGES * IMAGE_PAGE);
        ssize_t n = pages_read(promise->process, promise->address + done, chunk, (size_t)length);

        if (n != (ssize_t)length) {
            int r = guard_pages_refuse(
                c, promise->process, promise->address + done + (uint64_t)MAX(n, (ssize_t)0));
            if (r < 0)
                return r;
            return n < 0 ? (int)n : -EFAULT;
        }
        if (lseek(c->fd, (off_t)(promise->at + done), SEEK_SET) < 0)
            return -errno;
        int r = fd_write_all(c->fd, chunk, (size_t)length);
        if (r < 0)
            return r;
        written(c, promise->at + done + length);
    }
    return 0;
}

int memory_keep_promises(struct dump *c, void (*written)(struct dump *c, uint64_t end)) {
    const size_t n = dump_count(&c->promised, struct promise);
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        const struct promise *promise = dump_entry(&c->promised, i, struct promise);

        c->current = promise->process;
        r = keep_promise(c, promise, written);
        /* A guest can kill the fork. Reads of its memory return nothing from then on. */
        if ((r < 0 || i + 1 == n || promise[1].process != promise->process) &&
            !cow_fork_stands(promise->process))
            return dump_refuse(c, EAGAIN, COW_FORK_GONE);
    }
    return r < 0 ? fail_memory(c, r) : 0;
}

/* ---- touched pages ---- */

/* Adds the runs of pages in an area that the process has copied or, in a file mapping, has read. */
static int add_touches(const struct image_area *area, int pagemap, struct buf *to) {
    bool is_file = area->kind == IMAGE_FILE;
    struct image_touch touch = { .is_written = !is_file };
    size_t n = (size_t)((area->end - area->start) / IMAGE_PAGE);
    auto_free uint64_t *entries = calloc(n, sizeof *entries);
    ssize_t got = entries ? pread(pagemap, entries, n * sizeof *entries,
                                (off_t)(area->start / IMAGE_PAGE * sizeof *entries))
                          : -1;

    if (got < 0)
        return entries ? -errno : -ENOMEM;
    n = (size_t)got / sizeof *entries;
    for (size_t i = 0; i <= n; i++) {
        bool touched =
            i < n && entries[i] & PAGEMAP_PRESENT && (is_file || entries[i] & PAGEMAP_EXCLUSIVE);

        if (touched && !touch.length)
            touch.address = area->start + i * IMAGE_PAGE;
        if (touched)
            touch.length += IMAGE_PAGE;
        else if (touch.length)
            buf_add(to, &touch, sizeof touch);
        if (!touched)
            touch.length = 0;
    }
    return buf_failed(to) ? -ENOMEM : 0;
}

static int find_touches(pid_t pid, const char *whole, size_t length, struct buf *to) {
    const struct image *image = image_header(whole, length);
    const struct image_area *areas = image_table(image, whole, areas, struct image_area);
    char path[32];
    int r = 0;

    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)pid);
    auto_close int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return -errno;
    for (uint64_t i = 0; i < image->areas.n && r == 0; i++)
        if (areas[i].protection && areas[i].kind <= IMAGE_FILE &&
            (areas[i].kind == IMAGE_FILE || areas[i].protection & PROT_WRITE))
            r = add_touches(&areas[i], pagemap, to);
    return r;
}

int dump_touched(pid_t pid, int image, int fd, struct rollbox_error *error) {
    auto_buf struct buf touches = BUF_INIT;
    const char *whole;
    uint64_t length;
    int r = fd_map(image, &whole, &length);

    if (r == 0) {
        r = find_touches(pid, whole, (size_t)length, &touches);
        munmap((void *)(uintptr_t)whole, (size_t)length);
    }
    if (r == 0)
        r = fd_write_all(fd, touches.data, touches.length);
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "snapshot",
                       "the pages that process %d has written cannot be determined: %s", (int)pid,
                       strerror(-r))
                 : 0;
}
