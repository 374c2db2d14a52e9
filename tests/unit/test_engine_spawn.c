/* SPDX-License-Identifier: Apache-2.0 */
/* What a fork of the engine keeps of its descriptors: looked at by the kernel's own list of them.
 * And which it closes for the engine. */
#include "test.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/core/deferred_close.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define HIGHEST 100

/* Each of the descriptors from 3 to HIGHEST is open before; whether exactly those of the list are
 * afterwards. */
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

TEST(lowest_and_highest_are_kept) {
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

static void map_to_root(const char *path, unsigned id) {
    int fd = (int)ASSERT_CALL(open(path, O_WRONLY | O_CLOEXEC));

    ASSERT_TRUE(dprintf(fd, "0 %u 1", id) > 0);
    close(fd);
}

/* A detached tmpfs with so many files, in namespaces in which anybody may make one. */
static int new_tmpfs(unsigned n_files) {
    unsigned uid = geteuid(), gid = getegid();
    char name[16];

    ASSERT_CALL(unshare(CLONE_NEWUSER | CLONE_NEWNS));
    int groups = (int)ASSERT_CALL(open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(write(groups, "deny", 4), 4);
    close(groups);
    map_to_root("/proc/self/uid_map", uid);
    map_to_root("/proc/self/gid_map", gid);
    int fs = (int)ASSERT_CALL(sys_fsopen("tmpfs", FSOPEN_CLOEXEC));
    ASSERT_OK(sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    int mount = (int)ASSERT_CALL(sys_fsmount(fs, FSMOUNT_CLOEXEC, 0));
    close(fs);
    for (unsigned i = 0; i < n_files; i++) {
        snprintf(name, sizeof name, "%u", i);
        close((int)ASSERT_CALL(openat(mount, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
    }
    return mount;
}

TEST(slow_close_is_done_in_a_child) {
    siginfo_t ended = { 0 };

    int mount = new_tmpfs(1000);
    deferred_close(mount);
    ASSERT_EQ(fcntl(mount, F_GETFD), -1);
    ASSERT_CALL(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT));
    ASSERT_EQ(ended.si_status, 0);
    deferred_close_wait();
    ASSERT_EQ(waitpid(-1, NULL, 0), -1);
    ASSERT_EQ(errno, ECHILD);
}

TEST(remaining_closes_wait_and_run_together) {
    int first = new_tmpfs(300), mounts[200];
    unsigned most = 0;

    /* Copies of one mount: each is the last descriptor of none but the first's. */
    for (size_t i = 0; i < ARRAY_SIZE(mounts); i++)
        mounts[i] = (int)ASSERT_CALL(fcntl(first, F_DUPFD_CLOEXEC, 3));
    for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
        deferred_close(mounts[i]);
        most = MAX(most, deferred_close_waiting());
    }
    ASSERT_TRUE(most > 0 && most < ARRAY_SIZE(mounts));
    while (deferred_close_waiting()) {
        siginfo_t ended;

        ASSERT_CALL(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT));
        ASSERT_TRUE(deferred_close_look() > 0);
    }
    deferred_close(first);
    deferred_close_wait();
    for (size_t i = 0; i < ARRAY_SIZE(mounts); i++)
        ASSERT_EQ(fcntl(mounts[i], F_GETFD), -1);
    ASSERT_EQ(fcntl(first, F_GETFD), -1);
    ASSERT_EQ(waitpid(-1, NULL, 0), -1);
    ASSERT_EQ(errno, ECHILD);
}

/* Something to be closed, and an end that tells when it is, everywhere. */
static int new_end(int *ret_other) {
    int ends[2];

    ASSERT_CALL(pipe2(ends, O_CLOEXEC));
    *ret_other = ends[1];
    return ends[0];
}

static void await_closed(int end) {
    char byte;

    ASSERT_EQ(read(end, &byte, 1), 0);
    close(end);
}

static pid_t only_child(void) {
    pid_t pids[2];

    ASSERT_EQ(proc_children(getpid(), pids, ARRAY_SIZE(pids)), 1);
    return pids[0];
}

TEST(fast_closes_share_one_child) {
    int other, end = new_end(&other), mount = new_tmpfs(10);

    deferred_close(mount);
    ASSERT_EQ(fcntl(mount, F_GETFD), -1);
    pid_t closer = only_child();
    deferred_close(other);
    ASSERT_EQ(fcntl(other, F_GETFD), -1);
    await_closed(end);
    ASSERT_EQ(only_child(), closer);
    deferred_close_wait();
    ASSERT_EQ(waitpid(-1, NULL, 0), -1);
    ASSERT_EQ(errno, ECHILD);
}

TEST(closing_child_may_be_killed_at_any_time) {
    siginfo_t ended = { 0 };
    int others[3], ends[3];

    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        ends[i] = new_end(&others[i]);
    deferred_close(others[0]);
    pid_t closer = only_child();
    ASSERT_CALL(kill(closer, SIGKILL));
    ASSERT_CALL(waitid(P_PID, (id_t)closer, &ended, WEXITED | WNOWAIT));
    await_closed(ends[0]);     /* also if it was never looked at */
    deferred_close(others[1]); /* nobody has noticed yet */
    await_closed(ends[1]);
    (void)deferred_close_look();
    deferred_close(others[2]);
    ASSERT_TRUE(only_child() != closer);
    await_closed(ends[2]);
    deferred_close_wait();
    ASSERT_EQ(waitpid(-1, NULL, 0), -1);
    ASSERT_EQ(errno, ECHILD);
}

TEST(slow_closing_child_delays_nothing) {
    int other, end = new_end(&other);

    deferred_close((int)ASSERT_CALL(dup(other)));
    pid_t closer = only_child();
    ASSERT_CALL(kill(closer, SIGSTOP));
    for (size_t i = 0; i < 10000; i++)
        deferred_close((int)ASSERT_CALL(dup(other)));
    deferred_close(other);
    ASSERT_CALL(kill(closer, SIGCONT));
    deferred_close_wait();
    await_closed(end);
}

TEST(idle_closing_child_ends) {
    siginfo_t ended = { 0 };
    int other, end = new_end(&other);

    deferred_close((int)ASSERT_CALL(dup(other)));
    ASSERT_CALL(waitid(P_PID, (id_t)only_child(), &ended, WEXITED | WNOWAIT));
    ASSERT_EQ(ended.si_status, 0);
    deferred_close(other);
    await_closed(end);
    deferred_close_wait();
    ASSERT_EQ(waitpid(-1, NULL, 0), -1);
    ASSERT_EQ(errno, ECHILD);
}
