/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks without a system call: patching the vDSO of a guest's process.
 *
 * The kernel maps the same two pages of code into every process, init included. So init reads its
 * own, which no guest can have modified, patches a copy once, and writes it into each new program
 * before its C library looks for symbols in it. A process whose pages are not byte for byte the
 * kernel's is left alone.
 *
 * The patch is position-independent code in the unused tail of the image. The dynamic symbol
 * clock_gettime points to it; it calls the kernel's code and adds the offset to clocks of the time
 * of day. It also implements gettimeofday and time. getrandom returns that the function is missing,
 * because its state would be in the process's memory. The old entries jump to the new code.
 *
 * A virtual clock is read from a page that all processes of the sandbox share (vtime.c), by one
 * atomic addition. A process maps it when it first asks for the time. By a call with a special
 * clock id it receives the page's descriptor from init; by another it reports the address, which
 * init writes into the image. If this fails, each query is a system call.
 *
 * stat is treated similarly. Programs call it hundreds of times as they start, nearly always for
 * files that no sandbox has written, with old stamps that need no conversion. The call is in the C
 * library's text. When a process has made several of these calls from one place, and the function's
 * code there is glibc's, init makes it call the vDSO. The code there makes the real call
 * unintercepted, and repeats it through init if a stamp is not older than the sandbox (at the real
 * rate, it adds the fixed offset itself for files of the private tmpfs). The bytes cannot be
 * changed atomically, so this is done only in a process with a single thread, which is in that
 * call. It needs the addresses to be near each other, which addresses without randomisation are.
 *
 * Under virtual time, calls about the sandbox's own files go to init, and some are frequent: Python
 * looks at its start directory with each import. Init stores the last file's times beside the code,
 * with the kernel's stamps. As long as those are unchanged, the same times are shown.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "guest/code_write.h"
#include "guest/det/det.h"
#include "guest/det/file_times.h"
#include "guest/det/vtime.h"
#include "sys/syscalls.h"

#if defined(__x86_64__)

#    define MAX_IMAGE 16384u
#    define MAX_SYMBOLS 64u
#    define STAT_LENGTH 10 /* bytes of glibc's newfstatat up to the end of its syscall */
#    define STAT_MOV 3     /* offset of the replaced instruction in them */
#    define GLANCE 64 /* bytes of the code that identify it: they differ between all versions */
#    define NS 1000000000
#    define STRING(x) STRING_OF(x)
#    define STRING_OF(x) #    x

/* Named in the order of their addresses; `original` is the operand of the one call to code
 * outside. */
/* clang-format off */
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        "vdso_blob:\n"
        /* first, so that its address is the same in every release: another release may have patched
         * the callers of a restored process */
        "vdso_blob_stat:\n"
        "   xor %ecx, %ecx\n"
        /* rdsspq %rcx: no effect without a shadow stack; with one, the return address is checked */
        "   .byte 0xf3, 0x48, 0x0f, 0x1e, 0xc9\n"
        "   test %rcx, %rcx\n"
        "   jnz 7f\n"
        "   push %r9\n"
        "   movabs $" STRING(PLAN_STAT_UNASKED) ", %r9\n"
        "   mov $262, %eax\n"                 /* newfstatat */
        "   syscall\n"
        "   pop %r9\n"
        "   test %eax, %eax\n"
        "   jnz 2f\n"
        "   mov vdso_blob_anonymous(%rip), %rcx\n"
        "   cmp %rcx, (%rdx)\n"
        "   je 6f\n"
        "   mov vdso_blob_since(%rip), %rcx\n"
        "   cmp %rcx, 72(%rdx)\n"              /* st_atim, st_mtim, st_ctim */
        "   jge 1f\n"
        "   cmp %rcx, 88(%rdx)\n"
        "   jge 1f\n"
        "   cmp %rcx, 104(%rdx)\n"
        "   jl 2f\n"
        "1: push %r9\n"
        "   xor %r9d, %r9d\n"
        "   mov vdso_blob_pipes(%rip), %rax\n"
        "   cmp %rax, (%rdx)\n"
        "   je 8f\n"
        "   mov vdso_blob_born(%rip), %r9\n"
        /* a file of the sandbox's own, at the real rate: init would only add the offset */
        "   mov vdso_blob_own(%rip), %rax\n"
        "   cmp %rax, (%rdx)\n"
        "   jne 10f\n"
        "   movabs $" STRING(STAMPS_MARK_S) ", %rax\n"
        "   cmp %rax, 72(%rdx)\n"
        "   jge 10f\n"
        "   cmp %rax, 88(%rdx)\n"
        "   jge 10f\n"
        "   cmp %rax, 104(%rdx)\n"
        "   jge 10f\n"
        "9: lea 72(%rdx), %r11\n"
        "3: mov (%r11), %rax\n"
        "   cmp %r9, %rax\n"
        "   jl 5f\n"
        "   mov 8(%r11), %rcx\n"
        "   add vdso_blob_seconds(%rip), %rax\n"
        "   add vdso_blob_nanoseconds(%rip), %rcx\n"
        "   cmp $1000000000, %rcx\n"
        "   jl 4f\n"
        "   sub $1000000000, %rcx\n"
        "   inc %rax\n"
        "4: mov %rax, (%r11)\n"
        "   mov %rcx, 8(%r11)\n"
        "5: add $16, %r11\n"
        "   lea 120(%rdx), %rcx\n"
        "   cmp %rcx, %r11\n"
        "   jb 3b\n"
        "11: pop %r9\n"
        "   xor %eax, %eax\n"
        "2: test %eax, %eax\n"
        "   jnz 15f\n"
        "   mov vdso_blob_renumbered(%rip), %rcx\n"
        "   cmp %rcx, (%rdx)\n"
        "   jne 15f\n"
        "   mov vdso_blob_number(%rip), %rcx\n"
        "   mov %rcx, (%rdx)\n"
        "15: addq $2, (%rsp)\n"              /* past the caller's own syscall */
        "   ret\n"
        /* a pipe: at the real rate like an own file, else it has the start's time */
        "8: cmpb $0, vdso_blob_virtual(%rip)\n"
        "   je 9b\n"
        "   mov vdso_blob_seconds(%rip), %rax\n"
        "   mov %rax, 72(%rdx)\n"
        "   mov %rax, 88(%rdx)\n"
        "   mov %rax, 104(%rdx)\n"
        "   mov vdso_blob_nanoseconds(%rip), %rax\n"
        "   mov %rax, 80(%rdx)\n"
        "   mov %rax, 96(%rdx)\n"
        "   mov %rax, 112(%rdx)\n"
        "   jmp 11b\n"
        "10: lea vdso_blob_told(%rip), %r11\n"        /* struct told */
        "   mov (%r11), %r9\n"
        "   test $1, %r9b\n"                  /* it is being written */
        "   jnz 14f\n"
        "   mov 8(%r11), %rax\n"
        "   cmp %rax, (%rdx)\n"               /* st_dev, st_ino */
        "   jne 14f\n"
        "   mov 16(%r11), %rax\n"
        "   cmp %rax, 8(%rdx)\n"
        "   jne 14f\n"
        "   xor %ecx, %ecx\n"
        "12: mov 24(%r11, %rcx), %rax\n"
        "   cmp %rax, 72(%rdx, %rcx)\n"
        "   jne 14f\n"
        "   add $8, %ecx\n"
        "   cmp $48, %ecx\n"
        "   jb 12b\n"
        "   xor %ecx, %ecx\n"
        "13: mov 72(%r11, %rcx), %rax\n"
        "   mov %rax, 72(%rdx, %rcx)\n"
        "   add $8, %ecx\n"
        "   cmp $48, %ecx\n"
        "   jb 13b\n"
        /* it was written meanwhile: the copy is invalid */
        "   cmp %r9, (%r11)\n"
        "   je 11b\n"
        "14: pop %r9\n"
        "6: mov $262, %eax\n"
        "   syscall\n"
        /* EINTR: stat never returns that, except if init had not received the call yet */
        "   cmp $-4, %eax\n"
        "   je 6b\n"
        "   jmp 2b\n"
        "7: mov $262, %eax\n"
        "   ret\n"
        ".balign 8\n"
        "vdso_blob_since: .quad 0\n"
        "vdso_blob_born: .quad 0\n"
        "vdso_blob_own: .quad 0\n"
        "vdso_blob_pipes: .quad 0\n"
        "vdso_blob_anonymous: .quad 0\n"
        "vdso_blob_renumbered: .quad 0\n"
        "vdso_blob_number: .quad 0\n"
        "vdso_blob_seconds: .quad 0\n"
        "vdso_blob_nanoseconds: .quad 0\n"
        "vdso_blob_page: .quad 0\n"
        "vdso_blob_virtual: .quad 0\n"
        "vdso_blob_told: .fill 15, 8, 0\n"
        "vdso_blob_clock_gettime:\n"
        "   cmpb $0, vdso_blob_virtual(%rip)\n"
        "   jne vdso_blob_virtual_clock\n"
        "   push %rdi\n"
        "   push %rsi\n"
        "   sub $8, %rsp\n"
        "   cmp $4, %edi\n"                    /* CLOCK_MONOTONIC_RAW: all uptimes are one clock */
        "   jne 3f\n"
        "   mov $1, %edi\n"
        "3: .byte 0xe8\n"                      /* call */
        "vdso_blob_original: .long 0\n"
        "   add $8, %rsp\n"
        "   pop %rsi\n"
        "   pop %rdi\n"
        "   test %eax, %eax\n"
        "   jnz 2f\n"
        "   cmp $11, %edi\n"
        "   ja 2f\n"
        /* CLOCK_REALTIME, its _COARSE and _ALARM, CLOCK_TAI */
        "   mov $0x921, %ecx\n"
        "   bt %edi, %ecx\n"
        "   jnc 2f\n"
        "   mov vdso_blob_seconds(%rip), %rdx\n"
        "   mov vdso_blob_nanoseconds(%rip), %rcx\n"
        "   add (%rsi), %rdx\n"
        "   add 8(%rsi), %rcx\n"
        "   cmp $1000000000, %rcx\n"
        "   jl 1f\n"
        "   sub $1000000000, %rcx\n"
        "   inc %rdx\n"
        "1: mov %rdx, (%rsi)\n"
        "   mov %rcx, 8(%rsi)\n"
        "2: ret\n"
        "vdso_blob_virtual_clock:\n"
        "   cmpb $2, vdso_blob_virtual(%rip)\n"        /* each query is a system call */
        "   je 6f\n"
        "   cmp $11, %edi\n"
        "   ja 6f\n"
        "   mov $0xbf3, %ecx\n"                /* all except those of CPU time */
        "   bt %edi, %ecx\n"
        "   jnc 6f\n"
        "   mov vdso_blob_page(%rip), %r8\n"
        "   test %r8, %r8\n"
        "   jz 4f\n"
        "3: mov $" STRING(VIRTUAL_TICK_NS) ", %eax\n"
        "   lock xadd %rax, (%r8)\n"
        "   add 8(%r8), %rax\n"
        "   xor %edx, %edx\n"
        "   mov $1000000000, %ecx\n"
        "   div %rcx\n"
        /* CLOCK_REALTIME, its _COARSE and _ALARM, CLOCK_TAI */
        "   mov $0x921, %ecx\n"
        "   bt %edi, %ecx\n"
        "   jnc 7f\n"
        "   add vdso_blob_seconds(%rip), %rax\n"
        "   add vdso_blob_nanoseconds(%rip), %rdx\n"
        "   cmp $1000000000, %rdx\n"
        "   jl 8f\n"
        "   sub $1000000000, %rdx\n"
        "   inc %rax\n"
        "   jmp 8f\n"
        "7: add $" STRING(PLAN_VIRTUAL_UPTIME_S) ", %rax\n"
        "8: mov %rax, (%rsi)\n"
        "   mov %rdx, 8(%rsi)\n"
        "   xor %eax, %eax\n"
        "   ret\n"
        "4: push %rdi\n"
        "   push %rsi\n"
        "   mov $" STRING(VIRTUAL_ASK_PAGE) ", %edi\n"
        "   xor %esi, %esi\n"
        "   mov $228, %eax\n"                  /* clock_gettime */
        "   syscall\n"
        "   test %eax, %eax\n"
        "   js 5f\n"
        "   mov %eax, %r8d\n"
        "   xor %edi, %edi\n"
        "   mov $4096, %esi\n"
        "   mov $3, %edx\n"                    /* to read and write, */
        "   mov $1, %r10d\n"                   /* shared */
        "   xor %r9d, %r9d\n"
        "   mov $9, %eax\n"                    /* mmap */
        "   syscall\n"
        "   mov %r8d, %edi\n"
        "   mov %rax, %r8\n"
        "   mov $3, %eax\n"                    /* close */
        "   syscall\n"
        "   cmp $-4096, %r8\n"
        "   ja 5f\n"
        "   mov $" STRING(VIRTUAL_TELL_PAGE) ", %edi\n"
        "   mov %r8, %rsi\n"
        "   mov $228, %eax\n"
        "   syscall\n"
        "   pop %rsi\n"
        "   pop %rdi\n"
        "   jmp 3b\n"
        "5: pop %rsi\n"
        "   pop %rdi\n"
        "6: mov $228, %eax\n"
        "   syscall\n"
        /* EINTR: a signal came before init had received the call */
        "   cmp $-4, %eax\n"
        "   je 6b\n"
        "   ret\n"
        "vdso_blob_gettimeofday:\n"
        "   test %rdi, %rdi\n"
        "   jz 1f\n"
        "   push %rdi\n"
        "   push %rsi\n"
        "   sub $24, %rsp\n"
        "   mov %rsp, %rsi\n"
        "   xor %edi, %edi\n"
        "   call vdso_blob_clock_gettime\n"
        "   mov (%rsp), %r8\n"
        "   mov 8(%rsp), %rax\n"
        "   add $24, %rsp\n"
        "   pop %rsi\n"
        "   pop %rdi\n"
        "   xor %edx, %edx\n"
        "   mov $1000, %ecx\n"
        "   div %rcx\n"
        "   mov %r8, (%rdi)\n"
        "   mov %rax, 8(%rdi)\n"
        "1: test %rsi, %rsi\n"
        "   jz 2f\n"
        "   movq $0, (%rsi)\n"
        "2: xor %eax, %eax\n"
        "   ret\n"
        "vdso_blob_time:\n"
        "   push %rdi\n"
        "   sub $16, %rsp\n"
        "   mov %rsp, %rsi\n"
        "   mov $5, %edi\n"                     /* CLOCK_REALTIME_COARSE, like the kernel's */
        "   call vdso_blob_clock_gettime\n"
        "   mov (%rsp), %rax\n"
        "   add $16, %rsp\n"
        "   pop %rdi\n"
        "   test %rdi, %rdi\n"
        "   jz 1f\n"
        "   mov %rax, (%rdi)\n"
        "1: ret\n"
        /* abs_timers.c sends a thread here: %rcx is where it continues, %r11 and %rax the expiry
         * time of its timer */
        "vdso_blob_settime:\n"
        /* memory just below the stack pointer may be in use */
        "   lea -256(%rsp), %rsp\n"
        "   pushfq\n"
        "   push %rcx\n"
        "   push %rdx\n"
        "   push %r9\n"
        "   push %rax\n"
        "   push %r11\n"
        "   push 8(%rdx)\n"                   /* the interval */
        "   push (%rdx)\n"
        "   mov %rsp, %rdx\n"
        "   movabs $" STRING(PLAN_SETTIME_UNASKED) ", %r9\n"
        "   mov $223, %eax\n"                 /* timer_settime */
        "   syscall\n"
        "   lea 32(%rsp), %rsp\n"
        "   pop %r9\n"
        "   pop %rdx\n"
        "   pop %rcx\n"
        "   popfq\n"
        "   lea 256(%rsp), %rsp\n"
        "   jmp *%rcx\n"
        "vdso_blob_getrandom:\n"
        "   mov $-38, %rax\n"                   /* -ENOSYS */
        "   ret\n"
        "vdso_blob_end:\n"
        ".popsection\n");
/* clang-format on */

extern const char vdso_blob[], vdso_blob_stat[], vdso_blob_since[], vdso_blob_born[],
    vdso_blob_own[], vdso_blob_pipes[], vdso_blob_anonymous[], vdso_blob_renumbered[],
    vdso_blob_number[], vdso_blob_seconds[], vdso_blob_nanoseconds[], vdso_blob_page[],
    vdso_blob_virtual[], vdso_blob_told[], vdso_blob_clock_gettime[], vdso_blob_original[],
    vdso_blob_gettimeofday[], vdso_blob_time[], vdso_blob_settime[], vdso_blob_getrandom[],
    vdso_blob_end[];

/* Data that the code compares and copies. */
struct told {
    uint64_t sequence; /* odd while it is written */
    struct vdso_told file;
};

_Static_assert(sizeof(struct told) == 15 * 8, "as the code has it");

static const char *fresh; /* the unmodified image */
static _Alignas(16) char patched[MAX_IMAGE];
static size_t length, page_slot, told_slot, stat_entry, settime_entry;
static uint64_t
    last_base; /* where the last one was written: without randomisation, most are at this address */

/* A guest cannot have modified this image, but its layout depends on the kernel. If it is not as
 * expected, it is not patched. */
struct image {
    const Elf64_Ehdr *header;
    const Elf64_Sym *symbols;
    const char *names;
    size_t n_symbols, names_length;
    size_t end_loaded; /* end of the part that is used at run time */
    size_t end;        /* end including the table of sections, which nothing reads at run time */
};

static bool find_tables(struct image *image) {
    const char *base = (const char *)image->header;
    const Elf64_Phdr *segments = (const void *)(base + image->header->e_phoff);

    image->end =
        image->header->e_shoff + (size_t)image->header->e_shnum * image->header->e_shentsize;
    for (unsigned i = 0; i < image->header->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD &&
            (segments[i].p_vaddr != segments[i].p_offset || segments[i].p_offset))
            return false;
        if (segments[i].p_offset + segments[i].p_filesz > image->end_loaded)
            image->end_loaded = segments[i].p_offset + segments[i].p_filesz;
        for (const Elf64_Dyn *d = (const void *)(base + segments[i].p_offset);
             segments[i].p_type == PT_DYNAMIC && d->d_tag != DT_NULL; d++) {
            if (d->d_tag == DT_SYMTAB)
                image->symbols = (const void *)(base + d->d_un.d_ptr);
            if (d->d_tag == DT_STRTAB)
                image->names = base + d->d_un.d_ptr;
            if (d->d_tag == DT_STRSZ)
                image->names_length = d->d_un.d_val;
        }
    }
    if (image->end < image->end_loaded)
        image->end = image->end_loaded;
    if (!image->symbols || image->names < (const char *)image->symbols ||
        image->end > MAX_IMAGE - 4096)
        return false;
    image->n_symbols = (size_t)(image->names - (const char *)image->symbols) /
                       sizeof *image->symbols; /* one follows the other */
    return image->n_symbols <= MAX_SYMBOLS;
}

/* The offset of a function, under its plain name and with the prefix; 0: none. With `to`, both
 * symbols are redirected there. */
static size_t redirect_symbol(const struct image *image, const char *name, size_t to) {
    size_t place = 0;

    for (size_t i = 0; i < image->n_symbols; i++) {
        const Elf64_Sym *symbol = &image->symbols[i];
        const char *its = image->names + symbol->st_name;

        if (symbol->st_name >= image->names_length || !symbol->st_value)
            continue;
        if (!strncmp(its, "__vdso_", 7))
            its += 7;
        if (strlen(its) != strlen(name) || strncmp(its, name, strlen(name)))
            continue;
        place = symbol->st_value;
        if (to)
            ((Elf64_Sym *)(void *)(patched + ((const char *)symbol - (const char *)image->header)))
                ->st_value = to;
    }
    return place;
}

static void put_jump(size_t from, size_t to) {
    int32_t distance = (int32_t)to - (int32_t)from - 5;

    patched[from] = (char)0xe9;
    memcpy(patched + from + 1, &distance, sizeof distance);
}

static void replace_symbol(const struct image *image, const char *name, size_t to) {
    size_t place = redirect_symbol(image, name, to);

    if (place)
        put_jump(place, to);
}

/* The offset of free room for the code in the image's last page; 0: none. After everything else, if
 * possible, because earlier versions have put it there and stored processes call it. Else over the
 * table of sections (Linux 6.12, 7.x). */
static size_t place_blob(const struct image *image, size_t size) {
    const size_t ends[] = { image->end, image->end_loaded };

    length = (image->end + 4095) & ~(size_t)4095;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t place = (ends[i] + 15) & ~(size_t)15;

        if (place + size <= length)
            return place;
    }
    return 0;
}

int vdso_prepare(const struct plan *plan, int64_t offset_ns, struct stamps_bounds bounds) {
    struct image image = { .header = (const void *)getauxval(AT_SYSINFO_EHDR) };
    int64_t seconds = offset_ns / NS, nanoseconds = offset_ns % NS;
    bool is_virtual = plan->flags & PLAN_VIRTUAL;

    if (!image.header || !find_tables(&image))
        return -EOPNOTSUPP;
    size_t blob = place_blob(&image, (size_t)(vdso_blob_end - vdso_blob));
    if (!blob)
        return -EOPNOTSUPP;
    if (nanoseconds < 0) {
        nanoseconds += NS;
        seconds--;
    }
    if (is_virtual) {
        seconds = plan->clock_seconds;
        nanoseconds = plan->clock_nanoseconds;
    }
    memcpy(patched, image.header, length);
    if (blob < image.end) {
        Elf64_Ehdr *header = (Elf64_Ehdr *)(void *)patched;

        header->e_shoff = header->e_shnum = header->e_shstrndx = 0;
    }
    memcpy(patched + blob, vdso_blob, (size_t)(vdso_blob_end - vdso_blob));
    memcpy(patched + blob + (vdso_blob_seconds - vdso_blob), &seconds, sizeof seconds);
    memcpy(patched + blob + (vdso_blob_nanoseconds - vdso_blob), &nanoseconds, sizeof nanoseconds);
    patched[blob + (size_t)(vdso_blob_virtual - vdso_blob)] =
        plan->flags & PLAN_SERIAL ? 2 : is_virtual;
    memcpy(patched + blob + (vdso_blob_since - vdso_blob), &bounds.since_s, sizeof bounds.since_s);
    memcpy(patched + blob + (vdso_blob_born - vdso_blob), &bounds.born_s, sizeof bounds.born_s);
    memcpy(
        patched + blob + (vdso_blob_own - vdso_blob), &bounds.own_device, sizeof bounds.own_device);
    memcpy(patched + blob + (vdso_blob_pipes - vdso_blob), &bounds.pipes_device,
        sizeof bounds.pipes_device);
    memcpy(patched + blob + (vdso_blob_anonymous - vdso_blob), &bounds.anonymous_device,
        sizeof bounds.anonymous_device);
    memcpy(patched + blob + (vdso_blob_renumbered - vdso_blob), &bounds.renumbered_device,
        sizeof bounds.renumbered_device);
    memcpy(patched + blob + (vdso_blob_number - vdso_blob), &bounds.renumbered_as,
        sizeof bounds.renumbered_as);
    stat_entry = blob + (size_t)(vdso_blob_stat - vdso_blob);
    page_slot = blob + (size_t)(vdso_blob_page - vdso_blob);
    told_slot = blob + (size_t)(vdso_blob_told - vdso_blob);
    settime_entry = blob + (size_t)(vdso_blob_settime - vdso_blob);
    if (plan->flags & PLAN_CLOCK) {
        size_t to = blob + (size_t)(vdso_blob_clock_gettime - vdso_blob),
               operand = blob + (size_t)(vdso_blob_original - vdso_blob),
               place = redirect_symbol(&image, "clock_gettime", to);
        int32_t distance = (int32_t)place - (int32_t)operand - 4;

        if (!place)
            return -EOPNOTSUPP;
        memcpy(patched + operand, &distance, sizeof distance);
        replace_symbol(&image, "gettimeofday", blob + (size_t)(vdso_blob_gettimeofday - vdso_blob));
        replace_symbol(&image, "time", blob + (size_t)(vdso_blob_time - vdso_blob));
    }
    if (plan->flags & PLAN_SEED)
        replace_symbol(&image, "getrandom", blob + (size_t)(vdso_blob_getrandom - vdso_blob));
    fresh = (const char *)image.header;
    return 0;
}

static bool is_equal(const char *a, const char *b) {
    uint64_t difference = 0, left, right;

    for (size_t at = 0; at < length; at += sizeof left) {
        memcpy(&left, a + at, sizeof left);
        memcpy(&right, b + at, sizeof right);
        difference |= left ^ right;
    }
    return !difference;
}

static char theirs[MAX_IMAGE];

static bool read_theirs(pid_t pid, uint64_t base) {
    return process_read_memory(pid, base, theirs, length) == (long)length;
}

bool vdso_is_fresh(pid_t pid, uint64_t base) {
    return read_theirs(pid, base) && is_equal(theirs, fresh);
}

/* Values that were written to a process since it was patched. */
struct knows {
    uint64_t page;     /* 0: it has none */
    uint64_t sequence; /* of struct told */
};

/* Is it the patched image, apart from those values? */
static bool is_patched(pid_t pid, uint64_t base, struct knows *ret_knows) {
    if (!read_theirs(pid, base))
        return false;
    memcpy(&ret_knows->page, theirs + page_slot, sizeof ret_knows->page);
    memcpy(&ret_knows->sequence, theirs + told_slot, sizeof ret_knows->sequence);
    memcpy(theirs + page_slot, patched + page_slot, sizeof ret_knows->page);
    memcpy(theirs + told_slot, patched + told_slot, sizeof(struct told));
    return is_equal(theirs, patched);
}

/* mov %ecx, %r10d; mov $262, %eax; syscall; cmp $-4096, %eax; ja; xor %eax, %eax; ret: all of the
 * function except its error path. Nothing below the stack pointer is in use. */
static bool is_glibcs(pid_t pid, uint64_t from) {
    static const uint8_t glibcs[] = { 0x41, 0x89, 0xca, 0xb8, 0x06, 0x01, 0x00, 0x00, 0x0f, 0x05,
        0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x07, 0x31, 0xc0, 0xc3 };
    uint8_t code[sizeof glibcs];

    return process_read_memory(pid, from, code, sizeof code) == (long)sizeof code &&
           !memcmp(code, glibcs, sizeof code);
}

int vdso_patch(pid_t pid, uint64_t base, uint64_t page, uint64_t stat_after) {
    static const uint64_t none;
    int memory = process_open_memory(pid);

    if (memory < 0)
        return memory;
    memcpy(patched + page_slot, &page, sizeof page);
    int r = code_write(pid, memory, base, patched, length);
    memcpy(patched + page_slot, &none, sizeof none);
    if (r == 0)
        last_base = base;
    if (r == 0 && stat_after && is_glibcs(pid, stat_after - STAT_LENGTH))
        (void)process_put_call_by(
            pid, memory, stat_after - STAT_LENGTH + STAT_MOV, base + stat_entry);
    close(memory);
    return r;
}

bool vdso_is_known(pid_t pid) {
    char glance[GLANCE];

    return last_base &&
           process_read_memory(pid, last_base + stat_entry, glance, sizeof glance) ==
               (long)sizeof glance &&
           !memcmp(glance, patched + stat_entry, sizeof glance);
}

int vdso_tell_page(pid_t pid, uint64_t base, uint64_t page) {
    struct knows knows;

    return is_patched(pid, base, &knows) && !knows.page
               ? process_put(pid, base + page_slot, &page, sizeof page)
               : -EEXIST;
}

/* Other threads may be reading it, so the sequence number is changed before and after, each by a
 * separate write. */
static int put_told(pid_t pid, int memory, uint64_t to, struct told *told) {
    int r;

    told->sequence |= 1;
    if ((r = code_write(pid, memory, to, &told->sequence, sizeof told->sequence)) < 0 ||
        (r = code_write(
             pid, memory, to + offsetof(struct told, file), &told->file, sizeof told->file)) < 0)
        return r;
    told->sequence++;
    return code_write(pid, memory, to, &told->sequence, sizeof told->sequence);
}

int vdso_tell_stat(pid_t pid, uint64_t base, const struct vdso_told *file) {
    struct knows knows;
    int memory = is_patched(pid, base, &knows) ? process_open_memory(pid) : -EOPNOTSUPP;
    struct told told = { knows.sequence, *file };

    if (memory < 0)
        return memory;
    int r = put_told(pid, memory, base + told_slot, &told);
    close(memory);
    return r;
}

bool vdso_contains(uint64_t base, uint64_t address) {
    return address >= base && address - base < length;
}

uint64_t vdso_settime(pid_t pid, uint64_t base) {
    struct knows knows;

    return is_patched(pid, base, &knows) ? base + settime_entry : 0;
}

int vdso_route_stat(pid_t pid, uint64_t base, uint64_t after) {
    uint64_t from = after - STAT_LENGTH;
    struct knows knows;

    /* Replaces the second mov. The syscall stays: if a signal interrupted the call and its handler
     * led here, the call is restarted there. */
    return is_glibcs(pid, from) && is_patched(pid, base, &knows)
               ? process_put_call(pid, from + STAT_MOV, base + stat_entry)
               : -EOPNOTSUPP;
}

#else

int vdso_route_stat(pid_t pid, uint64_t base, uint64_t after) {
    (void)pid, (void)base, (void)after;
    return -ENOTSUP;
}

int vdso_prepare(const struct plan *plan, int64_t offset_ns, struct stamps_bounds bounds) {
    (void)plan, (void)offset_ns;
    return -EOPNOTSUPP;
}

bool vdso_is_fresh(pid_t pid, uint64_t base) {
    (void)pid, (void)base;
    return false;
}

bool vdso_is_known(pid_t pid) {
    (void)pid;
    return false;
}

int vdso_patch(pid_t pid, uint64_t base, uint64_t page, uint64_t stat_after) {
    (void)pid, (void)base, (void)page, (void)stat_after;
    return -ENOTSUP;
}

int vdso_tell_page(pid_t pid, uint64_t base, uint64_t page) {
    (void)pid, (void)base, (void)page;
    return -ENOTSUP;
}

int vdso_tell_stat(pid_t pid, uint64_t base, const struct vdso_told *file) {
    (void)pid, (void)base, (void)file;
    return -ENOTSUP;
}

bool vdso_contains(uint64_t base, uint64_t address) {
    (void)base, (void)address;
    return false;
}

uint64_t vdso_settime(pid_t pid, uint64_t base) {
    (void)pid, (void)base;
    return 0;
}

#endif
