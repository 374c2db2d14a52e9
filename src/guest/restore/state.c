/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a loaded image while its processes are made, and helpers that several files of
 * restore use. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

struct restore_image restored;
struct restore_end restore_ends[IMAGE_MAX_PROCESSES];
int restore_pids = -1;

int restore_next_pid(uint32_t pid) {
    int32_t result;

    if (restore_pids < 0)
        return 0;
    if (write(restore_pids, &pid, sizeof pid) != sizeof pid ||
        read(restore_pids, &result, sizeof result) != sizeof result)
        return -ESRCH;
    return result;
}

long restore_make_memory(const struct image_area *area) {
    int flags = MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE |
                (area->kind == IMAGE_STACK ? MAP_GROWSDOWN : 0) |
                (area->forgets == IMAGE_DROPPABLE ? UAPI_MAP_DROPPABLE : MAP_PRIVATE);

    return mmap((void *)area->start, area->end - area->start, (int)area->protection, flags, -1,
               0) == MAP_FAILED
               ? -errno
               : 0;
}

#endif
