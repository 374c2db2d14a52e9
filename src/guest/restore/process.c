/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a fork of init to a process of the image.
 *
 * The fork has the memory of all processes, and runs this program on a stack in static memory. It
 * does the following, in this order:
 *
 * - It makes its children, as init's messages say.
 * - It moves its own memory to its addresses, and maps files again from the sandbox's mounts, if
 *   they are the files that the process had.
 * - It moves the kernel's vDSO to where the process had it.
 * - It sets the kernel's record of its program (PR_SET_MM).
 * - It gives up its rights as init does.
 * - It receives its descriptors from init.
 * - It creates its threads, and they resume (restore/trampoline.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define STREAMS 4
#    define OFD_SETLK 37 /* F_OFD_SETLK */
/* For the start of a command: clear of its streams, but not so high that the descriptor table
 * grows, which /proc would show. */
#    define COMMAND_SOCKET 10
#    define HIGH 32
/* The most that a read fault maps of a file, by the kernel's default (fault_around_bytes). */
#    define FAULT_AROUND 65536u
#    define KEPT 4
#    define MAX_TIMER_IDS 100000
#    define MAX_ASKED 256 /* instructions; policy/determinism.c never makes more */

/* The kernel's struct ucontext and its members, as rt_sigreturn reads them
 * (arch/x86/include/uapi/asm/sigcontext.h). */
struct frame {
    uint64_t flags, link, stack[3];
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip,
        eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, cr2, xstate, unused[8];
    uint64_t mask;
};

_Static_assert(offsetof(struct frame, link) == RESTORE_FRAME_SIGNALS &&
                   offsetof(struct frame, rax) == RESTORE_FRAME_RAX &&
                   offsetof(struct frame, rip) == RESTORE_FRAME_RIP,
    "where restore/trampoline.c has them");

#    define FRAME_FLAGS 7u       /* UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS */
#    define XSTATE_SOFTWARE 464u /* offset of the kernel's struct _fpx_sw_bytes */
#    define XSTATE_MAGIC1 0x46505853u
#    define XSTATE_MAGIC2 0x46505845u
#    define XSTATE_PLACE 512u /* offset in the frame's page */

_Static_assert(
    sizeof(struct frame) <= XSTATE_PLACE && XSTATE_PLACE + IMAGE_MAX_XSTATE + 8 <= IMAGE_FRAME,
    "a frame has its page");

static const struct box *box; /* on init's stack, and its plan where the processes have memory of
                                 their own: unusable once memory is in place */
static struct plan_rlimit limits[2 * RLIM_NLIMITS]; /* a resource may have two */
static size_t n_limits;
static uint64_t allowed; /* capabilities of the plan */
static struct sock_filter
    asked[MAX_ASKED]; /* the filter of calls that init answers; n_asked 0: none */
static size_t n_asked;
static int listener = -1; /* or another descriptor that goes to init with the next message */
static const struct image_process *self;
static bool has_forked; /* so its memory is kept from its forks */
static int to_init, ruleset,
    clock_page; /* clock_page: for the start of a command under virtual time; else -1 */
static uint32_t step;
static struct restore_trampoline lasts[IMAGE_MAX_OWN_THREADS];
static const struct image_action by_default;

static uint32_t own_index(void) {
    return (uint32_t)(self - restored_process(0));
}

static const struct image_area *own_areas(void) {
    return restored_table(areas, struct image_area) + self->areas.first;
}

/* ---- memory ---- */

/* Moves [vvar], [vvar_vclock] if there is one, and [vdso]. The kernel is the same, so this process
 * has them in the same order as the image. `from` and `to` are addresses of the last. */
static int move_kernel_parts(uint64_t from, uint64_t to) {
    uint64_t vdso = 0, first = 0;

    for (uint32_t i = 0; i < self->areas.n; i++)
        if (own_areas()[i].kind == IMAGE_VDSO)
            vdso = own_areas()[i].start;
    for (uint32_t i = 0; vdso && i < self->areas.n; i++) {
        const struct image_area *area = &own_areas()[i];
        uint64_t length = area->end - area->start;

        if (area->kind != IMAGE_VVAR && area->kind != IMAGE_VDSO)
            continue;
        if (first && area->start != first)
            return -EOPNOTSUPP;
        first = area->end;
        long r = sys_call5(__NR_mremap, area->start - vdso + from, length, length,
            MREMAP_MAYMOVE | MREMAP_FIXED, area->start - vdso + to);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

static uint64_t own_vdso(void) {
    for (uint32_t i = 0; i < self->areas.n; i++)
        if (own_areas()[i].kind == IMAGE_VDSO)
            return own_areas()[i].start;
    return 0;
}

/* An area of a group was mapped writable; an area by itself has had its protection from the
 * beginning. */
static long protect_area(const struct image_area *area, bool is_together) {
    return is_together && area->protection != (PROT_READ | PROT_WRITE)
               ? sys_call3(__NR_mprotect, area->start, area->end - area->start,
                     area->protection & (PROT_READ | PROT_WRITE | PROT_EXEC))
               : 0;
}

/* Moves areas from the region to their addresses, and maps areas without pages. */
static int place_memory(void) {
    uint64_t together = 0;

    for (uint32_t i = 0; i < self->areas.n; i++) {
        const struct image_area *area = &own_areas()[i];
        uint64_t staged = restored.staged[self->areas.first + i], length = area->end - area->start;

        if (!restored_is_memory(area))
            continue;
        if (restored_are_together(area))
            together = restored_are_together(area);
        long r = restored_is_in_place(area) ? protect_area(area, area->start < together)
                 : staged                   ? sys_call5(__NR_mremap, staged, length, length,
                                                  MREMAP_MAYMOVE | MREMAP_FIXED, area->start)
                                            : restore_make_memory(area);
        if (r >= 0 && area->forgets == IMAGE_WIPED)
            r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_WIPEONFORK);
        if (r >= 0 && area->flags & IMAGE_NOT_FORKED)
            r = sys_call3(__NR_madvise, area->start, length, UAPI_MADV_DONTFORK);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

/* Does not compare inode numbers: files that the sandbox wrote were copied for the snapshot, with
 * their times. */
static int open_same(const struct image_area *area) {
    struct stat st;
    int fd = openat(AT_FDCWD, restored_text(area->path),
        (area->is_written ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK |
            O_CLOEXEC); /* musl sets the flag once more after open() */

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        (area->is_written ||
            ((uint64_t)st.st_size == area->size && st.st_mtim.tv_sec == area->mtime_s &&
                st.st_mtim.tv_nsec == area->mtime_ns)))
        return fd;
    close(fd);
    return -ESTALE;
}

/* Is the area within a group that is mapped with its gaps? Then it is mapped over the gap directly.
 * `*end`: end of the group; areas are visited by address. */
static bool is_between(const struct image_area *area, uint64_t *end) {
    if (restored_is_memory(area) && !restored.before && restored_are_together(area))
        *end = restored_are_together(area);
    return area->kind == IMAGE_FILE && area->start < *end;
}

static int map_files(void) {
    const struct image_area *last = NULL;
    uint64_t together = 0;
    int fd = -1, r = 0;

    for (uint32_t i = 0; i < self->areas.n && r == 0; i++) {
        const struct image_area *area = &own_areas()[i];
        const int place = is_between(area, &together) ? MAP_FIXED : MAP_FIXED_NOREPLACE;

        if (area->kind != IMAGE_FILE || restore_before(own_index(), area))
            continue; /* or it is mapped already */
        if (!last || last->path != area->path || last->is_written != area->is_written) {
            if (fd >= 0)
                close(fd);
            fd = open_same(area);
            last = area;
        }
        if (fd < 0)
            r = fd;
        else if (mmap((void *)area->start, area->end - area->start, (int)area->protection,
                     (area->is_shared ? MAP_SHARED : MAP_PRIVATE) | place, fd,
                     (off_t)area->offset) == MAP_FAILED)
            r = -errno;
    }
    if (fd >= 0)
        close(fd);
    return r;
}

static bool is_own(uint64_t address, uint64_t length) {
    for (uint32_t i = 0; i < self->areas.n; i++)
        if (address >= own_areas()[i].start &&
            length <= own_areas()[i].end - own_areas()[i].start &&
            address <= own_areas()[i].end - length)
            return true;
    return false;
}

/* Touches pages before they are needed. A page fault is faster than a request for pages, which also
 * has to pass the filter. A read fault maps all cached pages of a file's block. Areas and touches
 * are sorted by address. */
static void touch_pages(void) {
    const struct image_area *area = own_areas(), *end = area + self->areas.n;

    for (size_t i = 0; i < restored.n_touches; i++) {
        const struct image_touch *touch = &restored.touches[i];
        const uint64_t block = touch->is_written ? IMAGE_PAGE : FAULT_AROUND;

        while (area < end && area->end <= touch->address)
            area++;
        if (area == end)
            return;
        if (touch->address < area->start || touch->length > area->end - touch->address ||
            !(area->protection & (touch->is_written ? PROT_WRITE : PROT_READ)))
            continue;
        for (uint64_t at = touch->address; at < touch->address + touch->length;
             at = (at | (block - 1)) + 1) {
            volatile unsigned char *byte = (volatile unsigned char *)at;

            if (touch->is_written)
                (void)__atomic_fetch_or(
                    byte, 0, __ATOMIC_RELAXED); /* a write, so that there is no read fault first */
            else
                (void)*byte;
        }
    }
}

/* Unmaps a range, except for areas at their final addresses and areas that are about to be
 * replaced. Areas are sorted by address. */
static int clear_range(uint64_t from, uint64_t to) {
    uint64_t together = 0;
    int r = 0;

    for (uint32_t i = 0; i < self->areas.n && r == 0; i++) {
        const struct image_area *area = &own_areas()[i];

        const bool is_replaced = is_between(area, &together);

        if (!(is_replaced || restored_is_in_place(area)) || area->start < from || area->start >= to)
            continue;
        if (area->start > from)
            r = (int)sys_call2(__NR_munmap, from, area->start - from);
        from = area->end;
    }
    return r < 0 || from >= to ? r : (int)sys_call2(__NR_munmap, from, to - from);
}

/* Where the kernel's parts are, or go, if the last of them is at `vdso`. An empty range for a
 * process without them. */
static struct restored_range kernel_parts(uint64_t vdso) {
    const uint64_t own = own_vdso();
    struct restored_range range = { 0 };

    for (uint32_t i = 0; i < self->areas.n && own; i++) {
        const struct image_area *area = &own_areas()[i];

        if (area->kind != IMAGE_VVAR && area->kind != IMAGE_VDSO)
            continue;
        if (!range.start)
            range.start = area->start - own + vdso;
        range.end = area->end - own + vdso;
    }
    return range;
}

static int clear_but(uint64_t from, uint64_t to, struct restored_range kept) {
    if (kept.start < from || kept.end > to)
        return clear_range(from, to);
    int r = clear_range(from, kept.start);
    return r < 0 ? r : clear_range(kept.end, to);
}

/* Unmaps everything except this program and the region, init's stack included. The kernel's parts
 * move to the process's address for them, or wait in the region if source and target overlap. */
static int clear_place(bool *ret_vdso_waits) {
    const uint64_t vdso = getauxval(AT_SYSINFO_EHDR);
    const struct restored_range now = kernel_parts(vdso), later = kernel_parts(own_vdso());
    const bool waits = now.start < later.end && later.start < now.end;
    int r = waits ? move_kernel_parts(vdso, restored.vdso_at + 0x10000) : 0;

    if (r == 0)
        r = clear_but(IMAGE_LOWEST, restored.region, waits ? (struct restored_range){ 0 } : now);
    if (r == 0)
        r = clear_but(
            restored.region_end, IMAGE_HIGHEST, waits ? (struct restored_range){ 0 } : now);
    *ret_vdso_waits = waits;
    return r < 0 || waits ? r : move_kernel_parts(vdso, own_vdso());
}

/* ---- the process ---- */

static int set_layout(int program) {
    const struct image_layout *layout = &self->layout;
    struct prctl_mm_map map = {
        .start_code = layout->start_code,
        .end_code = layout->end_code,
        .start_data = layout->start_data,
        .end_data = layout->end_data,
        .start_brk = layout->start_brk,
        .brk = layout->brk,
        .start_stack = layout->start_stack,
        .arg_start = layout->arg_start,
        .arg_end = layout->arg_end,
        .env_start = layout->env_start,
        .env_end = layout->env_end,
        .auxv = (void *)(uintptr_t)(restored.base + self->auxv),
        .auxv_size = (uint32_t)self->auxv_length,
        .exe_fd = (uint32_t)program,
    };

    return sys_prctl(PR_SET_MM, PR_SET_MM_MAP, (unsigned long)&map, sizeof map, 0);
}

static int become_program(void) {
    int fd = openat(
        AT_FDCWD, restored_text(self->executable), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = set_layout(fd);
    close(fd);
    return r;
}

/* Most are at their defaults, and are skipped. Init handles one for itself (timed_syscall.c), which
 * is reset. SIGKILL and SIGSTOP cannot be set. */
static int set_actions(void) {
    const struct image_action *actions =
        restored_table(actions, struct image_action) + self->actions.first;

    (void)sys_call4(__NR_rt_sigaction, SIGALRM, &by_default.handler, NULL, sizeof by_default.mask);
    for (uint32_t i = 0; i < self->actions.n; i++) {
        if (actions[i].number == SIGKILL || actions[i].number == SIGSTOP)
            continue;
        int r = (int)sys_call4(__NR_rt_sigaction, actions[i].number, &actions[i].handler, NULL,
            sizeof actions[i].mask);
        if (r < 0)
            return r;
    }
    return 0;
}

/* These limits hold the process's random stream (det/dispatch.c). */
static bool is_streams(int resource) {
    return resource == RLIMIT_RSS || resource == RLIMIT_LOCKS;
}

/* A limit that the process has set itself, but never above the sandbox's. */
static int set_own_limit(int resource) {
    const uint64_t *own = self->limits[resource];
    struct rlimit now;

    if (own[0] == RLIM_INFINITY || getrlimit(resource, &now) < 0 ||
        (own[1] >= now.rlim_max && own[0] >= now.rlim_cur))
        return 0;
    return setrlimit(resource, &(struct rlimit){ own[0] < now.rlim_max ? own[0] : now.rlim_max,
                                   own[1] < now.rlim_max ? own[1] : now.rlim_max }) < 0
               ? -errno
               : 0;
}

/* All but the limit of descriptors. The start of a command has set none. */
static int set_limits(void) {
    int r = 0;

    for (size_t i = 0; i < n_limits && r == 0; i++)
        r = guest_set_limit((int)limits[i].resource,
            restored.header->is_command ? limits[i].soft : limits[i].value, limits[i].value);
    for (int i = 0; i < IMAGE_RLIMITS && r == 0; i++)
        if (restored.header->is_command ? is_streams(i) : i != RLIMIT_NOFILE)
            r = set_own_limit(i);
    return r;
}

static int prepare_process(void) {
    bool vdso_waits;
    int r;

    if (restore_are_noted(box)) {
        listener = restore_make_tracker(); /* without a tracker, its first fork is a full image */
        step = RESTORE_RESTRICT;
        if (box->plan->flags & PLAN_SECCOMP && (r = box_install_filter(box->plan)) < 0)
            return r;
    }
    /* The only step that needs a right, so all rights are dropped after it: the following steps
     * open and map paths that a guest has named. */
    step = RESTORE_PROGRAM;
    if ((r = become_program()) < 0)
        return r;
    step = RESTORE_PRIVILEGE;
    if ((r = box_drop_privileges(box->plan, false)) < 0)
        return r;
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_PDEATHSIG, self->death_signal, 0, 0, 0) < 0)
        return -errno;
    step = RESTORE_RESTRICT;
    if (ruleset >= 0 && (r = sys_landlock_restrict_self(ruleset, 0)) < 0)
        return r;
    if (ruleset >= 0)
        (void)sys_call1(__NR_close, ruleset);
    step = RESTORE_LIMITS;
    if (restored.header->is_command && (r = set_limits()) < 0)
        return r;
    step = RESTORE_MEMORY;
    if (has_forked)
        restore_take_to_forks(own_index());
    if ((r = clear_place(&vdso_waits)) < 0 || (r = place_memory()) < 0)
        return r;
    step = RESTORE_FILES;
    if ((r = map_files()) < 0)
        return r;
    step = RESTORE_VDSO;
    if (vdso_waits && (r = move_kernel_parts(restored.vdso_at + 0x10000, own_vdso())) < 0)
        return r;
    step = RESTORE_SIGNALS;
    if ((r = set_actions()) < 0)
        return r;
    umask(self->umask);
    touch_pages();
    if (listener >= 0)
        restore_note(listener, self);
    return 0;
}

/* ---- threads ---- */

/* The signals that end the thread's call, if one is pending when it resumes (restore/trampoline.c).
 * If the call were restarted after such a signal was handled, it could wait for something that has
 * come already. Signals of the process are taken by the first thread, unless it blocks them. */
static uint64_t ending_signals(const struct image_thread *thread, uint32_t index) {
    const struct image_action *actions =
        restored_table(actions, struct image_action) + self->actions.first;
    uint64_t may = ~thread->signal_mask, signals = 0;

    if (index)
        may &= (restored_table(threads, struct image_thread) + self->threads.first)->signal_mask;
    for (uint32_t i = 0; i < self->actions.n && thread->interruption != IMAGE_GOES_ON; i++)
        if (actions[i].number - 1 < IMAGE_SIGNALS && actions[i].handler > (uintptr_t)SIG_IGN &&
            (thread->interruption == IMAGE_ENDS || !(actions[i].flags & SA_RESTART)))
            signals |= 1ull << (actions[i].number - 1);
    return signals & may;
}

static void put_frame(const struct image_thread *thread, uint32_t index) {
    const struct image_registers *r = &thread->registers;
    uint64_t page = IMAGE_FRAMES + index * IMAGE_FRAME, xstate = page + XSTATE_PLACE;
    uint32_t magic1 = XSTATE_MAGIC1, magic2 = XSTATE_MAGIC2, size = (uint32_t)thread->xstate_length,
             extended = size + (uint32_t)sizeof magic2;
    char *to = (char *)xstate;

    *(struct frame *)page = (struct frame){
        .flags = FRAME_FLAGS,
        .link = ending_signals(thread, index),
        .stack = { thread->alternate_stack[0], thread->alternate_stack[1],
            thread->alternate_stack[2] },
        .r8 = r->r8,
        .r9 = r->r9,
        .r10 = r->r10,
        .r11 = r->r11,
        .r12 = r->r12,
        .r13 = r->r13,
        .r14 = r->r14,
        .r15 = r->r15,
        .rdi = r->rdi,
        .rsi = r->rsi,
        .rbp = r->rbp,
        .rbx = r->rbx,
        .rdx = r->rdx,
        .rax = r->rax,
        .rcx = r->rcx,
        .rsp = r->rsp,
        .rip = r->rip,
        .eflags = r->eflags,
        .cs = (uint16_t)r->cs,
        .ss = (uint16_t)r->ss,
        .xstate = xstate,
        .mask = thread->signal_mask,
    };
    memcpy(to, restored.base + thread->xstate, size);
    memset(to + XSTATE_SOFTWARE, 0, 48);
    memcpy(to + XSTATE_SOFTWARE, &magic1, sizeof magic1);
    memcpy(to + XSTATE_SOFTWARE + 4, &extended, sizeof extended);
    memcpy(to + XSTATE_SOFTWARE + 8, &thread->xstate_features, sizeof thread->xstate_features);
    memcpy(to + XSTATE_SOFTWARE + 16, &size, sizeof size);
    memcpy(to + size, &magic2, sizeof magic2);
    lasts[index] = (struct restore_trampoline){ page, r->fs_base, r->gs_base, thread->rseq,
        thread->rseq_length, thread->rseq_signature };
}

static int queue_signals(struct image_range range, pid_t pid, pid_t tid) {
    const struct image_pending *pending =
        restored_table(pending, struct image_pending) + range.first;

    for (uint32_t i = 0; i < range.n; i++) {
        int32_t number;
        memcpy(&number, pending[i].info, sizeof number);
        long r = tid ? sys_call4(__NR_rt_tgsigqueueinfo, pid, tid, number, pending[i].info)
                     : sys_call3(__NR_rt_sigqueueinfo, pid, number, pending[i].info);

        if (r < 0)
            return (int)r;
    }
    return 0;
}

/* In the calling thread. Threads share errno here, so nothing may touch it. */
static long set_thread(const struct image_thread *thread) {
    long r = sys_call1(__NR_set_tid_address, thread->clear_tid);

    if (thread->robust_list)
        r = sys_call2(__NR_set_robust_list, thread->robust_list, thread->robust_length);
    if (r >= 0)
        r = sys_prctl(PR_SET_NAME, (unsigned long)thread->name, 0, 0, 0);
    return r < 0 ? r : queue_signals(thread->pending, self->pid, thread->tid);
}

static int thread_main(void *argument) {
    uint32_t index = (uint32_t)(uintptr_t)argument;
    const struct image_thread *thread =
        restored_table(threads, struct image_thread) + self->threads.first + index;

    /* init relies on all threads, so a failure ends the process. */
    if (set_thread(thread) < 0 || restore_take_rights(thread, allowed) < 0)
        sys_exit_group(1);
    restore_leave_thread(&lasts[index]);
}

/* Timers get their old ids. Where the id cannot be chosen (before Linux 6.15), the kernel assigns
 * the next one, so timers are created and deleted until it fits. */
static int make_timers(void) {
    const struct image_timer *timers =
        restored_table(timers, struct image_timer) + self->posix_timers.first;
    bool told =
        self->posix_timers.n && sys_prctl(UAPI_PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0;
    long r = 0;

    for (uint32_t i = 0; i < self->posix_timers.n && r == 0; i++) {
        struct sigevent event = { .sigev_notify = (int)timers[i].notify,
            .sigev_signo = (int)timers[i].signal };
        int id = (int)timers[i].id;

        memcpy(&event.sigev_value, &timers[i].value, sizeof event.sigev_value);
        memcpy(
            (char *)&event + 16, &timers[i].tid, sizeof timers[i].tid); /* sigev_notify_thread_id */
        for (unsigned tries = 0;
             (r = sys_call3(__NR_timer_create, timers[i].clock, &event, &id)) == 0 &&
             id != (int)timers[i].id;
             tries++) {
            (void)sys_call1(__NR_timer_delete, id);
            if (told || tries == MAX_TIMER_IDS || id > (int)timers[i].id)
                return -EEXIST;
        }
        if (r == 0 && (timers[i].time[2] || timers[i].time[3]))
            r = sys_call4(__NR_timer_settime, timers[i].id, 0, timers[i].time, NULL);
    }
    if (told)
        (void)sys_prctl(UAPI_PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
    return (int)r;
}

static int make_threads(void) {
    const struct image_thread *threads =
        restored_table(threads, struct image_thread) + self->threads.first;
    const int flags =
        CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

    step = RESTORE_THREADS;
    if (mmap((void *)IMAGE_FRAMES, self->threads.n * IMAGE_FRAME, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        return -errno;
    for (uint32_t i = 0; i < self->threads.n; i++) {
        /* No sequence is in progress, even if the image says so; the address must be within the
         * process's memory. */
        if (threads[i].rseq && !is_own(threads[i].rseq, threads[i].rseq_length))
            return -EOPNOTSUPP;
        put_frame(&threads[i], i);
    }
    for (uint32_t i = 1; i < self->threads.n; i++) {
        char *stack = (char *)restored.stacks + (i + 1) * RESTORE_STACK;
        int r = restore_next_pid(threads[i].tid);

        if (r < 0)
            return r;
        pid_t tid = clone(thread_main, stack, flags, (void *)(uintptr_t)i);
        if (tid < 0)
            return -errno;
        if ((uint32_t)tid != threads[i].tid)
            return -EEXIST;
    }
    int r = (int)set_thread(threads);
    return r < 0 ? r : make_timers();
}

/* A limit may be below what the process has by now: memory, threads, pending signals. Except for
 * timers, creating threads is the last use of any of these. The start of a command has its limits
 * already. */
static int begin_limits(void) {
    struct rlimit now;

    step = RESTORE_LIMITS;
    if (restored.header->is_command)
        return 0;
    if (self->threads.n > 1 && getrlimit(RLIMIT_SIGPENDING, &now) == 0 &&
        self->limits[RLIMIT_SIGPENDING][0] < now.rlim_cur)
        restore_await_threads(self->threads.n - 1);
    return set_limits();
}

/* The filter applies to all threads, which do nothing yet that init answers. The listener goes to
 * init with the next message. */
static int begin_asking(void) {
    step = RESTORE_ASK;
    if (n_asked > MAX_ASKED)
        return -E2BIG;
    if (n_asked)
        listener = listeners_enter_restored(asked, n_asked);
    return n_asked && listener < 0 ? listener : 0;
}

/* The last step that needs a right was the filter. The kernel makes a process undumpable and
 * forgets its signal when one of its threads changes its rights, so the other threads come first.
 */
static int begin_rights(void) {
    const struct image_thread *first =
        restored_table(threads, struct image_thread) + self->threads.first;

    step = RESTORE_PRIVILEGE;
    if (!first->credentials)
        return 0;
    long r = restore_take_rights(first, allowed);
    if (r < 0)
        return (int)r;
    if (self->threads.n > 1)
        restore_await_threads(self->threads.n - 1);
    r = sys_prctl(PR_SET_DUMPABLE, !self->is_closed, 0, 0, 0);
    return r < 0 ? (int)r : sys_prctl(PR_SET_PDEATHSIG, self->death_signal, 0, 0, 0);
}

/* Of files that the process signals an owner for (O_ASYNC): the kernel records who names it. */
static int begin_file_signals(void) {
    const struct image_fd *fds = restored_table(fds, struct image_fd) + self->fds.first;

    step = RESTORE_DESCRIPTORS;
    for (uint32_t i = 0; i < self->fds.n; i++) {
        const struct image_file *file = restored_table(files, struct image_file) + fds[i].file;
        const struct f_owner_ex owner = { file->signalled_type, file->signalled };
        long r = 0, flags = 0;

        if (file->signaller != own_index() + 1)
            continue;
        if (owner.pid)
            r = sys_call3(__NR_fcntl, fds[i].number, F_SETOWN_EX, &owner);
        if (r == 0 && file->signal)
            r = sys_call3(__NR_fcntl, fds[i].number, F_SETSIG, file->signal);
        if (r == 0)
            r = flags = sys_call3(__NR_fcntl, fds[i].number, F_GETFL, 0);
        if (r >= 0)
            r = sys_call3(__NR_fcntl, fds[i].number, F_SETFL, flags | O_ASYNC);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

static int begin_threads(void) {
    int r = make_threads();

    if (r == 0)
        r = begin_limits();
    if (r == 0)
        r = begin_asking();
    if (r == 0)
        r = begin_rights();
    return r < 0 || restored.header->is_command ? r : begin_file_signals();
}

/* ---- descriptors ---- */

/*
 * Of init's descriptors, a process keeps the socket to init, the one to the pid keeper, the
 * Landlock ruleset and the clock page. They have numbers above the process's own. Descriptors that
 * arrive are put between, until all are there:
 *
 *   0 ... highest | arrived descriptors, in their order | kept
 */
static int first_high(void) {
    const struct image_fd *fds = restored_table(fds, struct image_fd) + self->fds.first;

    return restored.header->is_command ? HIGH
           : self->fds.n               ? (int)fds[self->fds.n - 1].number + 1
                                       : 3;
}

static int keep_descriptors(void) {
    int *kept[] = { &to_init, &restore_pids, &ruleset, &clock_page },
        first = first_high() + (int)self->fds.n, last = first - 1, fds[KEPT], r = 0;

    /* They may occupy the target numbers. */
    for (size_t i = 0; i < KEPT; i++)
        fds[i] = *kept[i] < 0 ? -1 : sys_dup_above(*kept[i], first + KEPT);
    for (size_t i = 0; i < KEPT; i++) {
        if (*kept[i] < 0)
            continue;
        if (fds[i] < 0 || sys_call3(__NR_dup3, fds[i], last + 1, O_CLOEXEC) < 0)
            return -EMFILE;
        *kept[i] = ++last;
    }
    if (first)
        r = sys_close_range(0, (unsigned)first - 1, 0);
    return r < 0 ? r : sys_close_range((unsigned)last + 1, ~0u, 0);
}

/* Entries `index` and up of its descriptor table. They arrive at the lowest free numbers. */
static int take_fds(uint32_t index, const int *received, size_t n) {
    int to = first_high() + (int)index;

    step = RESTORE_DESCRIPTORS;
    if (index > self->fds.n || n > self->fds.n - index)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++, to++) {
        if (sys_dup_above(received[i], to) != to)
            return -EMFILE;
        close(received[i]);
    }
    return 0;
}

static int place_fds(void) {
    const struct image_fd *fds = restored_table(fds, struct image_fd) + self->fds.first;
    int high = first_high();

    step = RESTORE_DESCRIPTORS;
    for (uint32_t i = 0; i < self->fds.n; i++) {
        long r = sys_call3(
            __NR_dup3, high + (int)i, fds[i].number, fds[i].is_closed_on_exec ? O_CLOEXEC : 0);
        if (r < 0)
            return (int)r;
    }
    return self->fds.n ? sys_close_range((unsigned)high, (unsigned)high + self->fds.n - 1, 0) : 0;
}

static int take_memory(uint32_t index, const int *fds, size_t n) {
    const struct image_area *area = &own_areas()[index];

    step = RESTORE_MEMORY;
    if (index >= self->areas.n || n != 1)
        return -EBADMSG;
    int r = mmap((void *)area->start, area->end - area->start, (int)area->protection,
                MAP_SHARED | MAP_FIXED_NOREPLACE, fds[0], (off_t)area->offset) == MAP_FAILED
                ? -errno
                : 0;
    close(fds[0]);
    return r;
}

static int take_segment(uint32_t index) {
    step = RESTORE_SEGMENTS;
    return index < self->areas.n && own_areas()[index].kind == IMAGE_SEGMENT
               ? (int)restore_attach_segment(own_areas(), self->areas.n, index)
               : -EBADMSG;
}

static int take_locks(void) {
    const struct image_lock *locks = restored_table(locks, struct image_lock) + self->locks.first;

    for (uint32_t i = 0; i < self->locks.n; i++) {
        struct flock range = { .l_type = locks[i].is_write ? F_WRLCK : F_RDLCK,
            .l_whence = SEEK_SET,
            .l_start = (off_t)locks[i].start,
            .l_len = (off_t)locks[i].length };
        long r = locks[i].kind == IMAGE_LOCK_FLOCK
                     ? sys_call2(__NR_flock, locks[i].fd,
                           (locks[i].is_write ? LOCK_EX : LOCK_SH) | LOCK_NB)
                     : sys_call3(__NR_fcntl, locks[i].fd,
                           locks[i].kind == IMAGE_LOCK_OFD ? OFD_SETLK : F_SETLK, &range);

        if (r < 0)
            return (int)r;
    }
    return 0;
}

/* At the end, because nothing but the process's own program may touch its memory afterwards. */
static int put_guards(void) {
    const struct image_guard *guards = restored_table(guards, struct image_guard);
    long r = 0;

    step = RESTORE_MEMORY;
    for (uint32_t i = 0; i < self->areas.n; i++)
        for (uint32_t k = own_areas()[i].guards.first;
             k < own_areas()[i].guards.first + own_areas()[i].guards.n && r == 0; k++)
            r = sys_call3(
                __NR_madvise, guards[k].address, guards[k].length, UAPI_MADV_GUARD_INSTALL);
    return (int)r;
}

static int complete_process(void) {
    int r = put_guards();

    if (r == 0)
        r = place_fds();
    if (r == 0)
        r = restore_fill_epoll(self);
    if (r == 0)
        r = take_locks();
    if (r < 0)
        return r;
    step = RESTORE_CWD;
    if (chdir(restored_text(self->directory)) < 0)
        return -errno;
    if (*restored_text(self->root) && sys_call1(__NR_chroot, restored_text(self->root)) < 0)
        return -EACCES;
    step = RESTORE_SIGNALS;
    return queue_signals(self->pending, (pid_t)self->pid, 0);
}

/* ---- orders ---- */

static void send_result(int error) {
    struct restore_word word = { error, error ? step : 0 };

    int r = fd_send(to_init, &word, sizeof word, &listener, listener >= 0);
    if (r == -ETOOMANYREFS && !n_asked)
        r = fd_send(to_init, &word, sizeof word, NULL, 0); /* without a tracker */
    if (r < 0)
        _exit(1);
    if (listener >= 0)
        (void)sys_call1(__NR_close, listener);
    listener = -1;
}

/* The limit of descriptors is set last. The kernel also uses it to limit a user's descriptors in
 * transit, and the listener was one. */
_Noreturn static void enter_program(void) {
    if (!restored.header->is_command && set_own_limit(RLIMIT_NOFILE) < 0)
        _exit(1);
    for (int which = 0; which < 3; which++)
        if (self->timers[which][2] || self->timers[which][3])
            (void)sys_call3(__NR_setitimer, which, self->timers[which], NULL);
    (void)sys_close_range((unsigned)first_high() + self->fds.n, ~0u, 0);
    restore_leave(&lasts[0], self->threads.n - 1);
}

/* signal(7) */
static bool dumps_core(int number) {
    const uint64_t those = 1ull << SIGQUIT | 1ull << SIGILL | 1ull << SIGTRAP | 1ull << SIGABRT |
                           1ull << SIGBUS | 1ull << SIGFPE | 1ull << SIGSEGV | 1ull << SIGXCPU |
                           1ull << SIGXFSZ | 1ull << SIGSYS;

    return number < 64 && those >> number & 1;
}

/* Ends as the original process ended, or without a status. No core file is written. But an ordinary
 * user cannot read the exit status of a process that was not dumpable at its end, and so could not
 * dump the zombie again. So the process becomes dumpable. */
_Noreturn static void end_process(void) {
    int number = self->kind == IMAGE_ZOMBIE ? (int)(self->status & 127) : 0;
    sigset_t none;

    if (number) {
        if (dumps_core(number))
            (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        (void)sys_call4(
            __NR_rt_sigaction, number, &by_default.handler, NULL, sizeof by_default.mask);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        (void)kill(sys_getpid(), number);
    }
    _exit((int)(self->status >> 8 & 255));
}

/* The parent received SIGCHLD before the dump, so it must not receive it again. */
static int await_end(uint32_t index, int options) {
    const uint64_t children = 1ull << (SIGCHLD - 1);
    const struct timespec none = { 0 };
    unsigned char info[128];
    long r;

    do
        r = sys_call5(__NR_waitid, P_PID, restored_process(index)->pid, info,
            WEXITED | __WALL | options, NULL);
    while (r == -EINTR);
    (void)sys_call4(__NR_rt_sigtimedwait, &children, NULL, &none, sizeof children);
    return (int)r;
}

static uint32_t goodbye_of(uint32_t index) {
    const uint32_t goodbye = restored_process(index)->goodbye;

    return goodbye ? (goodbye - 1) & 0xff /* CSIGNAL */ : SIGCHLD;
}

static int make_child(uint32_t index) {
    step = RESTORE_FORK;
    if (!has_forked)
        restore_keep_from_forks(own_index());
    has_forked = true;
    restore_take_to_forks(index);
    long pid = sys_call5(__NR_clone, goodbye_of(index), NULL, NULL, NULL, NULL);
    if (pid == 0) {
        has_forked = false;
        restore_become(box, index);
    }
    restore_give_up(index);
    return pid < 0 ? (int)pid : 0;
}

/* Applies the incremental image. The program is the same, so no rights are needed. */
static int apply_incremental(const int *fds, size_t n_fds) {
    const struct image_process *before = self;
    const struct image_action *actions =
        restored_table(actions, struct image_action) + before->actions.first;
    const uint32_t index = own_index();
    int r;

    step = RESTORE_MEMORY;
    if (n_fds != 1 || (r = restore_take_incremental(fds[0], false)) < 0)
        return n_fds != 1 ? -EBADMSG : r;
    self = restored_process(index);
    if ((r = restore_incremental_memory(index)) < 0)
        return r;
    step = RESTORE_FILES;
    if ((r = map_files()) < 0)
        return r;
    step = RESTORE_PROGRAM;
    if ((r = set_layout(-1)) < 0)
        return r;
    step = RESTORE_SIGNALS;
    for (uint32_t i = 0; i < before->actions.n; i++)
        (void)sys_call4(__NR_rt_sigaction, actions[i].number, &by_default.handler, NULL,
            sizeof by_default.mask);
    if ((r = set_actions()) < 0)
        return r;
    umask(self->umask);
    if (prctl(PR_SET_PDEATHSIG, self->death_signal, 0, 0, 0) < 0)
        return -errno;
    step = RESTORE_DESCRIPTORS;
    return keep_descriptors();
}

static int keep_and_prepare(void) {
    step = RESTORE_DESCRIPTORS;
    int r = keep_descriptors();

    return r < 0 ? r : prepare_process();
}

static int obey_order(const struct restore_order *order, const int *fds, size_t n_fds) {
    int r = -EBADMSG;

    if ((order->kind == RESTORE_MAKE_CHILD || order->kind == RESTORE_REAP ||
            order->kind == RESTORE_AWAIT_END) &&
        order->index >= restored.header->processes.n)
        return -EBADMSG;
    switch ((enum restore_order_kind)order->kind) {
    case RESTORE_MAKE_CHILD:
        return make_child(order->index);
    case RESTORE_JOIN_GROUP:
        step = RESTORE_GROUP;
        return (int)sys_call2(__NR_setpgid, 0, self->group);
    case RESTORE_SET_FOREGROUND:
        step = RESTORE_TERMINAL;
        return restore_set_foreground(self);
    case RESTORE_END:
        send_result(0);
        end_process();
    case RESTORE_REAP:
        return await_end(order->index, 0);
    case RESTORE_AWAIT_END:
        return await_end(order->index, WNOWAIT);
    case RESTORE_PREPARE:
        return keep_and_prepare();
    case RESTORE_TAKE_FDS:
        r = take_fds(order->index, fds, n_fds);
        break;
    case RESTORE_TAKE_MEMORY:
        r = take_memory(order->index, fds, n_fds);
        break;
    case RESTORE_TAKE_SEGMENT:
        r = take_segment(order->index);
        break;
    case RESTORE_COMPLETE:
        r = 0;
        break;
    case RESTORE_MAKE_THREADS:
        return begin_threads();
    case RESTORE_INCREMENTAL:
        return apply_incremental(fds, n_fds);
    case RESTORE_SAY:
        return 0;
    case RESTORE_GO:
        enter_program();
    }
    if (r == 0 && order->is_last)
        r = complete_process();
    return r < 0 || !order->is_last || self->threads.n != 1 ? r : begin_threads();
}

/* A session leader creates its session before it has children. */
static int begin_process(uint32_t index) {
    const uint64_t all = ~0ull;

    step = RESTORE_FORK;
    self = restored_process(index);
    to_init = restore_ends[index].its;
    /* This also blocks signals that a C library reserves and leaves out of its own masks: a guest's
     * handler would run in the middle of the restore. */
    int r = (int)sys_call4(__NR_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
    if (r < 0)
        return r;
    if ((uint32_t)sys_getpid() != self->pid)
        return -EEXIST;
    if (self->session == self->pid && setsid() < 0)
        return -errno;
    step = RESTORE_TERMINAL;
    if ((r = restore_enter_terminal(self)) < 0)
        return r;
    for (uint32_t command = 1; self->barriers >= command && command; command <<= 1)
        if (self->barriers & command && (r = (int)sys_call3(__NR_membarrier, command, 0, 0)) < 0)
            return r;
    return self->is_subreaper ? sys_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) : 0;
}

/* ---- a command to be ---- */

static int take_command(void) {
    static char cwd[4096];
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(to_init, cwd, sizeof cwd, fds, &n_fds);

    if (n <= 0 || n_fds != STREAMS || cwd[n - 1])
        _exit(1); /* init is gone, or has failed */
    step = RESTORE_CWD;
    if (chdir(cwd) < 0)
        return -errno;
    step = RESTORE_STREAMS;
    /* They arrived as the lowest free numbers, so none is above the socket. */
    for (int i = 0; i < STREAMS; i++)
        if (fcntl(fds[i], F_DUPFD_CLOEXEC, COMMAND_SOCKET + 1 + i) != COMMAND_SOCKET + 1 + i)
            return -EMFILE;
    for (int i = 0; i < STREAMS; i++)
        if (dup2(COMMAND_SOCKET + 1 + i, i) < 0)
            return -errno;
    return 0;
}

static int move_socket(void) {
    if (dup2(to_init, COMMAND_SOCKET) < 0)
        return -errno;
    to_init = COMMAND_SOCKET;
    return sys_close_range(COMMAND_SOCKET + 1, ~0u, 0);
}

static bool is_clock(const struct image_area *area) {
    return area->kind == IMAGE_MEMORY &&
           restored_table(files, struct image_file)[area->path].kind == IMAGE_FILE_CLOCK;
}

/* Maps the sandbox's clock page where the process had its own, the only memory that the process
 * shares with others. */
static int take_clock(void) {
    int r = 0;

    for (uint32_t i = 0; i < self->areas.n && r == 0; i++)
        if (own_areas()[i].kind == IMAGE_MEMORY)
            r = is_clock(&own_areas()[i]) && clock_page >= 0
                    ? take_memory(i, &(int){ fcntl(clock_page, F_DUPFD_CLOEXEC, 0) }, 1)
                    : -EBADMSG;
    return r;
}

_Noreturn static void become_command(void) {
    clock_page = n_asked ? vtime_page() : -1;
    int r = keep_descriptors();

    if (r == 0)
        r = prepare_process();
    if (r == 0)
        r = take_clock();
    /* Its calls from here on need no answer from init. */
    if (r == 0)
        r = begin_threads();
    if (n_asked)
        send_result(r);
    if (r == 0)
        r = move_socket();
    if (r == 0)
        r = take_command();
    send_result(r);
    if (r < 0)
        _exit(1);
    (void)sys_close_range(STREAMS, ~0u, 0);
    restore_leave(&lasts[0], 0);
}

static void serve_orders(uint32_t index) {
    int r = begin_process(index);

    if (restored.header->is_command && r == 0)
        become_command();
    if (restored_is_by_itself() && r == 0)
        r = keep_and_prepare();
    if (!restored_is_by_itself() || r < 0)
        send_result(r);
    while (r == 0) {
        struct restore_order order;
        int fds[FD_MESSAGE_MAX_FDS];
        size_t n_fds = 0;
        ssize_t n = fd_receive(to_init, &order, sizeof order, fds, &n_fds);

        if (n != sizeof order)
            _exit(1);
        r = obey_order(&order, fds, n_fds);
        if (r < 0 || order.kind != RESTORE_INCREMENTAL || !restored_is_by_itself())
            send_result(r);
        if (order.goes && r == 0)
            enter_program();
    }
    _exit(1);
}

static _Alignas(GUEST_STACK_ALIGN) char stack[32768];

/* On a stack in static memory, which stays when everything else of init's is unmapped. */
_Noreturn void restore_become(const struct box *of, uint32_t index) {
    box = of;
    ruleset = of->ruleset;
    for (n_limits = 0; n_limits < of->plan->rlimits.n && n_limits < 2 * RLIM_NLIMITS; n_limits++)
        limits[n_limits] = plan_items(of->plan, rlimits, struct plan_rlimit)[n_limits];
    allowed = of->plan->capabilities;
    n_asked = of->plan->notify.n;
    for (size_t i = 0; i < n_asked && i < MAX_ASKED; i++)
        asked[i] = plan_items(of->plan, notify, struct sock_filter)[i];
    clock_page = -1;
    if (determinism_wanted(of->plan))
        (void)sys_call1(__NR_personality, DETERMINISM_NO_RANDOM_ADDRESSES);
    /* clang-format off */
    __asm__ volatile("mov %[stack], %%rsp\n"
                     "xor %%ebp, %%ebp\n"
                     "call *%[serve_orders]\n"
                     :
                     : [stack] "r"(stack + sizeof stack), [serve_orders] "r"(serve_orders), "D"((uint64_t)index)
                     : "memory");
    /* clang-format on */
    __builtin_unreachable();
}

#endif
