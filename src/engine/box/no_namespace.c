/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of isolation process: it does what namespaces do by themselves.
 *
 * Private files: each sandbox has a directory below one of the engine's own, "rollbox-<pid
 * namespace>-<pid>-<start time>-<random>" in $TMPDIR, /tmp or /var/tmp, the first of these that the
 * sandbox's user can reach. Init empties it at the end, and the engine removes it. A janitor
 * removes the directory of a killed engine, and the next engine removes what both left.
 *
 * Processes: init ends all of them. If init itself is killed from outside, they become children of
 * the engine, which is a subreaper for this purpose, and it kills them. It recognises them by their
 * seccomp filters: no other child of the engine has more filters than the engine.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/disk_usage.h"
#include "base/remove_tree.h"
#include "engine/box/box.h"
#include "engine/box/no_namespace.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/core/deferred_close.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"
#include "sys/proc.h"

#define MAX_PATH 2048 /* leaves room for the guest's paths below it */
#define MAX_STRAYS 4096
#define STRAY_ROUNDS 64
#define STRAY_PAUSE_NS 20000000ll
#define MEASURE_REST 20 /* looking at the disk may take one part in so many of the time */
#define MEASURE_LEAST_NS 20000000ll
#define PATIENCE_MS 2000 /* for the inits of an engine that was killed to clean up themselves */

struct process_state {
    struct engine *engine;
    char *path; /* of the engine's directory */
    int fd;
    uint64_t next_home;
    uint32_t next_id, n_ids, first_id; /* first_id 0: from the launcher's range */
    unsigned filters;                  /* of the engine itself */
    struct loop_timer orphan_pipes;
    uint32_t tasks; /* of the user, when last counted */
    int64_t counted_ns;
};

struct private_dir {
    struct engine *engine;
    char name[24];
    int fd;
    uint32_t id; /* of the guest; 0: the engine's own */
    int64_t next_look_ns;
};

/* ---- the directory ---- */

/* May a stranger pass through all of it? */
static bool is_reachable(const char *path) {
    char prefix[4096];
    struct stat st;

    if (path[0] != '/' || strlen(path) >= sizeof prefix)
        return false;
    for (size_t i = 1; path[i - 1]; i++) {
        if (path[i] && path[i] != '/')
            continue;
        memcpy(prefix, path, i);
        prefix[i] = '\0';
        if (stat(prefix, &st) < 0 || !S_ISDIR(st.st_mode) || !(st.st_mode & S_IXOTH))
            return false;
    }
    return true;
}

const char *const *process_places(void) {
    static const char *list[4];
    const char *named = secure_getenv("TMPDIR");
    size_t n = 0;

    if (named && named[0] == '/')
        list[n++] = named;
    list[n++] = "/tmp";
    list[n++] = "/var/tmp";
    list[n] = NULL;
    return list;
}

static bool is_ours(int directory, const char *name) {
    struct stat st;

    return fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
           st.st_uid == geteuid();
}

/* Removes a directory with all that is in it. */
static int remove_all(int at, const char *name) {
    auto_close int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = tree_empty(fd);
    if (r < 0)
        return r;
    return unlinkat(at, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* Directories of engines that are no more. */
static void sweep_directories(const char *place, unsigned long long own_namespace) {
    unsigned long long namespace;
    DIR *directory = opendir(place);
    struct dirent *entry;

    while (directory && (entry = readdir(directory))) {
        long long start;
        int pid, end = 0;

        if (sscanf(entry->d_name, "rollbox-%llu-%d-%lld-%*16[0-9a-f]%n", &namespace, &pid, &start,
                &end) == 3 &&
            end && namespace == own_namespace && !entry->d_name[end] && pid > 0 &&
            proc_start_time(pid) != start && is_ours(dirfd(directory), entry->d_name))
            (void)remove_all(dirfd(directory), entry->d_name);
    }
    if (directory)
        closedir(directory);
}

static int make_directory(struct process_state *state, bool for_others) {
    uint64_t random;
    struct stat st;
    int r = -EACCES;

    if (stat("/proc/self/ns/pid", &st) < 0)
        return -errno;

    for (const char *const *place = process_places(); *place && !state->path; place++) {
        if (for_others && !is_reachable(*place))
            continue;
        sweep_directories(*place, (unsigned long long)st.st_ino);
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return -EIO;
        auto_free char *path = NULL;
        if (asprintf(&path, "%s/rollbox-%llu-%d-%lld-%016llx", *place,
                (unsigned long long)st.st_ino, (int)getpid(), (long long)proc_start_time(getpid()),
                (unsigned long long)random) < 0)
            return -ENOMEM;
        if (strlen(path) > MAX_PATH || mkdir(path, 0700) < 0) {
            r = strlen(path) > MAX_PATH ? -ENAMETOOLONG : -errno;
            continue;
        }
        if (chmod(path, for_others ? 0711 : 0700) < 0 ||
            (state->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) {
            r = -errno;
            (void)rmdir(path);
            continue;
        }
        /* Links in the way would be refused when the sandbox opens it. */
        state->path = realpath(path, NULL);
        r = state->path ? 0 : -ENOMEM;
    }
    return state->path ? 0 : r;
}

/* ---- the janitor ---- */

static void remove_emptied(struct engine *engine, const char *path) {
    const struct timespec pause_time = { 0, 10000000 };
    int r = -1;

    (void)engine;
    /* Each init removes its own files, and leaves an empty directory. */
    for (int waited = 0; waited < PATIENCE_MS && r < 0; waited += 10) {
        DIR *directory = opendir(path);
        struct dirent *entry;

        while (directory && (entry = readdir(directory)))
            if (entry->d_name[0] != '.')
                (void)unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
        if (directory)
            closedir(directory);
        r = rmdir(path) < 0 && errno != ENOENT ? -errno : 0;
        if (r < 0)
            nanosleep(&pause_time, NULL);
    }
    if (r < 0)
        (void)remove_all(AT_FDCWD, path);
}

static void remove_now(struct engine *engine, const char *path) {
    (void)engine;
    (void)remove_all(AT_FDCWD, path);
}

static const struct janitor_duty own_duty = { .at_end = remove_emptied },
                                 private_dir_duty = { .now = remove_now };

/* ---- the state ---- */

/* "Key:" numbers of a /proc/PID/status; -1 where there is none. */
static long status_number(const struct buf *text, const char *key) {
    const char *at = text->data ? strstr(text->data, key) : NULL;

    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

static int read_status(pid_t pid, struct buf *to) {
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int r = fd_read_file(path, 65536, to);
    buf_add(to, "", 1);
    if (r < 0)
        return r;
    return buf_failed(to) ? -ENOMEM : 0;
}

static int state_get(struct engine *engine, bool own_ids, struct process_state **ret_state) {
    auto_buf struct buf status = BUF_INIT;
    struct process_state *state = engine->process;

    if (state) {
        *ret_state = state;
        return 0;
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return -errno;
    state = calloc(1, sizeof *state);
    if (!state)
        return -ENOMEM;
    state->engine = engine;
    state->fd = -EBADF;
    if (read_status(getpid(), &status) == 0)
        state->filters = (unsigned)MAX(status_number(&status, "\nSeccomp_filters:\t"), 0l);
    int r = make_directory(state, own_ids);
    if (r == 0)
        r = janitor_tell(engine, &own_duty, state->path);
    if (r < 0) {
        if (state->path)
            (void)rmdir(state->path);
        close_fd(&state->fd);
        free(state->path);
        free(state);
        return r;
    }
    *ret_state = engine->process = state;
    return 0;
}

void process_finish(struct engine *engine) {
    struct process_state *state = engine->process;

    if (!state)
        return;
    loop_timer_clear(engine->loop, &state->orphan_pipes);
    /* The janitor removes the rest, when it sees the end of its pipe. */
    (void)rmdir(state->path);
    close_fd(&state->fd);
    free(state->path);
    free(state);
    engine->process = NULL;
}

/* ---- homes ---- */

/* The end of the last range of ids that exist here (a container may have few). */
static uint64_t ids_end(const char *map) {
    auto_buf struct buf text = BUF_INIT;
    uint64_t end = 0, first, count;
    int n;

    if (fd_read_file(map, 65536, &text) < 0)
        return 0;
    buf_add(&text, "", 1);
    for (const char *at = text.data;
         at && sscanf(at, "%" SCNu64 " %*u %" SCNu64 "%n", &first, &count, &n) == 2; at += n)
        end = MAX(end, first + count);
    return end;
}

static void choose_ids(struct process_state *state, uint32_t base) {
    uint64_t users = ids_end("/proc/self/uid_map"), groups = ids_end("/proc/self/gid_map"),
             end = MIN(users, groups);

    state->n_ids = GUEST_ID_RANGE / 2 - 2;
    if (end >= (uint64_t)base + GUEST_ID_RANGE)
        return;
    /* The upper half of what there is, where users made by packages and by hand are not; "nobody"
     * has two names. */
    end = MIN(end, 65534ull);
    state->n_ids = (uint32_t)end / 4;
    state->first_id = (uint32_t)end / 2;
}

/* Two ids for a sandbox, from the range of its launcher. 0: there are none. */
static uint32_t next_id(struct process_state *state, uint32_t base) {
    if (!state->n_ids)
        choose_ids(state, base);
    if (state->n_ids < 8)
        return 0;
    state->next_id = (state->next_id + 1) % (state->n_ids - 2);
    return (state->first_id ? state->first_id : base) + 2 * state->next_id + 2;
}

int private_dir_new(
    struct profile *profile, uint32_t id_base, struct private_dir **ret_private_dir) {
    bool own_ids = profile->plan->flags & PLAN_AS_ROOT;
    struct process_state *state = NULL;
    int r = state_get(profile->engine, own_ids, &state);

    if (r < 0)
        return r;
    struct private_dir *private_dir = calloc(1, sizeof *private_dir);
    if (!private_dir)
        return -ENOMEM;
    private_dir->engine = profile->engine;
    snprintf(private_dir->name, sizeof private_dir->name, "%llu",
        (unsigned long long)++state->next_home);
    private_dir->id = own_ids ? next_id(state, id_base) : 0;
    if (own_ids && !private_dir->id) {
        free(private_dir);
        return -EUSERS;
    }
    if (mkdirat(state->fd, private_dir->name, 0700) < 0) {
        r = -errno;
        free(private_dir);
        return r;
    }
    private_dir->fd =
        openat(state->fd, private_dir->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (private_dir->fd < 0 ||
        (own_ids && fchown(private_dir->fd, private_dir->id, private_dir->id) < 0)) {
        r = -errno;
        private_dir_free(private_dir);
        return r;
    }
    *ret_private_dir = private_dir;
    return 0;
}

void private_dir_fields(const struct private_dir *private_dir, struct buf *message) {
    auto_free char *path = NULL;

    if (asprintf(&path, "%s/%s", private_dir->engine->process->path, private_dir->name) < 0)
        message->failed = true;
    else
        wire_add_text(message, GUEST_HOME, path);
    if (private_dir->id)
        wire_add_u64(message, GUEST_ID, private_dir->id);
}

/* After its sandbox is dead. Its init has emptied it; if init was killed before, another process
 * does that, because it may take long. */
struct private_dir *private_dir_free(struct private_dir *private_dir) {
    struct process_state *state;

    if (!private_dir)
        return NULL;
    state = private_dir->engine->process;
    close_fd(&private_dir->fd);
    if (unlinkat(state->fd, private_dir->name, AT_REMOVEDIR) < 0 &&
        (errno == ENOTEMPTY || errno == EEXIST)) {
        auto_free char *path = NULL;

        if (asprintf(&path, "%s/%s", state->path, private_dir->name) < 0)
            path = NULL;
        if (path)
            (void)janitor_tell(private_dir->engine, &private_dir_duty, path);
    }
    free(private_dir);
    return NULL;
}

/* ---- the disk ---- */

bool private_dir_is_over(struct private_dir *private_dir, uint64_t limit_bytes) {
    /* As many files as a tmpfs of that size would take. */
    struct disk_usage m = {
        .max_bytes = limit_bytes, .max_entries = limit_bytes / 16384 + 1024, .forces = true
    };
    int64_t now = clock_now_ns();

    if (now < private_dir->next_look_ns)
        return false;
    int fd = openat(private_dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool fits = fd < 0 || disk_usage_of(fd, &m);
    int64_t took = clock_now_ns() - now;
    private_dir->next_look_ns = now + MAX(took * MEASURE_REST, MEASURE_LEAST_NS);
    return !fits;
}

/* ---- the number of processes ---- */

static uint32_t count_tasks(void) {
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    uint32_t n = 0;

    while (directory && (entry = readdir(directory))) {
        auto_buf struct buf status = BUF_INIT;
        struct stat st;

        /* Undumpable ones belong to root in /proc. */
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' ||
            fstatat(dirfd(directory), entry->d_name, &st, 0) < 0 ||
            (st.st_uid != getuid() && st.st_uid) ||
            read_status((pid_t)strtol(entry->d_name, NULL, 10), &status) < 0 ||
            status_number(&status, "\nUid:\t") != (long)getuid())
            continue;
        n += (uint32_t)MAX(status_number(&status, "\nThreads:\t"), 1l);
    }
    if (directory)
        closedir(directory);
    return n;
}

/* RLIMIT_NPROC counts all tasks of a user, here the caller: those there are, and what this sandbox
 * and the others may come to. With one sandbox it is the limit itself; with more, no sandbox takes
 * from another's, and the watcher ends one that takes more than its own. */
uint64_t process_limit(struct profile *profile, uint64_t others) {
    struct engine *engine = profile->engine;
    struct process_state *state = engine->process;
    int64_t now = clock_now_ns();

    if (profile->plan->flags & PLAN_AS_ROOT ||
        cgroup_root_backend(engine->cgroups) != CGROUP_NONE || !state)
        return 0;
    if (!state->counted_ns || now - state->counted_ns > 100000000ll) {
        state->tasks = count_tasks();
        state->counted_ns = now;
    }
    return profile->policy->max_processes + others + state->tasks;
}

/* ---- orphans ---- */

/* A process of a sandbox without namespaces: it has more filters than we, and no pid namespace of
 * its own (an init that just came to be known has one, or has no filter). */
static bool is_orphan_pipe(const struct process_state *state, pid_t pid) {
    auto_buf struct buf status = BUF_INIT;

    if (read_status(pid, &status) < 0 || strstr(status.data, "\nState:\tZ"))
        return false;
    const char *pids = strstr(status.data, "\nNSpid:\t");
    return pids && strcspn(pids + 8, "\t\n") == strcspn(pids + 8, "\n") &&
           status_number(&status, "\nSeccomp_filters:\t") > (long)state->filters;
}

/* Returns the number of pids, or -errno, in which case there may be some. */
static ssize_t find_orphan_pipes(const struct process_state *state, pid_t *pids) {
    ssize_t n = proc_children(getpid(), pids, MAX_STRAYS), kept = 0;

    for (ssize_t i = 0; i < n; i++)
        if (is_orphan_pipe(state, pids[i]))
            pids[kept++] = pids[i];
    /* And all that is below them; an array in the order of a breadth-first walk. */
    for (ssize_t i = 0; n >= 0 && i < kept && kept < MAX_STRAYS; i++) {
        n = proc_children(pids[i], pids + kept, MAX_STRAYS - (size_t)kept);
        kept += MAX(n, (ssize_t)0);
    }
    return n < 0 ? n : kept;
}

static void signal_all(const pid_t *pids, size_t n, int number) {
    for (size_t i = 0; i < n; i++)
        (void)kill(pids[i], number);
}

static void on_orphan_pipes(struct loop_timer *timer) {
    struct process_state *state = container_of(timer, struct process_state, orphan_pipes);

    process_end_strays(state->engine);
}

/* Stops them all first, so that none forks while others are killed; what is orphaned by that comes
 * to us. */
void process_end_strays(struct engine *engine) {
    struct process_state *state = engine->process;
    auto_free pid_t *pids = state ? calloc(MAX_STRAYS, sizeof *pids) : NULL;
    ssize_t n = 0, before = 1;

    if (!pids)
        return;
    for (int round = 0; round < STRAY_ROUNDS; round++) {
        n = find_orphan_pipes(state, pids);
        if (!n)
            return;
        if (n < 0)
            break;
        signal_all(pids, (size_t)n, n == before ? SIGKILL : SIGSTOP);
        before = n;
        for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
            deferred_close_ended(pid);
    }
    signal_all(pids, (size_t)MAX(n, (ssize_t)0), SIGKILL);
    (void)loop_timer_set(
        engine->loop, &state->orphan_pipes, clock_now_ns() + STRAY_PAUSE_NS, on_orphan_pipes);
}
