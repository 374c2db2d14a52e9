/* SPDX-License-Identifier: Apache-2.0 */
/* cgroups on the kernel at hand: each limit is met by a process that goes past it. Without a cgroup
 * that can be written, all but the first cases are skipped. */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define MIB (UINT64_C(1) << 20)

static struct cgroup_root *open_root(void) {
    struct features features;
    struct cgroup_root *root;

    features_quick(&features);
    ASSERT_OK(cgroup_root_open(&features, CGROUP_LIMITS_CPU_TIME_AND_FREEZER, &root));
    if (cgroup_root_backend(root) == CGROUP_NONE)
        SKIP("cgroup", "no cgroup of this machine can be written by uid %d", (int)geteuid());
    return root;
}

static struct cgroup_slot *new_slot(struct cgroup_root *root, struct cgroup_limits limits) {
    struct cgroup_slot *slot;

    ASSERT_OK(cgroup_slot_new(root, 1, &limits, false, &slot));
    return slot;
}

/* A process that waits until `go`[1] is closed, then is in the slot and does its work. */
static pid_t spawn_in(struct cgroup_slot *slot, void (*work)(void)) {
    int go[2];
    char byte;
    pid_t pid;

    ASSERT_CALL(pipe2(go, O_CLOEXEC));
    pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        close(go[1]);
        (void)!read(go[0], &byte, 1);
        work();
        _exit(0);
    }
    close(go[0]);
    ASSERT_OK(cgroup_slot_attach(slot, pid));
    close(go[1]);
    return pid;
}

static int wait_for(pid_t pid) {
    int status;

    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

static void touch(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        _exit(3);
    for (size_t i = 0; i < bytes; i += 4096)
        ((volatile char *)memory)[i] = 1;
}

static void touch_200_mib(void) {
    touch(200 * MIB);
}

static void touch_20_mib(void) {
    touch(20 * MIB);
}

static void stand_still(void) {
    for (;;)
        pause();
}

static void burn_50_ms(void) {
    for (int64_t end = clock_now_ns() + 50000000; clock_now_ns() < end;)
        ;
}

/* However busy the machine is. */
static void use_20_ms(void) {
    while (clock() < CLOCKS_PER_SEC / 50)
        ;
}

/* Shared with the process that takes turns until it is enough. */
static struct turns {
    _Atomic uint64_t taken;
    _Atomic bool enough;
} * turns;

static void take_turns(void) {
    while (!turns->enough)
        turns->taken++;
}

static void wait_for_turns_beyond(uint64_t number) {
    while (turns->taken <= number)
        sched_yield();
}

/* Exits with the number of children that could be made. */
static void fork_till_refused(void) {
    int n = 0;

    while (n < 100) {
        pid_t pid = fork();

        if (pid < 0)
            break;
        if (pid == 0)
            stand_still();
        n++;
    }
    _exit(n);
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

static struct cgroup_usage usage_of(struct cgroup_slot *slot) {
    struct cgroup_usage usage;

    ASSERT_OK(cgroup_slot_usage(slot, &usage));
    return usage;
}

/* The processes of a group leave it only when they are reaped. */
static void end(struct cgroup_root *root, struct cgroup_slot *slot) {
    const char *const *paths = cgroup_paths(root);
    char first[512];

    snprintf(first, sizeof(first), "%s", paths[0]);
    cgroup_slot_free(slot);
    ASSERT_EQ(cgroup_root_tidy(root), 0);
    cgroup_root_free(root);
    ASSERT_FALSE(exists(first));
}

TEST(masked_features_give_no_backend) {
    struct features features;
    struct cgroup_root *root;
    struct cgroup_slot *slot = NULL;

    features_quick(&features);
    features.cgroup_v1 = features.cgroup_v2 = false;
    ASSERT_OK(cgroup_root_open(&features, CGROUP_LIMITS_CPU_TIME_AND_FREEZER, &root));
    ASSERT_EQ(cgroup_root_backend(root), CGROUP_NONE);
    ASSERT_NULL(cgroup_paths(root)[0]);
    ASSERT_ERR(cgroup_slot_new(root, 1, NULL, false, &slot), -EOPNOTSUPP);
    ASSERT_NULL(slot);
    ASSERT_EQ(cgroup_sweep(root), 0);
    ASSERT_EQ(cgroup_root_tidy(root), 0);
    ASSERT_NULL(cgroup_root_free(root));
}

TEST(opening_makes_nothing) {
    struct cgroup_root *root = open_root();

    ASSERT_NOT_NULL(cgroup_paths(root)[0]);
    for (size_t i = 0; cgroup_paths(root)[i] != NULL; i++)
        ASSERT_FALSE(exists(cgroup_paths(root)[i]));
    cgroup_root_free(root);
}

TEST(memory_limit_ends_the_process_and_is_reported) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .memory_bytes = 32 * MIB });
    struct cgroup_usage usage;
    int status;

    if (cgroup_slot_oom_fd(slot) >= 0 && cgroup_root_backend(root) == CGROUP_V1) {
        struct pollfd poll_fd = { .fd = cgroup_slot_oom_fd(slot), .events = POLLIN };

        ASSERT_EQ(poll(&poll_fd, 1, 0), 0);
    }
    status = wait_for(spawn_in(slot, touch_200_mib));
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    if (cgroup_slot_oom_fd(slot) >= 0) {
        struct pollfd poll_fd = { .fd = cgroup_slot_oom_fd(slot),
            .events = cgroup_slot_oom_events(slot) == EPOLLPRI ? POLLPRI : POLLIN };

        ASSERT_EQ(poll(&poll_fd, 1, 1000), 1);
    }
    usage = usage_of(slot); /* after the poll: reading is what ends the event on v2 */
    ASSERT_EQ(usage.oom_kills, 1);
    ASSERT_GT(usage.memory_limit_hits, 0);
    ASSERT_GE(usage.memory_peak, 31 * MIB);
    ASSERT_LE(usage.memory_peak, 32 * MIB);
    end(root, slot);
}

TEST(reset_starts_counts_afresh) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .memory_bytes = 32 * MIB });
    struct features features;
    struct cgroup_usage usage;

    wait_for(spawn_in(slot, touch_200_mib));
    wait_for(spawn_in(slot, use_20_ms));
    ASSERT_EQ(usage_of(slot).oom_kills, 1);
    ASSERT_GE(usage_of(slot).cpu_ns, 10000000);
    ASSERT_OK(cgroup_slot_reset(slot, UINT64_MAX));
    usage = usage_of(slot);
    ASSERT_EQ(usage.oom_kills, 0);
    ASSERT_EQ(usage.memory_limit_hits, 0);
    ASSERT_LE(usage.cpu_ns, 1000000);
    ASSERT_LE(usage.memory_peak, 2 * MIB);
    ASSERT_EQ(usage.processes_now, 0);
    ASSERT_OK(cgroup_slot_limit(slot, &(struct cgroup_limits){ .memory_bytes = 64 * MIB }));
    wait_for(spawn_in(slot, touch_20_mib));
    usage = usage_of(slot);
    ASSERT_EQ(usage.oom_kills, 0);
    features_quick(&features);
    if (cgroup_root_backend(root) == CGROUP_V1 || features.release_major > 6 ||
        features.release_minor >= 12)
        ASSERT_GE(usage.memory_peak, 19 * MIB); /* the kernel counts in batches */
    ASSERT_LE(usage.memory_peak, 24 * MIB);
    if (cgroup_slot_oom_fd(slot) >= 0 && cgroup_root_backend(root) == CGROUP_V1) {
        struct pollfd poll_fd = { .fd = cgroup_slot_oom_fd(slot), .events = POLLIN };

        ASSERT_EQ(poll(&poll_fd, 1, 0), 0);
    }
    end(root, slot);
}

TEST(one_that_rested_is_used_again) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .memory_bytes = 32 * MIB });
    uint64_t now;

    wait_for(spawn_in(slot, touch_200_mib));
    cgroup_slot_rest(slot);
    ASSERT_EQ(usage_of(slot).oom_kills, 1);
    ASSERT_OK(cgroup_slot_reset(slot, UINT64_MAX));
    ASSERT_OK(cgroup_slot_memory_now(slot, &now));
    ASSERT_EQ(usage_of(slot).oom_kills, 0);
    ASSERT_EQ(usage_of(slot).memory_limit_hits, 0);
    wait_for(spawn_in(slot, touch_200_mib));
    ASSERT_EQ(usage_of(slot).oom_kills, 1);
    end(root, slot);
}

/* With a descriptor or two, all events are still reported. */
TEST(one_that_rests_from_the_beginning_tells_all) {
    struct cgroup_root *root = open_root();
    struct cgroup_limits limits = { .memory_bytes = 32 * MIB };
    struct cgroup_slot *slot;
    uint64_t now;

    const int before = ASSERT_CALL(dup(0));
    ASSERT_OK(cgroup_slot_new(root, 1, &limits, true, &slot));
    const int after = ASSERT_CALL(dup(0));
    close(after);
    ASSERT_LE(after - before,
        1 + 3 + 3); /* itself; the engine's directory in each hierarchy; the slot's own */
    ASSERT_OK(cgroup_slot_memory_now(slot, &now));
    wait_for(spawn_in(slot, touch_200_mib));
    if (cgroup_slot_oom_fd(slot) >= 0) {
        struct pollfd poll_fd = { .fd = cgroup_slot_oom_fd(slot),
            .events = cgroup_slot_oom_events(slot) == EPOLLPRI ? POLLPRI : POLLIN };

        ASSERT_EQ(poll(&poll_fd, 1, 1000), 1);
    }
    ASSERT_EQ(usage_of(slot).oom_kills, 1);
    ASSERT_GE(usage_of(slot).memory_peak, 31 * MIB);
    ASSERT_EQ(ASSERT_CALL(dup(0)), after); /* and what was opened to look is closed */
    close(before);
    close(after);
    end(root, slot);
}

/* Its memory at the moment was taken for its peak, so that a sandbox which once had much was given
 * no copies. */
TEST(one_that_rests_tells_its_memory_of_now) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .memory_bytes = 64 * MIB });
    uint64_t now;

    wait_for(spawn_in(slot, touch_20_mib));
    cgroup_slot_rest(slot);
    ASSERT_OK(cgroup_slot_memory_now(slot, &now));
    ASSERT_LE(now, usage_of(slot).memory_peak);
    end(root, slot);
}

TEST(limits_can_be_raised_lowered_and_lifted) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot =
        new_slot(root, (struct cgroup_limits){ .memory_bytes = 64 * MIB, .processes = 9 });

    ASSERT_OK(cgroup_slot_limit(
        slot, &(struct cgroup_limits){ .memory_bytes = 256 * MIB, .processes = 3 }));
    ASSERT_OK(cgroup_slot_limit(
        slot, &(struct cgroup_limits){ .memory_bytes = 16 * MIB, .processes = 0 }));
    ASSERT_OK(cgroup_slot_limit(slot, &(struct cgroup_limits){ 0 }));
    ASSERT_EQ(wait_for(spawn_in(slot, touch_200_mib)), 0);
    ASSERT_EQ(usage_of(slot).oom_kills, 0);
    end(root, slot);
}

static void reap_killed(void) {
    int status;

    while (waitpid(-1, &status, 0) > 0)
        ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_EQ(errno, ECHILD);
}

TEST(process_limit_refuses_forks_and_kill_ends_all) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .processes = 8 });
    struct cgroup_usage usage;
    int status;

    ASSERT_CALL(prctl(PR_SET_CHILD_SUBREAPER,
        1)); /* a zombie counts until it is reaped, and pid 1 may be slow or not care */
    status = wait_for(spawn_in(slot, fork_till_refused));
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 7);
    usage = usage_of(slot);
    ASSERT_EQ(usage.processes_now, 7);
    ASSERT_OK(cgroup_slot_kill(slot));
    reap_killed();
    ASSERT_EQ(usage_of(slot).processes_now, 0);
    /* The limit is what it was before. */
    status = wait_for(spawn_in(slot, fork_till_refused));
    ASSERT_EQ(WEXITSTATUS(status), 7);
    ASSERT_OK(cgroup_slot_kill(slot));
    reap_killed();
    end(root, slot);
}

TEST(freeze_stops_and_thaw_continues) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ 0 });
    uint64_t before, after;
    int r_freeze, r_thaw;
    pid_t pid, ended;

    if (!cgroup_root_has_freezer(root))
        SKIP("freezer", "no freezer controller is mounted");
    turns = mmap(NULL, sizeof(*turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(turns != MAP_FAILED);
    pid = spawn_in(slot, take_turns);
    wait_for_turns_beyond(0);
    /* No assertion while a process is frozen: if the case ended there, not even SIGKILL would end
     * that process (v1). */
    r_freeze = cgroup_slot_freeze(slot);
    before = turns->taken;
    (void)poll(NULL, 0, 20);
    after = turns->taken;
    ended = waitpid(pid, NULL, WNOHANG);
    r_thaw = cgroup_slot_thaw(slot);
    ASSERT_OK(r_freeze);
    ASSERT_OK(r_thaw);
    ASSERT_EQ(after, before);
    ASSERT_EQ(ended, 0);
    wait_for_turns_beyond(after);
    turns->enough = true;
    ASSERT_EQ(wait_for(pid), 0);
    pid = spawn_in(slot, stand_still);
    r_freeze = cgroup_slot_freeze(slot);
    ASSERT_OK(cgroup_slot_kill(slot)); /* the frozen die, too */
    ASSERT_TRUE(WIFSIGNALED(wait_for(pid)));
    ASSERT_OK(r_freeze);
    end(root, slot);
}

TEST(cpu_limit_is_set) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot;
    uint64_t used;
    int64_t start;
    pid_t pid;

    if (!cgroup_root_has_cpu(root)) {
        ASSERT_ERR(
            cgroup_slot_new(root, 1, &(struct cgroup_limits){ .cpu_milli = 100 }, false, &slot),
            -EOPNOTSUPP);
        cgroup_root_free(root);
        SKIP("cgroup_cpu", "the cpu controller is not available");
    }
    slot = new_slot(root, (struct cgroup_limits){ .cpu_milli = 100 });
    start = clock_now_ns();
    pid = spawn_in(slot, stand_still);
    kill(pid, SIGKILL);
    wait_for(pid);
    pid = spawn_in(slot,
        burn_50_ms); /* of wall clock: a tenth of it, and what a period lets through at once */
    wait_for(pid);
    used = usage_of(slot).cpu_ns;
    ASSERT_LE(used, (uint64_t)(clock_now_ns() - start) / 10 + 20000000);
    ASSERT_OK(cgroup_slot_limit(slot, &(struct cgroup_limits){ .cpu_milli = 1 }));
    ASSERT_OK(cgroup_slot_limit(slot, &(struct cgroup_limits){ .cpu_milli = 64000 }));
    ASSERT_OK(cgroup_slot_limit(slot, &(struct cgroup_limits){ .cpu_milli = 0 }));
    end(root, slot);
}

TEST(busy_slot_is_removed_later) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ 0 }), *other;
    pid_t pid = spawn_in(slot, stand_still);

    cgroup_slot_free(slot);
    ASSERT_EQ(cgroup_root_tidy(root), 1);
    other = new_slot(root, (struct cgroup_limits){ 0 }); /* the same id is free again */
    kill(pid, SIGKILL);
    wait_for(pid);
    ASSERT_EQ(cgroup_root_tidy(root), 0);
    end(root, other);
}

TEST(clone_into_a_v2_slot) {
    struct cgroup_root *root = open_root();
    struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ .processes = 4 });
    struct clone_args args = { .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD };
    long pid;

    if (cgroup_root_backend(root) != CGROUP_V2) {
        ASSERT_EQ(cgroup_slot_fd(slot), -1);
        end(root, slot);
        SKIP("cgroup_v2", "the back end here is v1");
    }
    args.cgroup = (uint64_t)cgroup_slot_fd(slot);
    pid = sys_clone3(&args, sizeof(args));
    if (pid == 0) {
        stand_still();
        _exit(0);
    }
    ASSERT_GT(pid, 0);
    ASSERT_EQ(usage_of(slot).processes_now, 1);
    ASSERT_OK(cgroup_slot_kill(slot));
    wait_for((pid_t)pid);
    end(root, slot);
}

/* Makes a group with a member in it, frozen where that can be, and dies, as an engine would by
 * SIGKILL. Returns what it left. */
static pid_t crash_with_member(char (*paths)[512], size_t n_paths) {
    char *shared = mmap(NULL, n_paths * 512 + sizeof(pid_t), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *member = (pid_t *)(void *)(shared + n_paths * 512);
    pid_t engine = (pid_t)ASSERT_CALL(fork());

    if (engine == 0) {
        struct cgroup_root *root = open_root();
        struct cgroup_slot *slot = new_slot(root, (struct cgroup_limits){ 0 });

        for (size_t i = 0; i < n_paths && cgroup_paths(root)[i] != NULL; i++)
            snprintf(shared + i * 512, 512, "%s", cgroup_paths(root)[i]);
        *member = spawn_in(slot, stand_still);
        if (cgroup_root_has_freezer(root))
            (void)cgroup_slot_freeze(slot);
        raise(SIGKILL);
    }
    wait_for(engine);
    memcpy(paths, shared, n_paths * 512);
    return *member;
}

TEST(sweep_removes_what_a_dead_engine_left) {
    struct cgroup_root *root = open_root(), *again = open_root();
    struct cgroup_slot *mine = new_slot(root, (struct cgroup_limits){ 0 });
    char paths[6][512];
    pid_t member;

    member = crash_with_member(paths, 6);
    ASSERT_GT(member, 0);
    ASSERT_TRUE(exists(paths[0]));
    ASSERT_GE(cgroup_sweep(again), 1);
    for (size_t i = 0; i < 6 && paths[i][0] != '\0'; i++)
        ASSERT_FALSE(exists(paths[i]));
    ASSERT_TRUE(exists(cgroup_paths(root)[0])); /* the living are left alone */
    cgroup_root_free(again);
    end(root, mine);
}

TEST(janitor_removes_by_paths_alone) {
    struct cgroup_root *root = open_root();
    const char *pointers[7] = { NULL };
    char paths[6][512];

    cgroup_root_free(root);
    ASSERT_GT(crash_with_member(paths, 6), 0);
    for (size_t i = 0; i < 6 && paths[i][0] != '\0'; i++)
        pointers[i] = paths[i];
    ASSERT_TRUE(exists(paths[0]));
    ASSERT_OK(cgroup_paths_remove(pointers, 5000));
    for (size_t i = 0; pointers[i] != NULL; i++)
        ASSERT_FALSE(exists(pointers[i]));
    ASSERT_OK(cgroup_paths_remove(pointers, 0)); /* gone already is as good */
}

TEST(no_descriptor_is_left) {
    struct cgroup_root *root;
    struct cgroup_slot *slot;
    int before = (int)ASSERT_CALL(dup(0)), after;

    close(before);
    root = open_root();
    slot = new_slot(root, (struct cgroup_limits){ .memory_bytes = 32 * MIB, .processes = 4 });
    ASSERT_NULL(cgroup_slot_free(slot));
    ASSERT_NULL(cgroup_root_free(root));
    ASSERT_NULL(cgroup_slot_free(NULL));
    ASSERT_NULL(cgroup_root_free(NULL));
    after = (int)ASSERT_CALL(dup(0));
    ASSERT_EQ(after, before);
}
