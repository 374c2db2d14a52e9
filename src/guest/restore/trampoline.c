/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last steps of restore, which run without the restore program: the program and the region are
 * unmapped. Then the kernel learns where the thread's restartable sequences are described; the
 * guest controls that memory, and it could name an address to jump to, so this comes late. Finally
 * each thread returns from a signal handler that never ran, by sigreturn.
 *
 * The code is one page at IMAGE_TRAMPOLINE, with a page of words beside it, the *gate*, where the
 * threads of a process meet. The first thread waits until all others are there, unmaps the memory
 * that they used, and lets them leave.
 */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

/* HWCAP2_FSGSBASE: the processor lets programs set FS and GS themselves, so no system call is
 * needed that a filter would send to init. */
#    define HWCAP2_BASES 2

#    define TEXT(x) #    x
#    define PLACE(x) TEXT(x)

struct thread_barrier {
    uint32_t arrived, open;
    uint64_t program, program_length, region, region_length;
    uint32_t sets_bases;
};

extern const char __ehdr_start[], _end[];

/* Registers: rbx: the frame, with a set of signals where the kernel reads nothing; r12: FS; r13,
 * r14, r15: arguments of rseq; rbp: GS; r9: number of other threads, for the first thread. The
 * gate's page precedes this one. */
/* clang-format off */
__asm__(".pushsection .rodata\n"
        "restore_code:\n"
        "restore_first:\n"
        "   lea restore_code-4096(%rip), %r8\n"
        "1: mov (%r8), %edx\n"
        "   cmp %edx, %r9d\n"
        "   je 2f\n"
        "   mov %r8, %rdi\n"
        "   xor %esi, %esi\n"                   /* FUTEX_WAIT */
        "   xor %r10d, %r10d\n"
        "   mov $202, %eax\n"                   /* futex */
        "   syscall\n"
        "   jmp 1b\n"
        "2: mov 8(%r8), %rdi\n"
        "   mov 16(%r8), %rsi\n"
        "   mov $11, %eax\n"                    /* munmap */
        "   syscall\n"
        "   mov 24(%r8), %rdi\n"
        "   mov 32(%r8), %rsi\n"
        "   mov $11, %eax\n"
        "   syscall\n"
        "   movl $1, 4(%r8)\n"
        "   test %r9d, %r9d\n"
        "   jz 5f\n"
        "   lea 4(%r8), %rdi\n"
        "   mov $1, %esi\n"                     /* FUTEX_WAKE */
        "   mov $0x7fffffff, %edx\n"
        "   mov $202, %eax\n"
        "   syscall\n"
        "   jmp 5f\n"
        "restore_other:\n"
        "   lea restore_code-4096(%rip), %r8\n"
        "   lock incl (%r8)\n"
        "   mov %r8, %rdi\n"
        "   mov $1, %esi\n"
        "   mov $1, %edx\n"
        "   mov $202, %eax\n"
        "   syscall\n"
        "3: cmpl $0, 4(%r8)\n"
        "   jne 5f\n"
        "   lea 4(%r8), %rdi\n"
        "   xor %esi, %esi\n"
        "   xor %edx, %edx\n"
        "   xor %r10d, %r10d\n"
        "   mov $202, %eax\n"
        "   syscall\n"
        "   jmp 3b\n"
        "5: cmpl $0, 40(%r8)\n"
        "   je 9f\n"
        "   wrfsbase %r12\n"
        "   wrgsbase %rbp\n"
        "   jmp 6f\n"
        "9: mov $0x1002, %edi\n"                /* ARCH_SET_FS */
        "   mov %r12, %rsi\n"
        "   mov $158, %eax\n"                   /* arch_prctl */
        "   syscall\n"
        "   test %rbp, %rbp\n"
        "   jz 6f\n"
        "   mov $0x1001, %edi\n"                /* ARCH_SET_GS */
        "   mov %rbp, %rsi\n"
        "   mov $158, %eax\n"
        "   syscall\n"
        "6: test %r13, %r13\n"
        "   jz 7f\n"
        "   mov %r13, %rdi\n"
        "   mov %r14, %rsi\n"
        "   xor %edx, %edx\n"
        "   mov %r15, %r10\n"
        "   mov $334, %eax\n"                   /* rseq */
        "   syscall\n"
        "   test %rax, %rax\n"
        "   jnz 8f\n"
        "7: mov %rbx, %rsp\n"
        "   mov " PLACE(RESTORE_FRAME_SIGNALS) "(%rbx), %r12\n"
        "   test %r12, %r12\n"
        "   jz 4f\n"
        "   lea " PLACE(RESTORE_FRAME_SIGNALS) "(%rbx), %rdi\n"
        "   mov $8, %esi\n"
        "   mov $127, %eax\n"                   /* rt_sigpending: all are blocked still */
        "   syscall\n"
        "   test %r12, " PLACE(RESTORE_FRAME_SIGNALS) "(%rbx)\n"
        "   jz 4f\n"
        "   addq $2, " PLACE(RESTORE_FRAME_RIP) "(%rbx)\n"     /* past the call: it returns EINTR */
        "   movq $-4, " PLACE(RESTORE_FRAME_RAX) "(%rbx)\n"
        "4: mov $15, %eax\n"                    /* rt_sigreturn */
        "   syscall\n"
        "8: hlt\n"
        "restore_code_end:\n"
        ".popsection\n");
/* clang-format on */

extern const char restore_code[], restore_code_end[], restore_first[], restore_other[];

/* Values for the threads are written to each process's own copy of the gate. */
int restore_put_last(void) {
    char *code = mmap((void *)IMAGE_TRAMPOLINE, IMAGE_PAGE, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    struct thread_barrier *thread_barrier = mmap((void *)IMAGE_THREAD_BARRIER, IMAGE_PAGE,
        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    if (code == MAP_FAILED || thread_barrier == MAP_FAILED)
        return -errno;
    if ((uintptr_t)_end > IMAGE_FRAMES)
        return -EOPNOTSUPP;
    memcpy(code, restore_code, (size_t)(restore_code_end - restore_code));
    *thread_barrier = (struct thread_barrier){
        .program = (uintptr_t)__ehdr_start,
        .program_length = (((uintptr_t)_end + IMAGE_PAGE - 1) & ~(uintptr_t)(IMAGE_PAGE - 1)) -
                          (uintptr_t)__ehdr_start,
        .region = restored.region,
        .region_length = restored.region_end - restored.region,
        .sets_bases = getauxval(AT_HWCAP2) & HWCAP2_BASES,
    };
    return (int)sys_call3(__NR_mprotect, code, IMAGE_PAGE, PROT_READ | PROT_EXEC);
}

void restore_put_region(void) {
    ((struct thread_barrier *)IMAGE_THREAD_BARRIER)->region_length =
        restored.region_end - restored.region;
}

void restore_await_threads(uint32_t n) {
    struct thread_barrier *thread_barrier = (void *)IMAGE_THREAD_BARRIER;
    uint32_t arrived;

    while ((arrived = __atomic_load_n(&thread_barrier->arrived, __ATOMIC_ACQUIRE)) < n)
        (void)sys_call4(__NR_futex, &thread_barrier->arrived, FUTEX_WAIT, arrived, NULL);
}

/* The compiler may use rbp as frame pointer, so it is loaded last, when the function's variables
 * are no longer needed. */
_Noreturn static void leave_restorer(
    const struct restore_trampoline *last, uint64_t n_others, uint64_t to) {
    /* clang-format off */
    __asm__ volatile("mov %[n], %%r9\n"
                     "mov %[to], %%rax\n"
                     "mov %[last], %%rdx\n"
                     "mov 0(%%rdx), %%rbx\n"
                     "mov 8(%%rdx), %%r12\n"
                     "mov 24(%%rdx), %%r13\n"
                     "mov 32(%%rdx), %%r14\n"
                     "mov 40(%%rdx), %%r15\n"
                     "mov 16(%%rdx), %%rbp\n"
                     "jmp *%%rax\n"
                     :
                     : [n] "r"(n_others), [to] "r"(to), [last] "r"(last)
                     : "memory");
    /* clang-format on */
    __builtin_unreachable();
}

static uint64_t place_of(const char *code) {
    return IMAGE_TRAMPOLINE + (uint64_t)(code - restore_code);
}

_Noreturn void restore_leave(const struct restore_trampoline *last, uint32_t n_others) {
    leave_restorer(last, n_others, place_of(restore_first));
}

_Noreturn void restore_leave_thread(const struct restore_trampoline *last) {
    leave_restorer(last, 0, place_of(restore_other));
}

#endif
