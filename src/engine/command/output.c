/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collecting a command's output stream.
 *
 * The first HEAD_MAX bytes stay in the engine's memory. A stream that grows past that moves to a
 * memory file, which the client receives unchanged. At the limit the run is ended, and further
 * bytes are read from the pipe and dropped, so that no writer waits for the engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/command/output.h"
#include "engine/command/command.h"
#include "engine/command/stream.h"
#include "engine/core/context.h"

#define HEAD_MAX 12288
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)
#define CHUNK 65536
#define TERMINAL_HOLDS                                                                             \
    32768 /* more than is ever under way: 8 KiB in the kernel's queue, 4 where it is read */

static int keep_data(struct output *output, const char *data, size_t length) {
    if (output->spool < 0 && output->head.length + length <= HEAD_MAX) {
        buf_add(&output->head, data, length);
        output->total += length;
        return buf_failed(&output->head) ? -ENOMEM : 0;
    }
    if (output->spool < 0) {
        output->spool = memfd_create("rollbox-output", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (output->spool < 0)
            return -errno;
        int r = fd_write_all(output->spool, output->head.data, output->head.length);
        if (r < 0)
            return r;
    }
    output->total += length;
    return fd_write_all(output->spool, data, length);
}

/* Reads once: how much, 0 at the end of the stream or when nothing is there. May end the run, which
 * is then gone unless it was over already. */
static size_t read_some(struct output *output) {
    static char chunk[CHUNK];
    struct run *run = output->run;
    ssize_t n = read(output->fd, chunk, sizeof chunk);

    if (n < 0 && errno == EIO)
        n = 0; /* a terminal that nobody has open any more */
    if (n < 0)
        return 0;
    if (n == 0) {
        loop_remove(run->engine->loop, &output->source);
        close_fd(&output->fd);
        stream_flush(output);
        output->ops->ended(output);
        return 0;
    }
    size_t room = (size_t)MIN((uint64_t)n, run->limits.output_limit - output->total);
    int r = room ? keep_data(output, chunk, room) : 0;
    stream_flush(output);
    if (r < 0) {
        output->truncated = true;
        output->ops->lost(output, -r);
    } else if (room < (size_t)n) {
        output->truncated = true;
        output->ops->overflowed(output);
    }
    return (size_t)n;
}

static void on_readable(struct loop_source *source, uint32_t events) {
    (void)events;
    (void)read_some(container_of(source, struct output, source));
}

int output_open(struct output *output, struct run *run, int *ret_write_end) {
    int ends[2];

    output->run = run;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    int r = fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0
                ? -errno
                : loop_add(run->engine->loop, &output->source, ends[0], EPOLLIN, on_readable);
    if (r < 0) {
        close(ends[0]);
        close(ends[1]);
        return r;
    }
    stream_let_open(run->engine, ends[1]);
    output->fd = ends[0];
    *ret_write_end = ends[1];
    return 0;
}

int output_adopt(struct output *output, int take_fd) {
    int r =
        fcntl(take_fd, F_SETFL, O_NONBLOCK) < 0
            ? -errno
            : loop_add(output->run->engine->loop, &output->source, take_fd, EPOLLIN, on_readable);

    if (r < 0)
        close(take_fd);
    else
        output->fd = take_fd;
    return r;
}

/*
 * What has been written until now. Of a pipe the kernel tells how much that is. Of a terminal it
 * tells what a worker has brought to our end; reading when nothing is there waits for the worker,
 * and the rest is no more than a terminal holds, so a process that writes all the while does not
 * keep us here.
 */
static void read_waiting(struct output *output) {
    int left = 0;
    size_t n;

    if (output->run->terminal.is_wanted)
        left = TERMINAL_HOLDS;
    else if (output->fd >= 0 && ioctl(output->fd, FIONREAD, &left) < 0)
        left = 0;
    for (; left > 0 && output->fd >= 0 && (n = read_some(output)); left -= (int)n)
        ;
}

/* The output so far belongs to the command. Later output, of processes that the command left
 * running, belongs to no command. */
void output_hand_over(struct output *output) {
    read_waiting(output);
    if (output->fd >= 0) {
        loop_remove(output->run->engine->loop, &output->source);
        drain_add(output->run->engine, run_sandbox(output->run).number, TAKE_FD(output->fd));
    }
    stream_orphan(output);
}

/* The kernel refuses it while anybody is reading pages of the file, after waiting long for them: so
 * before the first reader has it. */
int output_seal(struct output *output) {
    if (output->spool < 0 || output->sealed)
        return 0;
    if (fcntl(output->spool, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    output->sealed = true;
    return 0;
}

/* After every process of the run is dead. It may have handed its end of the pipe to another
 * sandbox, or to another process that it could reach, which still writes: only the present content
 * of the pipe counts. */
void output_drain(struct output *output) {
    read_waiting(output);
    if (output->fd >= 0) {
        loop_remove(output->run->engine->loop, &output->source);
        close_fd(&output->fd);
    }
}

void output_done(struct output *output) {
    if (output->fd >= 0)
        loop_remove(output->run->engine->loop, &output->source);
    stream_drop(output);
    close_fd(&output->fd);
    close_fd(&output->spool);
    buf_done(&output->head);
}
