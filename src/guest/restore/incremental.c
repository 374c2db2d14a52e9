/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applying an incremental image to a process (process_image.h).
 *
 * To fork a running session from its parent image, a sandbox is prepared from that image while the
 * session is dumped. When the incremental image is complete, the sandbox's processes have been
 * forked already and have their old memory in place, and they update themselves. Descriptors and
 * threads are created last in any case, from the incremental image. Each process goes through its
 * memory once, area by area. It writes to a page only if the page has new content, or had content
 * and is empty now.
 *
 * The incremental image is mapped after the region and unmapped with it. Init has checked that it
 * fits its parent (image_is_incremental). The dump worker makes no incremental image with areas
 * where a region may be.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define ALIGNMENT 0x200000ull
#    define MAP_POPULATED 0x8000 /* MAP_POPULATE */

static const struct image_process *process_before(uint32_t index) {
    return image_table(restored.before, restored.before_base, processes, struct image_process) +
           index;
}

static const struct image_area *areas_before(uint32_t index) {
    return image_table(restored.before, restored.before_base, areas, struct image_area) +
           process_before(index)->areas.first;
}

const struct image_area *restore_before(uint32_t index, const struct image_area *area) {
    return restored.before ? image_area_before(areas_before(index), process_before(index)->areas.n,
                                 restored.before_base, area, restored.base)
                           : NULL;
}

/* The process has nothing where the incremental image is to be mapped. */
static bool is_clear(const struct image *it, const char *found, uint64_t at, uint64_t end) {
    const struct image_area *areas = image_table(it, found, areas, struct image_area);

    for (uint64_t i = 0; i < it->areas.n; i++)
        if (areas[i].start < end && areas[i].end > at)
            return false;
    return true;
}

int restore_take_incremental(int fd, bool is_init) {
    const uint64_t at = (restored.region_end + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    struct stat st;

    if (!restored.header || restored.before)
        return -EBUSY;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof(struct image))
        return -EBADMSG;
    const uint64_t length = (uint64_t)st.st_size;
    const char *found = mmap(
        (void *)at, length, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE | MAP_POPULATED, fd, 0);
    if (found == MAP_FAILED)
        return -errno;
    const struct image *it = image_header(found, length);
    if (is_init && (!image_is_incremental(found, length, restored.base, restored.header->length) ||
                       !is_clear(it, found, restored.region, at + length))) {
        (void)munmap((void *)at, length);
        return -EBADMSG;
    }
    restored.before = restored.header;
    restored.before_base = restored.base;
    restored.header = it;
    restored.base = found;
    restored.region_end = at + image_up_to(length, IMAGE_PAGE);
    if (!is_init)
        restore_put_region();
    return 0;
}

/* ---- memory ---- */

static bool is_mapped_by_now(const struct image_area *area) {
    return restored_is_memory(area) || area->kind == IMAGE_FILE;
}

static long unmap_range(uint64_t start, uint64_t end) {
    return start < end ? sys_call2(__NR_munmap, start, end - start) : 0;
}

/* Unmaps areas, and ends of areas, that the incremental image does not continue. */
static long drop_areas(uint32_t index) {
    const struct image_process *p = restored_process(index);
    const struct image_area *areas = restored_table(areas, struct image_area) + p->areas.first,
                            *was = areas_before(index), *end = was + process_before(index)->areas.n;
    long r = 0;

    for (uint32_t i = 0; i <= p->areas.n && r == 0; i++) {
        const struct image_area *before = i < p->areas.n ? restore_before(index, &areas[i]) : end;

        for (; before && was < before && r == 0; was++)
            if (is_mapped_by_now(was))
                r = unmap_range(was->start, was->end);
        if (i == p->areas.n || !before || r < 0)
            continue;
        r = unmap_range(was->start, areas[i].start < was->end ? areas[i].start : was->end);
        if (r == 0)
            r = unmap_range(areas[i].end > was->start ? areas[i].end : was->start, was->end);
        was++;
    }
    return r;
}

static long add_area(const struct image_area *area, uint64_t start, uint64_t end) {
    struct image_area part = *area;

    part.start = start;
    part.end = end;
    return start < end ? restore_make_memory(&part) : 0;
}

/* Extends an area as a single mapping. Memory mapped next to an area would remain a separate
 * mapping in a forked process. A stack grows when the kernel writes to it, so an empty timer value
 * is read into it. */
static long grow_area(const struct image_area *area, const struct image_area *before) {
    const uint64_t start = before->start > area->start ? before->start : area->start;
    long r = 0;

    if (area->start < before->start && sys_call2(__NR_getitimer, ITIMER_VIRTUAL, area->start) < 0)
        r = add_area(area, area->start, before->start);
    if (r == 0 && area->end > before->end &&
        sys_call4(__NR_mremap, start, before->end - start, area->end - start, 0) < 0)
        r = add_area(area, before->end, area->end);
    return r;
}

/* The next address from `at` on that the incremental image mentions; UINT64_MAX: none. */
struct said {
    const struct image_run *runs, *runs_end;
    const struct image_kept *kept, *kept_end;
};

static uint64_t end_of_said(struct said *said, uint64_t at, uint64_t *ret_start) {
    while (said->runs < said->runs_end && said->runs->address + said->runs->length <= at)
        said->runs++;
    while (said->kept < said->kept_end && said->kept->address + said->kept->length <= at)
        said->kept++;
    uint64_t run = said->runs < said->runs_end ? said->runs->address : UINT64_MAX,
             kept = said->kept < said->kept_end ? said->kept->address : UINT64_MAX;

    *ret_start = run < kept ? run : kept;
    return *ret_start == UINT64_MAX ? UINT64_MAX
           : run < kept             ? run + said->runs->length
                                    : kept + said->kept->length;
}

/* Pages that had content and are not mentioned become zero. */
static long forget_range(const struct image_area *area, const struct image_area *before) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first,
                           *was = image_table(restored.before, restored.before_base, runs,
                                      struct image_run) +
                                  before->runs.first;
    const struct image_kept *kept = restored_table(kept, struct image_kept) + area->kept.first;
    struct said said = { runs, runs + area->runs.n, kept, kept + area->kept.n };
    long r = 0;

    for (uint32_t i = 0; i < before->runs.n; i++) {
        uint64_t at = was[i].address > area->start ? was[i].address : area->start,
                 end = was[i].address + was[i].length < area->end ? was[i].address + was[i].length
                                                                  : area->end;

        while (at < end && r == 0) {
            uint64_t start, past = end_of_said(&said, at, &start),
                            until = start < end ? start : end;

            if (until > at)
                r = sys_call3(__NR_madvise, at, until - at, MADV_DONTNEED);
            at = start < end ? past : end;
        }
    }
    return r;
}

static void write_pages(const struct image_area *area) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first;

    for (uint32_t i = 0; i < area->runs.n; i++)
        memcpy((void *)runs[i].address, restored.base + runs[i].at, runs[i].length);
}

static long apply_incremental_area(const struct image_area *area, const struct image_area *before) {
    const bool writes = area->runs.n && !area->forgets;
    const uint64_t length = area->end - area->start;
    const uint32_t protection = writes ? PROT_READ | PROT_WRITE : area->protection;
    struct image_area open = *area;
    long r = 0;

    open.protection = protection;
    if (!before)
        r = restore_make_memory(&open);
    else if (before->protection != protection)
        r = sys_call3(__NR_mprotect, before->start > area->start ? before->start : area->start,
            (before->end < area->end ? before->end : area->end) -
                (before->start > area->start ? before->start : area->start),
            protection);
    if (before && r == 0)
        r = grow_area(&open, before);
    if (before && r == 0)
        r = forget_range(area, before);
    if (r == 0 && writes)
        write_pages(area);
    if (r == 0 && protection != area->protection)
        r = sys_call3(__NR_mprotect, area->start, length, area->protection);
    if (r == 0 && !before && area->forgets == IMAGE_WIPED)
        r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_WIPEONFORK);
    if (r == 0 && area->flags & IMAGE_NOT_FORKED)
        r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_DONTFORK);
    return r;
}

int restore_incremental_memory(uint32_t index) {
    const struct image_process *p = restored_process(index);
    const struct image_area *areas = restored_table(areas, struct image_area) + p->areas.first;
    long r = drop_areas(index);

    for (uint32_t i = 0; i < p->areas.n && r >= 0; i++)
        if (restored_is_memory(&areas[i]))
            r = apply_incremental_area(&areas[i], restore_before(index, &areas[i]));
    return r < 0 ? (int)r : 0;
}

#endif
