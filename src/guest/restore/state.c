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

static int ask_keeper(enum restore_keeper_kind kind, uint32_t value) {
    const struct restore_keeper_request request = { kind, value };
    int32_t result;

    if (restore_pids < 0)
        return 0;
    if (write(restore_pids, &request, sizeof request) != sizeof request ||
        read(restore_pids, &result, sizeof result) != sizeof result)
        return -ESRCH;
    return result;
}

int restore_next_pid(uint32_t pid) {
    return ask_keeper(RESTORE_KEEPER_PID, pid);
}

int restore_next_segment(uint32_t id) {
    return ask_keeper(RESTORE_KEEPER_SEGMENT, id);
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
