/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading /proc: what the processes of a sandbox use, from outside; and the text of the /proc files
 * that a sandbox is given in place of the host's.
 *
 * The walk starts at the sandbox's init and follows /proc/PID/task/TID/children
 * (CONFIG_PROC_CHILDREN), breadth first: a process that loses its parent meanwhile goes to an init
 * whose children were read already, so nothing is counted twice; a little may be missed. Processes
 * may vanish at any moment: that is no error.
 */
#ifndef ROLLBOX_SYS_PROC_H
#define ROLLBOX_SYS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define PROC_SCAN_MAX 32768 /* processes that a scan looks at */

struct proc_usage {
    uint32_t processes; /* zombies included: they hold a pid. init is counted */
    uint32_t threads;
    uint64_t anon_bytes; /* private and shared memory without a file, page tables */
    uint64_t cpu_ns; /* user + system of the living and of the children they waited for, in clock
                        ticks (10 ms) */
    bool truncated;  /* there are more than PROC_SCAN_MAX */
};

/* RssAnon + RssShmem over all processes: memory shared among them (after fork, or MAP_SHARED) is
 * counted for each, so this is never too little for what is mapped. Some 25 microseconds a process.
 * -ESRCH if init is gone; -EMFILE, -ENFILE, -ENOMEM. */
int proc_scan(pid_t init_pid, struct proc_usage *ret_usage);

/* The same with each shared page divided among those that map it (smaps_rollup's Pss; costs in
 * proportion to the memory), and with memory files (memfd) that are held open: those are in
 * nobody's resident set unless mapped. Of mapped shared memory and memory files only the greater is
 * counted, as they may be the same. For when proc_scan exceeds the limit, and now and then for the
 * memory files. A process that may not be looked into counts as in proc_scan, and with all it has
 * mapped beside private memory (but init). */
int proc_scan_exact(pid_t init_pid, struct proc_usage *ret_usage);

/* The children of a process, of all its threads: each has children of its own, and would be a place
 * to hide some. How many, at most `most`; 0 also of one that is gone. -EMFILE, -ENFILE, -ENOMEM:
 * there may be any number. */
ssize_t proc_children(pid_t pid, pid_t *pids, size_t most);

/* The threads of a process, its first one among them; the same answers. */
ssize_t proc_threads(pid_t pid, pid_t *tids, size_t most);

/* When a process started, in clock ticks since boot; with its pid, a name that is never used again.
 * -ESRCH, also for one that is dead and only waits to be reaped: pid 1 may be slow or not care. */
int64_t proc_start_time(pid_t pid);

/* 0: it is in a pid namespace above ours. -ESRCH: the process is gone. */
pid_t proc_parent(pid_t pid);

/* Does it run in a sandbox that an ordinary user's engine made, or in what cannot be told from one:
 * one user id mapped, no capability to be had, in a user namespace that is not ours? 0, 1, or
 * -errno
 * (-ENOENT, -ESRCH: it is gone). */
int proc_is_sandboxed(pid_t pid);

/* How often the kernel's OOM killer has killed, over the whole host. -ENOENT (kernels before 4.13),
 * ... */
int64_t proc_oom_kill_count(void);

/* MemAvailable (and MemTotal, if not NULL) of the host. */
int proc_memory_available(uint64_t *ret_available_bytes, uint64_t *ret_total_bytes);

/* ---- files for a sandbox: text in, text out, no I/O ---- */

/* /proc/cpuinfo cut to the first `cpus` processors of the host's. "siblings" and "cpu cores" are
 * made to agree. */
int proc_fake_cpuinfo(const char *host, size_t length, unsigned cpus, struct buf *to);

/* /proc/stat of a machine with `cpus` processors that was never busy: the host's load and
 * interrupts are none of the guest's business. `boot_time_s` is for btime. */
int proc_fake_stat(unsigned cpus, int64_t boot_time_s, struct buf *to);

/* /proc/meminfo of a machine with `limit_bytes` (or the host's MemTotal, if that is less or the
 * limit 0), all of it free, without swap. */
int proc_fake_meminfo(const char *host, size_t length, uint64_t limit_bytes, struct buf *to);

/* /proc/vmstat of a machine with this much memory, all of it free, on which nothing has happened:
 * what programs look for there, and no number of the host. 0 or -ENOMEM. */
int proc_fake_vmstat(uint64_t limit_bytes, struct buf *to);

/* /proc/loadavg of an idle machine. */
int proc_fake_loadavg(struct buf *to);

#endif
