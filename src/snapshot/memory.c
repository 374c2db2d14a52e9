/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing memory.
 *
 * It is told by /proc/PID/maps and, page by page, by /proc/PID/pagemap: only pages of the process' own are saved, those that it has written to or that never came from a file. What it has of files is named, with what tells them from
 * others (inode, size, time of change), and mapped again where it is restored, from the files that are at these paths there. A private mapping of a file of which it has changed pages is saved whole and
 * becomes memory without a file: such are the data of programs and libraries, and so restored processes have them without reading or copying anything.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "snapshot/internal.h"
#include "sys/syscalls.h"

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)
#define PAGEMAP_EXCLUSIVE (1ull << 56)  /* mapped by this process alone: no longer shared with those that have it by fork */
#define CHUNK_PAGES 64u         /* its own memory has to be made for it, and a processor's cache holds it */
#define ENTRIES 65536u          /* of pagemap at a time */
#define MAX_SHARED (256ull << 20)
#define MAX_LINE 4352

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);

    return n >= m && !strcmp(text + n - m, end);
}

/* Its root is its own: what is looked at is a name and nothing behind it. */
static int open_path(const struct subject *s, const char *path) {
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };

    return sys_openat2(s->root, path, &how);
}

int memory_find_path(const struct subject *s, const char *path, struct stat *ret_st) {
    auto_close int fd = open_path(s, path);

    return fd < 0 ? fd : fstat(fd, ret_st) < 0 ? -errno : 0;
}

/* ---- pages -------------------------------------------------------------------------------------------------------------- */

/* Guards seem to be swapped, and are none of its pages. */
static bool is_own(uint64_t entry) {
    return !(entry & PAGEMAP_GUARD) && (entry & PAGEMAP_SWAPPED || (entry & PAGEMAP_PRESENT && !(entry & PAGEMAP_FILE)));
}

static bool is_zero(const char *page) {
    return !page[0] && !memcmp(page, page + 1, IMAGE_PAGE - 1);
}

/* Pages that are not zero go to the image, as runs of at most what is given at once. */
static int save(struct capture *c, size_t first_run, uint64_t address, const char *pages, size_t n) {
    for (size_t i = 0, k; i < n; i = k + 1) {
        while (i < n && is_zero(pages + i * IMAGE_PAGE))
            i++;
        for (k = i; k < n && !is_zero(pages + k * IMAGE_PAGE); k++)
            ;
        if (k == i)
            break;
        size_t length = (k - i) * IMAGE_PAGE, n_runs = capture_count(&c->runs, struct image_run);
        struct image_run *last = n_runs > first_run ? capture_entry(&c->runs, n_runs - 1, struct image_run) : NULL;
        struct image_run run = { .address = address + i * IMAGE_PAGE, .length = length, .at = c->saved };

        if (c->saved + length > c->options->most_bytes)
            return -E2BIG;
        if (last && last->address + last->length == run.address && last->at + last->length == run.at)
            last->length += length;
        else if (n_runs == IMAGE_MAX_RUNS)
            return -E2BIG;
        else
            buf_add(&c->runs, &run, sizeof run);
        int r = capture_put(c, pages + i * IMAGE_PAGE, length);
        if (r < 0)
            return r;
    }
    return 0;
}

/* How many bytes there are, or -errno. Not by process_vm_readv(2), which pins what it reads: of each page that is shared by fork, as all of a twin's are, and most of a restored process', the kernel makes a copy for that, the sandbox' to pay for. */
static ssize_t read_pages(const struct subject *s, uint64_t address, char *to, size_t length) {
    return trace_read(s->pages.memory, address, to, length);
}

static char *chunk_memory(void) {
    static _Alignas(4096) char chunk[CHUNK_PAGES * IMAGE_PAGE];

    return chunk;
}

/* Zeros are not told from others, for nobody looks: so that those which the kernel has but once, and which count for nobody, do not add up, no more is promised than counts. */
static bool may_promise(const struct capture *c, uint64_t n) {
    return c->promises && n <= c->twins / IMAGE_PAGE && c->n_promised <= c->twins / IMAGE_PAGE - n && n * IMAGE_PAGE <= c->options->most_bytes - c->saved && capture_count(&c->runs, struct image_run) < IMAGE_MAX_RUNS;
}

/* Where they are to be in the image is known, and tables can tell of it: they follow later. */
static int promise(struct capture *c, const struct subject *s, uint64_t address, uint64_t n) {
    struct promise pages = { .subject = s, .address = address, .n = n, .at = c->saved };
    struct image_run run = { .address = address, .length = n * IMAGE_PAGE, .at = c->saved };
    int r = capture_flush(c);

    if (r < 0)
        return r;
    buf_add(&c->promised, &pages, sizeof pages);
    buf_add(&c->runs, &run, sizeof run);
    c->n_promised += n;
    c->saved += n * IMAGE_PAGE;
    return buf_failed(&c->promised) ? -ENOMEM : lseek(c->fd, (off_t)c->saved, SEEK_SET) < 0 ? -errno : 0;
}

/* `n` pages from an address on; past the end of a mapped file there is nothing. */
static int save_stretch(struct capture *c, const struct subject *s, size_t first_run, uint64_t address, uint64_t n, bool is_file) {
    char *chunk = chunk_memory();

    while (n) {
        size_t m = (size_t)MIN(n, (uint64_t)CHUNK_PAGES);
        ssize_t got = read_pages(s, address, chunk, m * IMAGE_PAGE);
        int r = got < (ssize_t)(m * IMAGE_PAGE) ? guards_refuse(c, s, address + (uint64_t)MAX(got, (ssize_t)0)) : 0;

        if (r < 0 || (got < 0 && !is_file))
            return r < 0 ? r : (int)got;
        if (got > 0) {
            r = save(c, first_run, address, chunk, (size_t)got / IMAGE_PAGE);
            if (r < 0)
                return r;
        }
        if (got < (ssize_t)(m * IMAGE_PAGE))
            return is_file ? 0 : -EFAULT;
        address += m * IMAGE_PAGE;
        n -= m;
    }
    return 0;
}

/* Calls back for each stretch of the process' own pages from one address to another: -errno of its own, or what `call` returns that is not 0. */
typedef int stretch_call(struct capture *c, const struct subject *s, void *data, uint64_t address, uint64_t n);

/* Where the next page is that there is, or `end`: a guest may have terabytes of nothing. Kernels that cannot tell are asked about each page. */
static uint64_t skip_nothing(const struct subject *s, uint64_t start, uint64_t end) {
    const uint64_t there = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    struct uapi_page_region found;
    struct uapi_pm_scan_arg scan = { .size = sizeof scan, .start = start, .end = end, .vec = (uintptr_t)&found, .vec_len = 1, .max_pages = 1, .category_anyof_mask = there, .return_mask = there };
    int n = ioctl(s->pages.pagemap, PAGEMAP_SCAN, &scan);

    return n < 0 ? start : n ? found.start : end;
}

static int each_own_stretch(struct capture *c, const struct subject *s, uint64_t start, uint64_t end, stretch_call *call, void *data) {
    uint64_t *entries = buf_reserve(&c->scratch, ENTRIES * sizeof *entries), run_at = 0, run_n = 0;
    int r = entries ? 0 : -ENOMEM;

    while (start < end && r == 0) {
        uint64_t next = skip_nothing(s, start, end);
        if (next > start && run_n) {
            r = call(c, s, data, run_at, run_n);
            run_n = 0;
        }
        start = next;
        if (r || start >= end)
            break;
        size_t n = (size_t)MIN((end - start) / IMAGE_PAGE, (uint64_t)ENTRIES);
        ssize_t got = pread(s->pages.pagemap, entries, n * sizeof *entries, (off_t)(start / IMAGE_PAGE * sizeof *entries));

        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        n = (size_t)got / sizeof *entries;
        for (size_t i = 0; i < n && r == 0; i++) {
            bool own = is_own(entries[i]);

            if (own && !run_n)
                run_at = start + i * IMAGE_PAGE;
            run_n += own;
            if (!own && run_n) {
                r = call(c, s, data, run_at, run_n);
                run_n = 0;
            }
        }
        start += n * IMAGE_PAGE;
    }
    return r == 0 && run_n ? call(c, s, data, run_at, run_n) : r;
}

static int save_own(struct capture *c, const struct subject *s, void *data, uint64_t address, uint64_t n) {
    return may_promise(c, n) ? promise(c, s, address, n) : save_stretch(c, s, *(const size_t *)data, address, n, false);
}

/* An area that goes on from the base. */
struct since {
    struct capture *c;
    const struct subject *s;
    const struct image_area *before;
    size_t first_run;
    bool is_file;
    uint64_t end;               /* is_file: up to here all is said */
};

/* What of a file's is not the process' own may be otherwise by now. */
static int save_rest(struct since *since, uint64_t end) {
    uint64_t from = since->end;

    since->end = end;
    return since->is_file && end > from ? save_stretch(since->c, since->s, since->first_run, from, (end - from) / IMAGE_PAGE, true) : 0;
}

static int save_written(void *data, uint64_t address, uint64_t n, enum track_since what) {
    struct since *since = data;

    if (what != TRACK_KEPT && since->is_file)
        return 0;               /* with what lies before it, and is not there */
    if (what == TRACK_WRITTEN)
        return save_own(since->c, since->s, &since->first_run, address, n);
    if (what == TRACK_UNSURE)
        return each_own_stretch(since->c, since->s, address, address + n * IMAGE_PAGE, save_own, &since->first_run);
    int r = save_rest(since, address);
    since->end = address + n * IMAGE_PAGE;
    return r < 0 ? r : track_keep(since->c, since->before, address, n);
}

/* Only where the two overlap: what the base had beside its area was another's there, and has become one with this since. */
static int save_since(struct capture *c, const struct subject *s, const struct image_area *area, const struct image_area *before, size_t first_run, bool is_file) {
    struct since since = { c, s, before, first_run, is_file, area->start };
    const uint64_t from = MAX(area->start, before->start), to = MIN(area->end, before->end);
    int r = save_written(&since, area->start, (from - area->start) / IMAGE_PAGE, TRACK_UNSURE);

    if (r == 0)
        r = track_each(s, from, to, is_file, save_written, &since);
    if (r == 0)
        r = save_written(&since, to, (area->end - to) / IMAGE_PAGE, TRACK_UNSURE);
    return r < 0 ? r : save_rest(&since, area->end);
}

static int is_there(struct capture *c, const struct subject *s, void *data, uint64_t address, uint64_t n) {
    (void)c, (void)s, (void)data, (void)address, (void)n;
    return 1;
}

int memory_save_file(struct capture *c, int fd, uint64_t length, struct image_range *ret_runs) {
    size_t before = capture_count(&c->runs, struct image_run);
    char *chunk = chunk_memory();
    uint64_t at = 0;

    while (at < length) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);

        if (data < 0 && errno == ENXIO)
            break;
        at = data < 0 ? at : (uint64_t)data & ~(uint64_t)(IMAGE_PAGE - 1);
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        uint64_t there = hole > data ? image_up_to((uint64_t)hole - at, IMAGE_PAGE) : length - at;
        ssize_t n = pread(fd, chunk, (size_t)MIN(there, (uint64_t)CHUNK_PAGES * IMAGE_PAGE), (off_t)at);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        size_t whole = (size_t)image_up_to((uint64_t)n, IMAGE_PAGE);
        memset(chunk + n, 0, whole - (size_t)n);
        int r = save(c, before, at, chunk, whole / IMAGE_PAGE);
        if (r < 0)
            return r;
        at += whole;
    }
    *ret_runs = capture_range(&c->runs, before, sizeof(struct image_run));
    return 0;
}

int memory_save_shared(struct capture *c, const struct subject *s, const struct map_line *map, struct image_range *ret_runs) {
    size_t before = capture_count(&c->runs, struct image_run);
    char *chunk = chunk_memory();

    if (map->end - map->start > MAX_SHARED)
        return -EFBIG;          /* looking at all of it would make it all be there */
    for (uint64_t at = map->start; at < map->end; at += CHUNK_PAGES * IMAGE_PAGE) {
        size_t length = (size_t)MIN(map->end - at, (uint64_t)CHUNK_PAGES * IMAGE_PAGE);
        ssize_t n = read_pages(s, at, chunk, length);
        int r = n < (ssize_t)length ? guards_refuse(c, s, at + (uint64_t)MAX(n, (ssize_t)0)) : 0;

        if (r == 0 && n == -EIO && map->protection & PROT_READ)
            break;              /* past the end of its file there is nothing */
        if (r == 0)
            r = n < 0 ? (int)n : save(c, before, map->offset + (at - map->start), chunk, (size_t)n / IMAGE_PAGE);
        if (r < 0)
            return r;
    }
    *ret_runs = capture_range(&c->runs, before, sizeof(struct image_run));
    return 0;
}

/* ---- areas -------------------------------------------------------------------------------------------------------------- */

/* What is at the path of a mapping: 0, or -errno and nothing. */
struct note {
    int error;
    mode_t mode;
    bool may_be_read, may_be_written;
    uint64_t inode, size;
    struct timespec mtime;
    bool is_fixed;              /* nobody in the sandbox can write to it */
    bool is_saved;              /* what is mapped is in the image already: */
    struct image_range runs;
};

/* What may not be touched at all is often nothing but room between a library's parts: if it is no more than that, nothing is refused for it. */
static bool may_be_found(const struct note *note, const struct map_line *map) {
    return note->error == 0 && S_ISREG(note->mode) && note->may_be_read && !ends_with(map->path, " (deleted)");
}

static int identify(struct capture *c, const struct note *note, const struct map_line *map, struct image_area *area) {
    if (ends_with(map->path, " (deleted)"))
        return capture_refuse(c, ENOTSUP, "it maps a file that is deleted, %.200s", map->path);
    if (note->error < 0)
        return capture_refuse(c, note->error == -ENOENT ? ENOTSUP : -note->error, "it maps %.200s, which cannot be found: %s", map->path, strerror(-note->error));
    if (!S_ISREG(note->mode))
        return capture_refuse(c, ENOTSUP, "it maps %.200s, which is no file", map->path);
    if (!note->may_be_read || (!note->may_be_written && map->is_shared && map->protection & PROT_WRITE))
        return capture_refuse(c, ENOTSUP, "it maps %.200s, which it may not open any more", map->path);
    area->kind = IMAGE_FILE;
    area->path = capture_text(c, map->path);
    area->offset = map->offset;
    area->is_shared = map->is_shared;
    area->is_written = map->is_shared && map->protection & PROT_WRITE;
    area->inode = note->inode;
    area->size = note->size;
    area->mtime_s = note->mtime.tv_sec;
    area->mtime_ns = note->mtime.tv_nsec;
    return 0;
}

/* By the flags in /proc/PID/smaps, which has a paragraph for each mapping, beginning with the line that it has in maps. */
/* Whether it has pages of the process' own, swapped ones, too; -1: it does not tell. */
static int has_own(const char *paragraph, const char *end) {
    static const char *const names[] = { "\nAnonymous:", "\nSwap:" };
    int has = 0;

    for (size_t i = 0; i < ARRAY_SIZE(names) && has >= 0; i++) {
        const char *found = strstr(paragraph, names[i]);

        has = !found || found >= end ? -1 : has | (strtoull(found + strlen(names[i]), NULL, 10) > 0);
    }
    return has;
}

static void add_flags(const char **at, struct image_area *area, bool *ret_may_write, int *ret_has_own) {
    char address[32], line[256];

    snprintf(address, sizeof address, "\n%08llx-", (unsigned long long)area->start);
    const char *found = strstr(*at, address), *flags = found ? strstr(found, "\nVmFlags:") : NULL;
    *ret_may_write = true;
    *ret_has_own = flags ? has_own(found, flags) : -1;
    if (!flags)
        return;
    /* The line alone: the rest of the text is long, and is looked through once. */
    snprintf(line, sizeof line, "%.*s", (int)strcspn(flags + 1, "\n"), flags + 1);
    area->forgets = strstr(line, " dp") ? IMAGE_DROPPABLE : strstr(line, " wf") ? IMAGE_WIPED : 0;
    area->flags = strstr(line, " dc") ? IMAGE_NOT_FORKED : 0;
    if (strstr(line, " gd"))
        area->kind = IMAGE_STACK;
    *ret_may_write = strstr(line, " mw") != NULL;
    *at = flags;
}

/* Shared memory without a name, and memory files, whose pages are saved once for all who map them. */
static bool is_nameless(const struct map_line *map) {
    return map->is_shared && (!map->path[0] || !strncmp(map->path, "/memfd:", 7) || !strncmp(map->path, "/dev/zero (deleted)", 19) || !strncmp(map->path, "[anon_shmem:", 12) || ends_with(map->path, " (deleted)"));
}

#define LEFT "\n003ff000-00400000 r-xp" /* the line in /proc/PID/maps of what comes last */
_Static_assert(IMAGE_LAST == 0x3ff000 && IMAGE_LOWEST == 0x400000, "it lies there");

/* [vsyscall], the same in all processes; what an earlier restoring has left, all of which is there, and begins at these places. What else is there is a guest's. */
static bool is_nobodys(const struct subject *s, const struct map_line *map) {
    return map->start >= IMAGE_HIGHEST || (map->end <= IMAGE_LOWEST && (map->start == IMAGE_FRAMES || map->start == IMAGE_GATE || map->start == IMAGE_LAST) && strstr(s->maps.data, LEFT));
}

static int fail(struct capture *c, int r) {
    if (c->error->code)
        return r;
    return r == -E2BIG ? capture_refuse(c, E2BIG, "there are more than %llu bytes of memory", (unsigned long long)c->options->most_bytes) : capture_fail(c, "its memory", r);
}

/* A command to be shares no memory, but for the page of the clock, which each sandbox has one of. */
static bool is_refused(const struct capture *c, const struct map_line *map) {
    return c->options->is_command && !still_is_page(c, map->inode, map->path);
}

static int save_area(struct capture *c, struct subject *s, const struct map_line *map, const struct note *note, const char **flags_at) {
    struct image_area area = { .start = map->start, .end = map->end, .protection = map->protection, .kind = IMAGE_ANONYMOUS };
    bool is_file = map->path[0] == '/', may_write;
    int told;                   /* has_own */
    size_t first_run = capture_count(&c->runs, struct image_run), first_kept = capture_count(&c->kept, struct image_kept);
    const struct image_area *before = NULL;
    int r = 0;

    if (is_nobodys(s, map))
        return 0;
    if (map->start < IMAGE_LOWEST)
        return capture_refuse(c, ENOTSUP, "it has memory at 0x%llx", (unsigned long long)map->start);
    add_flags(flags_at, &area, &may_write, &told);
    if (!strncmp(map->path, "[vvar", 5) || !strcmp(map->path, "[vdso]")) {
        area.kind = map->path[2] == 'v' ? IMAGE_VVAR : IMAGE_VDSO;
    } else if (is_nameless(map)) {
        uint32_t file = 0;

        r = is_refused(c, map) ? capture_refuse(c, ENOTSUP, "it shares memory") : files_memory(c, s, map, &file);
        area.kind = IMAGE_MEMORY;
        area.path = file;
        area.offset = map->offset;
        area.is_shared = 1;
        area.flags |= !may_write ? IMAGE_READ_ONLY : 0;
    } else if (map->is_shared && c->options->is_command && map->protection & PROT_WRITE) {
        r = capture_refuse(c, ENOTSUP, "it shares writable memory, %.200s", map->path);
    } else if (area.forgets && is_file) {
        r = capture_refuse(c, ENOTSUP, "it maps %.200s so that it is forgotten", map->path);
    } else if (map->is_shared) {
        r = is_file ? identify(c, note, map, &area) : capture_refuse(c, ENOTSUP, "it shares memory, %.200s", map->path);
    } else if (!area.forgets && !note->is_saved) {
        int own = !is_file ? 0 : told >= 0 ? told : each_own_stretch(c, s, map->start, map->end, is_there, NULL);

        if (own >= 0 && (!is_file || own))
            before = track_area(c, s, &area);
        if (own < 0)
            r = own;
        else if (is_file && !own && (map->protection || may_be_found(note, map)))
            r = identify(c, note, map, &area);
        else if (before)
            r = save_since(c, s, &area, before, first_run, is_file);
        else if (is_file)
            r = own ? save_stretch(c, s, first_run, map->start, (map->end - map->start) / IMAGE_PAGE, true) : 0;
        else
            r = each_own_stretch(c, s, map->start, map->end, save_own, &first_run);
    }
    if (r < 0)
        return fail(c, r);
    if (area.kind <= IMAGE_STACK)
        area.runs = note->is_saved ? note->runs : capture_range(&c->runs, first_run, sizeof(struct image_run));
    area.kept = capture_range(&c->kept, first_kept, sizeof(struct image_kept));
    r = guards_take(c, &area);
    if (r < 0)
        return r;
    buf_add(&c->areas, &area, sizeof area);
    return capture_count(&c->areas, struct image_area) <= IMAGE_MAX_AREAS ? 0 : capture_refuse(c, E2BIG, "there are more than %u mappings", IMAGE_MAX_AREAS);
}

/* Each line of its maps in turn. */
typedef int line_call(struct capture *c, struct subject *s, const struct map_line *map, void *data);

static int each_line(struct capture *c, struct subject *s, line_call *call, void *data) {
    char line[MAX_LINE];
    int r = 0;

    for (const char *at = s->maps.data, *end; *at && r == 0; at = end + (*end == '\n')) {
        struct map_line map;

        end = strchrnul(at, '\n');
        if ((size_t)(end - at) >= sizeof line)
            return capture_refuse(c, ENAMETOOLONG, "a line of its mappings is too long");
        memcpy(line, at, (size_t)(end - at));
        line[end - at] = '\0';
        r = map_line_parse(line, &map) < 0 ? capture_refuse(c, EBADMSG, "a line of its mappings makes no sense") : call(c, s, &map, data);
    }
    return r;
}

static void identify_path(const struct subject *s, const char *path, struct note *ret_note) {
    auto_close int fd = open_path(s, path);
    struct statvfs system;
    struct stat st;

    ret_note->error = fd < 0 ? fd : fstat(fd, &st) < 0 || fstatvfs(fd, &system) < 0 ? -errno : 0;
    if (ret_note->error == 0)
        *ret_note = (struct note){ .mode = st.st_mode, .may_be_read = access_is_given(s, &st, ACCESS_READ), .may_be_written = access_is_given(s, &st, ACCESS_WRITE), .inode = st.st_ino, .size = (uint64_t)st.st_size, .mtime = st.st_mtim, .is_fixed = system.f_flag & ST_RDONLY };
}

/* Of a private mapping that is saved whole, because pages of it are the process' own, the others are the file's yet, in the twin, too. */
static int save_mapped(struct capture *c, struct subject *s, const struct map_line *map, struct note *note) {
    size_t before = capture_count(&c->runs, struct image_run);
    int r = each_own_stretch(c, s, map->start, map->end, is_there, NULL);

    if (r <= 0)
        return r;
    r = save_stretch(c, s, before, map->start, (map->end - map->start) / IMAGE_PAGE, true);
    note->is_saved = true;
    note->runs = capture_range(&c->runs, before, sizeof(struct image_run));
    return r;
}

static bool is_looked_at(const struct subject *s, const struct map_line *map) {
    return !is_nobodys(s, map) && map->start >= IMAGE_LOWEST;
}

static int identify_line(struct capture *c, struct subject *s, const struct map_line *map, void *data) {
    struct note note = { .error = -ENOENT }, *last = s->notes.length ? capture_entry(&s->notes, capture_count(&s->notes, struct note) - 1, struct note) : NULL;
    bool has_path = is_looked_at(s, map) && !is_nameless(map) && map->path[0] == '/';
    char *last_path = data;

    (void)c;
    if (has_path && last && !strcmp(map->path, last_path))
        note = *last;
    else if (has_path && !ends_with(map->path, " (deleted)"))
        identify_path(s, map->path, &note);
    snprintf(last_path, MAX_LINE, "%s", map->path);
    buf_add(&s->notes, &note, sizeof note);
    return 0;
}

int memory_identify(struct capture *c, struct subject *s) {
    char last_path[MAX_LINE] = "";
    int r = each_line(c, s, identify_line, last_path);

    return r < 0 ? fail(c, r) : buf_failed(&s->notes) ? capture_fail(c, "its mappings", -ENOMEM) : 0;
}

static int note_line(struct capture *c, struct subject *s, const struct map_line *map, void *data) {
    size_t *n = data;
    struct note *note = capture_entry(&s->notes, (*n)++, struct note);
    uint32_t file;
    int r = 0;

    if (is_looked_at(s, map) && is_nameless(map))
        r = is_refused(c, map) ? 0 : files_memory(c, s, map, &file);
    if (r == 0 && s->twin.pid > 0 && map->path[0] == '/' && !map->is_shared && !note->is_fixed)
        r = save_mapped(c, s, map, note);
    return r;
}

int memory_note(struct capture *c, struct subject *s) {
    size_t n = 0;
    int r = each_line(c, s, note_line, &n);

    return r < 0 ? fail(c, r) : 0;
}

struct private_lines {
    int (*call)(void *data, uint64_t start, uint64_t end);
    void *data;
};

/* What is mapped of a file and cannot be written to counts where pages are the process' own: a loader's relocations. */
static int pass_private(struct capture *c, struct subject *s, const struct map_line *map, void *data) {
    const struct private_lines *lines = data;
    bool is_kernels = !strncmp(map->path, "[v", 2);

    if (map->is_shared || is_kernels || !is_looked_at(s, map))
        return 0;
    int own = map->path[0] == '/' && !(map->protection & PROT_WRITE) ? each_own_stretch(c, s, map->start, map->end, is_there, NULL) : 1;
    return own <= 0 ? own : lines->call(lines->data, map->start, map->end);
}

int memory_each_private(struct capture *c, struct subject *s, int (*call)(void *data, uint64_t start, uint64_t end), void *data) {
    return each_line(c, s, pass_private, &(struct private_lines){ call, data });
}

struct lines {
    const char *flags_at;       /* in its smaps */
    size_t n;
};

static int save_line(struct capture *c, struct subject *s, const struct map_line *map, void *data) {
    struct lines *lines = data;

    return save_area(c, s, map, capture_entry(&s->notes, lines->n++, struct note), &lines->flags_at);
}

/* The vDSO has a `syscall`; the uppermost words of the stack, or else of other memory that may be written to, do for a while. */
static int find_tool(struct capture *c, struct subject *s, const struct map_line *map, void *data) {
    bool writable = !map->is_shared && (map->protection & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE) && map->start >= IMAGE_LOWEST;

    (void)c, (void)data;
    if (!strcmp(map->path, "[vdso]"))
        (void)trace_find_instruction(&s->tools, map->start, map->end - map->start);
    if (writable && (!strcmp(map->path, "[stack]") || !s->tools.scratch))
        s->tools.scratch = map->end - TRACE_SCRATCH;
    return 0;
}

int memory_find_tools(struct capture *c, struct subject *s) {
    int r = capture_read(c, s, "maps", &s->maps);

    if (r < 0)
        return capture_fail(c, "its mappings", r);
    r = each_line(c, s, find_tool, NULL);
    return r < 0 ? r : s->tools.instruction && s->tools.scratch ? 0 : capture_refuse(c, ENOTSUP, "it has no vDSO, or no memory that can be written to");
}

void memory_begin(struct subject *s) {
    aside_begin(s, openat(s->proc, "smaps", O_RDONLY | O_CLOEXEC));
}

static int read_flags(struct capture *c, struct subject *s) {
    c->smaps.length = 0;
    buf_add(&c->smaps, "\n", 1);
    if (aside_take(s, &c->smaps))
        return 0;
    c->smaps.length = 1;
    auto_close int smaps = openat(s->pages.proc, "smaps", O_RDONLY | O_CLOEXEC);
    return smaps < 0 ? -errno : fd_read_all(smaps, CAPTURE_MAX_TEXT, &c->smaps);
}

int memory_capture(struct capture *c, struct subject *s) {
    size_t before = capture_count(&c->areas, struct image_area);
    struct image_process *process = capture_entry(&c->processes, s->index, struct image_process);

    c->current = s;
    int r = read_flags(c, s);
    if (r < 0)
        return capture_fail(c, "its mappings", r);
    r = guards_find(c, s);
    if (r < 0)
        return capture_fail(c, "its guards", r);
    struct lines lines = { .flags_at = c->smaps.data };
    r = each_line(c, s, save_line, &lines);
    process->areas = capture_range(&c->areas, before, sizeof(struct image_area));
    for (size_t i = before; r == 0 && i < before + process->areas.n; i++)
        if (capture_entry(&c->areas, i, struct image_area)->kind == IMAGE_VDSO)
            r = still_look_at_vdso(c, s, capture_entry(&c->areas, i, struct image_area), process);
    return r < 0 ? r : buf_failed(&c->areas) || buf_failed(&c->runs) || buf_failed(&c->texts) ? capture_fail(c, "its mappings", -ENOMEM) : 0;
}

static int keep_promise(struct capture *c, const struct promise *promise, void (*written)(struct capture *c, uint64_t end)) {
    char *chunk = chunk_memory();

    for (uint64_t done = 0, length; done < promise->n * IMAGE_PAGE; done += length) {
        length = MIN(promise->n * IMAGE_PAGE - done, (uint64_t)CHUNK_PAGES * IMAGE_PAGE);
        ssize_t n = read_pages(promise->subject, promise->address + done, chunk, (size_t)length);

        if (n != (ssize_t)length) {
            int r = guards_refuse(c, promise->subject, promise->address + done + (uint64_t)MAX(n, (ssize_t)0));
            return r < 0 ? r : n < 0 ? (int)n : -EFAULT;
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

int memory_keep_promises(struct capture *c, void (*written)(struct capture *c, uint64_t end)) {
    const size_t n = capture_count(&c->promised, struct promise);
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        const struct promise *promise = capture_entry(&c->promised, i, struct promise);

        c->current = promise->subject;
        r = keep_promise(c, promise, written);
        /* A guest can end it, and what is read of its memory is nothing from then on. */
        if ((r < 0 || i + 1 == n || promise[1].subject != promise->subject) && !twin_stands(promise->subject))
            return capture_refuse(c, EAGAIN, TWIN_GONE);
    }
    return r < 0 ? fail(c, r) : 0;
}

/* ---- what it touches ---------------------------------------------------------------------------------------------------- */

/* Runs of pages, of one area, that it has its own copies of, or, of a file, looked at. */
static int add_touches(const struct image_area *area, int pagemap, struct buf *to) {
    bool is_file = area->kind == IMAGE_FILE;
    struct image_touch touch = { .is_written = !is_file };
    size_t n = (size_t)((area->end - area->start) / IMAGE_PAGE);
    auto_free uint64_t *entries = calloc(n, sizeof *entries);
    ssize_t got = entries ? pread(pagemap, entries, n * sizeof *entries, (off_t)(area->start / IMAGE_PAGE * sizeof *entries)) : -1;

    if (got < 0)
        return entries ? -errno : -ENOMEM;
    n = (size_t)got / sizeof *entries;
    for (size_t i = 0; i <= n; i++) {
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
        if (areas[i].protection && areas[i].kind <= IMAGE_FILE && (areas[i].kind == IMAGE_FILE || areas[i].protection & PROT_WRITE))
            r = add_touches(&areas[i], pagemap, to);
    return r;
}

int capture_touched(pid_t pid, int image, int fd, struct rollbox_error *error) {
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
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "snapshot", "what process %d has touched of its memory cannot be told: %s", (int)pid, strerror(-r)) : 0;
}
