/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a capture, and the operations on it that all its files use. */
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

#define DUMP_MAX_TEXT (16u << 20) /* of one file in /proc */

/* Where the memory of a process is read: the process, or its twin. */
struct pages {
    pid_t pid;
    int proc, pagemap, memory; /* /proc/PID, and files in it */
};

/* A process that is being captured. */
struct dump_process {
    pid_t pid, parent; /* the host's */
    uint32_t inner_pid, session, group;
    uint32_t outer_group;     /* the host's */
    uint32_t index;           /* in the image */
    unsigned round;           /* of looking, in which it was seen last */
    bool is_zombie, is_apart; /* apart: of init's own program; it stands still, and that is all */
    uint32_t end_status;      /* of a zombie */
    int proc, root, pagemap;  /* /proc/PID, its root directory */
    struct trace_tools tools;
    struct pages pages;
    struct buf status, maps; /* files in /proc/PID */
    struct buf notes;        /* memory.c: of each line of `maps` */
    struct buf pages_there;  /* dirty_pages.c: struct uapi_page_region, by address */
    uint64_t anonymous;      /* bytes that are there of its memory */
    uint64_t handled;        /* signals that it ignores or has handlers for */
    struct pages twin;       /* cow_fork.c; pid 0: none */
    pid_t inner_twin;        /* its number in the sandbox */
    bool is_forking;         /* it is being made */
    uint64_t closed_vdso;    /* it is not to be looked into, but for now; 0: it may be */
    char name[16];
};

struct task {
    struct trace trace;
    struct dump_process *process;
    bool is_gone;
    uint32_t inner_tid; /* inside; 0: not known yet */
    char name[16];
};

/* Pages of a twin, and where in the image they are to be. */
struct promise {
    const struct dump_process *process;
    uint64_t address, n, at;
};

/* A file description that is known: whose, by which number, and what tells it from others at a
 * glance. */
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
    unsigned round;                       /* process_tree.c */
    struct dump_process **dump_processes; /* by address: they stay where they are */
    size_t n_dump_processes, dump_processes_room;
    struct task *tasks;
    size_t n_tasks, tasks_room;
    struct image image;
    /* Tables, filled as it goes. */
    struct buf processes, threads, areas, runs, actions, pending, timers, locks, files, pipes,
        targets, fds, terminals, watches, texts;
    struct buf waits, alarms;   /* quiesce.c */
    struct buf guards, guarded; /* guard_pages.c: the table; what the present process has of them */
    size_t n_guarded;           /* that are in the table, or no area's */
    struct buf blobs;           /* what tables name by offset; they follow the pages */
    struct buf known;           /* struct known_file, parallel to `files` */
    struct buf pipe_inodes;     /* uint64_t, parallel to `pipes` */
    struct inode_numbers numbers;          /* of regular files among `files` that have names */
    struct buf sockets;                    /* sockets.c */
    struct buf ends;                       /* terminals.c */
    struct buf watched;                    /* inotify.c */
    const struct dump_process *reached_by; /* reopen_check.c: who last, and which directory */
    struct buf reached;
    struct buf scratch, smaps;
    struct buf written; /* the last pages before `saved`, on their way to the file */
    uint64_t saved;     /* bytes of pages */
    uint64_t program_device, program_inode; /* init's */
    uint32_t profile_owner;                 /* of init's files in /proc */
    uint64_t own_ipc;                       /* our namespace of System V: its inode */
    unsigned long n_filters; /* of system calls; init's, and those of all its processes */
    const struct dump_process *current; /* whom errors are about */
    unsigned n_threads;
    uint64_t twins, cow_fork_bytes; /* bytes of memory that they have, and may have */
    struct buf promised; /* struct promise: pages of the image that tables tell of and that are not
                            written yet */
    bool promises;       /* what may be is promised */
    uint64_t n_promised; /* pages */
    uint64_t told;       /* to who loads the image: what of it is written */
    bool is_complete;
    uint32_t n_again;  /* of the waits that init has told of, so many were broken off before */
    bool holds, leads; /* init does nothing else; who waits as it says goes on first (quiesce.c) */
    const char *base;  /* dirty_pages.c: the image that this is to be an addition to; NULL: none */
    uint64_t base_length;
    struct buf kept;                              /* struct image_kept */
    struct dirty_tracker had[MAX_DIRTY_TRACKERS]; /* that there are */
    size_t n_had;
    struct dirty_tracker trackers[MAX_DIRTY_TRACKERS]; /* that there are to be */
    size_t n_trackers;                                 /* of all processes, or 0 */
    bool is_looked_at; /* process.c: what is no process' own has been asked for */
};

#define dump_entry(buf, index, type)                                                               \
    ((type *)(void *)((buf)->data + (size_t)(index) * sizeof(type)))
#define dump_count(buf, type) ((buf)->length / sizeof(type))

/* Says why the present process cannot be captured, with ENOTSUP or another errno; -errno. */
__attribute__((format(printf, 3, 4))) int dump_refuse(
    struct dump *c, int error_number, const char *format, ...);
int dump_fail(struct dump *c, const char *what, int negative_errno);
/* A file below /proc/PID, with a NUL that is not counted. */
int dump_read(struct dump *c, const struct dump_process *s, const char *name, struct buf *to);
/* The line of a text of /proc that begins so, past that; "" if there is none. */
const char *dump_field(const char *text, const char *name);
/* The last of a line's numbers: lines like "NSpid:" have one for each namespace, the innermost
 * last. */
uint32_t dump_innermost(const char *text, const char *name);
/* Pages, to follow those before in the image; and those that are kept back go to the file. 0 or
 * -errno. */
int dump_put(struct dump *c, const void *pages, size_t length);
int dump_flush(struct dump *c);
uint64_t dump_text(struct dump *c, const char *text);
uint64_t dump_blob(struct dump *c, const void *data, size_t length);
struct image_range dump_range(const struct buf *table, size_t before, size_t entry_size);

#endif
