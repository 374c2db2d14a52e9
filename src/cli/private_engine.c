/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CLI's private engine.
 *
 * The CLI contains the engine's code, so its engine is a fork and not another program. Executing a
 * program takes longer than the engine's whole start. (The library never forks its engine, because
 * its host process may be large and must not be copied.)
 *
 * The fork keeps the same things as rollbox-engine gets: its end of a socket pair, standard error,
 * and an engine's environment variables. It first drops everything else: descriptors, signal
 * dispositions, the terminal's session, and the arguments and environment that /proc shows.
 */
#include "cli/private_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/cli.h"
#include "client/client.h"
#include "engine/engine_serve.h"
#include "sys/cgroup.h"

#define ENGINE_NAME "rollbox-engine"
#define ENGINE_FD 3
#define LEFTOVERS_SIZE 16384
#define PATIENCE_MS 20000

static struct spawned started = { .socket = -EBADF, .pidfd = -EBADF }; /* socket < 0: none */
static char *leftovers; /* shared with the engine: see engine/engine_serve.h */
static char *arguments;
static size_t arguments_length;

void private_engine_arguments(int argc, char **argv) {
    /* The strings are adjacent in memory. */
    arguments = argc > 0 ? argv[0] : NULL;
    for (int i = 0; i < argc && argv[i] == arguments + arguments_length; i++)
        arguments_length += strlen(argv[i]) + 1;
}

/* Erases the fork's copies of the caller's arguments and environment, which /proc would show. */
static void forget_caller(void) {
    size_t kept = 0;

    for (size_t i = 0; environ && environ[i]; i++)
        if (spawn_keeps(environ[i]))
            environ[kept++] = environ[i];
        else
            memset(environ[i], 0, strlen(environ[i]));
    if (environ)
        environ[kept] = NULL;
    if (arguments_length) {
        memset(arguments, 0, arguments_length);
        memcpy(arguments, ENGINE_NAME, MIN(arguments_length, sizeof ENGINE_NAME) - 1);
    }
}

_Noreturn static void become_engine(int socket, bool expects_fixed) {
    sigset_t none;

    for (int number = 1; number <= SIGRTMAX; number++)
        (void)signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_NAME, ENGINE_NAME, 0, 0, 0);
    forget_caller();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (setsid() < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        (socket != ENGINE_FD && dup2(socket, ENGINE_FD) < 0))
        _exit(CLI_EXIT_ERROR);
    closefrom(ENGINE_FD + 1);
    (void)fcntl(ENGINE_FD, F_SETFD, FD_CLOEXEC);
    engine_set_operations();
    _exit(engine_serve(&(struct serve_options){ .fd = ENGINE_FD,
        .expects_fixed = expects_fixed,
        .leftovers = leftovers,
        .leftovers_size = LEFTOVERS_SIZE }));
}

/* Removes the leftovers of an engine that was killed. */
static void clean_up(void) {
    const char *paths[16] = { NULL };
    size_t n = 0;

    if (!leftovers || !leftovers[0])
        return;
    for (char *path = leftovers; *path && n < ARRAY_SIZE(paths) - 1; path += strlen(path) + 1)
        paths[n++] = path;
    (void)cgroup_paths_remove(paths, PATIENCE_MS);
    memset(leftovers, 0, LEFTOVERS_SIZE);
}

static int start_engine(bool expects_fixed) {
    int pair[2], size = SPAWN_SOCKET_BYTES;

    clean_up();
    if (!leftovers) {
        void *shared =
            mmap(NULL, LEFTOVERS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED)
            return -errno;
        leftovers = shared;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    (void)setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    (void)setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        become_engine(theirs, expects_fixed);
    if (pid < 0)
        return -errno;
    int pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) {
        int r = -errno;
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return r;
    }
    started = (struct spawned){ .socket = TAKE_FD(ours), .pidfd = pidfd, .pid = pid };
    return 0;
}

static bool has_engine_variable(void) {
    const char *named = secure_getenv("ROLLBOX_ENGINE");

    return named && named[0];
}

void private_engine_start(const struct options *options) {
    if (!options_text(options, OPTION_ENGINE) && !has_engine_variable())
        (void)start_engine(
            options_has(options, OPTION_SEED) || options_has(options, OPTION_TIME_START));
}

int private_engine_open(struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    if (has_engine_variable())
        return rollbox_engine_open(
            &(struct rollbox_engine_options){ .size = sizeof(struct rollbox_engine_options) },
            ret_engine, error);
    int r = started.socket < 0 ? start_engine(false) : 0;
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_START), -r, "connect",
            "cannot start an engine: %s", strerror(-r));
    struct spawned engine = started;
    started.socket = started.pidfd = -EBADF;
    return handle_adopt(&engine, ret_engine, error);
}

void private_engine_end(void) {
    if (started.socket >= 0) {
        close_fd(&started.socket);
        close_fd(&started.pidfd);
        while (waitpid(started.pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    clean_up();
}
