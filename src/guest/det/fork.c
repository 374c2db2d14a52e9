/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks that no signal interrupts.
 *
 * A fork is sent to init, which computes a new state for the child's random stream. Signals could
 * then do two things that they do not do to an ordinary fork. A signal that arrives before init has
 * received the call ends it with EINTR, if its handler lacks SA_RESTART. No fork returns EINTR
 * otherwise, and a shell gives up. A signal between the answer and the fork makes the kernel send
 * the call again, after a state was computed. The child's stream would then depend on when an
 * earlier child died.
 *
 * Some C libraries fork with all signals blocked. Glibc does not, so init adds that: it replaces an
 * instruction before glibc's clone by a call to code that blocks the signals, makes the clone, and
 * restores the mask in parent and child. The code is placed in the unused end of the last page of
 * the same text, so it is near, and it belongs to the process: forks and snapshots contain it, and
 * execve discards it. As with stat (det/vdso_patch.c), the bytes are changed only in a process with
 * a single thread, which is in that call.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/det/det.h"
#include "sys/syscalls.h"

#if defined(__x86_64__)

#    define MAX_TRAMPOLINE 256u
#    define MAPS_BYTES 16384

/* Called in place of "mov $56, %eax", before the syscall, which stays: an interrupted clone is
 * restarted there. */
/* clang-format off */
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        "fork_trampoline:\n"
        "   xor %ecx, %ecx\n"
        /* rdsspq %rcx: no effect without a shadow stack; with one, the return address is checked */
        "   .byte 0xf3, 0x48, 0x0f, 0x1e, 0xc9\n"
        "   test %rcx, %rcx\n"
        "   jnz 2f\n"
        /* CLONE_VM, or another stack: the child could not return from here */
        "   test $0x100, %edi\n"
        "   jnz 2f\n"
        "   test %rsi, %rsi\n"
        "   jnz 2f\n"
        "   push %rdi\n"
        "   push %rsi\n"
        "   push %rdx\n"
        "   push %r10\n"
        "   sub $16, %rsp\n"                   /* the old mask, and the result */
        "1: xor %edi, %edi\n"                  /* SIG_BLOCK */
        "   lea 3f(%rip), %rsi\n"
        "   mov %rsp, %rdx\n"
        "   mov $8, %r10d\n"
        "   mov $14, %eax\n"                   /* rt_sigprocmask */
        "   syscall\n"
        "   cmp $-4, %eax\n"                   /* EINTR: serial sends this call to init, too */
        "   je 1b\n"
        "   mov 16(%rsp), %r10\n"
        "   mov 24(%rsp), %rdx\n"
        "   mov 32(%rsp), %rsi\n"
        "   mov 40(%rsp), %rdi\n"
        "   mov $56, %eax\n"                   /* clone */
        "   syscall\n"
        "   mov %rax, 8(%rsp)\n"
        "   mov $2, %edi\n"                    /* SIG_SETMASK */
        "   mov %rsp, %rsi\n"
        "   xor %edx, %edx\n"
        "   mov $8, %r10d\n"
        "   mov $14, %eax\n"
        "   syscall\n"
        "   mov 8(%rsp), %rax\n"
        "   add $16, %rsp\n"
        "   pop %r10\n"
        "   pop %rdx\n"
        "   pop %rsi\n"
        "   pop %rdi\n"
        "   addq $2, (%rsp)\n"                 /* past the caller's own syscall */
        "   ret\n"
        "2: mov $56, %eax\n"
        "   ret\n"
        ".balign 8\n"
        "3: .quad -1\n"
        "fork_trampoline_end:\n"
        ".popsection\n");
/* clang-format on */

extern const char fork_trampoline[], fork_trampoline_end[];

/* The end of the mapping of code that contains an address, or 0. */
static uint64_t end_of_text(pid_t pid, uint64_t address) {
    static char text[MAPS_BYTES]; /* a mapping beyond this is not found */
    int fd = process_open(pid, "/maps", O_RDONLY);
    size_t length = 0;
    ssize_t n;

    if (fd < 0)
        return 0;
    while (length < sizeof text - 1 && (n = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)n;
    close(fd);
    text[length] = '\0';
    for (char *line = text, *next; (next = strchr(line, '\n')); line = next + 1) {
        char *at;
        uint64_t start = strtoul(line, &at, 16);
        uint64_t end = *at == '-' ? strtoul(at + 1, &at, 16) : 0;

        if (address > start && address < end)
            return strncmp(at, " r-xp", 5) == 0 ? end : 0;
    }
    return 0;
}

/* The trampoline's address in that text, or 0. */
static uint64_t place_trampoline(pid_t pid, uint64_t after) {
    static const char zeros[MAX_TRAMPOLINE];
    char there[MAX_TRAMPOLINE];
    size_t size = (size_t)(fork_trampoline_end - fork_trampoline);
    uint64_t end = end_of_text(pid, after), at = (end - size) & ~(uint64_t)15;

    if (size > sizeof there || end < after + size + 16 ||
        process_read_memory(pid, at, there, size) != (long)size)
        return 0;
    if (memcmp(there, fork_trampoline, size) == 0)
        return at;
    return memcmp(there, zeros, size) == 0 && process_put(pid, at, fork_trampoline, size) == 0 ? at
                                                                                               : 0;
}

int fork_route(pid_t pid, uint64_t after) {
    /* mov $56, %eax; syscall; cmp $-4096, %rax: this is in a function that calls others, so nothing
     * below the stack pointer is in use. */
    static const uint8_t glibcs[] = { 0xb8, 0x38, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x3d, 0x00,
        0xf0, 0xff, 0xff };
    uint8_t code[sizeof glibcs];
    uint64_t from = after - 7;

    if (process_read_memory(pid, from, code, sizeof code) != (long)sizeof code ||
        memcmp(code, glibcs, sizeof code) || !process_is_single(pid))
        return -EOPNOTSUPP;
    uint64_t trampoline = place_trampoline(pid, after);
    return trampoline ? process_put_call(pid, from, trampoline) : -EOPNOTSUPP;
}

#else

int fork_route(pid_t pid, uint64_t after) {
    (void)pid, (void)after;
    return -ENOTSUP;
}

#endif
