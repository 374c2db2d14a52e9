/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combining an incremental image and its parent image into a full image (image/process_image.h).
 *
 * The data of the incremental image keep their offsets in the file. After them come all pages, the
 * areas in order of address, some of them from the parent image, then new tables that refer to
 * them, and a header. The old pages of the incremental image are left out, as holes in the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "dump/internal.h"

struct mapped {
    const char *data;
    uint64_t length;
};

static void unmap_image(struct mapped *mapped) {
    if (mapped->data)
        munmap((void *)(uintptr_t)mapped->data, mapped->length);
}

static int map_image(int fd, struct mapped *ret_mapped) {
    struct mapped mapped = { 0 };
    int r = fd_map(fd, &mapped.data, &mapped.length);

    if (r == 0 && mapped.length < sizeof(struct image)) {
        unmap_image(&mapped);
        return -EBADMSG;
    }
    *ret_mapped = mapped;
    return r;
}

static const struct image *header_of(const struct mapped *mapped) {
    return image_header(mapped->data, mapped->length);
}

struct flattening {
    int fd;
    uint64_t at; /* offset of the next pages */
    struct buf runs;
};

static int put_pages(
    struct flattening *whole, const char *pages, uint64_t address, uint64_t length) {
    struct image_run run = { .address = address, .length = length, .at = whole->at };

    buf_add(&whole->runs, &run, sizeof run);
    whole->at += length;
    return fd_write_all(whole->fd, pages, (size_t)length);
}

/* The area's runs and its kept pages, by address. */
static int put_area(struct flattening *whole, const struct mapped *incremental,
    const struct mapped *base, struct image_range runs, struct image_range kept,
    struct image_range *ret_runs) {
    const struct image_run *run = image_table(header_of(incremental), incremental->data, runs,
                                      struct image_run) +
                                  runs.first,
                           *runs_end = run + runs.n;
    const struct image_kept *keep = image_table(header_of(incremental), incremental->data, kept,
                                        struct image_kept) +
                                    kept.first,
                            *kept_end = keep + kept.n;
    const size_t before = dump_count(&whole->runs, struct image_run);
    int r = 0;

    while ((run < runs_end || keep < kept_end) && r == 0) {
        if (keep == kept_end || (run < runs_end && run->address < keep->address)) {
            r = put_pages(whole, incremental->data + run->at, run->address, run->length);
            run++;
        } else {
            r = put_pages(whole, base->data + keep->at, keep->address, keep->length);
            keep++;
        }
    }
    *ret_runs = dump_range(&whole->runs, before, sizeof(struct image_run));
    return buf_failed(&whole->runs) ? -ENOMEM : r;
}

static uint64_t end_of_pages(const struct mapped *incremental) {
    const struct image *it = header_of(incremental);
    const struct image_run *runs = image_table(it, incremental->data, runs, struct image_run);

    return it->runs.n ? runs[it->runs.n - 1].at + runs[it->runs.n - 1].length : 0;
}

static int put_table(struct flattening *whole, const struct buf *table, size_t entry_size,
    struct image_part *ret_part) {
    static const char nothing[IMAGE_TABLE];
    const uint64_t at = image_up_to(whole->at, IMAGE_TABLE);
    int r = fd_write_all(whole->fd, nothing, (size_t)(at - whole->at));

    *ret_part = (struct image_part){ at, table->length / entry_size };
    whole->at = at + table->length;
    return r < 0 ? r : fd_write_all(whole->fd, table->data, table->length);
}

static int put_all(struct flattening *whole, const struct mapped *incremental,
    const struct mapped *base, struct buf *areas, struct buf *files, struct buf *segments) {
    const struct image *it = header_of(incremental);
    struct image whole_header = *it;
    const uint64_t pages = end_of_pages(incremental);
    int r = 0;

    buf_add(areas, image_table(it, incremental->data, areas, struct image_area),
        it->areas.n * sizeof(struct image_area));
    buf_add(files, image_table(it, incremental->data, files, struct image_file),
        it->files.n * sizeof(struct image_file));
    buf_add(segments, image_table(it, incremental->data, segments, struct image_segment),
        it->segments.n * sizeof(struct image_segment));
    if (buf_failed(areas) || buf_failed(files) || buf_failed(segments))
        return -ENOMEM;
    whole->at = image_up_to(incremental->length, IMAGE_PAGE);
    if (lseek(whole->fd, (off_t)pages, SEEK_SET) < 0)
        return -errno;
    r = fd_write_all(
        whole->fd, incremental->data + pages, (size_t)(incremental->length - sizeof *it - pages));
    if (r == 0 && lseek(whole->fd, (off_t)whole->at, SEEK_SET) < 0)
        r = -errno;
    for (uint64_t i = 0; i < it->areas.n && r == 0; i++) {
        struct image_area *area = dump_entry(areas, i, struct image_area);

        if (area->kind > IMAGE_STACK) /* has no pages; its old indices would refer to other entries
                                         of the new table */
            area->runs = (struct image_range){ 0 };
        else
            r = put_area(whole, incremental, base, area->runs, area->kept, &area->runs);
        area->kept = (struct image_range){ 0 };
    }
    for (uint64_t i = 0; i < it->files.n && r == 0; i++) {
        struct image_file *file = dump_entry(files, i, struct image_file);

        r = put_area(whole, incremental, base, file->runs, (struct image_range){ 0 }, &file->runs);
    }
    for (uint64_t i = 0; i < it->segments.n && r == 0; i++) {
        struct image_segment *segment = dump_entry(segments, i, struct image_segment);

        r = put_area(
            whole, incremental, base, segment->runs, (struct image_range){ 0 }, &segment->runs);
    }
    if (r == 0)
        r = put_table(whole, &whole->runs, sizeof(struct image_run), &whole_header.runs);
    if (r == 0)
        r = put_table(whole, areas, sizeof(struct image_area), &whole_header.areas);
    if (r == 0)
        r = put_table(whole, files, sizeof(struct image_file), &whole_header.files);
    if (r == 0)
        r = put_table(whole, segments, sizeof(struct image_segment), &whole_header.segments);
    whole_header.kept = (struct image_part){ 0 };
    whole_header.is_incremental = 0;
    const uint64_t at = image_up_to(whole->at, IMAGE_TABLE);
    whole_header.length = at + sizeof whole_header;
    if (r == 0 && lseek(whole->fd, (off_t)at, SEEK_SET) < 0)
        r = -errno;
    return r < 0 ? r : fd_write_all(whole->fd, &whole_header, sizeof whole_header);
}

int dump_flatten(int incremental_fd, int base_fd, int to) {
    __attribute__((cleanup(unmap_image))) struct mapped incremental = { 0 }, base = { 0 };
    auto_buf struct buf areas = BUF_INIT, files = BUF_INIT, segments = BUF_INIT;
    struct flattening whole = { .fd = to };
    int r = map_image(incremental_fd, &incremental);

    if (r == 0)
        r = map_image(base_fd, &base);
    if (r == 0 &&
        (!image_is_sound(base.data, base.length) ||
            !image_is_incremental(incremental.data, incremental.length, base.data, base.length)))
        r = -EBADMSG;
    if (r == 0)
        r = put_all(&whole, &incremental, &base, &areas, &files, &segments);
    buf_done(&whole.runs);
    return r;
}
