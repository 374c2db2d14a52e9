/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dirty tracking of a process from its start (dump/dirty_pages.c explains tracking), so that its
 * first fork can be incremental. The parent image is the one that the process was prepared from.
 * Changes by an incremental image are written by the process afterwards, and tracked like all other
 * writes.
 *
 * The process creates its userfaultfd before it has its filter, because the filter lets only a
 * tracer do that. So the process also installs the filter itself, and does not inherit it from
 * init.
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

/* Registers adjacent areas at once. */
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

/* Memory that cannot be protected counts as written to. */
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
