/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing of a commit stays beside what it was of.
 *
 * rollbox-store removes what it has made there, and the engine has directories that were replaced
 * removed when nobody sees them any more, or what is left when rollbox-store was killed. For an
 * engine that is killed, with or without rollbox-store, a janitor does it: it is told each place
 * before that is committed to, and has them swept when the end of its pipe is held by nobody any
 * more. A rollbox-store that commits holds it, too, as it may go on alone. Should the janitor be
 * killed as well, the next commit there sweeps.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/engine.h"
#include "engine/store_job.h"
#include "sys/syscalls.h"

struct watch {
    struct engine *engine;
    pid_t pid; /* the engine's */
};

/* What comes last among the paths is dropped if it is there already. */
static size_t take_path(struct buf *paths, size_t known, size_t size) {
    char *path = paths->data + known;

    for (const char *at = paths->data; at < path; at += strlen(at) + 1)
        if (!strcmp(at, path)) {
            paths->length -= size;
            memmove(path, path + size, paths->length - known);
            return known;
        }
    return known + size;
}

/* -ENOMEM, or 0 when there is nobody any more who could publish anything. */
static int hear_paths(struct buf *paths) {
    size_t known = 0; /* bytes that are whole paths, each of them once */
    char bytes[512];
    ssize_t n;

    while ((n = read(STDIN_FILENO, bytes, sizeof bytes)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        buf_add(paths, bytes, (size_t)n);
        if (buf_failed(paths))
            return -ENOMEM;
        for (const char *end; (end = memchr(paths->data + known, '\0', paths->length - known));)
            known = take_path(paths, known, (size_t)(end + 1 - (paths->data + known)));
    }
    paths->length = known;
    return 0;
}

/* Who dies closes one descriptor after the other, and what waits for every processor (mounts) in
 * between: the pipe, and some time later the locks on what was replaced. */
static void wait_gone(const struct watch *watch, int pidfd) {
    struct pollfd process = { .fd = pidfd, .events = POLLIN };

    while (pidfd >= 0 && getppid() == watch->pid && poll(&process, 1, -1) < 0 && errno == EINTR)
        ;
}

static int look_after(void *argument) {
    const struct watch *watch = argument;
    struct engine *engine = watch->engine;
    auto_buf struct buf paths = BUF_INIT;

    /* Above the standard streams, for who is started. */
    auto_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    auto_close int high = fcntl(null, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    engine->null_fd = high;
    /* What is our parent's is not another's that has its id by now. */
    auto_close int pidfd = sys_pidfd_open(watch->pid, 0);
    if (hear_paths(&paths) < 0)
        return 1;
    wait_gone(watch, pidfd);
    for (char *path = paths.data; path && path < paths.data + paths.length;
         path += strlen(path) + 1) {
        pid_t pid = store_job_sweep(engine, path);

        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    return 0;
}

static bool send_path(const struct engine *engine, const char *path) {
    size_t size = strlen(path) + 1;

    return engine->publishing >= 0 &&
           write(engine->publishing, path, size) ==
               (ssize_t)size; /* PATH_MAX is no more than goes in one piece */
}

void commit_janitor_begin(struct engine *engine, const char *path) {
    if (send_path(engine, path) || (engine->publishing >= 0 && errno == EAGAIN))
        return;
    close_fd(&engine->publishing); /* it was killed */
    struct watch watch = { engine, getpid() };
    if (janitor_fork(look_after, &watch, &engine->publishing) < 0 ||
        fcntl(engine->publishing, F_SETFL, O_NONBLOCK) < 0)
        return;
    (void)send_path(engine, path);
}

int commit_janitor_lend(const struct engine *engine) {
    return engine->publishing < 0 ? -EBADF : fcntl(engine->publishing, F_DUPFD_CLOEXEC, 0);
}
