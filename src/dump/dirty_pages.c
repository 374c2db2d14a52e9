/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dirty tracking: which pages were written to since the parent image.
 *
 * Between two dumps of a process, most of its memory does not change. A userfaultfd with
 * asynchronous write protection (UFFD_FEATURE_WP_ASYNC, Linux 6.7) makes the kernel track writes:
 * each page is protected once, the first write removes the protection without notifying anybody,
 * and PAGEMAP_SCAN on /proc/PID/pagemap reports the pages without protection. Memory that was
 * moved, mapped again or never registered counts as written to, so an error can only make an image
 * larger. PAGEMAP_SCAN can also set the protection again and so hide a write. The seccomp filter
 * denies it to guests (policy/filter.c).
 *
 * The process has to create the userfaultfd itself. The dump worker makes it do so, by a system
 * call that the filter passes to a tracer and that the guest cannot make by another way. The
 * descriptor is moved to the engine and closed in the process. Tracking ends when the last
 * descriptor is closed and when the process executes a new program. All pages count as written to
 * then.
 */
#include <errno.h>
#include <linux/userfaultfd.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

#define REGIONS 512u
#define MAX_WRITTEN 4096u /* pages; more are copied faster after the process has resumed */
#define MIN_MAX 512u      /* this many are always allowed */
#define THERE (PAGE_IS_PRESENT | PAGE_IS_SWAPPED)

/* Trackers with an index in place of a pid belong to the processes of the parent image, in
 * order. */
static void number_trackers(struct dump *c) {
    const struct image *it = image_header(c->base, c->base_length);
    const struct image_process *processes =
        image_table(it, c->base, processes, struct image_process);
    size_t n = 0;

    for (uint64_t i = 0;
         i < it->processes.n && c->n_had && c->had[c->n_had - 1].pid == TRACKER_PID_BY_INDEX; i++)
        if (processes[i].kind == IMAGE_LIVING)
            c->had[n++].pid = processes[i].pid;
}

_Static_assert(MAX_DIRTY_TRACKERS == IMAGE_MAX_NOTED, "the image holds as many trackers");

int dirty_pages_begin(struct dump *c) {
    for (; c->n_had < c->options->n_trackers && c->n_had < MAX_DIRTY_TRACKERS; c->n_had++)
        c->had[c->n_had] = c->options->trackers[c->n_had];
    if (c->options->base <= 0)
        return 0;
    int r = fd_map(c->options->base, &c->base, &c->base_length);
    if (r < 0)
        return dump_fail(c, "the parent image", r);
    number_trackers(c);
    return 0;
}

void dirty_pages_forget(struct dump *c) {
    if (c->base)
        munmap((void *)(uintptr_t)c->base, c->base_length);
    c->base = NULL;
    c->kept.length = 0;
}

static const struct image_process *process_before(
    const struct dump *c, const struct dump_process *s) {
    const struct image *it = image_header(c->base, c->base_length);

    return s->index < it->processes.n
               ? image_table(it, c->base, processes, struct image_process) + s->index
               : NULL;
}

/* Finds all pages that exist and, for tracked memory, whether they were written to. -errno:
 * unknown. */
static int find_pages(
    struct dump_process *s, uint64_t max_written, uint64_t *ret_tracked, uint64_t *ret_written) {
    struct uapi_page_region found[REGIONS];
    struct uapi_pm_scan_arg scan = { .size = sizeof scan,
        .start = IMAGE_LOWEST,
        .end = IMAGE_HIGHEST,
        .vec = (uintptr_t)found,
        .vec_len = REGIONS,
        .category_anyof_mask = THERE,
        .return_mask = PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN | PAGE_IS_SWAPPED };

    s->pages_there.length = 0;
    for (; scan.start < scan.end && *ret_written <= max_written; scan.start = scan.walk_end) {
        int n = ioctl(s->pagemap, PAGEMAP_SCAN, &scan);

        if (n < 0)
            return -errno;
        for (int i = 0; i < n; i++) {
            const uint64_t pages = (found[i].end - found[i].start) / IMAGE_PAGE;

            if (!(found[i].categories & PAGE_IS_WPALLOWED))
                continue;
            *ret_tracked += pages;
            *ret_written += found[i].categories & PAGE_IS_WRITTEN ? pages : 0;
        }
        buf_add(&s->pages_there, found, (size_t)n * sizeof *found);
    }
    return buf_failed(&s->pages_there) ? -ENOMEM : 0;
}

/* A page outside of tracked memory is new: it was mapped since, or belongs to another program, or
 * to a new process with the same pid. */
bool dirty_pages_has_few(struct dump *c, struct dump_process *s) {
    const struct image *it = image_header(c->base, c->base_length);
    const struct image_process *before = process_before(c, s);
    const uint64_t is = s->anonymous / IMAGE_PAGE,
                   most = MIN(MAX((uint64_t)MIN_MAX, is / 4), (uint64_t)MAX_WRITTEN);
    uint64_t n_tracked = 0, n_written = 0;

    if (!before || before->kind != IMAGE_LIVING || before->pid != s->inner_pid ||
        (it->threads.n == 1 && c->n_tasks != 1))
        return false;
    return find_pages(s, most, &n_tracked, &n_written) == 0 &&
           n_written + (is > n_tracked ? is - n_tracked : 0) <= most;
}

bool dirty_pages_has_same_tree(const struct dump *c) {
    return image_has_same_tree(image_header(c->base, c->base_length), c->base,
        (const void *)c->processes.data, dump_count(&c->processes, struct image_process));
}

const struct image_area *track_area(
    const struct dump *c, const struct dump_process *s, const struct image_area *area) {
    const struct image_process *before = c->base ? process_before(c, s) : NULL;
    const struct image *it = c->base ? image_header(c->base, c->base_length) : NULL;

    return before ? image_area_before(
                        image_table(it, c->base, areas, struct image_area) + before->areas.first,
                        before->areas.n, c->base, area, c->texts.data)
                  : NULL;
}

static enum dirty_pages_since what_became(uint64_t categories) {
    return categories == PAGE_IS_WPALLOWED ? DIRTY_PAGES_KEPT
           : categories & PAGE_IS_SWAPPED  ? DIRTY_PAGES_UNSURE
                                           : DIRTY_PAGES_WRITTEN;
}

/* From the result of find_pages(). */
static int each_found(
    const struct dump_process *s, uint64_t start, uint64_t end, track_call *call, void *data) {
    const struct uapi_page_region *regions = (const void *)s->pages_there.data;
    size_t low = 0, n = s->pages_there.length / sizeof *regions, high = n;
    int r = 0;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (regions[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n && regions[low].start < end && r == 0; low++) {
        const uint64_t from = MAX(start, regions[low].start), to = MIN(end, regions[low].end);

        r = call(data, from, (to - from) / IMAGE_PAGE, what_became(regions[low].categories));
    }
    return r;
}

/* For a file mapping, the kernel has to inspect each page to tell whether it is a private copy. */
static int each_of_file(
    const struct dump_process *s, uint64_t start, uint64_t end, track_call *call, void *data) {
    struct uapi_page_region found[REGIONS];
    struct uapi_pm_scan_arg scan = { .size = sizeof scan,
        .start = start,
        .end = end,
        .vec = (uintptr_t)found,
        .vec_len = REGIONS,
        .category_anyof_mask = THERE,
        .return_mask = PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN | PAGE_IS_SWAPPED | PAGE_IS_FILE };
    int r = 0;

    for (; scan.start < scan.end && r == 0; scan.start = scan.walk_end) {
        int n = ioctl(s->pages.pagemap, PAGEMAP_SCAN, &scan);

        if (n < 0)
            return -errno;
        for (int i = 0; i < n && r == 0; i++)
            r = call(data, found[i].start, (found[i].end - found[i].start) / IMAGE_PAGE,
                what_became(found[i].categories));
    }
    return r;
}

int dirty_pages_each(const struct dump_process *s, uint64_t start, uint64_t end, bool is_file,
    track_call *call, void *data) {
    if (start >= end)
        return 0;
    return is_file ? each_of_file(s, start, end, call, data)
                   : each_found(s, start, end, call, data);
}

/* Split by the runs of the parent image. A page that it does not have was zero and still is. */
int dirty_pages_keep(
    struct dump *c, const struct image_area *before, uint64_t address, uint64_t n) {
    const struct image_run *runs =
        image_table(image_header(c->base, c->base_length), c->base, runs, struct image_run) +
        before->runs.first;
    const uint64_t end = address + n * IMAGE_PAGE;
    uint32_t low = 0, high = before->runs.n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (runs[middle].address + runs[middle].length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < before->runs.n && runs[low].address < end; low++) {
        const uint64_t from = MAX(address, runs[low].address),
                       to = MIN(end, runs[low].address + runs[low].length);
        struct image_kept kept = { from, to - from, runs[low].at + (from - runs[low].address) };

        buf_add(&c->kept, &kept, sizeof kept);
    }
    return buf_failed(&c->kept)                                       ? -ENOMEM
           : dump_count(&c->kept, struct image_kept) > IMAGE_MAX_KEPT ? -E2BIG
                                                                      : 0;
}

/* ---- from here on ---- */

/* The tracked memory may be gone: the process has executed another program, or its pid belongs to a
 * new process. Removing a write protection is harmless. */
static bool is_in_use(int tracker) {
    struct uffdio_writeprotect look = { .range = { IMAGE_LOWEST, IMAGE_PAGE } };

    return ioctl(tracker, UFFDIO_WRITEPROTECT, &look) == 0 || errno != ESRCH;
}

static int tracker_of(const struct dump *c, uint32_t pid) {
    for (size_t i = 0; i < c->n_had; i++)
        if (c->had[i].pid == pid && is_in_use(c->had[i].fd))
            return fcntl(c->had[i].fd, F_DUPFD_CLOEXEC, 3);
    return -1;
}

/* The process has the descriptor for a moment. None of its threads runs meanwhile. */
static int make_tracker(struct dump *c, struct dump_process *s) {
    const uint64_t flags = O_CLOEXEC | UAPI_UFFD_USER_MODE_ONLY;
    struct uffdio_api api = { .api = UFFD_API, .features = UAPI_UFFD_FEATURE_WP_ASYNC };
    struct trace *trace = &tree_main(c, s)->trace;
    int64_t result = -1, closed;
    int r = trace_call_asked(trace, &s->tools, SYS_userfaultfd, &flags, 1, &result);

    if (r < 0 || result < 0)
        return r < 0 ? r : (int)result;
    auto_close int process = sys_pidfd_open(s->pid, 0);
    int fd = process < 0 ? process : sys_pidfd_getfd(process, (int)result, 0);
    r = trace_call(
        trace, &s->tools, SYS_close, &(const uint64_t){ (uint64_t)result }, 1, NULL, 0, &closed);
    if (fd >= 0 && (r < 0 || ioctl(fd, UFFDIO_API, &api) < 0)) {
        r = r < 0 ? r : -errno;
        close(fd);
        return r;
    }
    return fd;
}

/* Registers adjacent areas at once. The kernel refuses some kinds of memory. The range that
 * contains them then stays untracked. */
static void cover_range(int tracker, uint64_t start, uint64_t end) {
    struct uffdio_register range = { .range = { start, end - start },
        .mode = UFFDIO_REGISTER_MODE_WP };

    if (start < end)
        (void)ioctl(tracker, UFFDIO_REGISTER, &range);
}

struct covering {
    int tracker;
    uint64_t start, end; /* not registered yet */
};

static int cover_area(void *data, uint64_t start, uint64_t end) {
    struct covering *covering = data;

    if (start != covering->end) {
        cover_range(covering->tracker, covering->start, covering->end);
        covering->start = start;
    }
    covering->end = end;
    return 0;
}

static int start_one(struct dump *c, struct dump_process *s) {
    struct covering covering = { .tracker = tracker_of(c, s->inner_pid) };
    struct uapi_pm_scan_arg protect = { .size = sizeof protect,
        .flags = PM_SCAN_WP_MATCHING,
        .start = IMAGE_LOWEST,
        .end = IMAGE_HIGHEST,
        .category_mask = PAGE_IS_PRESENT };

    if (covering.tracker < 0)
        covering.tracker = make_tracker(c, s);
    if (covering.tracker < 0)
        return covering.tracker;
    int r = memory_each_private(c, s, cover_area, &covering);
    cover_range(covering.tracker, covering.start, covering.end);
    if (r == 0 && ioctl(s->pagemap, PAGEMAP_SCAN, &protect) < 0)
        r = -errno;
    if (r == 0)
        r = trace_put_back(&tree_main(c, s)->trace);
    if (r < 0) {
        close(covering.tracker);
        return r;
    }
    c->trackers[c->n_trackers++] = (struct dirty_tracker){ s->inner_pid, covering.tracker };
    return 0;
}

static void drop_trackers(struct dump *c) {
    while (c->n_trackers)
        close(c->trackers[--c->n_trackers].fd);
}

void dirty_pages_start(struct dump *c) {
    int r = 0;

    for (size_t i = 0; i < c->n_dump_processes && r == 0; i++)
        if (!c->dump_processes[i]->is_apart && !c->dump_processes[i]->is_zombie)
            r = c->n_trackers == MAX_DIRTY_TRACKERS ? -E2BIG : start_one(c, c->dump_processes[i]);
    if (r < 0)
        drop_trackers(c);
}

/* An incremental image is loaded between these addresses, beside the parent image. */
static bool are_elsewhere(const struct image_area *areas, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (areas[i].start < IMAGE_REGIONS_END && areas[i].end > IMAGE_REGIONS)
            return false;
    return true;
}

static const struct dump_process *dump_process_at(const struct dump *c, uint32_t index) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->index == index && !c->dump_processes[i]->is_apart)
            return c->dump_processes[i];
    return NULL;
}

static bool is_there_yet(
    struct dump *c, const struct dump_process *s, const struct image_area *was) {
    const char *path = c->base + was->path;
    struct stat st;

    return s && memory_find_path(s, path, &st) == 0 && S_ISREG(st.st_mode) &&
           access_reaches(c, s, path) &&
           access_is_given(c, s, &st, ACCESS_READ | (was->is_written ? ACCESS_WRITE : 0)) &&
           (was->is_written ||
               ((uint64_t)st.st_size == was->size && st.st_mtim.tv_sec == was->mtime_s &&
                   st.st_mtim.tv_nsec == was->mtime_ns));
}

/* A zygote of the parent image maps the files of that image, also those that the process has
 * unmapped since. So all of them must still be there. */
static bool are_files_there(struct dump *c, const struct image_process *before,
    const struct image_process *now, uint32_t index) {
    const struct image_area *was = image_table(image_header(c->base, c->base_length), c->base,
                                       areas, struct image_area) +
                                   before->areas.first,
                            *areas = (const struct image_area *)(const void *)c->areas.data +
                                     now->areas.first;

    for (uint32_t i = 0; i < before->areas.n; i++)
        if (was[i].kind == IMAGE_FILE &&
            !image_area_before(areas, now->areas.n, c->texts.data, &was[i], c->base) &&
            !is_there_yet(c, dump_process_at(c, index), &was[i]))
            return false;
    return true;
}

bool dirty_pages_resumes(struct dump *c) {
    const struct image *it = image_header(c->base, c->base_length);
    const struct image_process *before = image_table(it, c->base, processes, struct image_process),
                               *processes = (const void *)c->processes.data;
    struct image now = { .processes.n = dump_count(&c->processes, struct image_process),
        .threads.n = dump_count(&c->threads, struct image_thread),
        .credentials.n = dump_count(&c->credentials, struct image_credentials),
        .terminals.n = dump_count(&c->terminals, struct image_terminal),
        .segments.n = dump_count(&c->segments, struct image_segment),
        .n_externals = c->options->n_externals,
        .determinism = c->image.determinism };
    bool resumes =
        image_is_of_same(it, c->base, &now, processes, c->texts.data) &&
        are_elsewhere(image_table(it, c->base, areas, struct image_area), it->areas.n) &&
        are_elsewhere((const void *)c->areas.data, dump_count(&c->areas, struct image_area));

    for (uint64_t i = 0; i < now.processes.n && resumes; i++)
        resumes =
            image_has_same_parts(
                image_table(it, c->base, areas, struct image_area) + before[i].areas.first,
                before[i].areas.n,
                (const struct image_area *)(const void *)c->areas.data + processes[i].areas.first,
                processes[i].areas.n) &&
            are_files_there(c, &before[i], &processes[i], (uint32_t)i);
    return resumes;
}

void dirty_pages_end(struct dump *c) {
    dirty_pages_forget(c);
    drop_trackers(c);
    buf_done(&c->kept);
}
