/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds and starts a private engine.
 *
 * The engine must inherit nothing of the caller's except its end of the socket, standard error and
 * a few variables. The caller may be a trainer whose environment, descriptors and signal
 * dispositions must not affect sandboxes. The engine closes inherited descriptors itself (--fd),
 * because posix_spawn can do so only since glibc 2.34 and the wheel's library runs with older ones.
 * It gets a session of its own, so that Ctrl-C on a terminal reaches the client alone, which then
 * closes the socket. posix_spawn never copies the caller's page tables, however large the caller
 * is.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "client/client.h"
#include "sys/syscalls.h"

#define ENGINE_NAME "rollbox-engine"
#define ENGINE_FD 3

/* The directory of the file that contains this code, or of the program, for the caller to free.
 * NULL if it is unknown. */
static char *own_directory(bool of_library) {
    char *path = NULL;
    Dl_info info;

    /* In a static program dladdr knows no file, or repeats argv[0]: only an absolute name is of
     * use. */
    if (!of_library)
        path = realpath("/proc/self/exe", NULL);
    else if (dladdr((const void *)(uintptr_t)spawn_engine, &info) && info.dli_fname &&
             info.dli_fname[0] == '/')
        path = realpath(info.dli_fname, NULL);
    if (path)
        *strrchr(path, '/') = '\0';
    return path;
}

/* The candidate's path if it can be executed, for the caller to free. */
static char *find_executable(const char *directory, const char *below) {
    char *path = NULL;

    if (asprintf(&path, "%s/%s" ENGINE_NAME, directory, below) < 0)
        return NULL;
    if (access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

static int find_engine(const char *engine_path, char **ret_path, struct rollbox_error *error) {
    auto_free char *beside_library = NULL;
    auto_free char *beside_program = NULL;
    /* A set-user-id program must not start a program that its caller names. */
    const char *named = engine_path ? engine_path : secure_getenv("ROLLBOX_ENGINE");
    char *path = NULL;

    if (named && named[0]) {
        path = strdup(named);
        if (!path)
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "connect", "out of memory");
        *ret_path = path;
        return 0;
    }
    beside_library = own_directory(true);
    beside_program = own_directory(false);
    const char *const directories[] = { beside_library, beside_program };
    for (size_t i = 0; i < ARRAY_SIZE(directories) && !path; i++) {
        if (!directories[i])
            continue;
        path = find_executable(directories[i], "");
        if (!path)
            path = find_executable(directories[i], "../libexec/rollbox/");
        /* The library is in PREFIX/lib/pythonX.Y/site-packages/rollbox, the programs are in PREFIX.
         */
        if (!path)
            path = find_executable(directories[i], "../../../../libexec/rollbox/");
    }
#ifdef ROLLBOX_LIBEXECDIR
    if (!path)
        path = find_executable(ROLLBOX_LIBEXECDIR, "");
#endif
    if (!path)
        return error_set(error, ROLLBOX_ERR_ENGINE_START, ENOENT, "connect",
            ENGINE_NAME " was not found beside the library (%s) or the program (%s); set "
                        "ROLLBOX_ENGINE to its path",
            text_or(beside_library, "?"), text_or(beside_program, "?"));
    *ret_path = path;
    return 0;
}

bool spawn_keeps(const char *variable) {
    static const char *const kept[] = { "ROLLBOX_", "TMPDIR=", "HOME=", "XDG_DATA_HOME=" };

    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (!strncmp(variable, kept[i], strlen(kept[i])))
            return true;
    return false;
}

/* Pointers into environ; the array is the caller's to free. */
static char **engine_environment(void) {
    size_t n = 0, kept = 0;

    while (environ && environ[n])
        n++;
    char **kept_variables = calloc(n + 1, sizeof *kept_variables);
    if (!kept_variables)
        return NULL;
    if (!getauxval(AT_SECURE))
        for (size_t i = 0; i < n; i++)
            if (spawn_keeps(environ[i]))
                kept_variables[kept++] = environ[i];
    return kept_variables;
}

/* A descriptor that the file actions below cannot overwrite before they duplicate it. */
static int above_standard(int *fd) {
    if (*fd > ENGINE_FD)
        return 0;
    int higher = fcntl(*fd, F_DUPFD_CLOEXEC, ENGINE_FD + 1);
    if (higher < 0)
        return -errno;
    close(*fd);
    *fd = higher;
    return 0;
}

/* Returns a positive errno, as the posix_spawn family does. */
static int start_program(const char *path, int socket, char **environment, pid_t *ret_pid) {
    char *argv[] = { (char[]){ ENGINE_NAME }, (char[]){ "--fd" }, (char[]){ "3" }, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;

    int r = posix_spawn_file_actions_init(&actions);
    if (r)
        return r;
    r = posix_spawnattr_init(&attributes);
    if (r) {
        posix_spawn_file_actions_destroy(&actions);
        return r;
    }
    sigemptyset(&none);
    sigfillset(&all);
    if (!r)
        r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!r)
        r = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (!r && fcntl(2, F_GETFD) < 0)
        r = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (!r)
        r = posix_spawn_file_actions_adddup2(&actions, socket, ENGINE_FD);
    if (!r)
        r = posix_spawn_file_actions_addclosefrom_np(&actions, ENGINE_FD + 1);
    if (!r)
        r = posix_spawnattr_setsigmask(&attributes, &none);
    if (!r)
        r = posix_spawnattr_setsigdefault(&attributes, &all);
    if (!r)
        r = posix_spawnattr_setflags(
            &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    if (!r)
        r = posix_spawn(ret_pid, path, &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

int spawn_engine(
    const char *engine_path, struct spawned *ret_spawned, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int pair[2], size = SPAWN_SOCKET_BYTES;
    pid_t pid;

    int r = find_engine(engine_path, &path, error);
    if (r < 0)
        return r;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_ENGINE_START), errno, "connect",
            "cannot make a socket pair: %s", strerror(errno));
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    auto_free char **environment = engine_environment();
    if (!environment)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "connect", "out of memory");
    (void)setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    (void)setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    r = above_standard(&theirs);
    if (r >= 0)
        r = above_standard(&ours);
    if (r >= 0 && fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_START), -r, "connect",
            "cannot prepare the engine's socket: %s", strerror(-r));
    r = start_program(path, theirs, environment, &pid);
    if (r)
        return error_set(error, error_code_of(r, ROLLBOX_ERR_ENGINE_START), r, "connect",
            "cannot start the engine %s: %s%s", path, strerror(r),
            r == ENOENT ? "; check ROLLBOX_ENGINE or the installation" : "");
    int pidfd = sys_pidfd_open(pid, 0);
    if (pidfd < 0) {
        r = -pidfd;
        /* It has ended and been reaped: by the host program, or because that ignores SIGCHLD. */
        if (r == ESRCH)
            return error_set(error, ROLLBOX_ERR_ENGINE_START, r, "connect",
                "the engine %s ended at once; its standard error may say why", path);
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return error_set(error, error_code_of(r, ROLLBOX_ERR_ENGINE_START), r, "connect",
            "cannot open the engine's process: %s", strerror(r));
    }
    *ret_spawned = (struct spawned){
        .socket = TAKE_FD(ours), .pidfd = pidfd, .pid = pid, .path = TAKE_PTR(path)
    };
    return 0;
}
