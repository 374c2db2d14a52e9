/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping all processes of a sandbox, and their family tree.
 *
 * /proc does not show a single moment: processes are born and die while it is read. But a stopped
 * process creates no others, so rounds of looking and stopping come to an end, when a round finds
 * no new process and all have stopped. A sandbox whose processes fork faster than they are found is
 * refused.
 *
 * A restored process becomes a child of its parent, in its parent's session and group unless it
 * leads one itself. The leader of a session or group may be dead, for example that of a job that a
 * shell left in the background. Then a *ghost* replaces the leader: a process with that pid, which
 * creates the members and ends before any process of the sandbox runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/proc.h"

#define MAX_ROUNDS 200
#define MAX_WAITS 1000
/* A thread that waits for input stops within this; sleeping in between would take longer. */
#define POLLS 150
#define WAIT_NS 50000
#define HOLD_WAITS 500 /* for a thread that stops by itself: some 25 ms */
#define GIVE_BACK_WAITS 16
/* A vfork child executes its program within this time, unless it was stopped before that. */
#define DEEP_WAITS 40
#define VFORK_TRIES 20
#define VFORK_NS 1000000
#define ON_ITS_WAY_TRIES 500

/* ---- stopping ---- */

static bool is_known(const struct dump *c, pid_t tid) {
    for (size_t i = 0; i < c->n_tasks; i++)
        if (c->tasks[i].trace.tid == tid)
            return true;
    return false;
}

static struct dump_process *find_process(const struct dump *c, pid_t pid) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->pid == pid)
            return c->dump_processes[i];
    return NULL;
}

static void dump_process_free(struct dump_process *s) {
    close_fd(&s->proc);
    close_fd(&s->root);
    close_fd(&s->pagemap);
    close_fd(&s->tools.memory);
    buf_done(&s->status);
    buf_done(&s->maps);
    buf_done(&s->pages_there);
    buf_done(&s->notes);
    free(s);
}

/* An ordinary user cannot see which program an agent runs, because an agent is not dumpable and was
 * not executed in the sandbox's user namespace. So it is recognised by its name. A guest that takes
 * the name and hides its program is only missing from its own snapshots. */
static bool is_called_agent(const struct dump_process *s) {
    static const char agent[] = "rollbox-files\n";
    char name[sizeof agent + 1];
    auto_close int fd = openat(s->proc, "comm", O_RDONLY | O_CLOEXEC);

    return fd >= 0 && read(fd, name, sizeof name) == sizeof agent - 1 &&
           !memcmp(name, agent, sizeof agent - 1);
}

/*
 * Is this process a fork of init? Such a process has init's program and its memory, which belongs
 * to the host and must not be dumped. Its files in /proc have init's owner. A guest can execute the
 * same program, but the memory then belongs to the sandbox.
 */
static bool is_of_init(const struct dump *c, const struct dump_process *s) {
    struct stat st;

    if (fstatat(s->proc, "stat", &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_uid != c->profile_owner)
        return false;
    if (fstatat(s->proc, "exe", &st, 0) < 0)
        return errno == EACCES && is_called_agent(s);
    return st.st_dev == c->program_device && st.st_ino == c->program_inode;
}

static struct dump_process *dump_process_new(struct dump *c, pid_t pid, pid_t parent) {
    char path[32];

    if (c->n_dump_processes == c->dump_processes_room) {
        size_t room = c->dump_processes_room ? 2 * c->dump_processes_room : 16;
        void *more = realloc(c->dump_processes, room * sizeof *c->dump_processes);

        if (!more)
            return NULL;
        c->dump_processes = more;
        c->dump_processes_room = room;
    }
    struct dump_process *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (struct dump_process){ .pid = pid,
        .parent = parent,
        .proc = -EBADF,
        .root = -EBADF,
        .pagemap = -EBADF,
        .tools.memory = -EBADF,
        .cow_fork = { 0, -EBADF, -EBADF, -EBADF } };
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    s->proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (s->proc < 0 && errno != ENOENT) {
        free(s);
        return NULL;
    }
    s->is_apart = is_of_init(c, s);
    c->dump_processes[c->n_dump_processes++] = s;
    return s;
}

/* The letter of /proc/PID/stat; 0: the process is gone. -EMFILE and the like: unknown. */
static int state_at(const struct dump_process *s, const char *path) {
    char text[512];
    auto_close int fd = s->proc < 0 ? -EBADF : openat(s->proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (n < 0 && s->proc >= 0 && errno != ENOENT && errno != ESRCH)
        return -errno;
    text[MAX(n, (ssize_t)0)] = '\0';
    const char *at = strrchr(text, ')');
    return at && at[1] ? at[2] : 0;
}

/* 1, 0, or -errno. */
static int is_dead(const struct dump_process *s, pid_t tid) {
    char path[32];

    snprintf(path, sizeof path, "task/%d/stat", (int)tid);
    int state = state_at(s, path);
    return state < 0 ? state : !state || state == 'Z' || state == 'X';
}

static bool has_tracer(const struct dump_process *s, pid_t tid) {
    char path[32], text[1024];

    snprintf(path, sizeof path, "task/%d/status", (int)tid);
    auto_close int fd = openat(s->proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    text[MAX(n, (ssize_t)0)] = '\0';
    return strtoul(dump_field(text, "\nTracerPid:\t"), NULL, 10) != 0;
}

static int add_task(struct dump *c, struct dump_process *s, pid_t tid) {
    if (c->n_tasks == c->tasks_room) {
        size_t room = c->tasks_room ? 2 * c->tasks_room : 64;
        void *more = realloc(c->tasks, room * sizeof *c->tasks);

        if (!more)
            return dump_fail(c, "its threads", -ENOMEM);
        c->tasks = more;
        c->tasks_room = room;
    }
    struct task *task = &c->tasks[c->n_tasks];
    *task = (struct task){ .process = s };
    int r = trace_seize(&task->trace, tid);
    task->is_gone = r == -ESRCH;
    if (r == -ESRCH || (r == -EPERM && is_dead(s, tid) == 1))
        return 0; /* the next round finds a zombie, or nothing */
    if (r == -EPERM) {
        c->is_traced = has_tracer(s, tid);
        return c->is_traced ? -EBUSY : 1; /* about to end: the next round shows it */
    }
    if (r < 0)
        return dump_fail(c, "stopping it", r);
    c->n_tasks++;
    return 1;
}

/* Seizes the threads of a process that are not known yet: how many, or -errno. */
static int seize_threads(struct dump *c, struct dump_process *s) {
    pid_t tids[256];
    int n_new = 0;
    ssize_t n = proc_threads(s->pid, tids, ARRAY_SIZE(tids));

    c->current = s;
    if (n < 0)
        return dump_fail(c, "its threads", (int)n);
    for (ssize_t i = 0; i < n; i++) {
        int r = is_known(c, tids[i]) ? 0 : add_task(c, s, tids[i]);

        if (r < 0)
            return r;
        n_new += r;
    }
    return n == (ssize_t)ARRAY_SIZE(tids)
               ? dump_refuse(c, E2BIG, "it has more than %zu threads", ARRAY_SIZE(tids) - 1)
               : n_new;
}

/* Seizes the new children of a process, with their threads: how many threads, or -errno. */
static int look_below(struct dump *c, pid_t pid) {
    pid_t children[IMAGE_MAX_PROCESSES + 1];
    ssize_t n = proc_children(pid, children, ARRAY_SIZE(children));
    int n_new = 0;

    if (n < 0)
        return dump_fail(c, "its processes", (int)n);
    for (ssize_t i = 0; i < n; i++) {
        struct dump_process *s = find_process(c, children[i]);
        bool is_new = !s;

        if (!s && c->n_dump_processes >= IMAGE_MAX_PROCESSES)
            return dump_refuse(c, E2BIG, "there are more than %u processes", IMAGE_MAX_PROCESSES);
        if (!s && !(s = dump_process_new(c, children[i], pid)))
            return dump_fail(c, "its processes", -errno);
        s->parent = pid;
        s->round = c->round;
        int dead = is_dead(s, s->pid);
        if (dead < 0)
            return dump_fail(c, "its processes", dead);
        s->is_zombie = dead;
        int r = s->is_zombie ? 0 : seize_threads(c, s);
        if (r < 0)
            return r;
        n_new += r + is_new;
        r = look_below(c, s->pid);
        if (r < 0)
            return r;
        n_new += r;
    }
    return n_new;
}

static void wait_a_little(long ns) {
    nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* The threads that have not stopped sleep uninterruptibly in the kernel. */
static bool is_deep(const struct dump *c) {
    for (size_t i = 0; i < c->n_tasks; i++) {
        const struct task *task = &c->tasks[i];
        char path[32];

        snprintf(path, sizeof path, "task/%d/stat", (int)task->trace.tid);
        if (!task->is_gone && !task->trace.stands && state_at(task->process, path) != 'D')
            return false;
    }
    return true;
}

/* Waits until all seized threads have stopped. -EBUSY: some have not. */
static int await_all(struct dump *c) {
    for (unsigned waits = 0; waits < POLLS + MAX_WAITS; waits++) {
        bool all = true;

        for (size_t i = 0; i < c->n_tasks; i++) {
            struct task *task = &c->tasks[i];

            if (task->is_gone || task->trace.stands)
                continue;
            int r = trace_await(&task->trace);
            task->is_gone = r == -ESRCH;
            if (r < 0 && r != -ESRCH && r != -EAGAIN)
                return r;
            all &= r != -EAGAIN;
            c->current = task->process;
        }
        if (all)
            return 0;
        if (waits % GIVE_BACK_WAITS == GIVE_BACK_WAITS - 1) {
            int r = quiesce_give_back(c);
            if (r < 0)
                return r;
        }
        if (waits == POLLS + DEEP_WAITS && is_deep(c))
            break;
        if (waits >= POLLS)
            wait_a_little(WAIT_NS);
    }
    return -EBUSY;
}

/* A thread that has not stopped cannot be detached. The other threads have resumed, so the event
 * that it waits for can happen, and it stops then. */
static void await_late(struct trace *trace) {
    int r = -EAGAIN;

    for (unsigned waits = 0; r == -EAGAIN && waits < MAX_WAITS; waits++) {
        r = trace_await(trace);
        if (r == -EAGAIN && waits > 20)
            wait_a_little(WAIT_NS);
    }
}

int tree_hold(struct trace *trace, pid_t tid) {
    int r = trace_seize(trace, tid);

    if (r < 0)
        return r;
    for (unsigned waits = 0; (r = trace_await(trace)) == -EAGAIN && waits < HOLD_WAITS; waits++)
        if (waits > 20)
            wait_a_little(WAIT_NS);
    if (r == -EAGAIN) {
        await_late(trace);
        trace_release(trace);
    }
    return r;
}

/* Reverts processes that were made dumpable for the dump. */
static void close_again(struct dump *c) {
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        struct dump_process *s = c->dump_processes[i];
        struct task *first = s->closed_vdso ? tree_main(c, s) : NULL;

        if (!first || !first->trace.stands)
            continue;
        (void)trace_set_dumpable(&first->trace, s->closed_vdso, false);
        (void)trace_put_back(&first->trace);
        s->closed_vdso = 0;
    }
}

void tree_let_go(struct dump *c) {
    close_again(c);
    (void)quiesce_give_back(
        c); /* after a failure: a thread that init holds cannot stop, and so cannot be detached */
    quiesce_lead(c);
    for (size_t i = 0; i < c->n_tasks; i++)
        if (c->tasks[i].trace.stands)
            trace_release(&c->tasks[i].trace);
    for (size_t i = 0; i < c->n_tasks; i++)
        if (c->tasks[i].trace.is_seized) {
            await_late(&c->tasks[i].trace);
            quiesce_late(c, &c->tasks[i]);
            trace_release(&c->tasks[i].trace);
        }
}

void tree_release(struct dump *c) {
    tree_let_go(c);
    for (size_t i = 0; i < c->n_dump_processes; i++)
        dump_process_free(c->dump_processes[i]);
    c->current = NULL;
    free(c->tasks);
    free(c->dump_processes);
    c->tasks = NULL;
    c->dump_processes = NULL;
    c->n_tasks = c->tasks_room = c->n_dump_processes = c->dump_processes_room = 0;
}

static int stop_once(struct dump *c) {
    for (unsigned round = 0; round < MAX_ROUNDS; round++) {
        c->round++;
        int n = look_below(c, c->options->init);
        int r = n < 0 ? n : await_all(c);

        if (r == -EBUSY || (r < 0 && (n < 0 || c->error->code)))
            return r;
        if (r < 0)
            return dump_fail(c, "stopping it", r);
        if (!n)
            return 0;
    }
    return dump_refuse(c, EBUSY, "processes are created faster than they can be stopped");
}

/* A process that was restored just now still has the restorer mapped for a moment, at an address
 * where guests have nothing. Or it executes the last instructions of it, and reads its registers
 * from a page that is not dumped. */
static bool is_on_its_way(const struct dump *c) {
    for (size_t i = 0; i < c->n_tasks; i++)
        if (!c->tasks[i].is_gone && c->tasks[i].trace.registers.rip >= IMAGE_FRAMES &&
            c->tasks[i].trace.registers.rip < IMAGE_LOWEST)
            return true;
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        const struct dump_process *s = c->dump_processes[i];
        char line[32];
        auto_close int fd =
            s->is_apart || s->is_zombie ? -EBADF : openat(s->proc, "maps", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);

        line[MAX(n, (ssize_t)0)] = '\0';
        if (n > 0 && strtoull(line, NULL, 16) < IMAGE_FRAMES)
            return true;
    }
    return false;
}

/* For a moment. */
static int let_resume(struct dump *c) {
    int r = quiesce_reply(c);

    tree_release(c);
    wait_a_little(VFORK_NS);
    return r;
}

/* A process in vfork stops only after its child has executed a program, which the child cannot do
 * while it is stopped. A tracer may be about to let go. So the tries repeat. */
int tree_stop(struct dump *c) {
    for (unsigned tries = 0;; tries++) {
        int r = quiesce_hold(c);

        if (r < 0)
            return r;
        c->is_traced = false;
        r = stop_once(c);

        if (r == 0 && tries < ON_ITS_WAY_TRIES && is_on_its_way(c)) {
            r = let_resume(c);
            if (r < 0)
                return r;
            continue;
        }
        if (r != -EBUSY || c->error->code)
            return r;
        if (tries >= VFORK_TRIES && c->is_traced)
            return dump_refuse(c, ENOTSUP, "another process traces it (ptrace)");
        if (tries >= VFORK_TRIES)
            return dump_refuse(c, EBUSY,
                "it cannot be paused: it waits for a child that shares its memory (vfork), or for "
                "a device");
        r = let_resume(c);
        if (r < 0)
            return r;
    }
}

struct task *tree_main(struct dump *c, const struct dump_process *s) {
    for (size_t i = 0; i < c->n_tasks; i++)
        if (c->tasks[i].trace.tid == s->pid && !c->tasks[i].is_gone)
            return &c->tasks[i];
    return NULL;
}

/* ---- relations ---- */

static int look_at_ids(struct dump *c, struct dump_process *s) {
    auto_buf struct buf stat = BUF_INIT;
    int r = dump_read(c, s, "status", &s->status);

    c->current = s;
    if (r < 0)
        return dump_fail(c, "its status", r);
    const char *status = s->status.data;
    /* The process was found by pid, and pids are reused. All processes are stopped now, so a
     * different parent means a different process. */
    if ((pid_t)strtoul(dump_field(status, "\nPPid:\t"), NULL, 10) != s->parent)
        return dump_refuse(c, EAGAIN, "its pid has been reused");
    s->inner_pid = dump_innermost(status, "\nNSpid:");
    s->group = dump_innermost(status, "\nNSpgid:");
    s->outer_group = (uint32_t)strtoul(dump_field(status, "\nNSpgid:\t"), NULL, 10);
    s->session = dump_innermost(status, "\nNSsid:");
    const char *name = dump_field(status, "Name:\t");
    snprintf(s->name, sizeof s->name, "%.*s", (int)strcspn(name, "\n"), name);
    if (!s->inner_pid)
        return dump_refuse(c, ENOTSUP, "its pid in the sandbox cannot be read");
    if (s->is_zombie) {
        r = dump_read(c, s, "stat", &stat);
        const char *last = r < 0 ? NULL : strrchr(stat.data, ' ');
        s->end_status = last ? (uint32_t)strtoul(last + 1, NULL, 10) : 0;
        return r < 0 ? dump_fail(c, "its end", r) : 0;
    }
    return 0;
}

/* ---- owners of shared objects ---- */

static const struct {
    int kind;
    const char *shared, *own; /* error texts for a process that has one, and for a thread with its
                                 own; NULL: threads cannot */
} belongings[] = {
    { KCMP_VM, "memory", NULL },
    { KCMP_FILES, "descriptors", "descriptors" },
    { KCMP_FS, "working directory", "a working directory" },
    { KCMP_SIGHAND, "signal handlers", NULL },
};

/* Sorts by the kernel's order of these objects. Objects that cannot be compared are taken to
 * differ. */
static int by_belonging(const void *a, const void *b, void *kind) {
    const struct dump_process *const *x = a, *const *y = b;
    long order = syscall(SYS_kcmp, (*x)->pid, (*y)->pid, *(const int *)kind, 0, 0);

    if (order == 0)
        return 0;
    if (order == 1)
        return -1;
    if (order == 2)
        return 1;
    return (*x)->pid < (*y)->pid ? -1 : 1;
}

/* With clone(2), processes can share resources that restore would give to each of them separately.
 * Sorting puts two processes that share one next to each other. */
static int refuse_shared(struct dump *c) {
    auto_free struct dump_process **living =
        calloc(c->n_dump_processes + 1, sizeof(struct dump_process *));
    size_t n = 0;

    if (!living)
        return dump_fail(c, "its processes", -ENOMEM);
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart && !c->dump_processes[i]->is_zombie)
            living[n++] = c->dump_processes[i];
    for (size_t k = 0; k < ARRAY_SIZE(belongings); k++) {
        int kind = belongings[k].kind;

        qsort_r(living, n, sizeof(struct dump_process *), by_belonging, &kind);
        for (size_t i = 1; i < n; i++)
            if (by_belonging(&living[i - 1], &living[i], &kind) == 0) {
                c->current = living[i];
                return dump_refuse(c, ENOTSUP, "it shares its %s with process %u",
                    belongings[k].shared, living[i - 1]->inner_pid);
            }
    }
    return 0;
}

/* With unshare(2), a thread can have resources that its process does not have. */
static int refuse_apart(struct dump *c) {
    for (size_t i = 0; i < c->n_tasks; i++) {
        const struct task *task = &c->tasks[i];

        for (size_t k = 0; k < ARRAY_SIZE(belongings) && task->process && !task->is_gone &&
                           !task->process->is_apart && task->trace.tid != task->process->pid;
             k++)
            if (belongings[k].own && syscall(SYS_kcmp, task->process->pid, task->trace.tid,
                                         belongings[k].kind, 0, 0) != 0) {
                c->current = task->process;
                return dump_refuse(
                    c, ENOTSUP, "one of its threads has %s of its own", belongings[k].own);
            }
    }
    return 0;
}

static struct dump_process *by_inner(const struct dump *c, uint32_t pid) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart && c->dump_processes[i]->inner_pid == pid)
            return c->dump_processes[i];
    return NULL;
}

/* The index of the ghost with that pid. It is made if needed, as a child of process `parent` (index
 * + 1). */
static uint32_t dead_leader_of(struct dump *c, uint32_t pid, uint32_t session, uint32_t parent) {
    size_t n = dump_count(&c->processes, struct image_process);

    for (size_t i = 0; i < n; i++) {
        const struct image_process *p = dump_entry(&c->processes, i, struct image_process);
        if (p->kind == IMAGE_DEAD_LEADER && p->pid == pid)
            return (uint32_t)i;
    }
    struct image_process dead_leader = {
        .kind = IMAGE_DEAD_LEADER, .pid = pid, .session = session, .group = pid, .parent = parent
    };
    buf_add(&c->processes, &dead_leader, sizeof dead_leader);
    return (uint32_t)n;
}

static uint32_t session_of(const struct dump *c, uint32_t parent) {
    return parent ? dump_entry(&c->processes, parent - 1, struct image_process)->session : 0;
}

/* Chooses the parent that restores a process: its own, or the ghost of its session's leader, whose
 * end then passes it to its own parent. */
static int add_process(struct dump *c, struct dump_process *s, uint32_t parent) {
    struct image_process process = { .kind = s->is_zombie ? IMAGE_ZOMBIE : IMAGE_LIVING,
        .pid = s->inner_pid,
        .session = s->session,
        .group = s->group,
        .parent = parent,
        .status = (uint16_t)s->end_status };

    c->current = s;
    if (s->session != s->inner_pid && s->session != session_of(c, parent)) {
        if (by_inner(c, s->session))
            return dump_refuse(c, ENOTSUP,
                "it is in the session of process %u, which is not its parent", s->session);
        process.parent = dead_leader_of(c, s->session, s->session, parent) + 1;
        if (dump_entry(&c->processes, process.parent - 1, struct image_process)->parent != parent)
            return dump_refuse(c, ENOTSUP,
                "the leader of its session has ended, and the processes of the session have "
                "different parents");
    }
    if (s->group != s->inner_pid && s->group != s->session && !by_inner(c, s->group))
        (void)dead_leader_of(c, s->group, s->session, process.parent);
    s->index = (uint32_t)dump_count(&c->processes, struct image_process);
    buf_add(&c->processes, &process, sizeof process);
    return buf_failed(&c->processes) ? dump_fail(c, "its image", -ENOMEM) : 0;
}

static int add_below(struct dump *c, pid_t pid, uint32_t parent) {
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        struct dump_process *s = c->dump_processes[i];

        if (s->parent != pid || s->is_apart)
            continue;
        int r = add_process(c, s, parent);
        if (r == 0 && !s->is_zombie)
            r = add_below(c, s->pid, s->index + 1);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Removes processes that the last round did not find, and those that init may reap at any time. */
static void forget_dead(struct dump *c) {
    size_t kept = 0;

    for (size_t i = 0; i < c->n_dump_processes; i++) {
        struct dump_process *s = c->dump_processes[i];

        if (s->round == c->round && !(s->is_zombie && s->parent == c->options->init)) {
            c->dump_processes[kept++] = s;
            continue;
        }
        for (size_t k = 0; k < c->n_tasks; k++)
            if (c->tasks[k].process == s) {
                c->tasks[k].is_gone = true;
                c->tasks[k].process = NULL;
            }
        dump_process_free(s);
    }
    c->n_dump_processes = kept;
    c->current = NULL;
}

static struct dump_process *by_outer(const struct dump *c, pid_t pid) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->pid == pid)
            return c->dump_processes[i];
    return NULL;
}

/* Each dumped process must be a child of init or of another dumped process. */
static int refuse_left_out(struct dump *c) {
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        struct dump_process *s = c->dump_processes[i];
        const struct dump_process *parent = by_outer(c, s->parent);

        if (s->is_apart || s->parent == c->options->init || (parent && !parent->is_apart))
            continue;
        c->current = s;
        return dump_refuse(c, ENOTSUP, "its parent is a helper process of the sandbox's init");
    }
    return 0;
}

/* For init and the processes that it starts: a group has room for as many more (INIT_PROCESSES
 * in engine/box/cgroup_lease.c). */
#define INIT_BESIDES 32

/*
 * During a restore all processes exist at once, zombies and ghosts included. A ghost was not
 * counted when the processes were dumped, so the total may exceed the limit.
 */
static int refuse_too_many(struct dump *c) {
    const size_t n = dump_count(&c->processes, struct image_process);
    const uint64_t most = c->options->max_processes;
    size_t n_ghosts = 0;

    for (size_t i = 0; i < n; i++)
        n_ghosts += dump_entry(&c->processes, i, struct image_process)->kind == IMAGE_DEAD_LEADER;
    if (n <= IMAGE_MAX_PROCESSES && (!most || !n_ghosts || n + 1 < most + INIT_BESIDES))
        return 0;
    /* A zombie belongs to the process that has to wait for it. */
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->is_zombie && by_outer(c, c->dump_processes[i]->parent)) {
            c->current = by_outer(c, c->dump_processes[i]->parent);
            break;
        }
    return dump_refuse(c, ENOTSUP,
        "a restore needs %zu processes, %zu of them in place of ended leaders of sessions and "
        "groups, and max_processes allows fewer; wait for the processes that have ended, or raise "
        "max_processes",
        n, n_ghosts);
}

int tree_describe(struct dump *c) {
    forget_dead(c);
    for (size_t i = 0; i < c->n_dump_processes; i++) {
        struct dump_process *s = c->dump_processes[i];

        /* Its parent may have reaped it before the parent stopped. */
        s->is_apart |= !state_at(s, "stat");
        int r = s->is_apart ? 0 : look_at_ids(c, s);

        if (r < 0)
            return r;
    }
    int r = refuse_shared(c);
    if (r == 0)
        r = refuse_apart(c);
    if (r == 0)
        r = refuse_left_out(c);
    if (r == 0)
        r = add_below(c, c->options->init, 0);
    return r < 0 ? r : refuse_too_many(c);
}
