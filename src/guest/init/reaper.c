/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process trees: signalling all processes of a tree, and pausing a sandbox.
 *
 * All information comes from /proc, which does not show a single moment. While it is read,
 * processes appear and end, and a hostile process may try not to be found. These facts make the
 * search complete:
 *
 * - A process with a pending SIGKILL or SIGSTOP creates no other process, from the moment that
 *   kill() returns. So once everything found has been signalled, a process that was missed must be
 *   the child of a process that was missed, too. When a census finds no process that the previous
 *   one did not see, the search is complete.
 * - A tree keeps its top while the top is alive, because the main process of a command is a
 *   subreaper (exec.c). The filter refuses to change that, and refuses CLONE_PARENT. So the top is
 *   stopped first and killed last.
 * - If another command kills the stopped top, the tree loses its top. Then all processes in the
 *   sandbox are killed.
 * - If the search does not come to an end (fork bombs that are faster than the search, another
 *   command that sends SIGCONT), all processes in the sandbox are stopped by one kill(-1), which
 *   holds the lock that forks need. This is the last resort, because it affects other commands.
 *
 * A process that waits for an answer from init (det/det.h) counts as paused. Pausing sends SIGSTOP,
 * to parents first, and SIGCONT undoes it, for children first: a shell with job control would take
 * a stopped child for the effect of ^Z.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/init/command.h"
#include "guest/state.h"
#include "sys/syscalls.h"

#define MAX_PROCESSES 32768 /* per census; more are found once these are dead */
#define MAX_ROUNDS 24       /* before all processes are stopped at once */
#define LATE_ROUND 60       /* of pausing: after most of 10 ms */
#define TICK_NS 100000
#define FREEZE_NS 2000000000ll /* after all were signalled */
/* Guests that keep the processors busy can delay init, so that a round takes a tenth of a
 * second; then init stops all of them first. */
#define POLITE_NS 100000000ll
#define MAX_THEIRS 1024
#define MAX_LOOKS 4096 /* in addition to the census */

enum place { UNKNOWN, INSIDE, OUTSIDE };

struct process {
    uint64_t started;        /* the pid and this time together are never reused */
    uint64_t size, resident; /* memory */
    pid_t pid, parent, group, foreground;
    pid_t restless; /* one of its threads that has not stopped */
    uint32_t threads;
    uint32_t depth; /* depth below init; 0: not computed yet */
    char state;
    uint8_t place; /* enum place */
    bool told;     /* the signal was sent */
    bool still;
    bool stopping; /* one of its threads has stopped */
};

struct census {
    struct process *list; /* sorted by pid, in the kernel's order */
    size_t n;
    int proc;
    unsigned looks;
    bool unsure; /* some processes could not be placed or counted */
};

static int freeze_processes(bool at_once);

static pid_t
    theirs[MAX_THEIRS]; /* processes that were stopped before the freeze and must stay so */
static size_t n_theirs;

/* ---- looking ---- */

static const char *skip_fields(const char *at, unsigned n) {
    while (n--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    return at;
}

static uint64_t number_at(const char *at) {
    return strtoul(at, NULL, 10);
}

/* Reads one process or thread, by the path of its stat. False if it is gone. */
static bool look_at(int proc, const char *path, struct process *ret_process) {
    char text[1024];
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    /* The name may contain anything, but no bracket follows it. */
    const char *at = strrchr(text, ')');
    if (!at || strlen(at) < 4)
        return false;
    at += 2;
    *ret_process = (struct process){ .pid = (pid_t)number_at(text), .state = *at };
    ret_process->parent = (pid_t)number_at(at = skip_fields(at, 1));
    ret_process->group = (pid_t)number_at(at = skip_fields(at, 1));
    at = skip_fields(at, 3);
    ret_process->foreground = *at == '-' ? -1 : (pid_t)number_at(at);
    ret_process->threads = (uint32_t)number_at(at = skip_fields(at, 12));
    ret_process->started = number_at(at = skip_fields(at, 2));
    ret_process->size = number_at(at = skip_fields(at, 1));
    ret_process->resident = number_at(skip_fields(at, 1));
    return true;
}

static char *put_text(char *at, const char *text) {
    while (*text)
        *at++ = *text++;
    *at = '\0';
    return at;
}

static bool read_process(int proc, pid_t pid, struct process *ret_process) {
    char path[32];

    put_text(guest_put_number(path, (uint64_t)pid), "/stat");
    return look_at(proc, path, ret_process);
}

/* A process is dead when none of its threads runs. A process whose first thread has ended looks
 * like a zombie, too. */
static bool is_dead(const struct process *p) {
    return p->state == 'X' || (p->state == 'Z' && p->threads <= 1);
}

static bool is_stopped(char state) {
    return state == 'T' || state == 't' || state == 'Z' || state == 'X';
}

static bool count_in(void *data, pid_t pid) {
    struct census *census = data;

    if (pid == 1)
        return true;
    if (census->n == MAX_PROCESSES) {
        census->unsure = true;
        return false;
    }
    census->n += read_process(census->proc, pid, &census->list[census->n]);
    return true;
}

static int census_take(struct census *census) {
    census->n = census->looks = 0;
    census->unsure = false;
    census->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (census->proc < 0)
        return -errno;
    return tree_each_number(census->proc, count_in, census);
}

static void census_close(struct census *census) {
    if (census->proc >= 0)
        close(census->proc);
    census->proc = -1;
}

static int census_init(struct census *census) {
    void *list = mmap(NULL, MAX_PROCESSES * sizeof(struct process), PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *census = (struct census){ .list = list, .proc = -1 };
    return list == MAP_FAILED ? -errno : 0;
}

static void census_done(struct census *census) {
    census_close(census);
    munmap(census->list, MAX_PROCESSES * sizeof(struct process));
}

static struct process *census_find(const struct census *census, pid_t pid) {
    size_t low = 0, high = census->n;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (census->list[middle].pid == pid)
            return &census->list[middle];
        if (census->list[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The parent, if the census contains it; NULL if not, or if its pid belongs to another process
 * now. */
static struct process *census_parent(const struct census *census, const struct process *p) {
    struct process *parent = census_find(census, p->parent);

    return parent && parent->started <= p->started ? parent : NULL;
}

/* ---- whose is it? ---- */

/* The census contains the process but not its parent: reads the ancestors again, upwards. */
static enum place trace_ancestry(struct census *census, const struct process *p, pid_t top) {
    struct process now;

    for (pid_t pid = p->pid; census->looks < MAX_LOOKS; pid = now.parent) {
        census->looks++;
        if (!read_process(census->proc, pid, &now)) {
            if (pid == p->pid)
                return OUTSIDE;  /* it has ended */
            now.parent = p->pid; /* an ancestor has: its child has another parent now */
            continue;
        }
        if (now.parent == top)
            return INSIDE;
        if (now.parent <= 1)
            return OUTSIDE;
    }
    census->unsure = true;
    return UNKNOWN;
}

struct late {
    struct census *census;
    pid_t top; /* top of the tree; 0: all processes */
};

static bool is_no_news(void *data, pid_t pid) {
    const struct late *late = data;
    struct process p;

    if (pid == 1 || census_find(late->census, pid) || !read_process(late->census->proc, pid, &p) ||
        is_dead(&p))
        return true;
    return late->top && trace_ancestry(late->census, &p, late->top) == OUTSIDE;
}

/* Are there relevant processes that the census does not contain? A second listing costs little,
 * compared with reading each process. A process that got a lower pid than the reader's position
 * must have been created during the first listing, and appears in the second. */
static bool census_is_old(struct census *census, pid_t top) {
    struct late late = { census, top };

    for (int i = 0; i < 2; i++)
        if (lseek(census->proc, 0, SEEK_SET) < 0 ||
            tree_each_number(census->proc, is_no_news, &late) != 0)
            return true;
    return census->unsure;
}

static enum place place_of(struct census *census, struct process *p, pid_t top) {
    enum place place = UNKNOWN;
    struct process *at = p;

    for (size_t steps = 0; place == UNKNOWN && steps <= census->n; steps++) {
        struct process *parent;

        if (at->place != UNKNOWN)
            place = (enum place)at->place;
        else if (at->parent == top)
            place = INSIDE;
        else if (at->parent <= 1)
            place = OUTSIDE;
        else if ((parent = census_parent(census, at)))
            at = parent;
        else {
            place = trace_ancestry(census, at, top);
            break;
        }
    }
    /* All processes on the path share the result, so each is visited once. */
    for (at = p; place != UNKNOWN && at && at->place == UNKNOWN; at = census_parent(census, at))
        at->place = (uint8_t)place;
    return place;
}

static void wait_a_little(void) {
    struct timespec tick = { .tv_nsec = TICK_NS }; /* the kernel stores the remaining time there */

    (void)sys_call5(__NR_ppoll, NULL, 0, &tick, NULL, 0);
}

/* A SIGSTOP takes effect when the process next checks for signals. After init reports the signal,
 * the process must be stopped, or a freeze that follows would take the stop for its own. True if it
 * has stopped and is not dead. */
static bool await_stop(pid_t pid) {
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct process p = { .state = 'X' };

    for (int ticks = 0; ticks < MAX_ROUNDS && read_process(proc, pid, &p) && !is_stopped(p.state);
         ticks++)
        wait_a_little();
    if (proc >= 0)
        close(proc);
    return is_stopped(p.state) && !is_dead(&p);
}

/* Was a child, which init has not reaped meanwhile, killed, or did it end although it was
 * stopped? */
static bool was_freed(pid_t pid, bool stood) {
    siginfo_t ended = { 0 };

    return sys_call5(__NR_waitid, P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT, NULL) == 0 &&
           ended.si_pid && (stood || (ended.si_code == CLD_KILLED && ended.si_status == SIGKILL));
}

/* ---- signals ---- */

/* Sends the signal to all processes below the top that have not received it. Returns their
 * number. */
static int signal_processes(
    struct census *census, const struct census *before, pid_t top, int number) {
    int n = 0;

    for (size_t i = 0; i < census->n; i++) {
        struct process *p = &census->list[i];
        const struct process *known = before ? census_find(before, p->pid) : NULL;

        if (p->pid == top || is_dead(p) || command_is_agent(p->pid) ||
            place_of(census, p, top) != INSIDE)
            continue;
        p->told = known && known->told && known->started == p->started;
        if (p->told)
            continue;
        p->told = true;
        n += kill(p->pid, number) == 0;
    }
    return n;
}

/* Sends SIGKILL or SIGSTOP to all processes below the top, also to those that try to evade it.
 * -EAGAIN: the search did not end; -EXDEV: another process killed the stopped top, so the rest of
 * the tree cannot be distinguished from others. */
static int signal_until_done(pid_t top, int number) {
    struct census two[2];
    bool done = false, stood = false;
    int total = 0, r = census_init(&two[0]);

    if (r < 0)
        return r;
    r = census_init(&two[1]);
    if (r < 0) {
        census_done(&two[0]);
        return r;
    }
    struct census *now = &two[0];
    for (int round = 0; !done && round < MAX_ROUNDS; round++) {
        const struct census *before = round ? now : NULL;

        now = &two[round % 2];
        /* The census comes before the signals, so that a process which reacts to the stopped top by
         * killing it is known. */
        r = census_take(now);
        if (r < 0)
            break;
        (void)kill(top, SIGSTOP); /* every time: another command may have continued it */
        total += signal_processes(now, before, top, number);
        stood = stood || await_stop(top);
        done = !census_is_old(now, top);
        census_close(now);
    }
    for (size_t i = 0; r >= 0 && number == SIGSTOP && i < now->n; i++)
        if (now->list[i].told)
            await_stop(now->list[i].pid);
    census_done(&two[0]);
    census_done(&two[1]);
    if (r >= 0 && was_freed(top, stood))
        return -EXDEV;
    if (r < 0)
        return r;
    return done ? total : -EAGAIN;
}

static int tell_once(pid_t top, int number) {
    struct census census;
    int r = census_init(&census);

    if (r < 0)
        return r;
    r = census_take(&census);
    if (r >= 0)
        r = signal_processes(&census, NULL, top, number);
    census_done(&census);
    return r;
}

static int signal_below(pid_t top, int number) {
    bool was_frozen = state_is_frozen;
    int r = number == SIGKILL || number == SIGSTOP ? signal_until_done(top, number)
                                                   : tell_once(top, number);

    /* Killing a stopped process is no accident but an attempt to escape, so everything is
     * killed. */
    if (r == -EXDEV && number == SIGKILL)
        return kill(-1, SIGKILL) < 0 ? -errno : 1;
    if ((r != -EAGAIN && r != -EXDEV) || number != SIGKILL)
        return r == -EAGAIN || r == -EXDEV ? 0 : r;
    /* From here on no process can escape; a few more might if some do not stop in time. */
    if (!was_frozen)
        (void)freeze_processes(true);
    r = signal_until_done(top, number);
    if (r == -EXDEV)
        (void)kill(-1, SIGKILL);
    if (!was_frozen)
        tree_thaw();
    return r == -EAGAIN || r == -EXDEV ? 0 : r;
}

static int signal_group(const struct process *top, int number) {
    pid_t group = top->foreground > 1 ? top->foreground : top->group;

    /* The foreground group may have ended meanwhile. */
    if (group <= 1)
        return -ESRCH;
    if (kill(-group, number) == 0)
        return 1;
    return group != top->group && kill(-top->group, number) == 0 ? 1 : -ESRCH;
}

int tree_signal(pid_t top, int number, uint64_t scope) {
    struct process main;
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (proc < 0)
        return -errno;
    bool exists = read_process(proc, top, &main);
    close(proc);
    if (!exists)
        return -ESRCH;
    if (is_dead(&main))
        return -ESRCH; /* it is about to be reaped, and has no descendants */
    if (state_is_frozen && number == SIGCONT)
        return -EBUSY;
    if (scope == GUEST_SCOPE_GROUP)
        return signal_group(&main, number);
    if (scope == GUEST_SCOPE_MAIN) {
        if (kill(top, number) < 0)
            return -errno;
        if (number == SIGSTOP)
            await_stop(top);
        return 1;
    }
    if (scope != GUEST_SCOPE_TREE && scope != GUEST_SCOPE_CHILDREN)
        return -EINVAL;

    bool all = scope == GUEST_SCOPE_TREE;
    /* A shell that receives the signal first does not continue with its next line when its child
     * ends. */
    if (all && number != SIGKILL && kill(top, number) < 0)
        return -errno;
    int r = signal_below(top, number);
    if (all && number == SIGKILL)
        (void)kill(top, SIGKILL);
    else if (!all && (number == SIGKILL || number == SIGSTOP) && !state_is_frozen &&
             main.state != 'T')
        (void)kill(top, SIGCONT);
    else if (number == SIGSTOP)
        await_stop(top);
    return r < 0 ? r : r + all;
}

/* A stopped process creates no others, so one more census finds all that were created before. If
 * that fails, agents are killed with all others. kill(-1) stops agents, too, because it cannot
 * exclude them, and they are continued. */
int tree_kill_guests(void) {
    struct census census;
    bool done = false;
    int r = kill(-1, SIGSTOP) < 0 ? -errno : 0;

    if (r == -ESRCH)
        return 0;
    if (r == 0 && (r = census_init(&census)) == 0) {
        for (int round = 0; r >= 0 && !done && round < MAX_ROUNDS; round++) {
            r = census_take(&census);
            if (r >= 0)
                (void)signal_processes(&census, NULL, 1, SIGKILL);
            done = r >= 0 && !census_is_old(&census, 0);
            census_close(&census);
        }
        census_done(&census);
    }
    if (!done)
        return kill(-1, SIGKILL) < 0 ? -errno : 0;
    if (!state_is_held)
        command_agents_resume();
    return 0;
}

/* ---- freezing ---- */

struct threads {
    int directory;
    bool vfork;     /* it waits for a child that shares its memory */
    pid_t restless; /* 0: all have stopped */
    bool stopping;
};

static bool look_at_thread(void *data, pid_t thread) {
    struct threads *threads = data;
    struct process p;
    char path[32];

    put_text(guest_put_number(path, (uint64_t)thread), "/stat");
    if (!look_at(threads->directory, path, &p))
        return true;
    threads->stopping |= p.state == 'T';
    if (!is_stopped(p.state) && !(p.state == 'D' && threads->vfork) &&
        !dispatch_holds_surely(thread))
        threads->restless = thread;
    return true;
}

/* A process that has called vfork waits in the kernel until its child has executed a program, and
 * no signal stops it there. If the child is stopped, or waits in the same way, the process counts
 * as paused. The shared memory identifies it. There are ways to wait so without sharing memory;
 * those are accepted after a longer time. */
static bool waits_for_vfork(const struct census *census, const struct process *p, bool late) {
    for (size_t i = 0; i < census->n; i++) {
        const struct process *child = &census->list[i];

        if (child->parent == p->pid && (child->state == 'T' || child->state == 'D') &&
            (late || (child->size == p->size && child->resident == p->resident)))
            return true;
    }
    return false;
}

static bool is_still(const struct census *census, struct process *p, bool late) {
    struct threads threads = { .vfork = (p->state == 'D' || p->threads > 1) &&
                                        waits_for_vfork(census, p, late) };
    char path[32];

    if (is_dead(p))
        return true;
    if (!is_stopped(p->state) && !(p->state == 'D' && threads.vfork) &&
        !dispatch_holds_surely(p->pid))
        p->restless = p->pid;
    p->stopping = p->state == 'T';
    if (p->threads <= 1)
        return !p->restless;
    put_text(guest_put_number(path, (uint64_t)p->pid), "/task");
    threads.directory = openat(census->proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (threads.directory < 0)
        return errno == ENOENT;
    int r = tree_each_number(threads.directory, look_at_thread, &threads);
    close(threads.directory);
    if (!p->restless)
        p->restless = threads.restless;
    p->stopping |= threads.stopping;
    return (r >= 0 || r == -ENOENT) && !p->restless;
}

static bool is_theirs(pid_t pid) {
    for (size_t i = 0; i < n_theirs; i++)
        if (theirs[i] == pid)
            return true;
    return false;
}

/* Is a stop pending or in effect? The thread that takes the signal stops in the same moment. So a
 * process that had neither may have changed between the two readings, and is read once more. */
static bool is_told(const struct census *census, const struct process *p, bool surely) {
    struct process now = *p;

    if (p->stopping || process_is_to_stop(census->proc, p->pid, surely))
        return true;
    if (p->still || !read_process(census->proc, p->pid, &now))
        return false;
    (void)is_still(census, &now, false);
    return now.stopping;
}

/* A signal to a process is taken by one thread, preferably the first, and a thread that waits for
 * init takes none. If that one does not take it, another thread is signalled, which stops all
 * others. */
static void stop_process(const struct census *census, const struct process *p) {
    if (!is_theirs(p->pid) || !is_told(census, p, true)) {
        for (size_t i = 0; i < n_theirs; i++)
            if (theirs[i] == p->pid)
                theirs[i] = theirs[--n_theirs];
        (void)kill(p->pid, SIGSTOP);
    }
    if (p->restless)
        (void)sys_call3(__NR_tgkill, p->pid, p->restless, SIGSTOP);
}

/* Counts the processes that run; ret_n: all processes. */
static int count_restless(struct census *census, int round, int *ret_n) {
    int restless = census->unsure, n = 0;

    for (size_t i = 0; i < census->n; i++) {
        struct process *p = &census->list[i];

        p->still = is_still(census, p, round > LATE_ROUND);
        n += !is_dead(p) && !command_is_agent(p->pid);
        restless += !p->still;
    }
    *ret_n = n;
    return restless;
}

/* Records the processes that were stopped, or signalled to stop, before the freeze. A sleeping
 * process wakes up for a signal and runs until it has taken it, unless it waits for init or
 * uninterruptibly; its other threads stop later. */
static void note_theirs(const struct census *census) {
    for (size_t i = 0; i < census->n && n_theirs < MAX_THEIRS; i++) {
        const struct process *p = &census->list[i];
        bool may_be =
            p->stopping || p->still || strchr("RD", p->state) || dispatch_holds_surely(p->pid);

        if (!is_dead(p) && may_be && is_told(census, p, false))
            theirs[n_theirs++] = p->pid;
    }
}

/* Sends SIGSTOP to running processes; at first only to those whose parents have stopped. */
static void stop_some(const struct census *census, bool polite) {
    for (size_t i = 0; i < census->n; i++) {
        const struct process *p = &census->list[i], *parent = census_parent(census, p);

        if (!p->still && (!polite || !parent || parent->still || parent->state == 'D'))
            stop_process(census, p);
    }
}

/* With `at_once`, the order of parents and children is given up. */
static int freeze_processes(bool at_once) {
    int64_t polite_until = clock_now_ns() + (at_once ? 0 : POLITE_NS), deadline = INT64_MAX;
    struct census census;
    int n = 0, r = census_init(&census);

    if (r < 0)
        return r;
    if (!state_is_frozen)
        n_theirs = 0;
    for (int round = 0;; round++) {
        r = census_take(&census);
        if (r < 0)
            break;
        bool still = count_restless(&census, round, &n) == 0;
        if (round == 0 && !state_is_frozen)
            note_theirs(&census);
        stop_some(&census, deadline == INT64_MAX);
        still = still && !census_is_old(&census, 0);
        census_close(&census);
        if (still)
            break;
        if (deadline == INT64_MAX && (round >= MAX_ROUNDS || clock_now_ns() >= polite_until)) {
            (void)kill(-1, SIGSTOP);
            deadline = clock_now_ns() + FREEZE_NS;
        }
        if (clock_now_ns() > deadline) {
            r = -ETIMEDOUT;
            break;
        }
        wait_a_little();
    }
    census_done(&census);
    state_is_frozen = true;
    if (r < 0)
        tree_thaw();
    return r < 0 ? r : n;
}

int tree_freeze(void) {
    return freeze_processes(false);
}

static void work_out_depth(const struct census *census, struct process *p) {
    uint32_t steps = 0, depth = 1;
    struct process *at = p, *parent;

    while (!at->depth && steps <= census->n && (parent = census_parent(census, at))) {
        at = parent;
        steps++;
    }
    if (at->depth)
        depth = at->depth;
    for (at = p, depth += steps; at && !at->depth && depth; at = census_parent(census, at))
        at->depth = depth--;
}

void tree_thaw(void) {
    struct census census;
    uint32_t deepest = 0;

    if (!state_is_frozen)
        return;
    state_is_frozen = false;
    if (census_init(&census) < 0 || census_take(&census) < 0) {
        (void)kill(-1, SIGCONT);
        return;
    }
    for (size_t i = 0; i < census.n; i++) {
        work_out_depth(&census, &census.list[i]);
        if (census.list[i].depth > deepest)
            deepest = census.list[i].depth;
    }
    for (uint32_t depth = deepest; depth; depth--)
        for (size_t i = 0; i < census.n; i++)
            if (census.list[i].depth == depth && !is_theirs(census.list[i].pid))
                (void)kill(census.list[i].pid, SIGCONT);
    if (census.unsure)
        (void)kill(-1, SIGCONT);
    census_done(&census);
}
