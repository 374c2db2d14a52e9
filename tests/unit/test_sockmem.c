/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in the sockets of a network namespace: of a child, as an engine asks about a guest. */
#include "test.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sys/sockmem.h"

#define MANY 3000
#define MESSAGE 100000

static void make_idle(void) {
    for (int i = 0; i < MANY; i++)
        ASSERT_TRUE(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) >= 0);
}

/* The first is empty, and is all that the kernel tells of. */
static void leave_datagrams(void) {
    const struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "\0receiver" };
    static const char content[MESSAGE];
    int receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    ASSERT_TRUE(receiver >= 0 && bind(receiver, (const void *)&name, sizeof name) == 0);
    for (int i = 0; i < 5; i++) {
        int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        ASSERT_TRUE(sender >= 0 && sendto(sender, content, i ? MESSAGE : 0, 0, (const void *)&name,
                                       sizeof name) == (i ? MESSAGE : 0));
        close(sender);
    }
}

/* Its sockets are there. */
static pid_t begin(void (*work)(void)) {
    struct rlimit files;
    int ready[2];
    char byte;

    ASSERT_OK(getrlimit(RLIMIT_NOFILE, &files) < 0 ? -errno : 0);
    if (files.rlim_max < MANY + 100)
        SKIP("files", "a limit of %d open files is needed", MANY + 100);
    ASSERT_OK(pipe(ready) < 0 ? -errno : 0);
    pid_t pid = fork();
    if (pid == 0) {
        files.rlim_cur = files.rlim_max;
        ASSERT_OK(setrlimit(RLIMIT_NOFILE, &files) < 0 ? -errno : 0);
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
            SKIP("userns", "unshare: %s", strerror(errno));
        work();
        ASSERT_EQ(write(ready[1], "", 1), 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        _exit(0); /* it has said why */
    close(ready[0]);
    return pid;
}

TEST(many_sockets_in_parts) {
    struct sockmem sockmem;
    uint64_t whole = 0, bytes = 0;
    int r, parts = 0;

    pid_t pid = begin(make_idle);
    ASSERT_OK(sockmem_open(getpid(), &sockmem));
    ASSERT_EQ(
        sockmem_usage(&sockmem, SOCKMEM_UNIX | SOCKMEM_INET, UINT64_MAX, INT64_MAX, &whole), 1);
    while ((r = sockmem_usage(&sockmem, SOCKMEM_UNIX | SOCKMEM_INET, UINT64_MAX, 0, &bytes)) == 0)
        parts++;
    ASSERT_EQ(r, 1);
    ASSERT_GT(parts, 5);
    ASSERT_EQ(bytes, whole);
    ASSERT_GE(whole, MANY * 1024);
    ASSERT_LT(whole, MANY * 8192); /* idle ones are empty */
    /* It is known to be too much before all of them are. */
    ASSERT_EQ(sockmem_usage(&sockmem, SOCKMEM_UNIX, 1 << 20, INT64_MAX, &bytes), 1);
    ASSERT_GT(bytes, 1 << 20);
    ASSERT_LT(bytes, whole);
    sockmem_close(&sockmem);
    kill(pid, SIGKILL);
}

TEST(datagrams_of_senders_that_are_gone) {
    struct sockmem sockmem;
    uint64_t bytes = 0;

    pid_t pid = begin(leave_datagrams);
    ASSERT_OK(sockmem_open(getpid(), &sockmem));
    ASSERT_EQ(sockmem_usage(&sockmem, SOCKMEM_UNIX, UINT64_MAX, INT64_MAX, &bytes), 1);
    ASSERT_GE(bytes, 4 * MESSAGE);
    sockmem_close(&sockmem);
    kill(pid, SIGKILL);
}

/* As on a host where hundreds were loaded since: the kernel tells of the oldest last. */
TEST(many_protocols) {
    struct sockmem sockmem;
    uint64_t bytes = 0;
    char first[4096];

    pid_t pid = begin(leave_datagrams);
    ASSERT_OK(sockmem_open(getpid(), &sockmem));
    ssize_t n = read(sockmem.protocols, first, sizeof first);
    ASSERT_GT(n, 0);
    const char *rows = memchr(first, '\n', (size_t)n);
    ASSERT_TRUE(rows++);
    FILE *more = tmpfile();
    ASSERT_TRUE(more && fwrite(first, 1, (size_t)(rows - first), more) == (size_t)(rows - first));
    for (int i = 0; i < 300; i++)
        ASSERT_GT(fprintf(more,
                      "OTHER%-6d 1000      0      -1   NI       0   yes  kernel      n  n  n\n", i),
            0);
    ASSERT_EQ(fwrite(rows, 1, (size_t)(n - (rows - first)), more), (size_t)(n - (rows - first)));
    ASSERT_EQ(fflush(more), 0);
    close(sockmem.protocols);
    sockmem.protocols = fileno(more);
    ASSERT_EQ(sockmem_usage(&sockmem, SOCKMEM_UNIX, UINT64_MAX, INT64_MAX, &bytes), 1);
    ASSERT_GE(bytes, 4 * MESSAGE);
    /* Each call measures again. */
    ASSERT_EQ(sockmem_usage(&sockmem, SOCKMEM_UNIX, UINT64_MAX, INT64_MAX, &bytes), 1);
    ASSERT_GE(bytes, 4 * MESSAGE);
    sockmem.protocols = -EBADF;
    sockmem_close(&sockmem);
    fclose(more);
    kill(pid, SIGKILL);
}
