/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping: from the processes of a sandbox to a process image (image/process_image.h).
 *
 * All processes of the sandbox except init are stopped by ptrace, in a way that the guest cannot
 * detect. If something cannot be dumped, the error says why, and the processes resume unchanged.
 * After the image is written the processes are still paused, so that the files of the sandbox can
 * be copied at the same moment.
 *
 * The caller is a process of its own, the dump worker, because the functions block. If it dies, all
 * processes resume.
 */
#ifndef ROLLBOX_DUMP_CAPTURE_H
#define ROLLBOX_DUMP_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/inode_numbers.h"

struct dump_options {
    pid_t init; /* the sandbox's init, as the host numbers it; its descendants are dumped, except
                   processes that run init's program */
    const uint64_t *externals; /* inodes of pipes that lead outside */
    size_t n_externals;
    const int *masters; /* masters of terminals that belong to commands: borrowed */
    size_t n_masters;
    int still; /* a socket to the init of a sandbox with random_seed or time_start, announced by
                  GUEST_QUIESCE; 0: the sandbox has neither */
    uint64_t max_bytes;      /* limit of saved memory */
    uint64_t cow_fork_bytes; /* limit of memory in copy-on-write forks (cow_fork.c); 0: no
                                forks, the processes stay paused until everything is saved */
    uint64_t memory_limit, max_processes; /* the sandbox's, for computing cow_fork_bytes when
                                             `base` is set and that is 0; 0: no limit */
    int progress; /* a socket to the process that loads the image while the memory of the forks is
                     written (struct image_progress); 0: none */
    int base; /* a parent image, since which the pages are tracked: a memory file that was checked,
                 and stays mapped during the dump. If possible the image refers to it
                 (dump_is_incremental). 0: none */
    bool tracks;                          /* start dirty tracking if the image is not incremental */
    const struct dirty_tracker *trackers; /* existing ones */
    size_t n_trackers;
    int user_namespace; /* with many users and an ordinary user: where the sandbox's ids are the
                           caller's to handle, so that files of their processes in /proc open; 0:
                           none */
    bool many_users;    /* the ids and rights of each thread are dumped */
    /* The sandbox has one process with one thread, which waits in `call` or is about to. Its
     * descriptors are not dumped: after a restore it gets those of a command. */
    bool is_command;
    long call;
    unsigned highest_fd; /* highest allowed descriptor */
    volatile uint32_t
        *in_calls; /* shared with the parent of the worker: how many threads would resume with wrong
                      registers if the worker were killed now; NULL: not counted */
};

/* A userfaultfd of a process. Tracking lasts for as long as it is open. */
struct dirty_tracker {
    uint32_t pid; /* inside the sandbox. TRACKER_PID_BY_INDEX in all of them: entry i belongs to the
                     i-th living process of the parent image */
    int fd;
};

#define TRACKER_PID_BY_INDEX 0u
#define MAX_DIRTY_TRACKERS 32u /* sandboxes with more processes are not tracked */

struct dump_summary {
    unsigned processes, threads;
    uint64_t bytes; /* of the image */
};

struct dump;

/* Computes what is the same for all dumps. Called by a process that forks dump workers, once or
 * before each. */
void dump_prepare(void);

/* Stops the processes, and writes everything to the empty memory file `fd` except the memory of
 * copy-on-write forks. After 0 the processes stay paused until dump_resume or dump_end. -errno and
 * the error: they have resumed. -EAGAIN: a new try may succeed. The options must remain valid until
 * the end. */
int dump_begin(const struct dump_options *options, int fd, struct dump **ret_dump,
    struct rollbox_error *error);
/* Resumes the processes. dump_resume, if the image is incomplete, and dump_end must still be
 * called. */
void dump_release(struct dump *dump);
/* Is the image complete? */
bool dump_is_complete(const struct dump *dump);
/* Is the image incremental? Then it is complete. */
bool dump_is_incremental(const struct dump *dump);
/* CLOCK_MONOTONIC and CLOCK_BOOTTIME of the processes when they were paused, in nanoseconds. */
void dump_clocks(const struct dump *dump, int64_t ret_clocks[2]);
/* The number of trackers, if dirty tracking of all processes continues; else 0. The dump owns them
 * until its end. */
size_t dump_trackers(const struct dump *dump, const struct dirty_tracker **ret_trackers);
/* Resumes the processes and writes the rest of the image. 0 or -errno and the error. */
int dump_resume(struct dump *dump, struct rollbox_error *error);
struct dump_summary dump_summary(const struct dump *dump);
/* Fills in the pids, inside the sandbox, of init's children: how many, at most `most`. */
size_t dump_mains(const struct dump *dump, uint32_t *pids, size_t most);
/* Inodes of the open regular files, for the process that copies them. */
const struct inode_numbers *dump_numbers(const struct dump *dump);
/* Resumes everything and frees the dump; NULL is allowed. */
void dump_end(struct dump *dump);

/* Writes which pages a restored process of that image has touched to the empty memory file `fd`:
 * struct image_touch, by address. The process keeps running. 0 or -errno and the error. */
int dump_touched(pid_t pid, int image, int fd, struct rollbox_error *error);

/* flatten.c: combines an incremental image and its parent image, both memory files, into a full
 * image in the empty memory file `to`. 0 or -errno. */
int dump_flatten(int incremental, int base, int to);

/* maps.c: one line of /proc/PID/maps; `path` points into the line, "" if it has none. The kernel
 * writes these lines, but guests choose the paths. 0 or -EBADMSG. */
struct map_line {
    uint64_t start, end, offset, inode;
    uint32_t major, minor; /* of its file's device */
    uint32_t protection;   /* PROT_* */
    _Bool is_shared;
    const char *path;
};
int map_line_parse(char *line, struct map_line *ret_line);

#endif
