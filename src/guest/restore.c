/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an image to a process. restore.h has the model.
 *
 * Loading: the memory of the process is made at its own addresses, in the launcher, which lies below them all and so is never in the way; where something else of the launcher's is (its stack, the plan), the load fails. The frame that sigreturn takes, with all
 * registers, is put on the process' own stack, below what it may use, as a signal would. The launcher's own text is copied into memory without a file, for the kernel lets a process change what /proc/PID/exe names only when nothing of the old program is mapped.
 *
 * In a sandbox: a child of init has all that memory by fork. It maps the files again, from the sandbox' own mounts, and only if they are those that the process had; moves the kernel's vDSO to where the process had it; becomes,
 * for the kernel, the other program; gives up its rights as init does; and drops everything else that it has, but for this program. So it waits for the command. To go on is then a few calls: a piece of code on a page
 * of its own removes this program and returns from a signal that never was.
 */
#include "guest/restore.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#define LAST_PAGE (IMAGE_LOWEST - IMAGE_PAGE)   /* of what is below every process: the code that removes the rest */
#define STREAMS 4
#define SOCKET 10               /* out of the way of those */
#define RULESET 11
#define HIGH 32                 /* not so high that the table of descriptors grows, which /proc would tell */
#define RED_ZONE 128u
#define MAX_PATH 4096u

/* The kernel's struct ucontext and what is in it, as rt_sigreturn reads them (arch/x86/include/uapi/asm/sigcontext.h). */
struct frame {
    uint64_t flags, link, stack[3];
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, cr2, xstate, unused[8];
    uint64_t mask;
};

#define FRAME_FLAGS 7u          /* UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS */
#define XSTATE_SOFTWARE 464u    /* where the kernel keeps struct _fpx_sw_bytes */
#define XSTATE_MAGIC1 0x46505853u
#define XSTATE_MAGIC2 0x46505845u

enum step { STEP_PROGRAM = 1, STEP_PRIVILEGE, STEP_RESTRICT, STEP_LIMITS, STEP_FILES, STEP_VDSO, STEP_SIGNALS, STEP_THREAD, STEP_UNMAP, STEP_CWD, STEP_STREAMS };

/* From init to the process, and back: a word of failure, or of 0, after which nothing can fail any more. */
struct word {
    int32_t error;              /* -errno */
    uint32_t step;
};

extern const char __ehdr_start[], _end[];

static const struct image *image;       /* in the launcher's memory, and so in that of those it clones */
static const struct image_touch *touches;
static size_t n_touches;
static uint64_t frame_at;
static int to_process = -1, to_init = -1;
static pid_t process_pid;
static _Alignas(16) char stack[65536];

bool restore_is_loaded(void) {
    return image;
}

/* ---- loading ------------------------------------------------------------------------------------------------------------ */

static uint64_t pages_of(uint64_t bytes) {
    return (bytes + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
}

static bool is_within(uint64_t at, uint64_t length, uint64_t whole) {
    return at <= whole && length <= whole - at;
}

/* Everything that the image says of itself: nothing after this reads past its end or maps where it must not. */
static int check(const struct image *it, uint64_t length) {
    const struct image_process *p = &it->process;

    if (it->magic != IMAGE_MAGIC || it->length != length || it->n_areas > IMAGE_MAX_AREAS || it->n_runs > IMAGE_MAX_RUNS || p->xstate_length > IMAGE_MAX_XSTATE || p->xstate_length < XSTATE_SOFTWARE + 112)
        return -EBADMSG;
    if (!is_within(it->areas, it->n_areas * sizeof(struct image_area), length) || !is_within(it->runs, it->n_runs * sizeof(struct image_run), length) || !is_within(p->auxv, p->auxv_length, length) ||
        !is_within(p->xstate, p->xstate_length, length) || it->texts >= length || it->areas % 8 || it->runs % 8)
        return -EBADMSG;
    return 0;
}

static const char *text_at(const struct image *it, uint64_t at) {
    const char *text = (const char *)(const void *)it - (it->length - sizeof *it) + at;

    return at >= it->texts && at < it->length && memchr(text, '\0', it->length - at) ? text : NULL;
}

/* The header is at the end, the offsets are from the beginning. */
static const void *part(uint64_t at) {
    return (const char *)(const void *)image - (image->length - sizeof *image) + at;
}

static const struct image_area *areas(void) {
    return part(image->areas);
}

static const struct image_area *area_of(uint64_t address, uint64_t length) {
    for (uint64_t i = 0; i < image->n_areas; i++)
        if (address >= areas()[i].start && length <= areas()[i].end - areas()[i].start && address <= areas()[i].end - length)
            return &areas()[i];
    return NULL;
}

static bool is_memory(const struct image_area *area) {
    return area && (area->kind == IMAGE_ANONYMOUS || area->kind == IMAGE_STACK);
}

/* Memory that is its own; for all else, the place is kept. */
static int make_areas(void) {
    uint64_t above = IMAGE_LOWEST, total = 0;

    for (uint64_t i = 0; i < image->n_areas; i++) {
        const struct image_area *area = &areas()[i];
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | (area->kind == IMAGE_STACK ? MAP_GROWSDOWN : 0);

        if (area->start < above || area->end <= area->start || area->end > IMAGE_HIGHEST || (area->start | area->end) % IMAGE_PAGE || area->kind < IMAGE_ANONYMOUS || area->kind > IMAGE_VDSO)
            return -EBADMSG;
        above = area->end;
        if (is_memory(area) && (total += area->end - area->start) > IMAGE_MAX_BYTES)
            return -EFBIG;
        if (mmap((void *)area->start, area->end - area->start, is_memory(area) ? PROT_READ | PROT_WRITE : PROT_NONE, flags, -1, 0) == MAP_FAILED)
            return -errno;
    }
    return 0;
}

static int fill_areas(void) {
    const struct image_run *runs = part(image->runs);

    for (uint64_t i = 0; i < image->n_runs; i++) {
        if (!is_memory(area_of(runs[i].address, runs[i].length)) || !is_within(runs[i].at, runs[i].length, image->length))
            return -EBADMSG;
        memcpy((void *)runs[i].address, part(runs[i].at), runs[i].length);
    }
    return 0;
}

/* What sigreturn takes, where a signal would have put it. */
static int put_frame(void) {
    const struct image_process *p = &image->process;
    const struct image_registers *r = &p->registers;
    uint64_t xstate = (r->rsp - RED_ZONE - p->xstate_length - 8) & ~(uint64_t)63;
    uint32_t magic1 = XSTATE_MAGIC1, magic2 = XSTATE_MAGIC2, size = (uint32_t)p->xstate_length, extended = size + (uint32_t)sizeof magic2;
    struct frame frame = {
        .flags = FRAME_FLAGS, .stack = { p->alternate_stack[0], p->alternate_stack[1], p->alternate_stack[2] },
        .r8 = r->r8, .r9 = r->r9, .r10 = r->r10, .r11 = r->r11, .r12 = r->r12, .r13 = r->r13, .r14 = r->r14, .r15 = r->r15, .rdi = r->rdi, .rsi = r->rsi, .rbp = r->rbp, .rbx = r->rbx, .rdx = r->rdx,
        .rax = r->rax, .rcx = r->rcx, .rsp = r->rsp, .rip = r->rip, .eflags = r->eflags, .cs = (uint16_t)r->cs, .ss = (uint16_t)r->ss, .xstate = xstate, .mask = p->signal_mask,
    };

    if (p->rseq) {
        const struct image_area *rseq = area_of(p->rseq, p->rseq_length);

        if (!is_memory(rseq) || !(rseq->protection & PROT_WRITE) || p->rseq_length < 24 || p->rseq % 8)
            return -EOPNOTSUPP;
        memset((char *)p->rseq + 8, 0, 8);      /* rseq_cs: no sequence is under way, whatever was saved */
    }
    frame_at = (xstate - sizeof frame) & ~(uint64_t)15;
    const struct image_area *area = area_of(frame_at, r->rsp - frame_at);
    if (!is_memory(area) || (area->protection & (PROT_READ | PROT_WRITE)) != (PROT_READ | PROT_WRITE))
        return -EOPNOTSUPP;
    char *to = (char *)xstate;
    memcpy(to, part(p->xstate), size);
    memset(to + XSTATE_SOFTWARE, 0, 48);
    memcpy(to + XSTATE_SOFTWARE, &magic1, sizeof magic1);
    memcpy(to + XSTATE_SOFTWARE + 4, &extended, sizeof extended);
    memcpy(to + XSTATE_SOFTWARE + 8, &p->xstate_features, sizeof p->xstate_features);
    memcpy(to + XSTATE_SOFTWARE + 16, &size, sizeof size);
    memcpy(to + size, &magic2, sizeof magic2);
    memcpy((void *)frame_at, &frame, sizeof frame);
    return 0;
}

static int protect_areas(void) {
    for (uint64_t i = 0; i < image->n_areas; i++)
        if (is_memory(&areas()[i]) && areas()[i].protection != (PROT_READ | PROT_WRITE) &&
            sys_call3(__NR_mprotect, areas()[i].start, areas()[i].end - areas()[i].start, areas()[i].protection & (PROT_READ | PROT_WRITE | PROT_EXEC)) < 0)
            return -ENOMEM;
    return 0;
}

/* A copy of what is mapped of our program's file takes the file's place, segment by segment, while it runs. Nothing is written to these variables meanwhile. */
static int leave_file(void) {
    const Elf64_Ehdr *header = (const void *)__ehdr_start;
    const Elf64_Phdr *segments = (const void *)(__ehdr_start + header->e_phoff);

    for (unsigned i = 0; i < header->e_phnum; i++) {
        uint64_t start = segments[i].p_vaddr & ~(uint64_t)(IMAGE_PAGE - 1), length = pages_of(segments[i].p_vaddr + segments[i].p_filesz) - start;
        int protection = (segments[i].p_flags & PF_R ? PROT_READ : 0) | (segments[i].p_flags & PF_W ? PROT_WRITE : 0) | (segments[i].p_flags & PF_X ? PROT_EXEC : 0);

        if (segments[i].p_type != PT_LOAD || !segments[i].p_filesz)
            continue;
        char *copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED)
            return -errno;
        memcpy(copy, (const void *)start, length);
        if (sys_call3(__NR_mprotect, copy, length, protection) < 0 || sys_call5(__NR_mremap, copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, start) < 0)
            return -EPERM;
    }
    return 0;
}

/* What nothing of ours may come after: this program is removed; only then is the memory known to the kernel where restartable sequences are described, which could name an address to go on at. The numbers follow on the same page. */
__asm__(".pushsection .rodata\n"
        "restore_last:\n"
        "   mov restore_start(%rip), %rdi\n"
        "   mov restore_length(%rip), %rsi\n"
        "   mov $11, %eax\n"                    /* munmap */
        "   syscall\n"
        "   mov $0x1002, %edi\n"                /* ARCH_SET_FS */
        "   mov restore_fs_base(%rip), %rsi\n"
        "   mov $158, %eax\n"                   /* arch_prctl */
        "   syscall\n"
        "   mov restore_rseq(%rip), %rdi\n"
        "   test %rdi, %rdi\n"
        "   jz 1f\n"
        "   mov restore_rseq_length(%rip), %rsi\n"
        "   xor %edx, %edx\n"
        "   mov restore_rseq_signature(%rip), %r10\n"
        "   mov $334, %eax\n"                   /* rseq */
        "   syscall\n"
        "   test %rax, %rax\n"
        "   jnz 2f\n"
        "1: mov restore_frame(%rip), %rsp\n"
        "   mov $15, %eax\n"                    /* rt_sigreturn */
        "   syscall\n"
        "2: hlt\n"
        ".balign 8\n"
        "restore_start: .quad 0\n"
        "restore_length: .quad 0\n"
        "restore_fs_base: .quad 0\n"
        "restore_rseq: .quad 0\n"
        "restore_rseq_length: .quad 0\n"
        "restore_rseq_signature: .quad 0\n"
        "restore_frame: .quad 0\n"
        "restore_last_end:\n"
        ".popsection\n");

extern const char restore_last[], restore_last_end[], restore_start[];

static int put_last(void) {
    char *page = mmap((void *)LAST_PAGE, IMAGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    if (page == MAP_FAILED)
        return -errno;
    if ((uintptr_t)_end > LAST_PAGE)
        return -EOPNOTSUPP;
    const struct image_process *p = &image->process;
    const uint64_t numbers[] = { (uintptr_t)__ehdr_start, pages_of((uintptr_t)_end) - (uintptr_t)__ehdr_start, p->registers.fs_base, p->rseq, p->rseq_length, p->rseq_signature, frame_at };
    memcpy(page, restore_last, (size_t)(restore_last_end - restore_last));
    memcpy(page + (restore_start - restore_last), numbers, sizeof numbers);
    return (int)sys_call3(__NR_mprotect, page, IMAGE_PAGE, PROT_READ | PROT_EXEC);
}

int restore_load(int fd) {
    struct stat st;

    if (image)
        return -EBUSY;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof *image || st.st_size > (off_t)(2 * IMAGE_MAX_BYTES))
        return -EBADMSG;
    const char *whole = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (whole == MAP_FAILED)
        return -errno;
    const struct image *it = (const void *)(whole + st.st_size - sizeof *it);
    int r = check(it, (uint64_t)st.st_size);
    if (r < 0)
        return r;
    if (!text_at(it, it->process.executable))
        return -EBADMSG;
    image = it;
    for (uint64_t i = 0; i < image->n_areas; i++)
        if (areas()[i].kind == IMAGE_FILE && !text_at(image, areas()[i].path))
            return -EBADMSG;
    r = make_areas();
    if (r == 0)
        r = fill_areas();
    if (r == 0)
        r = put_frame();
    if (r == 0)
        r = protect_areas();
    if (r == 0)
        r = put_last();
    if (r == 0)
        r = leave_file();
    return r;
}

void restore_expect(int fd) {
    struct stat st;

    if (!image || fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof *touches || st.st_size > (off_t)(IMAGE_MAX_TOUCHES * sizeof *touches))
        return;
    const void *found = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (found == MAP_FAILED)
        return;
    touches = found;
    n_touches = (size_t)st.st_size / sizeof *touches;
}

/* ---- in a sandbox ------------------------------------------------------------------------------------------------------- */

static int open_same(const struct image_area *area) {
    struct stat st;
    int fd = open(part(area->path), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == area->inode && (uint64_t)st.st_size == area->size && st.st_mtim.tv_sec == area->mtime_s && st.st_mtim.tv_nsec == area->mtime_ns)
        return fd;
    close(fd);
    return -ESTALE;
}

static int map_files(void) {
    const struct image_area *last = NULL;
    int fd = -1, r = 0;

    for (uint64_t i = 0; i < image->n_areas && r == 0; i++) {
        const struct image_area *area = &areas()[i];

        if (area->kind != IMAGE_FILE)
            continue;
        if (!last || last->path != area->path) {
            if (fd >= 0)
                close(fd);
            fd = open_same(area);
            last = area;
        }
        if (fd < 0)
            r = fd;
        else if (mmap((void *)area->start, area->end - area->start, (int)area->protection, (area->is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, fd, (off_t)area->offset) == MAP_FAILED)
            r = -errno;
    }
    if (fd >= 0)
        close(fd);
    return r;
}

/* Ours, of the same kernel, has the same parts in the same order: [vvar], perhaps [vvar_vclock], [vdso]. */
static int move_vdso(void) {
    uint64_t first = 0, ours = 0;

    for (uint64_t i = 0; i < image->n_areas; i++)
        if (areas()[i].kind == IMAGE_VDSO)
            ours = getauxval(AT_SYSINFO_EHDR) - areas()[i].start;
    for (uint64_t i = 0; ours && i < image->n_areas; i++) {
        const struct image_area *area = &areas()[i];
        uint64_t length = area->end - area->start;

        if (area->kind != IMAGE_VVAR && area->kind != IMAGE_VDSO)
            continue;
        if (first && area->start != first)
            return -EOPNOTSUPP;
        first = area->end;
        long r = sys_call5(__NR_mremap, area->start + ours, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, area->start);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

static int become_program(void) {
    const struct image_layout *layout = &image->process.layout;
    struct prctl_mm_map map = {
        .start_code = layout->start_code, .end_code = layout->end_code, .start_data = layout->start_data, .end_data = layout->end_data, .start_brk = layout->start_brk, .brk = layout->brk,
        .start_stack = layout->start_stack, .arg_start = layout->arg_start, .arg_end = layout->arg_end, .env_start = layout->env_start, .env_end = layout->env_end,
        .auxv = (void *)(uintptr_t)part(image->process.auxv), .auxv_size = (uint32_t)image->process.auxv_length,
    };
    int fd = open(part(image->process.executable), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    map.exe_fd = (uint32_t)fd;
    int r = sys_prctl(PR_SET_MM, PR_SET_MM_MAP, (unsigned long)&map, sizeof map, 0);
    close(fd);
    return r < 0 ? r : sys_prctl(PR_SET_NAME, (unsigned long)image->process.name, 0, 0, 0);
}

/* Ahead of need, and many at a time: a fault for each would take longer, and when it counts. */
static void touch(void) {
    for (size_t i = 0; i < n_touches; i++)
        if (area_of(touches[i].address, touches[i].length))
            (void)sys_call3(__NR_madvise, touches[i].address, touches[i].length, touches[i].is_written ? 23 /* MADV_POPULATE_WRITE */ : 22 /* MADV_POPULATE_READ */);
}

/* As they are at the start of a process, all but a few are; and nobody may change these two. */
static int set_actions(void) {
    for (int number = 1; number <= IMAGE_SIGNALS; number++) {
        const struct image_action *action = &image->process.actions[number - 1];

        if (number == SIGKILL || number == SIGSTOP || (!action->handler && !action->flags))
            continue;
        int r = (int)sys_call4(__NR_rt_sigaction, number, action, NULL, sizeof action->mask);
        if (r < 0)
            return r;
    }
    return 0;
}

static int set_forgetting(void) {
    for (uint64_t i = 0; i < image->n_areas; i++) {
        const struct image_area *area = &areas()[i];
        long r = 0;

        if (is_memory(area) && area->forgets == IMAGE_WIPED)
            r = sys_call3(__NR_madvise, area->start, area->end - area->start, 18 /* MADV_WIPEONFORK */);
        else if (is_memory(area) && area->forgets && mmap((void *)area->start, area->end - area->start, (int)area->protection, 0x08 /* MAP_DROPPABLE */ | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            r = -errno;
        if (r < 0)
            return (int)r;
    }
    return 0;
}

static int set_thread(void) {
    const struct image_process *p = &image->process;
    long r = 0;

    umask(p->umask);
    if (p->robust_list)
        r = sys_call2(__NR_set_robust_list, p->robust_list, p->robust_length);
    if (r == 0 && p->registers.gs_base)
        r = sys_call2(__NR_arch_prctl, 0x1001 /* ARCH_SET_GS */, p->registers.gs_base);
    return (int)r;
}

/* All that is between the areas: init's stack, the plan, this image. */
static int unmap_others(void) {
    uint64_t at = IMAGE_LOWEST, n = image->n_areas;
    const struct image_area *all = areas();
    static struct { uint64_t start, end; } gaps[IMAGE_MAX_AREAS + 1];
    size_t n_gaps = 0;

    for (uint64_t i = 0; i <= n; i++) {
        uint64_t start = i < n ? all[i].start : IMAGE_HIGHEST;

        if (start > at) {
            gaps[n_gaps].start = at;
            gaps[n_gaps++].end = start;
        }
        if (i < n)
            at = all[i].end;
    }
    for (size_t i = 0; i < n_gaps; i++) {
        int r = (int)sys_call2(__NR_munmap, gaps[i].start, gaps[i].end - gaps[i].start);
        if (r < 0)
            return r;
    }
    return 0;
}

/* In the process that is to be. What it needs past `unmap_others` is in static memory and on its stack, which lie below. */
static int prepare(const struct box *box, struct word *word) {
    int r;

    /* The one step that needs a right, and then none is left: what follows opens and maps what a guest has named. */
    word->step = STEP_PROGRAM;
    if ((r = become_program()) < 0)
        return r;
    word->step = STEP_PRIVILEGE;
    if (setsid() < 0)
        return -errno;
    if ((r = box_drop_privileges()) < 0)
        return r;
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0)
        return -errno;
    word->step = STEP_RESTRICT;
    if (box->ruleset >= 0 && (r = sys_landlock_restrict_self(RULESET, 0)) < 0)
        return r;
    (void)sys_call1(__NR_close, RULESET);
    word->step = STEP_LIMITS;
    if ((r = exec_set_limits(box->plan, 0)) < 0)
        return r;
    word->step = STEP_FILES;
    if ((r = map_files()) < 0)
        return r;
    if ((r = set_forgetting()) < 0)
        return r;
    word->step = STEP_VDSO;
    if ((r = move_vdso()) < 0)
        return r;
    word->step = STEP_SIGNALS;
    if ((r = set_actions()) < 0)
        return r;
    word->step = STEP_THREAD;
    if ((r = set_thread()) < 0)
        return r;
    touch();
    word->step = STEP_UNMAP;
    return unmap_others();
}

static int take_command(int socket, struct word *word) {
    static char cwd[MAX_PATH];
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(socket, cwd, sizeof cwd, fds, &n_fds);

    if (n <= 0 || n_fds != STREAMS || cwd[n - 1])
        _exit(1);               /* init is gone, or has no use for us */
    word->step = STEP_CWD;
    if (chdir(cwd) < 0)
        return -errno;
    word->step = STEP_STREAMS;
    /* They came as the lowest that were free: none is where it belongs, or past SOCKET. */
    for (int i = 0; i < STREAMS; i++)
        if (fcntl(fds[i], F_DUPFD_CLOEXEC, SOCKET + 1 + i) != SOCKET + 1 + i)
            return -EMFILE;
    for (int i = 0; i < STREAMS; i++)
        if (dup2(SOCKET + 1 + i, i) < 0)
            return -errno;
    return 0;
}

/* Of all that init has: the socket to it, the rules. */
static int keep_descriptors(const struct box *box) {
    int socket = fcntl(to_init, F_DUPFD_CLOEXEC, HIGH), ruleset = box->ruleset < 0 ? -1 : fcntl(box->ruleset, F_DUPFD_CLOEXEC, HIGH);

    if (socket < 0 || (ruleset < 0 && box->ruleset >= 0) || dup2(socket, SOCKET) < 0 || (ruleset >= 0 && dup2(ruleset, RULESET) < 0))
        return -errno;
    int r = sys_close_range(0, SOCKET - 1, 0);
    return r < 0 ? r : sys_close_range(ruleset >= 0 ? RULESET + 1 : RULESET, ~0u, 0);
}

static int process_main(void *argument) {
    const struct box *box = argument;
    struct word word = { 0 };

    if (keep_descriptors(box) < 0)
        _exit(1);
    word.error = prepare(box, &word);
    if (!word.error)
        word.error = take_command(SOCKET, &word);
    if (fd_send(SOCKET, &word, sizeof word, NULL, 0) < 0 || word.error)
        _exit(1);
    (void)sys_close_range(STREAMS, ~0u, 0);
    ((void (*)(void))LAST_PAGE)();
    __builtin_unreachable();
}

/* init has no use for the memory, and would be counted for it. */
static void drop_areas(void) {
    uint64_t n = image->n_areas;

    for (uint64_t i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && areas()[k].start == areas()[k - 1].end; k++)
            ;
        (void)munmap((void *)areas()[i].start, areas()[k - 1].end - areas()[i].start);
    }
}

void restore_fork(const struct box *box) {
    int pair[2];

    if (!image || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    to_init = pair[1];
    process_pid = clone(process_main, stack + sizeof stack, SIGCHLD, (void *)(uintptr_t)box);
    close(pair[1]);
    if (process_pid > 0 && (uint32_t)process_pid == image->process.pid)
        to_process = pair[0];
    else
        close(pair[0]);         /* another pid is another process: it ends, and is reaped with the rest */
    drop_areas();
}

void restore_cancel(void) {
    if (to_process < 0)
        return;
    close(to_process);
    to_process = -1;
    (void)kill(process_pid, SIGKILL);
    (void)waitpid(process_pid, NULL, __WALL);
}

pid_t restore_resume(const struct exec_request *request, struct restore_failure *ret_failure) {
    struct word word;
    int fds[1];
    size_t n_fds = 0;

    if (to_process < 0 || request->n_fds != STREAMS)
        return -ENOENT;
    /* If it has ended, it has left word of why. */
    (void)fd_send(to_process, request->cwd, strlen(request->cwd) + 1, request->fds, STREAMS);
    ssize_t n = fd_receive(to_process, &word, sizeof word, fds, &n_fds);
    if (n == sizeof word && !word.error) {
        close(to_process);
        to_process = -1;
        return process_pid;
    }
    /* It never was: the command is started in its place, and finds nothing of it. */
    restore_cancel();
    if (n != sizeof word)
        return -ENOENT;
    *ret_failure = (struct restore_failure){ .error = -word.error, .step = word.step };
    return -ENOENT;
}

#else

bool restore_is_loaded(void) {
    return false;
}

void restore_expect(int fd) {
    (void)fd;
}

int restore_load(int fd) {
    (void)fd;
    return -EOPNOTSUPP;
}

void restore_fork(const struct box *box) {
    (void)box;
}

pid_t restore_resume(const struct exec_request *request, struct restore_failure *ret_failure) {
    (void)request, (void)ret_failure;
    return -ENOENT;
}

void restore_cancel(void) {
}

#endif
