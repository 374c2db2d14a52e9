/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading /proc: the resource usage of a sandbox's processes, seen from outside, and the text of
 * the /proc files that a sandbox receives in place of the host's.
 *
 * The walk starts at the sandbox's init and follows /proc/PID/task/TID/children
 * (CONFIG_PROC_CHILDREN), breadth first. A process whose parent ends during the walk becomes a
 * child of an init whose children were already read, so no process is counted twice; a few may be
 * missed. A process that ends during the walk is not an error.
 */
#ifndef ROLLBOX_SYS_PROC_H
#define ROLLBOX_SYS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define PROC_SCAN_MAX 32768 /* the most processes that a scan reads */

struct proc_usage {
    uint32_t processes; /* zombies and init are counted; each holds a pid */
    uint32_t threads;
    uint64_t anon_bytes; /* private and shared memory without a file, page tables */
    uint64_t cpu_ns; /* user and system time of the living processes and of their reaped children,
                        in clock ticks (10 ms) */
    bool truncated;  /* there are more than PROC_SCAN_MAX */
};

/* The sum of RssAnon and RssShmem over all processes. Memory shared by several processes (after
 * fork, or MAP_SHARED) counts for each of them, so the sum is never too small for mapped memory.
 * Takes some 25 microseconds per process. -ESRCH if init has ended; -EMFILE, -ENFILE, -ENOMEM. */
int proc_scan(pid_t init_pid, struct proc_usage *ret_usage);

/* A more exact and slower scan. Shared pages are divided among the processes that map them (Pss in
 * smaps_rollup; the cost grows with the memory). Open memory files (memfd) are counted; no resident
 * set contains them unless they are mapped. Of mapped shared memory and memory files only the
 * larger is counted, because they may be the same. Used when proc_scan exceeds the limit, and from
 * time to time for memory files. A process that may not be inspected counts as in proc_scan, with
 * all its mappings except private memory (init excepted). */
int proc_scan_exact(pid_t init_pid, struct proc_usage *ret_usage);

/* The children of a process. Each thread has children of its own, so all threads are read;
 * otherwise a guest could hide children there. Returns the number of children, at most `most`, and
 * 0 if the process has ended. After -EMFILE, -ENFILE or -ENOMEM the number is unknown. */
ssize_t proc_children(pid_t pid, pid_t *pids, size_t most);

/* The threads of a process, including the first. Returns as proc_children does. */
ssize_t proc_threads(pid_t pid, pid_t *tids, size_t most);

/* The start time of a process in clock ticks since boot. Pid and start time together identify a
 * process for ever. -ESRCH if it does not exist or is a zombie: pid 1 may reap late or never. */
int64_t proc_start_time(pid_t pid);

/* 0: it is in a pid namespace above ours. -ESRCH: the process is gone. */
pid_t proc_parent(pid_t pid);

/* Does it run in a sandbox that an ordinary user's engine made, or in one that looks the same:
 * one user id mapped, no capability to be had, in a user namespace that is not ours? 0, 1, or
 * -errno
 * (-ENOENT, -ESRCH: it is gone). */
int proc_is_sandboxed(pid_t pid);

/* The number of OOM kills on the whole host since boot. -ENOENT before Linux 4.13. */
int64_t proc_oom_kill_count(void);

/* MemAvailable (and MemTotal, if not NULL) of the host. */
int proc_memory_available(uint64_t *ret_available_bytes, uint64_t *ret_total_bytes);

/* ---- files for a sandbox: text in, text out, no I/O ---- */

/* /proc/cpuinfo cut to the first `cpus` processors of the host's. "siblings" and "cpu cores" are
 * made to agree. */
int proc_fake_cpuinfo(const char *host, size_t length, unsigned cpus, struct buf *to);

/* /proc/stat of an idle machine with `cpus` processors. It hides the host's load and interrupts.
 * `boot_time_s` becomes btime. */
int proc_fake_stat(unsigned cpus, int64_t boot_time_s, struct buf *to);

/* /proc/meminfo of a machine without swap and with `limit_bytes` of memory, all free. The host's
 * MemTotal is used if it is smaller, or if the limit is 0. */
int proc_fake_meminfo(const char *host, size_t length, uint64_t limit_bytes, struct buf *to);

/* /proc/vmstat of a machine with this much memory, all free, on which nothing has happened. It has
 * the names that programs look for and none of the host's numbers. Returns 0 or -ENOMEM. */
int proc_fake_vmstat(uint64_t limit_bytes, struct buf *to);

/* /proc/loadavg of an idle machine. */
int proc_fake_loadavg(struct buf *to);

/* The path of this process's program; the caller frees it. If the file was replaced or removed
 * since the start, as an upgrade does, it is the path that the file had, so that programs beside it
 * are found. NULL: not known, or out of memory. */
char *proc_own_program(void);

#endif
