/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System V shared memory of an image.
 *
 * Init makes each segment under its old id, as its creator, because the kernel keeps the creator
 * for good. While processes attach segments, all users may use them: a process attaches a segment
 * that it had attached before even if its mode no longer lets it. Owner and mode come afterwards.
 *
 * A process has attached a segment as one mapping or, after munmap(2) or mremap(2), as parts of it.
 * So the segment is attached anywhere, each part moves to its address, and the rest is unmapped.
 */
#include <errno.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define OPEN_MODE 0777u
#    define NO_RESERVE 010000u /* SHM_NORESERVE: cgroups count its pages */

static bool has_many_users(void) {
    return restored.header->credentials.n;
}

static const struct image_segment *segment_at(uint64_t index) {
    return restored_table(segments, struct image_segment) + index;
}

/* Calls as the segment's creator. */
static long call_as_creator(
    const struct image_segment *segment, long number, uint64_t a, uint64_t b, uint64_t c) {
    if (!has_many_users())
        return sys_call3(number, a, b, c);
    long r = box_act_as(segment->creator, segment->creator_group);

    if (r == 0)
        r = sys_call3(number, a, b, c);
    const int back = box_act_as_root();
    return back < 0 ? back : r;
}

static long fill_segment(const struct image_segment *segment) {
    const struct image_run *runs = restored_table(runs, struct image_run) + segment->runs.first;

    if (!segment->runs.n)
        return 0;
    const long at = sys_call3(__NR_shmat, segment->id, NULL, 0);
    if (at < 0 && at > -4096)
        return at;
    for (uint32_t i = 0; i < segment->runs.n; i++)
        memcpy((char *)at + runs[i].address, restored.base + runs[i].at, runs[i].length);
    return sys_call1(__NR_shmdt, at);
}

/* Without the keeper ids cannot be chosen. The launcher starts it for an image with segments, and an
 * incremental image has segments only if its parent image has some (image_is_of_same). */
int restore_make_segments(void) {
    long r = restored.header->segments.n && restore_pids < 0 ? -EOPNOTSUPP : 0;

    for (uint64_t i = 0; i < restored.header->segments.n && r == 0; i++) {
        const struct image_segment *segment = segment_at(i);

        r = restore_next_segment(segment->id);
        if (r == 0)
            r = call_as_creator(segment, __NR_shmget, segment->key, segment->size,
                IPC_CREAT | IPC_EXCL | NO_RESERVE | OPEN_MODE);
        if (r >= 0)
            r = r == (long)segment->id ? fill_segment(segment) : -EEXIST;
    }
    return (int)r;
}

/* The place must be free. The kernel replaces this mapping at once when it moves the segment. */
static long reserve_place(const struct image_area *area) {
    const long r = sys_call6(__NR_mmap, area->start, area->end - area->start, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    return r == (long)area->start ? 0 : r < 0 && r > -4096 ? r : -EEXIST;
}

long restore_attach_segment(const struct image_area *area) {
    const struct image_segment *segment = segment_at(area->path);
    const uint64_t length = area->end - area->start,
                   whole = image_up_to(segment->size, IMAGE_PAGE);
    const bool is_read_only = area->flags & IMAGE_READ_ONLY;
    const uint32_t given = PROT_READ | (is_read_only ? 0 : PROT_WRITE) |
                           (area->protection & PROT_EXEC);
    long at = sys_call3(__NR_shmat, segment->id, NULL,
        (is_read_only ? SHM_RDONLY : 0) | (area->protection & PROT_EXEC ? SHM_EXEC : 0));
    long r = at < 0 && at > -4096 ? at : reserve_place(area);

    if (r < 0)
        return r;
    r = sys_call5(__NR_mremap, at + (long)area->offset, length, length,
        MREMAP_MAYMOVE | MREMAP_FIXED, area->start);
    if (r < 0 && r > -4096)
        return r;
    r = area->offset ? sys_call2(__NR_munmap, at, area->offset) : 0;
    if (r == 0 && whole > area->offset + length)
        r = sys_call2(__NR_munmap, at + (long)(area->offset + length),
            whole - area->offset - length);
    if (r == 0 && area->protection != given)
        r = sys_call3(__NR_mprotect, area->start, length, area->protection);
    if (r == 0 && area->flags & IMAGE_NOT_FORKED)
        r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_DONTFORK);
    return r;
}

int restore_finish_segments(void) {
    long r = 0;

    for (uint64_t i = 0; i < restored.header->segments.n && r == 0; i++) {
        const struct image_segment *segment = segment_at(i);
        struct shmid_ds its = { .shm_perm.mode = segment->mode };

        r = sys_call3(__NR_shmctl, segment->id, IPC_STAT, &its);
        its.shm_perm.mode = segment->mode;
        if (has_many_users()) {
            its.shm_perm.uid = segment->owner;
            its.shm_perm.gid = segment->group;
        }
        if (r == 0)
            r = call_as_creator(
                segment, __NR_shmctl, segment->id, IPC_SET, (uint64_t)(uintptr_t)&its);
        if (r == 0 && segment->is_removed)
            r = call_as_creator(segment, __NR_shmctl, segment->id, IPC_RMID, 0);
    }
    return (int)r;
}

#endif
