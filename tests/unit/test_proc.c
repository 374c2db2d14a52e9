/* SPDX-License-Identifier: Apache-2.0 */
/* /proc as it is here: trees of processes of known shape and size; and the made-up files, from
 * texts of other machines. */
#include "test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "sys/proc.h"

#define MIB (UINT64_C(1) << 20)

static void stand_still(void) {
    for (;;)
        pause();
}

static void *stand_still_thread(void *argument) {
    (void)argument;
    stand_still();
    return NULL;
}

/* The root of a tree stands for a sandbox's init: what its descendants leave behind comes to it,
 * and goes with it. It is ready when the last byte has come; then `work` returned in all. */
static pid_t spawn_tree(void (*work)(int ready_fd), int n_ready) {
    int ready[2];
    char byte;
    pid_t pid;

    if (access("/proc/thread-self/children", F_OK) < 0)
        SKIP("proc_children", "this kernel has no /proc/PID/task/TID/children");
    ASSERT_CALL(pipe2(ready, O_CLOEXEC));
    pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(ready[1]);
        stand_still();
    }
    close(ready[1]);
    for (int i = 0; i < n_ready; i++)
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void tell(int ready_fd) {
    (void)!write(ready_fd, "", 1);
}

static pid_t child(int ready_fd) {
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        tell(ready_fd);
    }
    return pid;
}

static void end_tree(pid_t pid) {
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
}

static char *map(uint64_t bytes, int flags) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        _exit(9);
    for (uint64_t i = 0; i < bytes; i += 4096)
        memory[i] = 1;
    return memory;
}

/* A child, its child, and so on: 5 in all with the root; and 300 siblings. */
static void deep_and_wide(int ready_fd) {
    for (int i = 0; i < 300; i++)
        if (child(ready_fd) == 0)
            stand_still();
    for (int depth = 0; depth < 4; depth++)
        if (child(ready_fd) != 0)
            stand_still();
}

TEST(scan_finds_all_descendants) {
    struct proc_usage usage;
    pid_t init = spawn_tree(deep_and_wide, 304);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_EQ(usage.processes, 305);
    ASSERT_EQ(usage.threads, 305);
    ASSERT_FALSE(usage.truncated);
    end_tree(init);
}

static void *fork_in_thread(void *argument) {
    if (child(*(int *)argument) == 0)
        stand_still();
    stand_still();
    return NULL;
}

static void threads(int ready_fd) {
    static int fd;
    pthread_t thread;

    fd = ready_fd;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&thread, NULL, stand_still_thread, NULL) != 0)
            _exit(9);
    if (pthread_create(&thread, NULL, fork_in_thread, &fd) != 0)
        _exit(9);
}

TEST(scan_finds_children_of_threads) {
    struct proc_usage usage;
    pid_t init = spawn_tree(threads, 1);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_EQ(usage.processes, 2);
    ASSERT_EQ(usage.threads, 6);
    end_tree(init);
}

static void zombie(int ready_fd) {
    pid_t pid = fork();
    siginfo_t info;

    if (pid == 0)
        _exit(0);
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    tell(ready_fd);
}

TEST(scan_counts_zombies) {
    struct proc_usage usage;
    pid_t init = spawn_tree(zombie, 1);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_EQ(usage.processes, 2);
    end_tree(init);
}

static void memory_of_each_kind(int ready_fd) {
    map(20 * MIB, MAP_PRIVATE);
    map(30 * MIB, MAP_SHARED);
    for (int i = 0; i < 3; i++)
        if (child(ready_fd) == 0)
            stand_still();
    tell(ready_fd);
}

TEST(scan_counts_memory_and_exact_scan_divides_what_is_shared) {
    struct proc_usage usage;
    pid_t init = spawn_tree(memory_of_each_kind, 4);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_EQ(usage.processes, 4);
    /* Private memory is in each, copied on write; shared pages a child maps only when it touches
     * them. */
    ASSERT_GE(usage.anon_bytes, (4 * 20 + 30) * MIB);
    ASSERT_OK(proc_scan_exact(init, &usage));
    if (geteuid() != 0 && usage.anon_bytes > 80 * MIB)
        SKIP("ptrace", "smaps_rollup of the same user's processes cannot be read");
    ASSERT_GE(usage.anon_bytes, 50 * MIB);
    ASSERT_LE(usage.anon_bytes, 60 * MIB);
    end_tree(init);
}

/* Written, never mapped: in no resident set. Open in two processes and twice in one. */
static void memory_files(int ready_fd) {
    int fd = memfd_create("hidden", MFD_CLOEXEC);
    char *data = map(MIB, MAP_PRIVATE);

    for (int i = 0; i < 40; i++)
        if (write(fd, data, MIB) != (ssize_t)MIB)
            _exit(9);
    if (dup(fd) < 0)
        _exit(9);
    if (child(ready_fd) == 0)
        stand_still();
    tell(ready_fd);
}

TEST(exact_scan_finds_unmapped_memory_files) {
    struct proc_usage usage;
    pid_t init = spawn_tree(memory_files, 2);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_LE(usage.anon_bytes, 20 * MIB);
    ASSERT_OK(proc_scan_exact(init, &usage));
    if (geteuid() != 0 && usage.anon_bytes < 40 * MIB)
        SKIP("ptrace", "the descriptors of the same user's processes cannot be read");
    ASSERT_GE(usage.anon_bytes, 40 * MIB);
    ASSERT_LE(usage.anon_bytes, 60 * MIB);
    end_tree(init);
}

static void burn(int ready_fd) {
    pid_t pid = fork();

    if (pid == 0) {
        struct timespec used;

        do
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        while (used.tv_sec == 0 && used.tv_nsec < 200000000);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    tell(ready_fd);
}

TEST(scan_counts_cpu_of_the_reaped) {
    struct proc_usage usage;
    pid_t init = spawn_tree(burn, 1);

    ASSERT_OK(proc_scan(init, &usage));
    ASSERT_EQ(usage.processes, 1);
    ASSERT_GE(
        usage.cpu_ns, 180000000); /* it has burnt 200 ms, which the kernel may tell in ticks */
    ASSERT_LE(usage.cpu_ns, 400000000);
    end_tree(init);
}

/* Processes that come and go as fast as they can, some leaving a child to init. */
static void churn(int ready_fd) {
    signal(SIGCHLD, SIG_IGN); /* the dead go at once */
    for (int i = 0; i < 4; i++)
        if (child(ready_fd) == 0)
            for (;;) {
                pid_t pid = fork();

                if (pid == 0) {
                    (void)!fork();
                    _exit(0);
                }
                while (waitpid(-1, NULL, 0) > 0)
                    ;
            }
}

TEST(scan_bears_vanishing_processes) {
    struct proc_usage usage;
    pid_t init = spawn_tree(churn, 4);

    for (int64_t end = clock_now_ns() + 200000000; clock_now_ns() < end;) {
        ASSERT_OK(proc_scan(init, &usage));
        ASSERT_GE(usage.processes, 1);
        ASSERT_OK(proc_scan_exact(init, &usage));
    }
    end_tree(init);
}

TEST(scan_of_nobody) {
    struct proc_usage usage;
    pid_t pid = (pid_t)ASSERT_CALL(fork());

    if (pid == 0)
        _exit(0);
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
    ASSERT_ERR(proc_scan(pid, &usage), -ESRCH);
    ASSERT_ERR(proc_scan_exact(pid, &usage), -ESRCH);
    ASSERT_ERR(proc_start_time(pid), -ESRCH);
}

TEST(start_time_tells_processes_apart_whatever_their_name) {
    int64_t own = proc_start_time(getpid());
    struct timespec now;
    pid_t pid;

    ASSERT_GT(own, 0);
    clock_gettime(CLOCK_BOOTTIME, &now);
    ASSERT_LE(own, (now.tv_sec + 1) * sysconf(_SC_CLK_TCK));
    ASSERT_EQ(prctl(PR_SET_NAME, ") R 1 (x"), 0);
    ASSERT_EQ(proc_start_time(getpid()), own);
    ASSERT_GT(proc_start_time(1), 0);
    ASSERT_LE(proc_start_time(1), own);
    ASSERT_EQ(poll(NULL, 0, 30), 0); /* start times have a resolution of 10 ms */
    pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0)
        stand_still();
    ASSERT_GT(proc_start_time(pid), own);
    kill(pid, SIGKILL);
    ASSERT_EQ(waitid(P_PID, (id_t)pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
    ASSERT_ERR(proc_start_time(pid), -ESRCH); /* dead, though not gone */
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(parent_is_found_under_any_name) {
    ASSERT_EQ(prctl(PR_SET_NAME, ") R 1 (x"), 0);
    pid_t pid = (pid_t)ASSERT_CALL(fork());

    if (pid == 0)
        stand_still();
    ASSERT_EQ(proc_parent(pid), getpid());
    ASSERT_EQ(proc_parent(getpid()), getppid());
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
    ASSERT_ERR(proc_parent(pid), -ESRCH);
}

TEST(host_figures) {
    uint64_t available, total;

    ASSERT_GE(proc_oom_kill_count(), 0);
    ASSERT_OK(proc_memory_available(&available, &total));
    ASSERT_GT(available, MIB);
    ASSERT_GT(total, available);
    ASSERT_OK(proc_memory_available(&available, NULL));
}

/* ---- made-up files ---- */

static const char cpuinfo[] = "processor\t: 0\nmodel name\t: Fast CPU: fourth\nsiblings\t: 8\ncpu "
                              "cores\t: 4\nflags\t\t: fpu sse2\n\n"
                              "processor\t: 1\nmodel name\t: Fast CPU: fourth\nsiblings\t: 8\ncpu "
                              "cores\t: 4\nflags\t\t: fpu sse2\n\n"
                              "processor\t: 2\nmodel name\t: Fast CPU: fourth\nsiblings\t: 8\ncpu "
                              "cores\t: 4\nflags\t\t: fpu sse2\n\n";

TEST(cpuinfo_is_cut) {
    auto_buf struct buf text = BUF_INIT;

    ASSERT_OK(proc_fake_cpuinfo(cpuinfo, sizeof(cpuinfo) - 1, 1, &text));
    ASSERT_STR_EQ(text.data, "processor\t: 0\nmodel name\t: Fast CPU: fourth\nsiblings\t: 1\ncpu "
                             "cores\t: 1\nflags\t\t: fpu sse2\n\n");
}

TEST(cpuinfo_with_more_wanted_than_there_are) {
    auto_buf struct buf text = BUF_INIT;

    ASSERT_OK(proc_fake_cpuinfo(cpuinfo, sizeof(cpuinfo) - 1, 64, &text));
    ASSERT_MEM_EQ(text.data, text.length, cpuinfo, sizeof(cpuinfo) - 1);
}

TEST(cpuinfo_that_is_cut_off_or_empty) {
    for (size_t length = 0; length < sizeof(cpuinfo); length++) {
        auto_buf struct buf text = BUF_INIT;
        auto_free char *exact = malloc(length + 1);

        ASSERT_NOT_NULL(exact);
        memcpy(exact, cpuinfo, length);
        ASSERT_OK(proc_fake_cpuinfo(exact, length, 2, &text));
        ASSERT_LE(text.length, length + 3);
    }
}

TEST(stat_has_a_line_for_each_cpu) {
    auto_buf struct buf text = BUF_INIT;

    ASSERT_OK(proc_fake_stat(2, 1735689600, &text));
    ASSERT_STR_CONTAINS(text.data, "cpu  0 0 0 200 0 0 0 0 0 0\ncpu0 0 0 0 100 0 0 0 0 0 0\ncpu1 0 "
                                   "0 0 100 0 0 0 0 0 0\nintr 0\n");
    ASSERT_STR_CONTAINS(text.data, "\nbtime 1735689600\n");
    ASSERT_NULL(strstr(text.data, "cpu2"));
}

static const char meminfo[] =
    "MemTotal:       24684084 kB\nMemFree:        23127584 kB\nMemAvailable:   24307300 "
    "kB\nCached:          1325264 kB\n"
    "SwapTotal:        999999 kB\n"
    "HugePages_Total:       7\nHugepagesize:       2048 kB\nDirectMap4k:      123456 kB\n";

TEST(meminfo_shows_the_limit) {
    auto_buf struct buf text = BUF_INIT;

    ASSERT_OK(proc_fake_meminfo(meminfo, sizeof(meminfo) - 1, 512 * MIB, &text));
    ASSERT_STR_EQ(text.data,
        "MemTotal:         524288 kB\nMemFree:          524288 kB\nMemAvailable:     524288 "
        "kB\nCached:                0 kB\n"
        "SwapTotal:             0 kB\n"
        "HugePages_Total:       0\nHugepagesize:       2048 kB\nDirectMap4k:           0 kB\n");
}

TEST(meminfo_without_a_limit_or_with_more_than_the_host_has) {
    auto_buf struct buf none = BUF_INIT, large = BUF_INIT;

    ASSERT_OK(proc_fake_meminfo(meminfo, sizeof(meminfo) - 1, 0, &none));
    ASSERT_STR_CONTAINS(none.data, "MemTotal:       24684084 kB\nMemFree:        24684084 kB\n");
    ASSERT_OK(proc_fake_meminfo(meminfo, sizeof(meminfo) - 1, UINT64_MAX, &large));
    ASSERT_STR_EQ(large.data, none.data);
}

TEST(meminfo_that_is_cut_off_or_nonsense) {
    auto_buf struct buf text = BUF_INIT;

    for (size_t length = 0; length < sizeof(meminfo); length++) {
        auto_free char *exact = malloc(length + 1);
        int r;

        ASSERT_NOT_NULL(exact);
        memcpy(exact, meminfo, length);
        r = proc_fake_meminfo(exact, length, MIB, &text);
        if (r < 0)
            ASSERT_ERR(r, -EBADMSG);
    }
    ASSERT_ERR(proc_fake_meminfo("nothing", 7, MIB, &text), -EBADMSG);
}

TEST(files_of_this_host_can_be_made_up) {
    auto_buf struct buf host = BUF_INIT, text = BUF_INIT;

    ASSERT_OK(fd_read_file("/proc/cpuinfo", 16 * MIB, &host));
    ASSERT_OK(proc_fake_cpuinfo(host.data, host.length, 1, &text));
    ASSERT_GT(text.length, 0);
    buf_done(&host);
    host = BUF_INIT;
    ASSERT_OK(fd_read_file("/proc/meminfo", MIB, &host));
    ASSERT_OK(proc_fake_meminfo(host.data, host.length, 64 * MIB, &text));
    ASSERT_STR_CONTAINS(text.data, "MemTotal:          65536 kB\n");
    ASSERT_OK(proc_fake_loadavg(&text));
    ASSERT_STR_CONTAINS(text.data, "0.00 0.00 0.00 ");
}

/* ---- the caller itself ---- */

static void copy_own_program(const char *to) {
    auto_close int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    auto_close int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    ssize_t n;

    ASSERT_TRUE(from >= 0 && fd >= 0);
    while ((n = sendfile(fd, from, NULL, (size_t)1 << 20)) > 0)
        ;
    ASSERT_EQ(n, 0);
}

/* The case starts itself again from a copy of this program, and the copy removes its own file. */
TEST(own_program_has_a_path_after_its_file_was_removed) {
    const char *copy = getenv("PROC_OWN_COPY");
    auto_free char *path = NULL;
    int status;

    if (copy) {
        ASSERT_EQ(unlink(copy), 0);
        auto_free char *own = proc_own_program();
        ASSERT_STR_EQ(own, copy);
        return;
    }
    ASSERT_TRUE(asprintf(&path, "%s/copy", test_directory()) > 0);
    copy_own_program(path);
    ASSERT_EQ(setenv("PROC_OWN_COPY", path, 1), 0);
    pid_t pid = fork();
    if (pid == 0) {
        execl(path, path, "own_program_has_a_path_after_its_file_was_removed", (char *)NULL);
        _exit(127);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
}
