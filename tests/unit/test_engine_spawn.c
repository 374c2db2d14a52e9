/* SPDX-License-Identifier: Apache-2.0 */
/* What a fork of the engine keeps of its descriptors: looked at by the kernel's own list of them. */
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"

#define HIGHEST 100

/* Each of the descriptors from 3 to HIGHEST is open before; whether exactly those of the list are afterwards. */
static void shed(const int *fds, size_t n_fds) {
    char name[16];
    sigset_t blocked;
    int status;

    pid_t pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        for (int fd = STDERR_FILENO + 1; fd <= HIGHEST; fd++)
            ASSERT_CALL(dup2(STDERR_FILENO, fd));
        ASSERT_OK(spawn_shed("rollbox-shed", fds, n_fds));
        for (int fd = STDIN_FILENO; fd <= HIGHEST; fd++) {
            bool kept = fd <= STDERR_FILENO;

            for (size_t i = 0; i < n_fds; i++)
                kept |= fds[i] == fd;
            ASSERT_EQ(fcntl(fd, F_GETFD) >= 0, kept);
        }
        ASSERT_EQ(getsid(0), getpid());
        ASSERT_CALL(prctl(PR_GET_NAME, name));
        ASSERT_STR_EQ(name, "rollbox-shed");
        ASSERT_CALL(sigprocmask(SIG_SETMASK, NULL, &blocked));
        ASSERT_TRUE(sigismember(&blocked, SIGTERM));
        _exit(0);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
}

TEST(nothing_is_kept_but_the_standard_streams) {
    shed(NULL, 0);
}

TEST(the_lowest_and_the_highest_are_kept) {
    shed((int[]){ STDERR_FILENO + 1, HIGHEST }, 2);
}

TEST(neighbours_are_kept_in_any_order) {
    shed((int[]){ 50, 7, 49, 51, 7 }, 5);
}

TEST(one_that_is_none_is_passed_over) {
    shed((int[]){ -EBADF, 9, -1 }, 3);
}

TEST(standard_streams_may_be_named) {
    shed((int[]){ STDIN_FILENO, STDERR_FILENO, 4 }, 3);
}
