/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing descriptors whose close takes long.
 *
 * The process that closes the last descriptor of a detached tmpfs waits until the kernel has freed
 * each of its files: milliseconds for a thousand, during which the engine would serve no request.
 * So a tmpfs with many files is given to a fork of the engine that does nothing; its end closes the
 * descriptor. There are only a few such forks at a time, because more than there are processors are
 * of no use. When many sandboxes end at once, the others wait, and one fork then takes many. The
 * engine does not end before all of these forks have ended.
 *
 * A tmpfs with few files takes a moment as well, because a mount is gone only when every processor
 * has passed a certain point, and after the mounts of others that end at the same time. So these go
 * to one more fork, the *closer*. It closes the descriptors that it gets, one after the other, and
 * stays until nothing has come for a moment. If its socket is full, the engine closes the
 * descriptor itself. One that arrives when the closer has just ended is closed by its end, or by
 * the engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/core/deferred_close.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"

#define MANY_ENTRIES 256
#define MANY_BYTES (16u << 20)
#define FORKS 4
#define AT_ONCE 64u /* of those that wait, to a fork */
#define MANY_WAITING 16
#define MAX_WAITING 1024 /* more are closed here */
#define CLOSER_SECONDS 1

static struct {
    pid_t pids[FORKS];
    size_t n;
    int waiting[MAX_WAITING];
    size_t n_waiting;
} buried;

static bool takes_long(int fd) {
    struct statfs disk;

    return fstatfs(fd, &disk) == 0 && disk.f_type == TMPFS_MAGIC &&
           (disk.f_files - disk.f_ffree > MANY_ENTRIES ||
               (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize > MANY_BYTES);
}

/* Closes the descriptors that have waited longest. */
static void close_some(size_t n) {
    for (size_t i = 0; i < n; i++)
        close(buried.waiting[i]);
    buried.n_waiting -= n;
    memmove(buried.waiting, buried.waiting + n, buried.n_waiting * sizeof buried.waiting[0]);
}

/* The fork keeps its descriptors until ours are closed, which the end of a pipe reports: the
 * process that closes them last has to wait. 0 or -errno. */
static int give_some(size_t n) {
    int fds[AT_ONCE + 1], ends[2];
    char byte;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    memcpy(fds, buried.waiting, n * sizeof fds[0]);
    fds[n] = ends[0];
    pid_t pid = spawn_fork("rollbox-bury", fds, n + 1);
    if (pid == 0) {
        (void)!read(ends[0], &byte, 1);
        _exit(0);
    }
    if (pid > 0) {
        buried.pids[buried.n++] = pid;
        close_some(n);
    }
    close(ends[0]);
    close(ends[1]);
    return pid < 0 ? pid : 0;
}

/* A fork costs as much as closing little does: another beside those that there are is for many.
 * Where no fork can be made, the end of another is the next occasion; if there is none, nobody else
 * does it. */
static void resume(void) {
    while (buried.n_waiting && buried.n < FORKS && buried.n_waiting >= MANY_WAITING * buried.n) {
        const size_t n = MIN(buried.n_waiting, (size_t)AT_ONCE);

        if (give_some(n) == 0)
            continue;
        if (buried.n)
            return;
        close_some(n);
    }
}

/* ---- the closer ---- */

static struct {
    pid_t pid; /* 0: there is none */
    int socket;
} closer;

_Noreturn static void close_what_comes(int socket) {
    const struct timeval most = { .tv_sec = CLOSER_SECONDS };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    char byte;

    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    while (fd_receive(socket, &byte, sizeof byte, fds, &n_fds) > 0)
        while (n_fds)
            close(fds[--n_fds]);
    _exit(0);
}

static int start_closer(void) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    pid_t pid = spawn_fork("rollbox-close", &pair[1], 1);
    if (pid == 0)
        close_what_comes(pair[1]);
    close(pair[1]);
    int r = pid < 0 ? pid : 0;
    if (r == 0 && fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r < 0)
        close(pair[0]);
    if (pid > 0)
        closer.pid = pid;
    closer.socket = r < 0 ? -EBADF : pair[0];
    return r;
}

/* Ours is closed at once, so that it is not the last when the other is. */
static void give_to_closer(int take_fd) {
    if (closer.pid || start_closer() == 0)
        (void)fd_send(closer.socket, &(const char){ 0 }, 1, &take_fd, 1);
    close(take_fd);
}

static void closer_ended(void) {
    closer.pid = 0;
    close_fd(&closer.socket);
}

void deferred_close(int take_fd) {
    if (!takes_long(take_fd)) {
        give_to_closer(take_fd);
        return;
    }
    if (buried.n_waiting == MAX_WAITING) {
        close(take_fd);
        return;
    }
    buried.waiting[buried.n_waiting++] = take_fd;
    resume();
}

void deferred_close_ended(pid_t pid) {
    if (pid == closer.pid)
        closer_ended();
    for (size_t i = 0; i < buried.n; i++)
        if (buried.pids[i] == pid) {
            buried.pids[i] = buried.pids[--buried.n];
            resume();
            return;
        }
}

unsigned deferred_close_look(void) {
    pid_t pids[FORKS];
    const size_t n = buried.n;
    unsigned n_ended = 0;

    if (closer.pid && waitpid(closer.pid, NULL, WNOHANG) == closer.pid)
        closer_ended();
    memcpy(pids, buried.pids, sizeof pids);
    for (size_t i = 0; i < n; i++)
        if (waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
            deferred_close_ended(pids[i]);
            n_ended++;
        }
    return n_ended;
}

unsigned deferred_close_waiting(void) {
    return (unsigned)buried.n_waiting;
}

void deferred_close_wait(void) {
    if (closer.pid) {
        close_fd(&closer.socket);
        (void)waitpid(closer.pid, NULL, 0);
        closer.pid = 0;
    }
    while (buried.n) {
        pid_t pid = buried.pids[0];

        (void)waitpid(pid, NULL, 0);
        deferred_close_ended(pid);
    }
}
