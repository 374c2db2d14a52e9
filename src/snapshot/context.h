/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a capture, and the operations on it that all its files use. */
#ifndef ROLLBOX_SNAPSHOT_CONTEXT_H
#define ROLLBOX_SNAPSHOT_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/buf.h"
#include "snapshot/capture.h"
#include "snapshot/trace.h"

#define CAPTURE_MAX_TEXT (16u << 20)     /* of one file in /proc */

/* Where the memory of a process is read: the process, or its twin. */
struct pages {
    pid_t pid;
    int proc, pagemap, memory;  /* /proc/PID, and files in it */
};

/* A process that is being captured. */
struct subject {
    pid_t pid, parent;          /* the host's */
    uint32_t inner_pid, session, group;
    uint32_t outer_group;       /* the host's */
    uint32_t index;             /* in the image */
    unsigned round;             /* of looking, in which it was seen last */
    bool is_zombie, is_apart;   /* apart: of init's own program; it stands still, and that is all */
    uint32_t end_status;        /* of a zombie */
    int proc, root, pagemap;    /* /proc/PID, its root directory */
    struct trace_tools tools;
    struct pages pages;
    struct buf status, maps;    /* files in /proc/PID */
    struct buf notes;           /* memory.c: of each line of `maps` */
    struct buf pages_there;     /* track.c: struct uapi_page_region, by address */
    uint64_t anonymous;         /* bytes that are there of its memory */
    uint64_t handled;           /* signals that it ignores or has handlers for */
    struct pages twin;          /* twin.c; pid 0: none */
    pid_t inner_twin;           /* its number in the sandbox */
    bool is_forking;            /* it is being made */
    uint64_t closed_vdso;       /* it is not to be looked into, but for now; 0: it may be */
    char name[16];
};

struct task {
    struct trace trace;
    struct subject *subject;
    bool is_gone;
    uint32_t inner_tid;         /* inside; 0: not known yet */
    char name[16];
};

/* Pages of a twin, and where in the image they are to be. */
struct promise {
    const struct subject *subject;
    uint64_t address, n, at;
};

/* A file description that is known: whose, by which number, and what tells it from others at a glance. */
struct known_file {
    pid_t pid;
    int number;
    dev_t device;
    ino_t inode;
    uint32_t kind;
};

struct capture {
    const struct capture_options *options;
    struct rollbox_error *error;
    int fd;
    unsigned round;             /* tree.c */
    struct subject **subjects;  /* by address: they stay where they are */
    size_t n_subjects, subjects_room;
    struct task *tasks;
    size_t n_tasks, tasks_room;
    struct image image;
    /* Tables, filled as it goes. */
    struct buf processes, threads, areas, runs, actions, pending, timers, locks, files, pipes, targets, fds, terminals, watches, texts;
    struct buf waits, alarms;   /* still.c */
    struct buf guards, guarded; /* guards.c: the table; what the present process has of them */
    size_t n_guarded;           /* that are in the table, or no area's */
    struct buf blobs;           /* what tables name by offset; they follow the pages */
    struct buf known;           /* struct known_file, parallel to `files` */
    struct buf pipe_inodes;     /* uint64_t, parallel to `pipes` */
    struct numbers numbers;     /* of regular files among `files` that have names */
    struct buf sockets;         /* sockets.c */
    struct buf ends;            /* terminals.c */
    struct buf watched;         /* notify.c */
    const struct subject *reached_by;   /* access.c: who last, and which directory */
    struct buf reached;
    struct buf scratch, smaps;
    struct buf written;         /* the last pages before `saved`, on their way to the file */
    uint64_t saved;             /* bytes of pages */
    uint64_t program_device, program_inode;     /* init's */
    uint32_t program_owner;     /* of init's files in /proc */
    uint64_t own_ipc;           /* our namespace of System V: its inode */
    unsigned long n_filters;    /* of system calls; init's, and those of all its processes */
    const struct subject *current;      /* whom errors are about */
    unsigned n_threads;
    uint64_t twins, twin_bytes; /* bytes of memory that they have, and may have */
    struct buf promised;        /* struct promise: pages of the image that tables tell of and that are not written yet */
    bool promises;              /* what may be is promised */
    uint64_t n_promised;        /* pages */
    uint64_t told;              /* to who loads the image: what of it is written */
    bool is_complete;
    uint32_t n_again;           /* of the waits that init has told of, so many were broken off before */
    bool holds, leads;          /* init does nothing else; who waits as it says goes on first (still.c) */
    const char *base;           /* track.c: the image that this is to be an addition to; NULL: none */
    uint64_t base_length;
    struct buf kept;            /* struct image_kept */
    struct capture_tracker had[CAPTURE_MAX_TRACKERS];       /* that there are */
    size_t n_had;
    struct capture_tracker trackers[CAPTURE_MAX_TRACKERS];      /* that there are to be */
    size_t n_trackers;          /* of all processes, or 0 */
    bool is_looked_at;          /* process.c: what is no process' own has been asked for */
};

#define capture_entry(buf, index, type) ((type *)(void *)((buf)->data + (size_t)(index) * sizeof(type)))
#define capture_count(buf, type) ((buf)->length / sizeof(type))

/* Says why the present process cannot be captured, with ENOTSUP or another errno; -errno. */
__attribute__((format(printf, 3, 4))) int capture_refuse(struct capture *c, int error_number, const char *format, ...);
int capture_fail(struct capture *c, const char *what, int negative_errno);
/* A file below /proc/PID, with a NUL that is not counted. */
int capture_read(struct capture *c, const struct subject *s, const char *name, struct buf *to);
/* The line of a text of /proc that begins so, past that; "" if there is none. */
const char *capture_field(const char *text, const char *name);
/* The last of a line's numbers: lines like "NSpid:" have one for each namespace, the innermost last. */
uint32_t capture_innermost(const char *text, const char *name);
/* Pages, to follow those before in the image; and those that are kept back go to the file. 0 or -errno. */
int capture_put(struct capture *c, const void *pages, size_t length);
int capture_flush(struct capture *c);
uint64_t capture_text(struct capture *c, const char *text);
uint64_t capture_blob(struct capture *c, const void *data, size_t length);
struct image_range capture_range(const struct buf *table, size_t before, size_t entry_size);

#endif
