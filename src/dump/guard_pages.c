/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard pages.
 *
 * A process can turn pages of a mapping into guards, and an access to them is fatal as if nothing
 * were mapped there (MADV_GUARD_INSTALL). glibc 2.42 and later guards thread stacks this way. A
 * guard is no mapping of its own, and it can be in any private memory. Restore sets the guards
 * again at the same addresses. Since Linux 6.15, /proc/PID/pagemap shows guards, as swapped pages
 * with a flag. On older kernels, a process with unreadable pages is refused.
 */
#include <errno.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/uapi.h"

#define REGIONS 256u
#define ENTRIES 4096u /* entries of pagemap per read */

/* Finds the guards between two addresses. */
static int scan_range(struct dump *c, const struct dump_process *s, uint64_t at, uint64_t end) {
    uint64_t entries[ENTRIES];

    while (at < end) {
        size_t n = (size_t)MIN((end - at) / IMAGE_PAGE, (uint64_t)ENTRIES);
        ssize_t got = pread(s->pages.pagemap, entries, n * sizeof *entries,
            (off_t)(at / IMAGE_PAGE * sizeof *entries));

        if (got < (ssize_t)sizeof *entries)
            return got < 0 ? -errno : -EIO;
        n = (size_t)got / sizeof *entries;
        for (size_t i = 0; i < n; i++) {
            const size_t known = dump_count(&c->guarded, struct image_guard);
            struct image_guard *last =
                known ? dump_entry(&c->guarded, known - 1, struct image_guard) : NULL;
            struct image_guard guard = { at + i * IMAGE_PAGE, IMAGE_PAGE };

            if (!(entries[i] & PAGEMAP_GUARD))
                continue;
            if (last && last->address + last->length == guard.address)
                last->length += IMAGE_PAGE;
            else
                buf_add(&c->guarded, &guard, sizeof guard);
        }
        at += n * IMAGE_PAGE;
    }
    return buf_failed(&c->guarded) ? -ENOMEM : 0;
}

int guard_pages_find(struct dump *c, const struct dump_process *s) {
    struct uapi_page_region found[REGIONS];
    struct uapi_pm_scan_arg scan = { .size = sizeof scan,
        .end = IMAGE_HIGHEST,
        .vec = (uintptr_t)found,
        .vec_len = REGIONS,
        .category_mask = PAGE_IS_SWAPPED,
        .return_mask = PAGE_IS_SWAPPED };
    int r = 0;

    c->guarded.length = c->n_guarded = 0;
    for (scan.start = IMAGE_LOWEST; scan.start < scan.end && r == 0; scan.start = scan.walk_end) {
        int n = ioctl(s->pages.pagemap, PAGEMAP_SCAN, &scan);

        if (n < 0 && (errno == ENOTTY || errno == EINVAL))
            return 0; /* a kernel without it has no guards */
        for (int i = 0; i < n && r == 0; i++)
            r = scan_range(c, s, found[i].start, found[i].end);
        if (n < 0)
            r = -errno;
    }
    return r;
}

int guard_pages_take(struct dump *c, struct image_area *area) {
    const size_t before = dump_count(&c->guards, struct image_guard),
                 n = dump_count(&c->guarded, struct image_guard);

    for (; c->n_guarded < n; c->n_guarded++) {
        const struct image_guard *guard = dump_entry(&c->guarded, c->n_guarded, struct image_guard);
        const uint64_t start = MAX(guard->address, area->start),
                       end = MIN(guard->address + guard->length, area->end);

        if (start < end)
            buf_add(&c->guards, &(struct image_guard){ start, end - start }, sizeof *guard);
        if (guard->address + guard->length > area->end)
            break; /* the rest belongs to the next area */
    }
    area->guards = dump_range(&c->guards, before, sizeof(struct image_guard));
    if (buf_failed(&c->guards))
        return dump_fail(c, "its guards", -ENOMEM);
    return dump_count(&c->guards, struct image_guard) <= IMAGE_MAX_GUARDS
               ? 0
               : dump_refuse(c, E2BIG,
                     "the processes have more than %u guard ranges (MADV_GUARD_INSTALL)",
                     IMAGE_MAX_GUARDS);
}

int guard_pages_refuse(struct dump *c, const struct dump_process *s, uint64_t address) {
    uint64_t entry;

    if (pread(s->pages.pagemap, &entry, sizeof entry,
            (off_t)(address / IMAGE_PAGE * sizeof entry)) != sizeof entry ||
        !(entry & PAGEMAP_GUARD))
        return 0;
    return dump_refuse(c, ENOTSUP,
        "it has guard pages at 0x%llx (MADV_GUARD_INSTALL) over data that can only be read through "
        "that mapping: shared memory, or a file mapping with private pages",
        (unsigned long long)address);
}
