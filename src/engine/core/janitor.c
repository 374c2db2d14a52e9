/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a command that runs is a child that this command waits for. There the parent
 * removes the cgroups (engine->janitor.leftovers), and no janitor is needed for them, unless groups
 * of dead engines are to be swept.
 */
#include "engine/core/janitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "loop/loop.h"
#include "sys/cgroup.h"
#include "sys/syscalls.h"

#define PATIENCE_MS 20000

#define MESSAGE_ROOM 4096 /* of a path, which the kernel takes */

struct message {
    const struct janitor_duty *duty;
    char text[MESSAGE_ROOM]; /* the path */
};

/* A duty with an end. */
struct due {
    const struct janitor_duty *duty;
    char *path;
};

struct janitor {
    int messages;    /* a socket; -EBADF: the janitor is not started, or dead */
    int loans;       /* the write end of a pipe; it and its copies are the loans */
    struct due *due; /* for another janitor, should this one be killed */
    size_t n_due;
};

/* 1; 0: it is there already; -ENOMEM */
static int add_due(struct due **due, size_t *n, const struct janitor_duty *duty, const char *path) {
    for (size_t i = 0; i < *n; i++)
        if ((*due)[i].duty == duty && !strcmp((*due)[i].path, path))
            return 0;
    struct due *more = realloc(*due, (*n + 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    *due = more;
    more[*n] = (struct due){ duty, strdup(path) };
    if (!more[*n].path)
        return -ENOMEM;
    ++*n;
    return 1;
}

/* ---- in the janitor ---- */

static void do_now(struct engine *engine, struct due **due, size_t *n) {
    struct message message;

    for (;;) {
        ssize_t size = recv(STDIN_FILENO, &message, sizeof message, 0);

        if (size < 0 && errno == EINTR)
            continue;
        if (size <= (ssize_t)offsetof(struct message, text))
            return; /* the engine is gone */
        message.text[sizeof message.text - 1] = '\0';
        if (message.duty->now)
            message.duty->now(engine, message.text);
        if (message.duty->at_end)
            (void)add_due(due, n, message.duty, message.text);
    }
}

static void do_at_end(struct engine *engine, const struct due *due, size_t n, bool after_loans) {
    for (size_t i = 0; i < n; i++)
        if (due[i].duty->after_loans == after_loans)
            due[i].duty->at_end(engine, due[i].path);
}

/* A process that dies closes one descriptor after the other, and unmounts in between, which takes
 * long: the pipe, and some time later the locks. */
static void wait_for_loans(int loans, pid_t engine, int pidfd) {
    struct pollfd process = { .fd = pidfd, .events = POLLIN };
    char byte;
    ssize_t n;

    do
        n = read(loans, &byte, 1);
    while (n > 0 || (n < 0 && errno == EINTR));
    while (pidfd >= 0 && getppid() == engine && poll(&process, 1, -1) < 0 && errno == EINTR)
        ;
}

static _Noreturn void be_janitor(struct engine *engine, pid_t pid, int messages, int loans) {
    struct due *due = NULL;
    size_t n = 0;

    if (dup2(messages, STDIN_FILENO) < 0 || spawn_shed("rollbox-janitor", &loans, 1) < 0)
        _exit(1);
    /* Above the standard streams, for the programs that a duty starts. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    engine->null_fd = fcntl(null, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close_fd(&null);
    /* While our parent has this id, no other process has it. */
    int pidfd = sys_pidfd_open(pid, 0);
    do_now(engine, &due, &n);
    do_at_end(engine, due, n, false);
    wait_for_loans(loans, pid, pidfd);
    do_at_end(engine, due, n, true);
    _exit(0);
}

/* ---- in the engine ---- */

static int start_janitor(struct engine *engine) {
    struct janitor *janitor = engine->janitor.process;
    int sockets[2], loans[2];
    const pid_t own = getpid();

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return -errno;
    if (pipe2(loans, O_CLOEXEC) < 0) {
        int r = -errno;

        close(sockets[0]);
        close(sockets[1]);
        return r;
    }
    pid_t pid = fork();
    if (pid == 0)
        be_janitor(engine, own, sockets[0], loans[0]);
    int r = pid < 0 ? -errno : 0;
    close(sockets[0]);
    close(loans[0]);
    if (r < 0) {
        close(sockets[1]);
        close(loans[1]);
        return r;
    }
    close_fd(&janitor->loans);
    janitor->messages = sockets[1];
    janitor->loans = loans[1];
    return 0;
}

/* A full socket is no error: the janitor is at work, and finds later what there is. */
static int send_message(
    struct janitor *janitor, const struct janitor_duty *duty, const char *path) {
    struct message message = { .duty = duty };
    size_t length = strlen(path); /* janitor_tell has seen that it fits */

    memcpy(message.text, path, length + 1);
    if (janitor->messages < 0)
        return -ENOTCONN;
    if (send(janitor->messages, &message, offsetof(struct message, text) + length + 1,
            MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
        errno == EAGAIN)
        return 0;
    int r = -errno;
    close_fd(&janitor->messages);
    return r;
}

int janitor_tell(struct engine *engine, const struct janitor_duty *duty, const char *path) {
    struct janitor *janitor = engine->janitor.process;
    int r = 0;

    if (strlen(path) >= sizeof((struct message *)0)->text)
        return -ENAMETOOLONG; /* a part of it would be the path of something else */
    if (!janitor) {
        janitor = engine->janitor.process = calloc(1, sizeof *janitor);
        if (!janitor)
            return -ENOMEM;
        janitor->messages = janitor->loans = -EBADF;
    }
    if (duty->at_end)
        r = add_due(&janitor->due, &janitor->n_due, duty, path);
    if (r < 0 || send_message(janitor, duty, path) == 0)
        return MIN(r, 0);
    r = start_janitor(engine);
    for (size_t i = 0; r == 0 && i < janitor->n_due; i++)
        r = send_message(janitor, janitor->due[i].duty, janitor->due[i].path);
    return r == 0 && !duty->at_end ? send_message(janitor, duty, path) : r;
}

int janitor_lend(const struct engine *engine) {
    return engine->janitor.process && engine->janitor.process->loans >= 0
               ? fcntl(engine->janitor.process->loans, F_DUPFD_CLOEXEC, 0)
               : -EBADF;
}

void janitor_finish(struct engine *engine) {
    struct janitor *janitor = TAKE_PTR(engine->janitor.process);

    if (!janitor)
        return;
    close_fd(&janitor->messages);
    close_fd(&janitor->loans);
    while (janitor->n_due)
        free(janitor->due[--janitor->n_due].path);
    free(janitor->due);
    free(janitor);
}

/* ---- cgroups ---- */

/* Removes the cgroups of engines that were killed together with their janitors. The janitor does
 * it, so that no run waits for it. */
static void sweep_cgroups(struct engine *engine, const char *path) {
    (void)path;
    (void)cgroup_sweep(engine->cgroups);
}

static void remove_cgroups(struct engine *engine, const char *path) {
    (void)path;
    (void)cgroup_paths_remove(cgroup_paths(engine->cgroups), PATIENCE_MS);
}

static const struct janitor_duty cgroups_duty = { sweep_cgroups, remove_cgroups, false };

static bool has_cgroups_duty(const struct engine *engine) {
    const struct janitor *janitor = engine->janitor.process;

    for (size_t i = 0; janitor && i < janitor->n_due; i++)
        if (janitor->due[i].duty == &cgroups_duty)
            return true;
    return false;
}

static void on_due(struct loop_timer *timer) {
    struct engine *engine = container_of(timer, struct engine, janitor.due);

    if (engine->janitor.leftovers && engine->janitor.leftovers[0] &&
        !cgroup_any_leftover(engine->cgroups))
        return;
    /* Without one, the next engine sweeps. */
    (void)janitor_tell(engine, &cgroups_duty, "");
}

/* Tells the parent what to remove, should we be killed. That may be now, and half a path is another
 * directory's: its first letter comes last. */
static void bequeath_paths(struct engine *engine) {
    const char *const *paths = cgroup_paths(engine->cgroups);
    size_t at = 0;

    for (size_t i = 0; paths[i]; i++) {
        size_t length = strlen(paths[i]) + 1;

        if (at + length + 1 > engine->janitor.leftovers_size)
            return;
        memcpy(engine->janitor.leftovers + at + (i == 0), paths[i] + (i == 0), length - (i == 0));
        at += length;
    }
    if (at)
        __atomic_store_n(engine->janitor.leftovers, paths[0][0], __ATOMIC_RELEASE);
}

void janitor_start_soon(struct engine *engine) {
    if (engine->janitor.leftovers && !engine->janitor.leftovers[0])
        bequeath_paths(engine);
    if (!has_cgroups_duty(engine) && !engine->janitor.due.position)
        (void)loop_timer_set(engine->loop, &engine->janitor.due, clock_now_ns(), on_due);
}
