/* SPDX-License-Identifier: Apache-2.0 */
/* Saving pages: finding a process's own pages (/proc/PID/pagemap), and writing their content, and
 * that of memory files, as runs of the image. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)
#define ENTRIES 65536u /* entries of pagemap per read */
#define MAX_SHARED (256ull << 20)

/* Guard pages look swapped, and have no content. */
static bool is_own(uint64_t entry) {
    return !(entry & PAGEMAP_GUARD) &&
           (entry & PAGEMAP_SWAPPED || (entry & PAGEMAP_PRESENT && !(entry & PAGEMAP_FILE)));
}

static bool is_zero(const char *page) {
    return !page[0] && !memcmp(page, page + 1, IMAGE_PAGE - 1);
}

/* Writes pages that are not zero to the image. A run covers at most one call's pages. */
int pages_save_here(
    struct dump *c, size_t first_run, uint64_t address, const char *pages, size_t n) {
    for (size_t i = 0, k; i < n; i = k + 1) {
        while (i < n && is_zero(pages + i * IMAGE_PAGE))
            i++;
        for (k = i; k < n && !is_zero(pages + k * IMAGE_PAGE); k++)
            ;
        if (k == i)
            break;
        size_t length = (k - i) * IMAGE_PAGE, n_runs = dump_count(&c->runs, struct image_run);
        struct image_run *last =
            n_runs > first_run ? dump_entry(&c->runs, n_runs - 1, struct image_run) : NULL;
        struct image_run run = {
            .address = address + i * IMAGE_PAGE, .length = length, .at = c->saved
        };

        if (c->saved + length > c->options->max_bytes)
            return -E2BIG;
        if (last && last->address + last->length == run.address &&
            last->at + last->length == run.at)
            last->length += length;
        else if (n_runs == IMAGE_MAX_RUNS)
            return -E2BIG;
        else
            buf_add(&c->runs, &run, sizeof run);
        int r = dump_put(c, pages + i * IMAGE_PAGE, length);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The number of bytes, or -errno. It does not use process_vm_readv(2), because that pins the pages
 * that it reads. For each page that is shared by fork, like all pages of a copy-on-write fork and
 * most of a restored process, the kernel would make a copy, charged to the sandbox. */
ssize_t pages_read(const struct dump_process *s, uint64_t address, char *to, size_t length) {
    return trace_read(s->pages.memory, address, to, length);
}

char *pages_chunk(void) {
    static _Alignas(4096) char chunk[CHUNK_PAGES * IMAGE_PAGE];

    return chunk;
}

/* Promised pages are not inspected, so zero pages count as well. The kernel has the zero page only
 * once and charges nobody for it. To keep such pages from adding up, no more is promised than the
 * process is charged for. */
static bool may_promise(const struct dump *c, uint64_t n) {
    return c->promises && n <= c->cow_fork_used_bytes / IMAGE_PAGE &&
           c->n_promised <= c->cow_fork_used_bytes / IMAGE_PAGE - n &&
           n * IMAGE_PAGE <= c->options->max_bytes - c->saved &&
           dump_count(&c->runs, struct image_run) < IMAGE_MAX_RUNS;
}

/* Reserves space for pages in the image. The tables can refer to them, and the content follows
 * later. */
static int promise_pages(
    struct dump *c, const struct dump_process *s, uint64_t address, uint64_t n) {
    struct promise pages = { .process = s, .address = address, .n = n, .at = c->saved };
    struct image_run run = { .address = address, .length = n * IMAGE_PAGE, .at = c->saved };
    int r = dump_flush(c);

    if (r < 0)
        return r;
    buf_add(&c->promised, &pages, sizeof pages);
    buf_add(&c->runs, &run, sizeof run);
    c->n_promised += n;
    c->saved += n * IMAGE_PAGE;
    return buf_failed(&c->promised)                      ? -ENOMEM
           : lseek(c->fd, (off_t)c->saved, SEEK_SET) < 0 ? -errno
                                                         : 0;
}

/* Saves `n` pages from an address on. Past the end of a mapped file there are no pages. */
int pages_save(struct dump *c, const struct dump_process *s, size_t first_run, uint64_t address,
    uint64_t n, bool is_file) {
    char *chunk = pages_chunk();

    while (n) {
        size_t m = (size_t)MIN(n, (uint64_t)CHUNK_PAGES);
        ssize_t got = pages_read(s, address, chunk, m * IMAGE_PAGE);
        int r = got < (ssize_t)(m * IMAGE_PAGE)
                    ? guard_pages_refuse(c, s, address + (uint64_t)MAX(got, (ssize_t)0))
                    : 0;

        if (r < 0 || (got < 0 && !is_file))
            return r < 0 ? r : (int)got;
        if (got > 0) {
            r = pages_save_here(c, first_run, address, chunk, (size_t)got / IMAGE_PAGE);
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

/* The address of the next existing page, or `end`: a guest may have terabytes of unused address
 * space. Kernels that cannot skip are asked about each page. */
static uint64_t skip_nothing(const struct dump_process *s, uint64_t start, uint64_t end) {
    const uint64_t there = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    struct uapi_page_region found;
    struct uapi_pm_scan_arg scan = { .size = sizeof scan,
        .start = start,
        .end = end,
        .vec = (uintptr_t)&found,
        .vec_len = 1,
        .max_pages = 1,
        .category_anyof_mask = there,
        .return_mask = there };
    int n = ioctl(s->pages.pagemap, PAGEMAP_SCAN, &scan);

    if (n < 0)
        return start;
    return n ? found.start : end;
}

int pages_each_own(struct dump *c, const struct dump_process *s, uint64_t start, uint64_t end,
    pages_call *call, void *data) {
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
        ssize_t got = pread(s->pages.pagemap, entries, n * sizeof *entries,
            (off_t)(start / IMAGE_PAGE * sizeof *entries));

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

int pages_save_own(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n) {
    return may_promise(c, n) ? promise_pages(c, s, address, n)
                             : pages_save(c, s, *(const size_t *)data, address, n, false);
}

int pages_is_there(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n) {
    (void)c, (void)s, (void)data, (void)address, (void)n;
    return 1;
}

int memory_save_file(struct dump *c, int fd, uint64_t length, struct image_range *ret_runs) {
    size_t before = dump_count(&c->runs, struct image_run);
    char *chunk = pages_chunk();
    uint64_t at = 0;

    while (at < length) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);

        if (data < 0 && errno == ENXIO)
            break;
        at = data < 0 ? at : (uint64_t)data & ~(uint64_t)(IMAGE_PAGE - 1);
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        uint64_t there = hole > data ? image_up_to((uint64_t)hole - at, IMAGE_PAGE) : length - at;
        ssize_t n =
            pread(fd, chunk, (size_t)MIN(there, (uint64_t)CHUNK_PAGES * IMAGE_PAGE), (off_t)at);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        size_t whole = (size_t)image_up_to((uint64_t)n, IMAGE_PAGE);
        memset(chunk + n, 0, whole - (size_t)n);
        int r = pages_save_here(c, before, at, chunk, whole / IMAGE_PAGE);
        if (r < 0)
            return r;
        at += whole;
    }
    *ret_runs = dump_range(&c->runs, before, sizeof(struct image_run));
    return 0;
}

int memory_save_shared(struct dump *c, const struct dump_process *s, const struct map_line *map,
    struct image_range *ret_runs) {
    size_t before = dump_count(&c->runs, struct image_run);
    char *chunk = pages_chunk();

    if (map->end - map->start > MAX_SHARED)
        return -EFBIG; /* reading all of it would allocate it */
    for (uint64_t at = map->start; at < map->end; at += CHUNK_PAGES * IMAGE_PAGE) {
        size_t length = (size_t)MIN(map->end - at, (uint64_t)CHUNK_PAGES * IMAGE_PAGE);
        ssize_t n = pages_read(s, at, chunk, length);
        int r =
            n < (ssize_t)length ? guard_pages_refuse(c, s, at + (uint64_t)MAX(n, (ssize_t)0)) : 0;

        if (r == 0 && n == -EIO && map->protection & PROT_READ)
            break; /* past the end of its file */
        if (r == 0)
            r = n < 0 ? (int)n
                      : pages_save_here(c, before, map->offset + (at - map->start), chunk,
                            (size_t)n / IMAGE_PAGE);
        if (r < 0)
            return r;
    }
    *ret_runs = dump_range(&c->runs, before, sizeof(struct image_run));
    return 0;
}
