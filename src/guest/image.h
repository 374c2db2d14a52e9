/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The image of a process: what src/snapshot captures and the guest layer restores.
 *
 * One memory file without pointers: this header, then arrays at the offsets it names, then pages. It is made and used on one machine under one running kernel, by programs of one build, and never stored. What it says of
 * memory was a guest's to choose, so whoever loads it checks every range; what it says of registers and pages is for the guest alone.
 */
#ifndef ROLLBOX_GUEST_IMAGE_H
#define ROLLBOX_GUEST_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAGIC 0x31456d4978427852ull
#define IMAGE_PAGE 4096u
#define IMAGE_MAX_AREAS 1024u
#define IMAGE_MAX_RUNS 65536u
#define IMAGE_MAX_BYTES (1ull << 30)    /* of memory that it takes to load one */
#define IMAGE_MAX_XSTATE 16384u
#define IMAGE_SIGNALS 64

/* Where a guest's memory can be: init itself is below (meson.build links it there), the kernel above. */
#define IMAGE_LOWEST 0x400000ull
#define IMAGE_HIGHEST 0x7ffffffff000ull

enum image_kind {
    IMAGE_ANONYMOUS = 1,        /* also what was a private mapping of a file and has pages of its own: it is copied whole */
    IMAGE_STACK,                /* grows downwards */
    IMAGE_FILE,                 /* private and untouched, or shared and not writable: mapped again from the file */
    IMAGE_VVAR,                 /* the kernel's own: moved to where the process had them, in this order */
    IMAGE_VDSO,
};

enum image_forgets { IMAGE_WIPED = 1 /* MADV_WIPEONFORK */, IMAGE_DROPPABLE /* MAP_DROPPABLE */ };

struct image_area {
    uint64_t start, end;
    uint32_t kind;              /* enum image_kind */
    uint32_t protection;        /* PROT_* */
    uint64_t path;              /* FILE: offset of its NUL-terminated path; of several areas of one file they are equal */
    uint64_t offset;            /* FILE: in the file */
    uint64_t is_shared;
    uint64_t forgets;           /* enum image_forgets: what is in it must never be seen twice (states of random generators), so nothing of it is saved */
    uint64_t inode, size;       /* FILE: what must be found at the path */
    int64_t mtime_s, mtime_ns;
};

/* Pages that follow each other in memory and in the image. All others of the area are zero. */
struct image_run {
    uint64_t address, length;
    uint64_t at;                /* offset in the image */
};

/* As the kernel's rt_sigaction has it. */
struct image_action {
    uint64_t handler, flags, restorer, mask;
};

/* In the order of PTRACE_GETREGS (struct user_regs_struct), x86-64. */
struct image_registers {
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs;
};

/* What PR_SET_MM_MAP takes. */
struct image_layout {
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end;
};

struct image_process {
    uint32_t pid;               /* inside */
    uint32_t umask;
    struct image_registers registers;
    uint64_t signal_mask;
    uint64_t alternate_stack[3];        /* stack_t */
    struct image_action actions[IMAGE_SIGNALS];
    struct image_layout layout;
    uint64_t auxv, auxv_length; /* offset, bytes */
    uint64_t executable;        /* offset of its path */
    uint64_t robust_list, robust_length;
    uint64_t rseq, rseq_length, rseq_signature;
    char name[16];              /* comm */
    uint64_t xstate, xstate_length;     /* offset; as PTRACE_GETREGSET NT_X86_XSTATE gives it */
    uint64_t xstate_features;   /* what the processor's extended state has */
};

struct image {
    uint64_t magic;
    uint64_t length;            /* of the whole */
    uint64_t areas, n_areas;    /* offset, number: struct image_area, by address */
    uint64_t runs, n_runs;      /* struct image_run, by address */
    uint64_t texts;             /* offset of the first path; they end where the runs begin */
    struct image_process process;
};

/* What a restored process is going to touch, as one did before it: a file of these, by address. */
struct image_touch {
    uint64_t address, length;
    uint64_t is_written;        /* else it is only read */
};

#define IMAGE_MAX_TOUCHES 16384u

#define image_at(image, offset, type) ((const type *)(const void *)((const char *)(image) + (offset)))

#endif
