/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capturing a process: from a process that stands still to its image (guest/image.h).
 *
 * What can be captured: one process with one thread, at a system call that waits, with private memory, files mapped without write access to them, and the descriptors that the caller says. Whatever it has beyond that is refused in words.
 */
#ifndef ROLLBOX_SNAPSHOT_CAPTURE_H
#define ROLLBOX_SNAPSHOT_CAPTURE_H

#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

struct capture_options {
    pid_t pid;                  /* the host's */
    pid_t parent;               /* of which it is to be the only child: nobody else may touch its memory meanwhile */
    long call;                  /* the system call in which it waits, or is about to: it is stopped there and nowhere else */
    unsigned highest_fd;        /* it may have descriptors up to this one: whoever restores it gives it others in their place */
    uint64_t most_bytes;        /* of memory to save */
};

/* Stops the process, writes its image to the empty memory file `fd`, and lets it go on. Blocks for milliseconds. 0 or -errno and the error. */
int capture_process(const struct capture_options *options, int fd, struct rollbox_error *error);

/* What a restored process, of that image and alive, has touched of its memory: struct image_touch, by address, written to the empty memory file `fd`. It is not stopped. 0 or -errno and the error. */
int capture_touched(pid_t pid, int image, int fd, struct rollbox_error *error);

/* maps.c: one line of /proc/PID/maps; `path` points into the line, "" if it has none. Parses what the kernel wrote, in which paths are a guest's. 0 or -EBADMSG. */
struct map_line {
    uint64_t start, end, offset, inode;
    uint32_t protection;        /* PROT_* */
    _Bool is_shared;
    const char *path;
};
int map_line_parse(char *line, struct map_line *ret_line);

#endif
