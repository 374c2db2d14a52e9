/* SPDX-License-Identifier: Apache-2.0 */
/* Capturing: what is read of /proc, and what is refused, each on a process of this test's own. */
#include <errno.h>
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
#include "dump/dump.h"
#include "image/process_image.h"
#include "test.h"

TEST(map_lines) {
    char file[] = "7f00-8000 r-xp 00001000 fd:01 1234      /usr/lib/a b\\012c (deleted)",
         bare[] = "1000-2000 rw-s 00000000 00:00 0", wrong[] = "2000-1000 r--p 00000000 00:00 0 ";
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

/* An "init" of this test's own with a shell and what that starts, which is of another program than
 * this and so is captured. */
static pid_t sandbox(const char *script, int *ret_end) {
    int ready[2], input[2];
    char byte;

    ASSERT_OK(pipe(ready));
    ASSERT_OK(pipe(input));
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (dup2(input[0], 0) < 0 || dup2(ready[1], 1) < 0 || dup2(ready[1], 2) < 0 ||
                syscall(SYS_close_range, 3, ~0u, 0) < 0 || setsid() < 0)
                _exit(1);
            execl("/bin/sh", "sh", "-c", script, (char *)NULL);
            _exit(1);
        }
        close(input[1]);
        int status = 0;
        (void)wait(&status);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    }
    close(input[0]);
    close(ready[1]);
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *ret_end = input[1];
    return pid;
}

static int ended(pid_t pid, int end) {
    int status;

    close(end); /* the end of its input is what it waits for */
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The processes resume as if nothing had happened, and the image has their state. */
TEST(dumped_process_resumes) {
    struct rollbox_error error = { 0 };
    struct dump *done = NULL;
    struct stat st;
    int end, fd = memfd_create("image", 0);
    static _Alignas(64) char whole[64 << 20];
    pid_t pid = sandbox(
        "(sleep 1000 & echo $!; exec >&- 2>&-; wait) & echo ready; read x; kill $!; exit 7", &end);
    struct stat outside;

    ASSERT_OK(fstat(end, &outside));
    uint64_t externals[] = { outside.st_ino };
    struct dump_options options = {
        .init = pid, .externals = externals, .n_externals = 1, .max_bytes = 32 << 20
    };
    int r = dump_begin(&options, fd, &done, &error);
    if (r == -EPERM || r == -EACCES)
        SKIP("ptrace", "this process may not trace its children here");
    if (r < 0)
        FAIL("%s", error.message);
    struct dump_summary summary = dump_summary(done);
    ASSERT_TRUE(summary.processes >= 2 && summary.threads == summary.processes);
    dump_end(done);
    ASSERT_OK(fstat(fd, &st));
    ASSERT_TRUE(st.st_size > (off_t)sizeof(struct image) && st.st_size < (off_t)sizeof whole);
    ASSERT_EQ(pread(fd, whole, (size_t)st.st_size, 0), st.st_size);
    const struct image *image = (const void *)(whole + st.st_size - sizeof *image);
    ASSERT_EQ(image->magic, IMAGE_MAGIC);
    ASSERT_EQ(image->length, st.st_size);
    ASSERT_EQ(image->processes.n, summary.processes);
    ASSERT_EQ(image->n_externals, 1);
    const struct image_process *first = image_table(image, whole, processes, struct image_process);
    ASSERT_EQ(first->session, first->pid);
    ASSERT_EQ(first->parent, 0);
    ASSERT_EQ(first[1].parent, 1);
    const struct image_area *areas =
        image_table(image, whole, areas, struct image_area) + first->areas.first;
    unsigned stacks = 0, vdsos = 0;
    for (uint32_t i = 0; i < first->areas.n; i++) {
        ASSERT_TRUE(areas[i].start < areas[i].end && (!i || areas[i].start >= areas[i - 1].end));
        stacks += areas[i].kind == IMAGE_STACK;
        vdsos += areas[i].kind == IMAGE_VDSO;
    }
    ASSERT_EQ(stacks, 1);
    ASSERT_EQ(vdsos, 1);
    ASSERT_EQ(ended(pid, end), 7);
    close(fd);
}

TEST(refused_by_name) {
    struct rollbox_error error = { 0 };
    struct dump *done = NULL;
    int end, fd = memfd_create("image", 0);
    pid_t pid = sandbox("echo ready; read x; exit 7", &end);
    struct dump_options options = { .init = pid, .max_bytes = 4096 };
    int r = dump_begin(&options, fd, &done, &error);

    if (r == -EPERM || r == -EACCES)
        SKIP("ptrace", "this process may not trace its children here");
    ASSERT_TRUE(r < 0 && !done);
    if (!strstr(error.message, "more than 4096 bytes"))
        FAIL("%s", error.message);
    options.max_bytes = 32 << 20;
    options.is_command = true;
    options.call = SYS_write;
    ASSERT_EQ(ended(pid, end), 7);
    close(fd);
}
