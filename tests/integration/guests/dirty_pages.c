/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest that changes its memory on request, and prints a digest of it.
 *
 *     changer
 *
 * A line of input is a number, by which a few things are done, the same for the same number in the
 * same state; or "?". Each is answered by a line: a digest of its memory, of where it is mapped and
 * how it is protected, of its descriptors, signals, limits and the like. Two that have the same
 * answer for long are the same in all that was looked at. Memory is read through /proc/self/mem, so
 * what may not be touched is in it, too. Nothing is allocated, and what a look leaves behind is not
 * looked at.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define SLOTS 24
#define FIRST 0x100000000000ul
#define ROOM 0x10000000ul
#define LOWEST 0x400000ul /* below are traces of an earlier restoring */
#define GUARD_INSTALL 102 /* MADV_GUARD_INSTALL, Linux 6.13 */
#define GUARD_REMOVE 103

/* Each has its own part of the address space, in which it moves about: where the kernel puts
 * something is not the same in a copy. */
static struct slot {
    char *at;
    size_t length;
    bool is_wiped, is_shared, is_file;
} slots[SLOTS];

static int files[4] = { -1, -1, -1, -1 };
static char *brk_start;
static uint64_t chance;
static uintptr_t stack_used;                 /* of the stack, what lies above is main's */
static _Alignas(4096) char scratch[1 << 18]; /* not looked at */

static uint64_t next(void) {
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return chance >> 33;
}

static uint64_t below(uint64_t n) {
    return n ? next() % n : 0;
}

/* ---- changes ---- */

/* What can be written to is, here and there. */
static void scribble(char *at, size_t length) {
    for (unsigned i = 0, n = (unsigned)below(5); i < n; i++) {
        size_t place = below(length / 8) * 8;
        int ends[2];
        uint64_t drained;

        if (pipe2(ends, O_CLOEXEC) < 0)
            continue;
        (void)!write(ends[1], &chance, sizeof chance);
        if (read(ends[0], at + place, sizeof chance) < 0) /* fails where nothing may be written */
            (void)!read(ends[0], &drained, sizeof drained);
        close(ends[1]);
        close(ends[0]);
    }
}

static void touch(struct slot *slot) {
    if (slot->at && mprotect(slot->at, slot->length, PROT_READ | PROT_WRITE) == 0)
        scribble(slot->at, slot->length);
}

static void part(const struct slot *slot, char **ret_at, size_t *ret_length) {
    size_t pages = slot->length / PAGE, from = below(pages);

    *ret_at = slot->at + from * PAGE;
    *ret_length = (1 + below(pages - from)) * PAGE;
}

static char *place(const struct slot *slot) {
    return (char *)(FIRST + (uintptr_t)(slot - slots) * ROOM + below(4) * (ROOM / 4));
}

static void map(struct slot *slot, unsigned how) {
    size_t length = (1 + below(how == 2 ? 1024 : 60)) * PAGE;
    int file = how == 1 ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC) : -1;

    if (slot->at)
        munmap(slot->at, slot->length);
    *slot = (struct slot){ .length = length, .is_shared = how == 3, .is_file = how == 1 };
    int flags = MAP_FIXED | (how == 3 ? MAP_SHARED : MAP_PRIVATE);
    if (how != 1)
        flags |= MAP_ANONYMOUS;
    slot->at = mmap(place(slot), length, PROT_READ | PROT_WRITE, flags, file, 0);
    if (file >= 0)
        close(file);
    if (slot->at == MAP_FAILED)
        *slot = (struct slot){ 0 };
    else if (how == 2)
        madvise(slot->at, length, MADV_HUGEPAGE);
    /* Past the end of the program there is nothing. */
    if (slot->at && how == 1)
        slot->at = mremap(slot->at, length, slot->length = (1 + below(20)) * PAGE, 0);
    if (slot->at && below(3))
        scribble(slot->at, slot->length);
}

/* By pages: the kernel leaves what was once different in pieces, which a copy has as one, and moves
 * no pieces together. */
static void move(struct slot *slot) {
    const size_t length = (1 + below(80)) * PAGE;
    char *to = place(slot);

    if (slot->is_shared)
        return;
    for (size_t i = 0; i < slot->length && i < length && to != slot->at; i += PAGE)
        (void)mremap(slot->at + i, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + i);
    if (length < slot->length)
        munmap(slot->at + length, slot->length - length);
    else if (length > slot->length)
        (void)mmap(to + slot->length, length - slot->length, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    slot->at = to;
    slot->length = length;
}

static void move_brk(void) {
    char *now = sbrk(0);
    size_t used = (size_t)(now - brk_start), wanted = below(64) * PAGE;

    (void)!sbrk((intptr_t)wanted - (intptr_t)used);
    if (wanted)
        scribble(brk_start, wanted);
}

static __attribute__((noinline)) void dig(unsigned depth) {
    volatile char room[3000];

    memset((char *)(uintptr_t)room, (int)depth, sizeof room);
    if (depth)
        dig(depth - 1);
    room[0] = 0;
}

static void change_file(void) {
    int *fd = &files[below(4)];

    if (*fd >= 0 && below(2)) {
        close(*fd);
        *fd = -1;
        return;
    }
    if (*fd < 0)
        *fd = open("/proc/self/exe", O_RDONLY | (below(2) ? O_CLOEXEC : 0));
    (void)lseek(*fd, (off_t)below(1000), SEEK_SET);
}

static void on_signal(int number) {
    (void)number;
}

static void change_signals(void) {
    static const int some[] = { SIGUSR1, SIGUSR2, SIGALRM, SIGHUP, SIGWINCH, SIGCHLD };
    struct sigaction action = { .sa_handler = below(3) == 0 ? SIG_DFL
                                              : below(2)    ? SIG_IGN
                                                            : on_signal,
        .sa_flags = below(2) ? SA_RESTART : 0 };
    sigset_t mask;

    sigaction(some[below(6)], &action, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, some[below(6)]);
    sigprocmask(below(2) ? SIG_BLOCK : SIG_UNBLOCK, &mask, NULL);
}

static void change_rest(void) {
    struct rlimit limit;

    umask((mode_t)below(0777));
    (void)!chdir(below(2) ? "/tmp" : "/");
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 40 + below(20);
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void change(void) {
    struct slot *slot = &slots[below(SLOTS)];
    char *at;
    size_t length;

    if (!slot->at && below(4) == 0) {
        switch (below(6)) {
        case 0:
            move_brk();
            return;
        case 1:
            dig((unsigned)below(60));
            return;
        case 2:
            change_file();
            return;
        case 3:
            change_signals();
            return;
        case 4:
            change_rest();
            return;
        default:
            return;
        }
    }
    if (!slot->at) {
        map(slot, (unsigned)below(4));
        return;
    }
    part(slot, &at, &length);
    switch (below(12)) {
    case 0:
        munmap(slot->at, slot->length);
        *slot = (struct slot){ 0 };
        break;
    case 1:
        /* An ordinary user's capture sees of shared memory what one mapping has of it, and refuses
         * others that have more. */
        if (slot->is_shared)
            mprotect(slot->at, slot->length, (int)below(2));
        else
            mprotect(at, length, (int)below(2));
        break;
    case 2:
        mprotect(slot->at, slot->length, PROT_READ | PROT_WRITE);
        break;
    case 3:
        if (!slot->is_file) /* what a copy has of a file's that was changed is memory without it,
                               and goes back to zeros (docs/reference/checkpoint-limits.md) */
            madvise(at, length, MADV_DONTNEED);
        break;
    case 4:
        move(slot);
        break;
    case 5:
        madvise(slot->at, slot->length, below(2) ? MADV_DONTFORK : MADV_DOFORK);
        break;
    case 6:
        if (!slot->is_shared && !slot->is_file &&
            (madvise(slot->at, slot->length, MADV_WIPEONFORK), 1))
            slot->is_wiped = true;
        break;
    case 7:
        /* In a private mapping of a file of which writes are noted Linux 6.18 installs none, and
         * tries for ever. */
        if (!slot->is_shared && !slot->is_file && !slot->is_wiped &&
            madvise(at, length, GUARD_INSTALL) == 0 && below(2))
            madvise(at, length, GUARD_REMOVE);
        break;
    default:
        touch(slot);
    }
}

/* ---- what it has ---- */

static uint64_t digest;

static void add(const void *data, size_t length) {
    const unsigned char *bytes = data;

    for (size_t i = 0; i < length; i++)
        digest = (digest ^ bytes[i]) * 1099511628211ull;
}

static void add_number(uint64_t number) {
    add(&number, sizeof number);
}

/* What forgets is known to us, and what a copy has in its place is nothing. */
static bool is_wiped(uintptr_t at) {
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].is_wiped && at >= (uintptr_t)slots[i].at &&
            at < (uintptr_t)slots[i].at + slots[i].length)
            return true;
    return false;
}

/* Zeros are skipped: a guest cannot see whether an empty page exists. */
static void add_memory(int memory, uintptr_t start, uintptr_t end) {
    static char page[PAGE];
    static const char nothing[PAGE];

    for (uintptr_t at = start; at < end; at += PAGE) {
        bool is_own = at >= (uintptr_t)scratch && at < (uintptr_t)scratch + sizeof scratch;

        is_own |= at + PAGE > (uintptr_t)page && at < (uintptr_t)page + sizeof page;
        is_own |= at + PAGE > (uintptr_t)&digest && at <= (uintptr_t)&digest;
        /* What a thread has of its own: the kernel says there on which processor it is. */
        is_own |= at + 2 * PAGE > (uintptr_t)__builtin_thread_pointer() &&
                  at < (uintptr_t)__builtin_thread_pointer() + PAGE;
        if (is_own || is_wiped(at))
            continue;
        if (pread(memory, page, PAGE, (off_t)at) != (ssize_t)PAGE) {
            add_number(at);
            continue;
        }
        if (memcmp(page, nothing, PAGE)) {
            add_number(at);
            add(page, PAGE);
        }
    }
    memset(page, 0, sizeof page);
}

/* Neighbours that are alike are one: where the kernel draws a line between them is its own. */
static void add_mappings(void) {
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC),
        memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t n;
    uintptr_t last_start = 0, last_end = 0;
    char last[5] = "";

    while ((n = read(maps, scratch + length, sizeof scratch - 1 - length)) > 0)
        length += (size_t)n;
    scratch[length] = '\0';
    close(maps);
    for (char *line = scratch; *line;) {
        char *end = strchr(line, '\n'), *dash, *perms;
        uintptr_t start = strtoul(line, &dash, 16), stop = strtoul(dash + 1, &perms, 16);
        bool is_stack = strstr(line, "[stack]") && strstr(line, "[stack]") < end,
             is_kernels = strstr(line, "[v") && strstr(line, "[v") < end;

        perms++;
        line = end + 1;
        if (start < LOWEST || is_kernels)
            continue;
        if (is_stack)
            start = stack_used & ~(PAGE - 1);
        if (start != last_end || memcmp(perms, last, 4)) {
            add_number(last_start), add_number(last_end), add(last, 4);
            last_start = start;
        }
        last_end = stop;
        memcpy(last, perms, 4);
        add_memory(memory, is_stack ? start + PAGE : start, stop);
    }
    add_number(last_start), add_number(last_end), add(last, 4);
    close(memory);
    memset(scratch, 0, sizeof scratch);
}

static void add_rest(void) {
    char *cwd = getcwd(scratch, 4096);
    sigset_t mask;
    mode_t mode = umask(0);

    umask(mode);
    add_number(mode);
    add(cwd, strlen(cwd));
    memset(scratch, 0, 4096);
    for (int i = 1; i < 32; i++) {
        struct sigaction action;

        if (sigaction(i, NULL, &action) == 0)
            add_number((uintptr_t)action.sa_handler),
                add_number(action.sa_handler == on_signal ? (uint64_t)action.sa_flags : 0);
    }
    sigprocmask(SIG_BLOCK, NULL, &mask);
    add(&mask, 8);
    for (int i = 0; i < 16; i++) {
        struct rlimit limit;

        getrlimit(i, &limit);
        add_number(limit.rlim_cur), add_number(limit.rlim_max);
    }
    for (int fd = 0; fd < 64; fd++) {
        int flags = fcntl(fd, F_GETFD);

        add_number((uint64_t)flags);
        if (flags >= 0 && fd > 2)
            add_number((uint64_t)(fcntl(fd, F_GETFL) & ~O_NOFOLLOW)),
                add_number((uint64_t)lseek(fd, 0, SEEK_CUR));
    }
    add_number((uintptr_t)sbrk(0));
}

int main(void) {
    static char line[64], word[32];

    stack_used = (uintptr_t)__builtin_frame_address(0);
    brk_start = sbrk(0);
    brk_start = (char *)(((uintptr_t)brk_start + PAGE - 1) & ~(PAGE - 1));
    (void)!sbrk(brk_start - (char *)sbrk(0));
    for (size_t n = 0; read(0, line + n, 1) == 1;) {
        if (line[n] != '\n') {
            n = n + 1 < sizeof line ? n + 1 : n;
            continue;
        }
        line[n] = '\0';
        n = 0;
        if (line[0] != '?') {
            chance = strtoull(line, NULL, 10);
            for (unsigned i = 0, many = 1 + (unsigned)below(12); i < many; i++)
                change();
        }
        memset(line, 0, sizeof line);
        digest = 14695981039346656037ull;
        add_mappings();
        add_rest();
        int length = snprintf(word, sizeof word, "%016llx\n", (unsigned long long)digest);
        (void)!write(1, word, (size_t)length);
        memset(word, 0, sizeof word);
    }
    return 0;
}
