/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper of engines; keeper.h has the model. */
#include "serve/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "serve/side_process.h"
#include "sys/background.h"
#include "sys/proc.h"

#define START_MS 10000 /* an engine that listens on a socket takes some milliseconds */
#define LOOK_MS 5

/* The program of this build beside this one, unless ROLLBOX_ENGINE names another. NULL: as
 * librollbox finds it. */
static char *engine_program(void) {
    auto_free char *self = proc_own_program();
    auto_buf struct buf path = BUF_INIT;

    if (!self || getenv("ROLLBOX_ENGINE"))
        return NULL;
    buf_add(&path, self, (size_t)(strrchr(self, '/') + 1 - self));
    buf_add_text(&path, "rollbox-engine");
    return !buf_failed(&path) && access(path.data, X_OK) == 0 ? buf_take(&path) : NULL;
}

/* ---- engines that outlive the server ---- */

/* DIR/engine-N.sock, or DIR/engine-TENANT.sock. */
static int socket_path(
    const struct config *config, const struct keeper_engine *engine, struct buf *to) {
    if (*engine->owner)
        buf_printf(to, "%s/engine-%s.sock", config->state, engine->owner);
    else
        buf_printf(to, "%s/engine-%u.sock", config->state, engine->number);
    return buf_failed(to) ? -ENOMEM : 0;
}

static int start_listening(const char *program, const char *path) {
    char name[] = "rollbox-engine", option[] = "--socket";
    char *argv[] = { name, option, (char *)(uintptr_t)path, NULL };
    pid_t pid = background_spawn(program, argv, -1);

    return MIN(pid, 0);
}

/* Connects to the engine on the path, which is started if none is there. */
static int open_listening(const char *path, struct spawned *ret, struct rollbox_error *error) {
    auto_free char *own = engine_program();
    const char *named = getenv("ROLLBOX_ENGINE");
    const char *program = own ? own : named;
    int64_t deadline = clock_now_ns() + (int64_t)START_MS * 1000000;
    bool started = false;

    if (!program)
        program = "rollbox-engine";
    for (;;) {
        int r = handle_connect(path, &ret->socket, &ret->pid, error);

        if (r >= 0) {
            ret->pidfd = -EBADF;
            ret->path = strdup(path);
            return 0;
        }
        if (error->code != ROLLBOX_ERR_ENGINE_LOST || clock_now_ns() > deadline)
            return r;
        if (!started) {
            r = start_listening(program, path);
            if (r < 0)
                return error_set(error, ROLLBOX_ERR_ENGINE_START, -r, "connect",
                    "cannot start the engine %s: %s", program, strerror(-r));
            started = true;
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* ---- any engine ---- */

int keeper_open(const struct config *config, const struct keeper_engine *engine,
    struct spawned *ret_spawned, struct rollbox_error *error) {
    auto_buf struct buf path = BUF_INIT;

    *ret_spawned = (struct spawned){ .socket = -EBADF, .pidfd = -EBADF };
    if (config->engine.n) {
        const char *named = config->engine.values[engine->number];
        int r = handle_connect(named, &ret_spawned->socket, &ret_spawned->pid, error);

        ret_spawned->path = r < 0 ? NULL : strdup(named);
        return r;
    }
    if (config->state) {
        int r = socket_path(config, engine, &path);

        if (r < 0)
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "connect", "out of memory");
        return open_listening(path.data, ret_spawned, error);
    }
    auto_free char *program = engine_program();
    return spawn_engine(program, ret_spawned, error);
}

/* ---- the keeper's own process ---- */

/* Of an engine that would outlive the server. */
static void stop(const struct config *config, const struct keeper_engine *engine) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_buf struct buf path = BUF_INIT;
    auto_close int fd = -EBADF;
    pid_t pid;

    if (config->state && socket_path(config, engine, &path) >= 0 &&
        handle_connect(path.data, &fd, &pid, &error) >= 0 && pid > 1)
        (void)kill(pid, SIGTERM);
}

static void answer(int socket, const struct config *config, const struct keeper_engine *engine) {
    struct keeper_answer row = { .engine = *engine };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct spawned spawned;
    int fds[2];

    int r = keeper_open(config, engine, &spawned, &error);
    if (r < 0) {
        row.error_number = error.error_number ? error.error_number : EIO;
        (void)snprintf(row.message, sizeof row.message, "%.500s", error.message);
        (void)fd_send(socket, &row, sizeof row, NULL, 0);
        return;
    }
    row.pid = spawned.pid;
    fds[0] = spawned.socket;
    fds[1] = spawned.pidfd;
    (void)fd_send(socket, &row, sizeof row, fds, spawned.pidfd >= 0 ? 2 : 1);
    close_fd(&spawned.socket);
    close_fd(&spawned.pidfd);
    free(spawned.path);
}

static _Noreturn void keep(int socket, const void *data) {
    const struct config *config = data;
    struct keeper_engine engine;
    int fds[FD_MESSAGE_MAX_FDS];

    (void)signal(SIGINT, SIG_IGN); /* of a terminal: for the server */
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN); /* engines are waited for by nobody */
    for (;;) {
        size_t n_fds = 0;
        ssize_t n = fd_receive(socket, &engine, sizeof engine, fds, &n_fds);
        bool is_other = n > 0 && side_process_take(&engine, (size_t)n, fds, n_fds);

        while (n_fds)
            close_fd(&fds[--n_fds]);
        if (is_other)
            continue;
        if (n != (ssize_t)sizeof engine)
            _exit(0);
        engine.owner[KEEPER_OWNER_MAX - 1] = '\0';
        if (engine.stops)
            stop(config, &engine);
        else
            answer(socket, config, &engine);
    }
}

void keeper_define(const struct config *config) {
    side_process_define(SIDE_KEEPER, "rollbox-keeper", keep, config);
}

int keeper_ask(int socket, const struct keeper_engine *engine) {
    return send(socket, engine, sizeof *engine, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

int keeper_answer(int socket, struct keeper_answer *ret_answer, struct spawned *ret_spawned) {
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n = 0;
    ssize_t length = fd_receive(socket, ret_answer, sizeof *ret_answer, fds, &n);

    *ret_spawned = (struct spawned){ .socket = -EBADF, .pidfd = -EBADF };
    if (length == -EAGAIN)
        return 0;
    if (length != (ssize_t)sizeof *ret_answer || (!ret_answer->error_number && n < 1)) {
        while (n)
            close_fd(&fds[--n]);
        return length < 0 ? (int)length : -ECONNRESET;
    }
    ret_answer->message[sizeof ret_answer->message - 1] = '\0';
    if (n > 0)
        ret_spawned->socket = fds[0];
    if (n > 1)
        ret_spawned->pidfd = fds[1];
    while (n > 2)
        close_fd(&fds[--n]);
    ret_spawned->pid = ret_answer->pid;
    return 1;
}
