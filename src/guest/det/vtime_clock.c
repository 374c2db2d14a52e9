/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual clock: the page that all processes share, init's jumps, and /proc/uptime. vtime.c has
 * the model. */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/timed_syscall.h"
#include "image/process_image.h"
#include "sys/syscalls.h"

#define PAGE 4096
#define GIVE_LIMIT_US 100000

struct page {
    uint64_t ticks;  /* queries add to it */
    uint64_t jumped; /* written by init */
};

static struct page *page;
int vtime_page_fd = -1;
static int uptime_fd = -1;
static int64_t uptime_told = -1; /* in hundredths of a second */
static int64_t jumped, start_ns;
static uint64_t last_sequence, seed;
static bool is_seeded;

/* Sealed, because a guest that has its descriptor could truncate it otherwise. */
int vtime_make_page(void) {
    vtime_page_fd =
        (int)sys_call2(__NR_memfd_create, "rollbox-clock", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (vtime_page_fd < 0)
        return vtime_page_fd;
    if (ftruncate(vtime_page_fd, PAGE) < 0 ||
        fcntl(vtime_page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, vtime_page_fd, 0);
    if (mapped == MAP_FAILED)
        return -errno;
    page = mapped;
    return timed_syscall_begin();
}

/* ---- /proc/uptime ---- */

/* In the kernel's format: hundredths of a second, then the idle time of CPUs, which is zero. The
 * text only grows; a clock that begins again has a file of its own. */
int vtime_tell_uptime(void) {
    int64_t hundredths = (PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS + vtime_now()) / (VIRTUAL_NS / 100),
            rest = hundredths % 100;
    char text[40], *at = text;

    if (uptime_fd < 0 || hundredths == uptime_told)
        return 0;
    at = guest_put_number(at, (uint64_t)hundredths / 100);
    *at++ = '.';
    *at++ = (char)('0' + rest / 10);
    *at++ = (char)('0' + rest % 10);
    memcpy(at, " 0.00\n", 6);
    long n = sys_call4(__NR_pwrite64, uptime_fd, text, (size_t)(at + 6 - text), 0);
    if (n < 0)
        return (int)n;
    uptime_told = hundredths;
    return 0;
}

int vtime_take_uptime(int take_fd) {
    uptime_fd = take_fd;
    int r = vtime_tell_uptime();

    if (r < 0) {
        close(uptime_fd);
        uptime_fd = -1;
    }
    return r;
}

static int64_t ticks_of(uint64_t ticks) {
    return ticks < (uint64_t)VIRTUAL_NEVER ? (int64_t)ticks : VIRTUAL_NEVER;
}

int64_t vtime_now(void) {
    return ticks_of(__atomic_load_n(&page->ticks, __ATOMIC_RELAXED)) + jumped;
}

int64_t vtime_after(int64_t ns) {
    int64_t now = vtime_now();

    return now < VIRTUAL_NEVER - ns ? now + ns : VIRTUAL_NEVER;
}

int64_t vtime_left(int64_t deadline) {
    int64_t now = vtime_now();

    return deadline > now ? deadline - now : 0;
}

bool vtime_jump(int64_t deadline) {
    int64_t left = vtime_left(deadline);

    if (!left || deadline >= VIRTUAL_NEVER)
        return false;
    jumped += left;
    __atomic_store_n(&page->jumped, (uint64_t)jumped, __ATOMIC_RELAXED);
    (void)vtime_tell_uptime();
    return true;
}

void vtime_begin_clock(const struct plan *plan) {
    seed = plan->seed;
    is_seeded = plan->flags & PLAN_SEED;
    start_ns = plan->clock_seconds * VIRTUAL_NS + plan->clock_nanoseconds;
}

bool vtime_is_on(void) {
    return page;
}

bool vtime_base(clockid_t clock, int64_t *ret_ns) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_REALTIME_ALARM:
    case CLOCK_TAI:
        *ret_ns = start_ns;
        return true;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        *ret_ns = PLAN_VIRTUAL_UPTIME_S * VIRTUAL_NS;
        return true;
    default:
        return false;
    }
}

bool vtime_read_time(pid_t pid, uint64_t address, bool micro, int64_t *ret_ns) {
    int64_t time[2], unit = micro ? 1000 : 1;

    if (process_read_memory(pid, address, time, sizeof time) != (long)sizeof time || time[0] < 0 ||
        time[1] < 0 || time[1] >= VIRTUAL_NS / unit)
        return false;
    *ret_ns = time[0] >= VIRTUAL_NEVER * 3 / VIRTUAL_NS ? VIRTUAL_NEVER * 3
                                                        : time[0] * VIRTUAL_NS + time[1] * unit;
    return true;
}

long vtime_write_time(pid_t pid, uint64_t address, bool micro, int64_t ns) {
    int64_t time[2] = { ns / VIRTUAL_NS, ns % VIRTUAL_NS / (micro ? 1000 : 1) };
    long r = process_write_memory(pid, address, time, sizeof time);

    return r < 0 ? r : 0;
}

struct virtual_event vtime_event(pid_t thread, int64_t deadline) {
    return (struct virtual_event){ .deadline = deadline,
        .stream = is_seeded ? stream_of(seed, thread) : 0,
        .sequence = ++last_sequence,
        .thread = thread };
}

bool vtime_is_before(const struct virtual_event *a, const struct virtual_event *b) {
    if (a->stream != b->stream)
        return a->stream < b->stream;
    return a->thread != b->thread ? a->thread < b->thread : a->sequence < b->sequence;
}

/* A query by a system call is equivalent to others. */
int64_t vtime_query(void) {
    return ticks_of(__atomic_fetch_add(&page->ticks, VIRTUAL_TICK_NS, __ATOMIC_RELAXED)) + jumped;
}

int64_t vtime_time_of_day(void) {
    return start_ns + vtime_now();
}

int64_t vtime_query_time_of_day(void) {
    return start_ns + vtime_query();
}

/* CPU time: the sum of the queries, without the jumps. */
int64_t vtime_query_cpu(void) {
    return vtime_query() - jumped;
}

long vtime_give(int listener, const struct seccomp_notif_addfd *give) {
    return timed_syscall_call(__NR_ioctl, (uint64_t)listener, SECCOMP_IOCTL_NOTIF_ADDFD,
        (uint64_t)(uintptr_t)give, 0, GIVE_LIMIT_US);
}

/* ---- snapshots of running processes (quiesce.c) ---- */

_Static_assert(IMAGE_NEVER == VIRTUAL_NEVER, "the end of the clock is the same in images");

int vtime_page(void) {
    return vtime_page_fd < 0 ? -EBADF : fcntl(vtime_page_fd, F_DUPFD_CLOEXEC, 3);
}

void vtime_tell(struct image_determinism *to) {
    struct stat st;

    to->ticks = (uint64_t)ticks_of(__atomic_load_n(&page->ticks, __ATOMIC_RELAXED));
    to->jumped = (uint64_t)jumped;
    if (fstat(vtime_page_fd, &st) == 0) {
        to->page_device = st.st_dev;
        to->page_inode = st.st_ino;
    }
}

void vtime_resume(const struct image_determinism *from) {
    jumped = (int64_t)from->jumped;
    __atomic_store_n(&page->ticks, from->ticks, __ATOMIC_RELAXED);
    __atomic_store_n(&page->jumped, from->jumped, __ATOMIC_RELAXED);
    (void)vtime_tell_uptime();
}
