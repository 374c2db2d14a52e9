/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy-on-write forks.
 *
 * Copying memory takes time proportional to its size. To keep the pause short, the dump worker
 * makes the paused process fork, resumes it, and dumps the memory of the child. The kernel shares
 * the pages of the two until one of them writes.
 *
 * The child never runs. It has no descriptors, so a pipe or file that the process closes later does
 * not stay open because of it. It sends no signal when it ends, and only a wait for clones
 * (__WCLONE) finds it, so the guest does not notice it. To collect the child at the end, the
 * process has to be paused once more and made to call wait4. If the process has become another
 * program by then, in which no calls can be made, the child remains a zombie.
 *
 * The child's memory counts against the limit of the sandbox, so a fork is made only where that
 * much memory is left. If the process ends before its child is collected, the child passes to the
 * main process of the command like any orphan, and that process may notice it. Processes below a
 * main process end more often, so they get a fork only where copying would take long. Without a
 * fork, also because the kernel refused it, the process stays paused until its memory is copied.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/proc.h"

/* Copying less memory than this is faster than a fork. */
#define LEAST_OF_MAIN (1u << 20)
#define LEAST_BELOW (64u << 20)
#define COLLECT_TRIES 3

static int open_pages(struct pages *pages) {
    char path[32];

    snprintf(path, sizeof path, "/proc/%d", (int)pages->pid);
    pages->proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    pages->pagemap = openat(pages->proc, "pagemap", O_RDONLY | O_CLOEXEC);
    pages->memory = openat(pages->proc, "mem", O_RDWR | O_CLOEXEC);
    return pages->proc < 0 || pages->pagemap < 0 || pages->memory < 0 ? -errno : 0;
}

static unsigned long pages_mapped(int proc) {
    char text[128];
    auto_close int fd = openat(proc, "statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    text[MAX(n, (ssize_t)0)] = '\0';
    return strtoul(text, NULL, 10);
}

/* A fork lacks the areas with MADV_DONTFORK. Then it cannot stand for the process. */
static bool has_all(const struct dump_process *s, const struct pages *cow_fork) {
    unsigned long n = pages_mapped(cow_fork->proc);

    return n && n == pages_mapped(s->proc);
}

/* The usage does not include files in memory, so only a part of the remaining limit is used. */
void cow_fork_plan(struct dump *c) {
    const uint64_t limit = c->options->memory_limit;
    struct proc_usage usage;

    if (proc_scan(c->options->init, &usage) == 0 &&
        (!c->options->max_processes || usage.threads <= c->options->max_processes / 2))
        c->cow_fork_max_bytes = !limit                     ? UINT64_MAX
                                : limit > usage.anon_bytes ? (limit - usage.anon_bytes) / 4
                                                           : 0;
}

void cow_fork_make(struct dump *c, struct dump_process *s) {
    if (s->anonymous < (s->parent == c->options->init ? LEAST_OF_MAIN : LEAST_BELOW) ||
        s->anonymous > c->cow_fork_max_bytes ||
        c->cow_fork_used_bytes > c->cow_fork_max_bytes - s->anonymous)
        return;
    s->is_forking = trace_fork(&tree_main(c, s)->trace, &s->tools) == 0;
}

void cow_fork_made(struct dump *c, struct dump_process *s) {
    if (!s->is_forking)
        return;
    s->is_forking = false;
    int r = trace_forked(&tree_main(c, s)->trace, &s->tools, &s->cow_fork.pid, &s->inner_cow_fork);
    if (r == 0)
        r = open_pages(&s->cow_fork);
    if (r < 0 || !has_all(s, &s->cow_fork)) {
        cow_fork_end(c, s);
        return;
    }
    s->pages = s->cow_fork;
    c->cow_fork_used_bytes += s->anonymous;
}

bool cow_fork_stands(const struct dump_process *s) {
    return pages_mapped(s->cow_fork.proc) != 0;
}

static void collect_pages(const struct dump_process *s, struct trace *trace) {
    const uint64_t arguments[] = { (uint64_t)s->inner_cow_fork, 0, WNOHANG | __WCLONE, 0 };
    int64_t result;

    (void)trace_call(
        trace, &s->tools, SYS_wait4, arguments, ARRAY_SIZE(arguments), NULL, 0, &result);
}

/* The process ran since it was dumped, so everything that a call depends on is read again. */
static bool may_call(struct dump *c, struct dump_process *s, const struct trace *trace) {
    close_fd(&s->tools.memory);
    buf_done(&s->status); /* it may have failed to grow */
    buf_done(&s->maps);
    s->tools = (struct trace_tools){ .memory = openat(s->proc, "mem", O_RDWR | O_CLOEXEC) };
    return s->tools.memory >= 0 && dump_read(c, s, "status", &s->status) == 0 &&
           strtoul(dump_field(s->status.data, "\nSeccomp_filters:"), NULL, 10) <= c->n_filters &&
           !trace_oddity(trace) && !trace_in_sequence(trace, s->tools.memory) &&
           memory_find_tools(c, s) == 0;
}

static void collect_late(struct dump *c, struct dump_process *s) {
    struct trace trace;
    bool collected = false;

    for (unsigned tries = 0; tries < COLLECT_TRIES && !collected && tree_hold(&trace, s->pid) == 0;
         tries++) {
        collected = may_call(c, s, &trace);
        if (collected)
            collect_pages(s, &trace);
        trace_release(&trace);
    }
}

/* A fork that ended in a call is collected already, and its pid may be in use again. */
static bool is_ours(pid_t pid) {
    siginfo_t info;

    return pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

void cow_fork_end(struct dump *c, struct dump_process *s) {
    struct task *main = tree_main(c, s);

    if (is_ours(s->cow_fork.pid)) {
        (void)kill(s->cow_fork.pid, SIGKILL);
        while (waitpid(s->cow_fork.pid, NULL, __WALL) < 0 && errno == EINTR)
            ;
    }
    close_fd(&s->cow_fork.proc);
    close_fd(&s->cow_fork.pagemap);
    close_fd(&s->cow_fork.memory);
    if (s->inner_cow_fork > 0 && main && main->trace.stands) {
        collect_pages(s, &main->trace);
        (void)trace_put_back(&main->trace);
    } else if (s->inner_cow_fork > 0)
        collect_late(c, s);
    s->cow_fork.pid = s->inner_cow_fork = 0;
    s->pages = (struct pages){ s->pid, s->proc, s->pagemap, s->tools.memory };
}
