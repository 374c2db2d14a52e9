/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a capture share. */
#ifndef ROLLBOX_SNAPSHOT_INTERNAL_H
#define ROLLBOX_SNAPSHOT_INTERNAL_H

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

/* tree.c: stopping them all, and how they are related. */
int tree_stop(struct capture *c);
void tree_release(struct capture *c);
int tree_describe(struct capture *c);
struct task *tree_main(struct capture *c, const struct subject *s);
/* They go on; what is known of them is kept. */
void tree_let_go(struct capture *c);
/* A thread that may have gone on since is to stand once more. 0 or -errno: it goes on. */
int tree_hold(struct trace *trace, pid_t tid);

/* process.c: everything but private memory, and what its twin can be asked as well while it goes on. */
int process_capture(struct capture *c, struct subject *s);
/* Of one of them, when all are captured: what is no process' own, and can be asked about last. */
int process_capture_shared(struct capture *c, struct subject *s);
int process_ask_twin(struct capture *c, struct subject *s);

/* twin.c */
#define TWIN_GONE "its copy was killed before it was written; try again"
/* It takes twins after all. */
void twin_reckon(struct capture *c);
/* Begins to make one, if there is room for it. Until it is made no calls are made in the process' first thread, and what is read of its memory waits. */
void twin_make(struct capture *c, struct subject *s);
/* Waits for that, if it was begun; then s->pages are its. */
void twin_made(struct capture *c, struct subject *s);
/* Or was it killed? */
bool twin_stands(const struct subject *s);
void twin_end(struct capture *c, struct subject *s);

/* aside.c: begins to read a file of a process', which is taken, beside what else is done. Then: was it read, to its end? Its text is added. What is not taken ends here. */
void aside_begin(const struct subject *s, int take_fd);
bool aside_take(const struct subject *s, struct buf *to);
void aside_end(void);

/* memory.c. Begins to read what is long and does not change while the process stands. */
void memory_begin(struct subject *s);
int memory_find_tools(struct capture *c, struct subject *s);
/* What others may change once the process goes on: what the files are that it maps; */
int memory_identify(struct capture *c, struct subject *s);
/* and, of those that are known, what is mapped of them, and memory that is shared. */
int memory_note(struct capture *c, struct subject *s);
int memory_capture(struct capture *c, struct subject *s);
/* What was promised for the memory of processes, in the order of its places in the image: `written` is told of each part. 0 or -errno and the error. */
int memory_keep_promises(struct capture *c, void (*written)(struct capture *c, uint64_t end));
/* The content of a file of `length` bytes, without its holes. */
int memory_save_file(struct capture *c, int fd, uint64_t length, struct image_range *ret_runs);
/* The content of shared memory as far as it is mapped here. */
int memory_save_shared(struct capture *c, const struct subject *s, const struct map_line *map, struct image_range *ret_runs);
/* Does the process (still) have at this path what is in `st`? Its own root is where paths begin. 0; -ESTALE; -errno. */
int memory_find_path(const struct subject *s, const char *path, struct stat *ret_st);

/* track.c. The image that this may be an addition to is c->base, from here on; 0 or -errno and the error. From there: it is to be none. */
int track_begin(struct capture *c);
void track_forget(struct capture *c);
/* Are the processes, once they are described, those of the base, as far as can be told before they are looked at? */
bool track_has_same_tree(const struct capture *c);
/* Does the process go on from the base, with few pages that were written to since? What is called for in it from here on leaves its memory as it was, so what is found out is true until it goes on. */
bool track_has_few(struct capture *c, struct subject *s);
/* The area of the base that one of the process' goes on with. NULL: none. */
const struct image_area *track_area(const struct capture *c, const struct subject *s, const struct image_area *area);
enum track_since {
    TRACK_KEPT,                 /* as it was */
    TRACK_WRITTEN,              /* may have been written to; of a file's, also what is not the process' own */
    TRACK_UNSURE,               /* the same, and where it seems to be swapped it may be a guard */
};
/* Calls back for each stretch of pages that is there between two addresses, with what became of it. -errno of its own, or what `call` returns that is not 0. */
typedef int track_call(void *data, uint64_t address, uint64_t n, enum track_since since);
int track_each(const struct subject *s, uint64_t start, uint64_t end, bool is_file, track_call *call, void *data);
/* `n` pages that are as they were. 0 or -errno. */
int track_keep(struct capture *c, const struct image_area *before, uint64_t address, uint64_t n);
/* When all tables but the last are there: is nothing in the way of an addition? */
bool track_goes_on(struct capture *c);
/* From here on. If it cannot be, all is taken as written to (c->n_trackers is 0). */
void track_start(struct capture *c);
void track_end(struct capture *c);
/* memory.c: each stretch of private memory of a process, by address. */
int memory_each_private(struct capture *c, struct subject *s, int (*call)(void *data, uint64_t start, uint64_t end), void *data);

/* guards.c. Where a process has guards in its memory; which of them are in an area, as areas come by address; and, as something could not be read there, is there one? 0 or -errno and the error. */
int guards_find(struct capture *c, const struct subject *s);    /* without the error */
int guards_take(struct capture *c, struct image_area *area);
int guards_refuse(struct capture *c, const struct subject *s, uint64_t address);

/* access.c: what the process has open and whether it may open it again; by mode. */
#define ACCESS_ENTER 1u         /* as in modes */
#define ACCESS_WRITE 2u
#define ACCESS_READ 4u
bool access_is_owner(const struct subject *s, const struct stat *st);
bool access_is_given(const struct subject *s, const struct stat *st, unsigned wanted);
/* All directories on the way to a path. */
bool access_reaches(struct capture *c, const struct subject *s, const char *path);

/* files.c */
int files_capture(struct capture *c, struct subject *s, struct image_process *process);
/* sockets.c: Unix sockets. `fd` is a copy of the process' own. -errno; ENOTSUP and why (ret_why) if it is refused. */
int sockets_capture(struct capture *c, int fd, uint64_t inode, struct image_file *to, const char **ret_why);
/* When all are known: which are each other's ends. */
int sockets_connect(struct capture *c);

/* terminals.c. Is it one, or the master of one? */
bool terminals_is_one(const struct stat *st);
/* `fd` is a copy of the process' own, `take_fd`: consumed. -errno; ENOTSUP and why (ret_why) if it is refused. Until terminals_connect their number stands for them. */
int terminals_capture(struct capture *c, const struct subject *s, const struct stat *st, int take_fd, struct image_file *to, const char **ret_why);
/* Of a device, as the kernel writes it down: its number + 1; 0: it is none. */
uint32_t terminals_number(uint64_t device);
/* When all is known that could be a reason to refuse: how they are set, and what is in them. */
int terminals_connect(struct capture *c);
void terminals_forget(struct capture *c);

/* notify.c: inotify; `fd` is a copy of the process' own, which has it as `number`; `info` is its fdinfo. -errno; why (ret_why) if it is refused. */
int notify_capture(struct capture *c, const struct subject *s, int number, int fd, const char *info, struct image_file *to, const char **ret_why);
/* When all is known: the paths of what is watched. */
int notify_connect(struct capture *c);

/* still.c: what is asked of the init of a sandbox with random_seed or time_start; elsewhere these do nothing. 0 or -errno. */
int still_hold(struct capture *c);
int still_give_back(struct capture *c);         /* whoever was told to stand and does not yet may be one that init holds */
int still_pass(struct capture *c);
int still_tell(struct capture *c);              /* which of those that stand go on with a wait */
int still_go(struct capture *c);
/* Who begins a wait anew, and would be signalled by others before that, is let go before them. */
void still_lead(struct capture *c);
/* One that stands only now that the others have been let go, and is about to be. */
void still_late(struct capture *c, const struct task *task);
void still_end(struct capture *c);
/* A thread that goes on with what is left of a wait begins that wait where it is restored: init knows which call it was. */
void still_find_call(struct capture *c, const struct trace *trace, struct image_thread *thread);
/* When all is captured: what of what init knows is about what was. */
void still_finish(struct capture *c);
/* Is this the page of the virtual clock, is this timer descriptor one that init keeps? */
bool still_is_page(const struct capture *c, uint64_t inode, const char *name);
bool still_is_marked(const struct capture *c, const uint64_t *interval, uint64_t value_s);
/* Whether init has put it in order yet. */
int still_look_at_vdso(struct capture *c, const struct subject *s, const struct image_area *area, struct image_process *process);

/* The memory that a mapping is of: its index among the files. */
int files_memory(struct capture *c, struct subject *s, const struct map_line *map, uint32_t *ret_file);

#endif
