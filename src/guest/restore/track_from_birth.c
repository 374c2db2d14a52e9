/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process whose writes are noted from its start on (dump/dirty_pages.c has how), so that its
 * first fork is what has changed since: against the image that it is prepared from. What it is
 * amended by afterwards it writes itself, and is noted like all else.
 *
 * It makes its userfaultfd itself, before it has its filter, by which only a tracer can let it do
 * that; so it gets that by itself, and not from init.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"
#include "sys/uapi.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

/* Those that follow each other, as one. */
static void cover_areas(int fd, const struct image_area *areas, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t start = areas[i].start;

        if (!restored_is_memory(&areas[i]))
            continue;
        while (i + 1 < n && restored_is_memory(&areas[i + 1]) && areas[i + 1].start == areas[i].end)
            i++;
        (void)ioctl(fd, UFFDIO_REGISTER,
            &(struct uffdio_register){
                .range = { start, areas[i].end - start }, .mode = UFFDIO_REGISTER_MODE_WP });
    }
}

/* What cannot be protected counts as written to. */
static void protect_area(int fd, const struct image_area *area) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first;

    for (uint32_t i = 0; i < area->runs.n; i++)
        (void)ioctl(fd, UFFDIO_WRITEPROTECT,
            &(struct uffdio_writeprotect){ .range = { runs[i].address, runs[i].length },
                .mode = UFFDIO_WRITEPROTECT_MODE_WP });
}

int restore_make_tracker(void) {
    struct uffdio_api api = { .api = UFFD_API, .features = UAPI_UFFD_FEATURE_WP_ASYNC };
    int fd = (int)sys_call1(__NR_userfaultfd, O_CLOEXEC | UAPI_UFFD_USER_MODE_ONLY);

    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) == 0)
        return fd;
    int r = -errno;
    (void)sys_call1(__NR_close, fd);
    return r;
}

void restore_note(int tracker, const struct image_process *process) {
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;

    cover_areas(tracker, areas, process->areas.n);
    for (uint32_t i = 0; i < process->areas.n; i++)
        if (restored_is_memory(&areas[i]))
            protect_area(tracker, &areas[i]);
}

#endif
