/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping System V shared memory.
 *
 * Segments belong to the sandbox's IPC namespace. The dump worker has entered it, so it lists them
 * and attaches each one for a moment to read it. Reading a hole of a segment would allocate a page,
 * and a guest may make a segment of any size without pages, so only existing pages are read:
 * mincore(2) tells which, as long as none of them is swapped out. Otherwise small segments are read
 * in full, and larger ones are refused.
 *
 * In /proc/PID/maps, an attached segment is a deleted file of the kernel's own file system for
 * shared memory. Its inode number is the segment's id.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"

#define STAT_ANY 15 /* SHM_STAT_ANY, Linux 4.17 */
#define MODE_BITS 0777u
#define MODE_REMOVED 01000u /* SHM_DEST */
/* At about 50 ns for each page, asking about this much takes less than a second. */
#define MAX_ASKED (64ull << 30)
#define MAX_READ_IN_FULL (256ull << 20)
#define PAGES_AT_ONCE 65536u

static const char name_begins[] = "/SYSV", name_ends[] = " (deleted)";

/* What is known about the pages of all segments together. */
struct pages_left {
    bool are_swapped; /* some are swapped out, so they look like holes */
    uint64_t pages;   /* pages that no segment was found to have yet */
    uint64_t bytes;   /* that may still be asked about, or read in full */
};

bool segments_is_one(const struct map_line *map) {
    const size_t length = strlen(name_begins) + 8 + strlen(name_ends);

    return map->is_shared && strlen(map->path) == length &&
           !strncmp(map->path, name_begins, strlen(name_begins)) &&
           mappings_ends_with(map->path, name_ends);
}

/* A memory file is in the same file system as all segments. */
static int find_device(struct dump *c) {
    struct stat st;

    if (c->segment_device)
        return 0;
    auto_close int fd = memfd_create("segments", MFD_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return dump_fail(c, "its System V shared memory", -errno);
    c->segment_device = st.st_dev;
    return 0;
}

static int by_id(const void *a, const void *b) {
    const struct image_segment *left = a, *right = b;

    return left->id < right->id ? -1 : left->id > right->id;
}

/* A guest can name a file like a segment, but its file system has another device. */
int segments_find(struct dump *c, const struct map_line *map, uint32_t *ret_segment) {
    const size_t n = dump_count(&c->segments, struct image_segment);
    const struct image_segment *found = NULL;
    int r = find_device(c);

    if (r < 0)
        return r;
    if (n && map->inode <= INT32_MAX)
        found = bsearch(&(struct image_segment){ .id = (uint32_t)map->inode }, c->segments.data, n,
            sizeof *found, by_id);
    if (!found || map->major != major(c->segment_device) || map->minor != minor(c->segment_device))
        return dump_refuse(
            c, ENOTSUP, "it maps %.200s, which is no segment of the sandbox", map->path);
    if (c->options->is_command)
        return dump_refuse(c, ENOTSUP, "it shares memory");
    *ret_segment = (uint32_t)(found - dump_entry(&c->segments, 0, struct image_segment));
    const uint64_t room = image_up_to(found->size, IMAGE_PAGE);
    return map->offset > room || map->offset > map->start ||
                   map->end - map->start > room - map->offset
               ? dump_refuse(
                     c, ENOTSUP, "it maps more of segment %u of System V than there is", found->id)
               : 0;
}

/* ---- content ---- */

static int refuse_size(struct dump *c, const struct pages_left *left) {
    c->current = NULL;
    return left->are_swapped
               ? dump_refuse(c, ENOTSUP,
                     "their System V shared memory has pages that are swapped out, and together "
                     "more than %llu MiB",
                     MAX_READ_IN_FULL >> 20)
               : dump_refuse(c, ENOTSUP,
                     "their System V shared memory has together more than %llu GiB",
                     MAX_ASKED >> 30);
}

static int save_found(struct dump *c, size_t first_run, const char *at, uint64_t offset,
    const unsigned char *there, size_t n, struct pages_left *left) {
    for (size_t i = 0, k; i < n; i = k + 1) {
        while (i < n && !(there[i] & 1))
            i++;
        for (k = i; k < n && there[k] & 1; k++)
            ;
        if (k == i)
            break;
        if (k - i > left->pages)
            return -EBADMSG; /* the kernel does not tell this process which pages exist */
        left->pages -= k - i;
        int r = pages_save_here(
            c, first_run, offset + i * IMAGE_PAGE, at + offset + i * IMAGE_PAGE, k - i);
        if (r < 0)
            return r;
    }
    return 0;
}

static int save_pages(
    struct dump *c, size_t first_run, const char *at, uint64_t length, struct pages_left *left) {
    static unsigned char there[PAGES_AT_ONCE];
    int r = 0;

    if (left->are_swapped)
        return pages_save_here(c, first_run, 0, at, (size_t)(length / IMAGE_PAGE));
    for (uint64_t offset = 0, n; offset < length && left->pages && r == 0;
         offset += n * IMAGE_PAGE) {
        n = MIN((length - offset) / IMAGE_PAGE, (uint64_t)PAGES_AT_ONCE);
        r = mincore((void *)(uintptr_t)(at + offset), (size_t)(n * IMAGE_PAGE), there) < 0
                ? -errno
                : save_found(c, first_run, at, offset, there, (size_t)n, left);
    }
    return r;
}

static int save_content(struct dump *c, struct image_segment *segment, struct pages_left *left) {
    const uint64_t length = image_up_to(segment->size, IMAGE_PAGE);
    const size_t first_run = dump_count(&c->runs, struct image_run);

    if (!left->pages && !left->are_swapped)
        return 0;
    if (length > left->bytes)
        return refuse_size(c, left);
    left->bytes -= length;
    const long at = syscall(SYS_shmat, (int)segment->id, NULL, SHM_RDONLY);
    if (at == -1)
        return dump_fail(c, "its System V shared memory", -errno);
    int r = save_pages(c, first_run, (const char *)(uintptr_t)at, length, left);
    (void)syscall(SYS_shmdt, at);
    segment->runs = dump_range(&c->runs, first_run, sizeof(struct image_run));
    if (r < 0 && !c->error->code)
        return r == -E2BIG ? dump_refuse(c, E2BIG,
                                 "with their System V shared memory, the processes have more than "
                                 "%llu bytes of memory",
                                 (unsigned long long)c->options->max_bytes)
                           : dump_fail(c, "its System V shared memory", r);
    return r;
}

/* ---- the list ---- */

static void take_owners(
    const struct dump *c, const struct ipc_perm *its, struct image_segment *segment) {
    const struct ucred owner = { .uid = its->uid, .gid = its->gid },
                       creator = { .uid = its->cuid, .gid = its->cgid };

    if (!c->options->many_users)
        return;
    credentials_peer(c, &owner, &segment->owner, &segment->group);
    credentials_peer(c, &creator, &segment->creator, &segment->creator_group);
}

static int list_segments(struct dump *c, int highest) {
    for (int i = 0; i <= highest; i++) {
        struct shmid_ds its;
        const long id = syscall(SYS_shmctl, i, STAT_ANY, &its);

        if (id < 0 && (errno == EINVAL || errno == EIDRM))
            continue; /* nothing has this number */
        if (id < 0)
            return dump_fail(c, "its System V shared memory", -errno);
        struct image_segment segment = {
            .id = (uint32_t)id,
            .key = (uint32_t)its.shm_perm.__key,
            .size = its.shm_segsz,
            .mode = its.shm_perm.mode & MODE_BITS,
            .is_removed = its.shm_perm.mode & MODE_REMOVED ? 1 : 0,
        };
        take_owners(c, &its.shm_perm, &segment);
        buf_add(&c->segments, &segment, sizeof segment);
    }
    const size_t n = dump_count(&c->segments, struct image_segment);
    if (n > IMAGE_MAX_SEGMENTS)
        return dump_refuse(c, E2BIG, "there are more than %u segments of System V shared memory",
            IMAGE_MAX_SEGMENTS);
    if (buf_failed(&c->segments))
        return dump_fail(c, "its System V shared memory", -ENOMEM);
    qsort(c->segments.data, n, sizeof(struct image_segment), by_id);
    return 0;
}

int segments_dump(struct dump *c) {
    struct shm_info all;
    const long highest = syscall(SYS_shmctl, 0, SHM_INFO, &all);

    if (highest < 0)
        return dump_fail(c, "its System V shared memory", -errno);
    struct pages_left left = { .are_swapped = all.shm_swp != 0,
        .pages = all.shm_rss,
        .bytes = all.shm_swp ? MAX_READ_IN_FULL : MAX_ASKED };
    int r = list_segments(c, (int)highest);
    const size_t n = r < 0 ? 0 : dump_count(&c->segments, struct image_segment);

    for (size_t i = 0; i < n && r == 0; i++)
        r = save_content(c, dump_entry(&c->segments, i, struct image_segment), &left);
    /* A page that the host swaps out meanwhile looks like a hole, and would be lost. */
    if (r < 0 || !n || left.are_swapped || syscall(SYS_shmctl, 0, SHM_INFO, &all) < 0 ||
        !all.shm_swp)
        return r;
    c->current = NULL;
    return dump_refuse(c, EAGAIN,
        "pages of their System V shared memory were swapped out while they were read; try again");
}
