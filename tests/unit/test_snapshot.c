/* SPDX-License-Identifier: Apache-2.0 */
/* Capturing: what is read of /proc, and what is refused, each on a process of this test's own. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/image.h"
#include "snapshot/capture.h"
#include "test.h"

TEST(map_lines) {
    char file[] = "7f00-8000 r-xp 00001000 fd:01 1234      /usr/lib/a b\\012c (deleted)", bare[] = "1000-2000 rw-s 00000000 00:00 0", wrong[] = "2000-1000 r--p 00000000 00:00 0 ";
    char flags[] = "1000-2000 rwzp 00000000 00:00 0", cut[] = "1000-2000 rw";
    struct map_line map;

    ASSERT_OK(map_line_parse(file, &map));
    ASSERT_EQ(map.start, 0x7f00);
    ASSERT_EQ(map.end, 0x8000);
    ASSERT_EQ(map.protection, PROT_READ | PROT_EXEC);
    ASSERT_EQ(map.offset, 0x1000);
    ASSERT_EQ(map.inode, 1234);
    ASSERT_TRUE(!map.is_shared);
    ASSERT_STR_EQ(map.path, "/usr/lib/a b\nc (deleted)");
    ASSERT_OK(map_line_parse(bare, &map));
    ASSERT_TRUE(map.is_shared);
    ASSERT_STR_EQ(map.path, "");
    ASSERT_EQ(map_line_parse(wrong, &map), -EBADMSG);
    ASSERT_EQ(map_line_parse(flags, &map), -EBADMSG);
    ASSERT_EQ(map_line_parse(cut, &map), -EBADMSG);
}

/* What instruments a program gives it terabytes of mappings, which nobody captures. */
#if !defined(__SANITIZE_ADDRESS__)

/* The harness shares memory with its cases, which could not be captured. */
static void leave_harness(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char lines[64][512];
    size_t n = 0;

    while (maps && n < 64 && fgets(lines[n], sizeof lines[n], maps)) {
        struct map_line map;

        lines[n][strcspn(lines[n], "\n")] = '\0';
        n += map_line_parse(lines[n], &map) == 0 && map.is_shared;
    }
    if (maps)
        fclose(maps);
    for (size_t i = 0; i < n; i++)
        munmap((void *)(uintptr_t)strtoull(lines[i], NULL, 16), strtoull(strchr(lines[i], '-') + 1, NULL, 16) - strtoull(lines[i], NULL, 16));
}

/* A child that has done what the case is about and waits in read(2), as what is captured does. */
static pid_t waiting(void (*prepare)(void), int *ret_end) {
    int ready[2], input[2];
    char byte;

    ASSERT_OK(pipe(ready));
    ASSERT_OK(pipe(input));
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        leave_harness();
        if (prepare)
            prepare();
        if (dup2(input[0], 3) < 0 || dup2(ready[1], 4) < 0 || syscall(SYS_close_range, 5, ~0u, 0) < 0 || write(4, "", 1) != 1)
            _exit(1);
        syscall(SYS_read, 3, &byte, 1);
        _exit(7);
    }
    close(input[0]);
    close(ready[1]);
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *ret_end = input[1];
    return pid;
}

static int capture(pid_t pid, uint64_t most, int fd, struct rollbox_error *error) {
    struct capture_options options = { .pid = pid, .call = SYS_read, .highest_fd = 4, .most_bytes = most };

    return capture_process(&options, fd, error);
}

static int ended(pid_t pid, int end) {
    int status;

    close(end);                 /* the end of its input is what it waits for */
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* It goes on as if nothing had been, and the image says what it was. */
TEST(captured_and_goes_on) {
    struct rollbox_error error = { 0 };
    struct stat st;
    int end, fd = memfd_create("image", 0);
    static _Alignas(64) char whole[64 << 20];

    pid_t pid = waiting(NULL, &end);
    int r = capture(pid, 32 << 20, fd, &error);
    if (r == -EPERM || r == -EACCES)
        SKIP("ptrace", "this process may not trace its children here");
    if (r < 0)
        FAIL("%s", error.message);
    ASSERT_OK(fstat(fd, &st));
    ASSERT_TRUE(st.st_size > (off_t)sizeof(struct image) && st.st_size < (off_t)sizeof whole);
    ASSERT_EQ(pread(fd, whole, (size_t)st.st_size, 0), st.st_size);
    const struct image *image = (const void *)(whole + st.st_size - sizeof *image);
    ASSERT_EQ(image->magic, IMAGE_MAGIC);
    ASSERT_EQ(image->length, st.st_size);
    ASSERT_EQ(image->process.pid, pid);
    ASSERT_EQ(image->process.registers.rax, SYS_read);
    ASSERT_EQ(image->process.registers.rdi, 3);
    ASSERT_TRUE(image->n_areas > 5 && image->n_runs > 0);
    const struct image_area *areas = image_at(whole, image->areas, struct image_area);
    unsigned stacks = 0, vdsos = 0;
    for (uint64_t i = 0; i < image->n_areas; i++) {
        ASSERT_TRUE(areas[i].start < areas[i].end && (!i || areas[i].start >= areas[i - 1].end));
        stacks += areas[i].kind == IMAGE_STACK;
        vdsos += areas[i].kind == IMAGE_VDSO;
    }
    ASSERT_EQ(stacks, 1);
    ASSERT_EQ(vdsos, 1);
    ASSERT_EQ(ended(pid, end), 7);
    close(fd);
}

static void refused(void (*prepare)(void), uint64_t most, const char *why) {
    struct rollbox_error error = { 0 };
    int end, fd = memfd_create("image", 0);
    pid_t pid = waiting(prepare, &end);

    int r = capture(pid, most, fd, &error);
    if (r == -EPERM || r == -EACCES)
        SKIP("ptrace", "this process may not trace its children here");
    ASSERT_TRUE(r < 0);
    if (!strstr(error.message, why))
        FAIL("%s", error.message);
    (void)kill(pid, SIGKILL);
    ASSERT_EQ(ended(pid, end), -1);
    close(fd);
}

static void *sleeping(void *unused) {
    pause();
    return unused;
}

static void with_thread(void) {
    pthread_t thread;

    pthread_create(&thread, NULL, sleeping, NULL);
}

static void with_shared_memory(void) {
    (void)!mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void with_child(void) {
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
}

static void with_signal(void) {
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
}

static void with_timer(void) {
    struct sigevent none = { .sigev_notify = SIGEV_NONE };
    timer_t timer;

    timer_create(CLOCK_MONOTONIC, &none, &timer);
}

static void with_low_memory(void) {
    (void)!mmap((void *)0x200000, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

static void with_reservation(void) {
    (void)!mmap(NULL, 2ull << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void with_much(void) {
    memset(mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 8 << 20);
}

TEST(refused_by_name) {
    refused(with_thread, 32 << 20, "2 threads");
    refused(with_shared_memory, 32 << 20, "shares writable memory");
    refused(with_child, 32 << 20, "children");
    refused(with_signal, 32 << 20, "signals are pending");
    refused(with_timer, 32 << 20, "timers");
    refused(with_low_memory, 32 << 20, "memory at 0x200000");
    refused(with_reservation, 32 << 20, "mapping of 2147483648 bytes");
    refused(with_much, 4 << 20, "more than 4194304 bytes");
}

#endif
