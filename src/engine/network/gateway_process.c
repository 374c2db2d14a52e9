/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/network/gateway_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "sys/syscalls.h"

#define MESSAGE_BYTES (256u << 10) /* more than either side ever sends at once */
#define MESSAGES_A_TURN 64         /* others have theirs, too */

struct posted {
    struct list node;
    char *text;
    size_t n_fds;
    int fds[];
};

static void posted_free(struct posted *posted) {
    list_remove(&posted->node);
    for (size_t i = 0; i < posted->n_fds; i++)
        close_fd(&posted->fds[i]);
    free(posted->text);
    free(posted);
}

void gateway_process_init(
    struct gateway_process *process, struct engine *engine, const char *program) {
    process->engine = engine;
    process->program = program;
    process->socket = process->pidfd = -EBADF;
    list_init(&process->waiting);
}

void gateway_process_stop(struct gateway_process *process) {
    if (!process->pid)
        return;
    loop_remove(process->engine->loop, &process->source);
    loop_timer_clear(process->engine->loop, &process->retry);
    while (!list_empty(&process->waiting))
        posted_free(container_of(process->waiting.next, struct posted, node));
    close_fd(&process->socket);
    siginfo_t unused;
    (void)sys_pidfd_send_signal(process->pidfd, SIGKILL, NULL, 0);
    while (waitid(P_PIDFD, (id_t)process->pidfd, &unused, WEXITED) < 0 && errno == EINTR)
        ;
    close_fd(&process->pidfd);
    process->pid = 0;
    process->by_event = false;
}

static void flush(struct gateway_process *process);

static void on_retry(struct loop_timer *timer) {
    flush(container_of(timer, struct gateway_process, retry));
}

static void flush(struct gateway_process *process) {
    bool wants_event = false;

    while (!list_empty(&process->waiting)) {
        struct posted *posted = container_of(process->waiting.next, struct posted, node);
        int r = fd_send(
            process->socket, posted->text, strlen(posted->text), posted->fds, posted->n_fds);

        if (r == -EAGAIN) {
            wants_event = true;
            break;
        }
        if (r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM) {
            (void)loop_timer_set(
                process->engine->loop, &process->retry, clock_now_ns() + AGAIN_NS, on_retry);
            break;
        }
        posted_free(posted); /* sent, or the process is dead, which its socket tells */
    }
    if (wants_event != process->by_event) {
        process->by_event = wants_event;
        (void)loop_modify(
            process->engine->loop, &process->source, wants_event ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

int gateway_process_send(
    struct gateway_process *process, json_t *take_message, const int *fds, size_t n_fds) {
    struct posted *posted = calloc(1, sizeof *posted + n_fds * sizeof fds[0]);

    if (posted) {
        list_init(&posted->node);
        posted->text = take_message ? json_dumps(take_message, JSON_COMPACT) : NULL;
        if (fd_copy_all(posted->fds, fds, n_fds) == 0)
            posted->n_fds = n_fds;
    }
    json_decref(take_message);
    if (!posted || !posted->text || posted->n_fds < n_fds) {
        if (posted)
            posted_free(posted);
        return -ENOMEM;
    }
    if (!process->pid) {
        posted_free(posted);
        return 0;
    }
    list_add_tail(&process->waiting, &posted->node);
    flush(process);
    return 0;
}

static void end(struct gateway_process *process) {
    log_at(LOG_WARN, "gateway", NULL, "%s, process %d, has ended", process->program,
        (int)process->pid);
    gateway_process_stop(process);
    process->on_end(process);
}

static void on_event(struct loop_source *source, uint32_t events) {
    struct gateway_process *process = container_of(source, struct gateway_process, source);
    const pid_t pid = process->pid;
    static char data[MESSAGE_BYTES];

    if (events & EPOLLOUT)
        flush(process);
    for (unsigned i = 0; i < MESSAGES_A_TURN && process->pid == pid; i++) {
        int fds[FD_MESSAGE_MAX_FDS];
        size_t n_fds = 0;
        ssize_t n = fd_receive(process->socket, data, sizeof data, fds, &n_fds);

        for (size_t k = 0; k < n_fds; k++)
            close_fd(&fds[k]);
        if (n == -EAGAIN)
            return;
        if (n <= 0 && n != -EMSGSIZE && n != -EMFILE) {
            end(process);
            return;
        }
        json_t *message = n > 0 ? json_loadb(data, (size_t)n, JSON_REJECT_DUPLICATES, NULL) : NULL;
        if (message)
            process->on_message(process, message);
        json_decref(message);
    }
}

int gateway_process_start(struct gateway_process *process) {
    struct engine *engine = process->engine;
    auto_free char *path = spawn_find_program(NULL, process->program);
    char *argv[] = { (char *)process->program, NULL };
    int pair[2] = { -EBADF, -EBADF };

    if (!path || access(path, X_OK) < 0)
        return path ? -ENOENT : -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    const int fds[] = { engine->null_fd, engine->null_fd, engine->null_fd, pair[1] };
    int r = fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
    const int bytes = MESSAGE_BYTES;
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (r == 0)
        r = loop_add(engine->loop, &process->source, pair[0], EPOLLIN, on_event);
    if (r == 0)
        r = spawn_clean(path, argv, fds, ARRAY_SIZE(fds), &process->pid);
    close_fd(&pair[1]);
    if (r == 0)
        r = process->pidfd = sys_pidfd_open(process->pid, 0);
    if (r < 0) { /* without its socket it ends */
        loop_remove(engine->loop, &process->source);
        close_fd(&pair[0]);
        process->pid = 0;
        return r;
    }
    process->socket = pair[0];
    log_at(LOG_INFO, "gateway", NULL, "%s is process %d", process->program, (int)process->pid);
    return 0;
}
