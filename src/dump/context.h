/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a dump, and the operations on it that all files here use. */
#ifndef ROLLBOX_DUMP_CONTEXT_H
#define ROLLBOX_DUMP_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/buf.h"
#include "dump/dump.h"
#include "dump/ptrace.h"

#define DUMP_MAX_TEXT (16u << 20) /* limit of one file in /proc */

/* The source of a process's memory: the process, or its copy-on-write fork. */
struct pages {
    pid_t pid;
    int proc, pagemap, memory; /* /proc/PID, and files in it */
};

/* A map of ids of the sandbox's user namespace. */
struct id_ranges {
    size_t n;
    struct id_range {
        uint32_t inside, outside, count;
    } ranges[8];
};

/* A process that is being dumped. */
struct dump_process {
    pid_t pid, parent; /* on the host */
    uint32_t inner_pid, session, group;
    uint32_t outer_group;     /* on the host */
    uint32_t index;           /* index in the image */
    unsigned round;           /* last round of process_tree.c that saw it */
    bool is_zombie, is_apart; /* apart: it runs init's program; it is paused but not dumped */
    uint32_t end_status;      /* of a zombie */
    int proc, root, pagemap;  /* /proc/PID and its root directory */
    struct trace_tools tools;
    struct pages pages;
    struct buf status, maps; /* files in /proc/PID */
    struct buf notes;        /* memory.c: one for each line of `maps` */
    struct buf pages_there;  /* dirty_pages.c: struct uapi_page_region, by address */
    uint64_t anonymous;      /* bytes of memory in use */
    uint64_t handled;        /* signals that it ignores or handles */
    struct pages cow_fork;   /* copy-on-write fork (cow_fork.c); pid 0: none */
    pid_t inner_cow_fork;    /* the fork's pid inside the sandbox */
    bool is_forking;         /* a fork is in progress */
    uint64_t closed_vdso; /* where the vDSO is, if the process was not dumpable and was made so for
                             the dump; else 0 */
    char name[16];
};

struct task {
    struct trace trace;
    struct dump_process *process;
    bool is_gone;
    uint32_t inner_tid; /* inside the sandbox; 0: not known yet */
    char name[16];
};

/* Pages of a copy-on-write fork, and their offset in the image. */
struct promise {
    const struct dump_process *process;
    uint64_t address, n, at;
};

/* An open file description that is dumped already: owner, descriptor, and a key for quick
 * comparison. */
struct known_file {
    pid_t pid;
    int number;
    dev_t device;
    ino_t inode;
    uint32_t kind;
};

struct dump {
    const struct dump_options *options;
    struct rollbox_error *error;
    int fd;
    unsigned round; /* process_tree.c */
    bool is_traced; /* in the last round: a thread has a tracer that is not ours */
    struct dump_process **dump_processes; /* sorted by pid; the objects do not move */
    size_t n_dump_processes, dump_processes_room;
    struct task *tasks;
    size_t n_tasks, tasks_room;
    struct image image;
    /* Tables of the image, in progress. */
    struct buf processes, threads, areas, runs, actions, pending, timers, locks, files, pipes,
        targets, fds, terminals, watches, texts;
    struct buf waits, alarms;       /* quiesce.c */
    struct buf credentials, groups; /* credentials.c: tables */
    struct buf segments;            /* segments.c: a table */
    dev_t segment_device;           /* segments.c: of files of shared memory; 0: unknown */
    struct id_ranges uids, gids;    /* credentials.c; with many users */
    struct buf guards, guarded;     /* guard_pages.c: the table, and the present process */
    size_t n_guarded;             /* entries that are in the table already, or belong to no area */
    struct buf blobs;             /* data that tables refer to by offset; it follows the pages */
    struct buf known;             /* struct known_file, parallel to `files` */
    struct buf pipe_inodes;       /* uint64_t, parallel to `pipes` */
    struct inode_numbers numbers; /* inodes of the regular files with names among `files` */
    struct buf sockets;           /* sockets.c */
    struct buf ends;              /* terminals.c */
    struct buf watched;           /* inotify.c */
    const struct dump_process *reached_by; /* reopen_check.c: the last process and directory */
    struct buf reached;
    struct buf scratch, smaps;
    struct buf written;                     /* the last pages before `saved`, not in the file yet */
    uint64_t saved;                         /* bytes of pages */
    uint64_t program_device, program_inode; /* of init's program */
    uint32_t profile_owner;                 /* owner of init's files in /proc */
    uint64_t own_ipc;                       /* inode of the worker's System V namespace */
    unsigned long n_filters;            /* seccomp filters of init, which all its processes have */
    const struct dump_process *current; /* the process that errors name */
    unsigned n_threads;
    uint64_t cow_fork_used_bytes,
        cow_fork_max_bytes; /* memory of the forks in bytes, and its limit */
    struct buf promised;    /* struct promise: pages that are not written yet */
    bool promises;          /* pages may be promised */
    uint64_t n_promised;    /* number of pages */
    uint64_t told;          /* progress that the loader of the image was last sent */
    bool is_complete;
    uint32_t n_again;  /* waits from init's list that were interrupted before */
    bool holds, leads; /* init holds still; threads that init names resume first (quiesce.c) */
    const char *base;  /* dirty_pages.c: the parent image; NULL: none */
    uint64_t base_length;
    struct buf kept;                              /* struct image_kept */
    struct dirty_tracker had[MAX_DIRTY_TRACKERS]; /* existing ones */
    size_t n_had;
    struct dirty_tracker trackers[MAX_DIRTY_TRACKERS]; /* those that continue after the dump */
    size_t n_trackers;                                 /* for all processes, or 0 */
    bool is_looked_at;                                 /* process.c: shared resources are dumped */
};

#define dump_entry(buf, index, type)                                                               \
    ((type *)(void *)((buf)->data + (size_t)(index) * sizeof(type)))
#define dump_count(buf, type) ((buf)->length / sizeof(type))

/* Sets the error: why the present process cannot be dumped, with ENOTSUP or another errno. Returns
 * -errno. */
__attribute__((format(printf, 3, 4))) int dump_refuse(
    struct dump *c, int error_number, const char *format, ...);
int dump_fail(struct dump *c, const char *what, int negative_errno);
/* Reads a file below /proc/PID and adds a NUL that is not counted. */
int dump_read(struct dump *c, const struct dump_process *s, const char *name, struct buf *to);
/* Has it called chroot(2)? */
bool dump_has_other_root(const struct dump_process *s);
/* The rest of the line of a /proc text that begins with `name`; "" if there is none. */
const char *dump_field(const char *text, const char *name);
/* The last number of a line. Lines like "NSpid:" have one for each namespace, the innermost
 * last. */
uint32_t dump_innermost(const char *text, const char *name);
/* Adds pages to the image; writes buffered pages to the file. 0 or -errno. */
int dump_put(struct dump *c, const void *pages, size_t length);
int dump_flush(struct dump *c);
uint64_t dump_text(struct dump *c, const char *text);
uint64_t dump_blob(struct dump *c, const void *data, size_t length);
struct image_range dump_range(const struct buf *table, size_t before, size_t entry_size);

#endif
