/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing: from the processes of a sandbox to their image (image/process_image.h).
 *
 * Everything in the sandbox but its init is stopped, by ptrace, so that nobody in it can tell; what
 * cannot be captured is refused in words, and then nothing has changed. After the image is written
 * they still stand, so that their files can be copied at the same moment.
 *
 * Callers are processes for this alone: it blocks, and a caller that dies lets everything go on.
 */
#ifndef ROLLBOX_DUMP_CAPTURE_H
#define ROLLBOX_DUMP_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/inode_numbers.h"

struct dump_options {
    pid_t init; /* of the sandbox, the host's pid: what is below it is captured, but for processes
                   of its own program */
    const uint64_t *externals; /* inodes of pipes that lead outside */
    size_t n_externals;
    const int *masters; /* of terminals that belong to commands: borrowed */
    size_t n_masters;
    int still; /* a socket to the init of a sandbox with random_seed or time_start, told of it
                  (GUEST_QUIESCE); 0: it has neither */
    uint64_t max_bytes;                   /* of memory to save */
    uint64_t cow_fork_bytes;              /* bytes in all of processes that are dumped from
                                             copy-on-write forks (cow_fork.c); 0: none, and
                                             all are paused until everything is saved */
    uint64_t memory_limit, max_processes; /* with `base`, where nobody has asked yet what that may
                                             be: of the sandbox; 0: there is none */
    int progress; /* a socket to who loads the image while the memory of twins is written (struct
                     image_progress); 0: nobody does */
    int base; /* an image of the same processes, since which their pages are tracked: a memory file
                 that is sound, mapped for as long as this takes; if it can be, an addition to it is
                 written (dump_is_incremental). 0: none */
    bool tracks; /* unless that is written, pages are tracked from now on */
    const struct dirty_tracker *trackers; /* that there are */
    size_t n_trackers;
    bool
        is_command; /* there is one process, with one thread, which waits in `call`, or is about to;
                       its descriptors are not captured: restored, it gets those of a command */
    long call;
    unsigned highest_fd;         /* it may have descriptors up to this one */
    volatile uint32_t *in_calls; /* shared with who has made us: how many threads would not go on as
                                    they were if we were killed now; NULL: nobody asks */
};

/* Of a process: a userfaultfd of its, which is to be kept open for as long as its pages are to be
 * tracked. */
struct dirty_tracker {
    uint32_t pid; /* inside; of all of them TRACKER_PID_BY_INDEX: that of each living process of the
                     base, in its order */
    int fd;
};

#define TRACKER_PID_BY_INDEX 0u
#define MAX_DIRTY_TRACKERS 32u /* of more processes nothing is tracked */

struct dump_summary {
    unsigned processes, threads;
    uint64_t bytes; /* of the image */
};

struct dump;

/* Finds out what each capture needs and is the same for all: for who forks the callers of the
 * following, once or before each. */
void dump_prepare(void);

/* Looks at everything that is of this moment, and writes the image to the empty memory file `fd`,
 * but for memory that twins have. After 0 they stand still, until dump_resume or dump_end. 0 or
 * -errno and the error: then they go on; -EAGAIN: what was in the way may be gone in a moment. The
 * options are the caller's until the end. */
int dump_begin(const struct dump_options *options, int fd, struct dump **ret_dump,
    struct rollbox_error *error);
/* The processes go on now; dump_resume, where the image is not written, and dump_end are to come
 * yet. */
void dump_release(struct dump *dump);
/* Is the image written? */
bool dump_is_complete(const struct dump *dump);
/* Is it an addition? Then it is written. */
bool dump_is_incremental(const struct dump *dump);
/* CLOCK_MONOTONIC and CLOCK_BOOTTIME of the processes, when they stood: nanoseconds. */
void dump_clocks(const struct dump *dump, int64_t ret_clocks[2]);
/* Of all its processes, if they are tracked from here on: how many. They are the capture's, until
 * its end. */
size_t dump_trackers(const struct dump *dump, const struct dirty_tracker **ret_trackers);
/* The processes go on, and the rest of the image is written. 0 or -errno and the error. */
int dump_resume(struct dump *dump, struct rollbox_error *error);
struct dump_summary dump_summary(const struct dump *dump);
/* The pids, inside, of init's children: how many, at most `most`. */
size_t dump_mains(const struct dump *dump, uint32_t *pids, size_t most);
/* Those of the regular files that are open, for whoever copies them. */
const struct inode_numbers *dump_numbers(const struct dump *dump);
/* Everything goes on. Frees it; NULL is nothing. */
void dump_end(struct dump *dump);

/* What a restored process, of that image and alive, has touched of its memory: struct image_touch,
 * by address, written to the empty memory file `fd`. It is not stopped. 0 or -errno and the error.
 */
int dump_touched(pid_t pid, int image, int fd, struct rollbox_error *error);

/* flatten.c: from an addition and its base, memory files, to an image that needs no base, in the
 * empty memory file `to`. 0 or -errno. */
int dump_flatten(int incremental, int base, int to);

/* maps.c: one line of /proc/PID/maps; `path` points into the line, "" if it has none. Parses what
 * the kernel wrote, in which paths are a guest's. 0 or -EBADMSG. */
struct map_line {
    uint64_t start, end, offset, inode;
    uint32_t protection; /* PROT_* */
    _Bool is_shared;
    const char *path;
};
int map_line_parse(char *line, struct map_line *ret_line);

#endif
