/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading an image into a launcher (restore_image.h describes the layout).
 *
 * The image is checked completely first (process_image.c), so that the code here cannot read past a
 * table or map memory where it must not. The launcher's own text is copied into anonymous memory,
 * because the kernel lets a process change its /proc/PID/exe only when nothing of the old program
 * is mapped.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/det/det.h"
#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define REGION_ALIGNMENT 0x40000000ull
#    define N_PARTS 0x20000u /* up to IMAGE_HIGHEST */
#    define VDSO_ROOM 0x20000ull
#    define TOUCHES_ROOM                                                                           \
        ((IMAGE_MAX_TOUCHES * sizeof(struct image_touch) + IMAGE_PAGE - 1) &                       \
            ~(uint64_t)(IMAGE_PAGE - 1))
#    define HUGE 0x200000ull
#    define LEAST_PACKED 0x10000ull /* moving less is not worth it */
/* An eighth of memory without a whole large page, because each copy has that much more. */
#    define MAX_GAPS 8
#    define GUARD 0x200000ull /* below an area that grows downwards */
#    define COMMANDS_BESIDES                                                                       \
        32 /* in addition to the policy's processes: INIT_PROCESSES of engine/box/cgroup_lease.c   \
            */
#    define STACK_ROOM                                                                             \
        0x4000000ull /* around the launcher's own mappings, where no guest memory may be */

extern const char __ehdr_start[];

bool restore_is_tree(void) {
    return restored.header && !restored.header->is_command;
}

bool restore_clocks(int64_t *ret_monotonic_ns, int64_t *ret_boottime_ns) {
    if (!restore_is_tree())
        return false;
    *ret_monotonic_ns = restored.header->clocks[0];
    *ret_boottime_ns = restored.header->clocks[1];
    return true;
}

bool restore_are_noted(const struct box *box) {
    return box->notes && restore_is_tree() && restored.header->processes.n <= IMAGE_MAX_NOTED &&
           !restored.header->terminals.n && !determinism_wanted(box->plan);
}

static uint64_t pages_of(uint64_t bytes) {
    return image_up_to(bytes, IMAGE_PAGE);
}

/* ---- the region ---- */

static uint64_t park_room(const struct image_area *area) {
    return area->end - area->start + (area->kind == IMAGE_STACK ? GUARD : 0) + HUGE;
}

static bool is_staged(const struct image_area *area) {
    return restored_is_memory(area) && area->runs.n && !area->forgets;
}

/*
 * Memory that is mostly used is filled where the kernel provides large pages (the *pack*), and then
 * moved to its parked address: as whole page tables if it is large enough, else entry by entry.
 * Those entries still belong to one large page, so the kernel handles many at once in a fork and at
 * an exit, at a tenth of the cost.
 */
static bool is_packed(const struct image_area *area, const struct image_run *runs) {
    const uint64_t length = area->end - area->start;
    uint64_t filled = 0;

    if (!is_staged(area) || area->kind == IMAGE_STACK)
        return false;
    for (uint32_t i = 0; i < area->runs.n; i++)
        filled += runs[area->runs.first + i].length;
    return filled >= LEAST_PACKED &&
           filled >= (length < HUGE ? length - length / MAX_GAPS : length / 2);
}

/* The place of an area in the pack, after `at`. An area with whole large pages keeps its address
 * modulo their size. */
static uint64_t pack_place(const struct image_area *area, uint64_t at) {
    return area->end - area->start >= HUGE ? at + ((area->start - at) & (HUGE - 1)) : at;
}

/* The lowest address above IMAGE_REGIONS where no process has anything; 0: none. Guests choose
 * their addresses, so each area is visited once: a bitmap has one bit for each REGION_ALIGNMENT
 * bytes of the address space. */
static uint64_t find_region(const struct image *it, const char *base, uint64_t length) {
    static uint64_t taken[N_PARTS / 64];
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    const uint64_t needed = (length + REGION_ALIGNMENT - 1) / REGION_ALIGNMENT;

    for (uint64_t i = 0; i < it->areas.n; i++)
        for (uint64_t part = areas[i].start / REGION_ALIGNMENT;
             part <= (areas[i].end - 1) / REGION_ALIGNMENT; part++)
            taken[part / 64] |= 1ull << part % 64;
    for (uint64_t part = IMAGE_REGIONS / REGION_ALIGNMENT, n = 0;
         part < IMAGE_HIGHEST / REGION_ALIGNMENT; part++) {
        n = taken[part / 64] >> part % 64 & 1 ? 0 : n + 1;
        if (n == needed)
            return (part + 1 - n) * REGION_ALIGNMENT;
    }
    return 0;
}

/* ---- its pages ---- */

static uint64_t written = UINT64_MAX; /* pages of the image before this offset are there */
static int writer = -1;               /* the socket that reports more */

static int hear_writer(void) {
    struct image_progress word;
    ssize_t n;

    do
        n = read(writer, &word, sizeof word);
    while (n < 0 && errno == EINTR);
    if (n != sizeof word)
        return n < 0 ? -errno : -ECHILD;
    written = word.written;
    return 0;
}

/* Copies pages as they arrive, so that only the last of them are waited for. */
static int copy_pages(uint64_t to, uint64_t at, uint64_t length) {
    for (uint64_t done = 0; done < length;) {
        uint64_t there = written > at ? written - at : 0;

        if (there <= done) {
            int r = hear_writer();
            if (r < 0)
                return r;
            continue;
        }
        there = there < length ? there : length;
        memcpy((void *)(to + done), restored.base + at + done, there - done);
        done = there;
    }
    return 0;
}

static bool map_at(uint64_t at, uint64_t length, int protection, int flags, int fd) {
    return mmap((void *)at, length, protection, MAP_PRIVATE | MAP_FIXED_NOREPLACE | flags, fd, 0) !=
           MAP_FAILED;
}

static uint64_t pack_at, pack_length; /* the pack at the end of the region; its next free address */

/* In the order in which restore_fill() and make_all_room() use it. */
static uint64_t pack_room(const struct image *it, const char *base) {
    const struct image_process *processes = image_table(it, base, processes, struct image_process);
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    uint64_t at = 0;

    for (uint64_t i = 0; i < it->processes.n; i++)
        for (uint32_t k = processes[i].areas.first;
             k < processes[i].areas.first + processes[i].areas.n && at < IMAGE_HIGHEST; k++)
            if (is_packed(&areas[k], runs))
                at = pack_place(&areas[k], at) + (areas[k].end - areas[k].start);
    return at ? at + 2 * HUGE : 0; /* both ends are aligned to large pages */
}

/* Maps everything except the parked memory. */
static int make_region(const char *found, uint64_t length, int fd) {
    const struct image *it = image_header(found, length);
    const struct image_area *areas = image_table(it, found, areas, struct image_area);
    uint64_t n_threads = 0, tables = pages_of(2 * it->areas.n * sizeof(uint64_t)),
             room = pages_of(length) + VDSO_ROOM + TOUCHES_ROOM + tables;

    for (uint64_t i = 0; i < it->processes.n; i++) {
        uint64_t n = image_table(it, found, processes, struct image_process)[i].threads.n;
        n_threads = n > n_threads ? n : n_threads;
    }
    room += n_threads * RESTORE_STACK;
    for (uint64_t i = 0; i < it->areas.n && room < IMAGE_HIGHEST; i++)
        room += is_staged(&areas[i]) ? park_room(&areas[i]) : 0;
    pack_length = pack_room(it, found);
    room += pack_length;
    if (room >= IMAGE_HIGHEST || pack_length >= IMAGE_HIGHEST)
        return -ENOMEM;
    uint64_t at = find_region(it, found, room);
    if (!at)
        return -ENOMEM;
    restored.region = at;
    restored.region_end = at + room;
    restored.base = (const char *)at;
    restored.header = (const void *)(at + length - sizeof *it);
    if (!map_at(at, pages_of(length), PROT_READ, 0, fd))
        return -errno;
    at += pages_of(length);
    restored.vdso_at = at;
    at += VDSO_ROOM + TOUCHES_ROOM;
    restored.staged = (void *)at;
    restored.together = restored.staged + it->areas.n;
    if (!map_at(at, tables, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1))
        return -errno;
    at += tables;
    restored.stacks = at;
    if (!map_at(at, n_threads * RESTORE_STACK, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1))
        return -errno;
    return 0;
}

static bool map_for(const struct image_area *area, uint64_t to) {
    return map_at(to, area->end - area->start, PROT_READ | PROT_WRITE,
        MAP_ANONYMOUS | MAP_NORESERVE | (area->kind == IMAGE_STACK ? MAP_GROWSDOWN : 0), -1);
}

/* Several processes have memory at the same addresses. */
static bool may_be_in_place(uint64_t start, uint64_t end) {
    uint64_t stack = (uint64_t)(uintptr_t)__builtin_frame_address(0);

    return restored.header->processes.n == 1 &&
           (end + STACK_ROOM < stack || start > stack + STACK_ROOM);
}

static bool map_in_place(const struct image_area *area) {
    return may_be_in_place(area->start, area->end) && map_for(area, area->start);
}

static bool has_whole_large_page(uint64_t start, uint64_t end) {
    return ((start + HUGE - 1) & ~(HUGE - 1)) + HUGE <= end;
}

/*
 * Libraries have small data areas between their code. Each mapping adds cost to both forks and to
 * init's munmap. So areas that are close together are mapped as one, gaps included, until the
 * process unmaps the gaps (clear), which it does anyway. The kernel may use a large page there. `k`
 * is the first area. Returns the end of the group; 0: the area stays by itself.
 */
static uint64_t map_together(const struct image_range *own, uint32_t k) {
    const struct image_area *areas = restored_table(areas, struct image_area);
    const struct image_run *runs = restored_table(runs, struct image_run);
    uint32_t last = k;

    /* This also bounds the time: a guest can have ten thousand areas, and each would be compared
     * with a thousand others. */
    if (restored.header->processes.n != 1 || areas[k].kind == IMAGE_STACK ||
        is_packed(&areas[k], runs))
        return 0;
    for (uint32_t i = k + 1;
         i < own->first + own->n && !has_whole_large_page(areas[k].start, areas[i].end); i++) {
        if (!is_staged(&areas[i]))
            continue;
        if (areas[i].kind == IMAGE_STACK || is_packed(&areas[i], runs))
            break;
        last = i;
    }
    if (last == k || !may_be_in_place(areas[k].start, areas[last].end) ||
        !map_at(areas[k].start, areas[last].end - areas[k].start, PROT_READ | PROT_WRITE,
            MAP_ANONYMOUS | MAP_NORESERVE, -1))
        return 0;
    return restored.together[k] = areas[last].end;
}

/* Allocates the pages of all runs at once, which costs less than one by one. */
static void populate_area(const struct image_area *area, uint64_t to) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first;

    for (uint32_t i = 0; i < area->runs.n; i++)
        (void)sys_call3(__NR_madvise, to + (runs[i].address - area->start), runs[i].length,
            UAPI_MADV_POPULATE_WRITE);
}

/* Copies the runs from the image to their present address. */
static int fill_area(const struct image_area *area, uint64_t to) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first;
    int r = 0;

    for (uint32_t i = 0; i < area->runs.n && r == 0; i++)
        r = copy_pages(to + (runs[i].address - area->start), runs[i].at, runs[i].length);
    return r;
}

/* A large page also covers the gaps between runs. Small gaps stay, and so does a gap if a large
 * page would have to be split for it. They contain zeros, as they should. */
static void forget_gaps(const struct image_area *area, uint64_t at) {
    const struct image_run *runs = restored_table(runs, struct image_run) + area->runs.first;
    uint64_t end = area->start;

    for (uint32_t i = 0; i <= area->runs.n && area->end - area->start < HUGE; i++) {
        uint64_t next = i < area->runs.n ? runs[i].address : area->end;

        if (next >= end + LEAST_PACKED)
            (void)sys_call3(__NR_madvise, at + (end - area->start), next - end, MADV_DONTNEED);
        end = i < area->runs.n ? next + runs[i].length : end;
    }
}

/* Never writes past the computed size, with any image. */
static int take_from_pack(const struct image_area *area, uint64_t *ret_at) {
    const uint64_t length = area->end - area->start, at = pack_place(area, pack_at);

    if (at > restored.region_end || length > restored.region_end - at)
        return -EBADMSG;
    pack_at = at + length;
    *ret_at = at;
    return 0;
}

static int fill_packed(const struct image_area *area, uint64_t to) {
    uint64_t length = area->end - area->start, at;
    int r = take_from_pack(area, &at);

    if (r == 0)
        r = fill_area(area, at);
    if (r < 0)
        return r;
    forget_gaps(area, at);
    return sys_call5(__NR_mremap, at, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) < 0
               ? -ENOMEM
               : 0;
}

/* Chooses where the area is mapped: at its own address if possible, else in its process's parking
 * range from `*at` to `end`, at its address modulo the size of a large page, so that whole page
 * tables can be moved. */
static int make_room(const struct image_area *area, bool is_mapped, uint64_t *at, uint64_t end) {
    uint64_t to = *at + (area->kind == IMAGE_STACK ? GUARD : 0), pages;
    int r = 0;

    to += (area->start - to) & (HUGE - 1);
    *at = to + (area->end - area->start);
    if (*at > end)
        return -EBADMSG;
    if (is_mapped || map_in_place(area))
        to = area->start;
    else if (!map_for(area, to))
        return -errno;
    restored.staged[area - restored_table(areas, struct image_area)] = pages = to;
    if (is_packed(area, restored_table(runs, struct image_run)))
        r = take_from_pack(area, &pages);
    if (r == 0)
        populate_area(area, pages);
    return r;
}

static int stage_area(const struct image_area *area, bool is_together) {
    const uint64_t to = restored.staged[area - restored_table(areas, struct image_area)];
    int r = is_packed(area, restored_table(runs, struct image_run)) ? fill_packed(area, to)
                                                                    : fill_area(area, to);

    if (r < 0)
        return r;
    /* For areas that are mapped as a group, the process sets the protection. */
    if (!is_together && area->protection != (PROT_READ | PROT_WRITE) &&
        sys_call3(__NR_mprotect, to, area->end - area->start,
            area->protection & (PROT_READ | PROT_WRITE | PROT_EXEC)) < 0)
        return -ENOMEM;
    return 0;
}

static uint64_t room_of(const struct image_process *process) {
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;
    uint64_t room = 0;

    for (uint32_t i = 0; i < process->areas.n; i++)
        room += is_staged(&areas[i]) ? park_room(&areas[i]) : 0;
    return room;
}

/* The range of a process is followed by those of its children, each with its descendants. Parents
 * come before children in the image. */
static void share_out(uint64_t at) {
    static uint64_t next[IMAGE_MAX_PROCESSES]; /* where the next child's range begins */
    struct restored_range *memory = restored.memory;
    const uint32_t n = (uint32_t)restored.header->processes.n;

    for (uint32_t i = n; i-- > 0;) {
        memory[i].end += room_of(restored_process(i)); /* the length, until the start is known */
        if (restored_process(i)->parent)
            memory[restored_process(i)->parent - 1].end += memory[i].end;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t *from = restored_process(i)->parent ? &next[restored_process(i)->parent - 1] : &at;

        memory[i].start = *from;
        *from = memory[i].end += *from;
        next[i] = memory[i].start + room_of(restored_process(i));
    }
}

static uint64_t pack_start(void) {
    return (restored.region_end - pack_length + HUGE - 1) & ~(HUGE - 1);
}

static int make_pack(void) {
    pack_at = pack_start();
    if (!pack_length)
        return 0;
    if (!map_at(pack_at, restored.region_end - pack_at, PROT_READ | PROT_WRITE,
            MAP_ANONYMOUS | MAP_NORESERVE, -1))
        return -errno;
    (void)sys_call3(__NR_madvise, pack_at, restored.region_end - pack_at, UAPI_MADV_HUGEPAGE);
    return 0;
}

/* In the launcher's memory: by page faults, which block no other thread. */
static int make_second_half(void *unused) {
    const struct image_area *areas = restored_table(areas, struct image_area);
    const struct image_run *runs = restored_table(runs, struct image_run);
    uint64_t place = pack_start(), half = place + pack_length / 2;

    (void)unused;
    for (uint64_t i = 0; i < restored.header->areas.n; i++) {
        if (!is_packed(&areas[i], runs))
            continue;
        place = pack_place(&areas[i], place);
        for (uint32_t k = areas[i].runs.first; k < areas[i].runs.first + areas[i].runs.n; k++) {
            uint64_t at = place + (runs[k].address - areas[i].start), end = at + runs[k].length;

            if (end > restored.region_end)
                sys_exit_group(0);
            for (at = at < half ? half : at; at < end; at = (at | (HUGE - 1)) + 1)
                (void)__atomic_fetch_or((unsigned char *)at, 0, __ATOMIC_RELAXED);
        }
        place += areas[i].end - areas[i].start;
    }
    sys_exit_group(0);
}

/* Commands wait for this load. Most of its time goes to large pages that a hypervisor has taken
 * back: 7 ms each, so two threads allocate them. 0 or less: no second thread. */
static pid_t begin_second_half(char *stack_end) {
    return restored.header->is_command && pack_length >= 4 * HUGE
               ? clone(make_second_half, stack_end, CLONE_VM | SIGCHLD, NULL)
               : 0;
}

/* Allocating pages takes about as long as copying their content, and needs only the tables. */
static int make_all_room(void) {
    _Alignas(GUEST_STACK_ALIGN) char stack[4096];
    const struct image_area *areas = restored_table(areas, struct image_area);
    uint64_t n_threads = 0;
    int r = make_pack();
    pid_t other = r == 0 ? begin_second_half(stack + sizeof stack) : 0;

    for (uint32_t i = 0; i < restored.header->processes.n; i++)
        n_threads =
            n_threads > restored_process(i)->threads.n ? n_threads : restored_process(i)->threads.n;
    share_out(restored.stacks + n_threads * RESTORE_STACK);
    for (uint32_t i = 0; i < restored.header->processes.n; i++) {
        const struct image_range *own = &restored_process(i)->areas;
        uint64_t at = restored.memory[i].start, together = 0;

        for (uint32_t k = own->first; k < own->first + own->n && r == 0; k++) {
            if (!is_staged(&areas[k]))
                continue;
            if (areas[k].start >= together)
                together = map_together(own, k);
            r = make_room(&areas[k], areas[k].start < together, &at, restored.memory[i].end);
        }
    }
    if (other > 0)
        (void)waitpid(other, NULL, __WALL);
    return r;
}

int restore_fill(void) {
    const struct image_area *areas = restored_table(areas, struct image_area);
    int r = 0;

    pack_at = pack_start();
    for (uint32_t i = 0; i < restored.header->processes.n; i++) {
        const struct image_range *own = &restored_process(i)->areas;
        uint64_t together = 0;

        for (uint32_t k = own->first; k < own->first + own->n && r == 0; k++) {
            if (!is_staged(&areas[k]))
                continue;
            if (restored_are_together(&areas[k]))
                together = restored_are_together(&areas[k]);
            r = stage_area(&areas[k], areas[k].start < together);
        }
    }
    restored.region_end -= pack_length;
    return r < 0 || !pack_length ? r
                                 : (int)sys_call2(__NR_munmap, restored.region_end, pack_length);
}

/* ---- handing it on ---- */

/* Skips areas with nothing parked. */
static void advise_areas(uint32_t index, int advice) {
    const struct restored_range *range = &restored.memory[index];
    const struct image_process *process = restored_process(index);
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;

    (void)sys_call3(__NR_madvise, range->start, range->end - range->start, advice);
    for (uint32_t i = 0; i < process->areas.n; i++)
        if (restored_is_in_place(&areas[i]))
            (void)sys_call3(__NR_madvise, areas[i].start, areas[i].end - areas[i].start, advice);
}

void restore_keep_from_forks(uint32_t index) {
    advise_areas(index, UAPI_MADV_DONTFORK);
}

void restore_take_to_forks(uint32_t index) {
    advise_areas(index, UAPI_MADV_DOFORK);
}

void restore_give_up(uint32_t index) {
    const struct restored_range *range = &restored.memory[index];
    const struct image_process *process = restored_process(index);
    const struct image_area *areas =
        restored_table(areas, struct image_area) + process->areas.first;

    uint64_t start = 0, end = 0;

    (void)sys_call2(__NR_munmap, range->start, range->end - range->start);
    for (uint32_t i = 0; i < process->areas.n; i++) {
        if (!restored_is_in_place(&areas[i]) || areas[i].start < end)
            continue;
        /* Init has nothing of its own below the first region, so everything there is unmapped at
         * once. */
        if (areas[i].start >= IMAGE_REGIONS && end) {
            (void)sys_call2(__NR_munmap, start, end - start);
            start = 0;
        }
        start = start ? start : areas[i].start;
        end = restored_are_together(&areas[i]) ? restored_are_together(&areas[i]) : areas[i].end;
    }
    if (end)
        (void)sys_call2(__NR_munmap, start, end - start);
}

/* ---- the program ---- */

/* Copies of the program's mapped segments replace the file's mappings, while the program runs.
 * These variables must not be written meanwhile. */
static int leave_file(void) {
    const Elf64_Ehdr *header = (const void *)__ehdr_start;
    const Elf64_Phdr *segments = (const void *)(__ehdr_start + header->e_phoff);

    for (unsigned i = 0; i < header->e_phnum; i++) {
        uint64_t start = segments[i].p_vaddr & ~(uint64_t)(IMAGE_PAGE - 1),
                 length = pages_of(segments[i].p_vaddr + segments[i].p_filesz) - start;
        int protection = (segments[i].p_flags & PF_R ? PROT_READ : 0) |
                         (segments[i].p_flags & PF_W ? PROT_WRITE : 0) |
                         (segments[i].p_flags & PF_X ? PROT_EXEC : 0);

        if (segments[i].p_type != PT_LOAD || !segments[i].p_filesz)
            continue;
        char *copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED)
            return -errno;
        memcpy(copy, (const void *)start, length);
        if (sys_call3(__NR_mprotect, copy, length, protection) < 0 ||
            sys_call5(__NR_mremap, copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, start) < 0)
            return -EPERM;
    }
    return 0;
}

/* The policy's limit of processes, which includes init, is not enforced while processes are
 * restored, so it is checked here. Commands that init starts do not count, because the group has a
 * little more room (engine/box/cgroup_lease.c). Ghosts are not counted, because they exist only for
 * a moment. */
static bool are_too_many(const struct image *it, const char *base, const struct plan *plan) {
    const struct image_process *processes = image_table(it, base, processes, struct image_process);
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);
    uint64_t n = it->threads.n, commands = 0;

    for (uint64_t i = 0; i < it->processes.n; i++) {
        n += processes[i].kind == IMAGE_ZOMBIE;
        commands += processes[i].kind != IMAGE_DEAD_LEADER && !processes[i].parent;
    }
    for (uint32_t i = 0; i < plan->rlimits.n; i++)
        if (limits[i].resource == RLIMIT_NPROC)
            return n >
                   limits[i].value + (commands < COMMANDS_BESIDES ? commands : COMMANDS_BESIDES);
    return false;
}

int restore_load(int fd, int progress, const struct plan *plan) {
    struct stat st;

    if (restored.header)
        return -EBUSY;
    int left = leave_file();
    if (left < 0)
        return left;
    writer = progress;
    written = progress < 0 ? UINT64_MAX : 0;
    int heard = progress < 0 ? 0 : hear_writer(); /* everything except the pages has arrived */
    if (heard < 0)
        return heard;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!st.st_size)
        return -EBADMSG;
    const char *found = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (found == MAP_FAILED)
        return -errno;
    const struct image *it = image_header(found, st.st_size);
    int r = !image_is_sound(found, (uint64_t)st.st_size)             ? -EBADMSG
            : !it->credentials.n != !(plan->flags & PLAN_MANY_USERS) ? -EPERM
            : are_too_many(it, found, plan)                          ? -E2BIG
                                            : make_region(found, (uint64_t)st.st_size, fd);
    (void)munmap((void *)(uintptr_t)found, (size_t)st.st_size);
    if (r == 0)
        r = make_all_room();
    return r < 0 ? r : restore_put_last();
}

void restore_expect(int fd) {
    struct stat st;

    if (!restored.header || fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct image_touch) ||
        st.st_size > (off_t)TOUCHES_ROOM ||
        !map_at(restored.vdso_at + VDSO_ROOM, (uint64_t)st.st_size, PROT_READ, 0, fd))
        return;
    restored.touches = (const void *)(restored.vdso_at + VDSO_ROOM);
    restored.n_touches = (size_t)st.st_size / sizeof(struct image_touch);
}

#else

bool restore_is_tree(void) {
    return false;
}

bool restore_clocks(int64_t *ret_monotonic_ns, int64_t *ret_boottime_ns) {
    (void)ret_monotonic_ns, (void)ret_boottime_ns;
    return false;
}

void restore_expect(int fd) {
    (void)fd;
}

int restore_load(int fd, int progress, const struct plan *plan) {
    (void)fd, (void)progress, (void)plan;
    return -EOPNOTSUPP;
}

int restore_fill(void) {
    return -EOPNOTSUPP;
}

bool restore_are_noted(const struct box *box) {
    (void)box;
    return false;
}

#endif
