/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System V shared memory of an image.
 *
 * Init makes each segment under its old id, as its creator, because the kernel keeps the creator
 * for good. While processes attach segments, all users may use them: a process attaches a segment
 * that it had attached before even if its mode no longer lets it. Owner and mode come afterwards.
 *
 * A process has attached a segment as one mapping or, after munmap(2) or mprotect(2), as parts of
 * it. So the segment is attached anywhere, the parts move to their addresses, and the rest is
 * unmapped. Parts that mremap(2) has moved count as attached by a call of their own.
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

/* Without the keeper ids cannot be chosen. Init starts it for an image with segments, and an
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

    if (r == (long)area->start)
        return 0;
    return r < 0 && r > -4096 ? r : -EEXIST;
}

static uint64_t start_of_whole(const struct image_area *area) {
    return area->start - area->offset;
}

/* Do two areas of a process come from one call of shmat(2)? Then one call of shmdt(2) ends both. */
static bool are_of_one(const struct image_area *a, const struct image_area *b) {
    return a->kind == IMAGE_SEGMENT && b->kind == IMAGE_SEGMENT && a->path == b->path &&
           start_of_whole(a) == start_of_whole(b) &&
           (a->flags & IMAGE_READ_ONLY) == (b->flags & IMAGE_READ_ONLY);
}

static int shmat_flags(const struct image_area *area, uint32_t protection) {
    int flags = area->flags & IMAGE_READ_ONLY ? SHM_RDONLY : 0;

    if (protection & PROT_EXEC)
        flags |= SHM_EXEC;
    return flags;
}

static long place_part(const struct image_area *area, long at) {
    const uint64_t length = area->end - area->start;
    long r = sys_call5(__NR_mremap, at + (long)area->offset, length, length,
        MREMAP_MAYMOVE | MREMAP_FIXED, area->start);

    if (r < 0 && r > -4096)
        return r;
    r = sys_call3(__NR_mprotect, area->start, length, area->protection);
    if (r == 0 && area->flags & IMAGE_NOT_FORKED)
        r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_DONTFORK);
    return r;
}

/* The first part brings the others, which lie above it. */
long restore_attach_segment(const struct image_area *areas, uint32_t n, uint32_t index) {
    const struct image_area *first = &areas[index];
    const struct image_segment *segment = segment_at(first->path);
    const uint64_t whole = image_up_to(segment->size, IMAGE_PAGE),
                   end = start_of_whole(first) + whole;
    uint64_t rest = 0; /* offset of what no part has had yet */
    uint32_t protection = 0;
    long r = 0;

    for (uint32_t i = index; i > 0 && areas[i - 1].start >= start_of_whole(first); i--)
        if (are_of_one(&areas[i - 1], first))
            return 0;
    /* All places first, so that the kernel does not attach the segment there. */
    for (uint32_t i = index; i < n && areas[i].start < end && r == 0; i++)
        if (are_of_one(&areas[i], first)) {
            protection |= areas[i].protection;
            r = reserve_place(&areas[i]);
        }
    if (r < 0)
        return r;
    const long at = sys_call3(__NR_shmat, segment->id, NULL, shmat_flags(first, protection));
    if (at < 0 && at > -4096)
        return at;
    for (uint32_t i = index; i < n && areas[i].start < end && r == 0; i++) {
        if (!are_of_one(&areas[i], first))
            continue;
        r = place_part(&areas[i], at);
        if (r == 0 && areas[i].offset > rest)
            r = sys_call2(__NR_munmap, at + (long)rest, areas[i].offset - rest);
        rest = areas[i].offset + (areas[i].end - areas[i].start);
    }
    return r == 0 && rest < whole ? sys_call2(__NR_munmap, at + (long)rest, whole - rest) : r;
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
